"""Layer-wise learning-rate decay for fine-tuning with PaddlePaddle."""

try:
    import paddle as _paddle  # noqa: F401
except ImportError as error:
    raise ImportError(
        "paddle_ldopt needs PaddlePaddle 3: `pip install paddlepaddle` for CPU, or the `paddlepaddle-gpu` wheel for "
        f"your CUDA version. Received: {error}"
    ) from error

from .decay import LayerDecay, apply_layerwise_decay, reset_layerwise_decay
from .hooks import layerwise_lr_decay
from .layers import Layer, LayerMap
from .optimizers import AdamWDL
from .version import __version__

__all__ = [
    "AdamWDL",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "__version__",
    "apply_layerwise_decay",
    "layerwise_lr_decay",
    "reset_layerwise_decay",
]
