"""Our optimizers in the configuration files of other Paddle frameworks: ``paddleclas.register()`` and so on.

The settings of a framework's own optimizers keep their meaning. Options of the optimizer and of `LayerDecay`, `rules`
of `LayerMap.from_model`, and `allow_layerwise_change` are settings too. Importing this imports no framework.
"""

from types import SimpleNamespace

from . import frameworks

paddleclas = SimpleNamespace(register=frameworks.register_paddleclas)
paddledetection = SimpleNamespace(register=frameworks.register_paddledetection)
paddleocr = SimpleNamespace(register=frameworks.register_paddleocr)
paddleseg = SimpleNamespace(register=frameworks.register_paddleseg)
paddlespeech = SimpleNamespace(register=frameworks.register_paddlespeech)

__all__ = ["paddleclas", "paddledetection", "paddleocr", "paddleseg", "paddlespeech"]
