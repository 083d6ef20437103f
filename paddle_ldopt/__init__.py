"""Layer-wise learning-rate decay for fine-tuning with PaddlePaddle."""

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

from . import optimizers as _optimizers
from . import schedules as _schedules
from .accumulation import GradientAccumulator
from .build import create
from .config import LdoptConfig
from .layers.decay import LayerDecay
from .layers.map import Layer, LayerMap
from .layers.paddlenlp_hook import layerwise_lr_decay
from .layers.weight_decay import decayed_parameter_names
from .optimizers import *  # noqa: F403
from .saving import LoadReport, convert_torch_optimizer, load_optimizer, save_optimizer
from .schedules import *  # noqa: F403
from .schedules import RuleSchedule as RuleSchedule
from .tensorflow_recipe import create_optimizer
from .version import __version__

if _TYPE_CHECKING:
    from .parallel import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, PipelineWithLossScale

__all__ = [
    "AdaptiveLossScaler",
    "DynamicLossScaler",
    "FixedLossScaler",
    "GradientAccumulator",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "LdoptConfig",
    "LoadReport",
    "PipelineWithLossScale",
    "__version__",
    "convert_torch_optimizer",
    "create",
    "create_optimizer",
    "decayed_parameter_names",
    "layerwise_lr_decay",
    "load_optimizer",
    "save_optimizer",
]
__all__ += _optimizers.__all__
for _name in ("Option", "RuleOptimizer", "State", "register"):
    __all__.remove(_name)  # importable here too, but only `optimizers` offers them
__all__ += _schedules.__all__


def __getattr__(name: str) -> _Any:
    """Import `parallel`, and with it Paddle's engines, when it is first used."""
    if name == "parallel" or name in __all__:  # all other names of `__all__` are imported above
        module = _importlib.import_module(".parallel", __name__)
        return module if name == "parallel" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "parallel"})
