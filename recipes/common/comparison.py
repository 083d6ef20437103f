"""Runs of a recipe at several learning rates, decays and seeds: their results, a table, a verdict, a report."""

import contextlib
import dataclasses
import importlib
import json
import math
import shutil
import statistics
from pathlib import Path

import numpy as np
import paddle
from paddlenlp.utils.log import logger
from scipy import stats

from paddle_ldopt.trainer import last_checkpoint, write_whole

from . import error
from .arguments import ARGUMENTS, LOWER_IS_BETTER, write_json
from .fine_tuning import Score
from .run_report import plots, write_page

CELL = ("learning_rate", "layerwise_lr_decay", "seed")
DIVERGED = "inf or nan"  # part of the Trainer's error for a loss that is not finite
BOUNDED = ("accuracy", "macro_f1", "micro_f1", "f1", "rouge_1", "rouge_l")  # scores from 0 to 1


@dataclasses.dataclass
class Study:
    """Trainings that differ in learning rate, decay and seed; the first decay is what the others are compared with."""

    recipe: str
    arguments: list  # of the recipe
    rates: list
    decays: list
    seeds: list
    folder: str

    def plan(self):
        """Return (rate, decay, seed) of all runs, seed by seed, so that an interrupted study is balanced."""
        rates, decays = dict.fromkeys(self.rates), dict.fromkeys(self.decays)
        return [(rate, decay, seed) for seed in self.seeds for rate in rates for decay in decays]

    def run(self):
        """Train the runs that are not in results.jsonl yet; write the report and print the verdict."""
        path, about = Path(self.folder, "results.jsonl"), Path(self.folder, "sweep.json")
        made = {"recipe": self.recipe, "arguments": self.arguments}
        before = json.loads(about.read_text(encoding="utf-8")) if about.exists() else made
        if before != made:
            raise error(f"The folder has the runs of another sweep: {before}.", output_dir=self.folder, **made)
        write_json(self.folder, "sweep.json", made)
        results = {tuple(line[name] for name in CELL): line for line in read_results(path)}
        todo = [run for run in self.plan() if run not in results]
        _print(f"{len(todo)} runs of {self.recipe} to do, {len(results)} done: {path}")
        for number, run in enumerate(todo, 1):
            try:
                results[run] = self._train(*run)
            except SystemExit:  # the run's own words are in its log
                _print(f"interrupted in {name_of(*run)}: the same command with this `--output_dir` resumes")
                raise
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(results[run]) + "\n")
            said = results[run].get("failed") or "validation {validation:.3f}, test {test:.3f}".format(**results[run])
            _print(f"[{number}/{len(todo)}] {name_of(*run)}: {said}")
        self.report([results[run] for run in self.plan()])

    def _train(self, rate, decay, seed):
        folder, run = Path(self.folder, name_of(rate, decay, seed)), dict(zip(CELL, (rate, decay, seed)))
        argv = [*self.arguments, "--output_dir", str(folder), *(f"--{name}={value}" for name, value in run.items())]
        if last_checkpoint(folder):
            argv = ["--resume_from_checkpoint", str(folder)]
        elif folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with quiet(folder / "log.txt"), paddle.utils.unique_name.guard():
                importlib.import_module(self.recipe).run(argv)
        except ValueError as failure:
            if DIVERGED not in str(failure):
                raise
            return {**run, "validation": None, "test": None, "failed": str(failure)}
        found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        (tested, test), (baseline, value) = list(found.items())[:2]
        metric = tested.removeprefix("test ")
        if (validation := found.get(f"best validation {metric}")) is None:
            needed = f"The validation rows must be scored: set `--metric_for_best_model` to {metric}."
            raise error(needed, arguments=self.arguments)
        for path in folder.iterdir():
            if path.name not in ("report.html", "history.jsonl", "results.json", "log.txt", ARGUMENTS):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        scores = {"validation": validation, "test": test, "metric": metric, "baseline": value}
        return {**run, **scores, "baseline name": baseline.removesuffix(" baseline").replace("-", " ")}

    def report(self, runs):
        done = next((run for run in runs if "metric" in run), None)
        if done is None:
            raise error("The loss of every run diverged.", learning_rates=self.rates, decays=self.decays)
        score = Score(done["metric"], done["baseline name"], done["baseline"])
        rates, decays = sorted(set(self.rates)), list(dict.fromkeys(self.decays))
        title = f"Test {score.metric}, mean and standard deviation of {len(self.seeds)} seed(s)"
        header = ("learning rate", *(f"decay {decay:g}" for decay in decays))
        rows = [(f"{rate:g}", *(spread(scores_of(runs, "test", rate, decay)) for decay in decays)) for rate in rates]
        _print("\n".join((title, *("".join(f"{cell:>20}" for cell in row) for row in (header, *rows)))))
        best = {decay: best_rate(runs, rates, decay) for decay in decays}
        found = {decay: scores_of(runs, "test", best[decay], decay) for decay in decays}
        said = [f"decay {d:g}: {spread(found[d])} at learning rate {best[d]:g}, the best by validation" for d in decays]
        first, *others = decays
        said += [verdict(found[first], found[d], f"decay {first:g}", f"decay {d:g}", score) for d in others]
        if not others and all(map(math.isfinite, found[first])):
            said.append(f"Verdict: decay {first:g} {score.verdict(statistics.mean(found[first]))}.")
        _print("\n".join(said))
        chart = plots("test score by rate", _draw, runs, rates, decays, score)
        path, about = str(Path(self.folder, "report.html")), f"{self.recipe}: learning rates and decays"
        write_page(path, about, said[::-1], [[(title, (header, rows)), ("With 95 % intervals", chart)]])
        _print(f"report: {path}")


def name_of(rate, decay, seed):
    return f"rate{rate:g}-decay{decay:g}-seed{seed}"


def read_results(path):
    """Return the lines of a file of results; remove a line that was cut short."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    write_whole(path, text := text[: text.rfind("\n") + 1])
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def quiet(path):
    with open(path, "a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        before = logger.handler.setStream(log)
        try:
            yield
        finally:
            logger.handler.setStream(before)


def verdict(uniform, layerwise, uniform_name, layerwise_name, score):
    """Return sentences that compare two lists of scores of the same seeds, with a 95 % interval, and the baseline."""
    if not all(map(math.isfinite, (*uniform, *layerwise))):
        return "Verdict: none, because an arm diverged at its best rate."
    lower = score.metric in LOWER_IS_BETTER
    gains = np.subtract(layerwise, uniform)
    mean, half = gains.mean(), interval(gains)
    found = f"{layerwise_name} scores {abs(mean):.3f} {'more' if mean >= 0 else 'less'} than {uniform_name}"
    if not gains.any():
        found = "both score the same, seed by seed"
    elif len(gains) < 2:
        found += ". With one seed, this may be chance"
    else:
        found += f" (95 % interval {mean - half:+.3f} to {mean + half:+.3f}, {len(gains)} seeds): "
        better = layerwise_name if (mean > 0) != lower else uniform_name
        found += f"{better} is better" if abs(mean) > half else "the difference may be chance"
    best = (min if lower else max)(np.mean(uniform), np.mean(layerwise))
    return f"Verdict: {found}. The better of both {score.verdict(best)}."


def interval(values):
    """Return half of the 95 % interval of a mean, by Student's t; 0 for a single value."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else 0.0


def _draw(axes, runs, rates, decays, score):
    for beside, decay in enumerate(decays):  # intervals stand side by side
        found = [scores_of(runs, "test", rate, decay) for rate in rates]
        means, halves = np.array([np.mean(one) for one in found]), np.array([interval(one) for one in found])
        ends = np.stack([means - halves, means + halves])
        ends = abs((np.clip(ends, 0, 1) if score.metric in BOUNDED else ends) - means)
        places = [rate * 1.03**beside for rate in rates]
        axes[0].errorbar(places, means, ends, marker="o", capsize=3, label=f"decay {decay:g}")
    axes[0].axhline(score.value, color="0.5", ls="--", label=score.baseline)
    limits = min(rates) / 1.5, max(rates) * 1.5  # also for one rate
    axes[0].set(xscale="log", xlabel="learning rate", ylabel=f"test {score.metric}", xlim=limits)
    axes[0].set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes[0].minorticks_off()
    axes[0].legend()


def scores_of(runs, split, rate, decay):
    """Return the scores of the runs of a rate and a decay, NaN for runs that diverged."""
    found = [run[split] for run in runs if (run["learning_rate"], run["layerwise_lr_decay"]) == (rate, decay)]
    return [math.nan if score is None else score for score in found]


def best_rate(runs, rates, decay):
    """Return the learning rate with the best mean validation score; a rate at which a run diverged is the worst."""
    sign = -1 if any(run.get("metric") in LOWER_IS_BETTER for run in runs) else 1
    means = {rate: sign * statistics.mean(scores_of(runs, "validation", rate, decay)) for rate in rates}
    return max(rates, key=lambda rate: means[rate] if math.isfinite(means[rate]) else -math.inf)


def spread(values):
    if not all(map(math.isfinite, values)):
        return "diverged"
    return f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def _print(text):
    if paddle.distributed.get_rank() == 0:
        print(text, flush=True)
