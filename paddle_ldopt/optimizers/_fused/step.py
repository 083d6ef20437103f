"""When a step is done by the C library of `kernels`, and how the tensors of a Paddle optimizer get there.

In dygraph on a CPU one call updates all parameters in place, on Paddle's own tensors: the optimizer's state is the same
with and without, and so are checkpoints. A step comes here in one of two ways. If Paddle has to clip or to regularize
gradients, or if there are parameter groups, it collects the updates and gives them to `FusedMixin.update_fused`, which
does those that it can. Otherwise `FusedMixin.step` skips all that Paddle does for each parameter in Python, in the
first step as in all others.
"""

import collections
import functools
import math
import warnings
from typing import Any, Optional, Union

import numpy as np
import paddle
from numpy.typing import NDArray

from ... import _paddle, kernels
from ..._messages import refusal
from .._base.collecting import CollectingMixin
from .memory import TYPES, held_bytes, unsupported_reason
from .plan import FusedRule, Plan
from .seen import Seen

__all__ = ["FusedMixin", "FusedRule", "check_fused", "layer_rates"]

_SMALLEST = float(np.finfo("float32").tiny)


def check_fused(fused: Optional[bool]) -> Optional[bool]:
    """Return `fused` if it is None, True or False, and True only where the C library is there and of use."""
    if fused is not None and not isinstance(fused, bool):
        raise refusal(TypeError, "`fused` must be None, True or False.", fused=fused)
    if fused and kernels.library() is None:
        raise _not_possible(f": {kernels.unsupported_reason()}.")
    if fused and not paddle.in_dynamic_mode():
        raise _not_possible(" in a static graph: use None or False.")
    return fused


def _not_possible(why: str) -> ValueError:
    return refusal(ValueError, f"`fused=True` is not possible{why}", fused=True)


class FusedMixin(CollectingMixin):
    """Lets the C library do the updates that it can do; put before the other bases of an optimizer.

    A subclass has `fused_rule`; `fused_options(param=None)`, the options of a parameter's group as they are now, or
    those without a group; `check_shape(param)`, which raises if a parameter is not what its state was made for; and
    `_update(tasks)`, which does what it has collected.
    """

    fused: Optional[bool] = None
    _plan: Optional[Plan] = None  # of the last step that was fused
    _kept_ratios: Any = None  # function, parameters, which of them were frozen, ratios: of the last plain step
    _bumps_version = True  # whether an update by Paddle's ops shows in `Tensor.inplace_version`, as it then does here

    def fused_rule(self, options: dict[str, Any]) -> Union[FusedRule, str]:
        """Return the `FusedRule` for the options of a group, or the reason why there is none."""
        return f"the C library has no rule of {type(self).__name__}"

    def library_rule(self, options: dict[str, Any]) -> Union[FusedRule, str]:
        """Return the result of `fused_rule`, or the reason why it does not hold: a subclass has another `rule`."""
        owner = next(cls for cls in type(self).__mro__ if "fused_rule" in vars(cls))
        if getattr(type(self), "rule", None) is not getattr(owner, "rule", None):
            return f"{type(self).__name__} has a `rule` of its own and no `fused_rule` for it"
        rule = self.fused_rule(options)
        if not isinstance(rule, str) and any(0.0 < eps < _SMALLEST for eps in rule.fields["eps"]):
            return f"an epsilon below {_SMALLEST:.1e} is 0 in float32 there"
        return rule

    def fused_flags(self, shape: list[int], options: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of flags that depend on a parameter's shape."""
        return ()

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._plan = None
        super().set_state_dict(state_dict)

    load_state_dict = set_state_dict

    # ---- updates that were collected

    def update_fused(self, updates: list[Any]) -> list[Any]:
        """Do the updates of whole parameters that the C library can do, return the others; raise if it must do all."""
        if not updates or self.fused is False:
            return updates
        why = _unsupported_reason_here()
        if why is not None:
            if self.fused:
                raise _not_possible(f": {why}. Use None or False.")
            if paddle.in_dynamic_mode() and updates[0].param.place.is_cpu_place():
                _warn_once(f"Optimizers use Paddle's operations, which are slower: {why}.")
            return updates
        params = [update.param for update in updates]
        if self._plan is None or not self._plan.holds(params):
            self._plan = Plan(self, params)
        self._count_steps(self._plan)
        chosen, rest = [], []
        for update in updates:
            grad, why = _readable(update.grad, update.param)
            why = self._plan.refused.get(update.param.name) or why
            if why is None:
                chosen.append(update._replace(grad=grad))
            elif self.fused:
                advice = "Use None, which leaves such parameters to Paddle's operations, or False."
                raise _not_possible(f" for parameter '{update.param.name}': {why}. {advice}")
            else:
                rest.append(update)
        if chosen:
            self._update_collected(self._plan, chosen)
        return rest

    def _update_collected(self, plan: Plan, updates: list[Any]) -> None:
        rates: dict[int, float] = {}
        records = plan.records[[plan.index[update.param.name] for update in updates]]
        for record, update in zip(records, updates):
            if id(update.lr) not in rates:
                rates[id(update.lr)] = float(update.lr)
            plan.fill_rule(record, list(update.param.shape), update.options)
            record["weight_decay"] = update.options["weight_decay"]
            record["lr"] = rates[id(update.lr)]
        records["grad"] = [update.grad.data_ptr() for update in updates]
        records["grad_type"] = [TYPES[update.grad.dtype] for update in updates]
        records["held"][:, kernels.PLACES["grad"]] = [held_bytes(update.grad) for update in updates]
        self._call(records, [update.param for update in updates])

    def _count_steps(self, plan: Plan) -> None:
        """Count this step, of which the plan holds, if the optimizer counts for all parameters together."""

    def _call(self, records: NDArray[Any], params: list[Any]) -> None:
        kernels.step(records)
        if self._bumps_version:
            collections.deque(map(_paddle.bump_version, params), maxlen=0)

    # ---- a step in which there is nothing else to do

    def step(self) -> Any:
        """Update all parameters that have a gradient once."""
        return None if self._may_be_plain() and self._plain_step() else super().step()

    def _may_be_plain(self) -> bool:
        """Return whether a step needs nothing but updates, as far as that shows without looking at parameters.

        The answer depends on nothing that a resume does not restore: the library takes the norm for clipping, which is
        rounded in another way than Paddle's, and a run must have the same bits whether it was interrupted or not.
        """
        clip, params = _paddle.grad_clip(self), _paddle.parameter_list(self)
        by_norm = type(clip) is paddle.nn.ClipGradByGlobalNorm
        return (
            self.fused is not False
            and _unsupported_reason_here() is None
            and bool(params)
            and not isinstance(params[0], dict)
            and (not _paddle.is_allocated(params[0]) or params[0].place.is_cpu_place())
            and not _paddle.in_to_static_mode()
            and not paddle.distributed.is_initialized()
            and (clip is None or (by_norm and not (clip.auto_skip_clip or self._clips_values())))
            and self.regularization is None
            and not _paddle.found_inf(self)
        )

    def _clips_values(self) -> bool:
        """Return whether the rule uses the gradient in a nonlinear way first, which clipping must precede."""
        return False

    def _plain_step(self) -> bool:
        """Take a step; or return False, with nothing changed, if it needs more than it seemed."""
        every = _paddle.parameter_list(self)
        seen = Seen.of(every)
        if seen is None:
            return False
        ratios = np.array(self._ratios_now(every, seen.frozen))[seen.live]
        plan = self._plan_for(seen, every)
        types = None if plan is None else plan.grad_types(seen)
        if plan is None or types is None:
            return False
        moving = ratios != 0.0
        if not moving.any():
            return True
        options = self.fused_options()
        self._count_steps(plan)
        plan.refresh(options)
        records, params = plan.records.take(plan.rows), seen.params  # by an index it takes ten times as long
        _paddle.create_rate(self)()
        records["lr"] = layer_rates(_paddle.global_rate(self)(), seen.factors, ratios)
        records["weight_decay"] = options["weight_decay"] * plan.decayed()[plan.rows]
        records["grad"], records["grad_type"] = seen.grads_at, types
        records["held"][:, kernels.PLACES["grad"]] = seen.held
        clip = _paddle.grad_clip(self)
        if clip is not None:
            clipped = np.array([getattr(param, "need_clip", True) is not False for param in params])
            norm = np.float32(kernels.norm(records[clipped]) if clipped.any() else 0.0)
            most = np.float32(clip.clip_norm)
            records["grad_scale"][clipped] *= most / np.maximum(norm, most)  # as ClipGradByGlobalNorm; of NaN NaN
        if not moving.all():
            records, params = records[moving], [param for param, moves in zip(params, moving) if moves]
        self._call(records, params)
        return True

    def _plan_for(self, seen: Seen, every: list[Any]) -> Optional[Plan]:
        """Return the plan that follows the parameters seen, a new one if the last is not it; None if it lacks some."""
        plan = self._plan
        if plan is not None and plan.live == seen.live and plan.parameter_list is every and plan.is_current(seen):
            return plan
        if plan is None or not plan.holds(seen.params):
            given = [p for p in every if not p.stop_gradient and _paddle.grad_of(p) is not None]
            _paddle.create_state(self, given)  # for empty ones too, as Paddle's step does
            plan = self._plan = Plan(self, seen.params)
        return plan if plan.follow(seen) else None

    def _ratios_now(self, params: list[Any], frozen: list[bool]) -> list[float]:
        """Return the parameters' ratios, each asked for and checked unless it is frozen."""
        if self.ratio_of is None:
            return [1.0] * len(params)
        ratio_of = self.ratio_now()
        kept = self._kept_ratios
        if kept is not None and kept[0] is ratio_of and kept[1] is params and kept[2] == frozen:
            return kept[3]
        ratios = [0.0 if idle else ratio_of(param) for param, idle in zip(params, frozen)]
        if ratio_of.is_constant:  # a LayerMap's
            self._kept_ratios = ratio_of, params, frozen, ratios
        return ratios


def layer_rates(rate: Any, factors: Any, ratios: Any) -> NDArray[Any]:
    """Return rate * factor * ratio of each parameter, rounded as in `LayerwiseMixin._create_param_lr`: after each."""
    kind = "f4" if rate.dtype == paddle.float32 else "f8"
    return np.array(float(rate), kind) * np.array(factors, kind) * np.array(ratios, kind)


def _unsupported_reason_here() -> Optional[str]:
    """Return why no step can be fused at the moment, None if one can."""
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, is made of Paddle's operations"
    if _paddle.flags()["FLAGS_check_nan_inf"]:
        return "FLAGS_check_nan_inf has Paddle check what its operations return"
    return kernels.unsupported_reason()


def _readable(grad: Any, param: Any) -> tuple[Any, Optional[str]]:
    """Return a gradient as the C library can read it and None, or None and why there is none."""
    if grad.is_selected_rows():
        return None, "the gradient is sparse"
    if math.prod(grad.shape) != math.prod(param.shape):
        return None, f"the gradient has shape {list(grad.shape)}"
    if not param.is_contiguous():  # transposed in place, for one
        return None, "it is not contiguous"
    if not grad.is_contiguous():
        grad = grad.contiguous()
    why = unsupported_reason(grad)
    return (grad, None) if why is None else (None, f"of the gradient: {why}")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=6)
