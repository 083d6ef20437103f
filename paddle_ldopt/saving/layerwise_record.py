"""The layer-wise settings in a checkpoint, compared with the settings of the training that resumes from it.

An optimizer's state has neither decay nor layers, so without a record a changed setting would go unnoticed. The files
of the Trainer and of other frameworks have different keys; both are read as `LayerwiseSettings`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .._messages import refusal, shown

ALLOW = "allow_layerwise_change"  # the Trainer's argument and the setting of YAML files that permit a change
ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()  # value of a missing setting

_MOST_CHANGES = 3  # changes of the same kind in a message
_SUBJECTS = {
    "towers": "the number of blocks of '{}'",
    "layers": "the layer of '{}'",
    "ratios": "the ratio that a hook gives to '{}'",
}


class LayerwiseSettings(NamedTuple):
    """The layer-wise settings of a run; each field maps names to values."""

    decay: dict[str, Any]
    optimizer: dict[str, Any] = {}
    towers: dict[str, int] = {}  # stack -> its number of blocks
    layers: dict[str, str] = {}  # parameter -> its layer in words
    ratios: dict[str, float] = {}  # parameter -> ratio of a hook


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, dict[Any, tuple[Any, Any]]]:
    """Return {kind: {name: (saved value, present value)}} where {kind: {name: value}} differ, for the present kinds."""
    found: dict[str, dict[Any, tuple[Any, Any]]] = {}
    for kind, now in present.items():
        was = saved.get(kind, {})
        for name in {**was, **now}:
            pair = was.get(name, ABSENT), now.get(name, ABSENT)
            if pair[0] != pair[1]:
                found.setdefault(kind, {})[name] = pair
    return found


def changes(was: LayerwiseSettings, now: LayerwiseSettings) -> list[str]:
    """Return sentences for the differences between two settings; layers count if both have them."""
    found = differences(was._asdict(), now._asdict())
    repeated = ("layers",) if "towers" in found else ()
    ignored = repeated if was.layers and now.layers else ("towers", "layers")
    sentences: list[str] = []
    for kind in [kind for kind in found if kind not in ignored]:
        lines = [_sentence(kind, name, *pair) for name, pair in found[kind].items()]
        more = len(lines) - _MOST_CHANGES if kind in ("layers", "ratios") else 0
        sentences += [*lines[:_MOST_CHANGES], f"and {more} more"] if more > 0 else lines
    return sentences


def _sentence(kind: str, name: str, was: Any, now: Any) -> str:
    if kind != "towers" and ABSENT in (was, now):
        return f"'{name}' is {'not in the checkpoint' if was is ABSENT else 'in the checkpoint only'}"
    was, now = (0 if value is ABSENT else shown(value) if kind == "decay" else value for value in (was, now))
    return f"{_SUBJECTS.get(kind, '{}').format(name)} was {was} in the checkpoint and is {now} now"


def check_changes(found: list[str], how: str, **received: Any) -> None:
    """Raise ValueError if there are `changes`; `how` says how to allow them."""
    if found:
        problem = f"The checkpoint was trained with other layer-wise settings: {'; '.join(found)}."
        raise refusal(ValueError, f"{problem} Use the same settings, or {how} to resume with the new ones.", **received)
