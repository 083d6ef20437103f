"""When a step is done by the C library of `kernels`, and how what a Paddle optimizer holds gets there.

In dygraph on a CPU one call updates all parameters in place, on Paddle's own tensors: the optimizer's state is the same
with and without, and so are checkpoints. A step comes here in one of two ways. If Paddle has to clip or to regularize
gradients, or if there are parameter groups, it collects the updates and gives them to `FusedMixin.update_fused`, which
does those that it can. Otherwise `FusedMixin.step` passes by all that Paddle does for each parameter in Python, in the
first step as in all others.
"""

import collections
import math
import warnings
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper

from ... import kernels
from ..._checks import checked_number, shown
from .._base.sharded_state import loadable
from .plan import TYPES, FusedRule, Plan, Seen, held_bytes, why_not

__all__ = ["FusedMixin", "FusedRule", "check_fused", "layer_rates"]

_Base: Any = paddle.optimizer.Optimizer if TYPE_CHECKING else object
_Tensor = paddle.base.core.eager.Tensor
_flags = paddle.base.core.globals()  # `paddle.get_flags` takes 7 us for one
_FLOATS = {*TYPES, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}
_SMALLEST = float(np.finfo("float32").tiny)
_warned: set = set()


def check_fused(fused):
    """Return `fused` if it is None, True or False, and True only where the C library is there and of use."""
    if fused is not None and not isinstance(fused, bool):
        raise TypeError(f"`fused` must be None, True or False. Received: fused={shown(fused)}")
    if fused and kernels.library() is None:
        raise ValueError(f"`fused=True` is not possible: {kernels.why_not()}. Received: fused=True")
    if fused and not paddle.in_dynamic_mode():
        raise ValueError("`fused=True` is not possible in a static graph: use None or False. Received: fused=True")
    return fused


class FusedMixin(_Base):
    """Lets the C library do the updates that it can do; put before the other bases of an optimizer.

    A subclass has `fused_rule` and `state_kinds`.
    """

    _fused: Optional[bool] = None
    _plan: Any = None  # the `Plan` of the last step that was fused
    _waiting: Optional[list] = None  # within a step of parameter groups: the updates of those that Paddle is done with
    _groups_left = 0  # how many of them it is not done with
    _kept_ratios: Any = None  # function, parameters, which of them were frozen, ratios: of the last plain step
    _missing: Any = None  # `MissingGradients` of the parameters
    _elsewhere = (-1, 0)  # largest count in this process and steps taken, after a step of other processes alone
    _bumps_version = True  # whether an update by Paddle's ops shows in `Tensor.inplace_version`, as it then does here

    def fused_rule(self, options):
        """Return the `FusedRule` for the options of a group, or a string that says why there is none."""
        return f"the C library has no rule of {type(self).__name__}"

    def library_rule(self, options):
        """Return what `fused_rule` returns, or why it does not hold: a subclass has another `rule`."""
        owner = next(cls for cls in type(self).__mro__ if "fused_rule" in vars(cls))
        if getattr(type(self), "rule", None) is not getattr(owner, "rule", None):
            return f"{type(self).__name__} has a `rule` of its own and no `fused_rule` for it"
        rule = self.fused_rule(options)
        if not isinstance(rule, str) and any(0.0 < eps < _SMALLEST for eps in rule.fields["eps"]):
            return f"an epsilon below {_SMALLEST:.1e} is 0 in float32 there"
        return rule

    def fused_flags(self, shape, options):
        """Return the names of flags that depend on a parameter's shape."""
        return ()

    def decay_now(self, options):
        """Return the decay of this step that is in the options."""
        return options["weight_decay"]

    def fused_options(self, param=None):
        """Return the options of a parameter's group as they are now, or those of a parameter without a group."""
        raise NotImplementedError

    def set_state_dict(self, state_dict):
        """Load what `state_dict` gave.

        Args:
            state_dict (dict): state by name.

        Raises:
            TypeError, ValueError: it is no state of this optimizer. Nothing is changed by then.
        """
        state_dict = loadable(self, state_dict)
        self._plan = None
        super().set_state_dict(state_dict)

    load_state_dict = set_state_dict

    def set_lr(self, value):
        """Set the rate; not where it is a scheduler's.

        Args:
            value (float): the new rate, at least 0.
        """
        super().set_lr(checked_number(value, "value"))

    # ---- updates that were collected

    def update_fused(self, updates):
        """Do the updates that the C library can do, return the others.

        Args:
            updates (list[Task]): of parameters of which this process has all.

        Raises:
            ValueError: one of them cannot be done and `fused` is True. Nothing is changed by then.
        """
        if not updates or self._fused is False:
            return updates
        why = _why_not_here()
        if why is not None:
            if self._fused:
                raise ValueError(f"`fused=True` is not possible: {why}. Use None or False. Received: fused=True")
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
            elif self._fused:
                raise ValueError(
                    f"`fused=True` is not possible for parameter '{update.param.name}': {why}. Use None, which leaves "
                    "such parameters to Paddle's operations, or False. Received: fused=True"
                )
            else:
                rest.append(update)
        if chosen:
            self._update_collected(chosen)
        return rest

    def _update_collected(self, updates):
        plan, rates = self._plan, {}
        records = plan.records[[plan.index[update.param.name] for update in updates]]
        for record, update in zip(records, updates):
            if id(update.lr) not in rates:
                rates[id(update.lr)] = float(update.lr)
            plan.fill_rule(record, list(update.param.shape), update.options)
            record["weight_decay"] = self.decay_now(update.options)
            record["lr"] = rates[id(update.lr)]
        records["grad"] = [update.grad.data_ptr() for update in updates]
        records["grad_type"] = [TYPES[update.grad.dtype] for update in updates]
        records["held"][:, kernels.PLACES["grad"]] = [held_bytes(update.grad) for update in updates]
        self._call(records, [update.param for update in updates])

    def _count_steps(self, plan):
        """Count this step, of which the plan holds, if the optimizer counts for all parameters together."""

    def _call(self, records, params):
        kernels.step(records)
        if self._bumps_version:
            collections.deque(map(_Tensor._bump_inplace_version, params), maxlen=0)

    # ---- a step in which there is nothing else to do

    def step(self):
        """Update all parameters that have a gradient once."""
        if self._may_be_plain() and self._plain_step():
            return
        grouped = paddle.in_dynamic_mode() and self._parameter_list and isinstance(self._parameter_list[0], dict)
        self._waiting, self._groups_left = ([], len(self._param_groups)) if grouped else (None, 0)
        try:
            super().step()
        finally:
            self._waiting = None

    def _apply_optimize(self, loss, startup_program, params_grads, *args, **kwargs):
        if self._missing is not None and not isinstance(params_grads, dict):
            params_grads = self._missing.drop_from(params_grads)
        for param, grad in params_grads["params"] if isinstance(params_grads, dict) else params_grads:
            if getattr(grad, "is_selected_rows", lambda: False)() and not self._takes_sparse(param):
                raise TypeError(
                    f"{type(self).__name__} needs dense gradients: build the embedding with sparse=False. "
                    f"Received: a sparse gradient of '{param.name}'"
                )
            if paddle.in_dynamic_mode():
                _check_real(param, grad)
        done = super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
        idle = not params_grads and self._missing is not None and self._missing.are_elsewhere()
        if idle and not self._get_auxiliary_var("found_inf"):
            largest = self._largest_count()
            self._elsewhere = largest, self._with_elsewhere(largest) + 1
        if self._waiting is not None:
            self._groups_left -= 1
            if self._groups_left == 0:
                waiting, self._waiting = self._waiting, None
                self._update(waiting)
        return done

    def _largest_count(self):
        """Return the largest count of steps in this process's state; for optimizers with one count for all."""
        return 0

    def _with_elsewhere(self, largest):
        """Return how many steps there were, given the largest count of this process, which may have had no updates."""
        return self._elsewhere[1] if self._elsewhere[0] == largest else largest

    def _steps_taken(self):
        return self._with_elsewhere(self._largest_count())

    def check_shape(self, param):
        """Raise if a parameter is not what the optimizer or its state was made for; every subclass has its own."""
        raise NotImplementedError

    def check_type(self, param):
        """Raise if a parameter was cast since its state was made, so that its state has or lacks a float32 master."""
        if not paddle.in_dynamic_mode() or param.name not in self._already_create_accumulator:
            return
        has = param.name in self._master_weights
        if has != self._has_master(param):
            raise ValueError(
                f"'{param.name}' had another type when its state was made: cast the model before the first step, or "
                "build a new optimizer for it. "
                f"Received: dtype {str(param.dtype).rpartition('.')[2]}, {'a' if has else 'no'} float32 master weight"
            )

    def _has_master(self, param):
        """Say whether the parameter is to have a float32 master."""
        return self._multi_precision and self._is_dtype_fp16_or_bf16(param.dtype)

    def _takes_sparse(self, param):
        """Say whether there is a rule for a sparse gradient of the parameter."""
        return False

    def _update_or_wait(self, tasks):
        """Do updates, but those of a group when all groups are there: an error comes before anything is changed."""
        if self._waiting is None:
            self._update(tasks)
        else:
            self._waiting += tasks

    def _update(self, tasks):
        """Do what was collected, in the form in which a subclass collects it."""
        raise NotImplementedError

    def _may_be_plain(self):
        """Say whether nothing is asked of a step but updates, as far as that shows without looking at parameters.

        The answer depends on nothing that a resume does not restore: the library takes the norm for clipping, which is
        rounded in another way than Paddle's, and a run must have the same bits whether it was interrupted or not.
        """
        clip, by_norm = self._grad_clip, paddle.nn.ClipGradByGlobalNorm
        return (
            self._fused is not False
            and _why_not_here() is None
            and bool(self._parameter_list)
            and not isinstance(self._parameter_list[0], dict)
            and not paddle.base.dygraph.base.in_to_static_mode()
            and not paddle.distributed.is_initialized()
            and (clip is None or (type(clip) is by_norm and not (clip.auto_skip_clip or self._clips_values())))
            and self.regularization is None
            and not self._get_auxiliary_var("found_inf")
        )

    def _clips_values(self):
        """Say whether the rule has a nonlinear use of the gradient before all others, which clipping must precede."""
        return False

    def _plain_step(self):
        """Take a step; or return False, with nothing changed, if it needs more than it seemed."""
        every = self._parameter_list
        seen = Seen.of(every)
        if seen is None:
            return False
        ratios = np.array(self._ratios_now(every, seen.frozen))[seen.live]
        plan = self._plan_for(seen)
        if plan is None:
            return False
        types = plan.grad_types(seen)
        if types is None:
            return False
        moving = ratios != 0.0
        if not moving.any():
            return True
        options = self.fused_options()
        self._count_steps(plan)
        plan.refresh(options)
        self._create_global_learning_rate()
        records, params = plan.records.take(plan.rows), seen.params  # by an index it takes ten times as long
        records["lr"] = layer_rates(self._global_learning_rate(), seen.factors, ratios)
        records["weight_decay"] = self.decay_now(options) * plan.decayed()[plan.rows]
        records["grad"], records["grad_type"] = seen.addresses, types
        records["held"][:, kernels.PLACES["grad"]] = seen.held
        if self._grad_clip is not None:
            clipped = np.array([getattr(param, "need_clip", True) is not False for param in params])
            records["grad_scale"][clipped] *= _clip_scale(records[clipped], self._grad_clip.clip_norm)
        if not moving.all():
            records, params = records[moving], [param for param, moves in zip(params, moving) if moves]
        self._call(records, params)
        return True

    def _plan_for(self, seen):
        """Return the plan that follows the parameters seen, a new one if the last is not it; None if it lacks some."""
        plan, every = self._plan, self._parameter_list
        if plan is not None and plan.live == seen.live and plan.parameter_list is every and plan.is_current(seen):
            return plan
        if plan is None or not plan.holds(seen.params):
            self.helper = LayerHelper(type(self).__name__)
            given = [p for p in every if not p.stop_gradient and p._grad_ivar() is not None]
            with paddle.no_grad():  # state for empty ones too, as Paddle's step makes it
                self._create_accumulators(paddle.static.default_main_program().global_block(), given)
            plan = self._plan = Plan(self, seen.params)
        return plan if plan.follow(seen) else None

    def _ratios_now(self, params, frozen):
        """Return the parameters' ratios, each asked for and checked unless it is frozen."""
        ratio_of = self._ratio_of
        if ratio_of is None:
            return [1.0] * len(params)
        kept = self._kept_ratios
        if kept is not None and kept[0] is ratio_of and kept[1] is params and kept[2] == frozen:
            return kept[3]
        ratios = [0.0 if idle else ratio_of(param) for param, idle in zip(params, frozen)]
        if getattr(ratio_of, "is_constant", False):  # a LayerMap's
            self._kept_ratios = ratio_of, params, frozen, ratios
        return ratios


def layer_rates(rate, factors, ratios):
    """Return each parameter's rate as `LayerwiseMixin._create_param_lr` makes it, which rounds after each product.

    Args:
        rate (Tensor): the optimizer's.
        factors (list[float]): of each parameter, its own `optimize_attr`.
        ratios (list[float]|ndarray): of each parameter, its layer's.
    """
    kind = "f4" if rate.dtype == paddle.float32 else "f8"
    return np.array(float(rate), kind) * np.array(factors, kind) * np.array(ratios, kind)


def _clip_scale(records, clip_norm):
    """Return what `paddle.nn.ClipGradByGlobalNorm` multiplies gradients by."""
    norm = np.float32(kernels.norm(records)) if len(records) else np.float32(0.0)
    return np.float32(clip_norm) / np.maximum(norm, np.float32(clip_norm))  # of NaN NaN


def _why_not_here():
    """Return why no step can be fused at the moment, None if one can."""
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, is made of Paddle's operations"
    if _flags["FLAGS_check_nan_inf"]:
        return "FLAGS_check_nan_inf has Paddle check what its operations return"
    return kernels.why_not()


def _readable(grad, param):
    """Return a gradient as the C library can read it and None, or None and why there is none."""
    if grad.is_selected_rows():
        return None, "the gradient is sparse"
    if math.prod(grad.shape) != math.prod(param.shape):
        return None, f"the gradient has shape {list(grad.shape)}"
    if not param.is_contiguous():  # transposed in place, for one
        return None, "it is not contiguous"
    if not grad.is_contiguous():
        grad = grad.contiguous()
    why = why_not(grad)
    return (grad, None) if why is None else (None, f"of the gradient: {why}")


def _check_real(param, grad):
    """Raise TypeError if a parameter is no floating-point tensor, or its gradient complex."""
    if param.dtype not in _FLOATS or grad.dtype in _COMPLEX:
        raise TypeError(
            "Parameters must be floating-point tensors with real gradients: freeze other parameters, and split complex "
            f"ones into real and imaginary parts. Received: '{param.name}' of type {param.dtype} with a gradient of "
            f"type {grad.dtype}"
        )


def _warn_once(message):
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=6)
