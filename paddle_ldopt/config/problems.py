"""Checks of settings: first each value by its declaration, then all together, by building an optimizer."""

import functools
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional

import paddle

from .._checks import checked_number, checked_steps, refused
from .._messages import problem, refusal, shown, unknown
from ..build import OPTIMIZERS, build_optimizer
from ..layers.rules import checked_rules
from ..schedules import get_scheduler
from ..schedules.factory import kwargs_problems
from ..schedules.kinds import SCHEDULES
from .decay_settings import decay_from, decay_problems
from .schedule import build_schedule

MANY_STEPS = 10**9  # stands for a number of steps that is not known yet


def option_problems(
    optim: str, options: dict[str, Any], max_grad_norm: float, learning_rate: Optional[float] = 1e-3
) -> Iterator[str]:
    """Yield the problems of `optim_kwargs`; `learning_rate` is None for an optimizer that sets its own rate.

    The constructor of an optimizer checks its options together, so one is built for a single parameter.
    """
    declared, setting = OPTIMIZERS[optim].settings, OPTIMIZERS[optim].setting
    for key in [key for key in options if setting(key) not in declared]:
        yield f"`optim_kwargs`: {unknown(f'option of {shown(optim)}', key, options[key], declared)}"
    valid = {name: value for name, value in options.items() if setting(name) in declared}
    problems = list(refused({name: (declared[setting(name)].checked, value) for name, value in valid.items()}))
    if not problems:
        rate = {} if learning_rate is None else {"learning_rate": get_scheduler("constant", learning_rate)}
        with paddle.utils.unique_name.guard():
            zero = paddle.nn.initializer.Constant(0.0)
            one = [paddle.create_parameter([1], "float32", default_initializer=zero)]
        trial = functools.partial(build_optimizer, optim, None, parameters=one, max_grad_norm=max_grad_norm)
        problems = [f"{reason}, max_grad_norm={max_grad_norm}" for reason in _tried(lambda: trial(**rate, **valid))]
    yield from (f"`optim_kwargs`: {reason}" for reason in problems)


def config_problems(config: Any, defaults: dict[str, Any]) -> Iterator[str]:
    """Yield the problems of all settings of a `LdoptConfig`, or of an object with the same attributes."""
    absent = [name for name in ("learning_rate", "layerwise_rules") if getattr(config, name) is None]
    checks = {name: (check, getattr(config, name)) for name, check in _CHECKS.items() if name not in absent}
    unreadable, layerwise = list(refused(checks)), list(decay_problems(config))
    yield from [*unreadable, *layerwise]
    yield from _optimizer_problems(config, bool(unreadable))
    kind = config.lr_scheduler_type
    known = isinstance(kind, str) and kind in SCHEDULES
    if not known:
        yield unknown("schedule", kind, None, SCHEDULES, f"lr_scheduler_type={shown(kind)}")
    elif not unreadable:
        yield from _schedule_problems(config, defaults)
    has_steps = config.learning_rate is not None and not (known and SCHEDULES[kind].on_metric)
    if not layerwise and not has_steps and decay_from(vars(config)).moves:
        message = "A decay with `layerwise_end` moves with the steps of a schedule: it needs a `learning_rate` and"
        received = {name: getattr(config, name) for name in ("learning_rate", "lr_scheduler_type", "layerwise_end")}
        yield problem(f"{message} an `lr_scheduler_type` that does not follow a metric.", **received)


def schedule_problems(settings: Any, steps: int) -> Iterator[str]:
    """Yield the reasons why no schedule of this kind and these options can be built for this many steps."""
    kind, kwargs = settings.lr_scheduler_type, settings.lr_scheduler_kwargs
    reasons = list(kwargs_problems(kind, kwargs)) or list(_tried(lambda: build_schedule(settings, steps)))
    where = "`lr_scheduler_kwargs`" if kwargs else f"`lr_scheduler_type` {shown(kind)} without `lr_scheduler_kwargs`"
    yield from (f"{where}: {reason}" for reason in reasons)


def _tried(build: Callable[[], Any]) -> Iterator[str]:
    """Yield the message of the error that a trial raises; ignore its warnings, because the real build repeats them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build()
    except (AssertionError, TypeError, ValueError) as error:  # Paddle's own optimizers assert
        yield str(error) or repr(error)


def _checked_names(value: Any, field: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise refusal(TypeError, f"`{field}` must be a dict.", **{field: value})


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "learning_rate": functools.partial(checked_number, expected="a number or None"),
    "weight_decay": checked_number,
    "max_grad_norm": checked_number,
    "warmup_ratio": functools.partial(checked_number, high=1.0),
    "warmup_steps": checked_steps,
    "optim_kwargs": _checked_names,
    "lr_scheduler_kwargs": _checked_names,
    "layerwise_rules": checked_rules,
}


def _optimizer_problems(config: Any, unreadable: bool) -> Iterator[str]:
    optim, options = config.optim, config.optim_kwargs
    if not isinstance(optim, str) or optim not in OPTIMIZERS:
        yield unknown("optimizer", optim, None, OPTIMIZERS, f"optim={shown(optim)}")
    elif not isinstance(options, dict):
        return
    elif _sets_its_rate(config) != (config.learning_rate is None):
        message = (
            "`learning_rate` must be None with `relative_step`, which sets the rate, and must be given without it."
        )
        yield problem(message, optim=optim, learning_rate=config.learning_rate, optim_kwargs=options)
    else:
        rate = None if config.learning_rate is None else 1e-3
        yield from option_problems(optim, options, 0.0 if unreadable else config.max_grad_norm, rate)


def _sets_its_rate(config: Any) -> bool:
    """Return whether the optimizer sets its own rate. A given rate overrides a default of `relative_step`."""
    declared = OPTIMIZERS[config.optim].settings.get("relative_step")
    usual = declared is not None and declared.default and config.learning_rate is None
    return config.optim_kwargs.get("relative_step", usual) is True


def _schedule_problems(config: Any, defaults: dict[str, Any]) -> Iterator[str]:
    if config.learning_rate is None:
        names = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
        given = {name: getattr(config, name) for name in names if getattr(config, name) != defaults[name]}
        if given:
            yield problem("A schedule has no effect while `learning_rate` is None: the optimizer sets it.", **given)
        return
    warmup = {"warmup_steps": config.warmup_steps, "warmup_ratio": config.warmup_ratio}
    if all(warmup.values()):
        yield problem("`warmup_steps` and `warmup_ratio` exclude each other.", **warmup)
    yield from SCHEDULES[config.lr_scheduler_type].idle_warmup(**warmup)
    yield from schedule_problems(config, MANY_STEPS)
