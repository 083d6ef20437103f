"""Layer-wise learning-rate decay for fine-tuning with PaddlePaddle.

`create` builds an optimizer. `LdoptConfig` builds an optimizer and its schedule from settings or a file. Both use the
same option names. The classes have the arguments of the optimizers they replace.
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    _importlib.import_module("paddle")
except ImportError as error:
    raise ImportError(
        "paddle_ldopt needs PaddlePaddle 3: `pip install paddlepaddle` for CPU, or the `paddlepaddle-gpu` wheel for "
        f"your CUDA version. Received: {error}"
    ) from error

from .create import create
from .layers.decay import Layer, LayerDecay
from .layers.map import LayerMap
from .optimizers import (
    Adafactor,
    AdafactorSchedule,
    AdamWDL,
    AdamWeightDecay,
    Came,
    Lamb,
    Muon,
    apply_layerwise_decay,
    list_optimizers,
    optimizer_class,
)
from .optimizers.layer_rates import layerwise_lr_decay
from .rates import decayed_parameter_names
from .schedules import (
    CurveSchedule,
    MetricSchedule,
    ReduceLROnPlateau,
    SchedulerType,
    WarmUp,
    get_constant_schedule,
    get_constant_schedule_with_cool_down,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_reduce_on_plateau_schedule,
    get_scheduler,
    get_wsd_schedule,
)
from .version import __version__

if _TYPE_CHECKING:
    from .accumulator import GradientAccumulator
    from .checkpoint import LoadReport, load_optimizer, save_optimizer
    from .config import LdoptConfig
    from .parallel import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, PipelineWithLossScale
    from .tensorflow_recipe import create_optimizer

_LATER = {  # module -> names, imported when first used
    "accumulator": ("GradientAccumulator",),
    "checkpoint": ("LoadReport", "load_optimizer", "save_optimizer"),
    "config": ("LdoptConfig",),
    "parallel": ("AdaptiveLossScaler", "DynamicLossScaler", "FixedLossScaler", "PipelineWithLossScale"),
    "tensorflow_recipe": ("create_optimizer",),
}

# fmt: off
__all__ = [
    # entry points
    "create", "list_optimizers", "LdoptConfig", "get_scheduler",
    # layers
    "Layer", "LayerDecay", "LayerMap", "decayed_parameter_names",
    # optimizers
    "Adafactor", "AdafactorSchedule", "AdamWDL", "AdamWeightDecay", "Came", "Lamb", "Muon",
    "optimizer_class",
    # for Paddle's optimizers, and PaddleNLP's hook
    "apply_layerwise_decay", "layerwise_lr_decay",
    # schedules
    "CurveSchedule", "MetricSchedule", "ReduceLROnPlateau", "SchedulerType", "WarmUp",
    "get_constant_schedule", "get_constant_schedule_with_cool_down", "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup", "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup", "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_inverse_sqrt_schedule", "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup", "get_reduce_on_plateau_schedule", "get_wsd_schedule",
    # TensorFlow's BERT recipe
    "create_optimizer",
    # saving
    "save_optimizer", "load_optimizer", "LoadReport",
    # training steps
    "GradientAccumulator", "AdaptiveLossScaler", "DynamicLossScaler", "FixedLossScaler", "PipelineWithLossScale",
    "__version__",
]
# fmt: on


def __getattr__(name: str) -> _Any:
    for module, names in _LATER.items():
        if name == module or name in names:
            imported = _importlib.import_module(f".{module}", __name__)
            return imported if name == module else getattr(imported, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER})
