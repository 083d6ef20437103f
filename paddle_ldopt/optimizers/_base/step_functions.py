"""Rates and decays as MindSpore's optimizers take them, checked.

Numbers become floats, Paddle's schedulers stay. A Tensor or an iterable of values and a callable of the step, which
advance with the optimizer's own steps, become a `StepFunction`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from ..._checks import checked_number, plain_number
from ..._messages import refusal
from ..shared_options import plain_weight_decay


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
        value = value.tolist()
    value = plain_number(value)
    if callable(value):
        return StepFunction(value, argument)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset)):
        values = [plain_number(element) for element in value]
        if any(isinstance(element, (paddle.Tensor, dict)) for element in values):
            advice = "parameters go to `parameters`, or to `params` as in MindSpore, by name."
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
