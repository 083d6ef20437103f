"""Tools to run before a training: memory calculator and command line."""
