"""The record of an optimizer in a file: options, rates, parameters; and the differences between two records."""

import dataclasses
import inspect
import platform
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Optional

import numpy as np
import paddle
import safetensors
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._messages import quoted, refusal, shown
from .._paddle import dtype_name, grad_clip, inner_clip, lr_or_scheduler, parameters_of, weight_decay_coefficient
from ..layers.hook import layerwise_lr_decay
from ..version import __version__
from .json_state import to_json
from .layerwise_record import ABSENT, differences
from .state import paddles_class

Record = dict[str, Any]
# names of a schedule's classes and attributes -> their names in version 0.1, which stay in files
_IN_FILES = {"CurveSchedule": "RuleSchedule", "Constant": "Warmup", "curve": "rule"}
_PRESENT = {in_files: name for name, in_files in _IN_FILES.items()}
_WEIGHT_DECAY = ("lamb_weight_decay", "regularization_coeff", "regularization_method")  # Paddle's other names for it


def describe(optimizer: Optimizer, names: dict[str, str], params: Optional[Iterable[paddle.Tensor]] = None) -> Record:
    """Return the record of an optimizer, for JSON; `names` is ``param.name`` -> name in the file."""
    options: list[Record] = []
    parameters, layers = {}, optimizer.layers
    for param in parameters_of(optimizer) if params is None else params:
        param_options = {name: _plain(value) for name, value in optimizer.options_of(param).items()}
        at = None if layers is None else layers.layer_of(param.name)
        layer = {} if at is None else {"layer": [at.tower, at.index, at.depth]}
        parameters[names[param.name]] = {
            "shape": list(param.shape),
            "dtype": dtype_name(param.dtype),
            "options": _index(options, param_options),
            "decayed": bool(optimizer.has_weight_decay(param)),
            "ratio": _plain(optimizer.layerwise_ratio(param)),
            "multiplier": _plain((getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)),
            **layer,
        }
    rate, schedule = lr_or_scheduler(optimizer), schedule_of(optimizer)
    lambs = getattr(optimizer, "lr_function", None)  # Lamb's: its present rate is not an argument
    return {
        "optimizer": paddles_class(optimizer) or type(optimizer).__name__,
        "arguments": {name: _plain(value) for name, value in optimizer.fixed_options().items()},
        "options": options,
        "learning_rate": _plain(lambs if lambs is not None else None if schedule is not None else rate),
        "schedule": None if schedule is None else _schedule(schedule),
        "grad_clip": _clip(grad_clip(optimizer)),
        "layerwise": _layerwise(optimizer),
        "parameters": parameters,
        "packages": {
            "paddle_ldopt": __version__,
            **{module.__name__: module.__version__ for module in (paddle, np, safetensors)},
            "python": platform.python_version(),
        },
    }


def schedule_of(optimizer: Optimizer) -> Optional[LRScheduler]:
    """Return the schedule of an optimizer, or None."""
    rate = lr_or_scheduler(optimizer)
    return rate if isinstance(rate, LRScheduler) else None


def _index(options: list[Record], param_options: Record) -> int:
    """Return the index of `param_options` in `options`; append it if missing."""
    if param_options not in options:
        options.append(param_options)
    return options.index(param_options)


def _plain(value: object) -> Any:
    if isinstance(value, paddle.nn.clip.ClipGradBase):
        return _clip(value)
    try:
        return to_json(value, "an option")
    except ValueError:
        coefficient = weight_decay_coefficient(value)  # of Paddle's L1Decay and L2Decay
        return {"class": type(value).__name__, **({} if coefficient is None else {"coeff": coefficient})}


def _layerwise(optimizer: Optimizer) -> Record:
    """Return the decay, and whether the ratios are constant; a user's hook may change them."""
    decay = optimizer.layerwise_decay
    constant = optimizer.hook is None or optimizer.set_param_lr_fun is layerwise_lr_decay
    plain = dataclasses.asdict(decay) if _is_dataclass(decay) else {"layerwise_decay": _plain(decay)}
    return {**plain, "n_layers": _plain(optimizer.n_layers), "constant": constant}


def _schedule(schedule: LRScheduler) -> Record:
    """Return the class of a schedule and the arguments that it keeps; unlike its state, they never change."""
    names = [*inspect.signature(type(schedule)).parameters, "base_lr"]
    kept = [name for name in names if name in vars(schedule) and name not in ("last_epoch", "verbose")]
    arguments = {_IN_FILES.get(name, name): _argument(vars(schedule)[name]) for name in kept}
    return {"class": class_in_files(schedule), **arguments}


def class_in_files(value: object) -> str:
    """Return the name of a class in files."""
    name = type(value).__name__
    return _IN_FILES.get(name, name)


def _with_present_names(value: Any) -> Any:
    """Return a schedule in a record with the present names of its classes and attributes, for messages."""
    if isinstance(value, dict):
        return {_PRESENT.get(key, key): _with_present_names(item) for key, item in value.items()}
    return _PRESENT.get(value, value) if isinstance(value, str) else value


def _argument(value: Any) -> Any:
    if isinstance(value, LRScheduler):  # inside `LinearWarmup`
        return _schedule(value)
    if _is_dataclass(value):  # the curve of a `CurveSchedule`
        return {"class": class_in_files(value), **{name: _plain(v) for name, v in dataclasses.asdict(value).items()}}
    return _plain(value)


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _clip(clip: Optional[paddle.nn.clip.ClipGradBase]) -> Optional[Record]:
    clip = inner_clip(clip)
    if clip is None:
        return None
    numbers = {k: v for k, v in vars(clip).items() if isinstance(v, (int, float)) and not k.startswith("_")}
    return {"class": type(clip).__name__, **numbers}


def merged(records: Sequence[Record]) -> Record:
    """Return the record of all parameters, from the records of all processes."""
    options: list[Record] = []
    parameters = {}
    for record in records:
        for name, entry in record["parameters"].items():
            parameters[name] = {**entry, "options": _index(options, record["options"][entry["options"]])}
    return {**records[0], "options": options, "parameters": parameters}


def check_class(saved: str, present: str) -> None:
    """Raise ValueError unless both names of optimizer classes are equal."""
    if saved != present:
        problem = f"The saved state is of {saved}: resume with the same class."
        raise ValueError(f"{problem} Received: optimizer of type {present}")


def check_model(saved: Record, present: Record) -> None:
    """Raise ValueError if a file's record is of another optimizer class or another model."""
    check_class(saved["optimizer"], present["optimizer"])
    saved, present = saved["parameters"], present["parameters"]
    missing, unexpected = sorted(set(present) - set(saved)), sorted(set(saved) - set(present))
    if missing or unexpected:
        gaps = [f"{verb} {quoted(names)}" for verb, names in (("lacks", missing), ("also has", unexpected)) if names]
        problem = f"The saved state is of another model: it {' and '.join(gaps)}."
        raise ValueError(f"{problem} Received: {len(present)} parameters, not {len(saved)}")
    for name, now in present.items():
        was = saved[name]
        if (was["shape"], was["dtype"]) != (now["shape"], now["dtype"]):
            problem = f"The saved '{name}' has another type or shape: build the same model."
            raise ValueError(f"{problem} Received: {now['dtype']} {now['shape']}, not {was['dtype']} {was['shape']}")


def check_options(saved: Record, present: Record, changed: Collection[str]) -> None:
    """Raise ValueError if the options in a file's record differ from the present ones, except those in `changed`."""
    constant = saved["layerwise"]["constant"] and present["layerwise"]["constant"]
    ours = _settings(present, constant)
    unknown = sorted(set(changed) - set(ours))
    if unknown:
        raise refusal(ValueError, f"`changed` may name {', '.join(sorted(ours))}.", changed=unknown)
    differing = differences(_settings(saved, constant), ours)
    first = {name: next(iter(places.items())) for name, places in differing.items() if name not in changed}
    if first:
        changes = [_change(value, where, was, now) for (value, where), (was, now) in first.values()]
        problem = f"The saved optimizer has other options. If this is intended, give changed={sorted(first)}."
        raise ValueError(f"{problem} Received: {', '.join(changes)}")


def _settings(record: Record, constant: bool) -> Record:
    """Return name for `changed` -> (name of the value, where) -> value."""
    whole = {**record["arguments"], **{name: record[name] for name in ("learning_rate", "grad_clip")}}
    whole["schedule"] = _with_present_names(record["schedule"])
    out: Record = {name: {(name, "the optimizer"): value} for name, value in whole.items()}
    if "moves_over" in record["layerwise"]:
        out["layerwise_decay"] = {("steps of the decay", "the optimizer"): record["layerwise"]["moves_over"]}
    for param, entry in record["parameters"].items():
        for name, value in record["options"][entry["options"]].items():
            out.setdefault("weight_decay" if name in _WEIGHT_DECAY else name, {})[name, f"'{param}'"] = value
        out.setdefault("apply_decay_param_fun", {})["decayed", f"'{param}'"] = entry["decayed"]
        out["learning_rate"]["learning_rate of the group or ParamAttr", f"'{param}'"] = entry["multiplier"]
        ratio = "ratio" if constant else "ratio of a hook"
        out.setdefault("layerwise_decay", {})[ratio, f"'{param}'"] = entry["ratio"]
    return out


def _change(value: str, where: str, was: Any, now: Any) -> str:
    """Describe how a value differs; for two dicts, such as schedules, only the differing entries."""
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = (was, now), (now, was)
        was, now = ({k: v for k, v in one.items() if other.get(k, ABSENT) != v} for one, other in pairs)
    return f"{value}={shown(now)} (in the file {shown(was)}) of {where}"
