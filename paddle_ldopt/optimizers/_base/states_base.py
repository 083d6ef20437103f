"""The states of an optimizer: kinds, shapes and types for each parameter, and how they are loaded."""

from typing import Any

import paddle
from paddle import Tensor

from ... import _paddle
from .._step.fused_step import FusedStep
from ..states import COLUMN, ELEMENT, ROW, SCALAR, State, compute_dtype
from .loading import loadable
from .options_base import OptionsBase
from .sharded_state import sharded_state


class StatesBase(OptionsBase):
    """Describes and loads the states that the class declares in `states`."""

    fused_step: FusedStep
    counts_steps = True  # whether the state `STEP` is a number of steps

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        """Return state name -> kind and type, for a parameter of this shape."""
        return {}

    @staticmethod
    def sums(options: dict[str, Any], shape: Any) -> list[list[str]]:
        """Return the kinds of the sums over a whole parameter that a rule yields, round by round."""
        return []

    def _whole_shape(self, param: Tensor) -> list[int]:
        """Return the shape of the whole parameter, of which `param` may be a shard."""
        return list(param.shape)

    def _states_of(self, param: Tensor) -> dict[str, State]:
        return self.states({**self._fixed, **self.options_of(param)}, self._whole_shape(param))

    def state_kinds(self, param: Tensor) -> dict[str, str]:
        """Return state name -> kind of a parameter, without its step counter."""
        return {name: state.kind for name, state in self._states_of(param).items()}

    def state_shapes(self, param: Tensor) -> dict[str, list[int]]:
        """Return state name -> shape of a parameter; rows and columns are the whole tensor's."""
        whole = self._whole_shape(param)
        shapes = {ELEMENT: list(param.shape), ROW: whole[:-1], COLUMN: whole[:-2] + whole[-1:], SCALAR: []}
        return {name: shapes[kind] for name, kind in self.state_kinds(param).items()}

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state; a single number has shape [1]."""
        layout, shapes = {}, self.state_shapes(param)
        for name, state in self._states_of(param).items():
            dtype = getattr(paddle, state.dtype) if state.dtype else compute_dtype(param)
            layout[name] = dtype, [1] if state.kind == SCALAR else shapes[name]
        return layout

    def check_type(self, param: Tensor) -> None:
        """Raise if a parameter was cast after its state was created, between a type with and one without a master."""
        has = param.name in _paddle.masters(self)
        if paddle.in_dynamic_mode() and param.name in _paddle.with_state(self) and has != self.has_master(param):
            raise ValueError(
                f"'{param.name}' had another type when its state was made: cast the model before the first step, or "
                "build a new optimizer for it. "
                f"Received: dtype {_paddle.dtype_name(param.dtype)}, {'a' if has else 'no'} float32 master weight"
            )

    def has_master(self, param: Tensor) -> bool:
        """Return whether the parameter has, or will have, a float32 master."""
        return bool(_paddle.keeps_masters(self) and _paddle.is_low_precision(self)(param.dtype))

    def _add_accumulator(self, name: str, param: Tensor, *args: Any, **kwargs: Any) -> Any:
        loaded = _paddle.waiting_state(self)
        if not loaded or not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{_paddle.prefixed(self)}{name}_0" not in loaded:
            loaded = {}  # the parameter had no gradient before the state was saved
        # Paddle looks for the names of a process's first optimizer
        with _paddle.waiting_state_as(self, loaded), paddle.utils.unique_name.guard():
            return super()._add_accumulator(name, param, *args, **kwargs)

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; raise before anything changes if it is of another optimizer."""
        self.fused_step.forget()
        super().set_state_dict(loadable(self, state_dict))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, as `set_state_dict` does."""
        self.set_state_dict(state_dict)

    def sharded_state_dict(self, model_sharded_state_dict: dict[str, Any], shards: Any = None) -> dict[str, Any]:
        """Return key -> ShardedWeight of all state and masters; missing state is created, to be loaded into.

        `paddle_ldopt.parallel.save_checkpoint` and `load_checkpoint` call it, under every layout.

        Args:
            model_sharded_state_dict: the result of ``model.sharded_state_dict()``.
            shards: ``param.name`` -> the range (begin, end) of the flattened parameter in this process, if a wrapper
                has cut the parameters. Parameters without an entry have no element here.

        Raises:
            ValueError: a parameter that is missing in the model's dict, or a shard whose offset is unknown.
        """
        return sharded_state(self, model_sharded_state_dict, shards)
