"""What a file says of the optimizer it is from, and how that differs from another."""

import dataclasses
import inspect
import platform

import numpy as np
import paddle
import safetensors
from paddle.optimizer.lr import LRScheduler

from ..hooks import layerwise_lr_decay, parameters_of
from ..version import __version__
from .values import pack

__all__ = ["describe", "differences", "option_names"]

# what `changed` may name beside the optimizer's own options
_NOT_OPTIONS = ("apply_decay_param_fun", "grad_clip", "layerwise_decay", "learning_rate", "schedule")


def describe(optimizer, names):
    """Return, as JSON can hold it, what an optimizer was built with and for.

    Args:
        optimizer (Optimizer): one of ours.
        names (dict[str, str]): ``param.name`` -> the name in the file.
    """
    options: list = []
    parameters = {}
    for param in parameters_of(optimizer):
        own = {name: _plain(value) for name, value in optimizer.options_of(param).items()}
        if own not in options:
            options.append(own)
        parameters[names[param.name]] = {
            "shape": list(param.shape),
            "dtype": str(param.dtype).rpartition(".")[2],
            "options": options.index(own),
            "decayed": bool(optimizer.is_decayed(param)),
            "ratio": _ratio(optimizer, param),
            "multiplier": _plain((getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)),
            **_layer(optimizer, param),
        }
    schedule = optimizer._learning_rate if isinstance(optimizer._learning_rate, LRScheduler) else None
    lambs = getattr(optimizer, "_schedule", None)  # Lamb's, whose rate of now is no argument
    rate = _plain(lambs if lambs is not None else None if schedule is not None else optimizer._learning_rate)
    return {
        "optimizer": type(optimizer).__name__,
        "arguments": {name: _plain(value) for name, value in optimizer.fixed_options().items()},
        "options": options,
        "learning_rate": rate,
        "schedule": None if schedule is None else _schedule(schedule),
        "grad_clip": _clip(optimizer._grad_clip),
        "layerwise": _rule(optimizer),
        "parameters": parameters,
        "packages": {
            "paddle_ldopt": __version__,
            "paddle": paddle.__version__,
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
            "python": platform.python_version(),
        },
    }


def _plain(value):
    try:
        return pack(value, "an option")
    except ValueError:
        return {"class": type(value).__name__}


def _ratio(optimizer, param):
    return _plain(optimizer.layerwise_ratio(param))


def _layer(optimizer, param):
    layers = getattr(optimizer._ratio_of, "layers", None)
    return {} if layers is None else {"layer": list(dataclasses.astuple(layers.layer_of(param.name)))}


def _rule(optimizer):
    """Return the rule of the ratios, and whether they stay what they are: those of other people's hooks may not."""
    rule, ratio_of = optimizer.layerwise_decay, optimizer._ratio_of
    documented = optimizer.set_param_lr_fun is layerwise_lr_decay
    constant = ratio_of is None or getattr(ratio_of, "is_constant", False) or documented
    plain = dataclasses.asdict(rule) if _is_record(rule) else {"layerwise_decay": _plain(rule)}
    return {**plain, "n_layers": _plain(optimizer.n_layers), "constant": constant}


def _schedule(schedule):
    """Return the class of a schedule and the arguments that it keeps: unlike its state they stay what they are."""
    names = [*inspect.signature(type(schedule)).parameters, "base_lr"]
    kept = {name: vars(schedule)[name] for name in names if name in vars(schedule)}
    arguments = {name: _argument(value) for name, value in kept.items() if name not in ("last_epoch", "verbose")}
    return {"class": type(schedule).__name__, **arguments}


def _argument(value):
    if isinstance(value, LRScheduler):  # of `LinearWarmup`
        return _schedule(value)
    if _is_record(value):  # the rule of a `RuleSchedule`
        return {"class": type(value).__name__, **{name: _plain(v) for name, v in dataclasses.asdict(value).items()}}
    return _plain(value)


def _is_record(value):
    """Say whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _clip(clip):
    clip = getattr(clip, "_clip", clip)  # inside that of `fleet`
    if clip is None:
        return None
    numbers = {k: v for k, v in vars(clip).items() if isinstance(v, (int, float)) and not k.startswith("_")}
    return {"class": type(clip).__name__, **numbers}


def option_names(record):
    """Return all that `changed` of `load_optimizer` may name, given the record of the optimizer that loads."""
    return {*_NOT_OPTIONS, *record["arguments"], *(name for options in record["options"] for name in options)}


def differences(there, here):
    """Return {name of an option: (name of the value, value in the file, value here, where)}: the first of each name.

    Args:
        there (dict): the record of a file, of the same parameters.
        here (dict): that of the optimizer that is to load it.
    """
    found: dict = {}

    def compare(name, was, now, where, shown=None):
        if was != now:
            found.setdefault(name, (shown or name, was, now, where))

    for name, now in here["arguments"].items():
        compare(name, there["arguments"].get(name), now, "the optimizer")
    for name in ("learning_rate", "schedule", "grad_clip"):
        compare(name, there[name], here[name], "the optimizer")
    both_constant = there["layerwise"]["constant"] and here["layerwise"]["constant"]
    for param, now in here["parameters"].items():
        was, where = there["parameters"][param], f"'{param}'"
        compare("apply_decay_param_fun", was["decayed"], now["decayed"], where, "decayed")
        compare("layerwise_decay", was["multiplier"], now["multiplier"], where, "multiplier")
        if both_constant:
            compare("layerwise_decay", was["ratio"], now["ratio"], where, "ratio")
        options = there["options"][was["options"]]
        for name, value in here["options"][now["options"]].items():
            compare(name, options.get(name), value, where)
    return found
