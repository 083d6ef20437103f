"""Creates, saves, loads and reads the state of an optimizer with a rule."""

from typing import Any

import numpy as np
import paddle

from ... import _paddle
from ..._checks import checked_state
from ..states import COLUMN, ELEMENT, ROW, STEP
from .declared import compute_dtype

_INFIX = "_fp32_master_0_"  # PaddleNLP's unified checkpoints split state names at this infix, whatever the optimizer
_Base: Any = object


class RuleState(_Base):
    """The state of `RuleOptimizer`, listed before `LayerwiseOptimizer`."""

    _finder: Any  # a `ShardFinder`

    def _whole_shape(self, param: Any) -> list[int]:
        """Return the shape of the whole parameter, of which `param` may be a shard."""
        return list(self._finder.shape(param))

    def state_layout(self, param: Any) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state and step counter."""
        # PaddleNLP's unified checkpoints cannot be read with shape []
        layout = {name: (dtype, shape or [1]) for name, (dtype, shape) in super().state_layout(param).items()}
        return {**layout, STEP: (compute_dtype(param), [1])}

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for param in _paddle.content_of(parameters):
            self.check_type(param)
            if param.name in _paddle.with_state(self):
                continue
            self._check_shape(param)
            other = [name for name, kind in self.state_kinds(param).items() if kind != ELEMENT]
            if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
                raise ValueError(
                    "A static graph (`dist.to_static`) places all state of a DistTensor as if it had its shape: train "
                    "in dygraph, or use AdamWDL, AdamWeightDecay or Lamb. "
                    f"Received: {type(self).__name__} with state {', '.join(other)} of '{param.name}'"
                )
            owner = _paddle.new_master(self)(param) if self.has_master(param) else param
            for name, (dtype, shape) in self.state_layout(param).items():
                _paddle.new_state(self)(name, owner, fill_value=0.0, dtype=_paddle.state_dtype(dtype), shape=shape)
            _paddle.with_state(self).add(param.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with names that PaddleNLP's unified checkpoints can hold.

        Raises:
            ValueError: sharding with `split_param` calls it and would take rows and columns for elements.
        """
        if _paddle.is_called_by("sharded_state_dict") and self._finder.is_sliced(_paddle.parameter_list(self)):
            placed = {kind for param in self._finder.params.values() for kind in self.state_kinds(param).values()}
            if placed & {ROW, COLUMN}:
                raise ValueError(
                    "Paddle's `sharded_state_dict` for `split_param` takes all state for elements and would save rows "
                    "and columns at wrong offsets: use `paddle_ldopt.parallel.save_checkpoint`. "
                    f"Received: {type(self).__name__} with states {', '.join(sorted(self._state_names()))}"
                )
        # Paddle leaves out loaded state of parameters without a gradient so far
        state = {**_paddle.waiting_state(self), **super().state_dict()}
        names = {*_paddle.accumulators(self), *(_paddle.prefixed(self, name) for name in self._state_names())}
        return {_unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, including "master_weights" and "LR_Scheduler" if present."""
        weights = checked_state(state_dict).get("master_weights")  # other types are refused below
        names = {getattr(weight, "name", None) for weight in weights.values()} if isinstance(weights, dict) else set()
        plain = {}
        for key, value in state_dict.items():
            owner, infix, rest = str(key).partition(_INFIX)
            own = infix and f"{owner}_fp32_master_0" not in names
            if isinstance(value, paddle.Tensor) and not value.shape:
                value = value.reshape([1])
            plain[f"{owner}_{rest}" if own else key] = value
        super().set_state_dict(plain)

    load_state_dict = set_state_dict

    def _state_names(self) -> set[str]:
        """Return the names of all states."""
        return {STEP, *(name for param in self._finder.params.values() for name in self.state_kinds(param))}

    def _state_of_all(self, state: str) -> dict[str, Any]:
        """Return name of the parameter or master -> Tensor, for one state."""
        return _paddle.accumulators(self).get(_paddle.prefixed(self, state), {})

    def _loaded(self, state: str) -> list[Any]:
        """Return the loaded values of a state for parameters without a gradient since."""
        waiting, part = _paddle.waiting_state(self), f"{_paddle.prefixed(self, state)}_"
        live = (
            {value.name for value in self._state_of_all(state).values()} if waiting else ()
        )  # most of a tiny step's time
        return [value for key, value in waiting.items() if part in key and key not in live]

    def _largest_of(self, state: str) -> Any:
        """Return the largest value of a state of all parameters, a Tensor of shape []."""
        return largest([*self._state_of_all(state).values(), *self._loaded(state)])


def _unified_name(key: str, state_names: set[str]) -> str:
    """Return a key of `state_dict` in the form of PaddleNLP's unified checkpoints."""
    if _INFIX in key:
        return key
    ending = next((f"_{name}_0" for name in state_names if key.endswith(f"_{name}_0")), None)
    return key if ending is None else key[: -len(ending)] + _INFIX + ending[1:]


def largest(counts: list[Any]) -> Any:
    """Return the largest number in Tensors and arrays as a Tensor, 0 without any; other values are ignored."""
    alike: dict[Any, list[Any]] = {}
    for count in counts:
        if isinstance(count, np.ndarray):
            count = paddle.to_tensor(count)
        if isinstance(count, paddle.Tensor) and 0 not in count.shape:
            alike.setdefault((count.dtype, tuple(count.shape)), []).append(count)
    most = [_paddle.stack(group, 0).max().astype("float32") for group in alike.values()]
    return paddle.stack(most).max() if most else paddle.zeros([])
