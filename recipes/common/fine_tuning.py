"""A recipe's training with its callbacks, its results and its report.

fine_tune(trainer, test, Score("accuracy", "majority class", 0.33), options, argv, parts, "minilm on docstrings")
start(run)  # run(argv); what is wrong with its input is said in one line
"""

import dataclasses
import sys
import time

from paddlenlp.trainer import EarlyStoppingCallback
from paddlenlp.utils.log import logger

from paddle_ldopt.schedules import ON_METRIC
from paddle_ldopt.trainer import LayerLRCallback, RunReport, ScheduleCallback, StopOnSigterm

from .run_folder import NoteArguments, check_data, write_json


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
