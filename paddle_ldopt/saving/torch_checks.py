"""Checks of `convert_torch_optimizer`: its optimizer and arguments, and the states of a checkpoint."""

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.optimizer import Optimizer

from .._messages import quoted, refusal, shown, wrong_type
from .._paddle import unwrap_model
from ..optimizers.registry import REGISTRY
from .state import checked_name_list
from .torch_checkpoint import TorchState


def torch_names(optimizer: Optimizer) -> dict[str, str]:
    """Return our name of a state -> PyTorch's, where they differ; raise for an optimizer without a counterpart."""
    served = {info.cls: info.torch_names for info in REGISTRY.values() if info.torch_names is not None}
    if type(optimizer) not in served:
        known = ", ".join(cls.__name__ for cls in served)
        raise wrong_type(optimizer, "optimizer", f"one of {known}, the optimizers with a counterpart in PyTorch")
    return served[type(optimizer)]


def transposed_names(model: paddle.nn.Layer, transpose: Optional[Iterable[str]]) -> set[str]:
    """Return the names of the matrices that PyTorch stores transposed."""
    plain = unwrap_model(model)
    named = dict(plain.named_parameters())
    if transpose is None:
        weights = {layer.weight.name for layer in plain.sublayers(True) if isinstance(layer, paddle.nn.Linear)}
        return {name for name, param in named.items() if param.name in weights}
    transposed = set(checked_name_list(transpose, "transpose"))
    wrong = sorted(name for name in transposed if name not in named or len(named[name].shape) != 2)
    if wrong:
        raise refusal(ValueError, "`transpose` must name matrices of the model.", transpose=wrong)
    return transposed


def check_step_is_used(step: Optional[int], torch_states: dict[str, tuple[str, TorchState]]) -> None:
    """Raise ValueError if `step` is given and every parameter in the checkpoint has a step."""
    counted = ["step" in state for _, state in torch_states.values() if state]
    if step is not None and counted and all(counted):
        problem = "The checkpoint has the number of steps, so `step` would be ignored: leave it out."
        raise refusal(ValueError, problem, step=step)


def check_matched(matched: list[tuple[str, str]], missing: list[str], unexpected: list[str], strict: bool) -> None:
    """Raise ValueError if nothing matched, or with `strict` if anything did not."""
    if strict and (missing or unexpected):
        problem = "Checkpoint and optimizer differ in parameters or states: give `rename`, or strict=False."
        gaps = f"no state for {quoted(missing)} ({len(missing)}), no use for {quoted(unexpected)} ({len(unexpected)})"
        raise ValueError(f"{problem} Received: {gaps}, {len(matched)} matched")
    if not matched:
        problem = "Checkpoint and model share no parameter: give `rename`, or other `names`."
        raise ValueError(f"{problem} Received: {quoted(unexpected)}")


def checked_updates(state: TorchState, step: Optional[int], name: str) -> int:
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


def checked_values(parts: TorchState, name: str, shape: tuple[int, ...], torch_name: str) -> NDArray[Any]:
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
