"""Collects the updates of a step before any is done, so that an error is raised before anything changes.

Paddle asks for the update of each parameter, group by group. The updates are kept as tasks; after the last group
`_update` does all of them.
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
    """The pending update of one parameter."""

    param: Any  # the parameter, or its flat slice under `fleet`
    grad: Any  # its gradient
    options: dict[str, Any]  # "weight_decay" is 0 for a parameter excluded from it
    lr: Any  # includes the layer's ratio; for a rule a Tensor of shape [] in the type that it computes in
    piece: Any = None  # the `Piece` of the parameter in this process, set right before the update


class CollectingMixin(_Base):
    """Collects the tasks of a dygraph step; a subclass has `_update(tasks)`, which does them."""

    _missing: MissingGradients
    _collected: Optional[list[Task]] = None  # the tasks so far, while Paddle asks for updates
    _rates: dict[Any, Any]  # rates of the collected tasks: factors -> Tensor
    _waiting: Optional[list[Task]] = None  # in a step with parameter groups: the tasks of the finished groups
    _groups_left = 0  # the number of unfinished groups

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
            done = super()._create_optimization_pass(params_grads, *args, **kwargs)  # collects nothing after found_inf
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
        """Count a step in which only other processes have updates, for optimizers with one count for all parameters."""

    def _check_gradient(self, param: Any, grad: Any) -> None:
        """Raise TypeError for a parameter that is not floating-point or has a complex or sparse gradient."""
        if getattr(grad, "is_selected_rows", lambda: False)() and not self._takes_sparse(param):
            needs = f"{type(self).__name__} needs dense gradients: build the embedding with sparse=False."
            raise TypeError(f"{needs} Received: a sparse gradient of '{param.name}'")
        if paddle.in_dynamic_mode() and (param.dtype not in _FLOATS or grad.dtype in _COMPLEX):
            raise TypeError(
                "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones into "
                f"two. Received: '{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
            )

    def _takes_sparse(self, param: Any) -> bool:
        """Return whether sparse gradients of this parameter are supported."""
        return False
