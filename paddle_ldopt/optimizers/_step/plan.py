"""The plan of the fused step: the structs for the C library, and checks whether they are still valid."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ... import _paddle, kernels
from ..states import STEP
from . import memory
from .memory import TYPES, StateSnapshot, WrittenMemory, unsupported_tensor
from .whole_step import StepInputs

if TYPE_CHECKING:
    from .._base.layerwise_optimizer import LayerwiseOptimizer

_SMALLEST = float(np.finfo("float32").tiny)


class FusedRule(NamedTuple):
    """An update rule for the C library; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple[Any, ...]  # names in their order there; a tuple of names that exclude each other
    fields: dict[str, Any]  # field of the struct -> number
    flags: dict[str, Any] = {}  # name in `kernels.RULE_FLAGS` -> whether it is set
    aux: Optional[str] = None  # name of another state of one number


class Plan:
    """The structs of an optimizer's parameters: of those to be updated, and of others that have state."""

    def __init__(self, optimizer: "LayerwiseOptimizer", params: list[Tensor]) -> None:
        self.optimizer = optimizer
        self.params: list[Tensor] = []
        self.index: dict[str, int] = {}  # parameter name -> its row in `structs`
        self.refused: dict[str, str] = {}  # parameter name -> reason why the C library cannot update it
        known = _paddle.flatten_groups(_paddle.parameter_list(optimizer) or params)
        by_name = {param.name: param for param in [*known, *params]}
        updated = {param.name for param in params}
        wanted = updated | _paddle.with_state(optimizer)
        self._masters: list[Any] = []
        self._states: list[Any] = []
        structs = []
        for name, param in by_name.items():
            if name not in wanted or math.prod(param.shape) == 0:
                continue
            struct = np.zeros(1, kernels.TENSOR)
            why = self._fill(struct[0], param, name in updated)
            if why is not None:
                self.refused[name] = why
                continue
            self.index[name] = len(self.params)
            self.params.append(param)
            structs.append(struct)
        self.structs = np.concatenate(structs) if structs else np.zeros(0, kernels.TENSOR)
        self._state, self._memory = StateSnapshot(optimizer), WrittenMemory(self._masters, self._states)
        with paddle.no_grad():
            self._as_planned = list(map(memory.view, self.params))
        self._sizes = list(map(Tensor.element_size, self.params))
        self._params_at = memory.addresses(self.params)
        self._rule: Optional[FusedRule] = None
        self._weight_decay_mask: Any = None
        self._inputs: Optional[StepInputs] = None  # of the last whole step
        self.rows: Any = None  # the rows of its parameters
        self.grad_types: Any = None  # the types of its gradients as numbers for the library

    def is_valid(self, params: list[Tensor]) -> bool:
        """Return whether the plan covers all of these parameters, and no buffer has moved."""
        rows = [self.index.get(param.name) for param in params]
        return (
            all(p.name in self.refused if row is None else self.params[row] is p for p, row in zip(params, rows))
            and memory.addresses(self.params) == self._params_at
            and list(map(Tensor.element_size, self.params)) == self._sizes
            and memory.same_shapes(self.params, self._as_planned)
            and self._has_same_state()
        )

    def is_valid_for(self, inputs: StepInputs) -> bool:
        """Return whether the plan can be used again for a whole step of the same parameters."""
        return self._inputs is not None and inputs.have_same_layout(self._inputs) and self._has_same_state()

    def _has_same_state(self) -> bool:
        return self._state.is_unchanged() and self._memory.is_unchanged()

    def select(self, inputs: StepInputs) -> bool:
        """Select the parameters of the next whole steps; return whether the library supports all of them."""
        rows: Any = [self.index.get(param.name) for param in inputs.params]
        types: Any = list(map(TYPES.get, inputs.types))
        if None in rows or None in types:
            return False
        self.rows, self.grad_types = np.array(rows), np.array(types)
        self._inputs = inputs.without_gradients([self._as_planned[row] for row in rows])
        return True

    def _fill(self, struct: Any, param: Tensor, updated: bool) -> Optional[str]:
        """Fill in the struct of a parameter, or return why it cannot be; raise if `updated` and the shape is wrong."""
        try:
            self.optimizer.check_shape(param)
        except ValueError as error:
            if updated:
                raise
            return str(error)
        options = self.optimizer.step_options(param)
        rule = library_rule(self.optimizer, options)
        if isinstance(rule, str):
            return rule
        tensors = self._tensors(param, rule)
        for place, tensor in tensors.items():
            why = unsupported_tensor(tensor) or (None if tensor is param else _unsupported_state(place, tensor))
            if why is not None:
                return why
            field, at = (struct["state"], place) if isinstance(place, int) else (struct, place)
            field[at] = tensor.data_ptr()
            struct["held"][kernels.PLACES[place]] = memory.allocated_bytes(tensor)
        struct["param_type"], struct["copy_type"] = TYPES[tensors["param"].dtype], TYPES[param.dtype]
        struct["moment_type"] = TYPES[tensors[2].dtype] if 2 in tensors else TYPES[paddle.float32]
        self.fill_rule(struct, list(param.shape), options)
        if kernels.outside(struct[None]) is not None:
            return f"its memory or that of its state is too small for its shape {list(param.shape)}"
        if "copy" in tensors:
            self._masters.append(tensors["param"])
        self._states += [tensor for place, tensor in tensors.items() if place not in ("param", "copy")]
        return None

    def _tensors(self, param: Tensor, rule: FusedRule) -> dict[Union[str, int], Any]:
        """Return place in the struct -> tensor, for a parameter, its master and its state."""
        kinds, get = self.optimizer.state_kinds(param), _paddle.state_getter(self.optimizer)
        state = {name: get(name, param) for name in {*kinds, STEP}}
        tensors: dict[Union[str, int], Any] = {"param": param, "step": state[STEP]}
        if self.optimizer.has_master(param):
            tensors = {**tensors, "param": _paddle.masters(self.optimizer)[param.name], "copy": param}
        if rule.aux in state:
            tensors["aux"] = state[rule.aux]
        for i, names in enumerate(rule.states):
            known = [name for name in (names if isinstance(names, tuple) else (names,)) if name in state]
            if known:
                tensors[i] = state[known[0]]
        return tensors

    def fill_rule(self, struct: Any, shape: list[int], options: dict[str, Any]) -> None:
        """Fill in the numbers of a rule, and the sizes and flags that it has for a parameter of this shape."""
        rule: Any = self.optimizer.fused_rule(options, shape)  # `library_rule` has checked it
        sizes: Any = (1, 1, math.prod(shape))
        if rule.flags.get("factored"):
            sizes = (math.prod(shape[:-2]), *shape[-2:])
        elif rule.flags.get("centralize"):
            sizes = (1, shape[0], math.prod(shape[1:]))
        struct["batch"], struct["rows"], struct["cols"] = sizes
        struct["rule"] = kernels.RULES[rule.name]
        struct["flags"] = sum(kernels.RULE_FLAGS[flag] for flag, is_set in rule.flags.items() if is_set)
        for field, value in {"grad_scale": 1.0, **rule.fields}.items():
            struct[field] = value

    def refresh(self, options: dict[str, Any]) -> None:
        """Fill in the numbers of the rule, the same for all parameters, if they have changed."""
        rule: Any = self.optimizer.fused_rule(options, ())
        if rule != self._rule:
            self._rule = rule
            for field, value in rule.fields.items():
                self.structs[field] = value

    def weight_decay_mask(self) -> NDArray[Any]:
        """Return 1.0 for each parameter with weight decay and 0.0 for each other one."""
        if self._weight_decay_mask is None or _paddle.weight_decay_fun(self.optimizer) is not None:
            self._weight_decay_mask = np.array(list(map(self.optimizer.has_weight_decay, self.params)), "f8")
        return self._weight_decay_mask


def _unsupported_state(place: Union[str, int], tensor: Any) -> Optional[str]:
    """Return why the C library cannot use a tensor as this state or master, None if it can."""
    if not tensor.is_contiguous():
        return "its state is not contiguous"
    if place != 2 and tensor.dtype != paddle.float32:
        return f"its state is of type {tensor.dtype}"
    return None


def library_rule(optimizer: "LayerwiseOptimizer", options: dict[str, Any]) -> Union[FusedRule, str]:
    """Return an optimizer's `fused_rule`, or the reason why it does not hold, such as another `rule` of a subclass."""
    cls = type(optimizer)
    owner = next(base for base in cls.__mro__ if "fused_rule" in vars(base))
    if getattr(cls, "rule", None) is not getattr(owner, "rule", None):
        return f"{cls.__name__} has a `rule` of its own and no `fused_rule` for it"
    rule = optimizer.fused_rule(options, ())
    if not isinstance(rule, str) and any(0.0 < eps < _SMALLEST for eps in rule.fields["eps"]):
        return f"an epsilon below {_SMALLEST:.1e} is 0 in float32 there"
    return rule
