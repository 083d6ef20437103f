"""How an optimizer declares itself: its options, its states, and its row in the table of optimizers.

Argument checks, parameter groups, `LdoptConfig`, the Trainer, the memory calculator and the tables of the docs read it
from there. `paddle_ldopt.optimizers` shows a whole optimizer.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from paddle.regularizer import WeightDecayRegularizer

from .._checks import Option, checked_bool, checked_int, checked_number
from .._messages import refusal
from .._paddle import dtype_name

# The kinds of state: like the parameter, of its rows, of its columns (of the last two axes), and one number.
ELEMENT, ROW, COLUMN, SCALAR = "element", "row", "column", "scalar"

# The name of the step counter in checkpoints, a scalar that every optimizer keeps. PaddleFormers' flex format creates
# an optimizer's state before it loads it only if it finds this name among the saved ones; otherwise it resumes with
# wrong state, silently.
STEP = "beta1_pow_acc"  # of AdamWDL it is Adam's power

# The optimizer's own count of steps, kept with every parameter: `STEP` counts those of one parameter alone, which is
# another number where a parameter had no gradient. There only if something is scheduled by it.
GLOBAL_STEP = "global_step"

COUNTERS = (STEP, "beta2_pow_acc", GLOBAL_STEP)  # neither negative nor NaN

# What every optimizer of ours takes beside its own options.
COMMON = {
    "multi_precision": Option(False, "keep float32 masters of float16 and bfloat16 parameters", check=checked_bool),
    "fused": Option(None, "step in the C library; None: where it can", check=checked_bool, optional=True),
}

# What those with a rule take.
BATCHED = {
    "batch_bytes": Option(
        None,
        "most bytes of parameters that are updated together",
        optional=True,
        check=checked_int,
        kind="an int from 0",
    )
}


def check_value(label: str, state: str, values: Any, expected: tuple[Any, Any], dtype: str = "") -> None:
    """Raise ValueError unless a state to load has the expected (dtype, shape), and a counter counts from 0 on.

    `values` is a Tensor or an array; an array that holds the bits of another type comes with its `dtype`.
    """
    kind, shape = dtype_name(expected[0]), list(expected[1])
    received = {"dtype": dtype or dtype_name(values.dtype), "shape": list(values.shape)}
    if received != {"dtype": kind, "shape": shape}:
        wanted = f"{label} must be {kind} of shape {shape}"
        advice = "build the same model, and the optimizer with the same options"
        raise refusal(ValueError, f"{wanted}: {advice}.", **received)
    counts = np.asarray(values if state in COUNTERS else 0.0, "float64").reshape(-1)
    if not np.all(np.isfinite(counts) & (counts >= 0.0)):
        raise refusal(ValueError, f"{label} must be a finite number from 0 on.", values=counts.tolist())


class State(NamedTuple):
    """One state of an optimizer: how its shape follows from the parameter's, and its type."""

    kind: str
    dtype: Optional[str] = None  # None: the type that the rule computes in, float32 but for float64 parameters


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """One row of the table."""

    cls: type
    summary: str  # when to choose it, and bytes of state a parameter
    weight_decay: str = "weight_decay"  # what the class calls its weight decay
    # argument of the class -> field of a Trainer's arguments that it is taken from
    trainer: dict[str, str] = dataclasses.field(default_factory=dict)
    external_rate: dict[str, Any] = dataclasses.field(default_factory=dict)  # needed to take its rate from outside
    own_exclusion: tuple[str, ...] = ()  # arguments by which it says itself what is decayed
    # our name of a state -> that in PyTorch's optimizer, where they differ; None: it has no counterpart there
    torch_names: Optional[dict[str, str]] = None
    options: dict[str, Option] = dataclasses.field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Option]:
        """The options that its constructor takes, except for the weight decay."""
        decay = ("weight_decay", self.weight_decay)
        return {name: option for name, option in self.options.items() if option.argument and name not in decay}

    def states(self, options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, State]:
        """Return state name -> its kind and type, for a parameter of that shape and options beside the defaults."""
        declared = self.cls.states(self._all(options), shape)  # type: ignore[attr-defined]
        return {**declared, STEP: State(SCALAR)}

    def sums(self, options: dict[str, Any], shape: tuple[int, ...]) -> list[list[str]]:
        """Return the kinds of the sums over a whole parameter that an update asks for, round by round."""
        return self.cls.sums(self._all(options), shape)  # type: ignore[attr-defined]

    def _all(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**{name: option.default for name, option in self.options.items()}, **options}


REGISTRY: dict[str, OptimizerInfo] = {}


def register(summary: str, **fields: Any) -> Callable[[type], type]:
    """Return a decorator that puts a class into the table, under its name in lower case; see `OptimizerInfo`."""

    def add(cls: type) -> type:
        options = {**cls.OPTIONS, **COMMON, **(BATCHED if hasattr(cls, "rule") else {})}  # type: ignore[attr-defined]
        _hold_equal(options, inspect.signature(cls).parameters)
        REGISTRY[cls.__name__.lower()] = OptimizerInfo(cls, summary, options=options, **fields)
        return cls

    return add


def _hold_equal(options: dict[str, Option], signature: Mapping[str, inspect.Parameter]) -> None:
    """Raise if a constructor that names an option for its readers gives it another default than the declaration."""
    for name, option in options.items():
        named = signature.get(option.called or name)
        if named is not None and option.argument and named.default != option.default:
            wrong = f"The constructor's default of `{named.name}` must be that of OPTIONS, {option.default!r}."
            raise refusal(TypeError, wrong, **{named.name: named.default})


def numbers(*ends: str) -> Callable[[Any, str], tuple[float, ...]]:
    """Return the check of an option that is a tuple of numbers from 0 on, each with the brackets of its range."""

    def check(value: Any, name: str) -> tuple[float, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(ends):
            wrong = ValueError if isinstance(value, (list, tuple)) else TypeError
            raise refusal(wrong, f"`{name}` must be a tuple of {len(ends)} numbers.", **{name: value})
        return tuple(checked_number(v, f"{name}[{i}]", ends=e) for i, (v, e) in enumerate(zip(value, ends)))

    return check


def plain_weight_decay(value: Any, name: str) -> Any:
    """Return 0 for a weight decay of None, any other value but a regularizer of Paddle's as it is."""
    if isinstance(value, WeightDecayRegularizer):
        penalty = type(value).__name__
        raise TypeError(
            f"`{name}` must be a number such as 0.01, which decays the weights themselves. {penalty} adds a penalty to "
            f"the gradient, which only Paddle's own optimizers offer. Received: {name}={penalty}"
        )
    return 0.0 if value is None else value
