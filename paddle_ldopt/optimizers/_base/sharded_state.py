"""An optimizer's state as Paddle's distributed checkpoints take it: every tensor with its place in the whole.

`paddle.distributed.save_state_dict` and `load_state_dict` move such a dict between any two layouts. The keys are
structured names, as in Paddle's own AdamW: "<parameter>.<state>_0", and "<parameter>.w_0" for its float32 master.
"""

import math
from typing import Any, Optional

import paddle

from ... import _paddle
from ..._paddle import create_state, prefixed
from ..states import ELEMENT, ROW, SCALAR, STEP
from .loading import loadable

_Base: Any = object


class ShardedStateMixin(_Base):
    """The state of an optimizer by name, with shapes, kinds and places, as checkpoints need it.

    A subclass has `state_layout(param)` and `state_kinds(param)`; see `DeclaredMixin`.
    """

    counts_steps = True  # whether the state under `STEP` is a number of steps

    def sharded_state_dict(self, model_sharded_state_dict: dict[str, Any], pieces: Any = None) -> dict[str, Any]:
        """Return key -> ShardedWeight of all state and masters; what is not there yet is created, to be loaded into.

        `paddle_ldopt.parallel.save_checkpoint` and `load_checkpoint` do the rest, under every layout.

        Args:
            model_sharded_state_dict: the result of ``model.sharded_state_dict()``.
            pieces: ``param.name`` -> the range (begin, end) of the flattened parameter that is here, where a wrapper
                has cut it; a parameter that is not named has nothing here.

        Raises:
            ValueError: a parameter that the model's dict does not name, or that is here in pieces of unknown place.
        """
        keys: dict[str, str] = {}
        for key in sorted(model_sharded_state_dict):  # of tied parameters the first name, as Paddle's AdamW
            keys.setdefault(model_sharded_state_dict[key].local_tensor.name, key)
        params = [p for p in _paddle.parameters_of(self) if not p.stop_gradient and _paddle.is_allocated(p)]
        unknown = [param.name for param in params if param.name not in keys]
        if unknown:
            wrong = "`model_sharded_state_dict` must name every parameter of the optimizer: give that of its model."
            raise ValueError(f"{wrong} Received: nothing for '{unknown[0]}' ({len(unknown)} of {len(params)})")
        create_state(self, [p for p in params if self.layerwise_ratio(p) != 0.0])
        found = {}
        for param in params:
            if pieces is not None and param.name not in pieces:
                continue  # padding alone
            piece = pieces and pieces[param.name]
            weight = model_sharded_state_dict[keys[param.name]]
            for name, (value, kind) in self._state_of(param).items():
                key = f"{keys[param.name]}.{name}_0"
                found[key] = _placed(key, value, kind, weight, piece)
        return found

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; if it is of another optimizer, raise before anything is changed."""
        self._fused_step.forget()
        super().set_state_dict(loadable(self, state_dict))

    load_state_dict = set_state_dict

    def _state_of(self, param: Any) -> dict[str, tuple[Any, str]]:
        """Return state name -> (value, kind) of a parameter, with its master as "w"."""
        kinds, prefix = {**self.state_kinds(param), STEP: SCALAR}, prefixed(self)
        owner = _paddle.masters(self).get(param.name, param)
        held = {name[len(prefix) :]: values.get(owner.name) for name, values in _paddle.accumulators(self).items()}
        state = {name: (value, kinds[name]) for name, value in held.items() if value is not None}
        return state if owner is param else {**state, "w": (owner, ELEMENT)}

    def _add_accumulator(self, name: str, param: Any, *args: Any, **kwargs: Any) -> Any:
        held = _paddle.waiting_state(self)
        if not held or not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{prefixed(self)}{name}_0" not in held:
            held = {}  # the parameter had no gradient before the state was saved: it begins anew
        # in a guard: the names that the first optimizer had
        with _paddle.waiting_state_as(self, held), paddle.utils.unique_name.guard():
            return super()._add_accumulator(name, param, *args, **kwargs)

    def initial_state(self, param: Any, name: str) -> float:
        """Return the number that a state is full of before the first update."""
        return 0.0


def _placed(key: str, value: Any, kind: str, weight: Any, piece: Optional[tuple[int, int]]) -> Any:
    """Return the ShardedWeight of a state of the parameter that `weight` describes."""
    ShardedWeight = type(weight)
    places = [tuple(place) for place in (weight.local_shape, weight.global_shape, weight.global_offset)]
    if kind == SCALAR or not places[0]:
        return ShardedWeight(key, value, tuple(value.shape), tuple(value.shape), (0,) * len(value.shape))
    if kind == ELEMENT and piece is not None:
        begin, end = piece
        if value.shape[0] > end - begin:
            value = _paddle.slice_of(value, 0, end - begin)  # without the padding; it shares memory, to be loaded into
        _check_size(value, key, end - begin)
        return ShardedWeight(key, value, *places, is_flattened=True, flattened_range=slice(begin, end))
    if kind != ELEMENT:  # of the whole parameter, in every process
        shape = places[1][:-1] if kind == ROW else (*places[1][:-2], places[1][-1])
        places = [shape, shape, (0,) * len(shape)]
    _check_size(value, key, math.prod(places[0]))
    return ShardedWeight(key, value, *places)


def _check_size(value: Any, key: str, size: int) -> None:
    if value.size != size:
        raise ValueError(
            f"The state '{key}' belongs to a piece of the parameter whose place is unknown here: save with "
            "`paddle_ldopt.parallel.save_checkpoint`, which asks the wrapper. "
            f"Received: {value.size} elements, not {size}"
        )
