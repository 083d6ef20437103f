"""The record of the layer-wise settings in a checkpoint.

Neither the rule nor the layers are in an optimizer's state, so a resume with others would go on without a word.
"""

import json
import os
from typing import Any

from .._messages import shown
from ..config import RULE_FIELDS
from ..layers.decay import LayerDecay
from ..layers.map import Layer
from ..saving import record as records
from .folders import FORMAT, RECORD

_OFF = LayerDecay(1.0)
_SAME_STATE = {"AdamW", "AdamWDL"}  # one can go on with what the other saved
_SHOWN = 3
_SAID = {
    "rule": "{where} was {was!r} in the checkpoint and is {now!r} now",
    "optimizer": "{where} was {was} in the checkpoint and is {now} now",
    "towers": "the stack '{where}' had {was} blocks in the checkpoint and has {now} now",
    "layers": "the layer of '{where}' was {was} in the checkpoint and is {now} now",
    "ratios": "the ratio that a hook gives to '{where}' was {was} in the checkpoint and is {now} now",
}


def check_record(folder: str, record: dict[str, Any], allowed: bool) -> list[str]:
    """Return the allowed differences between the record in a checkpoint and that of now; raise if they are refused."""
    received = f"Received: resume_from_checkpoint={shown(folder)}"
    if not os.path.exists(os.path.join(folder, RECORD)):
        active = _is_active(record)
        if active and not allowed:
            raise ValueError(
                f"The checkpoint has no {RECORD}, so it is unknown which layer-wise decay it was trained with (a "
                "Trainer without LdoptTrainerMixin has none): give `allow_layerwise_change` to go on from it with the "
                f"decay that is asked for now. {received}"
            )
        return [f"the checkpoint has no {RECORD}"] if active else []
    was = _read_record(folder)
    _check_layout(folder, was, record)
    found = differences(was, record)
    changed = {was["optimizer"], record["optimizer"]}
    if len(changed) > 1 and not changed <= _SAME_STATE:
        raise ValueError(
            f"The state of {was['optimizer']} cannot be loaded into {record['optimizer']}: resume with the same "
            f"optimizer, or start a new run from the checkpoint's weights. {received}"
        )
    if found and not allowed:
        raise ValueError(
            f"The checkpoint was trained with other layer-wise settings: {'; '.join(found)}. Use the same, or give "
            f"`allow_layerwise_change` to go on with those of now. {received}"
        )
    return found


def _is_active(record: dict[str, Any]) -> bool:
    """Return whether the settings give any layer another rate than the others."""
    rule, ratios = record["rule"], record["ratios"] or {}
    return (
        any(value != getattr(_OFF, RULE_FIELDS[argument]) for argument, value in rule.items())
        or any(ratio != 1.0 for ratio in ratios.values())
        or record["unfreeze_every_k_steps"] is not None
    )


def _check_layout(folder: str, was: dict[str, Any], record: dict[str, Any]) -> None:
    """Raise if a checkpoint's files are parts of another layout: the Trainer would miss some, or take wrong ones.

    Data parallelism has no part in the layout: its processes all have the same.
    """
    forms = (".pdopt", ".safetensors")
    parts = [name for name in os.listdir(folder) if name.startswith("optimizer") and name.endswith(forms)]
    layouts = was.get("layout", record["layout"]), record["layout"]
    if parts and layouts[0] != layouts[1]:
        said = [", ".join(f"{name} {degree}" for name, degree in layout.items()) for layout in layouts]
        raise ValueError(
            f"The checkpoint was saved in another layout, {said[0]}, and its optimizer's state is in parts that fit no "
            "other: resume in that layout, or begin a new training from the checkpoint's weights. "
            f"Received: resume_from_checkpoint={shown(folder)}, {said[1]}"
        )


def check_thawed(folder: str, record: dict[str, Any]) -> None:
    """Raise if layers that were frozen in a checkpoint are to be trained: Paddle would miss their optimizer state."""
    if not os.path.exists(os.path.join(folder, RECORD)):
        return
    thawed = _frozen(_read_record(folder)) - _frozen(record)
    if thawed:
        raise ValueError(
            f"{len(thawed)} parameters, such as '{min(thawed)}', were frozen in the checkpoint and have no optimizer "
            "state in it: freeze the same layers, or begin a new training from the checkpoint's weights. "
            f"Received: resume_from_checkpoint={shown(folder)}, "
            f"layerwise_freeze_below={record['rule']['layerwise_freeze_below']}"
        )


def _frozen(record: dict[str, Any]) -> set[str]:
    """Return the names of the parameters that the rule of a record freezes."""
    rule = LayerDecay(**{field: record["rule"][argument] for argument, field in RULE_FIELDS.items()})
    layers = record["layers"] or {}
    return {name for name, (_, index, depth) in layers.items() if rule.ratio(index, depth) == 0}


def _read_record(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, RECORD)
    try:
        with open(path, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
        form = record["format"]
        if form == FORMAT:
            differences(record, record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The layer-wise settings cannot be read ({error}). Received: {path!r}") from error
    if form != FORMAT:
        raise ValueError(
            f"The layer-wise settings were written by another version of paddle_ldopt, which has format {FORMAT}. "
            f"Received: format={shown(form)} in {shown(path)}"
        )
    return record


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words the differences between the record of a checkpoint and the one of now.

    Each has "optimizer" (name of its class), "rule" (argument -> value), "towers" and "layers" (`LayerMap.fingerprint`;
    None if the rates do not depend on layers), "ratios" (structured name -> ratio, from a hook of the user's own) and
    "unfreeze_every_k_steps" (`GradualUnfreezeCallback`'s; None without it).
    """
    with_layers = was["layers"] is not None and now["layers"] is not None
    found = records.differences(*(_settings(record, now, with_layers) for record in (was, now)))
    if "towers" in found:
        found.pop("layers", None)
    out = []
    for setting, places in found.items():
        said = [_said(setting, where, *values) for where, values in places.items()]
        more = len(said) - _SHOWN if setting in ("layers", "ratios") else 0
        out += [*said[:_SHOWN], f"and {more} more"] if more > 0 else said
    return out


def _settings(record: dict[str, Any], now: dict[str, Any], with_layers: bool) -> dict[str, dict[str, Any]]:
    """Return what is compared of a record, as `saving.record.differences` takes it."""
    unfrozen = record.get("unfreeze_every_k_steps", now.get("unfreeze_every_k_steps"))  # not in those of version 0.1
    return {
        "rule": {key: record["rule"].get(key) for key in now["rule"]},
        "optimizer": {
            "the optimizer": record["optimizer"],
            "every_k_steps of GradualUnfreezeCallback": unfrozen or "not used",
        },
        "towers": record["towers"] if with_layers else {},
        "layers": record["layers"] if with_layers else {},
        "ratios": record["ratios"] or {},
    }


def _said(setting: str, where: str, was: Any, now: Any) -> str:
    if setting == "towers":
        was, now = (0 if blocks is records.ABSENT else blocks for blocks in (was, now))
    elif now is records.ABSENT:
        return f"'{where}' is in the checkpoint only"
    elif was is records.ABSENT:
        return f"'{where}' is not in the checkpoint"
    elif setting == "layers":
        was, now = (Layer(*layer).label for layer in (was, now))
    return _SAID[setting].format(where=where, was=was, now=now)
