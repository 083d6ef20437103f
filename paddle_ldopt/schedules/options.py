"""The arguments of all schedules, declared once: a name has the same meaning and range in every kind.

Limits that depend on the peak or on another argument are checked where the schedule is built.
"""

import dataclasses
import functools
import inspect
from typing import Any, Callable

from .._checks import Option, checked_bool, checked_choice, checked_number, checked_steps
from .curves import FALLS

REQUIRED = inspect.Parameter.empty  # the default of an argument that has none


def _number(doc: str, high: float = float("inf"), ends: str = "[]") -> Option:
    return Option(REQUIRED, doc, high=high, ends=ends)


def _steps(doc: str, least: int = 0) -> Option:
    check = functools.partial(checked_steps, least=least)
    return Option(REQUIRED, doc, check=check, kind=f"a number of steps from {least} on")


def _choice(doc: str, *choices: str) -> Option:
    return Option(REQUIRED, doc, check=functools.partial(checked_choice, choices=choices), kind=" or ".join(choices))


OPTIONS = {
    "num_warmup_steps": _steps("steps of the warm-up"),
    "num_training_steps": _steps("steps of the training", least=1),
    "num_stable_steps": _steps("steps at the peak"),
    "num_decay_steps": _steps("steps of the decay"),
    "keep_steps": _steps("steps at the peak"),
    "decay_steps": _steps("steps of the cool-down"),
    "final_steps": _steps("steps at `lr_end1`"),
    "num_cycles": _number("waves of the cosine, or falls from the peak", ends="(]"),
    "power": _number("exponent of the decay; 1 is linear", ends="(]"),
    "timescale": _number("steps in which the square of the rate halves", ends="(]"),
    "lr_end": _number("the last rate, below the peak"),
    "lr_end1": _number("rate at the end of the cool-down, up to the peak"),
    "lr_end2": _number("the last rate, up to the peak"),
    "warmup_lr_init": _number("rate at the start of the warm-up, up to the peak"),
    "min_lr": _number("the lowest rate"),
    "min_lr_rate": _number("the lowest rate as a share of the peak", high=1.0),
    "min_lr_ratio": _number("the lowest rate as a share of the peak", high=1.0),
    "warmup_lr_rate": _number("rate at the start of the warm-up as a share of the peak", high=1.0),
    "warmup_type": _choice("curve of the warm-up", *FALLS),
    "decay_type": _choice("curve of the decay", *FALLS),
    "last_epoch": _steps("the last step that was taken; -1 for none", least=-1),
    "mode": _choice("the better direction of the metric", "min", "max"),
    "factor": _number("factor of a reduction", high=1.0, ends="()"),
    "patience": _steps("steps without a change that are tolerated"),
    "threshold": _number("the smallest improvement of the metric that counts"),
    "threshold_mode": _choice("unit of `threshold`: a share of the best metric, or the metric's", "rel", "abs"),
    "cooldown": _steps("steps after a reduction that do not count"),
    "warmup": _steps("steps after an increase that do not count"),
    "max_lr": _number("the highest rate", ends="(]"),
    "eps": _number("smaller changes of the rate are not made"),
    "verbose": Option(REQUIRED, "print every change", check=lambda value, name: bool(value), kind="a bool"),
    "smooth": Option(REQUIRED, "judge the mean of the last metrics", check=checked_bool, kind="a bool"),
    "window_size": _steps("metrics in the mean", least=1),
    "reset_start": _steps("reductions due at the lowest rate before a restart", least=1),
}


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a schedule's function or class; names and defaults are those of its signature."""
    _, *parameters = inspect.signature(function).parameters.items()
    return {
        name: dataclasses.replace(OPTIONS[name], default=taken.default, optional=taken.default is None)
        for name, taken in parameters
    }


def checked(name: str, value: Any) -> Any:
    """Return the value of an argument as it is kept, such as a float of an int; raise if it is out of range."""
    return OPTIONS[name].checked(value, name)


def checked_share(name: str, value: Any, peak: float) -> float:
    """Return a rate from 0 to the peak as a share of the peak."""
    return checked_number(value, name, 0.0, peak) / peak
