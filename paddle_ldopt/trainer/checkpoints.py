"""What a checkpoint says of the layer-wise settings it was trained with, and whether it was written to its end.

Neither the rule nor the layers are in an optimizer's state, so a resume with others would go on without a word. While
the Trainer writes a checkpoint, the record is there as ``ldopt_layerwise.json.partial``; it gets its name when all the
rest is on disk. A process that is killed in between leaves a checkpoint that says that it is cut short.
"""

import glob
import json
import os
import random
import re
import tempfile
import warnings
import zlib

import numpy as np

from ..decay import LayerDecay
from ..hooks import parameters_of
from ..layers import Layer
from .arguments import RULE_FIELDS

__all__ = [
    "begin_checkpoint",
    "beside",
    "check_checkpoint",
    "check_files",
    "check_layout",
    "check_thawed",
    "check_unified",
    "check_writable",
    "differences",
    "finish_checkpoint",
    "last_checkpoint",
    "list_files",
    "load_epoch_rng",
    "oldest_first",
    "set_epoch_rng",
    "step_of",
    "take_epoch_rng",
]

RECORD = "ldopt_layerwise.json"
PARTIAL = RECORD + ".partial"
_SAME_STATE = {"AdamW", "AdamWDL"}  # one can go on with what the other saved
EPOCH_RNG = "ldopt_epoch_rng.json"
CONFIG = "ldopt_config.json"
FILES = "ldopt_files.json"
FORMAT = 1
_NUMBERED = re.compile(r"^checkpoint-(\d+)$")
_SHOWN = 3


def begin_checkpoint(folder, record, epoch_rng):
    """Mark a checkpoint as being written; `finish_checkpoint` when it is.

    Args:
        folder (str): the checkpoint's; it may have one of an earlier run in it.
        record (dict): what `check_checkpoint` compares.
        epoch_rng (dict|None): what `take_epoch_rng` gave.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, PARTIAL), "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **record}, file, indent=1)
    for stale in (RECORD, EPOCH_RNG, CONFIG, FILES):
        if os.path.exists(os.path.join(folder, stale)):
            os.remove(os.path.join(folder, stale))
    if epoch_rng is not None:
        with open(os.path.join(folder, EPOCH_RNG), "w", encoding="utf-8") as file:
            json.dump(epoch_rng, file)


def finish_checkpoint(folder, all_written=True):
    """Say that the checkpoint is complete; harmless if it was said before.

    Args:
        folder (str): the checkpoint's.
        all_written (bool): False if files are still being written, in the background: they are not listed then.
    """
    if os.path.exists(os.path.join(folder, PARTIAL)):
        if all_written:
            list_files(folder)
        os.replace(os.path.join(folder, PARTIAL), os.path.join(folder, RECORD))


def list_files(folder):
    """Write the sizes and checksums of a checkpoint's files into it, for `check_files`.

    Args:
        folder (str): the checkpoint's.
    """
    found = [
        os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names
    ]
    listed = {name: _digest(os.path.join(folder, name)) for name in sorted(found) if name not in (FILES, PARTIAL)}
    with open(os.path.join(folder, FILES), "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "files": listed}, file, indent=1)


def _digest(path):
    """Return [bytes, CRC-32] of a file."""
    size = checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def check_files(folder):
    """Raise if the files of a checkpoint are not those that were written; any will do if it does not list them.

    Args:
        folder (str): the checkpoint's.

    Raises:
        ValueError: so it is.
    """
    problem = _damage(folder)
    if problem is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the same
            sound = last_checkpoint(os.path.dirname(os.path.abspath(folder)))
        raise ValueError(
            f"The checkpoint is damaged: {problem}. Resume from the last one that is not, "
            f"{sound or 'of which there is none'}. Received: resume_from_checkpoint={folder!r}"
        )


def _damage(folder):
    """Return in words what is wrong with the files of a checkpoint, None if nothing is."""
    path = os.path.join(folder, FILES)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            listed = json.load(file)["files"].items()
        wrong = [words for name, digest in listed if (words := _difference(folder, name, digest)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{FILES} cannot be read ({error})"
    except OSError as error:
        return str(error)
    return "; ".join(wrong[:_SHOWN]) or None


def _difference(folder, name, digest):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return f"'{name}' is not there"
    size = os.path.getsize(path)
    if size != digest[0]:
        return f"'{name}' has {size} bytes of {digest[0]}"
    return None if _digest(path) == digest else f"'{name}' has other bytes than were saved"


def check_writable(output_dir):
    """Raise if checkpoints cannot be written into a folder; make it, if it is not there.

    Args:
        output_dir (str): the folder.

    Raises:
        ValueError: so it is.
    """
    try:
        os.makedirs(output_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir) as file:
            file.write(b"can be written")
    except OSError as error:
        raise ValueError(
            f"No checkpoint can be saved there ({error}): make room or give it the rights, choose another folder, or "
            f"save none by save_strategy='no'. Received: output_dir={output_dir!r}"
        ) from error


def last_checkpoint(output_dir):
    """Return the newest checkpoint that is complete and undamaged: what to resume from after a crash.

    Args:
        output_dir (str): where the Trainer puts its ``checkpoint-<step>`` folders.

    Returns:
        str|None: the folder with the greatest step; None if there is none. Those that were cut short are passed over,
        and with a warning those whose files are not what was written. A checkpoint of a Trainer without our mixin
        counts as complete if it has a trainer state.
    """
    if not isinstance(output_dir, (str, os.PathLike)):
        raise TypeError(f"`output_dir` must be a path. Received: output_dir={output_dir!r}")
    found = []
    for name in os.listdir(output_dir) if os.path.isdir(output_dir) else []:
        match = _NUMBERED.match(name)
        if match and _is_complete(os.path.join(output_dir, name)):
            found.append((int(match.group(1)), os.path.join(output_dir, name)))
    for _, folder in sorted(found, reverse=True):
        problem = _damage(folder)
        if problem is None:
            return folder
        warnings.warn(f"{folder} is damaged and passed over: {problem}.", stacklevel=2)
    return None


def oldest_first(folders, step, best):
    """Return checkpoints in the order in which they may go, whatever the clock was when they were written.

    Args:
        folders (list[str]): with others among them, which are left out.
        step (int): that of the newest of this run; later ones are left from a run that this one went on before.
        best (str|None): the one with the best model, which goes last but for the newest.
    """
    steps = {folder: int(match.group(1)) for folder in folders if (match := _NUMBERED.match(os.path.basename(folder)))}

    def place(folder):
        kept = 2 if steps[folder] == step else folder == best
        return steps[folder] <= step, kept, steps[folder]

    return sorted(steps, key=place)


def _is_complete(folder):
    names = os.listdir(folder)
    return PARTIAL not in names and any(name.startswith("trainer_state.") for name in names)


def beside(checkpoint, other, output_dir):
    """Return the path of `other`, a checkpoint of the same run as `checkpoint`: beside it, if it is there.

    Args:
        checkpoint (str): where this one is.
        other (str): where that one was when this one was saved.
        output_dir (str): the run's folder as its arguments say it, which the Trainer compares paths with.
    """
    folder = os.path.dirname(os.path.abspath(checkpoint))
    found = os.path.join(folder, os.path.basename(other))
    if not os.path.isdir(found):
        return other
    if os.path.realpath(folder) == os.path.realpath(output_dir):
        return os.path.join(output_dir, os.path.basename(other))
    return found


def step_of(checkpoint, state_class):
    """Return the number of steps that were taken at a checkpoint; 0 without one, or if it does not say.

    Args:
        checkpoint (str|None): its folder.
        state_class (type): the Trainer's `TrainerState`.
    """
    for name, load in (("trainer_state.json", "load_from_json"), ("trainer_state.bin", "load")):
        path = os.path.join(checkpoint or "", name)
        if checkpoint is not None and os.path.isfile(path):
            return getattr(state_class, load)(path).global_step
    return 0


def check_layout(folder, record):
    """Raise if a checkpoint's files are parts of another layout: the Trainer would miss some, or take wrong ones.

    Args:
        folder (str): the checkpoint's.
        record (dict): the settings of now.

    Raises:
        ValueError: so it is. (Data parallelism has no part in the layout: its processes all have the same.)
    """
    parts = [
        name for form in ("pdopt", "safetensors") for name in glob.glob(os.path.join(folder, f"optimizer*.{form}"))
    ]
    if not os.path.exists(os.path.join(folder, RECORD)) or not parts:
        return
    was, now = _read_record(folder).get("layout", record["layout"]), record["layout"]
    if was != now:
        said = [", ".join(f"{name} {degree}" for name, degree in layout.items()) for layout in (was, now)]
        raise ValueError(
            f"The checkpoint was saved in another layout, {said[0]}, and its optimizer's state is in parts that fit no "
            "other: resume in that layout, or begin a new training from the checkpoint's weights. "
            f"Received: resume_from_checkpoint={folder!r}, {said[1]}"
        )


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
        ValueError: the checkpoint was cut short or is damaged; its settings are unknown or differ.
    """
    received = f"Received: resume_from_checkpoint={folder!r}"
    if os.path.exists(os.path.join(folder, PARTIAL)):
        complete = last_checkpoint(os.path.dirname(os.path.abspath(folder)))
        raise ValueError(
            "The checkpoint was cut short while it was being saved (killed, or no space left): resume from the last "
            f"complete one, {complete or 'of which there is none'}. {received}"
        )
    check_files(folder)
    if not os.path.exists(os.path.join(folder, RECORD)):
        if active and not allowed:
            raise ValueError(
                f"The checkpoint has no {RECORD}, so it is unknown which layer-wise decay it was trained with (a "
                "Trainer without LdoptTrainerMixin has none): give `allow_layerwise_change` to go on from it with the "
                f"decay that is asked for now. {received}"
            )
        return [f"the checkpoint has no {RECORD}"] if active else []
    was = _read_record(folder)
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
            f"Received: resume_from_checkpoint={folder!r}, "
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
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"The layer-wise settings cannot be read ({error}). Received: {path!r}") from error
    if form != FORMAT:
        raise ValueError(
            f"The layer-wise settings were written by another version of paddle_ldopt, which has format {FORMAT}. "
            f"Received: format={form!r} in {path!r}"
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
    out = [
        f"{key} was {was['rule'].get(key)!r} in the checkpoint and is {value!r} now"
        for key, value in now["rule"].items()
        if was["rule"].get(key) != value
    ]
    if was["optimizer"] != now["optimizer"]:
        out.append(f"the optimizer was {was['optimizer']} in the checkpoint and is {now['optimizer']} now")
    unfrozen = "unfreeze_every_k_steps"
    if was.get(unfrozen, now[unfrozen]) != now[unfrozen]:  # it is not in records of version 0.1
        was_said, now_said = (record[unfrozen] or "not used" for record in (was, now))
        out.append(f"every_k_steps of GradualUnfreezeCallback was {was_said} in the checkpoint and is {now_said} now")
    if was["layers"] is not None and now["layers"] is not None:
        out += _tower_differences(was["towers"], now["towers"]) or _layer_differences(was["layers"], now["layers"])
    if was["ratios"] is not None or now["ratios"] is not None:
        out += _item_differences(was["ratios"] or {}, now["ratios"] or {}, "the ratio that a hook gives to", str)
    return out


def _tower_differences(was, now):
    return [
        f"the stack '{tower}' had {was.get(tower, 0)} blocks in the checkpoint and has {now.get(tower, 0)} now"
        for tower in {**was, **now}
        if was.get(tower) != now.get(tower)
    ]


def _layer_differences(was, now):
    return _item_differences(was, now, "the layer of", lambda layer: Layer(*layer).label)


def _item_differences(was, now, what, show):
    """Return one entry for the first few keys that differ between two dicts."""
    out = []
    for name in {**was, **now}:
        if name not in now:
            out.append(f"'{name}' is in the checkpoint only")
        elif name not in was:
            out.append(f"'{name}' is not in the checkpoint")
        elif was[name] != now[name]:
            out.append(f"{what} '{name}' was {show(was[name])} in the checkpoint and is {show(now[name])} now")
    return out[:_SHOWN] + ([f"and {len(out) - _SHOWN} more"] if len(out) > _SHOWN else [])


def take_epoch_rng():
    """Return the states of the generators that samplers shuffle with, NumPy's and Python's, as JSON can hold them."""
    kind, keys, *rest = np.random.get_state()
    version, state, gauss = random.getstate()
    return {"numpy": [kind, np.asarray(keys).tolist(), *rest], "python": [version, list(state), gauss]}


def load_epoch_rng(folder):
    """Return what `take_epoch_rng` gave at the beginning of the epoch of a checkpoint, None if it has none."""
    path = os.path.join(folder, EPOCH_RNG)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def set_epoch_rng(epoch_rng):
    """Put the generators into the states that `take_epoch_rng` gave."""
    kind, keys, *rest = epoch_rng["numpy"]
    np.random.set_state((kind, np.array(keys, dtype="uint32"), *rest))
    version, state, gauss = epoch_rng["python"]
    random.setstate((version, tuple(state), gauss))
