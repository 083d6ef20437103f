"""`RuleOptimizer`, the base of optimizers whose update is a rule; the common parts of rules.

Paper: Adafactor, https://arxiv.org/abs/1804.04235 (section 3, Algorithm 1): the means of a matrix's rows and columns
replace all elements. The last two dimensions are the matrix. Vectors are not factored.

On a CPU the memory pages of a new tensor cost several times as much as the arithmetic, so rules reuse memory: a
trailing underscore in a name means in place.
"""

import math
import re
import warnings
from collections.abc import Generator
from typing import Any, Callable, Optional

import paddle
from paddle import Tensor, _C_ops

from .. import _compat
from .._checks import problem, refusal
from .._compat import flags
from .base import LayerwiseOptimizer
from .batches import started
from .options import COMMON, OWN_SCHEDULE, checked_lr, lr_or_function
from .sharded import Shard, run_locally
from .states import (
    COLUMN,
    ELEMENT,
    GLOBAL_STEP,
    ROW,
    STEP,
    USED_LR,
    State,
    StepFunction,
    Values,
    compute_dtype,
    largest,
    plain,
    unified_name,
)
from .step import in_shape


class RuleOptimizer(LayerwiseOptimizer):
    """Base of optimizers whose update is a function of tensors.

    A subclass declares

    - `OPTIONS`: name -> `Option`, with a default unless the constructor has it;
    - `states(options, shape)`: name -> `State`;
    - `rule(param, grad, state, lr, *, shard, **options)`, which returns (new parameter, new state). It may overwrite
      `param` and `state`, but not `grad`. Its tensors are float32 (float64 for float64 parameters). They may be stacks
      of parameters, of shape ``[k, *shape]``; `lr` is then a number, or has the shape [k, 1, ...]. So the rule reads a
      parameter's shape from `shard.shape` and sums with `shard`'s methods: `grad.sum()` would mix parameters. It yields
      lists of sums over its part of the tensor and receives the sums over the whole tensor, across all processes (see
      `sharded`)::

        def rule(param, grad, state, lr, *, shard, beta1):
            moment = beta1 * state["moment1"] + (1 - beta1) * grad
            (square,) = yield [shard.square_sum(moment)]
            return param - lr * moment / square.sqrt(), {"moment1": moment}

    It may also declare `fused_rule` and `fused_values` (the rule in the C library), `check_together` (options that
    exclude each other), and, if it sets its rate, `sets_own_lr`, `lr_now_and_peak`, `_initial_lr`, `reports_lr` (if so,
    its method `used_lr` returns ``param.name`` -> rate of the last step).

    Args:
        batch_bytes: the size limit of parameters that are updated together. A step needs up to twelve times this as
            temporary memory. None: 64 MB on an accelerator; 2 MB on a CPU, where larger batches are slower.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        *,
        grad_clip: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        multi_precision: bool = False,
        name: Optional[str] = None,
        fused: Optional[bool] = None,
        batch_bytes: Optional[int] = None,
        **arguments: Any,
    ) -> None:
        rate = learning_rate
        if rate is not None or "relative_step" not in self.OPTIONS:
            check = lr_or_function if self.OPTIONS.get("lr") is OWN_SCHEDULE else checked_lr
            rate = check(learning_rate, self._lr_argument)
        self.batch_bytes = COMMON["batch_bytes"].checked(batch_bytes, "batch_bytes")
        parameters = self._read_arguments(parameters, apply_decay_param_fun, multi_precision, fused, **arguments)
        self._param_groups, self._multi_precision = None, multi_precision
        self._apply_decay_param_fun = apply_decay_param_fun
        # no `weight_decay`: Paddle would add an L2 penalty to the gradient
        super().__init__(self._initial_lr(rate, parameters), parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    _lr_argument = "learning_rate"

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        groups = [group for group in parameters or [] if isinstance(group, dict)]
        values = [rate, *(options.get(key) for options in (self._options, *groups) for key in ("weight_decay", "lr"))]
        for function in [value for value in values if isinstance(value, StepFunction)]:
            function(0)  # checks it
            self.counts_together, self._count_state, self.taken = True, GLOBAL_STEP, 0.0
        if not isinstance(rate, StepFunction):
            return rate
        self.lr_function, self.sets_own_lr = rate, True
        return rate(0)

    def get_lr(self) -> float:
        """Return the next step's rate for ratio 1; the last one after the end of a sequence."""
        return float(super().get_lr()) if self.lr_function is None else self.lr_function.reported(self.steps_taken())

    def set_lr_scheduler(self, scheduler: Any) -> None:
        if self.sets_own_lr and self.lr_function is None:
            raise self.own_rate_error(scheduler=scheduler)
        super().set_lr_scheduler(scheduler)
        self.lr_function, self.sets_own_lr = None, False

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        own = self.group_of(param).get("lr")
        rate: Any = self.lr_function if own is None else own
        if not isinstance(rate, StepFunction):
            return None
        factor = factor if own is None else self.layerwise_ratio(param)
        now = factor * rate.reported(self.steps_taken())
        return now, None if callable(rate.source) else factor * max(rate.source)

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        group = self.group_of(param_and_grad[0])
        if group.get("lr") is None:
            return super()._create_param_lr(param_and_grad)
        lr = paddle.full_like(self._global_learning_rate(), self.values_now(group)[1])
        return lr * self.layerwise_ratio(param_and_grad[0])

    def _append_to_graph(self, block: Any, param_and_grad: Any) -> None:
        param, grad = param_and_grad
        if not paddle.framework.in_pir_mode():
            wrong = "Paddle's earlier form of static graphs is supported by AdamWDL only: set FLAGS_enable_pir_api=1."
            raise refusal(RuntimeError, wrong, optimizer=type(self).__name__, FLAGS_enable_pir_api=0)
        options, _ = self.values_now({})
        if "weight_decay" in options and not self.has_weight_decay(param):
            options["weight_decay"] = 0.0
        lr = self._create_param_lr(param_and_grad).astype(compute_dtype(param)).reshape([])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "In static graph mode")  # of methods that overwrite
            rule, write = started(self, param, in_shape(grad, param), options, lr, Shard(list(param.shape)), None)
            write(*run_locally(rule))

    def check_param(self, param: Tensor) -> None:
        super().check_param(param)
        if paddle.in_dynamic_mode() and self.finder.params:
            self.finder.check(param)

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        return {name: (dtype, shape or [1]) for name, (dtype, shape) in super().state_layout(param).items()}

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for param in parameters["params"] if isinstance(parameters, dict) else parameters:
            self.check_param(param)
            if param.name in self._already_create_accumulator:
                continue
            states = self.states_of(param)
            other = [name for name, state in states.items() if state.per != ELEMENT and name != STEP]
            if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
                wrong = "A static graph (`dist.to_static`) places all state of a DistTensor as if it had its shape:"
                advice = "train in dygraph, or use AdamWDL, AdamWeightDecay or Lamb."
                received = f"{type(self).__name__} with state {', '.join(other)} of '{param.name}'"
                raise refusal(ValueError, f"{wrong} {advice}", received)
            owner = self._create_master_weight(param) if self.has_master(param) else param
            if owner is param and self._is_dtype_fp16_or_bf16(param.dtype):  # Paddle's AdamW warns as well
                wrong = "Parameters of 16 bits stop moving if a step is below their rounding: use multi_precision=True."
                warnings.warn(problem(wrong, optimizer=type(self).__name__), stacklevel=2)
            for name, (dtype, shape) in self.state_layout(param).items():
                self._add_accumulator(name, owner, fill_value=0.0, dtype=_compat.dtype_name(dtype), shape=shape)
            self._already_create_accumulator.add(param.name)

    def state_dict(self) -> Values:
        """Return the state under names for PaddleNLP's unified checkpoints."""
        if self._accumulators:
            self.taken = None  # the caller may change the state
        states = {name: state for p in self.finder.params.values() for name, state in self.states_of(p).items()}
        is_split = _compat.is_called_by("sharded_state_dict") and self.finder.is_sliced(self._parameter_list)
        if is_split and any(state.per in (ROW, COLUMN) for state in states.values()):
            wrong = "Paddle's `sharded_state_dict` for `split_param` would save rows and columns at wrong offsets:"
            received = f"{type(self).__name__} with states {', '.join(sorted(states))}"
            raise refusal(ValueError, f"{wrong} use `paddle_ldopt.parallel.save_checkpoint`.", received)
        # Paddle omits the loaded state of parameters that had no gradient yet
        state = {**self._accumulators_holder, **super().state_dict()}
        names = {*self._accumulators, *(self.state_key(name) for name in states)}
        return {unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict: Values) -> None:
        """Load the result of `state_dict`, also of a run without schedules."""
        state_dict = plain(state_dict)
        if self._count_state == GLOBAL_STEP:
            keys = [key for key in state_dict if re.search(f"_{STEP}_\\d+$", str(key))]
            steps = {key: largest([state_dict[key]]) for key in keys}
            for key in keys:
                count = GLOBAL_STEP.join(key.rsplit(STEP, 1))
                # a copy: the given Tensor may belong to another optimizer
                most = max(largest([state_dict.get(count)]), *steps.values())
                state_dict[count] = paddle.full([1], most, "float32")
        super().set_state_dict(state_dict)


# ---- moving averages


def ema_(old: Any, new: Any, beta: Any, one_minus_beta: Optional[Any] = None) -> Any:
    """Return beta * old + (1 - beta) * new, with a more exact 1 - beta if given."""
    new = new * (1 - beta if one_minus_beta is None else one_minus_beta)
    return (old.scale_(beta) if isinstance(beta, float) else old.multiply_(beta)).add_(new)


def ema_of_squares_(old: Any, x: Any, beta: float) -> Any:
    return old.scale_(beta).add_((x * (1 - beta)).multiply_(x))


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, which costs 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)


def sqrt(x: Any) -> Any:
    """Return the roots of x; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
    if flags()["FLAGS_check_nan_inf"]:  # the `rsqrt` of 0 would stop the step
        return x.sqrt()
    return x.rsqrt().reciprocal_()


# ---- the factored second moment


def factored_states(name: str, shape: Any) -> dict[str, State]:
    return {f"{name}_row": State(ROW), f"{name}_col": State(COLUMN)} if len(shape) >= 2 else {name: State(ELEMENT)}


def factored_ema(
    name: str, new: Any, state: Values, shard: Any, one_minus_beta: Any
) -> Generator[list[Any], list[Any], Values]:
    """Return the new state of a moving average; of matrices, of the means of rows and columns."""
    beta = 1 - one_minus_beta
    if len(shard.shape) < 2:
        return {name: ema_(state[name], new, beta, one_minus_beta)}
    asked = [shard.leading_sums(new, len(shard.shape) - 1), shard.col_sums(new)]
    del new  # no memory as large as the parameter while other processes are awaited
    row, col = yield asked
    *_, rows, cols = shard.shape
    return {
        f"{name}_row": ema_(state[f"{name}_row"], row, beta, one_minus_beta / cols),
        f"{name}_col": ema_(state[f"{name}_col"], col, beta, one_minus_beta / rows),
    }


def divided_by_root(x: Any, averages: Values, shard: Any) -> Any:
    r"""Return :math:`x / \sqrt V`, where :math:`V_{ij} = row_i \, col_j / \overline{row}` for matrices (Algorithm 4).

    `averages` is a `factored_ema` of values above 0.
    """
    if len(averages) == 1:
        (v,) = averages.values()
        return v.rsqrt().multiply_(x)
    row, col = averages.values()
    # not rsqrt(row / mean): without a gradient in the row it may be denormal, which Paddle's rsqrt takes for 0
    row = row.rsqrt() * _C_ops.mean(row, [-2], True).sqrt()
    return shard.spread_product(row, col.rsqrt()).multiply_(x)


def clipped_(u: Any, param: Any, clip_threshold: float, scale_parameter: bool, shard: Any) -> Any:
    r"""Return :math:`u / \max(1, \mathrm{RMS}(u) / clip\_threshold)` (section 6) and RMS(param), if asked for."""
    size = math.prod(shard.shape)
    asked = [shard.square_sum(u), shard.square_sum(param)] if scale_parameter else [shard.square_sum(u)]
    squares = yield asked
    excess = _C_ops.clip((squares[0] / size).sqrt() / clip_threshold, 1.0, math.inf)
    return u.divide_(excess), (squares[1] / size).sqrt() if scale_parameter else None


def relative_step_lr(t: Any, warmup_init: bool) -> Any:
    """Return the rate of step t, from 1 (Adafactor's section 8)."""
    return paddle.minimum(1e-6 * t if warmup_init else paddle.full_like(t, 1e-2), t.rsqrt())


class FactoredOptimizer(RuleOptimizer):
    """An optimizer with a factored second moment and the option `relative_step`."""

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        if options["relative_step"]:
            self._refuse_lr("lr", options["lr"])
        elif options["warmup_init"]:
            wrong = "`warmup_init=True` requires `relative_step=True`."
            raise refusal(ValueError, wrong, relative_step=False, warmup_init=True)

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        argument, self.sets_own_lr = self._lr_argument, self._options["relative_step"]
        groups = [item if isinstance(item, dict) else {} for item in parameters or [{}]]
        in_groups = [group.get("lr") is not None for group in groups]
        self.scales_lr = any({**self._options, **group}["scale_parameter"] for group in groups)
        if self.sets_own_lr:
            self._refuse_lr(argument, rate)
        elif rate is None and not all(in_groups):
            wrong = f"`{argument}` must be given with `relative_step=False`."
            raise refusal(ValueError, wrong, **{argument: None}, relative_step=False)
        return super()._initial_lr(1.0 if rate is None else rate, parameters)

    def _refuse_lr(self, argument: str, rate: Any) -> None:
        if rate is not None:
            advice = f"leave out `{argument}`, or give relative_step=False."
            wrong = f"Cannot combine manual `{argument}` and `relative_step=True` options: {advice}"
            raise refusal(ValueError, wrong, **{argument: rate}, relative_step=True)

    def used_lr_of(self, param: Tensor) -> Optional[float]:
        """Return the rate of the parameter's last update, which Adafactor keeps; None if unknown."""
        state = self.state_of(param) if param.name in self._already_create_accumulator else {}
        known = isinstance(state.get(USED_LR), Tensor) and state[STEP].item() > 0
        return float(state[USED_LR].item()) if known else None

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        own = self._options["relative_step"] or self.scales_lr
        return (self.used_lr_of(param), None) if own else super().lr_now_and_peak(param, factor)
