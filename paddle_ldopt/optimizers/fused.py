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
_MOMENT = 2  # index of the moment among a rule's states; only it may have 16 bits
_SMALLEST = float(np.finfo("float32").tiny)
TYPES = {getattr(paddle, name): code for name, code in kernels.TYPES.items()}
_FIELDS = set(kernels.TENSOR.names or ())
_dtype = Tensor.dtype.__get__
CONVOLUTIONS = (4, 5)  # ranks of the weights, [out, in, (d,) h, w]


class FusedRule(NamedTuple):
    """An update rule of the C library; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple[Any, ...]  # names in the struct's order; a tuple: names that exclude each other
    aux: Optional[str] = None  # name of another state of one number
    factored: bool = False  # whether matrices have states of rows and columns


def unsupported_here() -> Optional[str]:
    if not paddle.in_dynamic_mode():
        return "a static graph, or `to_static`, consists of Paddle's operations"
    if flags()["FLAGS_check_nan_inf"]:
        return "FLAGS_check_nan_inf checks the results of Paddle's operations"
    return kernels.found()[1]


def refuse_fused(fused: Any, why: Optional[str] = None) -> None:
    """Raise for `fused=True` if there is a reason against it: `why`, or a general one."""
    if fused and (why := why or unsupported_here()):
        raise refusal(ValueError, f"`fused=True` is not possible: {why}. Use None or False.", fused=True)


_warn_once = functools.cache(warnings.warn)


class Plan:
    """The structs of an optimizer's parameters, and the tensors that they point to."""

    def __init__(self, optimizer: "LayerwiseOptimizer", params: list[Tensor]) -> None:
        self.optimizer, self.params = optimizer, params
        self.row = {id(param): row for row, param in enumerate(params)}
        self.structs, self.refused = np.zeros(len(params), kernels.TENSOR), dict[int, str]()
        seen = set[Any]()
        for row, param in enumerate(params):
            optimizer.check_param(param)
            why, address = self._fill(self.structs[row], param), param.data_ptr()
            if why is None and address in seen and param.size:
                why = "another parameter has its memory"
            seen.add(address)
            if why is not None:
                self.refused[row] = why
        self.dtypes = list(map(_dtype, params))
        shapes = {tuple(p.shape): EagerParamBase(p.shape, "float32", name="form") for p in params}  # no memory
        self._shapes = [shapes[tuple(param.shape)] for param in params]
        self._tensors, self._facts = self._now()

    def _now(self) -> tuple[list[Tensor], list[Any]]:
        """Return the parameters with their state, and the facts about these tensors that a change would change."""
        tensors, facts = list(self.params), list[Any]()
        for by_name in (*self.optimizer._accumulators.values(), self.optimizer._master_weights):
            tensors += by_name.values()
        for begin in range(0, len(tensors), 256):  # few enough to stay in the processor's cache
            part, shapes = tensors[begin : begin + 256], self._shapes[begin : begin + 256]
            facts += map(Tensor.data_ptr, part)
            facts += map(Tensor.is_contiguous, part)
            facts += map(_dtype, part[: len(shapes)])
            facts += map(Tensor.is_same_shape, part, shapes)
        return tensors, facts

    def is_valid(self) -> bool:
        tensors, facts = self._now()
        same = len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        return same and facts == self._facts

    def _fill(self, struct: Any, param: Tensor) -> Optional[str]:
        """Fill in the struct of a parameter, or return why the library cannot update it."""
        optimizer, shape = self.optimizer, list(param.shape)
        rule: Any = optimizer.fused_rule
        if not optimizer.is_elementwise and optimizer.finder.is_part(param, optimizer._parameter_list):
            return "the library would sum over the shard of this process alone"
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
            if why is None and tensor is not param and place != _MOMENT and tensor.dtype != paddle.float32:
                why = f"its state is of type {tensor.dtype}"
            if why is not None:
                return why
            field, at = (struct["state"], place) if isinstance(place, int) else (struct, place)
            field[at] = tensor.data_ptr()
        struct["param_type"], struct["copy_type"] = TYPES[owner.dtype], TYPES[param.dtype]
        moment = tensors.get(_MOMENT)
        struct["moment_type"] = TYPES[paddle.float32 if moment is None else moment.dtype]
        struct["rule"], possible = kernels.RULES[rule.name], dict.fromkeys(kernels.RULE_FLAGS, True)
        possible.update(factored=rule.factored and len(shape) >= 2, grad_centralization=len(shape) in CONVOLUTIONS)
        possible.update(momentum=moment is not None)
        sizes: Any = (1, 1, math.prod(shape))
        if possible["factored"]:
            sizes = (math.prod(shape[:-2]), *shape[-2:])
        elif possible["grad_centralization"]:
            sizes = (1, shape[0], math.prod(shape[1:]))
        struct["batch"], struct["rows"], struct["cols"] = sizes
        struct["flags"] = sum(bit for flag, bit in kernels.RULE_FLAGS.items() if possible[flag])
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


def library_is_usable(optimizer: "LayerwiseOptimizer", param: Tensor) -> bool:
    """Whether the library may update such parameters; warn if it is missing, raise if `fused` asks for it."""
    on_cpu = not param._is_initialized() or param.place.is_cpu_place()
    why = unsupported_here() if on_cpu else f"the parameters are on {param.place}"
    if why is not None and on_cpu and not optimizer.fused:
        _warn_once(problem(f"Optimizers use Paddle's operations, which are slower: {why}.", fused=None), UserWarning, 5)
    if why is None and optimizer.fused_rule is None:
        why = f"for parameter '{param.name}': the C library has no rule of {type(optimizer).__name__}"
    if why is not None:
        refuse_fused(optimizer.fused, why)
    return why is None


def read_structs(optimizer: "LayerwiseOptimizer", rows: "Rows") -> tuple[NDArray[Any], list[int]]:
    """Return a step's structs, and the rows that the library cannot update.

    Gradients that are not contiguous are replaced in `rows`.
    """
    params, grads, variants, plan = rows.params, rows.grads, rows.variants, optimizer.plan
    at_row: Any = () if plan is None else list(map(plan.row.get, map(id, params)))
    if plan is None or None in at_row or not plan.is_valid():
        every = list(params)
        if plan is not None:  # keep the others: the next step may update them
            known = {id(p) for p in flatten_groups(optimizer._parameter_list)} - set(map(id, params))
            others = [param for param in plan.params if id(param) in known]
            created = optimizer._already_create_accumulator
            every += [param for param in others if param.name in created and not param.stop_gradient]
        plan = optimizer.plan = Plan(optimizer, every)
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
    values, bits = list[Values](), list[int]()  # of each variant
    for options in rows.options:
        eps = options["eps"] if "eps" in options else options["epsilon"]
        eps = eps if isinstance(eps, (tuple, list)) else (eps,)
        values.append({**options, "eps": (*eps, 0, 0)[:3], **optimizer.fused_values(options)})
        bits.append(kernels.RULE_FLAGS["factored"])
        for flag in values[-1].keys() & kernels.RULE_FLAGS.keys():
            bits[-1] |= kernels.RULE_FLAGS[flag] if values[-1][flag] else 0
        for eps in values[-1]["eps"]:
            if 0.0 < eps < _SMALLEST:
                why = f"an epsilon below {_SMALLEST:.1e} is 0 in float32 there"
                left.update((i, why) for i, variant in enumerate(variants) if rows.options[variant] is options)
    for field in values[0].keys() & _FIELDS:
        structs[field] = np.array(list(map(operator.itemgetter(field), values)))[variants]
    wanted = np.array(bits, "i4")[variants]
    for i in np.flatnonzero(wanted & ~structs["flags"] & kernels.RULE_FLAGS["momentum"]):
        if i in left:
            continue
        wrong = f"'{params[i].name}' has no momentum: build a new optimizer to change `beta1` from None."
        raise refusal(ValueError, wrong, beta1=rows.options[variants[i]].get("beta1"))
    structs["flags"] &= wanted
    structs["lr"] = np.array(rows.rates, "f4")[variants] * np.array(rows.scales, "f4")
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
