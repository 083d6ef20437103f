"""A step is collected before it is done, so that an error comes before anything has changed.

Paddle goes through the parameters, of one group after the other, and asks for the update of each. These updates are
kept as tasks; when the last group is through, `_update` does all of them.
"""

from typing import Any, NamedTuple, Optional

import paddle

from .. import _paddle
from ._pieces import MissingGradients

__all__ = ["CollectingMixin", "Task"]

_Base: Any = object
_FLOATS = {paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}


class Task(NamedTuple):
    """One update of one parameter, collected and not yet done."""

    param: Any  # the parameter, or the flat slice of it that `fleet` gives
    grad: Any  # its gradient, as it comes
    options: dict[str, Any]  # all of them; "weight_decay" is 0 where it is not to be decayed
    lr: Any  # the layer's ratio is in it; of a rule a Tensor of shape [] in the type of its arithmetic
    piece: Any = None  # the `Piece` of the parameter that this process has; known once it is to be done


class CollectingMixin(_Base):
    """Collects the tasks of a dygraph step; a subclass has `_update(tasks)`, which does them."""

    _missing: MissingGradients
    _collected: Optional[list[Task]] = None  # while Paddle goes through the parameters: the tasks so far
    _rates: dict[Any, Any]  # of what is collected: what makes a rate -> its Tensor
    _waiting: Optional[list[Task]] = None  # within a step of parameter groups: the tasks of those that are through
    _groups_left = 0  # the number of the others

    def _collects(self) -> bool:
        """Return whether a dygraph step is collected before it is done."""
        return True

    def step(self) -> Any:
        """Update all parameters that have a gradient once."""
        if paddle.in_dynamic_mode() and isinstance((_paddle.parameter_list(self) or [None])[0], dict):
            self._waiting, self._groups_left = [], len(_paddle.param_groups(self))
        try:
            super().step()
        finally:
            self._waiting = None

    def _apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(params_grads, dict):
            params_grads = self._missing.drop_from(params_grads)
        for param, grad in params_grads["params"] if isinstance(params_grads, dict) else params_grads:
            self._check_gradient(param, grad)
        done = super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
        if not params_grads and self._missing.are_elsewhere() and not _paddle.found_inf(self):
            self._step_elsewhere()
        if self._waiting is not None:
            self._groups_left -= 1
            if self._groups_left == 0:
                waiting, self._waiting = self._waiting, None
                self._update(waiting)
        return done

    def _create_optimization_pass(self, params_grads: Any, *args: Any, **kwargs: Any) -> Any:
        if not paddle.in_dynamic_mode() or not self._collects():
            return super()._create_optimization_pass(params_grads, *args, **kwargs)
        self._collected, self._rates = [], {}
        try:
            done = super()._create_optimization_pass(params_grads, *args, **kwargs)  # found_inf: collects nothing
            tasks, overflow = self._collected, bool(_paddle.found_inf(self))
        finally:
            self._collected, self._rates = None, {}
        if overflow:
            return done
        if self._waiting is None:
            self._update(tasks)
        else:
            self._waiting += tasks
        return done

    def _step_elsewhere(self) -> None:
        """Count a step in which other processes alone have updates, if the optimizer counts for all parameters."""

    def _check_gradient(self, param: Any, grad: Any) -> None:
        """Raise TypeError if a parameter is no floating-point tensor, or its gradient complex or sparse."""
        if getattr(grad, "is_selected_rows", lambda: False)() and not self._takes_sparse(param):
            needs = f"{type(self).__name__} needs dense gradients: build the embedding with sparse=False."
            raise TypeError(f"{needs} Received: a sparse gradient of '{param.name}'")
        if paddle.in_dynamic_mode() and (param.dtype not in _FLOATS or grad.dtype in _COMPLEX):
            raise TypeError(
                "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones into "
                f"two. Received: '{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
            )

    def _takes_sparse(self, param: Any) -> bool:
        """Return whether there is a rule for a sparse gradient of the parameter."""
        return False
