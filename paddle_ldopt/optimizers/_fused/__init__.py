"""The step by the C library."""
