"""Our optimizers in the configuration files of other Paddle frameworks: one module for each, with `register()`.

The settings of a framework's own optimizers keep their meaning. Options of the optimizer and of `LayerDecay`, the
`rules` of `LayerMap.from_model` and `allow_layerwise_change` are settings too.

Nothing is imported here, and importing one module imports nothing of the other frameworks.
"""
