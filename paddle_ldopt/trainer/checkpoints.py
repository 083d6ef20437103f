"""What a checkpoint says of the layer-wise settings it was trained with, and what else a resume needs of it.

Neither the rule nor the layers are in an optimizer's state, so a resume with others would go on without a word.
"""

import json
import os
import random

import numpy as np

from .._checks import shown
from .._paddle import parameters_of
from ..layers.decay import LayerDecay
from ..layers.map import Layer
from ..saving import record as records
from .arguments import RULE_FIELDS
from .folders import EPOCH_RNG, FORMAT, PARTIAL, RECORD, check_files, last_checkpoint

__all__ = [
    "check_checkpoint",
    "check_thawed",
    "check_unified",
    "differences",
    "load_epoch_rng",
    "set_epoch_rng",
    "take_epoch_rng",
]

_SAME_STATE = {"AdamW", "AdamWDL"}  # one can go on with what the other saved
_SHOWN = 3
_SAID = {
    "rule": "{where} was {was!r} in the checkpoint and is {now!r} now",
    "optimizer": "{where} was {was} in the checkpoint and is {now} now",
    "towers": "the stack '{where}' had {was} blocks in the checkpoint and has {now} now",
    "layers": "the layer of '{where}' was {was} in the checkpoint and is {now} now",
    "ratios": "the ratio that a hook gives to '{where}' was {was} in the checkpoint and is {now} now",
}


def check_unified(args, optimizer, processes):
    """Raise if PaddleNLP's unified checkpoints of this training could be saved and not be resumed from.

    Args:
        args (TrainingArguments): the Trainer's.
        optimizer (Optimizer): one of ours.
        processes (int): of the training.

    Raises:
        ValueError: more than one process, and parameters with different states: PaddleNLP looks for each in all.
    """
    if processes == 1 or not getattr(args, "unified_checkpoint", False):
        return
    params = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    if len({frozenset(optimizer.state_kinds(param)) for param in params}) > 1:
        raise ValueError(
            f"PaddleNLP cannot resume unified checkpoints of {type(optimizer).__name__} in more than one process, for "
            "matrices and vectors have different states: set unified_checkpoint=False. "
            f"Received: unified_checkpoint=True, {processes} processes"
        )


def check_checkpoint(folder, record, active, allowed):
    """Raise if training must not go on from a checkpoint with the settings of `record`.

    Args:
        folder (str): the checkpoint's.
        record (dict): the settings of now.
        active (bool): whether they give any layer another rate than the others.
        allowed (bool): go on in spite of a difference.

    Returns:
        list[str]: the differences that were allowed.

    Raises:
        ValueError: the checkpoint was cut short or is damaged; its settings are unknown or differ; its files are parts
            of another layout.
    """
    received = f"Received: resume_from_checkpoint={shown(folder)}"
    if os.path.exists(os.path.join(folder, PARTIAL)):
        complete = last_checkpoint(os.path.dirname(os.path.abspath(folder)))
        raise ValueError(
            "The checkpoint was cut short while it was being saved (killed, or no space left): resume from the last "
            f"complete one, {complete or 'of which there is none'}. {received}"
        )
    check_files(folder)
    load_epoch_rng(folder)  # raises if it is damaged: where files are written in the background none are listed
    if not os.path.exists(os.path.join(folder, RECORD)):
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


def _check_layout(folder, was, record):
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


def check_thawed(folder, record):
    """Raise if layers that were frozen in a checkpoint are to be trained: Paddle would miss their optimizer state.

    Args:
        folder (str): the checkpoint's.
        record (dict): the settings of now.

    Raises:
        ValueError: there are such layers.
    """
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


def _frozen(record):
    """Return the names of the parameters that the rule of a record freezes."""
    rule = LayerDecay(**{field: record["rule"][argument] for argument, field in RULE_FIELDS.items()})
    layers = record["layers"] or {}
    return {name for name, (_, index, depth) in layers.items() if rule.ratio(index, depth) == 0}


def _read_record(folder):
    path = os.path.join(folder, RECORD)
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
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


def differences(was, now):
    """Return in words what differs between the record of a checkpoint and the one of now.

    Args:
        was (dict): the first, with "optimizer" (name of its class), "rule" (argument -> value), "towers" and "layers"
            (`LayerMap.fingerprint`; None if the rates do not depend on layers), "ratios" (structured name -> ratio,
            if they come from a hook of the user's own) and "unfreeze_every_k_steps" (`GradualUnfreezeCallback`'s; None
            without it).
        now (dict): the second, alike.
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


def _settings(record, now, with_layers):
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


def _said(setting, where, was, now):
    if setting == "towers":
        was, now = (0 if blocks is records.ABSENT else blocks for blocks in (was, now))
    elif now is records.ABSENT:
        return f"'{where}' is in the checkpoint only"
    elif was is records.ABSENT:
        return f"'{where}' is not in the checkpoint"
    elif setting == "layers":
        was, now = (Layer(*layer).label for layer in (was, now))
    return _SAID[setting].format(where=where, was=was, now=now)


def take_epoch_rng():
    """Return the states of the generators that samplers shuffle with, NumPy's and Python's, as JSON can hold them."""
    kind, keys, *rest = np.random.get_state()
    version, state, gauss = random.getstate()
    return {"numpy": [kind, np.asarray(keys).tolist(), *rest], "python": [version, list(state), gauss]}


def load_epoch_rng(folder):
    """Return what `take_epoch_rng` gave at the beginning of the epoch of a checkpoint, None if it has none.

    Raises:
        ValueError: it cannot be read.
    """
    path = os.path.join(folder, EPOCH_RNG)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            epoch_rng = json.load(file)
        set_epoch_rng(epoch_rng, np.random.RandomState(), random.Random())
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"The states of the generators cannot be read ({error}). Received: {path!r}") from error
    return epoch_rng


def set_epoch_rng(epoch_rng, of_numpy=np.random, of_python=random):
    """Put the generators into the states that `take_epoch_rng` gave."""
    kind, keys, *rest = epoch_rng["numpy"]
    of_numpy.set_state((kind, np.array(keys, dtype="uint32"), *rest))
    version, state, gauss = epoch_rng["python"]
    of_python.setstate((version, tuple(state), gauss))
