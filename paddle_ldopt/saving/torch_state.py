"""`convert_torch_optimizer`: the state of PyTorch's optimizers, loaded by parameter name."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import Layer, Linear
from paddle.optimizer import Optimizer

from .._checks import checked_bool, checked_int
from .._messages import quoted, refusal, shown, wrong_type
from .._paddle import MASTER, checked_model, parameters_of, unwrap_model
from ..optimizers.options import REGISTRY
from ..optimizers.states import GLOBAL_STEP, STEP
from .safetensors_file import Arrays
from .save_load import LoadReport
from .state import (
    Layout,
    States,
    check_state,
    checked_name_list,
    checked_optimizer,
    layouts,
    set_state,
    structured_names,
)
from .torch_checkpoint import Rename, Source, TorchState, read_checkpoint

# state of `torch.optim.Adafactor` -> state of the others, and the axis of size 1 that only `torch.optim` keeps
_KEPT: dict[str, tuple[str, Optional[int]]] = {
    "row_var": ("exp_avg_sq_row", -1),
    "col_var": ("exp_avg_sq_col", -2),
    "variance": ("exp_avg_sq", None),
}
# step is read separately; no rule reads the others
_UNUSED = ("step", "RMS", "weight_norm", "adam_norm", "trust_ratio")
_SWAPPED = {"_row": "_col", "_col": "_row"}


def convert_torch_optimizer(
    source: Source,
    optimizer: Optimizer,
    model: Layer,
    names: Optional[Iterable[str]] = None,
    *,
    rename: Rename = None,
    transpose: Optional[Iterable[str]] = None,
    step: Optional[int] = None,
    strict: bool = True,
) -> LoadReport:
    r"""Load the state of PyTorch's AdamW into `AdamWDL`, or of Adafactor, CAME or LAMB into ours.

    With the same options and rate, training continues as in PyTorch up to rounding. This holds for AdamW, Adafactor of
    transformers and of `torch.optim`, the authors' CAME and timm's LAMB. It does not hold for pytorch_optimizer's LAMB,
    whose second moment has no bias correction. Load the model's parameters first: float32 masters are copied from them.
    PyTorch's linear layers store the transposed weight, so their state is transposed.

    Args:
        source (str|os.PathLike|dict): the dict of ``optimizer.state_dict()``, of Tensors or arrays, or a file. A
            ".safetensors" file names its tensors ``<parameter>.<state>``, by the name or number of the parameter,
            optionally after "state."; "step" is a state. Other files need PyTorch 2.6 or later, for its weights-only
            loader. They contain the dict itself, or a dict that has it under "optimizer" or "optimizer_state_dict".
        optimizer (Optimizer): an `AdamWDL`, `Adafactor`, `Came` or `Lamb`.
        model (paddle.nn.Layer): the model it trains; may be wrapped by `paddle.DataParallel`.
        names (Iterable[str], optional): PyTorch's parameter names in the order of their numbers:
            ``[name for name, _ in torch_model.named_parameters()]``, or group by group. Not needed if the checkpoint
            has names (PyTorch 2.6 or later, built from ``model.named_parameters()``).
        rename (dict[str, str]|callable, optional): PyTorch's name of a parameter -> the model's. Names missing in a
            dict are kept; a callable returns None to skip a parameter.
        transpose (Iterable[str], optional): the model's names of matrices that PyTorch stores transposed; by default
            the weights of `paddle.nn.Linear` layers.
        step (int, optional): the steps taken, at least 0, for parameters without a step in the checkpoint.
        strict (bool): raise if a trainable parameter gets no state, or if a state or a name in `rename` is unused.
            Otherwise, such parameters start with a new state, and the report lists them.

    Returns:
        LoadReport: the matched, missing, unexpected and transposed parameters. `print` shows it as a table.

    Raises:
        TypeError, ValueError, OSError: an optimizer without a counterpart; an unreadable or unsafe file; missing or
            repeated names; another shape; no valid step; with `strict`, an unmatched state. The optimizer is unchanged.
        ImportError: the file needs PyTorch.

    Examples:
        >>> import numpy as np
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> model = paddle.nn.Linear(3, 2)
        >>> optimizer = ldopt.AdamWDL(1e-3, parameters=model.parameters())
        >>> state = {0: {"step": 5, "exp_avg": np.ones([2, 3]), "exp_avg_sq": np.ones([2, 3])},
        ...          1: {"step": 5, "exp_avg": np.ones([2]), "exp_avg_sq": np.ones([2])}}
        >>> checkpoint = {"state": state, "param_groups": [{"params": [0, 1]}]}
        >>> print(ldopt.convert_torch_optimizer(checkpoint, optimizer, model, ["weight", "bias"]))
        a state_dict: step 5, 2 matched, 0 missing, 0 unexpected
        parameter  in the file
        weight     weight       transposed
        bias       bias
    """
    inner = checked_optimizer(optimizer)
    state_names = _torch_names(inner)
    step = None if step is None else checked_int(step, "step")
    strict = checked_bool(strict, "strict")
    checked_model(model)
    ours, _ = structured_names(inner, model)
    transposed = _transposed_names(model, transpose)
    torch_states = read_checkpoint(source, names, rename, strict)
    _check_step_is_used(step, torch_states)
    states: States = {}
    matched, missing, unexpected, steps, layout_of = [], [], [], set(), layouts(inner)
    for param in parameters_of(inner):
        name = ours[param.name]
        torch_name, torch_state = torch_states.pop(name, ("", {}))
        if not torch_state:
            missing += [name] * (not param.stop_gradient and inner.layerwise_ratio(param) != 0.0)
            continue
        updates = _checked_updates(torch_state, step, torch_name)
        steps.add(updates)
        parts = _as_ours(torch_state, name in transposed)
        states[param.name] = _state(inner, state_names, param, layout_of[param.name], parts, updates, torch_name)
        matched.append((torch_name, name))
        unexpected += [f"{torch_name}.{state}" for state in sorted(parts)]
    unexpected += [torch_name for torch_name, torch_state in torch_states.values() if torch_state]
    _check_matched(matched, missing, unexpected, strict)
    for state in states.values():
        if GLOBAL_STEP in state:
            state[GLOBAL_STEP] = "float32", np.full([1], max(steps), "float32")
    check_state(inner, states, ours, optional=(MASTER,))
    set_state(inner, states)
    label = "a state_dict" if isinstance(source, Mapping) else os.fspath(source)
    were_transposed = tuple(name for _, name in matched if name in transposed)
    return LoadReport(label, max(steps), tuple(matched), tuple(missing), tuple(unexpected), were_transposed)


def _as_ours(torch_state: TorchState, transposed: bool) -> TorchState:
    """Return the states with the axes of ours, under the names of transformers' Adafactor."""
    states = {}
    for key, value in torch_state.items():
        if key in _UNUSED:
            continue
        name, axis = _KEPT.get(key, (key, None))
        if axis is not None and value.shape[axis:][:1] == (1,):
            value = value.squeeze(axis)
        if transposed:
            name, value = name[:-4] + _SWAPPED.get(name[-4:], name[-4:]), value.T
        states[name] = value
    return states


def _state(
    optimizer: Optimizer,
    names: dict[str, str],
    param: Tensor,
    layout: Layout,
    parts: TorchState,
    step: int,
    owner: str,
) -> Arrays:
    """Return our state of a parameter from PyTorch's of `owner`, and remove it from `parts`."""
    kinds, state = optimizer.state_kinds(param), {}
    for name, (dtype, shape, _) in layout.items():
        if name == MASTER:
            continue
        if kinds.get(name, "scalar") == "scalar":
            state[name] = dtype, np.full(shape, _scalar(optimizer, param, name, step), dtype)
            continue
        values = _checked_values(parts, names.get(name, name), shape, owner)
        if dtype == "float16":  # as Came's `compression` stores it
            limits = np.finfo(dtype)
            values = np.clip(values, limits.min, limits.max)
        state[name] = dtype, values.astype(dtype)
    return state


def _scalar(optimizer: Optimizer, param: Tensor, name: str, step: int) -> float:
    """Return the value of a state of one number after some steps; 0 for the unknown last rate."""
    if name in (STEP, GLOBAL_STEP) and optimizer.counts_steps:
        return float(step)
    beta, power, _ = name.partition("_pow_acc")
    return float(optimizer.options_of(param)[beta]) ** (step + 1) if power else 0.0


# ---- checks


def _torch_names(optimizer: Optimizer) -> dict[str, str]:
    """Return our name of a state -> PyTorch's, where they differ; raise for an optimizer without a counterpart."""
    served = {info.cls: info.torch_names for info in REGISTRY.values() if info.torch_names is not None}
    if type(optimizer) not in served:
        known = ", ".join(cls.__name__ for cls in served)
        raise wrong_type(optimizer, "optimizer", f"one of {known}, the optimizers with a counterpart in PyTorch")
    return served[type(optimizer)]


def _transposed_names(model: Layer, transpose: Optional[Iterable[str]]) -> set[str]:
    """Return the names of the matrices that PyTorch stores transposed."""
    plain = unwrap_model(model)
    named = dict(plain.named_parameters())
    if transpose is None:
        weights = {layer.weight.name for layer in plain.sublayers(True) if isinstance(layer, Linear)}
        return {name for name, param in named.items() if param.name in weights}
    transposed = set(checked_name_list(transpose, "transpose"))
    wrong = sorted(name for name in transposed if name not in named or len(named[name].shape) != 2)
    if wrong:
        raise refusal(ValueError, "`transpose` must name matrices of the model.", transpose=wrong)
    return transposed


def _check_step_is_used(step: Optional[int], torch_states: dict[str, tuple[str, TorchState]]) -> None:
    """Raise ValueError if `step` is given and every parameter in the checkpoint has a step."""
    counted = ["step" in state for _, state in torch_states.values() if state]
    if step is not None and counted and all(counted):
        problem = "The checkpoint has the number of steps, so `step` would be ignored: leave it out."
        raise refusal(ValueError, problem, step=step)


def _check_matched(matched: list[tuple[str, str]], missing: list[str], unexpected: list[str], strict: bool) -> None:
    """Raise ValueError if nothing matched, or with `strict` if anything did not."""
    if strict and (missing or unexpected):
        problem = "Checkpoint and optimizer differ in parameters or states: give `rename`, or strict=False."
        gaps = f"no state for {quoted(missing)} ({len(missing)}), no use for {quoted(unexpected)} ({len(unexpected)})"
        raise ValueError(f"{problem} Received: {gaps}, {len(matched)} matched")
    if not matched:
        problem = "Checkpoint and model share no parameter: give `rename`, or other `names`."
        raise ValueError(f"{problem} Received: {quoted(unexpected)}")


def _checked_updates(state: TorchState, step: Optional[int], name: str) -> int:
    """Return the number of updates of a parameter: in its state, else `step`."""
    if "step" not in state and step is None:
        problem = "The checkpoint lacks the number of steps: give `step`."
        raise refusal(ValueError, problem, parameter=name)
    updates = np.asarray(state.get("step", step))
    number = updates.item() if updates.size == 1 and updates.dtype.kind in "iuf" else -1
    if not (np.isfinite(number) and number >= 0 and number == int(number)):
        problem = "A number of steps must be an integer of at least 0."
        raise refusal(ValueError, problem, parameter=name, step=updates)
    return int(number)


def _checked_values(parts: TorchState, name: str, shape: tuple[int, ...], torch_name: str) -> NDArray[Any]:
    """Remove and return a parameter's state; raise ValueError if it is missing or has another shape."""
    values = parts.pop(name, None)
    if values is None:
        problem = f"'{torch_name}' lacks {shown(name)}: the checkpoint is of another optimizer, or of other options."
        raise ValueError(f"{problem} Received: {', '.join(sorted(parts)) or 'nothing else'}")
    if values.dtype.kind not in "iuf":
        raise refusal(ValueError, "A state must be made of numbers.", parameter=torch_name, state=name, value=values)
    values = values.reshape(shape) if (values.shape, shape) == ((), (1,)) else values  # a single number
    if values.shape != shape:
        problem = f"The state of '{torch_name}' has another shape here: give `transpose`, `rename` or `names`."
        raise ValueError(f"{problem} Received: {name} {list(values.shape)}, not {list(shape)}")
    return values
