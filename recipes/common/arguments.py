"""A recipe's arguments, on the command line or in a YAML file."""

import argparse
import dataclasses
import sys
import time
from typing import ClassVar, Optional

import paddle
from paddlenlp.trainer import PdArgumentParser, TrainingArguments
from paddlenlp.utils.log import logger

from paddle_ldopt import SchedulerType, list_optimizers
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.trainer import LdoptArgumentsMixin

from . import error, refuse
from .run_folder import check_folder, with_arguments_of_run
from .start import check, given_in, with_config

HELP = {  # help of the Trainer's own arguments and of arguments with another default here
    "output_dir": "folder of the run; runs/<recipe>-<time> by default",
    "resume_from_checkpoint": "folder of the run to resume, or a checkpoint in it",
    "optim": f"{', '.join(list_optimizers())}, or an optimizer of the Trainer, such as adamw",
    "learning_rate": "peak learning rate, the mean over the blocks of the model",
    "lr_scheduler_type": ", ".join(kind.value for kind in SchedulerType),
    "warmup_ratio": "warm-up as a fraction of all steps",
    "warmup_steps": "number of warm-up steps, instead of --warmup_ratio",
    "weight_decay": "weight decay of all parameters except biases and norms",
    "max_grad_norm": "global norm to which gradients are clipped; 0 is off",
    "layerwise_lr_decay": "rate of a layer / rate of the layer above; 1 is uniform",
    "layerwise_preserve_mean": "divide all ratios by their mean over the blocks; by default true for a decay below 1",
    "layerwise_head_ratio": "ratio of the head, above 0",
    "num_train_epochs": "number of epochs",
    "max_steps": "number of steps, instead of --num_train_epochs; -1 is off",
    "per_device_train_batch_size": "training rows per batch on each device",
    "per_device_eval_batch_size": "evaluation rows per batch on each device",
    "metric_for_best_model": "validation metric that chooses the checkpoint to keep",
    "save_total_limit": "number of checkpoints to keep in addition to the best",
    "seed": "seed of new weights, dropout and the order of the rows",
    "device": "cpu or gpu",
    "early_stopping_patience": "evaluations without improvement before the training stops",
    "fp16": "train in float16; on a GPU only",
    "verbose": "print the Trainer's log and the schedule",
}
SHOWN = (*HELP, "allow_layerwise_change", "config")  # by --help, of the Trainer's arguments
LOWER_IS_BETTER = ("loss", "perplexity", "rmse")


@dataclasses.dataclass
class RecipeArguments(LdoptArgumentsMixin, TrainingArguments):
    """PaddleNLP's training arguments, with defaults for fine-tuning an encoder on few samples.

    A recipe derives its own class, with its name and the metrics that may choose the best model.
    """

    recipe: ClassVar[str] = "recipe"
    metrics: ClassVar[tuple] = ("accuracy", "loss")

    output_dir: Optional[str] = None  # runs/<recipe>-<time>
    learning_rate: float = 3e-4
    optim: str = "adamwdl"
    layerwise_lr_decay: float = 0.8  # chosen by the second study of docs/evidence.md, with the mean preserved
    layerwise_preserve_mean: Optional[bool] = None  # true for a decay other than 1
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    num_train_epochs: float = 8
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 64
    logging_steps: int = 5
    evaluation_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_total_limit: Optional[int] = 1  # the last checkpoint; the best is kept too
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "accuracy"
    early_stopping_patience: int = 3
    device: str = paddle.get_device().partition(":")[0]  # the installed Paddle's: gpu, xpu, npu or cpu
    verbose: bool = False

    def __post_init__(self):
        if self.layerwise_preserve_mean is None:
            self.layerwise_preserve_mean = self.layerwise_lr_decay != 1
        for name in ("fp16", "bf16"):  # a Paddle for GPUs, but no GPU; all else is refused before Paddle is imported
            if getattr(self, name) and self.device.startswith("cpu"):
                raise error(f"`{name}` needs a GPU: leave it out on a CPU.", **{name: True}, device=self.device)
        if self.greater_is_better is None:
            self.greater_is_better = self.metric_for_best_model not in LOWER_IS_BETTER
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        paddle.set_device(self.device)  # of several processes, each takes its own
        super().__post_init__()
        if self.load_best_model_at_end and self.evaluation_strategy.value == "no":
            raise error("`load_best_model_at_end` needs evaluations.", evaluation_strategy="no")


def option(default, text, least=None):
    """Return a field of the command line; `start.check` reads `least` from the source."""
    more = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return dataclasses.field(**more, metadata={"help": text.replace("%", "%%")})  # argparse formats it


@dataclasses.dataclass
class FileOptions:
    """How files are read."""

    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")


def parse(argv, *classes):
    """Return one object of each dataclass, and the command line with the arguments of its config and its earlier run.

    Arguments beside ``--config FILE`` override those of the YAML file, wherever they stand; arguments of a resume
    override those of the run. The last class is a `RecipeArguments`.

    Raises:
        ValueError: an argument is unknown, wrong or without an effect, or the folder is another run's.
    """
    argv = with_arguments_of_run(with_config(argv))
    found = parse_line(argv, *classes)
    refuse(_without_effect(found[-1], dict(given_in(argv))))
    check_folder(found[-1])
    if found[-1].verbose:
        logger.set_level("INFO")
    return (*found, argv)


def _without_effect(args, given):
    """Yield an error for each given argument that another argument makes useless."""
    if "early_stopping_patience" in given and not args.load_best_model_at_end:
        problem, patience = "Early stopping needs `load_best_model_at_end`.", args.early_stopping_patience
        yield error(problem, early_stopping_patience=patience, load_best_model_at_end=False)
    kind = args.lr_scheduler_type.value
    warmup = {name: getattr(args, name) for name in ("warmup_steps", "warmup_ratio") if name in given}
    if any(warmup.values()) and "num_warmup_steps" not in SCHEDULES[kind].options:
        instead = "choose another schedule, such as `constant_with_warmup`, or set the warm-up to 0"
        yield error(f"The schedule `{kind}` has no warm-up: {instead}.", lr_scheduler_type=kind, **warmup)


def choose_metric(args, names, argv):
    """Have the first of these metrics choose the best model, unless the command line names another of them or loss."""
    if "metric_for_best_model" not in dict(given_in(argv)):
        args.metric_for_best_model = names[0]
        args.greater_is_better = names[0] not in LOWER_IS_BETTER
    elif args.metric_for_best_model not in (*names, "loss"):
        valid = ", ".join((*names, "loss"))
        raise error(f"These labels have the metrics {valid}.", metric_for_best_model=args.metric_for_best_model)


def parse_line(argv, *classes):
    """Return one object of each of these dataclasses, as `parse` does, without resuming a run.

    ``--help`` prints our arguments and the most used of the Trainer's, ``--help-all`` prints all.
    """
    logger.set_level("WARNING")  # `--verbose` sets INFO
    usage, trains = "%(prog)s [--config FILE] [arguments]", issubclass(classes[-1], TrainingArguments)
    if trains:
        usage += "; --help-all also shows all arguments of PaddleNLP's Trainer"
    parser = PdArgumentParser(classes, usage=usage, allow_abbrev=False)  # `take` finds whole names
    text = "YAML file of arguments; the command line overrides it"
    parser.add_argument("--config", default=argparse.SUPPRESS, metavar="FILE", help=text)
    if trains:
        texts = {**HELP, "metric_for_best_model": f"{HELP['metric_for_best_model']}: {', '.join(classes[-1].metrics)}"}
        for action in parser._actions:
            action.help = texts.get(action.dest, action.help)
    if {"-h", "--help"} & set(argv):
        _hide(parser, classes)
    if {"-h", "--help", "--help-all", "--help_all"} & set(argv):
        parser.print_help()
        sys.exit(0)
    check(sys.modules[classes[0].__module__].__file__, argv)
    return parser.parse_args_into_dataclasses(with_config(argv))


def _hide(parser, classes):
    """Have the help of a parser show our arguments and the most used of the Trainer's."""
    trainers = {field.name for field in dataclasses.fields(TrainingArguments)} if len(classes) == 2 else set()
    parser.description = sys.modules[classes[0].__module__].__doc__
    parser.formatter_class = lambda prog: _Help(prog, max_help_position=33, width=100)
    for action in parser._actions:
        name = action.option_strings[-1].lstrip("-")
        unset = action.default in (None, argparse.SUPPRESS, dataclasses.MISSING, "", {}) or callable(action.default)
        action.metavar = action.metavar or ("" if action.nargs == 0 else name.rpartition("_")[2].upper())
        if name.startswith("no_") or (name in trainers and name not in SHOWN):
            action.help = argparse.SUPPRESS
        elif not unset:
            action.help = f"{action.help} ({action.default})"


class _Help(argparse.RawDescriptionHelpFormatter):
    """One name and value for each argument."""

    def _format_action_invocation(self, action):
        return f"{action.option_strings[-1]} {action.metavar}".rstrip()
