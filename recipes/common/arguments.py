"""A recipe's arguments, on the command line or in a YAML file."""

import argparse
import dataclasses
import sys
import textwrap
import time
from typing import ClassVar, Optional

import paddle
from paddlenlp.trainer import PdArgumentParser, TrainingArguments
from paddlenlp.utils.log import logger

from paddle_ldopt import SchedulerType, list_optimizers
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.trainer import LdoptArgumentsMixin

from . import error
from .run_folder import check_folder, with_arguments_of_run
from .start import check, given_in, with_config

LOWER_IS_BETTER = ("loss", "perplexity", "rmse")
MOST_USED = ("max_steps", "max_grad_norm", "warmup_steps", "seed", "fp16", "allow_layerwise_change")  # in --help


def option(default, text, least=None):
    """Return a field of the command line; `start.check` reads `least` from the source."""
    more = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return dataclasses.field(**more, metadata={"help": text.replace("%", "%%")})  # argparse formats it


@dataclasses.dataclass
class RecipeArguments(LdoptArgumentsMixin, TrainingArguments):
    """PaddleNLP's training arguments, with defaults for fine-tuning an encoder on few samples.

    A recipe derives its own class, with its name and the metrics that may choose the best model.
    """

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
    num_train_epochs: float = option(8, "number of epochs")
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

    def __post_init__(self):
        if self.layerwise_preserve_mean is None:
            self.layerwise_preserve_mean = self.layerwise_lr_decay != 1
        if self.warmup_ratio is None:
            self.warmup_ratio = 0.1 * ("num_warmup_steps" in SCHEDULES[self.lr_scheduler_type].options)
        for name in ("fp16", "bf16"):  # a Paddle for GPUs, but no GPU; `start.check` refuses all else
            if getattr(self, name) and self.device.startswith("cpu"):
                raise error(f"`{name}` needs a GPU: leave it out on a CPU.", **{name: True}, device=self.device)
        if self.greater_is_better is None:
            self.greater_is_better = self.metric_for_best_model not in LOWER_IS_BETTER
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        paddle.set_device(self.device)  # of several processes, each takes its own
        super().__post_init__()
        if self.load_best_model_at_end and self.evaluation_strategy.value == "no":
            raise error("`load_best_model_at_end` needs evaluations.", evaluation_strategy="no")


def parse(argv, cls):
    """Return a recipe's arguments, and the command line with those of its config and its earlier run.

    Arguments beside ``--config FILE`` override those of the YAML file, wherever they stand; arguments of a resume
    override those of the run.
    """
    argv = with_arguments_of_run(with_config(argv))
    args = parse_line(argv, cls)
    if "early_stopping_patience" in dict(given_in(argv)) and not args.load_best_model_at_end:
        problem, patience = "Early stopping needs `load_best_model_at_end`.", args.early_stopping_patience
        raise error(problem, early_stopping_patience=patience, load_best_model_at_end=False)
    check_folder(args)
    return args, argv


def choose_metric(args, names, argv):
    """Have the first of these metrics choose the best model, unless the command line names another of them or loss."""
    if "metric_for_best_model" not in dict(given_in(argv)):
        args.metric_for_best_model = names[0]
        args.greater_is_better = names[0] not in LOWER_IS_BETTER
    elif args.metric_for_best_model not in (*names, "loss"):
        valid = ", ".join((*names, "loss"))
        raise error(f"These labels have the metrics {valid}.", metric_for_best_model=args.metric_for_best_model)


def parse_line(argv, cls):
    """Return an object of this dataclass, as `parse` does, without resuming a run.

    ``--help`` prints our arguments and the most used of the Trainer's, ``--help-all`` prints all.
    """
    logger.set_level("WARNING")
    parser = PdArgumentParser(cls, allow_abbrev=False)  # `take` finds whole names
    text = "YAML file of arguments; the command line overrides it"
    parser.add_argument("--config", default=argparse.SUPPRESS, help=text)
    if {"-h", "--help", "--help-all", "--help_all"} & set(argv):
        _print_help(parser, cls, everything=not {"-h", "--help"} & set(argv))
        sys.exit(0)
    check(sys.modules[cls.__module__].__file__, argv)
    return parser.parse_args_into_dataclasses(with_config(argv))[0]


def _print_help(parser, cls, everything):
    ours = {field.name: field.metadata["help"] for field in dataclasses.fields(RecipeArguments) if field.metadata}
    ours = {name: text for name, text in ours.items() if name in RecipeArguments.__annotations__}
    trainers = {field.name for field in dataclasses.fields(TrainingArguments)} - {*ours, *MOST_USED}
    print(sys.modules[cls.__module__].__doc__)
    every = {field.name for field in dataclasses.fields(RecipeArguments)}
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
