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
from .optimizers import Adafactor, AdafactorSchedule, AdamWDL, AdamWeightDecay, Came, Lamb
from .registry import OptimizerInfo, create, list_optimizers, optimizer_class
from .version import __version__
from .weight_decay import decayed_parameter_names

__all__ = [
    "Adafactor",
    "AdafactorSchedule",
    "AdamWDL",
    "AdamWeightDecay",
    "Came",
    "Lamb",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "OptimizerInfo",
    "__version__",
    "apply_layerwise_decay",
    "create",
    "decayed_parameter_names",
    "layerwise_lr_decay",
    "list_optimizers",
    "optimizer_class",
    "reset_layerwise_decay",
]
