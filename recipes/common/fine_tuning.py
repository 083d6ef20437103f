"""What every recipe is made of: its arguments, on the command line or in a YAML file, and a training with its report.

options, args, argv = parse(argv, Options, Arguments)  # Arguments: a class derived from RecipeArguments
fine_tune(trainer, test, Score("accuracy", "majority class", 0.33), options, argv, parts, "minilm on docstrings")
start(run)                                             # run(argv); what is wrong with its input is said in one line
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import ClassVar, Optional, get_args, get_type_hints

import paddle
from paddlenlp.trainer import EarlyStoppingCallback, PdArgumentParser, TrainingArguments
from paddlenlp.utils.log import logger

from paddle_ldopt.config import read_yaml, tell_all, unknown
from paddle_ldopt.schedules import ON_METRIC
from paddle_ldopt.trainer import LayerLRCallback, LdoptArgumentsMixin, RunReport, ScheduleCallback, StopOnSigterm

from .run_control import (
    NoteArguments,
    check_data,
    check_folder,
    take,
    with_arguments_of_run,
    write_json,
)


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
    tell_all(f"`{name}` must be {value} or more. Received: {name}={getattr(options, name)}" for name, value in low)


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
            wrong.append(unknown("argument", name, value, known, most=0))
        elif value is None and name not in may_be_none:
            wrong.append(f"`{name}` needs a value: leave it out for its default. Received: {name}=None")
        elif value is None:
            first += ["--null", name]
        elif isinstance(value, list):
            first += [f"--{name}", *map(str, value)]
        else:  # in one word, as a value may begin with --
            first.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    tell_all(wrong)
    return [*first, *rest]


@dataclasses.dataclass(frozen=True)
class Score:
    """What a recipe is judged by: a metric of its evaluation, and the same of something trivial on the test rows."""

    metric: str
    baseline: str
    value: float


def add_callbacks(trainer, report, patience):
    """Give a Trainer what all recipes have: report, rates of the layers, schedule, early stopping."""
    args = trainer.args
    trainer.add_callback(report)
    trainer.add_callback(LayerLRCallback())
    known_beforehand = trainer.optimizer is None and args.lr_scheduler_type.value not in ON_METRIC
    if known_beforehand:
        trainer.add_callback(ScheduleCallback(f"{args.output_dir}/schedule.png"))  # and schedule.csv
    if args.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(patience))


def fine_tune(trainer, test, score, options, argv, parts, name):
    """Train, evaluate on the test split, write the report and what it is made of; print the score and the baseline.

    Args:
        trainer (Trainer): with its data.
        test (Dataset): what is evaluated at the end.
        score (Score): what it is judged by.
        options (dataclass): with `early_stopping_patience`.
        argv (list[str]): what a resume is to begin with.
        parts (Parts|Splits): the rows.
        name (str): of the run, for its report.
    """
    args = trainer.args
    settings = {**dataclasses.asdict(options), **args.to_dict()}
    rate = f"{args.learning_rate:g}" if trainer.optimizer is None else "the optimizer's own"
    rates = f"decay {args.layerwise_lr_decay:g}, learning rate {rate}"
    report = RunReport(args.output_dir, f"{name}, {rates}", trainer.layer_map)
    add_callbacks(trainer, report, options.early_stopping_patience)
    check_data(args, parts)
    trainer.add_callback(NoteArguments(argv))
    stop = StopOnSigterm()
    trainer.add_callback(stop)
    began = time.perf_counter()
    with stop:
        try:
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        except BaseException as error:  # what diverged or was interrupted is of interest, too
            report.write({"stopped by": f"{type(error).__name__}: {error}"}, settings, parts.description)
            raise
    seconds = time.perf_counter() - began
    trainer.remove_callback(EarlyStoppingCallback)  # it has no say in the test
    tested = trainer.evaluate(test, metric_key_prefix="test")
    more = {
        **({"test loss": tested["test_loss"]} if "test_loss" in tested else {}),
        f"best validation {args.metric_for_best_model}": trainer.state.best_metric,
        "steps": trainer.state.global_step,
        "seconds" + (" since it was resumed" if args.resume_from_checkpoint else ""): seconds,
    }
    trainer.save_model(args.output_dir)
    conclude(args.output_dir, score, tested[f"test_{score.metric}"], more, report, settings, parts.description)


def conclude(folder, score, reached, more, report, settings, description):
    """Write the results of a run and its report; print the score beside the baseline.

    Args:
        folder (str): the run's.
        score (Score): what it is judged by.
        reached (float): that, of the test rows.
        more (dict): further results; one of them begins with "seconds".
        report (RunReport): the report.
        settings (dict): every setting.
        description (str): what it was trained on.
    """
    baseline = f"{score.baseline.replace(' ', '-')} baseline"
    results = {f"test {score.metric}": reached, baseline: score.value, **more}
    write_json(folder, "results.json", results)
    path = report.write(results, settings, description)
    if path:  # in the main process
        seconds = next(value for name, value in more.items() if name.startswith("seconds"))
        print(f"test {score.metric} {reached:.3f} ({score.baseline}: {score.value:.3f}), {seconds:.0f} s")
        print(f"report: {path}")


def start(run, argv=None):
    """Run a recipe; what is wrong with its input is said in one line.

    Args:
        run (callable): takes a command line.
        argv (list[str], optional): the command line; that of the process if None.
    """
    logger.set_level("INFO")  # not the 150 lines of every training argument: the report has them
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (ValueError, OSError) as error:
        sys.exit("error: " + " ".join(str(error).split()))
