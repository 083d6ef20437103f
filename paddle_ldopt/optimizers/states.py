"""The states of an optimizer: shapes, names in checkpoints, and checks of a state to load."""

import re
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle import Tensor, _C_ops
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from .._checks import checked_number, checked_state, refusal, shown, wrong_type
from .._compat import count_writes_for_ever, dtype_name, parameters_of, write_of

# One number per element of the parameter, per row, per column (of the last two axes), or a single number.
ELEMENT, ROW, COLUMN, SCALAR = "element", "row", "column", "scalar"

# The step counter of each parameter (in AdamWDL Adam's power). PaddleFormers' flex format finds an optimizer's state by
# this name, or silently resumes with wrong state.
STEP = "beta1_pow_acc"

GLOBAL_STEP = "global_step"  # the optimizer's steps, for a schedule: a parameter may lack gradients

USED_LR = "used_lr"  # for `Adafactor.used_lr` and `AdafactorSchedule`

POWERS = (STEP, "beta2_pow_acc")  # every optimizer has one of them or both
COUNTERS = (*POWERS, GLOBAL_STEP)  # neither negative nor NaN

HALF = {paddle.float16, paddle.bfloat16}  # a set: comparing dtypes is slow
Values = dict[str, Any]  # by name, of states or of options

_INFIX = "_fp32_master_0_"  # at which PaddleNLP's unified checkpoints split state names
_COPY = re.compile(r"(_deepcopy_\d+)+$")  # Paddle renames a Tensor that is copied
_COUNTS = re.compile(r"(?<=_fp32_master_)\d+|\d+$")


class State(NamedTuple):
    """One state of a parameter: a number per element, row, column or parameter, and its type."""

    per: str  # ELEMENT, ROW, COLUMN or SCALAR
    dtype: Optional[str] = None  # None: float32 (float64 for float64 parameters)


def rule_shape(per: str, shape: Any) -> list[int]:
    """Return the shape that a rule sees: rows are [..., R, 1], columns [..., 1, C]."""
    shape = list(shape)
    return {ELEMENT: shape, ROW: [*shape[:-1], 1], COLUMN: [*shape[:-2], 1, *shape[-1:]], SCALAR: []}[per]


def compute_dtype(param: Tensor) -> Any:
    return paddle.float64 if dtype_name(param.dtype).lower() == "float64" else paddle.float32


def largest(counts: list[Any]) -> float:
    alike: dict[Any, list[Any]] = {}
    for count in counts:
        if isinstance(count, np.ndarray):
            count = paddle.to_tensor(count)
        if isinstance(count, Tensor) and 0 not in count.shape:
            alike.setdefault((count.dtype, tuple(count.shape)), []).append(count)
    return max([float(paddle.stack(group).max()) for group in alike.values()], default=0.0)


class StepFunction:
    """A number that depends on the optimizer's steps: element i of a sequence, or a function of i."""

    def __init__(self, source: Any, argument: str) -> None:
        self.source, self.argument = source, argument

    def __call__(self, step: int) -> float:
        if not paddle.in_dynamic_mode():
            wrong = f"`{self.argument}` advances with the optimizer's steps, which a static graph does not count."
            advice = "Give a number, or as the rate a scheduler that you step, such as LambdaDecay(1.0, function)."
            raise refusal(ValueError, f"{wrong} {advice}", **{self.argument: self})
        if callable(self.source):
            return checked_number(self.source(step), f"{self.argument}({step})")
        if step >= len(self.source):
            over = f"has run out: it has {len(self.source)} values, and this is step {step + 1}"
            advice = "Give a value for every step, or a callable of the step."
            wrong = f"The schedule given as `{self.argument}` {over}. {advice}"
            raise refusal(ValueError, wrong, **{self.argument: self})
        return float(self.source[step])

    def reported(self, step: float) -> float:
        """Return a sequence's last value after its end."""
        return self(int(step) if callable(self.source) else min(int(step), len(self.source) - 1))

    def __repr__(self) -> str:
        return repr(self.source) if callable(self.source) else f"[{', '.join(f'{v:g}' for v in self.source[:3])}, ...]"


def rounded(values: Any, dtype: Any) -> Any:
    """Cast to fewer bits, to the nearest number; on a CPU, Paddle 3.1 truncates float16."""
    low = values.astype(dtype)
    if paddle.__version__.startswith("3.1.") and dtype == paddle.float16 and values.place.is_cpu_place():
        rest = values - low.astype(values.dtype)
        low = (values + _C_ops.where(rest.isfinite(), rest, paddle.zeros_like(rest))).astype(dtype)
    return low


def refresh_masters(optimizer: Any, params: list[Tensor]) -> None:
    """Update the masters of parameters that were written since the last step."""
    if not hasattr(optimizer, "writes") or not optimizer._master_weights:
        return
    count_writes_for_ever()  # a parameter may be written between any two steps
    for param in params:
        master = optimizer._master_weights.get(param.name)
        write = write_of(param), write_of(optimizer.finder.params.get(param.name, param))  # it may be a slice
        if master is None or optimizer.writes.get(param.name) == write or not optimizer.has_master(param):
            continue
        optimizer.writes[param.name] = write
        with paddle.no_grad():  # a save is outside of the step
            fits = rounded(master, param.dtype) == param
            _C_ops.assign_out_(_C_ops.where(fits, master, param.astype(master.dtype)), master)


def unfit_masters(optimizer: Any, masters: dict[str, Any]) -> list[str]:
    """Return the parameters that differ from their rounded masters (dtype, array)."""
    params = parameters_of(optimizer) if hasattr(optimizer, "has_master") else []
    given = [(param, masters[param.name]) for param in params if optimizer.has_master(param)]
    present = [(param, master[1]) for param, master in given if master and list(master[1].shape) == list(param.shape)]
    return [p.name for p, master in present if bool((rounded(paddle.to_tensor(master), p.dtype) != p).any())]


def rename_state(optimizer: Any, other: Any) -> None:
    """Rename a copied optimizer's state: Paddle's names of copied parameters find none."""
    pairs = zip(parameters_of(optimizer), parameters_of(other))
    names = {mine.name: its.name for mine, its in pairs}

    def renamed(values: dict[str, Tensor], copies: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, value in values.items():
            copies[name].name = names.setdefault(name, name) + value.name[len(name) :]
        return {names[name]: copied for name, copied in copies.items()}

    other._master_weights = renamed(optimizer._master_weights, other._master_weights)
    masters = zip(optimizer._master_weights.values(), other._master_weights.values())
    names.update({mine.name: its.name for mine, its in masters})
    for key, values in optimizer._accumulators.items():
        other._accumulators[key] = renamed(values, other._accumulators[key])
    other._groups = {names.get(name, name): group for name, group in other._groups.items()}
    other._already_create_accumulator = {names.get(name, name) for name in optimizer._already_create_accumulator}
    for key in list(other._accumulators_holder):  # loaded, for parameters that have taken no step
        owner = max((name for name in names if key.startswith(f"{name}_")), key=len, default=None)
        if owner is not None:
            other._accumulators_holder[names[owner] + key[len(owner) :]] = other._accumulators_holder.pop(key)


# ---- names in checkpoints


def unified_name(key: str, names: set[str]) -> str:
    """Return the key in PaddleNLP's unified checkpoints."""
    if _INFIX in key:
        return key
    endings = [f"_{name}_0" for name in names if key.endswith(f"_{name}_0")]
    ending = max(endings, key=len, default=None)  # one state's name may end another's
    return key if ending is None else key[: -len(ending)] + _INFIX + ending[1:]


def master_name(param_name: str, master: Any) -> str:
    """Return the name that a master's states begin with: a clone has another, a deep copy an ending."""
    name = _COPY.sub("", getattr(master, "name", ""))
    return name if name.startswith(f"{param_name}_fp32_master_") else f"{param_name}_fp32_master_0"


def plain(state_dict: Any) -> dict[str, Any]:
    """Return a state under Paddle's names, with numbers of shape [1]."""
    weights = checked_state(state_dict).get("master_weights")  # other types are refused later
    names = {master_name(*item) for item in weights.items()} if isinstance(weights, dict) else ()
    plain_state = {}
    for key, value in state_dict.items():
        owner, infix, rest = str(key).partition(_INFIX)
        of_parameter = infix and not any(name.startswith(f"{owner}_fp32_master_") for name in names)
        if isinstance(value, Tensor) and not value.shape:
            value = value.reshape([1])
        plain_state[f"{owner}_{rest}" if of_parameter else key] = value
    return plain_state


# ---- a state to load


def loadable(optimizer: Any, state_dict: Any) -> dict[str, Any]:
    """Rename a state as Paddle expects; raise if Paddle would fail halfway."""
    _check_form(optimizer, state_dict)
    if not paddle.in_dynamic_mode():
        return state_dict
    params = parameters_of(optimizer)
    masters, prefix, waiting = state_dict.get("master_weights", {}), optimizer.state_key(""), []
    for param in params:
        if param.name not in optimizer._already_create_accumulator:
            master = masters.get(param.name) if optimizer.has_master(param) else param
            owner = param.name if master is param else master_name(param.name, master)
            layout = optimizer.state_layout(param).items()
            # a slice of fleet's sharding has no shape before the first step
            has_shape = param._is_initialized() or optimizer.finder.params.get(param.name, param) is param
            types = {name: (dtype, shape if has_shape else None) for name, (dtype, shape) in layout}
            waiting.append((param, master, {f"{owner}_{prefix}{name}_0": (name, form) for name, form in types.items()}))
    live = {
        value.name: (name[len(prefix) :], (value.dtype, value.shape))
        for name, values in optimizer._accumulators.items()
        for value in values.values()
    }
    forms = {**live, **{key: form for _, _, layout in waiting for key, form in layout.items()}}
    state_dict = _under_names(forms.keys(), state_dict)
    # `paddle.Model` repeats entries under keys with such beginnings
    added = tuple(f"{param.name}_{prefix}_" for param in params)
    state_dict = {key: value for key, value in state_dict.items() if key in forms or not key.startswith(added)}
    for key, (name, form) in forms.items():
        if key in state_dict:
            if not isinstance(state_dict[key], (Tensor, np.ndarray)):
                raise refusal(TypeError, "`state_dict` must hold Tensors.", f"{shown(state_dict[key])} as '{key}'")
            check_value(f"'{key}' of `state_dict`", name, state_dict[key], form)
        elif key in live:
            raise refusal(ValueError, "`state_dict` lacks a state of the optimizer.", f"no '{key}'")
    _check_owners(optimizer, params, state_dict, waiting, set(live))
    lacking = [name for name in optimizer._master_weights if "master_weights" in state_dict and name not in masters]
    if lacking:
        raise refusal(ValueError, "`state_dict` lacks a master weight of the optimizer.", f"no '{lacking[0]}'")
    for key, master in masters.items():
        if not isinstance(master, Tensor):
            raise refusal(TypeError, "`master_weights` must be Tensors.", f"{shown(master)} as '{key}'")
    if masters:  # Paddle would go on with the caller's own Tensors
        copies = {key: m.detach().clone() for key, m in masters.items()}
        for key, master in masters.items():
            copies[key].name, copies[key].persistable = master_name(key, master), True
        state_dict = {**state_dict, "master_weights": copies}
    return state_dict


def _check_form(optimizer: Any, state_dict: Any) -> None:
    if not isinstance(state_dict, dict) or not all(isinstance(key, str) for key in state_dict):
        raise wrong_type(state_dict, "state_dict", "a dict with names as keys")
    for key in ("master_weights", "LR_Scheduler"):
        if not isinstance(state_dict.get(key, {}), dict):
            raise refusal(TypeError, f"'{key}' of `state_dict` must be a dict.", shown(state_dict[key]))
    schedule, schedule_state = optimizer._learning_rate, state_dict.get("LR_Scheduler")
    if isinstance(schedule, LRScheduler) and (schedule_state or not isinstance(schedule, LambdaDecay)):
        schedule.state_keys()
        missing = [key for key in schedule.keys if key not in (schedule_state or {})]
        if missing and not getattr(schedule, "takes_any_state", False):
            wrong = f"`state_dict` must have the state of the optimizer's {type(schedule).__name__} as 'LR_Scheduler'."
            raise refusal(ValueError, wrong, f"a state without {missing}")


def _under_names(names: Any, state_dict: Values) -> Values:
    """Rename keys that differ only in the numbers of optimizers and masters."""
    alike: dict[str, list[str]] = {}
    for key in state_dict.keys() - names:
        alike.setdefault(_COUNTS.sub("", key), []).append(key)
    others = {name: alike.get(_COUNTS.sub("", name), []) for name in names - state_dict.keys()}
    renamed = {keys[0]: name for name, keys in others.items() if len(keys) == 1}
    return {renamed.get(key, key): value for key, value in state_dict.items()}


def _check_owners(optimizer: Any, params: list[Tensor], state_dict: Values, waiting: Any, known: set[str]) -> None:
    keys, missing = set(state_dict) - {"master_weights", "LR_Scheduler"}, []
    for param, master, layout in waiting:
        present = layout.keys() & keys
        lacking = sorted(layout.keys() - present) + [f"master_weights of {param.name}"] * (master is None)
        if present and lacking:
            wrong = "`state_dict` must have all state of a parameter or none: build the optimizer like the saved one."
            raise refusal(ValueError, wrong, f"no {lacking} beside '{min(present)}'")
        if not present and not param.stop_gradient:
            missing.append(param.name)
        known |= present
    own = tuple(f"{param.name}_" for param in params)
    surplus = sorted(k for k in keys - known if k.startswith(own) and any(f"_{power}_" in k for power in POWERS))
    if surplus:
        wrong = f"`state_dict` has states that this {type(optimizer).__name__} lacks"
        advice = "build the optimizer like the saved one."
        raise refusal(ValueError, f"{wrong}: {advice}", f"{len(surplus)} of these, such as {surplus[:2]}")
    names = tuple(f"{name}_" for name in optimizer.structured_names)  # the others are of parameters not trained here
    others = (key for key in keys - known if f"_{GLOBAL_STEP}_" not in key)  # the count of a run with schedules
    unknown = sorted(key for key in others if not (names and key.startswith(names)))
    if unknown and (missing or not keys & known):
        wrong = "`state_dict` is of other parameters: rebuild the model under `paddle.utils.unique_name.guard()`, which"
        advice = "gives its parameters the saved names, and the optimizer with the same `name`; or remove entries of"
        received = f"{len(unknown)} unknown entries such as {unknown[:2]}, and nothing for {len(missing)} trainable "
        received += f"parameters such as {missing[:2]}"
        raise refusal(ValueError, f"{wrong} {advice} parameters that no longer exist.", received)


def check_value(label: str, state: str, values: Any, expected: tuple[Any, Any], dtype: str = "") -> None:
    """Raise unless a state has the expected (dtype, shape or None), and a counter a valid number.

    `dtype` is the type of an array that stores its bits in another type.
    """
    wanted, shape = dtype_name(expected[0]), list(values.shape if expected[1] is None else expected[1])
    received = {"dtype": dtype or dtype_name(values.dtype), "shape": list(values.shape)}
    if received != {"dtype": wanted, "shape": shape}:
        wrong = f"{label} must be {wanted} of shape {shape}"
        advice = "build the same model, and the optimizer with the same options"
        raise refusal(ValueError, f"{wrong}: {advice}.", **received)
    counts = np.asarray(values if state in COUNTERS else 0.0, "float64").reshape(-1)
    if not np.all(np.isfinite(counts) & (counts >= 0.0)):
        raise refusal(ValueError, f"{label} must be a finite number of at least 0.", values=counts.tolist())
