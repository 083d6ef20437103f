"""The states of an optimizer: kinds, shapes, types, names in checkpoints, and the check of a state to load."""

from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle import Tensor

from .._messages import refusal
from .._paddle import dtype_name, is_float64

# The kinds of state: one number per element of the parameter, per row, per column (of the last two axes), one number.
ELEMENT, ROW, COLUMN, SCALAR = "element", "row", "column", "scalar"

# The step counter of each parameter (in AdamWDL Adam's power). The name is Paddle's, for checkpoints: PaddleFormers'
# flex format finds an optimizer's state by this name; without it, training resumes with wrong state, silently.
STEP = "beta1_pow_acc"

# The count of the optimizer's own steps, kept with every parameter if a schedule needs it. It differs from `STEP`
# where a parameter had no gradient.
GLOBAL_STEP = "global_step"

POWERS = (STEP, "beta2_pow_acc")  # every optimizer has one of them or both
COUNTERS = (*POWERS, GLOBAL_STEP)  # neither negative nor NaN


class State(NamedTuple):
    """The kind and type of one state; the kind determines its shape."""

    kind: str
    dtype: Optional[str] = None  # None: the type the rule computes in, float32 (float64 for float64 parameters)


def rule_shape(kind: str, shape: Any) -> list[int]:
    """Return the shape of a state as a rule sees it: rows are [..., R, 1], columns [..., 1, C]."""
    shape = list(shape)
    return {ELEMENT: shape, ROW: [*shape[:-1], 1], COLUMN: [*shape[:-2], 1, *shape[-1:]], SCALAR: []}[kind]


def compute_dtype(param: Tensor) -> Any:
    """Return the type in which a parameter's update is computed."""
    return paddle.float64 if is_float64(param) else paddle.float32


def check_value(label: str, state: str, values: Any, expected: tuple[Any, Any], dtype: str = "") -> None:
    """Raise ValueError unless a state to load has the expected (dtype, shape) and a counter is finite and at least 0.

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
        raise refusal(ValueError, f"{label} must be a finite number of at least 0.", values=counts.tolist())
