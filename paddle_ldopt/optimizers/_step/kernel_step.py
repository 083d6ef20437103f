"""Whole steps by Paddle's kernel of AdamW: one operation for each parameter, one more for each rate.

Paddle's loop takes two to three times as long to launch them: it runs Python code for every parameter.
"""

from typing import TYPE_CHECKING, Any, Optional

from paddle import Tensor

from ... import _paddle
from ..states import compute_dtype
from .operations import Operations
from .updates import Task

if TYPE_CHECKING:
    from ..adamwdl import AdamWDL

_STATES = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")


class KernelBatch:
    """Parameters of one rate and type, and the other inputs of the kernel for each of them."""

    def __init__(self, optimizer: "AdamWDL", tasks: list[Task]) -> None:
        self.params = [task.param for task in tasks]
        self.dtype, self._grad_dtype = compute_dtype(self.params[0]), self.params[0].dtype
        state_of, masters = _paddle.state_getter(optimizer), _paddle.masters(optimizer)
        self._has_masters = optimizer.has_master(self.params[0])
        self._inputs = []
        for param, _, options, *_ in tasks:
            m, v, power1, power2 = (state_of(name, param) for name in _STATES)
            state = m, v, None, power1, power2, masters[param.name] if self._has_masters else None, None
            numbers = options["beta1"], options["beta2"], options["epsilon"], 1.0, options["weight_decay"]
            self._inputs.append((*state, *numbers, True, options["lazy_mode"], 1000, self._has_masters, False, False))

    def spread(self, values: list[float], dtype: Any) -> float:
        """Return the number that the parameters share."""
        return float(values[0])

    def update(self, grads: list[Tensor], lr: Any, options: dict[str, Any]) -> None:
        """Update all parameters once; each has its own `options`."""
        kernel = _paddle.adamw_kernel()
        if not self._has_masters:  # the kernel takes no other type
            grads = [grad if grad.dtype == self._grad_dtype else grad.astype(self._grad_dtype) for grad in grads]
        for param, grad, inputs in zip(self.params, grads, self._inputs):
            kernel(param, grad, lr, *inputs)


class KernelStep(Operations):
    """The whole steps of one `AdamWDL` by Paddle's kernel, and their plan; Paddle's loop takes the other steps."""

    takes_shards = True

    def _split(self, optimizer: Any, tasks: list[Task]) -> list[tuple[Optional[Any], list[Task]]]:
        """Return (batch, its tasks) for tasks of one rate and type; (None, tasks) if the kernel cannot update one."""
        if not all(optimizer.has_kernel(task.param, task.options) for task in tasks):
            return [(None, tasks)]
        alike: dict[Any, list[Task]] = {}
        for task in tasks:
            alike.setdefault((*task.lr, task.param.dtype), []).append(task)
        return [(KernelBatch(optimizer, together), together) for together in alike.values()]
