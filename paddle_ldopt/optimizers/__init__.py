"""The optimizers, one file each, and the base classes for new optimizers.

A new optimizer::

    from paddle_ldopt.optimizers import ELEMENT, Option, RuleOptimizer, State, register

    @register("when to choose it; bytes of state per parameter")
    class Momentum(RuleOptimizer):
        OPTIONS = {"mass": Option(0.9, "decay of the momentum", high=1.0, ends="[)", group=True)}

        @staticmethod
        def states(options, shape):
            return {"moment": State(ELEMENT)}

        @staticmethod
        def rule(param, grad, state, lr, *, shard, mass):
            moment = mass * state["moment"] + grad
            return param - lr * moment, {"moment": moment}

`create`, the Trainer's ``--optim``, `LdoptConfig` and the command line then know it. `RuleOptimizer` documents the
declarations of a subclass, `step` the path of a step. `AdamWDL` is not a `RuleOptimizer`: without the C library it runs
Paddle's AdamW kernel, bit for bit.
"""

# isort: off
from .adamwdl import AdamWDL
from .came import Came
from .lamb import Lamb
from .adafactor import Adafactor, AdafactorSchedule
from .adam_weight_decay import AdamWeightDecay
from .muon import Muon
# isort: on

from .._checks import Option
from .base import LayerwiseOptimizer as LayerwiseOptimizer
from .layer_rates import LayerRates as LayerRates
from .layer_rates import apply_layerwise_decay
from .options import list_optimizers, optimizer_class, register
from .rules import RuleOptimizer
from .states import COLUMN, ELEMENT, ROW, SCALAR, State

__all__ = ["AdamWDL", "AdamWeightDecay", "Adafactor", "AdafactorSchedule", "Came", "Lamb", "Muon"]
__all__ += ["apply_layerwise_decay", "list_optimizers", "optimizer_class"]
__all__ += ["COLUMN", "ELEMENT", "ROW", "SCALAR", "Option", "RuleOptimizer", "State", "register"]  # for new optimizers
