"""The one way of a step.

    step, minimize, apply_gradients and fleet's wrappers find pairs (parameter, gradient)
      -> OneStep.update         an overflow skips the step; so far nothing has moved
           -> _read, _rows      clipping; each row's ratio, options and rate; who updates it:
           -> update_fused      the C library, on a CPU
           -> prepared          Paddle's operations: the rule on stacks of one shape (`batches`), Paddle's AdamW kernel
                                (`AdamWDL`), tensors split over processes (`prepared_shards`)

In a static graph and in `dist.shard_optimizer`, Paddle's `_append_optimize_op` runs the same rule for each parameter.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.base import core
from paddle.base.dygraph.base import in_to_static_mode
from paddle.framework import _dygraph_tracer

from .._checks import refusal
from .._compat import (
    check_weight_decay_in_step,
    create_state,
    get_fsdp_context,
    in_auto_dp_mode,
    is_wrapped_step,
    topology,
)
from .._processes import check_same_options
from .fused import can_clip, clip_gradients, library_is_usable, read_structs, refuse_fused, update_fused
from .layer_rates import LayerRates
from .sharded import MissingGradients, ShardFinder
from .states import HALF, Values, refresh_masters

_FLOATS = {*HALF, paddle.float32, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}
Pairs = list[tuple[Tensor, Tensor]]  # (parameter, gradient)


class Rows(NamedTuple):
    """The parameters of a step as columns: row i takes a step at `rates[variants[i]] * scales[i]`."""

    params: list[Tensor]
    grads: list[Tensor]
    scales: list[float]  # ParamAttr's or the group's factor, times the layer's ratio
    variants: list[int]  # each row's index in the next two; equal groups share a variant
    options: list[Values]
    rates: list[float]

    def take(self, chosen: list[int]) -> "Rows":
        columns: Any = self[:4]
        params, grads, scales, variants = [[column[i] for i in chosen] for column in columns]
        return Rows(params, grads, scales, variants, self.options, self.rates)


class OneStep(LayerRates):
    """The step of our optimizers, from top to bottom."""

    finder: ShardFinder
    missing: MissingGradients
    plan: Any  # of the C library; None before the first step
    fused: Optional[bool]
    counts_together = False  # whether all parameters share one count of steps
    is_elementwise = False  # the rule needs no sums: the library may update shards
    agree: Optional[Callable[[], None]] = None  # called before any change; raises another process's error
    compared = False  # whether processes have compared their options
    taken: Optional[float] = None  # number of steps so far; None: to be read from the state
    _count_in_loop: Optional[float] = None  # the number of the running step in Paddle's loop

    # of `LayerwiseOptimizer`; the last two have methods of their own in `AdamWDL`
    values_now: Callable[[Values], tuple[Values, float]]  # of a group: its options and its rate in this step
    group_of: Callable[[Tensor], Values]
    steps_taken: Callable[[], float]
    keep_count: Callable[[float], None]
    check_graph: Callable[[list[Tensor]], None]  # raises before a static graph gets operations
    refuse_groups: Callable[[], None]
    prepared: Callable[[Rows], Callable[[Optional[float]], None]]  # checks rows, returns their update by Paddle
    _append_to_graph: Callable[[Any, Any], Any]

    # ---- where a step enters

    def step(self) -> None:
        groups = self._param_groups
        if not paddle.in_dynamic_mode() or in_to_static_mode() or in_auto_dp_mode() or get_fsdp_context():
            self._count_in_loop = None  # of a loop that an error ended
            super().step()  # Paddle's loop
            self._end_loop()
        elif not isinstance(groups[0], dict):
            self.update([(self._grad_clip, pairs_of(groups))])
        else:
            self.update([(group.get("grad_clip"), pairs_of(group["params"])) for group in groups])

    def _apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any, *args: Any, **kwargs: Any) -> Any:
        """Take a step, as `minimize` and the wrappers of fleet do."""
        grouped = isinstance(params_grads, dict)
        if not paddle.in_dynamic_mode() or in_auto_dp_mode() or get_fsdp_context():
            self.check_graph([param for param, _ in (params_grads["params"] if grouped else params_grads)])
            if not grouped:  # one of several groups in `step`
                self._count_in_loop = None
            done = super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
            if not grouped:
                self._end_loop()
            return done
        if grouped:
            return self.update([(params_grads.get("grad_clip"), _moving(params_grads["params"]))])
        return self.update([(self._grad_clip, _moving(self.missing.drop_from(params_grads)))])

    def apply_gradients(self, params_grads: Any) -> Any:
        pairs = list(params_grads)  # may be an iterator
        if not paddle.in_dynamic_mode():
            return super().apply_gradients(pairs)
        clipped: dict[int, tuple[Any, Pairs]] = {}  # by clipping, which a group may have of its own
        for param, grad in sorted(_moving(pairs), key=lambda pair: pair[0].name):
            clip = self.group_of(param).get("grad_clip", self._grad_clip)
            clipped.setdefault(id(clip), (clip, []))[1].append((param, grad))
        return self.update([*clipped.values()])

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
        """Update one parameter in Paddle's loop; in a static graph, add its operations."""
        pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        param, grad = pair
        check_gradient(self, param, grad)
        if not paddle.in_dynamic_mode():
            refuse_fused(self.fused)
            self.refuse_groups()  # `dist.shard_optimizer` comes here directly
            ratio = self.layerwise_ratio(param)
            frozen = (isinstance(ratio, float) and ratio == 0.0) or 0 in param.shape
            return None if frozen else self._append_to_graph(block, param_and_grad)
        refuse_fused(self.fused, "`dist.shard_optimizer` calls Paddle's operations")
        if self.hook is not None:
            self.ratios = {param.name: self.layerwise_ratio(param)}
        if self._count_in_loop is None:
            self._count_in_loop = self.steps_taken() + 1.0 if self.counts_together else 0.0
        self.prepared(self._rows([pair]))(self._count_in_loop)
        return None

    def _end_loop(self) -> None:
        if self._count_in_loop is not None:
            self.taken, self._count_in_loop = self._count_in_loop or None, None

    def has_weight_decay(self, param: Tensor) -> bool:
        return self._apply_decay_param_fun is None or bool(self._apply_decay_param_fun(param.name))

    # ---- the step

    def update(self, clipped: list[tuple[Any, Pairs]]) -> list[Any]:
        """Update parameters, given (clipping, its pairs); raise before anything changes."""
        casts = _dygraph_tracer()._amp_level != core.AmpLevel.O0  # a rule in 16 bits loses the update
        with paddle.no_grad(), paddle.amp.auto_cast(enable=False) if casts else contextlib.nullcontext():
            flag = self._get_auxiliary_var("found_inf")  # of a loss scaler; None without one
            overflow = flag is not None and bool(flag)
            if isinstance(flag, Tensor):
                self._set_auxiliary_var("found_inf", overflow)  # as Paddle's step does: the scaler reads it
            if overflow:
                return []
            hcg = topology()  # None in a single process
            if hcg is not None:
                if not self.compared and is_wrapped_step():  # fleet's own step waits for these processes
                    for group in (hcg.get_data_parallel_group(), hcg.get_sharding_parallel_group()):
                        check_same_options(self, group)
                    self.compared = True
                check_weight_decay_in_step(self)
                if not self.finder.is_whole(self._parameter_list) and not self.is_elementwise:  # all processes must ask
                    why = "it does not support parameters in shards (tensor parallel, sharding version 2)"
                    refuse_fused(self.fused, why)
            structs, rows, left = self._read(clipped)
            by_paddle = None
            if structs is None or left or hcg is not None:  # other processes may wait for one without rows
                by_paddle = self.prepared(rows if structs is None else rows.take(left))
            count = self.taken
            others_move = len(self.missing.names) < len(self.missing.params)  # perhaps none of this process's
            if self.counts_together and (others_move or any(pairs for _, pairs in clipped)):  # also with ratio 0
                count = self.steps_taken() + 1.0
            if self.agree is not None:
                self.agree()
            if structs is not None:  # the first change
                update_fused(structs, count)
            if by_paddle is not None:
                by_paddle(count)
            if count is not None and count != self.taken and not rows.params:
                if not self._accumulators:  # no layer has moved yet
                    create_state(self, [param for _, pairs in clipped for param, _ in pairs][:1])
                self.keep_count(count)
            self.taken = count
            return []

    def _read(self, clipped: list[tuple[Any, Pairs]]) -> tuple[Optional[NDArray[Any]], Rows, list[int]]:
        """Return (structs for the C library or None, all rows, indices of the rows left to Paddle's operations)."""
        pairs, clips, penalty = Pairs(), list[Any](), self.regularization is not None
        for clip, of_clip in clipped:
            pairs += of_clip
            clips += [] if clip is None else [clip]
        for param, _ in pairs:
            penalty = penalty or param.__dict__.get("regularizer") is not None
        if self.hook is not None:
            self.ratios = {param.name: self.hook(self.finder.original(param)) for param, _ in pairs}
        fused = self.fused is not False and bool(pairs) and library_is_usable(self, pairs[0][0])
        # only options decide who clips, the library or Paddle: they round differently, and a resume must be exact
        library_clips = fused and bool(clips) and all(map(can_clip, clips)) and not penalty
        if library_clips and 0.0 not in self.ratios.values():  # the gradients of frozen layers count, too
            rows = self._rows(pairs)
            structs, left = read_structs(self, rows)
            if not left:  # else Paddle clips: the norm needs all gradients
                clip_gradients(structs, clipped)
                return structs, rows, []
        rows = self._rows(self._clipped(clipped) if clips or penalty else pairs)
        if not fused or not rows.params:
            return None, rows, []
        structs, left = read_structs(self, rows)
        return (np.delete(structs, left) if left else structs), rows, left

    def _clipped(self, clipped: list[tuple[Any, Pairs]]) -> Pairs:
        every: Pairs = []
        for clip, pairs in clipped:
            if clip is not None:
                for param, grad in pairs:
                    check_gradient(self, param, grad)
                types = {param.name: grad.dtype for param, grad in pairs}
                # Paddle has no norm of 16 bits on a CPU
                half = {p.name for p, g in pairs if g.dtype in HALF and g.place.is_cpu_place() and g.is_dense()}
                pairs = clip([(p, g.astype(paddle.float32) if p.name in half else g) for p, g in pairs])
                pairs = [(p, g if g.is_selected_rows() else in_shape(g, p).astype(types[p.name])) for p, g in pairs]
            if self.regularization is not None or any(getattr(p, "regularizer", None) is not None for p, _ in pairs):
                pairs = self.append_regularization_ops(pairs, self.regularization)
            every += pairs
        return every

    def _rows(self, pairs: Pairs) -> Rows:
        """Return the rows of pairs whose ratio is not 0, with their state created and their masters up to date."""
        rows, ratios = Rows([], [], [], [], [], []), self.ratios
        grouped = bool(self._groups) or isinstance((self._parameter_list or [None])[0], dict)  # Muon makes groups
        no_group = Values()
        of_group: dict[Any, int] = {}  # (group, whether it decays) -> variant
        of_values: dict[Any, int] = {}  # equal groups have one variant
        for param, grad in pairs:
            ratio = ratios.get(param.name) if ratios else 1.0
            if ratio is None:
                ratio = self.layerwise_ratio(param)
            if ratio == 0.0:
                continue
            group, decays = self.group_of(param) if grouped else no_group, self.has_weight_decay(param)
            variant = of_group.get((id(group), decays))
            if variant is None:
                options, rate = self.values_now(group)
                if not decays and "weight_decay" in options:
                    options["weight_decay"] = 0.0
                variant = len(rows.rates)
                with contextlib.suppress(TypeError):  # of an option that is a list
                    variant = of_values.setdefault((*options.values(), rate), variant)
                if variant == len(rows.rates):
                    rows.options.append(options)
                    rows.rates.append(rate)
                of_group[id(group), decays] = variant
            attr = param.__dict__.get("optimize_attr")
            factor = attr.get("learning_rate", 1.0) if attr else 1.0  # ParamAttr's or the group's
            if isinstance(factor, Tensor):  # Paddle's way to give an absolute rate
                rows.options.append(rows.options[variant])
                rows.rates.append(float(factor))
                variant, factor = len(rows.rates) - 1, 1.0
            rows.params.append(param)
            rows.grads.append(grad)
            rows.scales.append(factor * ratio)
            rows.variants.append(variant)
        if not all(param.name in self._already_create_accumulator for param in rows.params):
            create_state(self, rows.params)
        if self._master_weights:
            refresh_masters(self, rows.params)
        return rows


def _moving(pairs: Iterable[Any]) -> Pairs:
    return [pair for pair in pairs if pair[1] is not None and not pair[0].stop_gradient]


def pairs_of(params: Iterable[Tensor]) -> Pairs:
    pairs = []
    for param in params:
        if not param.stop_gradient:
            grad = param.__dict__.get("main_grad")
            if grad is None:
                grad = param._grad_ivar()
            if grad is not None:
                pairs.append((param, grad))
    return pairs


def check_gradient(optimizer: Any, param: Tensor, grad: Tensor) -> None:
    sparse = getattr(grad, "is_selected_rows", bool)()
    if sparse and not (optimizer.takes_sparse_on_gpu and param.place.is_gpu_place()):
        needs = f"{type(optimizer).__name__} needs dense gradients: build the embedding with sparse=False."
        raise refusal(TypeError, needs, f"a sparse gradient of '{param.name}'")
    if not paddle.in_dynamic_mode():
        return
    if param.dtype not in _FLOATS or grad.dtype in _COMPLEX:
        wrong = "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones."
        received = f"'{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
        raise refusal(TypeError, wrong, received)
    if not sparse and not grad.is_same_shape(param) and grad.size != param.size:
        wrong = "A gradient must have the size of its parameter: Paddle's kernel would read memory behind it."
        received = f"'{param.name}' of shape {list(param.shape)}, gradient of shape {list(grad.shape)}"
        raise refusal(ValueError, wrong, received)


def in_shape(grad: Tensor, param: Tensor) -> Any:
    """Return a gradient in its parameter's shape; `ClipGradByGlobalNorm` makes [1] of []."""
    return grad if list(grad.shape) == list(param.shape) else grad.reshape(param.shape)
