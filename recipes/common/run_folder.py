"""The arguments and the data of a run, kept in its folder for a resume."""

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import paddle
from paddlenlp.trainer import TrainerCallback

from paddle_ldopt.trainer import last_checkpoint, write_whole

from . import error
from .start import take

ARGUMENTS = "arguments.json"
DATA = "data.json"
_CHECKPOINT = r"checkpoint-\d+"  # the name of a checkpoint's folder


class NoteArguments(TrainerCallback):
    """Write the command line of a run when it begins or resumes; a refused resume leaves the earlier one."""

    def __init__(self, argv):
        self._argv, self.first_step = argv, 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Write them without folder and checkpoint, for `with_arguments_of_run`, and note the step."""
        self.first_step, argv = state.global_step, self._argv
        for name in ("output_dir", "resume_from_checkpoint"):
            _, argv = take(argv, name)
        write_json(args.output_dir, ARGUMENTS, argv)


def with_arguments_of_run(argv):
    """Return the command line of a resume: the run's last arguments, overridden by `argv`; others are unchanged."""
    given, rest = take(argv, "resume_from_checkpoint")
    if given is None:
        return argv
    named = re.fullmatch(_CHECKPOINT, os.path.basename(given.rstrip("/")))
    checkpoint = given.rstrip("/") if named else last_checkpoint(given)
    if checkpoint is None or not os.path.exists(os.path.join(checkpoint, "trainer_state.json")):
        raise error("There is no complete checkpoint to resume from.", resume_from_checkpoint=given)
    folder = os.path.dirname(checkpoint) or "."
    path = Path(folder, ARGUMENTS)
    first = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [*first, "--output_dir", folder, *rest, "--resume_from_checkpoint", checkpoint]


def check_folder(args):
    """Raise ValueError if a folder has, or would get, checkpoints of two runs."""
    folder, checkpoint = args.output_dir, args.resume_from_checkpoint
    if checkpoint and os.path.realpath(os.path.dirname(checkpoint) or ".") != os.path.realpath(folder):
        problem = "A run is resumed in its own folder: leave `output_dir` out, or copy the folder first."
        raise error(problem, output_dir=folder, resume_from_checkpoint=checkpoint)
    found = [path.parent for path in Path(folder).glob("checkpoint-*/trainer_state.json") if not checkpoint]
    if any(re.fullmatch(_CHECKPOINT, path.name) and not any(path.glob("*.partial")) for path in found):
        advice = f"pass `--resume_from_checkpoint {folder}` to resume it, or another `output_dir`"
        raise error(f"The folder has checkpoints of another run: {advice}.", output_dir=folder)


def check_data(args, parts):
    """Write checksums of a run's rows; raise ValueError if a resumed run has other rows."""
    now, path = parts.each(_digest), Path(args.output_dir, DATA)
    if not args.resume_from_checkpoint or not path.exists():
        write_json(args.output_dir, DATA, now)
        return
    was = json.loads(path.read_text(encoding="utf-8"))
    changed = [split for split, digest in now.items() if was.get(split) != digest]
    if changed:
        advice = f"restore them, begin a new run, or remove '{path}' to continue with the new rows"
        raise error(f"The {', '.join(changed)} rows changed after the run began: {advice}.", data=parts.source)


def _digest(rows):
    found = hashlib.sha256()
    for row in rows:
        for value in row if isinstance(row, tuple) else (row,):
            if isinstance(value, np.ndarray):
                found.update(f"{value.dtype} {value.shape}".encode())
                value = value.tobytes()
            found.update(value.read_bytes() if isinstance(value, Path) else repr(value).encode())
            found.update(b"\0")
    return found.hexdigest()


def write_json(folder, name, value):
    """Write a file of a run, in the main process only."""
    if paddle.distributed.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        write_whole(os.path.join(folder, name), json.dumps(value, indent=1))
