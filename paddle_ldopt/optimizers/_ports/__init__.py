"""Features that our optimizers take from the library they are ported from."""
