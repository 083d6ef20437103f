"""The version, where setuptools can read it without importing Paddle."""

__version__ = "0.3.0"
