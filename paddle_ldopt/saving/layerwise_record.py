"""The layer-wise settings in a checkpoint, compared with the settings of the training that resumes from it.

An optimizer's state has neither decay nor layers, so without a record a changed setting would go unnoticed. The files
of the Trainer and of other frameworks have different keys; both are compared here as {kind: {name: value}}.
"""

from typing import Any

from .._messages import refusal, shown

__all__ = ["ABSENT", "ALLOW", "Settings", "changes", "check_changes", "differences"]

ALLOW = "allow_layerwise_change"  # the Trainer's argument and the setting of YAML files that permit a change
ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()  # value of a missing setting
Settings = dict[str, dict[Any, Any]]  # kind -> name -> value; the kinds are the keys of `_SENTENCES`

_MOST_CHANGES = 3  # changes of one kind in a message
_SENTENCES = {
    "decay": "{name} was {was} in the checkpoint and is {now} now",
    "optimizer": "{name} was {was} in the checkpoint and is {now} now",
    "towers": "the stack '{name}' had {was} blocks in the checkpoint and has {now} now",
    "layers": "the layer of '{name}' was {was} in the checkpoint and is {now} now",
    "ratios": "the ratio that a hook gives to '{name}' was {was} in the checkpoint and is {now} now",
}


def differences(saved: Settings, present: Settings) -> dict[str, dict[Any, tuple[Any, Any]]]:
    """Return {kind: {name: (saved value, present value)}} where they differ; skip kinds missing in `present`."""
    found: dict[str, dict[Any, tuple[Any, Any]]] = {}
    for kind, now in present.items():
        was = saved.get(kind, {})
        for name in {**was, **now}:
            pair = was.get(name, ABSENT), now.get(name, ABSENT)
            if pair[0] != pair[1]:
                found.setdefault(kind, {})[name] = pair
    return found


def changes(was: Settings, now: Settings) -> list[str]:
    """Return sentences for the differences between two settings; layers count if both have them."""
    found = differences(was, now)
    repeated = ("layers",) if "towers" in found else ()
    ignored = repeated if was["layers"] and now["layers"] else ("towers", "layers")
    sentences: list[str] = []
    for kind in [kind for kind in found if kind not in ignored]:
        lines = [_sentence(kind, name, *pair) for name, pair in found[kind].items()]
        more = len(lines) - _MOST_CHANGES if kind in ("layers", "ratios") else 0
        sentences += [*lines[:_MOST_CHANGES], f"and {more} more"] if more > 0 else lines
    return sentences


def _sentence(kind: str, name: str, was: Any, now: Any) -> str:
    if kind != "towers" and ABSENT in (was, now):
        return f"'{name}' is {'not in the checkpoint' if was is ABSENT else 'in the checkpoint only'}"
    was, now = (0 if value is ABSENT else value for value in (was, now))
    if kind == "decay":
        was, now = shown(was), shown(now)
    return _SENTENCES[kind].format(name=name, was=was, now=now)


def check_changes(found: list[str], how: str, **received: Any) -> None:
    """Raise ValueError if there are `changes`; `how` says how to allow them."""
    if found:
        problem = f"The checkpoint was trained with other layer-wise settings: {'; '.join(found)}."
        raise refusal(ValueError, f"{problem} Use the same settings, or {how} to resume with the new ones.", **received)
