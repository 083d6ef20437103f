"""Compare a uniform learning rate with layer-wise decay: the same seeds, the best rate of each by validation.

compare(args, learning_rates=[1e-4, 3e-4], seeds=3, train=train)  # train(args) -> (validation, test) score
"""

import contextlib
import copy
import math
import statistics
import sys

import paddle
from paddlenlp.utils.log import logger
from rich.console import Console
from rich.table import Table

from .run_folder import write_json

DIVERGED = "inf or nan"  # what PaddleNLP's Trainer says of such a loss


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
