"""Run a recipe at several learning rates, layer-wise decays and seeds; print a table and draw a heat map of the scores.

    python recipes/sweep.py
    python recipes/sweep.py --recipe sequence_classification --arguments "--data reviews.csv" --output_dir runs/reviews
    python recipes/sweep.py --config recipes/configs/vit/sweep.yaml
    python recipes/sweep.py --output_dir runs/sweep-20261121-140000 --seeds 5           # resumes, with two more seeds

At its start, the sweep prints the command that resumes it. A resume skips finished runs and continues the interrupted
one. A run whose loss diverged counts as finished. The best learning rate of each decay is the rate with the best
validation score. The sweep adds a line per run to results.jsonl in `output_dir`. It keeps the report and the history of
each run, but not the model.
"""

import dataclasses
import importlib
import itertools
import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import paddle
from common.arguments import LOWER_IS_BETTER, check_least, option, parse_line
from common.comparison import DIVERGED, quiet, tabulate
from common.errors import error
from common.fine_tuning import entry_point
from common.heat_map import heat_map
from common.run_folder import ARGUMENTS, names_in, take, write_json
from common.text_sources import read_jsonl
from rich.console import Console

from paddle_ldopt.trainer import last_checkpoint, write_whole

OURS = ("learning_rate", "layerwise_lr_decay", "seed", "output_dir", "resume_from_checkpoint")


@dataclasses.dataclass
class Options:
    """The recipe and its runs."""

    recipe: str = option("image_classification", "name of the recipe, without .py")
    learning_rates: list[float] = option([1e-3, 3e-3, 1e-2], "learning rates")
    decays: list[float] = option([1.0, 0.8, 0.65], "layer-wise decays; 1 is uniform training")
    seeds: int = option(3, "number of seeds")
    first_seed: int = option(42, "the first seed")
    arguments: str = option("", 'further arguments of the recipe: "--data reviews.csv --config FILE"')
    output_dir: Optional[str] = option(None, "folder of the sweep; runs/sweep-<time> by default")

    def __post_init__(self):
        self.output_dir = self.output_dir or time.strftime("runs/sweep-%Y%m%d-%H%M%S")
        check_least(self, seeds=1)
        files = Path(__file__).parent.glob("*.py")
        known = sorted(path.stem for path in files if "\nmain = entry_point(run)" in path.read_text())
        known.remove("sweep")
        if self.recipe not in known:
            raise error(f"`recipe` must be one of {', '.join(known)}.", recipe=self.recipe)
        ours = [name for name in OURS if name in names_in(shlex.split(self.arguments))]
        if ours:
            instead = "give `learning_rates`, `decays`, `seeds`, `first_seed` or the sweep's own `output_dir`"
            raise error(f"The sweep sets {' and '.join(ours)} of each run: {instead}.", arguments=self.arguments)


@dataclasses.dataclass(frozen=True)
class Run:
    """One training, identified by these arguments of the recipe."""

    learning_rate: float
    layerwise_lr_decay: float
    seed: int

    def __str__(self):
        return f"rate{self.learning_rate:g}-decay{self.layerwise_lr_decay:g}-seed{self.seed}"


def plan(options):
    """Return all runs, seed by seed, so that an interrupted sweep is balanced."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells = itertools.product(dict.fromkeys(options.learning_rates), dict.fromkeys(options.decays))
    return [Run(rate, decay, seed) for seed, (rate, decay) in itertools.product(seeds, list(cells))]


def train(run, options):
    """Return the validation and the test score of one run, the baseline, and the metric's name."""
    folder = Path(options.output_dir, str(run))
    given = [*shlex.split(options.arguments), "--output_dir", str(folder)]
    argv = [*given, *(f"--{name}={value}" for name, value in dataclasses.asdict(run).items())]
    if last_checkpoint(folder):
        argv = ["--resume_from_checkpoint", str(folder)]
    elif folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    recipe = importlib.import_module(options.recipe)
    try:
        with quiet(folder / "log.txt"), paddle.utils.unique_name.guard():
            recipe.run(argv)
    except ValueError as failure:
        if DIVERGED not in str(failure):
            raise
        return {**dataclasses.asdict(run), "validation": None, "test": None, "failed": str(failure)}
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    (tested, test), (_, baseline) = list(found.items())[:2]
    metric = tested.removeprefix("test ")
    validation = next((value for key, value in found.items() if key.endswith(f"validation {metric}")), None)
    if validation is None:
        best = f"`load_best_model_at_end`, and `metric_for_best_model` to {metric}"
        needed = f"The validation rows must be scored: set {best}."
        raise error(needed, arguments=options.arguments)
    for path in folder.iterdir():
        if path.name not in ("report.html", "history.jsonl", "results.json", "log.txt", ARGUMENTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    scores = {"validation": validation, "test": test, "baseline": baseline, "metric": metric}
    return {**dataclasses.asdict(run), **scores, "seconds": round(time.perf_counter() - began, 1)}


def study(options, console):
    """Train the runs that are not in the results yet; return the results of all planned runs."""
    path, about = (Path(options.output_dir, name) for name in ("results.jsonl", "sweep.json"))
    made = {"recipe": options.recipe, "arguments": options.arguments}
    before = json.loads(about.read_text(encoding="utf-8")) if about.exists() else made
    if before != made:
        raise error(f"The folder has the runs of another sweep: {before}.", output_dir=options.output_dir, **made)
    write_json(options.output_dir, "sweep.json", made)
    results = {Run(*(line[f.name] for f in dataclasses.fields(Run))): line for line in read_results(path)}
    todo = [run for run in plan(options) if run not in results]
    console.print(f"{len(todo)} runs of {options.recipe} to do, {len(results)} done: {path}")
    for number, run in enumerate(todo, 1):
        results[run] = train(run, options)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(results[run]) + "\n")
        console.print(f"[{number}/{len(todo)}] {run}: {results[run]}", markup=False)
    return [results[run] for run in plan(options)]


def read_results(path):
    """Return the lines of a file of results; remove a line that was cut short."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    write_whole(path, text[: text.rfind("\n") + 1])
    return read_jsonl(path)


def run(argv):
    """Run a command line."""
    (options,) = parse_line(argv, Options)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    again = shlex.join([*take(argv, "output_dir")[1], "--output_dir", options.output_dir])
    console.print(f"after an interruption: python recipes/sweep.py {again}", markup=False)
    results = sorted(study(options, console), key=lambda line: line["learning_rate"])
    rates, decays = (sorted({line[name] for line in results}) for name in ("learning_rate", "layerwise_lr_decay"))
    done = [line for line in results if "metric" in line]
    if not done:
        raise error("The loss of every run diverged.", learning_rates=rates, decays=decays)
    metric, baseline = done[0]["metric"], done[0]["baseline"]
    title = f"test {metric}, mean and standard deviation of {options.seeds} seeds; baseline {baseline:.3f}"
    tabulate(results, {f"decay {decay:g}": {"layerwise_lr_decay": decay} for decay in decays}, title)
    path = Path(options.output_dir, "heatmap.png")
    labels = {"xlabel": "learning rate", "ylabel": "layer-wise decay", "title": f"test {metric}, mean of the seeds"}
    heat_map(path, results, rates, decays, labels, metric in LOWER_IS_BETTER)
    console.print(f"heat map: {path}")


main = entry_point(run)

if __name__ == "__main__":
    main()
