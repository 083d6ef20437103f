"""Arguments of MindSpore's optimizers: parameters first, rates and weight decays by their own steps, "order_params".

A Tensor or an iterable of values, and a callable of the step, become a `StepFunction`; Paddle's schedulers stay.
"""

import functools
from collections.abc import Iterable
from typing import Any, Callable, Optional, TypeVar, cast

import numpy as np
import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from .._checks import checked_number, plain_number, refusal
from .options import is_listed, plain_weight_decay
from .rule_optimizer import RuleOptimizer
from .states import GLOBAL_STEP, SCALAR, STEP, State, StepFunction, Values, largest, plain

LR = "[0, inf) or a schedule"  # the values of `lr_or_function` in words


def lr_or_function(value: Any, argument: str) -> Any:
    """Return a rate as a float, an `LRScheduler` or a `StepFunction`; raise if it is none of them."""
    if isinstance(value, LRScheduler):
        return value
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        if value.ndim > 1:
            received = f"{argument} of shape {list(value.shape)}"
            raise ValueError(f"`{argument}` must have at most one dimension. Received: {received}")
        value = value.tolist() if value.size != 1 else value
    value = plain_number(value)
    if callable(value):
        return StepFunction(value, argument)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset)):
        values = [plain_number(element) for element in value]
        if any(isinstance(element, (paddle.Tensor, dict)) for element in values):
            advice = "parameters go to `parameters`, or to `params` as in MindSpore, by keyword."
            raise TypeError(
                f"`{argument}` must hold numbers; {advice} Received: {argument}=[a {type(values[0]).__name__}, ...]"
            )
        if not values:
            raise ValueError(f"`{argument}` must have a value for every step. Received: {argument}=[]")
        return StepFunction([checked_number(v, f"{argument}[{i}]") for i, v in enumerate(values)], argument)
    expected = "a number, a Tensor, an iterable of numbers, an LRScheduler or a callable of the step"
    return checked_number(value, argument, expected=expected)


def decay_or_function(value: Any, argument: str) -> Any:
    """Return a weight decay as a float, 0 for None, or as a `StepFunction`; raise if it is neither."""
    if callable(value) and not isinstance(value, WeightDecayRegularizer):
        return StepFunction(value, argument)
    return checked_number(plain_weight_decay(value, argument), argument, expected="a number or a callable of the step")


class ScheduledOptimizer(RuleOptimizer):
    """An optimizer whose rate and options "lr" and "weight_decay" may be a `StepFunction`.

    With any of them, the state of each parameter includes the number of all steps, so a resume is exact.
    """

    _COUNT = GLOBAL_STEP

    _check_lr = staticmethod(lr_or_function)

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        rate = super()._initial_lr(rate, parameters)
        groups = [group for group in parameters or [] if isinstance(group, dict)]
        values = [rate, *(options.get(key) for options in (self._defaults, *groups) for key in ("weight_decay", "lr"))]
        self._functions = [value for value in values if isinstance(value, StepFunction)]
        self.counts_together = bool(self._functions)
        if not paddle.in_dynamic_mode():
            self._check_static()
        for function in self._functions:
            function(0)  # checks it
        if not isinstance(rate, StepFunction):
            return rate
        self.lr_function, self.sets_own_lr = rate, True
        return rate(0)

    def _check_static(self) -> None:
        for function in self._functions:
            name = function.argument
            wrong = f"`{name}` advances with the optimizer's steps, which a static graph does not count."
            advice = "Give a number, or as the rate a scheduler that you step, such as LambdaDecay(1.0, function)."
            raise refusal(ValueError, f"{wrong} {advice}", **{name: function})

    def check_graph(self, params: list[Tensor]) -> None:
        """Refuse a schedule of the optimizer's own steps."""
        if not paddle.in_dynamic_mode():
            self._check_static()
        super().check_graph(params)

    # ---- the rate as others see it

    def get_lr(self) -> float:
        """Return the rate of the next step for ratio 1, or the last rate of a schedule that has run out."""
        return float(super().get_lr()) if self.lr_function is None else self.lr_function.reported(self.steps_taken())

    def set_lr_scheduler(self, scheduler: Any) -> None:
        """Take the rate from a Paddle scheduler, which the caller steps."""
        super().set_lr_scheduler(scheduler)
        self.lr_function, self.sets_own_lr = None, False

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return the current and the peak rate of a schedule; the peak of a callable is unknown."""
        own = self.group_of(param).get("lr")
        rate: Any = self.lr_function if own is None else own
        if not isinstance(rate, StepFunction):
            return None
        factor = factor if own is None else self.layerwise_ratio(param)
        now = factor * rate.reported(self.steps_taken())
        return now, None if callable(rate.source) else factor * max(rate.source)

    # ---- state

    def _states_of(self, param: Tensor) -> dict[str, State]:
        # float32 even for float64 parameters, so that all counts can be compared
        counted = {GLOBAL_STEP: State(SCALAR, "float32")} if self.counts_together else {}
        return {**super()._states_of(param), **counted}

    def set_state_dict(self, state_dict: Values) -> None:
        """Load the result of `state_dict`, also of a run without schedules."""
        state_dict = plain(state_dict)
        counted = [key for key in state_dict if str(key).endswith(f"_{STEP}_0")] if self.counts_together else []
        steps = {key: largest([state_dict[key]]) for key in counted}
        counts = {}
        for key in steps:
            count = f"{key[: -len(f'{STEP}_0')]}{GLOBAL_STEP}_0"
            # a copy: the given Tensor may belong to another optimizer
            counts[count] = paddle.full([], max(largest([state_dict.get(count)]), *steps.values()), "float32")
        super().set_state_dict({**state_dict, **counts})


_Constructor = TypeVar("_Constructor", bound=Callable[..., None])


def parameters_first(constructor: _Constructor) -> _Constructor:
    """Decorate a constructor: parameters or groups as the first argument, MindSpore's order, become `params`."""

    @functools.wraps(constructor)
    def with_params(self: Any, *args: Any, **kwargs: Any) -> None:
        first = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        if any(isinstance(item, dict) or not getattr(item, "stop_gradient", True) for item in first):
            constructor(self, *args[1:], params=args[0], **kwargs)
        else:
            constructor(self, *args, **kwargs)

    return cast(_Constructor, with_params)


def without_order(parameters: Any) -> Any:
    """Return the parameters or groups without the dict of "order_params", which has no effect."""
    if not is_listed(parameters):
        return parameters
    return [item for item in parameters if not (isinstance(item, dict) and "order_params" in item)]
