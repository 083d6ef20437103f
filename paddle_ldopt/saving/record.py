"""What a file says of the optimizer it is from, and how that differs from another: for all that is saved here."""

import dataclasses
import inspect
import platform

import numpy as np
import paddle
import safetensors
from paddle.optimizer.lr import LRScheduler

from .._checks import shown
from .._paddle import parameters_of
from ..layers.paddlenlp_hook import layerwise_lr_decay
from ..version import __version__
from .values import pack

__all__ = ["ABSENT", "check_same", "describe", "differences", "merged", "some"]

ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()  # the value of a setting that one side lacks
_SHOWN = 3

# what `changed` may name beside the optimizer's own options
_NOT_OPTIONS = ("apply_decay_param_fun", "grad_clip", "layerwise_decay", "learning_rate", "schedule")


def describe(optimizer, names, params=None):
    """Return, as JSON can hold it, what an optimizer was built with and for.

    Args:
        optimizer (Optimizer): one of ours.
        names (dict[str, str]): ``param.name`` -> the name in the file.
        params (list[Tensor], optional): the parameters to describe, instead of those that a wrapper has left it.
    """
    options: list = []
    parameters = {}
    for param in parameters_of(optimizer) if params is None else params:
        own = {name: _plain(value) for name, value in optimizer.options_of(param).items()}
        if own not in options:
            options.append(own)
        parameters[names[param.name]] = {
            "shape": list(param.shape),
            "dtype": str(param.dtype).rpartition(".")[2],
            "options": options.index(own),
            "decayed": bool(optimizer.is_decayed(param)),
            "ratio": _plain(optimizer.layerwise_ratio(param)),
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


def _layer(optimizer, param):
    layers = getattr(optimizer._ratio_of, "layers", None)
    return {} if layers is None else {"layer": list(dataclasses.astuple(layers.layer_of(param.name)))}


def _rule(optimizer):
    """Return the rule of the ratios, and whether they stay constant: those of other people's hooks may not."""
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


def merged(records):
    """Return the record of all parameters, from those of the processes that have some each."""
    options: list = []
    parameters = {}
    for record in records:
        for name, entry in record["parameters"].items():
            own = record["options"][entry["options"]]
            if own not in options:
                options.append(own)
            parameters[name] = {**entry, "options": options.index(own)}
    return {**records[0], "options": options, "parameters": parameters}


def differences(there, here):
    """Return {setting: {where: (value there, value here)}} of all that differs.

    Args:
        there (dict[str, dict[str, object]]): setting -> where it holds -> value, as it was saved.
        here (dict[str, dict[str, object]]): the same of now; settings that are not in it are not compared.
    """
    found: dict = {}
    for setting, now in here.items():
        was = there.get(setting, {})
        for where in {**was, **now}:
            pair = was.get(where, ABSENT), now.get(where, ABSENT)
            if pair[0] != pair[1]:
                found.setdefault(setting, {})[where] = pair
    return found


def check_same(there, here, changed=()):
    """Raise ValueError if a record is of another class, other parameters or other options than the optimizer here.

    Args:
        there (dict): the record of a file.
        here (dict): that of the optimizer that is to load it.
        changed (set[str]): options that may differ.
    """
    if there["optimizer"] != here["optimizer"]:
        raise ValueError(
            f"The saved state is of {there['optimizer']}: resume with the same class. "
            f"Received: optimizer of type {here['optimizer']}"
        )
    _check_parameters(there["parameters"], here["parameters"])
    constant = there["layerwise"]["constant"] and here["layerwise"]["constant"]
    ours = _settings(here, constant)
    known = {*_NOT_OPTIONS, *ours}
    if set(changed) - known:
        raise ValueError(
            f"`changed` may name {', '.join(sorted(known))}. Received: changed={sorted(set(changed) - known)}"
        )
    found = differences(_settings(there, constant), ours)
    first = {name: next(iter(places.items())) for name, places in found.items() if name not in changed}
    if first:
        said = [_said(value, where, was, now) for (value, where), (was, now) in first.values()]
        raise ValueError(
            f"The saved optimizer has other options. If that is meant, give changed={sorted(first)}. "
            f"Received: {', '.join(said)}"
        )


def _check_parameters(there, here):
    missing, unexpected = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    if missing or unexpected:
        raise ValueError(
            f"The saved state is of another model: it lacks {some(missing) or 'nothing'}, and has beside "
            f"{some(unexpected) or 'nothing'}. Received: {len(here)} parameters, not {len(there)}"
        )
    for name, now in here.items():
        was = there[name]
        if (was["shape"], was["dtype"]) != (now["shape"], now["dtype"]):
            raise ValueError(
                f"The saved '{name}' is another: build the same model. "
                f"Received: {now['dtype']} {now['shape']}, not {was['dtype']} {was['shape']}"
            )


def _settings(record, constant):
    """Return name for `changed` -> (name of the value, where it holds) -> value."""
    whole = {**record["arguments"], **{name: record[name] for name in ("learning_rate", "schedule", "grad_clip")}}
    out: dict = {name: {(name, "the optimizer"): value} for name, value in whole.items()}
    for param, entry in record["parameters"].items():
        for name, value in record["options"][entry["options"]].items():
            out.setdefault(name, {})[name, f"'{param}'"] = value
        out.setdefault("apply_decay_param_fun", {})["decayed", f"'{param}'"] = entry["decayed"]
        rates = out.setdefault("layerwise_decay", {})
        rates["multiplier", f"'{param}'"] = entry["multiplier"]
        rates["ratio" if constant else "ratio of a hook", f"'{param}'"] = entry["ratio"]
    return out


def _said(value, where, was, now):
    """Say how a value differs; of two dicts, such as schedules, the entries that do."""
    if isinstance(was, dict) and isinstance(now, dict):
        was, now = (
            {k: v for k, v in one.items() if other.get(k, ABSENT) != v} for one, other in ((was, now), (now, was))
        )
    return f"{value}={shown(now)} (in the file {shown(was)}) of {where}"


def some(names):
    """Show the first few names, for an error message."""
    return ", ".join(map(repr, names[:_SHOWN])) + f", ... {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
