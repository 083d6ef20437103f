"""What the C library is told of an optimizer's parameters, and what shows whether it still holds."""

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle

from .. import kernels
from ..hooks import flatten_groups

__all__ = ["TYPES", "FusedRule", "Plan", "Seen", "held_bytes", "why_not"]

TYPES = {getattr(paddle, name): code for name, code in kernels.TYPES.items()}
_Tensor = paddle.base.core.eager.Tensor
_CHECKED = 2048  # states whose address is checked in one step: all of a model with some 500 parameters


class FusedRule(NamedTuple):
    """An update rule as the C library knows it; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple  # names of the states in their order there, a tuple of names where they exclude each other
    fields: dict  # field of the struct -> number
    flags: tuple = ()  # names in `kernels.FLAGS`
    aux: Optional[str] = None  # name of the state of one number, beside the counter
    counter: str = "beta1_pow_acc"  # name of the counter


class Seen(NamedTuple):
    """What a plain step reads of parameters and gradients; the gradients' memory must live until it is done."""

    frozen: list  # of all parameters, whether they are
    live: list  # numbers of those that have a gradient and are not frozen; the lists below are of these
    params: list
    grads: list
    addresses: list  # of the gradients
    held: list  # bytes that are allocated for each of the gradients
    weights: list  # addresses of the parameters
    factors: list  # of the parameters' own `optimize_attr`
    sizes: set  # bytes of an element of a gradient

    @classmethod
    def of(cls, every):
        """Return it; None if there is nothing to do, or a parameter or gradient that only Paddle's step can serve.

        One loop asks all of one tensor while it is in the cache: of 10,000 tensors that is most of a step's time.
        """
        seen = cls([], [], [], [], [], [], [], [], set())
        frozen, live, params, grads, addresses, held, weights, factors, sizes = seen
        try:
            for i, param in enumerate(every):
                idle = param.stop_gradient
                frozen.append(idle)
                if idle:
                    continue
                grad = param._grad_ivar()
                if grad is None:
                    continue
                address, weight, settings = grad.data_ptr(), param.data_ptr(), param.__dict__
                if address == 0:  # it is empty
                    continue
                if address is None or weight is None:  # it is sparse; it was cleared
                    return None
                if param.is_dist() or not grad.is_same_shape(param) or not grad.is_contiguous():
                    return None
                get = settings.get
                if not (get("regularizer") is get("main_grad") is get("_need_shard_auto") is None):
                    return None
                live.append(i)
                params.append(param)
                grads.append(grad)
                addresses.append(address)
                held.append(grad._holder_size() - grad._offset())
                weights.append(weight)
                factors.append(settings["optimize_attr"]["learning_rate"])
                sizes.add(grad.element_size())
        except (AttributeError, KeyError, TypeError):  # no parameters of Paddle's layers
            return None
        return seen if live and set(map(type, factors)) <= {int, float} else None


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
        updated = {param.name for param in params}
        wanted = updated | optimizer._already_create_accumulator
        self._masters: list = []  # all tensors that are pointed to, gradients and the parameters themselves aside
        self._states: list = []
        self._checked = 0  # the first of the states to be checked next
        records = []
        for name, param in known.items():
            if name not in wanted or math.prod(param.shape) == 0:
                continue
            record = np.zeros(1, kernels.TENSOR)
            why = self._fill(record[0], param, name in updated)
            if why is None:
                self.index[name] = len(self.params)
                self.params.append(param)
                records.append(record)
            else:
                self.refused[name] = why
        self.records = np.concatenate(records) if records else np.zeros(0, kernels.TENSOR)
        # views, unlike `detach`, keep the shape, and the memory, which nothing else can be given while they are there
        self._kept, self._as_planned = ([_view(tensor) for tensor in held] for held in (self._states, self.params))
        self._addresses = [_addresses(tensors) for tensors in (self.params, self._masters, self._states)]
        self._rule = None
        self._decayed = None
        self.live: Any = None  # which parameters had a gradient in the last plain step, by number
        self.rows: Any = None  # their rows in `records`
        self.all_float32 = False  # whether they are
        self._shapes: list = []  # tensors of the shapes that they had when the plan was made

    # ---- whether it still holds

    def holds(self, params):
        """Say whether it knows all of these, and all memory is where it was."""
        for param in params:
            row = self.index.get(param.name)
            if self.params[row] is not param if row is not None else param.name not in self.refused:
                return False
        return self.parameter_list is self.optimizer._parameter_list and self.is_current()

    def is_current(self, seen=None):
        """Say whether memory is where it was: that of all weights, and of some states, others the next time.

        Nothing in Paddle moves the state of a running optimizer in a process of its own. Should something do so, it is
        seen within some steps, and until then the library writes into memory that `_kept` holds on to. Whoever puts
        other tensors in the place of an optimizer's states calls its `forget`.

        Args:
            seen (Seen, optional): what was read of the parameters of `rows`; the others are not asked for then.
        """
        params, masters, states = self._addresses
        if seen is None:
            held = np.array_equal(_addresses(self.params), params)
            held &= all(map(_Tensor.is_same_shape, self.params, self._as_planned))
        else:
            held = np.array_equal(np.array(seen.weights, "u8"), params[self.rows])
            held &= all(map(_Tensor.is_same_shape, seen.params, self._shapes))
        part = slice(self._checked, self._checked + _CHECKED)
        self._checked = part.stop if part.stop < len(self._states) else 0
        held &= np.array_equal(_addresses(self._states[part]), states[part])
        return held and np.array_equal(_addresses(self._masters), masters)

    def follow(self, seen):
        """Take the parameters that were seen for those of the plain steps to come; say whether it knows all of them."""
        if any(param.name not in self.index for param in seen.params):
            return False
        rows = [self.index[param.name] for param in seen.params]
        self.live, self.rows = seen.live, np.array(rows)
        self._shapes = [self._as_planned[row] for row in rows]
        self.all_float32 = all(param.dtype == paddle.float32 for param in seen.params)
        return True

    # ---- what stays from step to step

    def _fill(self, record, param, updated):
        """Fill in the record of a parameter, or return why it cannot be updated; raise if it is to be and must not."""
        optimizer = self.optimizer
        try:
            optimizer.check_shape(param)
        except ValueError as error:
            if updated:
                raise
            return str(error)
        options = optimizer.fused_options(param)
        rule = optimizer.library_rule(options)
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
            why = why_not(tensor)
            if why is None and place not in ("param", "copy", 2) and tensor.dtype != paddle.float32:
                why = f"its state is of type {tensor.dtype}"
            if why is not None:
                return why
        for place, tensor in tensors.items():
            if isinstance(place, int):
                record["state"][place] = tensor.data_ptr()
            else:
                record[place] = tensor.data_ptr()
            record["held"][kernels.PLACES[place]] = held_bytes(tensor)
        record["param_type"], record["copy_type"] = TYPES[tensors["param"].dtype], TYPES[param.dtype]
        record["moment_type"] = TYPES[tensors[2].dtype] if 2 in tensors else TYPES[paddle.float32]
        self.fill_rule(record, list(param.shape), options)
        if kernels.outside(record[None]) is not None:
            return f"its memory or that of its state is too small for its shape {list(param.shape)}"
        if master is not None:
            self._masters.append(master)
        self._states += [tensor for place, tensor in tensors.items() if place not in ("param", "copy")]
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
        types = [TYPES.get(grad.dtype) for grad in seen.grads]
        return None if None in types else types


def _view(tensor):
    with paddle.no_grad():
        return paddle._C_ops.view_shape(tensor.detach(), list(tensor.shape))


def _addresses(tensors):
    """Return the addresses of tensors."""
    return np.array([address or 0 for address in map(_Tensor.data_ptr, tensors)], "u8")  # None of a cleared one


def held_bytes(tensor):
    """Return how many bytes are allocated for a tensor, from its first element on; 0 of a DistTensor."""
    return tensor._holder_size() - tensor._offset()


def why_not(tensor):
    """Return why the C library cannot work on a tensor, None if it can."""
    if tensor.is_dist():
        return "it is a DistTensor"  # of a global shape, of which this process may have a part
    if tensor.data_ptr() is None:
        return "its memory was given back"
    if tensor.dtype not in TYPES:
        return f"the type is {tensor.dtype}"
    if not tensor.place.is_cpu_place():
        return f"it is on {tensor.place}"
    return None if tensor.is_contiguous() else "it is not contiguous"
