"""What recipes do around a training: go on with a run that was killed, compare uniform with layer-wise.

argv = with_arguments_of_run(sys.argv[1:])  # of the run that --resume_from_checkpoint names
check_data(args, parts)                     # are the rows those that the run began with?
trainer.add_callback(NoteArguments(argv))   # for the next resume
compare(args, learning_rates=[1e-4, 3e-4], seeds=3, train=train)  # train(args) -> (validation, test) score
"""

import argparse
import contextlib
import copy
import hashlib
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import paddle
from paddlenlp.trainer import Trainer, TrainerCallback
from paddlenlp.utils.log import logger
from rich.console import Console
from rich.table import Table

from paddle_ldopt.trainer import LdoptTrainerMixin, last_checkpoint
from paddle_ldopt.trainer.folders import PARTIAL, write_whole

ARGUMENTS = "arguments.json"
DATA = "data.json"
DIVERGED = "inf or nan"  # what PaddleNLP's Trainer says of such a loss


class FineTuner(LdoptTrainerMixin, Trainer):
    """PaddleNLP's Trainer with layer-wise rates, for any classifier of texts or tokens."""

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the cross entropy, if wanted with (loss, logits)."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs[0] if isinstance(outputs, (tuple, list)) else outputs  # some add their cache
        loss = paddle.nn.functional.cross_entropy(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss


class NoteArguments(TrainerCallback):
    """Write the arguments of a run when it begins or goes on; a resume that is refused leaves those that were there.

    Args:
        argv (list[str]): the command line.
    """

    def __init__(self, argv):
        self._argv = argv

    def on_train_begin(self, args, state, control, **kwargs):
        """Write them."""
        note_arguments(args.output_dir, self._argv)


def note_arguments(folder, argv):
    """Write a command line, for `with_arguments_of_run`, which knows its folder and the checkpoint.

    Args:
        folder (str): the run's.
        argv (list[str]): the command line, with the arguments that the run had before if it is resumed.
    """
    for name in ("output_dir", "resume_from_checkpoint"):
        _, argv = take(argv, name)
    write_json(folder, ARGUMENTS, argv)


def take(argv, name):
    """Return what a command line says for an argument, None if nothing, and the line without it."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(f"--{name}")
    given, rest = finder.parse_known_args(argv)
    return getattr(given, name), rest


def with_arguments_of_run(argv):
    """Return a command line that resumes a run with the arguments that it had last, below those of `argv`.

    Args:
        argv (list[str]): a command line; returned as it is if it resumes nothing.

    Raises:
        ValueError: the folder of a run, or the checkpoint in one, is not there or not complete.
    """
    given, rest = take(argv, "resume_from_checkpoint")
    if given is None:
        return argv
    checkpoint = given.rstrip("/")
    if not re.fullmatch(r"checkpoint-\d+", os.path.basename(checkpoint)):
        checkpoint = last_checkpoint(given)
    if checkpoint is None or not os.path.exists(os.path.join(checkpoint, "trainer_state.json")):
        raise ValueError(f"There is no complete checkpoint to resume from. Received: resume_from_checkpoint={given!r}")
    folder = os.path.dirname(checkpoint) or "."
    path, first = os.path.join(folder, ARGUMENTS), []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            first = json.load(file)
    return [*first, "--output_dir", folder, *rest, "--resume_from_checkpoint", checkpoint]


def check_folder(args):
    """Raise ValueError if a run's folder has, or would get, the checkpoints of two runs."""
    folder, checkpoint = args.output_dir, args.resume_from_checkpoint
    if checkpoint and os.path.realpath(os.path.dirname(checkpoint) or ".") != os.path.realpath(folder):
        raise ValueError(
            "A run is resumed in its own folder: leave `output_dir` out, or copy the folder first. "
            f"Received: output_dir={folder!r}, resume_from_checkpoint={checkpoint!r}"
        )
    if checkpoint:
        return
    if last_checkpoint(folder):
        raise ValueError(
            f"The folder has checkpoints of another run: give `--resume_from_checkpoint {folder}` to go on with it, or "
            f"another `output_dir`. Received: output_dir={folder!r}"
        )
    damaged = [path.parent.name for path in sorted(Path(folder).glob("checkpoint-*/trainer_state.json"))]
    damaged = [name for name in damaged if not os.path.exists(os.path.join(folder, name, PARTIAL))]  # else: cut short
    if damaged:
        raise ValueError(
            f"The folder has checkpoints of another run, all of them damaged ({', '.join(damaged)}): give another "
            f"`output_dir`, or remove them to begin anew. Received: output_dir={folder!r}"
        )


def check_data(args, parts):
    """Note what the rows of a run are; raise ValueError if those of a run that is resumed are others.

    Args:
        args (dataclass): with `output_dir` and `resume_from_checkpoint`.
        parts (Parts|Splits): the rows.
    """
    now = {split: _digest(getattr(parts, split)) for split in ("train", "validation", "test")}
    path = os.path.join(args.output_dir, DATA)
    if not args.resume_from_checkpoint or not os.path.exists(path):
        write_json(args.output_dir, DATA, now)
        return
    with open(path, encoding="utf-8") as file:
        was = json.load(file)
    changed = [split for split, digest in now.items() if was.get(split) != digest]
    if changed:
        raise ValueError(
            f"The {', '.join(changed)} rows are not those that the run began with: bring them back; or remove {path!r} "
            "to go on with those of now, as many of which are skipped as were trained on; or begin a new run. "
            f"Received: {parts.description}"
        )


def _digest(rows):
    """Return the SHA-256 of rows; of files that they name, their content."""
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


@contextlib.contextmanager
def quiet(path):
    """Write what is printed and logged to a file."""
    with open(path, "a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        before = logger.handler.setStream(log)
        try:
            yield
        finally:
            logger.handler.setStream(before)


def compare(args, learning_rates, seeds, train):
    """Train with a uniform rate and with layer-wise decay, at several rates with the same seeds; print all of it.

    Which rate is best for an arm is decided by the validation score, so that the test score is that of a rate that
    could have been chosen. Every run is in ``compare.json`` as soon as it is over; one that diverged has no score.

    Args:
        args (TrainingArguments): with `layerwise_lr_decay`, the decay of the second arm.
        learning_rates (list[float]): the rates.
        seeds (int): how many seeds, from `args.seed` on.
        train (callable): args -> (validation score, test score), of a new model.
    """
    arms, runs = {"uniform": 1.0, f"decay {args.layerwise_lr_decay:g}": args.layerwise_lr_decay}, []
    todo = [(rate, arm, args.seed + seed) for rate in learning_rates for arm in arms for seed in range(seeds)]
    for rate, arm, seed in todo:
        now = copy.deepcopy(args)
        now.learning_rate, now.layerwise_lr_decay, now.seed = rate, arms[arm], seed
        now.evaluation_strategy = now.save_strategy = type(args.save_strategy)("no")
        now.load_best_model_at_end, now.report_to = False, []
        try:
            with paddle.utils.unique_name.guard(), contextlib.redirect_stdout(sys.stderr):
                validation, test = train(now)
            found = f"validation {validation:.3f}, test {test:.3f}"
        except ValueError as error:
            if DIVERGED not in str(error):
                raise
            validation, test, found = None, None, "diverged"
        runs.append({"learning_rate": rate, "arm": arm, "seed": seed, "validation": validation, "test": test})
        write_json(args.output_dir, "compare.json", runs)
        _print(f"[{len(runs)}/{len(todo)}] learning rate {rate:g}, {arm}, seed {seed}: {found}")

    def scores(rate, arm, split):
        found = [run[split] for run in runs if (run["learning_rate"], run["arm"]) == (rate, arm)]
        return [math.nan if score is None else score for score in found]

    table = Table("learning rate", *arms, title=f"test score, mean and standard deviation of {seeds} seeds")
    for rate in learning_rates:
        table.add_row(f"{rate:g}", *(spread(scores(rate, arm, "test")) for arm in arms))
    _print(table)
    for arm in arms:
        best = best_of({rate: statistics.mean(scores(rate, arm, "validation")) for rate in learning_rates})
        _print(f"{arm}: {spread(scores(best, arm, 'test'))} at learning rate {best:g}, the best by validation")


def best_of(means):
    """Return the key of the greatest number; one that is not finite is less than all others."""
    return max(means, key=lambda key: means[key] if math.isfinite(means[key]) else -math.inf)


def spread(values):
    """Return mean and standard deviation in words."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def _print(what):
    if paddle.distributed.get_rank() == 0:
        Console(soft_wrap=True, highlight=False).print(what, markup=False)
