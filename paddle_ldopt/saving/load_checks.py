"""Checks of `save_optimizer` and `load_optimizer`: their arguments, and the content of a file."""

from .._files import Path, checked_path
from .._messages import refusal
from .json_state import PartAndState, check_part
from .optimizer_record import Record, check_model

PDOPT = ".pdopt"  # extension of Paddle's own files


def checked_target_path(path: Path) -> str:
    """Return the path of a file to write; raise if `load_optimizer` would read it as a file of Paddle."""
    path = checked_path(path)
    if path.endswith(PDOPT):
        problem = "`load_optimizer` would take it for one of Paddle's own files: use the extension .safetensors."
        raise refusal(ValueError, problem, path=path)
    return path


def check_scaler(scaler: object) -> None:
    """Raise TypeError for an object without the `state_dict` of a loss scaler."""
    if scaler is not None and not callable(getattr(scaler, "state_dict", None)):
        raise refusal(TypeError, "`scaler` must be a loss scaler.", scaler=scaler)


def check_contents(record: Record, present: Record, structured: bool) -> None:
    """Raise ValueError if a file's record is not of the optimizer's class and model, described by `present`.

    `structured` says whether the optimizer's parameters have the model's names.
    """
    if (record["naming"] == "structured") != structured:
        has = "the model's names: give `model`" if not structured else "Paddle's names: leave out `model` and `layers`"
        raise refusal(ValueError, f"Parameters are matched by name, and the file has {has}.", naming=record["naming"])
    check_model(record, present)
    step, with_state = record["step"], record["with_state"]
    if step is not None and (type(step) is not int or step < 0):
        raise refusal(ValueError, "The file's step must be at least 0.", step=step)
    if set(with_state) - set(present["parameters"]) or len(set(with_state)) < len(with_state):
        raise refusal(ValueError, "The file's record lacks the parameters with state.", with_state=with_state[:8])


def checked_parts(schedule: PartAndState, scaler: PartAndState) -> list[PartAndState]:
    """Return the pairs with a state to load, from (schedule, its state or None) and (scaler, its state or None)."""
    if (scaler[0] is None) != (scaler[1] is None):
        found = f"scaler of type {type(scaler[0]).__name__}, {'one' if scaler[0] is None else 'none'} in the file"
        raise ValueError(f"`scaler` must be given if and only if one was saved. Received: {found}")
    for name, (part, state) in (("schedule", schedule), ("scaler", scaler)):
        if state is not None:
            check_part(part, state, f"The {name}'s state")
    return [(part, state) for part, state in (schedule, scaler) if state is not None]
