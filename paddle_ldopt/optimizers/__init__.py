"""The optimizers, one file each, and what a new one is made of.

A whole one::

    from paddle_ldopt.optimizers import ELEMENT, Option, RuleOptimizer, State, register

    @register("when to choose it; bytes of state a parameter")
    class Momentum(RuleOptimizer):
        OPTIONS = {"mass": Option(0.9, "decay of the momentum", high=1.0, ends="[)", group=True)}

        @staticmethod
        def states(options, shape):
            return {"moment": State(ELEMENT)}

        @staticmethod
        def rule(param, grad, state, lr, *, piece, mass):
            moment = mass * state["moment"] + grad
            return param - lr * moment, {"moment": moment}

`create`, the Trainer's ``--optim``, `LdoptConfig`, the command line, the memory calculator and the tables of the docs
know it from then on. `RuleOptimizer` says what a rule is given and how it asks for
sums over a whole parameter, `_base` how a step gets there. One of this package
is a file beside these, an import here and its name in `__all__`.
"""

# isort: off
from .adamwdl import AdamWDL
from .came import Came
from .lamb import Lamb
from .adafactor import Adafactor
from .adam_weight_decay import AdamWeightDecay
from .adafactor_schedule import AdafactorSchedule
# isort: on

from .._checks import Option as Option
from ._base.layerwise import LayerwiseMixin as LayerwiseMixin
from ._base.rule_optimizer import RuleOptimizer as RuleOptimizer
from ._base.sharded_state import ShardedStateMixin as ShardedStateMixin
from .apply import apply_layerwise_decay, reset_layerwise_decay
from .declaration import COLUMN as COLUMN
from .declaration import ELEMENT as ELEMENT
from .declaration import ROW as ROW
from .declaration import SCALAR as SCALAR
from .declaration import State as State
from .declaration import register as register
from .registry import OptimizerInfo, list_optimizers, optimizer_class

__all__ = ["AdamWDL", "AdamWeightDecay", "Adafactor", "AdafactorSchedule", "Came", "Lamb"]
__all__ += ["OptimizerInfo", "apply_layerwise_decay", "list_optimizers", "optimizer_class", "reset_layerwise_decay"]
