"""The folder of a checkpoint: our files, whether it is complete, and its layer-wise settings.

A checkpoint contains the empty file `PARTIAL` while the Trainer writes it; a killed process leaves it behind.
"""

import itertools
import json
import os
import re
import tempfile
import warnings
from typing import Any, Optional

from .._checks import refusal
from .._files import Path, checked_path, damages, digest, file_errors, read_json
from ..checkpoint import Record, record_differences
from ..config import SETTINGS
from ..optimizers.options import REGISTRY

LAYERWISE = "ldopt_layerwise.json"
EPOCH_RNG = "ldopt_epoch_rng.json"
CONFIG = "ldopt_config.json"
FILES = "ldopt_files.json"
PARTIAL = "ldopt_checkpoint.partial"
FORMAT = 3  # of the layer-wise settings

_NUMBERED = re.compile(r"^checkpoint-(\d+)$")


def begin_checkpoint(folder: str, files: dict[str, Any]) -> None:
    """Mark a checkpoint as partial, and replace our files of an earlier run."""
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, PARTIAL), "w").close()
    for name in (LAYERWISE, EPOCH_RNG, CONFIG, FILES):
        if name in files:
            _write_json(folder, name, files[name])
        elif os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))


def finish_checkpoint(folder: str, all_written: bool = True) -> None:
    """Mark a checkpoint as complete; list its files unless some are still written in the background."""
    if os.path.exists(partial := os.path.join(folder, PARTIAL)):
        if all_written:
            paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
            names = sorted({os.path.relpath(path, folder) for path in paths} - {FILES, PARTIAL})
            files = {name: digest(os.path.join(folder, name)) for name in names}
            _write_json(folder, FILES, {"format": 1, "files": files})
        os.remove(partial)


def _write_json(folder: str, name: str, content: Any) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)


def check_complete(folder: str) -> None:
    """Raise ValueError if a checkpoint is incomplete, or a listed file is missing or changed."""
    if os.path.exists(os.path.join(folder, PARTIAL)):
        state = "is incomplete: the run was killed or the disk was full while saving"
    elif problem := _damage(folder):
        state = f"is damaged: {problem}"
    else:
        return
    advice = "train(resume_from_checkpoint=True) takes the last valid one."
    raise refusal(ValueError, f"The checkpoint {state}: {advice}", resume_from_checkpoint=folder)


def _damage(folder: str) -> Optional[str]:
    path = os.path.join(folder, FILES)
    if not os.path.exists(path):
        return None
    try:
        with file_errors(path, FILES):
            problems = damages(folder, read_json(path)["files"].items())
    except ValueError:
        return f"{FILES} cannot be read"
    except OSError as error:
        return str(error)
    return "; ".join(problems[:3]) or None


def check_writable(output_dir: str) -> None:
    try:
        os.makedirs(output_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir) as file:
            file.write(b"can be written")
    except OSError as error:
        wrong = f"Checkpoints cannot be saved in `output_dir` ({error}): free space, change its permissions, choose"
        todo = "another folder, or set save_strategy='no'."
        raise refusal(ValueError, f"{wrong} {todo}", output_dir=output_dir) from error


def last_checkpoint(output_dir: Path) -> Optional[str]:
    """Return the valid checkpoint with the highest step in the Trainer's `output_dir`, or None.

    Incomplete checkpoints are skipped, damaged checkpoints with a warning.
    """
    for _, folder in reversed(_complete(checked_path(output_dir, "output_dir"))):
        problem = _damage(folder)
        if problem is None:
            return folder
        wrong = f"{folder} is damaged and skipped: {problem}."
        warnings.warn(refusal(UserWarning, wrong, output_dir=os.fspath(output_dir)), stacklevel=2)
    return None


def set_aside(output_dir: str, step: int) -> list[tuple[str, str]]:
    """Rename valid checkpoints after `step`, which `last_checkpoint` would mistake for this run's.

    Return old and new names: ``superseded-checkpoint-<step>``, with a number if this exists.
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


def oldest_first(folders: list[str], step: int, best: Optional[str]) -> list[str]:
    """Sort for deletion: an earlier run's first, then older ones, the best, that of `step`."""
    steps = {folder: int(match.group(1)) for folder in folders if (match := _NUMBERED.match(os.path.basename(folder)))}
    if step not in steps.values():
        step = max(steps.values(), default=step)
    return sorted(steps, key=lambda at: (steps[at] <= step, 2 if steps[at] == step else at == best, steps[at]))


def _complete(output_dir: str) -> list[tuple[int, str]]:
    checkpoints = []
    for name in os.listdir(output_dir) if os.path.isdir(output_dir) else []:
        match, folder = _NUMBERED.match(name), os.path.join(output_dir, name)
        names = os.listdir(folder) if match and os.path.isdir(folder) else []
        if match and PARTIAL not in names and any(name.startswith("trainer_state.") for name in names):
            checkpoints.append((int(match.group(1)), folder))
    return sorted(checkpoints)


def check_record(folder: str, record: Record, allowed: bool) -> list[str]:
    """Return the allowed differences from a checkpoint's record; raise for others."""
    # a Trainer without our mixin writes no record, and has no decay
    path, content = os.path.join(folder, LAYERWISE), "The layer-wise settings"
    without: Record = {"decay": {}, "layers": {}, "frozen": [], "unfreeze_every_k_steps": None}
    was = read_json(path, content) if os.path.exists(path) else {**record, **without}
    with file_errors(path, content, checks=True):
        if was["format"] != FORMAT:
            wrong = "Another version of paddle_ldopt wrote the layer-wise settings; this version reads format"
            raise refusal(ValueError, f"{wrong} {FORMAT}.", format=was["format"], path=path)
        classes = was["optimizer"], record["optimizer"]
        unfrozen = set(was["frozen"]) - set(record["frozen"])
        parts = [name for name in os.listdir(folder) if re.match(r"optimizer.*\.(pdopt|safetensors)$", name)]
        named = [{**one, "decay": {SETTINGS[n]: v for n, v in one["decay"].items()}} for one in (was, record)]
        found = record_differences(*named)
        if unfrozen:
            first = f"{len(unfrozen)} parameters, such as '{min(unfrozen)}'"
            found.append(f"{first}, were frozen and have no optimizer state in it")
    why = ""
    if set(classes) not in ({record["optimizer"]}, {"AdamW", "AdamWDL"}):
        why = f"the state of {classes[0]} cannot be loaded into {classes[1]}"
    elif was["layout"] != record["layout"] and parts:
        why = f"it was saved in the layout {was['layout']}, and its optimizer's state fits no other"
    elif unfrozen and classes[1] not in {info.cls.__name__ for info in REGISTRY.values()}:
        why = f"{found[-1]}, which Paddle's optimizers need"
    elif found and not allowed:
        why = f"{'; '.join(found)}. `allow_layerwise_change` resumes with the present settings"
    if why:
        wrong = "The checkpoint is of another optimizer or other layer-wise settings"
        advice = "Resume with the same settings, or start a new run from the checkpoint's weights."
        raise refusal(ValueError, f"{wrong}: {why}. {advice}", resume_from_checkpoint=folder)
    return found
