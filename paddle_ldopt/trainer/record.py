"""The record of the layer-wise settings in a checkpoint.

An optimizer's state has neither decay nor layers, so without a record a changed setting would go unnoticed.
"""

import os
from typing import Any, Optional

from .._messages import refusal
from ..build import OFF
from ..config import decay_from, settings_of
from ..layers.map import Layer, LayerMap
from ..layers.ratios import LayerRatios
from ..saving import record as records
from .folders import FORMAT, RECORD, read_json

_SAME_STATE = {"AdamW", "AdamWDL"}  # each can load the state of the other
_SHOWN = 3  # differences of one kind
_SENTENCES = {
    "rule": "{where} was {was!r} in the checkpoint and is {now!r} now",
    "optimizer": "{where} was {was} in the checkpoint and is {now} now",
    "towers": "the stack '{where}' had {was} blocks in the checkpoint and has {now} now",
    "layers": "the layer of '{where}' was {was} in the checkpoint and is {now} now",
    "ratios": "the ratio that a hook gives to '{where}' was {was} in the checkpoint and is {now} now",
}


def check_record(folder: str, record: dict[str, Any], allowed: bool, new_optimizer: bool) -> list[str]:
    """Return the allowed differences between a checkpoint's record and `record`; raise if they are refused."""
    was = _read_record(folder)
    if was is None:
        return _without_record(folder, record, allowed)
    found = differences(was, record)
    _check_layout(folder, was, record)
    _check_optimizer(folder, was, record)
    if not allowed:
        _check_settings(folder, found)
    if new_optimizer:
        _check_frozen(folder, was, record)
    return found


def _without_record(folder: str, record: dict[str, Any], allowed: bool) -> list[str]:
    """Return the message for a checkpoint without a record; raise if there are layer-wise rates to compare."""
    if not _is_active(record):
        return []
    if not allowed:
        problem = (
            f"The checkpoint has no {RECORD}, so its layer-wise decay is unknown (a Trainer without LdoptTrainerMixin "
            "has none): give `allow_layerwise_change` to resume with the present decay."
        )
        raise refusal(ValueError, problem, resume_from_checkpoint=folder)
    return [f"the checkpoint has no {RECORD}"]


def _check_layout(folder: str, was: dict[str, Any], record: dict[str, Any]) -> None:
    layout = was.get("layout", record["layout"])
    if layout != record["layout"] and _has_parts(folder):
        degrees = ", ".join(f"{name}={degree}" for name, degree in layout.items())
        problem = (
            f"The checkpoint was saved in another layout, {degrees}, and its optimizer's state fits no other layout: "
            "resume in that layout, or begin a new training from the checkpoint's weights."
        )
        raise refusal(ValueError, problem, resume_from_checkpoint=folder, **record["layout"])


def _check_optimizer(folder: str, was: dict[str, Any], record: dict[str, Any]) -> None:
    classes = {was["optimizer"], record["optimizer"]}
    if len(classes) > 1 and classes != _SAME_STATE:
        problem = (
            f"The state of {was['optimizer']} cannot be loaded into {record['optimizer']}: resume with the same "
            "optimizer, or start a new run from the checkpoint's weights."
        )
        raise refusal(ValueError, problem, resume_from_checkpoint=folder)


def _check_settings(folder: str, found: list[str]) -> None:
    if found:
        problem = (
            f"The checkpoint was trained with other layer-wise settings: {'; '.join(found)}. Use the same "
            "settings, or give `allow_layerwise_change` to resume with the present settings."
        )
        raise refusal(ValueError, problem, resume_from_checkpoint=folder)


def _check_frozen(folder: str, was: dict[str, Any], record: dict[str, Any]) -> None:
    """Raise if a parameter was unfrozen: the checkpoint has no state for it, which Paddle needs."""
    thawed = _frozen(was) - _frozen(record)
    if thawed:
        problem = (
            f"{len(thawed)} parameters, such as '{min(thawed)}', were frozen in the checkpoint and have no optimizer "
            "state in it: freeze the same layers, or begin a new training from the checkpoint's weights."
        )
        below = record["rule"]["layerwise_freeze_below"]
        raise refusal(ValueError, problem, resume_from_checkpoint=folder, layerwise_freeze_below=below)


def _is_active(record: dict[str, Any]) -> bool:
    """Return whether the settings give layers different rates."""
    ratios = record["ratios"] or {}
    return (
        decay_from(record["rule"]) != OFF
        or any(ratio != 1.0 for ratio in ratios.values())
        or record["unfreeze_every_k_steps"] is not None
    )


def _has_parts(folder: str) -> bool:
    """Return whether the optimizer's state is in files that only the checkpoint's layout can read.

    Data parallelism does not count: its processes all have the same state.
    """
    forms = (".pdopt", ".safetensors")
    return any(name.startswith("optimizer") and name.endswith(forms) for name in os.listdir(folder))


def _frozen(record: dict[str, Any]) -> set[str]:
    """Return the names of the parameters that a record's decay freezes."""
    layers = {name: Layer(*place) for name, place in (record["layers"] or {}).items()}
    if not layers:
        return set()
    ratios = LayerRatios(LayerMap(layers, record["towers"]), decay_from(record["rule"]))
    return {name for name in layers if ratios.of(name) == 0}


def _read_record(folder: str) -> Optional[dict[str, Any]]:
    def check(record: Any) -> None:
        if record["format"] == FORMAT:
            differences(record, record)

    record: Optional[dict[str, Any]] = read_json(folder, RECORD, "layer-wise settings", check)
    if record is not None and record["format"] != FORMAT:
        problem = f"Another version of paddle_ldopt wrote the layer-wise settings; this version reads format {FORMAT}."
        raise refusal(ValueError, problem, format=record["format"], path=os.path.join(folder, RECORD))
    return record


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe the differences between two records of `LdoptTrainerMixin`."""
    with_layers = was["layers"] is not None and now["layers"] is not None
    found = records.differences(*(_settings(record, now, with_layers) for record in (was, now)))
    if "towers" in found:
        found.pop("layers", None)
    out = []
    for setting, places in found.items():
        lines = [_sentence(setting, where, *values) for where, values in places.items()]
        more = len(lines) - _SHOWN if setting in ("layers", "ratios") else 0
        out += [*lines[:_SHOWN], f"and {more} more"] if more > 0 else lines
    return out


def _settings(record: dict[str, Any], now: dict[str, Any], with_layers: bool) -> dict[str, dict[str, Any]]:
    """Return the parts of a record that are compared, for `saving.record.differences`."""
    unfrozen = record.get("unfreeze_every_k_steps", now.get("unfreeze_every_k_steps"))  # version 0.1 lacks it
    return {
        "rule": settings_of(decay_from(record["rule"])),
        "optimizer": {
            "the optimizer": record["optimizer"],
            "every_k_steps of GradualUnfreezeCallback": unfrozen or "not used",
        },
        "towers": record["towers"] if with_layers else {},
        "layers": record["layers"] if with_layers else {},
        "ratios": record["ratios"] or {},
    }


def _sentence(setting: str, where: str, was: Any, now: Any) -> str:
    if setting == "towers":
        was, now = (0 if blocks is records.ABSENT else blocks for blocks in (was, now))
    elif now is records.ABSENT:
        return f"'{where}' is in the checkpoint only"
    elif was is records.ABSENT:
        return f"'{where}' is not in the checkpoint"
    elif setting == "layers":
        was, now = (Layer(*layer).label for layer in (was, now))
    return _SENTENCES[setting].format(where=where, was=was, now=now)
