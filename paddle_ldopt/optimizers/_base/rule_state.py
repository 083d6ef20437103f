"""The state of an optimizer with a rule: names in PaddleNLP's unified checkpoints, largest counts, refusals."""

from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.optimizer import Optimizer

from ... import _paddle
from ..states import ELEMENT

_INFIX = "_fp32_master_0_"  # PaddleNLP's unified checkpoints split state names at this infix, whatever the optimizer


def unified_name(key: str, names: set[str]) -> str:
    """Return a key of `state_dict` in the form of PaddleNLP's unified checkpoints; `names` are of all states."""
    if _INFIX in key:
        return key
    ending = next((f"_{name}_0" for name in names if key.endswith(f"_{name}_0")), None)
    return key if ending is None else key[: -len(ending)] + _INFIX + ending[1:]


def plain(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state under Paddle's names, with numbers of shape [1]."""
    weights = state_dict.get("master_weights")  # other types are refused later
    names = {getattr(weight, "name", None) for weight in weights.values()} if isinstance(weights, dict) else set()
    plain_state = {}
    for key, value in state_dict.items():
        owner, infix, rest = str(key).partition(_INFIX)
        of_parameter = infix and f"{owner}_fp32_master_0" not in names
        if isinstance(value, Tensor) and not value.shape:
            value = value.reshape([1])
        plain_state[f"{owner}_{rest}" if of_parameter else key] = value
    return plain_state


def state_of_all(optimizer: Optimizer, state: str) -> dict[str, Any]:
    """Return name of the parameter or master -> Tensor, for one state."""
    found: dict[str, Any] = _paddle.accumulators(optimizer).get(_paddle.prefixed(optimizer, state), {})
    return found


def loaded(optimizer: Optimizer, state: str) -> list[Any]:
    """Return the loaded values of a state for parameters without a gradient since."""
    waiting, part = _paddle.waiting_state(optimizer), f"{_paddle.prefixed(optimizer, state)}_"
    if not waiting:  # the names take most of a tiny step's time
        return []
    live = {value.name for value in state_of_all(optimizer, state).values()}
    return [value for key, value in waiting.items() if part in key and key not in live]


def largest_of(optimizer: Optimizer, state: str) -> Any:
    """Return the largest value of a state of all parameters, a Tensor of shape []."""
    return largest([*state_of_all(optimizer, state).values(), *loaded(optimizer, state)])


def largest(counts: list[Any]) -> Any:
    """Return the largest number in Tensors and arrays as a Tensor, 0 without any; other values are ignored."""
    alike: dict[Any, list[Any]] = {}
    for count in counts:
        if isinstance(count, np.ndarray):
            count = paddle.to_tensor(count)
        if isinstance(count, Tensor) and 0 not in count.shape:
            alike.setdefault((count.dtype, tuple(count.shape)), []).append(count)
    most = [_paddle.stack(group, 0).max().astype("float32") for group in alike.values()]
    return paddle.stack(most).max() if most else paddle.zeros([])


def refuse_rows_in_graph(optimizer: Any, param: Tensor) -> None:
    """Raise for a DistTensor in a static graph if it has state of another shape."""
    other = [name for name, kind in optimizer.state_kinds(param).items() if kind != ELEMENT]
    if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
        raise ValueError(
            "A static graph (`dist.to_static`) places all state of a DistTensor as if it had its shape: train "
            "in dygraph, or use AdamWDL, AdamWeightDecay or Lamb. "
            f"Received: {type(optimizer).__name__} with state {', '.join(other)} of '{param.name}'"
        )
