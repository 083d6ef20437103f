"""The steps and collected updates that the C library of `kernels` does: on a CPU, one call updates all parameters.

It works in place, in Paddle's own tensors. Checkpoints do not depend on it.
"""

import collections
import functools
import math
import warnings
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ... import _paddle, kernels
from ..._messages import problem, refusal
from .memory import TYPES, allocated_bytes, unsupported_tensor
from .plan import Plan
from .whole_step import StepInputs, create_missing_state, current_lr, scaled_lr

if TYPE_CHECKING:
    from .._base.layerwise_optimizer import LayerwiseOptimizer


def check_fused(fused: Optional[bool]) -> Optional[bool]:
    """Return `fused`; raise unless it is None, False, or True where the C library can be used."""
    if fused is not None and not isinstance(fused, bool):
        raise refusal(TypeError, "`fused` must be None, True or False.", fused=fused)
    if fused and kernels.library() is None:
        raise _not_possible(f": {kernels.unsupported_reason()}.")
    if fused and not paddle.in_dynamic_mode():
        raise _not_possible(" in a static graph: use None or False.")
    return fused


def _not_possible(why: str) -> ValueError:
    return refusal(ValueError, f"`fused=True` is not possible{why}", fused=True)


class FusedStep:
    """The C library's part in the steps of one optimizer, and its plan."""

    def __init__(self) -> None:
        self._plan: Optional[Plan] = None  # of the last fused step

    def __deepcopy__(self, memo: Any) -> "FusedStep":
        return FusedStep()  # the copied optimizer has other tensors

    # ---- a whole step

    def supports_step(self, optimizer: "LayerwiseOptimizer") -> bool:
        """Return whether the library may take whole steps, by settings alone: a resumed run must have the same bits.

        The library rounds the norm for clipping in another way than Paddle.
        """
        clip, params = _paddle.grad_clip(optimizer), _paddle.parameter_list(optimizer)
        by_norm = type(clip) is paddle.nn.ClipGradByGlobalNorm
        return (
            optimizer.fused is not False
            and _unsupported_reason_here() is None
            and not isinstance(params[0], dict)
            and _is_on_cpu(params[0])
            and not paddle.distributed.is_initialized()
            and (clip is None or (by_norm and not (clip.auto_skip_clip or optimizer.rule_clips())))
        )

    def take(self, optimizer: "LayerwiseOptimizer", inputs: StepInputs) -> bool:
        """Take a whole step; return False, with nothing changed, if the library does not support all parameters."""
        plan = self._plan
        if plan is None or not plan.is_valid_for(inputs):
            if plan is None or not plan.is_valid(inputs.params):
                create_missing_state(optimizer)
                plan = self._plan = Plan(optimizer, inputs.params)
            if not plan.select(inputs):
                return False
        moving = inputs.ratios != 0.0
        if not moving.any():
            return True
        options = optimizer.step_options()
        optimizer.count_planned(plan.structs)
        plan.refresh(options)
        structs, params = plan.structs.take(plan.rows), inputs.params  # indexing takes ten times as long
        rate = current_lr(optimizer)
        kind = "f4" if rate.dtype == paddle.float32 else "f8"
        structs["lr"] = scaled_lr(*(np.array(x, kind) for x in (float(rate), inputs.factors, inputs.ratios)))
        structs["weight_decay"] = options["weight_decay"] * plan.weight_decay_mask()[plan.rows]
        structs["grad"], structs["grad_type"] = inputs.grads_at, plan.grad_types
        structs["held"][:, kernels.PLACES["grad"]] = list(map(allocated_bytes, inputs.grads))
        clip = _paddle.grad_clip(optimizer)
        if clip is not None:
            _clip_by_norm(structs, params, clip.clip_norm)
        if not moving.all():
            structs, params = structs[moving], [param for param, moves in zip(params, moving) if moves]
        _call(optimizer, structs, params)
        return True

    def leaves_all_to_paddle(self, optimizer: "LayerwiseOptimizer", params: list[Tensor]) -> bool:
        """Return whether the library is known to leave all updates of these parameters to Paddle's operations."""
        if optimizer.fused:  # it may raise
            return False
        if optimizer.fused is False or not params or not paddle.in_dynamic_mode() or not _is_on_cpu(params[0]):
            return True
        why = _unsupported_reason_here()
        if why is not None:
            _warn_once(problem(f"Optimizers use Paddle's operations, which are slower: {why}.", fused=None))
        return why is not None or (self._plan is not None and not self._plan.index and self._plan.is_valid(params))

    # ---- collected tasks

    def update(self, optimizer: "LayerwiseOptimizer", tasks: list[Any]) -> list[Any]:
        """Do the tasks that the C library can do and return the others; with `fused=True`, raise if any are left."""
        params = [task.param for task in tasks]
        if not params or self.leaves_all_to_paddle(optimizer, params):
            return tasks
        why = _unsupported_reason_here()
        if why is not None:
            raise _not_possible(f": {why}. Use None or False.")
        if self._plan is None or not self._plan.is_valid(params):
            self._plan = Plan(optimizer, params)
        optimizer.count_planned(self._plan.structs)
        chosen, rest = [], []
        for task in tasks:
            grad, why = _readable(task.grad, task.param)
            why = self._plan.refused.get(task.param.name) or why
            if why is None:
                chosen.append(task._replace(grad=grad))
            elif optimizer.fused:
                advice = "Use None, which leaves such parameters to Paddle's operations, or False."
                raise _not_possible(f" for parameter '{task.param.name}': {why}. {advice}")
            else:
                rest.append(task)
        if chosen:
            _call(optimizer, _structs_of(self._plan, chosen), [task.param for task in chosen])
        return rest


def _clip_by_norm(structs: NDArray[Any], params: list[Tensor], most: float) -> None:
    """Scale gradients as `ClipGradByGlobalNorm` does: if the norm is NaN, all become NaN."""
    clipped = np.array([getattr(param, "need_clip", True) is not False for param in params])
    norm, limit = np.float32(kernels.norm(structs[clipped]) if clipped.any() else 0.0), np.float32(most)
    structs["grad_scale"][clipped] *= limit / np.maximum(norm, limit)


def _structs_of(plan: Plan, tasks: list[Any]) -> NDArray[Any]:
    """Return the structs of tasks, whose options and rates may differ between groups."""
    rates: dict[int, float] = {}
    structs = plan.structs[[plan.index[task.param.name] for task in tasks]]
    for struct, task in zip(structs, tasks):
        if id(task.lr) not in rates:
            rates[id(task.lr)] = float(task.lr)
        plan.fill_rule(struct, list(task.param.shape), task.options)
        struct["weight_decay"] = task.options["weight_decay"]
        struct["lr"] = rates[id(task.lr)]
    structs["grad"] = [task.grad.data_ptr() for task in tasks]
    structs["grad_type"] = [TYPES[task.grad.dtype] for task in tasks]
    structs["held"][:, kernels.PLACES["grad"]] = [allocated_bytes(task.grad) for task in tasks]
    return structs


def _call(optimizer: "LayerwiseOptimizer", structs: NDArray[Any], params: list[Tensor]) -> None:
    kernels.step(structs)
    if optimizer.fused_bumps_version:
        collections.deque(map(_paddle.bump_version, params), maxlen=0)


def _unsupported_reason_here() -> Optional[str]:
    """Return why no step can be fused now, None if one can."""
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, consists of Paddle's operations"
    if _paddle.flags()["FLAGS_check_nan_inf"]:
        return "FLAGS_check_nan_inf checks the results of Paddle's operations"
    return kernels.unsupported_reason()


def _is_on_cpu(param: Tensor) -> bool:
    return not _paddle.is_allocated(param) or bool(param.place.is_cpu_place())


def _readable(grad: Tensor, param: Tensor) -> tuple[Any, Optional[str]]:
    """Return (gradient that the C library can read, None) or (None, reason)."""
    if grad.is_selected_rows():
        return None, "the gradient is sparse"
    if math.prod(grad.shape) != math.prod(param.shape):
        return None, f"the gradient has shape {list(grad.shape)}"
    if not param.is_contiguous():  # for example transposed in place
        return None, "it is not contiguous"
    if not grad.is_contiguous():
        grad = grad.contiguous()
    why = unsupported_tensor(grad)
    return (grad, None) if why is None else (None, f"of the gradient: {why}")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=6)
