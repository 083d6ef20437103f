"""Layer-wise learning-rate decay for fine-tuning with PaddlePaddle."""

try:
    import paddle as _paddle  # noqa: F401
except ImportError as error:
    raise ImportError(
        "paddle_ldopt needs PaddlePaddle 3: `pip install paddlepaddle` for CPU, or the `paddlepaddle-gpu` wheel for "
        f"your CUDA version. Received: {error}"
    ) from error

from . import optimizers as _optimizers
from .accumulation import GradientAccumulator
from .build import create
from .config import LdoptConfig
from .layers.decay import LayerDecay
from .layers.map import Layer, LayerMap
from .layers.paddlenlp_hook import layerwise_lr_decay
from .layers.weight_decay import decayed_parameter_names
from .optimizers import *  # noqa: F403
from .parallel import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, PipelineWithLossScale
from .saving import LoadReport, convert_torch_optimizer, load_optimizer, save_optimizer
from .schedules import (
    GreedyLR,
    MetricSchedule,
    ReduceLROnPlateau,
    RuleSchedule,
    SchedulerType,
    get_constant_schedule,
    get_constant_schedule_with_cool_down,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_greedy_schedule,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_reduce_on_plateau_schedule,
    get_scheduler,
    get_wsd_schedule,
)
from .schedules.warmup import WarmUp
from .tensorflow_recipe import create_optimizer
from .version import __version__

__all__ = [
    "AdaptiveLossScaler",
    "DynamicLossScaler",
    "FixedLossScaler",
    "GradientAccumulator",
    "GreedyLR",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "LdoptConfig",
    "LoadReport",
    "MetricSchedule",
    "PipelineWithLossScale",
    "ReduceLROnPlateau",
    "RuleSchedule",
    "SchedulerType",
    "WarmUp",
    "__version__",
    "convert_torch_optimizer",
    "create",
    "create_optimizer",
    "decayed_parameter_names",
    "get_constant_schedule",
    "get_constant_schedule_with_cool_down",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
    "layerwise_lr_decay",
    "load_optimizer",
    "save_optimizer",
]
__all__ += _optimizers.__all__
