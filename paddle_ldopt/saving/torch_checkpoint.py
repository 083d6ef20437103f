"""Reads the state of a PyTorch optimizer by parameter name, from a dict, safetensors or a file of `torch.save`."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._files import checked_path
from .._messages import quoted, refusal, shown
from .safetensors_file import read_tensors
from .state import checked_name_list

TorchState = dict[str, Any]  # a parameter's states in the checkpoint, name -> array
_LEAST_TORCH = (2, 6)  # earlier, `weights_only` could run code (CVE-2025-32434)


def read_checkpoint(source: Any, names: Any, rename: Any, strict: bool) -> dict[str, tuple[str, TorchState]]:
    """Return the model's name -> (PyTorch's name, {state: array}); the arguments of `convert_torch_optimizer`."""
    return _renamed(_named(*_read(source), names), rename, strict)


def _read(source: Any) -> tuple[dict[Any, TorchState], Any]:
    """Return (parameter's number or name -> {state: array}, names by number or None)."""
    if isinstance(source, Mapping):
        return _from_dict(source)
    path = checked_path(source, "source", "a dict or a path")
    if not path.endswith(".safetensors"):
        return _from_dict(_by_torch(path))
    found: dict[Any, TorchState] = {}
    for key, (dtype, values) in read_tensors(path).items():
        owner, _, state = re.sub(r"^state\.", "", key).rpartition(".")
        if dtype == "bfloat16":
            values = (values.astype("uint32") << 16).view("float32")
        found.setdefault(int(owner) if owner.isdecimal() else owner, {})[state] = values
    return found, None


def _by_torch(path: str) -> Any:
    try:
        import torch
    except ImportError:
        problem = "Only PyTorch reads this file: install it (a CPU build suffices), or convert the file to safetensors."
        raise refusal(ImportError, problem, path=path) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _LEAST_TORCH:
        raise refusal(ImportError, "PyTorch 2.6 or later is needed to read it safely.", torch=torch.__version__)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        problem = f"PyTorch's weights-only loader refuses the file: {str(error).splitlines()[0][:200]}."
        raise refusal(ValueError, problem, path=path) from None
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(found, Mapping) and "state" not in found and isinstance(found.get(key), Mapping):
            return found[key]
    return found


def _from_dict(checkpoint: Any) -> tuple[dict[Any, TorchState], Any]:
    whole = isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("state"), Mapping)
    if not whole or not isinstance(checkpoint.get("param_groups"), (list, tuple)):
        has = sorted(map(str, checkpoint)) if isinstance(checkpoint, Mapping) else type(checkpoint).__name__
        raise ValueError(f"A checkpoint of PyTorch must be a dict with 'state' and 'param_groups'. Received: {has}")
    found: dict[Any, TorchState] = {}
    named: dict[Any, str] = {}
    for key, state in checkpoint["state"].items():
        if not isinstance(state, Mapping) or not _are(str, list(state)):
            problem = "A parameter's state must be a dict with string keys."
            raise refusal(ValueError, problem, parameter=key, state=state)
        found[int(key) if str(key).isdecimal() else key] = {name: _array(value) for name, value in state.items()}
    for group in checkpoint["param_groups"]:
        settings: Any = group if isinstance(group, Mapping) else {}
        params, known = settings.get("params"), settings.get("param_names", ())
        if not _are((int, str), params) or not _are(str, known):
            problem = "A group must be a dict with 'params', a list of numbers, and optionally 'param_names'."
            raise refusal(ValueError, problem, group=group)
        named.update(zip(params, known))
        for key in params:
            if found.get(key) and settings.get("step") is not None:
                found[key].setdefault("step", _array(settings["step"]))
    return found, named or None


def _are(kind: Any, values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, kind) for value in values)


def _array(value: Any) -> Any:
    """Return a PyTorch Tensor, or anything array-like, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise refusal(ValueError, f"A state must be an array: {error}.", value=value) from None


def _named(found: dict[Any, TorchState], known: Any, names: Any) -> dict[str, TorchState]:
    """Return PyTorch's name -> {state: array}."""
    if names is not None:
        known = dict(enumerate(checked_name_list(names, "names")))
    known = known or {}
    twice = sorted(name for name, times in Counter(known.values()).items() if times > 1)
    if twice:
        raise ValueError(f"Two parameters must not have the same name. Received: {quoted(twice)} twice in `names`")
    unnamed = sorted(key for key in found if isinstance(key, int) and key not in known)
    if unnamed:
        problem = "PyTorch numbers its parameters: give `names`, all names in the order of the numbers."
        raise ValueError(f"{problem} Received: no name for {quoted(unnamed)}, {len(known)} names")
    return {known[key] if isinstance(key, int) else key: state for key, state in found.items()}


def _renamed(found: dict[str, TorchState], rename: Any, strict: bool) -> dict[str, tuple[str, TorchState]]:
    """Return the model's name -> (PyTorch's name, {state: array})."""
    if rename is not None and not callable(rename) and not isinstance(rename, Mapping):
        raise refusal(TypeError, "`rename` must be a dict or callable.", rename=rename)
    unknown = sorted(set(rename) - set(found), key=str) if isinstance(rename, Mapping) else []
    if strict and unknown:
        problem = "`rename` must name parameters of the checkpoint: correct it, or give strict=False."
        raise ValueError(f"{problem} Received: {quoted(unknown)}, not in the checkpoint")
    out: dict[str, tuple[str, TorchState]] = {}
    for torch_name, state in found.items():
        name = rename(torch_name) if callable(rename) else (rename or {}).get(torch_name, torch_name)
        if name in out:
            problem = f"`rename` must give each parameter its own name; {shown(name)} is taken."
            raise refusal(ValueError, problem, parameter=torch_name)
        if name is not None:
            out[name] = torch_name, state
    return out
