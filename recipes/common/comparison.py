"""Compare a uniform learning rate with layer-wise decay: the same seeds, the best rate of each by validation score.

compare(args, learning_rates=[1e-4, 3e-4], seeds=3, train=train)  # train(args) -> (validation, test) score
"""

import contextlib
import copy
import math
import os
import statistics
import sys

import numpy as np
import paddle
from paddlenlp.utils.log import logger
from rich.console import Console
from rich.table import Table
from scipy import stats

from .arguments import LOWER_IS_BETTER, decay_name
from .report_page import pairs, paragraph, plots, section, side_by_side, table, write_page
from .run_folder import write_json
from .run_report import run_facts

DIVERGED = "inf or nan"  # part of the Trainer's error for a loss that is not finite


@contextlib.contextmanager
def quiet(path):
    """Redirect output and log to a file."""
    with open(path, "a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        before = logger.handler.setStream(log)
        try:
            yield
        finally:
            logger.handler.setStream(before)


def compare(args, learning_rates, seeds, train, description=""):
    """Train with a uniform rate and with layer-wise decay, at several rates with the same seeds; write a report.

    The validation score chooses the best rate of each arm; its test scores are compared. Each finished run is added to
    ``compare.json``; a run that diverged has no score. ``report.html`` has the table, a plot and the verdict.

    The second arm has the decay of `args`; the `seeds` seeds begin with that of `args`. `train(args)` returns the
    validation score and the test score of a new model. `description` describes the data.
    """
    arms, runs = {"uniform": 1.0, decay_name(args): args.layerwise_lr_decay}, []
    todo = [(rate, arm, args.seed + seed) for rate in learning_rates for arm in arms for seed in range(seeds)]
    for rate, arm, seed in todo:
        now = copy.deepcopy(args)
        now.learning_rate, now.layerwise_lr_decay, now.seed = rate, arms[arm], seed
        now.layerwise_preserve_mean = args.layerwise_preserve_mean and arms[arm] != 1
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

    title = f"test score, mean and standard deviation of {seeds} seeds"
    header, rows, best = tabulate(runs, {arm: {"arm": arm} for arm in arms}, title)
    said = verdict(*(scores for _, scores in best.values()), *arms)
    _print(said)
    if paddle.distributed.get_rank() == 0:
        parts = [
            *map(paragraph, (said, *(line for line, _ in best.values()), description)),
            section("Run", pairs({name: fact for name, fact in run_facts(args).items() if name != "logging folder"})),
            side_by_side(
                section(title[0].upper() + title[1:], table(header, rows)),
                section("With 95 % intervals", plots("test score by rate", _draw, runs, learning_rates, list(arms))),
            ),
        ]
        write_page(path := os.path.join(args.output_dir, "report.html"), "Uniform or layer-wise learning rates", parts)
        _print(f"report: {path}")


def verdict(uniform, layerwise, uniform_name, layerwise_name):
    """Return a sentence that compares two lists of scores of the same seeds, with a 95 % interval."""
    if not all(map(math.isfinite, (*uniform, *layerwise))):
        return "Verdict: none, because an arm diverged at its best rate."
    gains = np.subtract(layerwise, uniform)
    mean, said = gains.mean(), f"{layerwise_name} scores {abs(gains.mean()):.3f}"
    said += f" {'more' if mean >= 0 else 'less'} than {uniform_name}"
    if not gains.any():
        return "Verdict: both score the same, seed by seed."
    if len(gains) < 2:
        return f"Verdict: {said}. With one seed, this may be chance."
    half = interval(gains)
    found = f"{said} (95 % interval {mean - half:+.3f} to {mean + half:+.3f}, {len(gains)} seeds)"
    if abs(mean) > half:
        return f"Verdict: {found}: {layerwise_name if mean > 0 else uniform_name} is better."
    return f"Verdict: {found}: the difference may be chance."


def interval(values):
    """Return half of the 95 % interval of a mean, by Student's t; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


def _draw(axes, runs, learning_rates, arms):
    for beside, arm in enumerate(arms):  # intervals stand side by side
        found = [scores_of(runs, "test", learning_rate=rate, arm=arm) for rate in learning_rates]
        halves = [interval(one) for one in found]
        places = [rate * 1.03**beside for rate in learning_rates]
        axes[0].errorbar(places, [np.mean(one) for one in found], halves, marker="o", capsize=3, label=arm)
    axes[0].set(xscale="log", xlabel="learning rate", ylabel="test score")
    axes[0].set_xticks(learning_rates, [f"{rate:g}" for rate in learning_rates])
    axes[0].minorticks_off()
    axes[0].grid(alpha=0.3)
    axes[0].legend()


def tabulate(runs, arms, title):
    """Print the test scores by learning rate and arm, and each arm at its best rate.

    `arms` is name -> the values that an arm's runs have in common. Return the header and the rows of the table, and
    arm -> (sentence, test scores) at its best rate.
    """
    rates = dict.fromkeys(run["learning_rate"] for run in runs)
    header, rows, best = ("learning rate", *arms), [], {}
    for rate in rates:
        found = (scores_of(runs, "test", learning_rate=rate, **arm) for arm in arms.values())
        rows.append((f"{rate:g}", *map(spread, found)))
    printed = Table(*header, title=title)
    for row in rows:
        printed.add_row(*row)
    _print(printed)
    for name, arm in arms.items():
        rate = best_rate(runs, **arm)
        scores = scores_of(runs, "test", learning_rate=rate, **arm)
        best[name] = f"{name}: {spread(scores)} at learning rate {rate:g}, the best by validation", scores
        _print(best[name][0])
    return header, rows, best


def scores_of(runs, split, **values):
    """Return the scores of the runs with these values, NaN for runs that diverged."""
    found = [run[split] for run in runs if values.items() <= run.items()]
    return [math.nan if score is None else score for score in found]


def best_rate(runs, **values):
    """Return the learning rate with the best mean validation score; a rate at which a run diverged is the worst."""
    sign = -1 if any(run.get("metric") in LOWER_IS_BETTER for run in runs) else 1

    def mean(rate):
        found = sign * statistics.mean(scores_of(runs, "validation", learning_rate=rate, **values))
        return found if math.isfinite(found) else -math.inf

    return max(dict.fromkeys(run["learning_rate"] for run in runs), key=mean)


def spread(values):
    """Return mean and standard deviation as text."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def _print(text):
    if paddle.distributed.get_rank() == 0:
        Console(soft_wrap=True, highlight=False).print(text, markup=False)
