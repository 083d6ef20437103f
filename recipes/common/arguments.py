"""A recipe's arguments, on the command line or in a YAML file; the folder of a run, for its resume."""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import ClassVar, Optional

import numpy as np
import paddle
from paddlenlp.trainer import PdArgumentParser, TrainerCallback, TrainingArguments
from paddlenlp.utils.log import logger

from paddle_ldopt import SchedulerType, list_optimizers
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.trainer import LdoptArgumentsMixin, last_checkpoint, write_whole

from . import error
from .start import check, given_in, take, with_config

ARGUMENTS, DATA = "arguments.json", "data.json"
CHECKPOINT = r"checkpoint-\d+"  # the name of a checkpoint's folder
LOWER_IS_BETTER = ("loss", "perplexity", "rmse")
MOST_USED = ("max_steps", "max_grad_norm", "warmup_steps", "seed", "fp16", "allow_layerwise_change")  # in --help


def option(default, text, least=None):
    """Return a field of the command line; `start.check` reads `least` from the source."""
    more = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return dataclasses.field(**more, metadata={"help": text.replace("%", "%%")})  # argparse formats it


@dataclasses.dataclass
class RecipeArguments(LdoptArgumentsMixin, TrainingArguments):
    """PaddleNLP's arguments, with defaults for fine-tuning an encoder on few samples; a recipe derives its own."""

    recipe: ClassVar[str] = "recipe"
    metrics: ClassVar[tuple] = ("accuracy", "loss")
    output_dir: Optional[str] = option(None, "folder of the run; runs/<recipe>-<time> by default")
    resume_from_checkpoint: Optional[str] = option(None, "folder of the run to resume, or a checkpoint in it")
    learning_rate: float = option(3e-4, "peak learning rate, the mean over the blocks of the model")
    lr_scheduler_type: str = option("linear", ", ".join(kind.value for kind in SchedulerType))
    optim: str = option("adamwdl", f"{', '.join(list_optimizers())}, or one of the Trainer, such as adamw")
    # chosen by the second study of docs/evidence.md, with the mean preserved
    layerwise_lr_decay: float = option(0.8, "rate of a layer / rate of the layer above; 1 is uniform")
    layerwise_preserve_mean: Optional[bool] = option(None, "keep the mean rate of the blocks; default for a decay < 1")
    weight_decay: float = option(0.01, "weight decay of all parameters except biases and norms")
    warmup_ratio: Optional[float] = option(None, "warm-up as a fraction of all steps; 0.1 if the schedule has one")
    num_train_epochs: float = option(8.0, "number of epochs")
    per_device_train_batch_size: int = option(16, "training rows per batch on each device")
    per_device_eval_batch_size: int = option(64, "evaluation rows per batch on each device")
    metric_for_best_model: str = option("accuracy", "validation metric that chooses the checkpoint to keep")
    early_stopping_patience: int = option(3, "evaluations without improvement before the training stops")
    save_total_limit: Optional[int] = option(1, "number of checkpoints to keep in addition to the best")
    device: str = option(paddle.get_device().partition(":")[0], "gpu, xpu, npu or cpu")  # the installed Paddle's
    logging_steps: int = 5
    evaluation_strategy: str = "epoch"
    save_strategy: str = "epoch"
    load_best_model_at_end: bool = True

    def __init_subclass__(cls):
        cls.recipe = Path(sys.modules[cls.__module__].__file__).stem

    def __post_init__(self):
        if self.layerwise_preserve_mean is None:
            self.layerwise_preserve_mean = self.layerwise_lr_decay != 1
        if self.warmup_ratio is None:
            self.warmup_ratio = 0.1 * ("num_warmup_steps" in SCHEDULES[self.lr_scheduler_type].options)
        for name in ("fp16", "bf16"):  # a Paddle for GPUs, but no GPU; `start.check` refuses all else
            if getattr(self, name) and self.device.startswith("cpu"):
                raise error(f"`--{name}` needs a GPU: leave it out on a CPU.", **{name: True}, device=self.device)
        if self.greater_is_better is None:
            self.greater_is_better = self.metric_for_best_model not in LOWER_IS_BETTER
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        paddle.set_device(self.device)  # of several processes, each takes its own
        super().__post_init__()
        if self.load_best_model_at_end and self.evaluation_strategy.value == "no":
            raise error("`--load_best_model_at_end` needs evaluations.", evaluation_strategy="no")


def parse(argv, cls):
    """Return a recipe's arguments; their `argv` is the command line, with those of the config and the resumed run."""
    argv = with_arguments_of_run(with_config(argv))
    args = parse_line(argv, cls)
    args.argv = argv
    if "early_stopping_patience" in dict(given_in(argv)) and not args.load_best_model_at_end:
        raise error("Early stopping needs `--load_best_model_at_end`.", load_best_model_at_end=False)
    check_folder(args)
    return args


def choose_metric(args, names):
    """Have the first of these metrics choose the best model, unless the command line names another of them or loss."""
    if "metric_for_best_model" not in dict(given_in(args.argv)):
        args.metric_for_best_model = names[0]
        args.greater_is_better = names[0] not in LOWER_IS_BETTER
    elif args.metric_for_best_model not in (*names, "loss"):
        valid = ", ".join((*names, "loss"))
        raise error(f"These labels have the metrics {valid}.", metric_for_best_model=args.metric_for_best_model)


def parse_line(argv, cls):
    """Return an object of this dataclass, or print help; ``--help-all`` prints all of the Trainer's arguments."""
    logger.set_level("WARNING")
    parser = PdArgumentParser(cls, allow_abbrev=False)  # `take` finds whole names
    parser.add_argument("--config", default=argparse.SUPPRESS, help="YAML file; the command line overrides it")
    if {"-h", "--help", "--help-all", "--help_all"} & set(argv):
        _print_help(parser, cls, everything=not {"-h", "--help"} & set(argv))
        sys.exit(0)
    check(sys.modules[cls.__module__].__file__, argv)
    return parser.parse_args_into_dataclasses(with_config(argv))[0]


def _print_help(parser, cls, everything):
    every = {field.name: field.metadata.get("help") for field in dataclasses.fields(RecipeArguments)}
    ours = {name: text for name, text in every.items() if text and name in RecipeArguments.__annotations__}
    trainers = {field.name for field in dataclasses.fields(TrainingArguments)} - {*ours, *MOST_USED}
    print(sys.modules[cls.__module__].__doc__)
    for action in sorted(parser._actions, key=lambda action: action.dest in every):  # the recipe's own first
        if action.option_strings[-1].startswith("--no") or (action.dest in trainers and not everything):
            continue
        if action.dest == "metric_for_best_model":
            ours[action.dest] += f": {', '.join(cls.metrics)}"
        empty = action.default in (None, argparse.SUPPRESS, dataclasses.MISSING, "", {}) or callable(action.default)
        default = "" if empty else f" ({action.default})"
        text = f"  --{action.dest:30} {ours.get(action.dest, action.help)}{default}".replace("%%", "%")
        print(textwrap.fill(text, 100, subsequent_indent=" " * 35))
    if issubclass(cls, RecipeArguments):
        print("\n--help-all prints all arguments of PaddleNLP's Trainer.")


class NoteArguments(TrainerCallback):
    """Write the command line of a run when it begins or resumes; a refused resume leaves the earlier one."""

    first_step = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step, argv = state.global_step, args.argv
        for name in ("output_dir", "resume_from_checkpoint"):
            _, argv = take(argv, name)
        write_json(args.output_dir, ARGUMENTS, argv)


def with_arguments_of_run(argv):
    """Return the command line of a resume: the run's last arguments, overridden by `argv`; others are unchanged."""
    given, rest = take(argv, "resume_from_checkpoint")
    if given is None:
        return argv
    named = re.fullmatch(CHECKPOINT, os.path.basename(given.rstrip("/")))
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
        problem = "A run is resumed in its own folder: leave `--output_dir` out, or copy the folder first."
        raise error(problem, output_dir=folder, resume_from_checkpoint=checkpoint)
    found = [path.parent for path in Path(folder).glob("checkpoint-*/trainer_state.json") if not checkpoint]
    if any(re.fullmatch(CHECKPOINT, path.name) and not any(path.glob("*.partial")) for path in found):
        advice = f"pass `--resume_from_checkpoint {folder}` to resume it, or another `--output_dir`"
        raise error(f"The folder has checkpoints of another run: {advice}.", output_dir=folder)


def check_data(args, parts):
    """Write checksums of a run's rows; raise ValueError if a resumed run has other rows."""
    now, path = parts.each(_digest), Path(args.output_dir, DATA)
    if not args.resume_from_checkpoint or not path.exists():
        write_json(args.output_dir, DATA, now)
        return
    was = json.loads(path.read_text(encoding="utf-8"))
    if changed := [split for split, digest in now.items() if was.get(split) != digest]:
        advice = f"restore them, begin a new run, or remove '{path}' to continue with the new rows"
        raise error(f"The {', '.join(changed)} rows changed after the run began: {advice}.", data=parts.source)


def _digest(rows):
    found = hashlib.sha256()
    for row in rows:
        for value in row if isinstance(row, tuple) else (row,):
            if isinstance(value, np.ndarray):
                found.update(f"{value.dtype} {value.shape}".encode())
                value = value.tobytes()
            found.update((value.read_bytes() if isinstance(value, Path) else repr(value).encode()) + b"\0")
    return found.hexdigest()


def write_json(folder, name, value):
    """Write a file of a run, in the main process only."""
    if paddle.distributed.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        write_whole(os.path.join(folder, name), json.dumps(value, indent=1))
