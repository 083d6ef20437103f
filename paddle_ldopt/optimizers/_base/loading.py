"""Checks a state before Paddle's `set_state_dict`, which would stop halfway through a bad one."""

from typing import Any

import numpy as np
import paddle
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from ..._messages import shown, wrong_type
from ..._paddle import accumulators, lr_or_scheduler, parameters_of, prefixed, with_state
from ..states import POWERS, check_value


def loadable(optimizer: Any, state_dict: Any) -> dict[str, Any]:
    """Return a state under the names that Paddle's `set_state_dict` expects; raise if Paddle could not load it."""
    if not isinstance(state_dict, dict) or not all(isinstance(key, str) for key in state_dict):
        raise wrong_type(state_dict, "state_dict", "a dict with names as keys")
    for key in ("master_weights", "LR_Scheduler"):
        if not isinstance(state_dict.get(key, {}), dict):
            raise TypeError(f"'{key}' of `state_dict` must be a dict. Received: {shown(state_dict[key])}")
    _check_schedule(lr_or_scheduler(optimizer), state_dict.get("LR_Scheduler"))
    if not paddle.in_dynamic_mode():
        return state_dict
    masters, prefix, waiting = state_dict.get("master_weights", {}), prefixed(optimizer), []
    for param in parameters_of(optimizer):
        if param.name not in with_state(optimizer):
            master = masters.get(param.name) if optimizer.has_master(param) else param
            owner = getattr(master, "name", f"{param.name}_fp32_master_0")
            layout = optimizer.state_layout(param).items()
            waiting.append((param, master, {f"{owner}_{prefix}{name}_0": (name, form) for name, form in layout}))
    live = {
        value.name: (name[len(prefix) :], (value.dtype, value.shape))
        for name, values in accumulators(optimizer).items()
        for value in values.values()
    }
    expected = {*live, *(key for _, _, layout in waiting for key in layout)}
    # `paddle.Model` repeats entries under keys with such beginnings
    added = tuple(f"{param.name}_{prefix}_" for param in parameters_of(optimizer))
    renumbered = _renumbered(state_dict, expected)
    state_dict = {key: value for key, value in renumbered.items() if key in expected or not key.startswith(added)}
    for key, (name, form) in live.items():
        if key not in state_dict:
            raise ValueError(f"`state_dict` lacks a state of the optimizer. Received: no '{key}'")
        _check_state(key, state_dict[key], name, form)
    _check_waiting(optimizer, state_dict, waiting, set(live))
    return {**state_dict, "master_weights": _copies(masters)} if masters else state_dict


def _copies(masters: dict[str, Any]) -> dict[str, Any]:
    """Return copies of master weights under their names; Paddle would go on with the caller's own Tensors."""
    copies = {key: m.detach().clone() if isinstance(m, paddle.Tensor) else m for key, m in masters.items()}
    for key, master in masters.items():
        if copies[key] is not master:
            copies[key].name, copies[key].persistable = master.name, master.persistable
    return copies


def _check_schedule(schedule: Any, schedule_state: Any) -> None:
    if isinstance(schedule, LRScheduler) and (schedule_state or not isinstance(schedule, LambdaDecay)):
        schedule.state_keys()
        missing = [key for key in schedule.keys if key not in (schedule_state or {})]
        if missing:
            wrong = f"`state_dict` must have the state of the optimizer's {type(schedule).__name__} as 'LR_Scheduler'."
            raise ValueError(f"{wrong} Received: a state without {missing}")


def _renumbered(state_dict: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a state under `names`, which may end in other numbers: Paddle numbers the optimizers of a process."""
    alike: dict[str, list[str]] = {}
    for key in state_dict.keys() - names:
        alike.setdefault(key.rstrip("0123456789"), []).append(key)
    candidates = {name: alike.get(name.rstrip("0123456789"), ()) for name in names - state_dict.keys()}
    new = {keys[0]: name for name, keys in candidates.items() if len(keys) == 1}
    return {new.get(key, key): value for key, value in state_dict.items()}


def _check_waiting(optimizer: Any, state_dict: dict[str, Any], waiting: Any, known: set[str]) -> None:
    """Raise if state for a parameter's first update is incomplete, malformed, or of other parameters."""
    keys, missing = set(state_dict) - {"master_weights", "LR_Scheduler"}, []
    for param, master, layout in waiting:
        present = layout.keys() & keys
        for key in present:
            name, form = layout[key]
            _check_state(key, state_dict[key], name, form)
        lacking = sorted(layout.keys() - present) + [f"master_weights of {param.name}"] * (master is None)
        if present and lacking:
            wrong = "`state_dict` must have all state of a parameter or none: build the optimizer like the saved one."
            raise ValueError(f"{wrong} Received: no {lacking} beside '{min(present)}'")
        if not present and not param.stop_gradient:
            missing.append(param.name)
        known |= present
    own = tuple(f"{param.name}_" for param in parameters_of(optimizer))
    surplus = sorted(k for k in keys - known if k.startswith(own) and any(f"_{power}_" in k for power in POWERS))
    if surplus:
        wrong = f"`state_dict` has states that this {type(optimizer).__name__} lacks"
        advice = "build the optimizer like the saved one."
        raise ValueError(f"{wrong}: {advice} Received: {len(surplus)} of these, such as {surplus[:2]}")
    names = tuple(f"{name}_" for name in optimizer.structured_names)  # the others are of parameters not trained here
    unknown = sorted(key for key in keys - known if not (names and key.startswith(names)))
    if unknown and (missing or not keys & known):
        raise ValueError(
            "`state_dict` is of other parameters: rebuild the model under `paddle.utils.unique_name.guard()`, which "
            "gives its parameters the saved names, and the optimizer with the same `name`; or remove the entries of "
            f"parameters that no longer exist. Received: {len(unknown)} unknown entries such as {unknown[:2]}, and "
            f"nothing for {len(missing)} trainable parameters such as {missing[:2]}"
        )


def _check_state(key: str, value: Any, name: str, form: tuple[Any, Any]) -> None:
    """Raise TypeError or ValueError unless an entry of a state is a Tensor or array that fits."""
    if not isinstance(value, (paddle.Tensor, np.ndarray)):
        raise TypeError(f"`state_dict` must hold Tensors. Received: {shown(value)} as '{key}'")
    check_value(f"'{key}' of `state_dict`", name, value, form)
