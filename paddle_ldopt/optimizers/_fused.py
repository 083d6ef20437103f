"""When a step is done by the C library of `kernels`, and how what a Paddle optimizer holds gets there.

In dygraph on a CPU one call updates all parameters in place, on Paddle's own tensors: the optimizer's state is the same
with and without, and so are checkpoints. A step comes here in one of two ways. If Paddle has to clip or to regularize
gradients, or if there are parameter groups, it collects the updates and gives them to `FusedMixin.update_fused`, which
does those that it can. Otherwise `FusedMixin.step` passes by all that Paddle does for each parameter in Python, in the
first step as in all others.
"""

import collections
import math
import numbers
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper

from .. import kernels
from ..arguments import as_float
from ..hooks import flatten_groups
from ._checkpoint import check_loadable

__all__ = ["FusedMixin", "FusedRule", "check_fused", "layer_rates"]

_TYPES = {getattr(paddle, name): code for name, code in kernels.TYPES.items()}
_Base: Any = paddle.optimizer.Optimizer if TYPE_CHECKING else object
_Tensor = paddle.base.core.eager.Tensor
_CHECKED = 2048  # states whose address is checked in one step: all of a model with some 500 parameters
_warned: set = set()


class FusedRule(NamedTuple):
    """An update rule as the C library knows it; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple  # names of the states in their order there, a tuple of names where they exclude each other
    fields: dict  # field of the struct -> number
    flags: tuple = ()  # names in `kernels.FLAGS`
    aux: Optional[str] = None  # name of the state of one number, beside the counter
    counter: str = "beta1_pow_acc"  # name of the counter


def check_fused(fused):
    """Return `fused` if it is None, True or False, and True only where the C library is there and of use."""
    if fused is not None and not isinstance(fused, bool):
        raise TypeError(f"`fused` must be None, True or False. Received: fused={fused!r}")
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
    _kept_ratios: Any = None  # function, parameters, which of them were frozen, ratios: of the last plain step
    _bumps_version = True  # whether an update by Paddle's ops shows in `Tensor.inplace_version`, as it then does here

    def fused_rule(self, options):
        """Return the `FusedRule` for the options of a group, or a string that says why there is none."""
        raise NotImplementedError

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
        check_loadable(self, state_dict)
        self.forget()
        super().set_state_dict(state_dict)

    load_state_dict = set_state_dict

    def forget(self):
        """Drop what was derived from the state, which was changed from outside."""
        self._plan = None

    def set_lr(self, value):
        """Set the rate; not where it is a scheduler's.

        Args:
            value (float): the new rate, at least 0.
        """
        rate = as_float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
        if rate is None:
            raise TypeError(f"`value` must be a number. Received: value={value!r}")
        if not 0.0 <= rate < math.inf:
            raise ValueError(f"`value`, a rate, must be finite and at least 0. Received: value={value!r}")
        super().set_lr(rate)

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
        records["grad_type"] = [_TYPES[update.grad.dtype] for update in updates]
        self._call(records, [update.param for update in updates])

    def _call(self, records, params):
        kernels.step(records)
        if self._bumps_version:
            collections.deque(map(_Tensor._bump_inplace_version, params), maxlen=0)

    # ---- a step in which there is nothing else to do

    def step(self):
        """Update all parameters that have a gradient once."""
        if not (self._may_be_plain() and self._plain_step()):
            super().step()

    def _may_be_plain(self):
        """Say whether nothing is asked of a step but updates, as far as that shows without looking at parameters.

        The answer depends on nothing that a resume does not restore: the library takes the norm for clipping, which is
        rounded in another way than Paddle's, and a run must have the same bits whether it was interrupted or not.
        """
        clip = self._grad_clip
        return (
            self._fused is not False
            and _why_not_here() is None
            and bool(self._parameter_list)
            and not isinstance(self._parameter_list[0], dict)
            and not paddle.base.dygraph.base.in_to_static_mode()
            and not paddle.distributed.is_initialized()
            and (clip is None or (type(clip) is paddle.nn.ClipGradByGlobalNorm and not self._clips_values()))
            and self.regularization is None
            and not self._get_auxiliary_var("found_inf")
        )

    def _clips_values(self):
        """Say whether the rule has a nonlinear use of the gradient before all others, which clipping must precede."""
        return False

    def _plain_step(self):
        """Take a step; or return False, with nothing changed, if it needs more than it seemed."""
        every = self._parameter_list
        seen = _Seen.of(every)
        if seen is None:
            return False
        ratios = self._ratios_now(every, seen.frozen)
        plan = self._plan_for(seen)
        types = plan.grad_types(seen)
        if not plan.is_plain or types is None or (self._grad_clip is not None and not plan.all_float32):
            return False  # 16 bits Paddle rounds when it clips
        options = self.fused_options()
        plan.refresh(options)
        self._create_global_learning_rate()
        records, ratios, params = plan.records[plan.rows], np.array(ratios)[seen.live], seen.params
        records["lr"] = layer_rates(self._global_learning_rate(), seen.factors, ratios)
        records["weight_decay"] = self.decay_now(options) * plan.decayed()[plan.rows]
        records["grad"], records["grad_type"] = seen.addresses, types
        if self._grad_clip is not None:
            clipped = np.array([getattr(param, "need_clip", True) is not False for param in params])
            records["grad_scale"][clipped] *= _clip_scale(records[clipped], self._grad_clip.clip_norm)
        moving = ratios != 0.0
        if not moving.all():
            records, params = records[moving], [param for param, moves in zip(params, moving) if moves]
        self._call(records, params)
        return True

    def _plan_for(self, seen):
        """Return the plan with the rows of the parameters seen; a new one if the last is not it."""
        plan, every = self._plan, self._parameter_list
        if (
            plan is not None
            and plan.live == seen.live
            and plan.parameter_list is every
            and plan.is_current(seen.weights)
        ):
            return plan
        if plan is None or not plan.holds(seen.params):
            self.helper = LayerHelper(type(self).__name__)
            given = [p for p in every if not p.stop_gradient and p._grad_ivar() is not None]
            with paddle.no_grad():  # state for empty ones too, as Paddle's step makes it
                self._create_accumulators(paddle.static.default_main_program().global_block(), given)
            plan = self._plan = Plan(self, seen.params)
        if not plan.refused:
            plan.live, plan.rows = seen.live, np.array([plan.index[param.name] for param in seen.params])
        return plan

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


class _Seen(NamedTuple):
    """What a plain step reads of parameters and gradients; the gradients' memory must live until it is done."""

    frozen: list  # of all parameters, whether they are
    live: list  # numbers of those that have a gradient and are not frozen; the lists below are of these
    params: list
    grads: list
    addresses: list  # of the gradients
    weights: list  # addresses of the parameters
    factors: list  # of the parameters' own `optimize_attr`
    sizes: set  # bytes of an element of a gradient

    @classmethod
    def of(cls, every):
        """Return it; None if there is nothing to do, or a parameter or gradient that only Paddle's step can serve.

        One loop asks all of one tensor while it is in the cache: of 10,000 tensors that is most of a step's time.
        """
        seen = cls([], [], [], [], [], [], [], set())
        frozen, live, params, grads, addresses, weights, factors, sizes = seen
        try:
            for i, param in enumerate(every):
                idle = param.stop_gradient
                frozen.append(idle)
                if idle:
                    continue
                grad = param._grad_ivar()
                if grad is None:
                    continue
                address = grad.data_ptr()
                if address == 0:  # it is empty
                    continue
                if address is None or not grad.is_same_shape(param) or not grad.is_contiguous():  # None: it is sparse
                    return None
                live.append(i)
                params.append(param)
                grads.append(grad)
                addresses.append(address)
                weights.append(param.data_ptr())
                factors.append(param.optimize_attr["learning_rate"])
                sizes.add(grad.element_size())
        except (AttributeError, KeyError, TypeError):  # no parameters of Paddle's layers
            return None
        return seen if live and set(map(type, factors)) <= {int, float} else None


def layer_rates(rate, factors, ratios):
    """Return each parameter's rate as `LayerwiseMixin._create_param_lr` makes it, which rounds after each product.

    Args:
        rate (Tensor): the optimizer's.
        factors (list[float]): of each parameter, its own `optimize_attr`.
        ratios (list[float]|ndarray): of each parameter, its layer's.
    """
    kind = "f4" if rate.dtype == paddle.float32 else "f8"
    return np.array(float(rate), kind) * np.array(factors, kind) * np.array(ratios, kind)


class Plan:
    """The parameters of an optimizer as the C library takes them, and what shows whether they still are that.

    Args:
        optimizer (FusedMixin): the optimizer.
        params (list[Tensor]): those to be updated; others that have state by now are taken in too.
    """

    def __init__(self, optimizer, params):
        self.optimizer, self.parameter_list = optimizer, optimizer._parameter_list
        self.params: list = []
        self.index: dict = {}  # parameter name -> its row in `records`
        self.refused: dict = {}  # parameter name -> why the C library cannot update it
        every = flatten_groups(self.parameter_list or params)
        known = {param.name: param for param in [*every, *params]}
        wanted = {param.name for param in params} | optimizer._already_create_accumulator
        self._masters: list = []  # all tensors that are pointed to, gradients and the parameters themselves aside
        self._states: list = []
        self._checked = 0  # the first of the states to be checked next
        records = []
        for name, param in known.items():
            if name not in wanted or math.prod(param.shape) == 0:
                continue
            record = np.zeros(1, kernels.TENSOR)
            why = self._fill(record[0], param)
            if why is None:
                self.index[name] = len(self.params)
                self.params.append(param)
                records.append(record)
            else:
                self.refused[name] = why
        self.records = np.concatenate(records) if records else np.zeros(0, kernels.TENSOR)
        self._kept = [state.detach() for state in self._states]
        self._addresses = [_addresses(tensors) for tensors in (self.params, self._masters, self._states)]
        self._rule = None
        self._decayed = None
        self.live: Any = None  # which parameters had a gradient in the last plain step, by number
        self.rows: Any = None  # their rows in `records`
        self.all_float32 = all(param.dtype == paddle.float32 for param in self.params)
        self.is_plain = not self.refused and not any(
            getattr(param, name, None) is not None
            for param in self.params
            for name in ("regularizer", "main_grad", "_need_shard_auto")
        )

    # ---- whether it still holds

    def holds(self, params):
        """Say whether it knows all of these, and all memory is where it was."""
        for param in params:
            row = self.index.get(param.name)
            if self.params[row] is not param if row is not None else param.name not in self.refused:
                return False
        return self.parameter_list is self.optimizer._parameter_list and self.is_current()

    def is_current(self, weights=None):
        """Say whether memory is where it was: that of all weights, and of some states, others the next time.

        Nothing in Paddle moves the state of a running optimizer in a process of its own. Should something do so, it is
        seen within some steps, and until then the library writes into memory that `_kept` holds on to.

        Args:
            weights (list[int], optional): the addresses of the parameters of `rows`, if they were read already; the
                others are not asked for then.
        """
        params, masters, states = self._addresses
        if weights is None:
            held = np.array_equal(_addresses(self.params), params)
        else:
            held = np.array_equal(np.array(weights, "u8"), params[self.rows])
        part = slice(self._checked, self._checked + _CHECKED)
        self._checked = part.stop if part.stop < len(self._states) else 0
        held &= np.array_equal(_addresses(self._states[part]), states[part])
        return held and np.array_equal(_addresses(self._masters), masters)

    # ---- what stays from step to step

    def _fill(self, record, param):
        """Fill in the record of a parameter, or return why it cannot be updated."""
        optimizer = self.optimizer
        options = optimizer.fused_options(param)
        rule = optimizer.fused_rule(options)
        if isinstance(rule, str):
            return rule
        kinds = optimizer.state_kinds(param)
        master = optimizer._master_weights[param.name] if optimizer._has_master(param) else None
        state = {name: optimizer._get_accumulator_master(name, param) for name in {*kinds, rule.counter}}
        tensors: dict = {"param": param if master is None else master, "step": state[rule.counter]}
        if master is not None:
            tensors["copy"] = param
        if rule.aux in state:
            tensors["aux"] = state[rule.aux]
        for i, names in enumerate(rule.states):
            known = [name for name in (names if isinstance(names, tuple) else (names,)) if name in state]
            if known:
                tensors[i] = state[known[0]]
        for place, tensor in tensors.items():
            why = _why_not(tensor)
            if why is None and place not in ("param", "copy", 2) and tensor.dtype != paddle.float32:
                why = f"its state is of type {tensor.dtype}"
            if why is not None:
                return why
        if master is not None:
            self._masters.append(master)
        self._states += [tensor for place, tensor in tensors.items() if place not in ("param", "copy")]
        for place, tensor in tensors.items():
            if isinstance(place, int):
                record["state"][place] = tensor.data_ptr()
            else:
                record[place] = tensor.data_ptr()
        record["param_type"], record["copy_type"] = _TYPES[tensors["param"].dtype], _TYPES[param.dtype]
        record["moment_type"] = _TYPES[tensors[2].dtype] if 2 in tensors else _TYPES[paddle.float32]
        self.fill_rule(record, list(param.shape), options)
        return None

    def fill_rule(self, record, shape, options):
        """Fill in the numbers of a rule and how it sees a parameter of this shape."""
        rule = self.optimizer.fused_rule(options)
        flags = {*rule.flags, *self.optimizer.fused_flags(shape, options)}
        sizes = (1, 1, math.prod(shape))
        if "factored" in flags:
            sizes = (math.prod(shape[:-2]), *shape[-2:])
        elif "centralize" in flags:
            sizes = (1, shape[0], math.prod(shape[1:]))
        record["batch"], record["rows"], record["cols"] = sizes
        record["rule"] = kernels.RULES[rule.name]
        record["flags"] = sum(kernels.FLAGS[flag] for flag in flags)
        for field, value in {"grad_scale": 1.0, **rule.fields}.items():
            record[field] = value

    # ---- what a plain step needs

    def refresh(self, options):
        """Fill in the numbers of the rule, which are the same for all parameters, if they have changed."""
        rule = self.optimizer.fused_rule(options)
        if rule != self._rule:
            self._rule = rule
            for field, value in rule.fields.items():
                self.records[field] = value

    def decayed(self):
        """Return for each parameter 1.0 if it is decayed, 0.0 otherwise."""
        if self._decayed is None or self.optimizer._apply_decay_param_fun is not None:
            self._decayed = np.array(list(map(self.optimizer.is_decayed, self.params)), "f8")
        return self._decayed

    def grad_types(self, seen):
        """Return the type of each gradient, None if one cannot be read."""
        if self.all_float32:  # which their gradients then are, or twice as long or half
            return 0 if seen.sizes == {4} else None
        types = [_TYPES.get(grad.dtype) for grad in seen.grads]
        return None if None in types else types


def _addresses(tensors):
    """Return the addresses of tensors."""
    return np.array(list(map(_Tensor.data_ptr, tensors)), "u8")


def _clip_scale(records, clip_norm):
    """Return what `paddle.nn.ClipGradByGlobalNorm` multiplies gradients by."""
    norm = np.float32(kernels.norm(records)) if len(records) else np.float32(0.0)
    return np.float32(clip_norm) / np.maximum(norm, np.float32(clip_norm))  # of NaN NaN


def _why_not_here():
    """Return why no step can be fused at the moment, None if one can."""
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, is made of Paddle's operations"
    return kernels.why_not()


def _why_not(tensor):
    """Return why the C library cannot work on a tensor, None if it can."""
    if tensor.dtype not in _TYPES:
        return f"the type is {tensor.dtype}"
    if not tensor.place.is_cpu_place():
        return f"it is on {tensor.place}"
    if not tensor.is_contiguous():
        return "it is not contiguous"
    return None


def _readable(grad, param):
    """Return a gradient as the C library can read it and None, or None and why there is none."""
    if grad.is_selected_rows():
        return None, "the gradient is sparse"
    if math.prod(grad.shape) != math.prod(param.shape):
        return None, f"the gradient has shape {list(grad.shape)}"
    if not grad.is_contiguous():
        grad = grad.contiguous()
    why = _why_not(grad)
    return (grad, None) if why is None else (None, f"of the gradient: {why}")


def _warn_once(message):
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=6)
