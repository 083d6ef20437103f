"""The folders of checkpoints: whether one was written to its end and is as it was written, which one to take or drop.

While the Trainer writes a checkpoint, its record is there as ``ldopt_layerwise.json.partial``; it gets its name when
all the rest is on disk. A process that is killed in between leaves a checkpoint that says that it is cut short.
"""

import itertools
import json
import os
import re
import tempfile
import warnings

from .._checks import shown
from ..saving.container import damage, digest

__all__ = [
    "begin_checkpoint",
    "beside",
    "check_files",
    "check_writable",
    "finish_checkpoint",
    "last_checkpoint",
    "list_files",
    "oldest_first",
    "set_aside",
    "step_of",
    "write_whole",
]

RECORD = "ldopt_layerwise.json"
PARTIAL = RECORD + ".partial"
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
    listed = {  # the record by the name that it is to get
        RECORD if name == PARTIAL else name: digest(os.path.join(folder, name))
        for name in sorted(found)
        if name != FILES
    }
    with open(os.path.join(folder, FILES), "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "files": listed}, file, indent=1)


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
            f"{sound or 'of which there is none'}. Received: resume_from_checkpoint={shown(folder)}"
        )


def _damage(folder):
    """Return in words what is wrong with the files of a checkpoint, None if nothing is."""
    path = os.path.join(folder, FILES)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            listed = json.load(file)["files"].items()
        wrong = [words for name, written in listed if (words := damage(folder, name, written)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{FILES} cannot be read ({error})"
    except OSError as error:
        return str(error)
    return "; ".join(wrong[:_SHOWN]) or None


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
            f"save none by save_strategy='no'. Received: output_dir={shown(output_dir)}"
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
        raise TypeError(f"`output_dir` must be a path. Received: output_dir={shown(output_dir)}")
    for _, folder in reversed(_complete(output_dir)):
        problem = _damage(folder)
        if problem is None:
            return folder
        warnings.warn(f"{folder} is damaged and passed over: {problem}.", stacklevel=2)
    return None


def set_aside(output_dir, step):
    """Rename the checkpoints of steps that a run has not come to yet: `last_checkpoint` would take them for its own.

    Those that were cut short or are damaged stay, for nothing takes them and the run may write them anew.

    Args:
        output_dir (str): where the checkpoints are.
        step (int): the step that the run is to go on from.

    Returns:
        list[tuple[str, str]]: what each was called and is called now, ``superseded-checkpoint-<step>``, with another
            number behind it if there is one already.
    """
    renamed = []
    for number, folder in _complete(output_dir):
        if number > step and _damage(folder) is None:
            aside = os.path.join(output_dir, f"superseded-{os.path.basename(folder)}")
            others = (f"{aside}-{again}" for again in itertools.count(2))
            free = next(name for name in itertools.chain([aside], others) if not os.path.lexists(name))
            os.rename(folder, free)
            renamed.append((folder, free))
    return renamed


def oldest_first(folders, step, best):
    """Return checkpoints in the order in which they may go, whatever the clock was when they were written.

    Args:
        folders (list[str]): with others among them, which are left out.
        step (int): that of the newest of this run; later ones are left from a run that this one went on before. If no
            checkpoint is of this step, the newest is the one with the highest.
        best (str|None): the one with the best model, which goes last but for the newest.
    """
    steps = {folder: int(match.group(1)) for folder in folders if (match := _NUMBERED.match(os.path.basename(folder)))}
    if step not in steps.values():
        step = max(steps.values(), default=step)

    def place(folder):
        kept = 2 if steps[folder] == step else folder == best
        return steps[folder] <= step, kept, steps[folder]

    return sorted(steps, key=place)


def _complete(output_dir):
    """Return (step, folder) of the checkpoints that were written to their end, by their steps."""
    found = []
    for name in os.listdir(output_dir) if os.path.isdir(output_dir) else []:
        match = _NUMBERED.match(name)
        if match and _is_complete(os.path.join(output_dir, name)):
            found.append((int(match.group(1)), os.path.join(output_dir, name)))
    return sorted(found)


def _is_complete(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
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


def write_whole(path, text):
    """Write a file whole or not at all, so that a process that is killed meanwhile leaves the old one.

    A link stays a link: the file it leads to is written. A device or a pipe is written through, never replaced.

    Args:
        path (str|os.PathLike): the file.
        text (str): its new content.
    """
    path = os.path.realpath(path)
    regular = os.path.isfile(path) or not os.path.exists(path)
    written = f"{path}.part" if regular else path
    with open(written, "w", encoding="utf-8", errors="backslashreplace") as file:  # file names may be no UTF-8
        file.write(text)
    if regular:
        os.replace(written, path)


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
