"""Reads the state of a PyTorch optimizer by parameter name, from a dict, safetensors or a file of `torch.save`."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .._files import Path, checked_path
from .._messages import quoted, refusal, shown
from .safetensors_file import read_tensors
from .state import checked_name_list

TorchState = dict[str, NDArray[Any]]  # a parameter's states in the checkpoint, name -> array
Source = Union[Path, Mapping[str, Any]]
Rename = Union[Mapping[str, str], Callable[[str], Optional[str]], None]
Matched = dict[str, tuple[str, TorchState]]  # the model's name -> (PyTorch's name, state)
_Found = dict[Union[int, str], TorchState]  # by the number or name of a parameter
_Names = dict[Union[int, str], str]  # by the number of a parameter
_LEAST_TORCH = (2, 6)  # earlier, `weights_only` could run code (CVE-2025-32434)


def read_checkpoint(source: Source, names: Optional[Iterable[str]], rename: Rename, strict: bool) -> Matched:
    """Return the model's name -> (PyTorch's name, {state: array}); the arguments of `convert_torch_optimizer`."""
    states = _named(*_read(source), names)
    if rename is not None and not callable(rename) and not isinstance(rename, Mapping):
        raise refusal(TypeError, "`rename` must be a dict or callable.", rename=rename)
    unknown = sorted(set(rename) - set(states), key=str) if isinstance(rename, Mapping) else []
    if strict and unknown:
        problem = "`rename` must name parameters of the checkpoint: correct it, or give strict=False."
        raise ValueError(f"{problem} Received: {quoted(unknown)}, not in the checkpoint")
    out: Matched = {}
    for torch_name, state in states.items():
        name = rename(torch_name) if callable(rename) else (rename or {}).get(torch_name, torch_name)
        if name in out:
            problem = f"`rename` must give each parameter its own name; {shown(name)} is taken."
            raise refusal(ValueError, problem, parameter=torch_name)
        if name is not None:
            out[name] = torch_name, state
    return out


def _read(source: Source) -> tuple[_Found, Optional[_Names]]:
    """Return (parameter's number or name -> {state: array}, names by number or None)."""
    if isinstance(source, Mapping):
        return _from_dict(source)
    path = checked_path(source, "source", "a dict or a path")
    if not path.endswith(".safetensors"):
        return _from_dict(_by_torch(path))
    states: _Found = {}
    for key, (dtype, values) in read_tensors(path).items():
        owner, _, state = re.sub(r"^state\.", "", key).rpartition(".")
        if dtype == "bfloat16":
            values = (values.astype("uint32") << 16).view("float32")
        states.setdefault(int(owner) if owner.isdecimal() else owner, {})[state] = values
    return states, None


def _by_torch(path: str) -> Any:
    try:
        import torch
    except ImportError:
        os.stat(path)  # raises if the file is missing
        problem = "Only PyTorch reads this file: install it (a CPU build suffices), or convert the file to safetensors."
        raise refusal(ImportError, problem, path=path) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _LEAST_TORCH:
        raise refusal(ImportError, "PyTorch 2.6 or later is needed to read it safely.", torch=torch.__version__)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        problem = f"PyTorch's weights-only loader refuses the file: {str(error).splitlines()[0][:200]}."
        raise refusal(ValueError, problem, path=path) from None
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(checkpoint, Mapping) and "state" not in checkpoint and isinstance(checkpoint.get(key), Mapping):
            return checkpoint[key]
    return checkpoint


def _from_dict(checkpoint: Any) -> tuple[_Found, Optional[_Names]]:
    whole = isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("state"), Mapping)
    if not whole or not isinstance(checkpoint.get("param_groups"), (list, tuple)):
        has = sorted(map(str, checkpoint)) if isinstance(checkpoint, Mapping) else type(checkpoint).__name__
        raise ValueError(f"A checkpoint of PyTorch must be a dict with 'state' and 'param_groups'. Received: {has}")
    states: _Found = {}
    named: _Names = {}
    for key, state in checkpoint["state"].items():
        if not isinstance(state, Mapping) or not _are(str, list(state)):
            problem = "A parameter's state must be a dict with string keys."
            raise refusal(ValueError, problem, parameter=key, state=state)
        states[int(key) if str(key).isdecimal() else key] = {name: _array(value) for name, value in state.items()}
    for group in checkpoint["param_groups"]:
        settings: Any = group if isinstance(group, Mapping) else {}
        params, known = settings.get("params"), settings.get("param_names", ())
        if not _are((int, str), params) or not _are(str, known):
            problem = "A group must be a dict with 'params', a list of numbers, and optionally 'param_names'."
            raise refusal(ValueError, problem, group=group)
        named.update(zip(params, known))
        for key in params:
            if states.get(key) and settings.get("step") is not None:
                states[key].setdefault("step", _array(settings["step"]))
    return states, named or None


def _are(kind: Union[type, tuple[type, ...]], values: object) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, kind) for value in values)


def _array(value: Any) -> NDArray[Any]:
    """Return a PyTorch Tensor, or anything array-like, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise refusal(ValueError, f"A state must be an array: {error}.", value=value) from None


def _named(states: _Found, names_by_number: Optional[_Names], names: Optional[Iterable[str]]) -> dict[str, TorchState]:
    """Return PyTorch's name -> {state: array}."""
    if names is not None:
        names_by_number = dict(enumerate(checked_name_list(names, "names")))
    names_by_number = names_by_number or {}
    twice = sorted(name for name, times in Counter(names_by_number.values()).items() if times > 1)
    if twice:
        raise ValueError(f"Two parameters must not have the same name. Received: {quoted(twice)} twice in `names`")
    unnamed = sorted(key for key in states if isinstance(key, int) and key not in names_by_number)
    if unnamed:
        problem = "PyTorch numbers its parameters: give `names`, all names in the order of the numbers."
        raise ValueError(f"{problem} Received: no name for {quoted(unnamed)}, {len(names_by_number)} names")
    return {names_by_number[key] if isinstance(key, int) else key: state for key, state in states.items()}
