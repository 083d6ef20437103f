"""A recipe's arguments, on the command line or in a YAML file.

options, args, argv = parse(argv, Options, Arguments)  # Arguments: a class derived from RecipeArguments
"""

import argparse
import dataclasses
import difflib
import json
import time
from typing import ClassVar, Optional, get_args, get_type_hints

import paddle
from paddlenlp.trainer import PdArgumentParser, TrainingArguments

from paddle_ldopt.config import read_yaml
from paddle_ldopt.trainer import LdoptArgumentsMixin

from .run_folder import check_folder, take, with_arguments_of_run


@dataclasses.dataclass
class RecipeArguments(LdoptArgumentsMixin, TrainingArguments):
    """PaddleNLP's training arguments with defaults for few-sample fine-tuning of an encoder.

    A recipe derives its own from it, with its name and the metrics that it can choose the best model by.
    """

    recipe: ClassVar[str] = "recipe"
    metrics: ClassVar[tuple] = ("accuracy", "loss")

    output_dir: Optional[str] = None  # runs/<recipe>-<time>
    learning_rate: float = 3e-4
    optim: str = "adamwdl"
    layerwise_lr_decay: float = 0.65
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    num_train_epochs: float = 8
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 64
    logging_steps: int = 5
    evaluation_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_total_limit: Optional[int] = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "accuracy"
    device: str = "gpu" if paddle.is_compiled_with_cuda() else "cpu"

    def __post_init__(self):
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        super().__post_init__()
        if self.load_best_model_at_end and self.evaluation_strategy.value == "no":
            raise ValueError("`load_best_model_at_end` needs evaluations. Received: evaluation_strategy=no")
        if self.metric_for_best_model not in self.metrics:
            received = f"Received: metric_for_best_model={self.metric_for_best_model!r}"
            raise ValueError(f"`metric_for_best_model` must be {' or '.join(self.metrics)}. {received}")


def option(default, text):
    """Return a field of the command line."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"help": text})
    return dataclasses.field(default=default, metadata={"help": text})


def check_least(options, **least):
    """Raise ValueError if an option is below what is given for it."""
    low = [(name, value) for name, value in least.items() if getattr(options, name) < value]
    refuse(f"`{name}` must be {value} or more. Received: {name}={getattr(options, name)}" for name, value in low)


def refuse(problems):
    """Raise one ValueError that lists the problems; return if there is none."""
    found = list(problems)
    if len(found) == 1:
        raise ValueError(found[0])
    if found:
        lines = "".join(f"\n  {i}. {problem}" for i, problem in enumerate(found, 1))
        raise ValueError(f"{len(found)} settings are wrong:{lines}")


def parse(argv, *classes):
    """Return what a command line says: one object of each class, and the line with all that it refers to.

    ``--config FILE`` stands for the arguments in a YAML file; those beside it come on top, wherever they stand. So do
    those that are given to a run that is resumed. ``--null NAME`` is what ``NAME: null`` is in a file.

    Args:
        argv (list[str]): the line.
        *classes (type): dataclasses; the last one a `RecipeArguments`.

    Raises:
        ValueError: an argument that there is not, or with a wrong value, or without an effect; a folder that is another
            run's.
    """
    argv = with_arguments_of_run(_with_config(argv, classes))
    found = parse_line(argv, *classes)
    patience, _ = take(argv, "early_stopping_patience")
    if patience is not None and not found[-1].load_best_model_at_end:
        raise ValueError(
            "What stops early needs a best model: leave one of them out. "
            f"Received: early_stopping_patience={patience}, load_best_model_at_end=False"
        )
    check_folder(found[-1])
    return (*found, argv)


def parse_line(argv, *classes):
    """Return one object of each of these dataclasses, as `parse` does, of a line that resumes nothing."""
    usage = "%(prog)s [--config FILE] [arguments]; --help lists them"
    parser = PdArgumentParser(classes, usage=usage, allow_abbrev=False)  # `take` finds whole names
    null = {"action": _Null, "metavar": "NAME", "choices": sorted(_may_be_none(classes)), "help": "have it be none"}
    parser.add_argument("--null", **null, dest=argparse.SUPPRESS, default=argparse.SUPPRESS)
    return parser.parse_args_into_dataclasses(_with_config(argv, classes))


class _Null(argparse.Action):
    """Sets what it names to None; a later argument comes on top."""

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, values, None)


def _may_be_none(classes):
    """Return the names of the fields that may be None."""
    hints = {name: hint for cls in classes for name, hint in get_type_hints(cls).items()}
    fields = [field for cls in classes for field in dataclasses.fields(cls) if field.init]
    return {f.name for f in fields if f.default is None or type(None) in get_args(hints[f.name])}


def _with_config(argv, classes):
    path, rest = take(argv, "config")
    if path is None:
        return argv
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise ValueError(f"A config must hold `name: value` lines. Received: config={path!r}")
    known = [field.name for cls in classes for field in dataclasses.fields(cls) if field.init]
    first, wrong, may_be_none = [], [], _may_be_none(classes)
    for name, value in settings.items():
        if name not in known:
            near = "".join(f"; the nearest is {n!r}" for n in difflib.get_close_matches(str(name), known, 1, 0.4))
            wrong.append(f"{name!r} is no argument{near}. Received: {name}={value!r}")
        elif value is None and name not in may_be_none:
            wrong.append(f"`{name}` needs a value: leave it out for its default. Received: {name}=None")
        elif value is None:
            first += ["--null", name]
        elif isinstance(value, list):
            first += [f"--{name}", *map(str, value)]
        else:  # in one word, as a value may begin with --
            first.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    refuse(wrong)
    return [*first, *rest]
