"""The update by the C library of `kernels`: on a CPU, one call updates all parameters in place.

A `Plan` holds the library's structs, until a tensor is added, replaced, moved or reshaped.
"""

import functools
import math
import operator
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.base.framework import EagerParamBase

from .. import kernels
from .._checks import problem, refusal
from .._compat import flags, flatten_groups
from .states import STEP, Values

if TYPE_CHECKING:
    from .base import LayerwiseOptimizer
    from .step import Rows

_HAS_DEVICES = paddle.is_compiled_with_cuda() or bool(paddle.device.get_all_custom_device_type())
_ANY_TYPE = 2  # index of the state that may have 16 bits
_SMALLEST = float(np.finfo("float32").tiny)
TYPES = {getattr(paddle, name): code for name, code in kernels.TYPES.items()}
_dtype = Tensor.dtype.__get__
_DECAY = operator.methodcaller("get", "weight_decay", 0.0)


class FusedRule(NamedTuple):
    """An update rule for the C library; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple[Any, ...]  # names in the struct's order; a tuple: names that exclude each other
    fields: dict[str, Any]  # field of the struct -> number
    flags: dict[str, Any] = {}  # name in `kernels.RULE_FLAGS` -> whether it is set
    aux: Optional[str] = None  # name of another state of one number


def unsupported_here() -> Optional[str]:
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, consists of Paddle's operations"
    if flags()["FLAGS_check_nan_inf"]:
        return "FLAGS_check_nan_inf checks the results of Paddle's operations"
    return kernels.unsupported_reason()


def refuse_fused(fused: Any, why: Optional[str]) -> None:
    if fused and why is not None:
        raise refusal(ValueError, f"`fused=True` is not possible: {why}. Use None or False.", fused=True)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=6)


class Plan:
    """The structs of an optimizer's parameters, and the tensors that they point to."""

    def __init__(
        self, optimizer: "LayerwiseOptimizer", params: list[Tensor], forms: list[int], options: list[Values]
    ) -> None:
        """The rule of a parameter has the form of `options[forms[row]]`."""
        self.optimizer, self.params, self.forms = optimizer, params, forms
        self.row = {id(param): row for row, param in enumerate(params)}
        self.structs, self.refused = np.zeros(len(params), kernels.TENSOR), dict[int, str]()
        seen = set[Any]()
        for row, (param, form) in enumerate(zip(params, forms)):
            optimizer.check_param(param)
            why, address = self._fill(self.structs[row], param, options[form]), param.data_ptr()
            if why is None and address in seen and param.size:
                why = "another parameter has its memory"
            seen.add(address)
            if why is not None:
                self.refused[row] = why
        self._state, self.dtypes = self._state_now(), list(map(_dtype, params))
        forms_of = {tuple(p.shape): EagerParamBase(p.shape, "float32", name="form") for p in params}  # no memory
        self._forms = [forms_of[tuple(param.shape)] for param in params]
        self._at = list(map(Tensor.data_ptr, params + self._state))
        self._matrices = [tensor for tensor in params + self._state if len(tensor.shape) > 1]  # may be transposed
        self._strided = list(map(Tensor.is_contiguous, self._matrices))

    def _state_now(self) -> list[Any]:
        tensors: list[Tensor] = []
        for by_name in (*self.optimizer._accumulators.values(), self.optimizer._master_weights):
            tensors += by_name.values()
        return tensors

    def is_valid(self) -> bool:
        state = self._state_now()
        return (
            len(state) == len(self._state)
            and all(map(operator.is_, state, self._state))
            and list(map(Tensor.data_ptr, self.params + state)) == self._at
            and all(map(Tensor.is_same_shape, self.params, self._forms))
            and list(map(_dtype, self.params)) == self.dtypes
            and list(map(Tensor.is_contiguous, self._matrices)) == self._strided
        )

    def _fill(self, struct: Any, param: Tensor, options: Values) -> Optional[str]:
        """Fill in the struct of a parameter, or return why the library cannot update it."""
        optimizer, shape = self.optimizer, list(param.shape)
        if not optimizer.is_elementwise and optimizer.finder.is_part(param, optimizer._parameter_list):
            return "the library would sum over the shard of this process alone"
        rule = library_rule(optimizer, options, shape)
        if isinstance(rule, str):
            return rule
        state, owner = optimizer.state_of(param), optimizer.owner_of(param)
        tensors: dict[Union[str, int], Any] = {"param": owner, "step": state[STEP]}
        if owner is not param:
            tensors["copy"] = param
        if rule.aux in state:
            tensors["aux"] = state[rule.aux]
        for i, names in enumerate(rule.states):
            known = [name for name in (names if isinstance(names, tuple) else (names,)) if name in state]
            if known:
                tensors[i] = state[known[0]]
        for place, tensor in tensors.items():
            why = unsupported_tensor(tensor)
            if why is None and tensor is not param and place != _ANY_TYPE and tensor.dtype != paddle.float32:
                why = f"its state is of type {tensor.dtype}"
            if why is not None:
                return why
            field, at = (struct["state"], place) if isinstance(place, int) else (struct, place)
            field[at] = tensor.data_ptr()
        struct["param_type"], struct["copy_type"] = TYPES[owner.dtype], TYPES[param.dtype]
        moment = tensors.get(_ANY_TYPE)
        struct["moment_type"] = TYPES[paddle.float32 if moment is None else moment.dtype]
        sizes: Any = (1, 1, math.prod(shape))
        if rule.flags.get("factored"):
            sizes = (math.prod(shape[:-2]), *shape[-2:])
        elif rule.flags.get("centralize"):
            sizes = (1, shape[0], math.prod(shape[1:]))
        struct["batch"], struct["rows"], struct["cols"] = sizes
        struct["rule"] = kernels.RULES[rule.name]
        struct["flags"] = sum(kernels.RULE_FLAGS[flag] for flag, is_set in rule.flags.items() if is_set)
        return None


def unsupported_tensor(tensor: Any) -> Optional[str]:
    if tensor.is_selected_rows():
        return "it is sparse"
    if tensor.is_dist():
        return "it is a DistTensor"  # this process may have a part of its shape
    if tensor.data_ptr() is None:
        return "its memory was freed"
    if tensor.dtype not in TYPES:
        return f"the type is {tensor.dtype}"
    if not tensor.place.is_cpu_place():
        return f"it is on {tensor.place}"
    if not tensor.is_contiguous():
        return "it is not contiguous"
    return None


def library_rule(optimizer: "LayerwiseOptimizer", options: Values, shape: Any = ()) -> Union[FusedRule, str]:
    """Return an optimizer's `fused_rule`, or why it does not hold."""
    rule = optimizer.fused_rule(options, shape)
    for eps in () if isinstance(rule, str) else rule.fields["eps"]:
        if 0.0 < eps < _SMALLEST:
            return f"an epsilon below {_SMALLEST:.1e} is 0 in float32 there"
    return rule


class FusedStep:
    """The C library's part in the steps of one optimizer."""

    def __init__(self) -> None:
        self._plan: Optional[Plan] = None
        self._forms: list[Any] = []  # states and flags of a rule, or why there is none
        self._options: list[Values] = []  # an example for each of these

    def is_possible(self, optimizer: "LayerwiseOptimizer", param: Tensor) -> bool:
        """Return whether the library may update such parameters; warn or raise if it is missing."""
        on_cpu = not param._is_initialized() or param.place.is_cpu_place()
        if on_cpu and kernels.library() is not None and not flags()["FLAGS_check_nan_inf"]:
            return True
        why = unsupported_here() if on_cpu else f"the parameters are on {param.place}"
        refuse_fused(optimizer.fused, why)
        if on_cpu:
            _warn_once(problem(f"Optimizers use Paddle's operations, which are slower: {why}.", fused=None))
        return False

    def read(self, optimizer: "LayerwiseOptimizer", rows: "Rows") -> tuple[NDArray[Any], list[int]]:
        """Return the structs of a step, and the indices of rows that the library cannot update.

        Gradients that are not contiguous are replaced in `rows`.
        """
        params, grads, kinds, plan = rows.params, rows.grads, rows.kinds, self._plan
        fields: list[Values] = []
        form_of_kind: list[int] = []
        for options in rows.options:
            rule = library_rule(optimizer, options, (1, 1, 1, 1))  # the flags of convolutions, too
            form = rule if isinstance(rule, str) else (rule.states, rule.flags)
            if form not in self._forms:
                self._forms.append(form)
                self._options.append(options)
            form_of_kind.append(self._forms.index(form))
            fields.append({} if isinstance(rule, str) else rule.fields)
        forms = list(map(form_of_kind.__getitem__, kinds))
        at_row: Any = () if plan is None else list(map(plan.row.get, map(id, params)))
        if plan is None or None in at_row or list(map(plan.forms.__getitem__, at_row)) != forms or not plan.is_valid():
            every, of_every = list(params), list(forms)
            if plan is not None:  # keep the others: the next step may update them
                known = {id(p) for p in flatten_groups(optimizer._parameter_list)} - set(map(id, params))
                for param, its_form in zip(plan.params, plan.forms):
                    if id(param) in known and param.name in optimizer._already_create_accumulator:
                        every.append(param)
                        of_every.append(its_form)
            plan = self._plan = Plan(optimizer, every, of_every, self._options)
            at_row = range(len(params))
        structs = plan.structs[at_row]
        left = {i: plan.refused[row] for i, row in enumerate(at_row) if row in plan.refused} if plan.refused else {}
        types, at = structs["copy_type"], list(map(Tensor.data_ptr, grads))
        plain = None not in at and list(map(_dtype, grads)) == list(map(plan.dtypes.__getitem__, at_row))
        plain = plain and (not _HAS_DEVICES or all(grad.place.is_cpu_place() for grad in grads))
        plain = plain and all(map(Tensor.is_same_shape, grads, params)) and all(map(Tensor.is_contiguous, grads))
        if not plain:
            types = [0] * len(grads)
            for i, (param, grad) in enumerate(zip(params, grads)):
                if not grad.is_selected_rows() and not grad.is_contiguous():
                    grads[i] = grad = grad.contiguous()
                why = unsupported_tensor(grad)
                if why is None and not grad.is_same_shape(param) and grad.size != param.size:
                    why = f"the shape is {list(grad.shape)}"
                if why is not None:
                    left.setdefault(i, f"of the gradient: {why}")
                types[i], at[i] = (0, 0) if i in left else (TYPES[grad.dtype], grad.data_ptr())
        structs["grad"], structs["grad_type"], structs["grad_scale"] = at, types, 1.0
        for field, value in max(fields, key=len).items():
            structs[field] = np.array(list(map(operator.methodcaller("get", field, value), fields)))[kinds]
        structs["lr"] = np.array(rows.rates, "f4")[kinds] * np.array(rows.scales, "f4")
        structs["weight_decay"] = np.array(list(map(_DECAY, rows.options)))[kinds]
        if left and optimizer.fused:
            i, why = next(iter(left.items()))
            refuse_fused(True, f"for parameter '{params[i].name}': {why}")
        return structs, sorted(left)


def can_clip(clip: Any) -> bool:
    """Return whether `clip_gradients` can replace a gradient clipping."""
    by_norm = type(clip) is paddle.nn.ClipGradByGlobalNorm and not clip.auto_skip_clip
    return by_norm and not paddle.distributed.is_initialized()


def clip_gradients(structs: NDArray[Any], clipped: list[tuple[Any, list[Any]]]) -> None:
    """Scale gradients as `ClipGradByGlobalNorm` does, given (clipping, its pairs)."""
    begin = 0
    for clip, pairs in clipped:
        part = structs[begin : begin + len(pairs)]
        begin += len(pairs)
        mine = np.array([getattr(param, "need_clip", True) is not False for param, _ in pairs], bool)
        if clip is not None and mine.any():
            norm, limit = np.float32(kernels.norm(part[mine])), np.float32(clip.clip_norm)
            part["grad_scale"][mine] *= limit / np.maximum(norm, limit)


def update_fused(structs: NDArray[Any], count: Optional[float]) -> None:
    structs["count"] = count or 0.0
    if kernels.library().ldopt_step(structs.ctypes.data, len(structs)):
        raise MemoryError("The fused step cannot allocate its buffers: nothing was updated")
