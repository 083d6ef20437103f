"""Arguments of MindSpore's optimizers: parameters first, rates and weight decays by their own steps, "order_params".

A Tensor or an iterable of values, and a callable of the step, become a `StepFunction`; Paddle's schedulers stay.
"""

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, TypeVar, cast

import numpy as np
import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from ... import _paddle
from ..._checks import checked_number, checked_state, plain_number
from ..._messages import refusal, shown
from .._base.rule_optimizer import RuleOptimizer
from .._base.rule_state import largest, state_of_all
from .._step.updates import Values
from ..groups import is_listed
from ..shared_options import plain_weight_decay
from ..states import GLOBAL_STEP, SCALAR, STEP, State

LR = "[0, inf) or a schedule"  # the values of `lr_or_function` in words


class StepFunction:
    """A number that depends on the optimizer's steps: element i of a sequence, or a function of i."""

    def __init__(self, source: Any, argument: str) -> None:
        self.source, self.argument = source, argument

    def __call__(self, step: int) -> float:
        if callable(self.source):
            return checked_number(self.source(step), f"{self.argument}({step})")
        if step >= len(self.source):
            over = f"has run out: it has {len(self.source)} values, and this is step {step + 1}"
            advice = "Give a value for every step, or a callable of the step."
            wrong = f"The schedule given as `{self.argument}` {over}. {advice}"
            raise refusal(ValueError, wrong, **{self.argument: self})
        return float(self.source[step])

    def reported(self, step: int) -> float:
        """Return the value at a step, or the last one of a sequence that has run out."""
        return self(step if callable(self.source) else min(step, len(self.source) - 1))

    def __repr__(self) -> str:
        return repr(self.source) if callable(self.source) else f"[{', '.join(f'{v:g}' for v in self.source[:3])}, ...]"


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
    _known: Optional[tuple[list[Any], list[int], Any, float]] = None  # the result of `_noted` after the last step

    def _checked_lr(self, learning_rate: Any) -> Any:
        return lr_or_function(learning_rate, "learning_rate")

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        groups = [group for group in parameters or [] if isinstance(group, dict)]
        rate = super()._initial_lr(rate, parameters)
        self.lr_function = rate if isinstance(rate, StepFunction) else None
        values = [rate, *(options.get(key) for options in (self._defaults, *groups) for key in ("weight_decay", "lr"))]
        self._step_functions = [value for value in values if isinstance(value, StepFunction)]
        self._has_schedules = bool(self._step_functions)
        self._scheduled: dict[Any, float] = {}  # in a running step: function -> value, GLOBAL_STEP -> step
        self._refuse_functions_in_a_graph()
        first = {function: function(0) for function in self._step_functions}  # checks every function
        return first[rate] if isinstance(rate, StepFunction) else rate  # a scheduler may have no hash

    def _states_of(self, param: Tensor) -> dict[str, State]:
        # float32 even for float64 parameters, so that all counts can be compared
        counted = {GLOBAL_STEP: State(SCALAR, "float32")} if self._has_schedules else {}
        return {**super()._states_of(param), **counted}

    def counted(self, state: Values) -> Values:
        """Return the counters after this update, with the number of this step."""
        self._by_operations = True
        counted = {GLOBAL_STEP: paddle.full([], self._scheduled[GLOBAL_STEP])} if self._has_schedules else {}
        return {**super().counted(state), **counted}

    def step_options(self, param: Tensor = None) -> Values:
        """Return the options with their values in this step."""
        options = super().step_options(param)
        decay = options["weight_decay"]
        return {**options, "weight_decay": self._now(decay)} if isinstance(decay, StepFunction) else options

    @property
    def sets_own_lr(self) -> bool:
        """Whether the rate is a function of the optimizer's steps."""
        return self.lr_function is not None or super().sets_own_lr

    def get_lr(self) -> float:
        """Return the rate of the next step for ratio 1, or the last rate of a schedule that has run out."""
        return float(super().get_lr()) if self.lr_function is None else self._now(self.lr_function)

    def set_lr(self, value: float) -> None:
        """Set the rate; raise RuntimeError if it is a schedule."""
        if self.lr_function is not None:
            advice = "build the optimizer with a number to set it."
            raise refusal(
                RuntimeError, f"The rate follows the schedule given as `learning_rate`; {advice}", value=value
            )
        super().set_lr(value)

    def set_lr_scheduler(self, scheduler: Any) -> None:
        """Take the rate from a Paddle scheduler, which the caller steps."""
        super().set_lr_scheduler(scheduler)
        self._step_functions = [function for function in self._step_functions if function is not self.lr_function]
        self.lr_function = None

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, also of a run without schedules."""
        counted = [key for key in checked_state(state_dict) if str(key).endswith(f"_{STEP}_0")]
        steps = {key: float(largest([state_dict[key]])) for key in counted}
        counts = {}
        for key in steps if self._has_schedules else ():
            count = f"{key[: -len(f'{STEP}_0')]}{GLOBAL_STEP}_0"
            # a copy: the given Tensor may belong to another optimizer
            counts[count] = paddle.full([], max(float(largest([state_dict.get(count)])), *steps.values()), "float32")
        super().set_state_dict({**state_dict, **counts})

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which the caller may change."""
        self._known = None
        return super().state_dict()

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state with its offsets, to be loaded into."""
        self._known = None
        return super().sharded_state_dict(*args, **kwargs)

    def _steps_taken(self) -> float:
        """Return the number of steps taken; it waits for the device unless the last step noted the number."""
        if self._known is not None:
            counts, versions, waiting, count = self._known
            now, now_versions, now_waiting, _ = self._noted(count)
            if now_waiting is waiting and now_versions == versions and all(map(operator.is_, now, counts)):
                return count
        return super()._steps_taken()

    def _noted(self, count: float) -> tuple[list[Any], list[int], Any, float]:
        """Return a count with the tensors, versions and loaded state that it was read from."""
        counts = list(state_of_all(self, self._COUNT).values())
        return counts, list(map(_paddle.version_of, counts)), _paddle.waiting_state(self), count

    def _now(self, value: Any) -> float:
        """Return the value of a rate or a decay in this step."""
        if isinstance(value, LRScheduler):
            return float(value())
        if not isinstance(value, StepFunction):
            return float(value)
        return self._scheduled[value] if self._scheduled else value.reported(int(self._steps_taken()))

    def _refuse_functions_in_a_graph(self) -> None:
        if self._step_functions and not paddle.in_dynamic_mode():
            first = self._step_functions[0]
            wrong = f"`{first.argument}` advances with the optimizer's steps, which a static graph does not count."
            advice = (
                "Give a number, or as the rate a scheduler stepped after each run, such as LambdaDecay(1.0, function)."
            )
            raise refusal(ValueError, f"{wrong} {advice}", **{first.argument: first})

    @contextlib.contextmanager
    def _one_step(self) -> Iterator[None]:
        """Compute and check all scheduled values of a step, and keep them until it ends."""
        self._refuse_functions_in_a_graph()
        if self._scheduled or not self._has_schedules:
            yield
            return
        taken = int(self._steps_taken())
        self._known, self._by_operations = None, False
        self._scheduled = {GLOBAL_STEP: taken + 1.0, **{value: value(taken) for value in self._step_functions}}
        try:
            if self.lr_function is not None:
                super().set_lr(self._scheduled[self.lr_function])
            yield
            if self._by_operations:
                self._known = self._noted(taken + 1.0)
        finally:
            self._scheduled = {}

    def group_lr(self, param: Tensor) -> Optional[float]:
        """Return the rate of the parameter's group in this step, or None."""
        rate = super().group_lr(param)
        return None if rate is None else self._now(rate)

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return the current and the peak rate of a schedule; the peak of a callable is unknown."""
        own = super().group_lr(param)
        rate: Any = self.lr_function if own is None else own
        if not isinstance(rate, StepFunction):
            return None
        factor = factor if own is None else self.layerwise_ratio(param)
        now = factor * rate.reported(int(self._steps_taken()))
        return now, None if callable(rate.source) else factor * max(rate.source)


_Constructor = TypeVar("_Constructor", bound=Callable[..., None])


def parameters_first(constructor: _Constructor) -> _Constructor:
    """Decorate a constructor: parameters or groups as the first argument, MindSpore's order, become `params`."""

    @functools.wraps(constructor)
    def with_params(self: Any, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], (list, tuple)) and any(map(_is_trained, args[0])):
            constructor(self, *args[1:], params=args[0], **kwargs)
        else:
            constructor(self, *args, **kwargs)

    return cast(_Constructor, with_params)


def _is_trained(item: Any) -> bool:
    """Return whether an item is a parameter or a group, and not one of the rates in a schedule."""
    return isinstance(item, dict) or not getattr(item, "stop_gradient", True)


def without_order(parameters: Any) -> Any:
    """Return the parameters or groups without the dict of "order_params", which is checked and has no effect."""
    if not is_listed(parameters):
        return parameters
    groups: list[Any] = []
    orders: list[Any] = []
    for group in parameters:
        ordered = isinstance(group, dict) and "order_params" in group
        if isinstance(group, dict) and is_listed(group.get("params")) and not isinstance(group["params"], set):
            group = {**group, "params": list(group["params"])}  # an iterator is read once
        (orders if ordered else groups).append(group)
    if orders:
        _check_order(orders, groups)
    return groups


def _check_order(orders: list[Any], groups: list[Any]) -> None:
    if len(orders) > 1 or len(orders[0]) > 1:
        keys = [key for order in orders for key in order]
        raise ValueError(f"'order_params' must be the only key of one dict. Received: keys {shown(keys)}")
    order_params = orders[0]["order_params"]
    order = list(order_params) if is_listed(order_params) else [order_params]
    if not is_listed(order_params) or not all(isinstance(item, Tensor) for item in order):
        raise TypeError(f"'order_params' must be a list of parameters. Received: order_params={shown(order_params)}")
    names = [param.name for param in order]
    group_names = [p.name for p in _paddle.flatten_groups(g for g in groups if isinstance(g, dict) and "params" in g)]
    for fault, faulty in (
        ("lists parameters that are in no group", set(names) - set(group_names)),
        ("lacks parameters of the groups", set(group_names) - set(names)),
        ("lists parameters twice", {n for n in names if names.count(n) > 1}),
    ):
        if faulty:
            wrong = "'order_params' must list the parameters of all groups, each once."
            raise ValueError(f"{wrong} Received: an order that {fault}: {', '.join(sorted(faulty))}")
