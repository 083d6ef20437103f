"""Tools to run before training: memory calculator and command line."""
