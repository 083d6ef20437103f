"""States of schedules and loss scalers as JSON, with small arrays, NaN and infinities."""

import collections
import math
from typing import Any

import numpy as np
import paddle
from paddle.optimizer.lr import CosineAnnealingWarmRestarts, ReduceOnPlateau

from .._messages import refusal, shown

_DTYPES = {name: np.dtype(name) for name in ("bool", "int32", "int64", "float16", "float32", "float64")}
_LISTS = (list, tuple, collections.deque)
PartAndState = tuple[Any, Any]  # a schedule or loss scaler, and a result of its `state_dict`


def to_json(value: Any, where: str) -> Any:
    """Return a value for JSON and `from_json`; raise ValueError, naming `where`, for other objects."""
    if isinstance(value, paddle.Tensor):
        value = value.numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, np.ndarray) and str(value.dtype) in _DTYPES:
        values = [to_json(item, where) for item in value.reshape(-1).tolist()]
        return {"__array__": str(value.dtype), "shape": list(value.shape), "values": values}
    if isinstance(value, _LISTS):
        return [to_json(item, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("__") for key in value):
        return {key: to_json(item, f"{where}[{shown(key)}]") for key, item in value.items()}
    problem = f"{where} must be numbers, text, arrays, or lists and dicts of these, to be saved."
    raise ValueError(f"{problem} Received: {type(value).__name__}")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` was given, tuples as lists; raise TypeError or KeyError for anything else."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__float__" in value:
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["__float__"]]
    if "__array__" in value:
        try:
            return np.array(from_json(value["values"]), _DTYPES[value["__array__"]]).reshape(value["shape"])
        except (ValueError, OverflowError) as error:
            raise TypeError(f"not an array: {error}") from None
    return {key: from_json(item) for key, item in value.items()}


def check_like(loaded: Any, present: Any, where: str, may_be_none: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless a loaded state has the structure of the present one; None may become a number."""
    if isinstance(present, dict) and isinstance(loaded, dict):
        if set(loaded) != set(present):
            raise refusal(ValueError, f"{where} must have {sorted(present)}.", keys=sorted(loaded))
        for key, value in loaded.items():
            if value is not None or key not in may_be_none:
                check_like(value, present[key], f"{where}[{shown(key)}]")
        return
    kinds = ("None", "a number") if present is None else (_kind(present),)
    if _kind(loaded) not in kinds:
        raise ValueError(f"{where} must be {' or '.join(kinds)}. Received: {_kind(loaded)}")
    if kinds == ("a list",):
        for i, item in enumerate(loaded):  # a longer list repeats the first kind; an empty one takes numbers
            check_like(item, present[i] if i < len(present) else present[0] if present else 0.0, f"{where}[{i}]")


def check_part(part: Any, state: Any, where: str) -> None:
    """Raise ValueError unless a state has the structure of the state of the schedule or loss scaler `part`."""
    may_be_none = ("best",) if isinstance(part, ReduceOnPlateau) else ()  # None before the first metric
    check_like(state, part.state_dict(), where, may_be_none)


def set_parts(parts: list[PartAndState]) -> list[PartAndState]:
    """Load the states in [(schedule or loss scaler, state)], all or none; return the previous states likewise."""
    before = [(part, part.state_dict()) for part, _ in parts]
    try:
        for part, state in parts:
            _set(part, state)
    except Exception as error:
        for part, state in before:
            _set(part, state)
        raise ValueError(f"The state of a schedule or a scaler cannot be loaded. Received: {shown(error)}") from error
    return before


def _set(part: Any, state: Any) -> None:
    if state:  # Paddle's GradScaler refuses the empty state of a disabled scaler
        (getattr(part, "set_state_dict", None) or part.load_state_dict)(state)
    if isinstance(part, CosineAnnealingWarmRestarts):  # Paddle's state lacks the cycle and the step in it
        step, length = int(part.last_epoch), part.T_0
        if part.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * part.T_mult
        part.T_cur, part.T_i = step, length


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "a bool"
    if isinstance(value, _LISTS):
        return "a list"
    if isinstance(value, (np.ndarray, paddle.Tensor)):
        return "a number" if value.size == 1 else "an array"
    return "a number" if isinstance(value, (int, float, np.integer, np.floating)) else type(value).__name__
