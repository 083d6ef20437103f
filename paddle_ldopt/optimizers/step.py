"""The one way of a step.

    step, minimize, apply_gradients and fleet's wrappers
      -> OneStep.update         overflow? clipping, ratios, rates, options: so far nothing has moved
           -> FusedStep.read    the C library, on a CPU
           -> Batches.update    the rule, on stacks of parameters of one shape, by Paddle's operations
           -> AdamWDL           Paddle's AdamW kernel
           -> update_shards     the rule, on tensors split over processes

In a static graph and in `dist.shard_optimizer`, Paddle calls `_append_optimize_op` for one parameter after another,
which runs the same rule.
"""

import collections
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.optimizer import Optimizer

from .. import kernels
from .._checks import refusal
from .._compat import check_step, in_paddles_loop
from .fused import FusedStep
from .sharded import MissingGradients, ShardFinder
from .states import Values

_FLOATS = {paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}
Pairs = list[tuple[Tensor, Tensor]]  # (parameter, gradient)


class Rows(NamedTuple):
    """The parameters of a step, as columns. A kind is a set of options with a rate."""

    params: list[Tensor]
    grads: list[Tensor]
    scales: list[float]  # of the rate: ParamAttr's or the group's factor, times the layer's ratio
    kinds: list[int]
    decays: list[bool]  # whether weight decay applies
    options: list[Values]  # of each kind
    rates: list[float]  # of each kind

    def take(self, chosen: list[int]) -> "Rows":
        """Return some of the rows."""
        columns = ([column[i] for i in chosen] for column in self[:5])
        return Rows(*columns, self.options, self.rates)

    def options_of(self, row: int) -> Values:
        """Return the options of a row; "weight_decay" is 0 where it does not apply."""
        options = self.options[self.kinds[row]]
        return options if self.decays[row] else {**options, "weight_decay": 0.0}


class OneStep(Optimizer):
    """The step of all optimizers of this package, from top to bottom."""

    ratios: dict[str, float]  # param.name -> ratio; set once by a LayerMap, in every step by a hook
    hook: Optional[Callable[[Any], Any]]
    finder: ShardFinder
    missing: MissingGradients
    fused_step: FusedStep
    fused: Optional[bool]
    fused_bumps_version = True  # whether a fused update counts in `Tensor.inplace_version`, as by Paddle's operations
    taken: Optional[float] = None  # number of steps so far; None: to be read from the state
    _count_in_loop: Optional[float] = None  # the number of the running step in Paddle's loop

    # ---- where a step enters

    def step(self) -> Any:
        """Update all parameters that have a gradient once."""
        if in_paddles_loop():
            return super().step()
        groups = self._param_groups
        if not isinstance(groups[0], dict):
            groups = [{"params": groups, "grad_clip": self._grad_clip}]
        self.update([(group.get("grad_clip"), pairs_of(group["params"])) for group in groups])
        return None

    def _apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any, *args: Any, **kwargs: Any) -> Any:
        """Take a step, as `minimize` and the wrappers of fleet do."""
        if in_paddles_loop():
            return super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
        if isinstance(params_grads, dict):
            return self.update([(params_grads.get("grad_clip"), params_grads["params"])])
        return self.update([(self._grad_clip, self.missing.drop_from(params_grads))])

    def apply_gradients(self, params_grads: Any) -> Any:
        """Take a step with the given (parameter, gradient) pairs."""
        pairs = list(params_grads)  # may be an iterator
        if in_paddles_loop():
            return super().apply_gradients(pairs)
        return self.update([(self._grad_clip, sorted(pairs, key=lambda pair: pair[0].name))])

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
        """Update one parameter within Paddle's loop (`dist.shard_optimizer`); in a static graph, add its operations."""
        pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        param, grad = pair
        check_gradient(self, param, grad)
        if not paddle.in_dynamic_mode():
            ratio = self.layerwise_ratio(param)
            frozen = (isinstance(ratio, float) and ratio == 0.0) or 0 in param.shape
            return None if frozen else self._append_to_graph(block, param_and_grad)
        if self.fused:
            why = "`fused=True` is not possible inside `dist.shard_optimizer`, which calls Paddle's operations."
            raise refusal(ValueError, f"{why} Use None or False.", fused=True)
        if self.hook is not None:
            self.ratios = {param.name: self.hook(param)}
        if self._count_in_loop is None:
            self._count_in_loop = self.next_count()
        self.prepared(self._rows([pair]))(self._count_in_loop)
        return None

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> Any:
        if self._count_in_loop is not None:
            self.taken, self._count_in_loop = self._count_in_loop, None
        return super()._finish_update(block, parameters_and_grads)

    # ---- the step

    @paddle.no_grad()
    def update(self, clipped: list[tuple[Any, Pairs]]) -> list[Any]:
        """Update parameters once, given (gradient clipping, its pairs); raise before anything has moved."""
        if self._overflow_is_found():
            return []
        clipped = [(clip, [(p, g) for p, g in pairs if g is not None and not p.stop_gradient]) for clip, pairs in clipped]
        every = [pair for _, pairs in clipped for pair in pairs]
        params = [param for param, _ in every]
        self.check_in_step(params)
        if self.hook is not None:
            self.ratios = {param.name: self.hook(self.finder.original(param)) for param in params}
        fused = self.fused_step.supports(self, params)
        in_library = fused and all(clip is None or self._library_clips(clip) for clip, _ in clipped)
        in_library = in_library and 0.0 not in self.ratios.values() and not self._has_regularizer(params)
        if not in_library:
            every = self._clipped(clipped)
        rows = self._rows(every)
        self.create_state(rows.params)
        structs, rest = None, rows
        if fused and rows.params:
            structs, refused = self.fused_step.read(self, rows)
            if refused and in_library and any(clip is not None for clip, _ in clipped):
                in_library, rows = False, self._rows(self._clipped(clipped))
                structs, refused = self.fused_step.read(self, rows)
            rest = rows.take(sorted(refused))
        for param, grad in zip(rest.params, rest.grads):
            check_gradient(self, param, grad)
        update_rest = self.prepared(rest)
        count = self.next_count() if rows.params or self.missing.others_may_have_updates() else self.taken
        if structs is not None:
            self._update_in_library(structs, rows, refused, clipped if in_library else [], count)
        update_rest(count)
        self.taken = count
        return []

    def _overflow_is_found(self) -> bool:
        """Return whether an overflow skips the step; note it for the loss scaler, as Paddle's step does."""
        flag = self._get_auxiliary_var("found_inf")
        overflow = bool(flag)
        if isinstance(flag, Tensor):
            self._set_auxiliary_var("found_inf", overflow)
        return overflow

    def _library_clips(self, clip: Any) -> bool:
        """Return whether the library scales gradients for this clipping; by settings alone, for the bits of a resume.

        The library rounds the norm in another way than Paddle.
        """
        by_norm = type(clip) is paddle.nn.ClipGradByGlobalNorm and not clip.auto_skip_clip
        return by_norm and not self.rule_clips() and not paddle.distributed.is_initialized()

    def _has_regularizer(self, params: list[Tensor]) -> bool:
        return self.regularization is not None or any(getattr(p, "regularizer", None) is not None for p in params)

    def _clipped(self, clipped: list[tuple[Any, Pairs]]) -> Pairs:
        """Return all pairs with the gradients that Paddle's clipping and regularization make of them."""
        every: Pairs = []
        for clip, pairs in clipped:
            for param, grad in pairs if clip is not None else []:
                check_gradient(self, param, grad)
            pairs = pairs if clip is None else clip(pairs)
            if self._has_regularizer([param for param, _ in pairs]):
                pairs = self.append_regularization_ops(pairs, self.regularization)
            every += [(p, in_shape(grad, p)) for p, grad in pairs if grad is not None]
        return every

    def _rows(self, pairs: Pairs) -> Rows:
        """Return the rows of a step: parameters of the layers whose ratio is not 0, with their rates and options."""
        pairs = [(param, grad) for param, grad in pairs if param.size]
        ratios = [self.ratio_of(param) for param, _ in pairs] if self.ratios else [1.0] * len(pairs)
        if 0.0 in ratios:
            pairs = [pair for pair, ratio in zip(pairs, ratios) if ratio != 0.0]
            ratios = [ratio for ratio in ratios if ratio != 0.0]
        params = [param for param, _ in pairs]
        kinds, options, rates = self._kinds(params)
        factors = [factor_of(param) for param in params]
        for i, factor in enumerate(factors):
            if isinstance(factor, Tensor):  # Paddle's way to give an absolute rate
                factors[i] = float(factor) / rates[kinds[i]] if rates[kinds[i]] else 0.0
        scales = [factor * ratio for factor, ratio in zip(factors, ratios)]
        return Rows(params, [grad for _, grad in pairs], scales, kinds, self.decay_list(params), options, rates)

    def _kinds(self, params: list[Tensor]) -> tuple[list[int], list[Values], list[float]]:
        """Return the kind of each parameter, and the options and the rate of each kind in this step."""
        if not isinstance(self._parameter_list[0], dict):
            return [0] * len(params), [self.step_options({})], [self.rate_now({})]
        kinds: list[int] = []
        kind_of_group: dict[int, int] = {}
        kind_of_values: dict[Any, int] = {}  # groups with equal options and rates are one kind
        options: list[Values] = []
        rates: list[float] = []
        for param in params:
            group = self.group_of(param)
            kind = kind_of_group.get(id(group))
            if kind is None:
                chosen, rate = self.step_options(group), self.rate_now(group)
                kind = kind_of_group[id(group)] = kind_of_values.setdefault((*chosen.values(), rate), len(options))
                if kind == len(options):
                    options.append(chosen)
                    rates.append(rate)
            kinds.append(kind)
        return kinds, options, rates

    def _update_in_library(self, structs: NDArray[Any], rows: Rows, left: Any, clipped: Any, count: Any) -> None:
        begin, kinds, params = 0, np.array(rows.kinds), rows.params
        for clip, pairs in clipped:  # as `ClipGradByGlobalNorm` does: if the norm is NaN, all become NaN
            if clip is not None and pairs:
                part = structs[begin : begin + len(pairs)]
                mine = np.array([getattr(param, "need_clip", True) is not False for param, _ in pairs])
                norm, limit = np.float32(kernels.norm(part[mine]) if mine.any() else 0.0), np.float32(clip.clip_norm)
                part["grad_scale"][mine] *= limit / np.maximum(norm, limit)
            begin += len(pairs)
        structs["lr"] = np.array(rows.rates, "f4")[kinds] * np.array(rows.scales, "f4")
        structs["weight_decay"] = np.array([options["weight_decay"] for options in rows.options])[kinds] * rows.decays
        structs["count"] = count or 0.0
        if left:
            chosen = [i for i in range(len(params)) if i not in left]
            structs, params = structs[chosen], [params[i] for i in chosen]
        kernels.step(structs)
        if self.fused_bumps_version:
            collections.deque(map(Tensor._bump_inplace_version, params), maxlen=0)


def pairs_of(params: list[Tensor]) -> Pairs:
    """Return (parameter, gradient) of the trainable parameters that have a gradient."""
    pairs = []
    for param in params:
        if not param.stop_gradient:
            grad = param.__dict__.get("main_grad")
            if grad is None:
                grad = param._grad_ivar()
            if grad is not None:
                pairs.append((param, grad))
    return pairs


def factor_of(param: Tensor) -> Any:
    """Return the factor of a parameter's rate in `ParamAttr`, where Paddle keeps that of its group too."""
    attr = getattr(param, "optimize_attr", None)
    return attr.get("learning_rate", 1.0) if attr else 1.0


def check_gradient(optimizer: Any, param: Tensor, grad: Tensor) -> None:
    """Raise for a parameter that is not floating-point, and a gradient that is complex, sparse or of another size."""
    sparse = getattr(grad, "is_selected_rows", bool)()
    if sparse and not optimizer.takes_sparse(param):
        needs = f"{type(optimizer).__name__} needs dense gradients: build the embedding with sparse=False."
        raise TypeError(f"{needs} Received: a sparse gradient of '{param.name}'")
    if not paddle.in_dynamic_mode():
        return
    if param.dtype not in _FLOATS or grad.dtype in _COMPLEX:
        raise TypeError(
            "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones into "
            f"two. Received: '{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
        )
    if not sparse and grad.size != param.size:
        wrong = "A gradient must have the size of its parameter: Paddle's kernel would read memory behind it."
        raise ValueError(
            f"{wrong} Received: '{param.name}' of shape {list(param.shape)}, gradient of shape {list(grad.shape)}"
        )


def in_shape(grad: Tensor, param: Tensor) -> Any:
    """Return a gradient in the shape of its parameter; `ClipGradByGlobalNorm` makes [1] of []."""
    return grad if grad.is_same_shape(param) or grad.is_selected_rows() else grad.reshape(param.shape)
