"""Our optimizers in the configuration files of other Paddle frameworks: one module for each, with `register()`.

Nothing is imported here, and importing one module imports nothing of the other frameworks.
"""
