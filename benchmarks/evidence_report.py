"""Tables and picture of docs/evidence.md from the results of llrd_evidence.py and llrd_evidence_mean.py."""

import json
import math
import statistics
from pathlib import Path

ARM_COLORS = ("#b2182b", "#ef8a62", "#d9a441", "#67a9cf", "#2166ac", "#4d4d4d")
# 97.5 % quantiles of Student's t by the number of seeds
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
NAMES = {"adamwdl": "AdamWDL", "came": "Came", "lamb": "Lamb", "adafactor": "Adafactor"}


class Results:
    """What `run` has written: `tasks` (name -> line about it), and `runs`, without those of unfinished seeds.

    A seed is finished if it has every rate of every arm, or of every other optimizer, that any seed has. What has less
    than two finished seeds is left out: a task, or the other optimizers in a task.

    Args:
        path (Path): the JSON lines.

    Raises:
        ValueError: no task is left, or one has more than ten finished seeds.
    """

    def __init__(self, path):
        records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        runs, self.runs, self.tasks = [record for record in records if "about" not in record], [], {}
        for about in (record for record in records if "about" in record):
            of_task = [run for run in runs if run["task"] == about["about"]]
            adamw = _finished([run for run in of_task if run["optimizer"] == "adamwdl"])
            if adamw:
                self.tasks[about["about"]] = about
                self.runs += adamw + _finished([run for run in of_task if run["optimizer"] != "adamwdl"])
        if not self.tasks:
            raise ValueError(f"No task has two finished seeds of AdamW. Received: results={str(path)!r}")
        self.unfinished = len(runs) - len(self.runs)

    def curve(self, task, optimizer, arm):
        """Return rate -> {seed: run}, by rising rate."""
        found = {}
        for run in self.runs:
            if (run["task"], run["optimizer"], run["arm"]) == (task, optimizer, arm):
                found.setdefault(run["learning_rate"], {})[run["seed"]] = run
        return dict(sorted(found.items()))

    def optimizer_curves(self, task):
        """Return name -> curve of every optimizer with a uniform rate, on the seeds that the other optimizers have."""
        curves = {name: self.curve(task, name, "uniform") for name in self.optimizers()}
        seeds = {run["seed"] for run in self.runs if run["task"] == task and run["optimizer"] != "adamwdl"}
        return {
            name: {rate: {seed: runs[seed] for seed in runs if seed in seeds} for rate, runs in curve.items()}
            for name, curve in curves.items()
            if seeds
        }

    def arm_curves(self, task):
        """Return name -> curve of every arm of AdamW."""
        return {arm: self.curve(task, "adamwdl", arm) for arm in self.arms()}

    def arms(self):
        """Return the arms of AdamW in the order of the study."""
        return list(dict.fromkeys(run["arm"] for run in self.runs if run["optimizer"] == "adamwdl"))

    def optimizers(self):
        """Return the optimizers in the order of the study."""
        return list(dict.fromkeys(run["optimizer"] for run in self.runs))


def _finished(runs):
    cells = {}
    for run in runs:
        cells.setdefault(run["seed"], set()).add((run["optimizer"], run["arm"], run["learning_rate"]))
    every = set().union(*cells.values())
    finished = [seed for seed, some in cells.items() if some == every]
    if len(finished) > max(STUDENT):
        raise ValueError(f"A report can be made of {max(STUDENT)} seeds or less. Received: seeds={finished}")
    return [run for run in runs if len(finished) > 1 and run["seed"] in finished]


def scores(runs, split="test"):
    """Return the accuracies of {seed: run} in the order of the seeds."""
    return [runs[seed][split] for seed in sorted(runs)]


def number(rate):
    """Return a rate as text: 0.0003 is 3e-4."""
    return f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


def mean(values):
    """Return the mean."""
    return statistics.mean(values)


def spread(values):
    """Return "mean ± standard deviation" in percent."""
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{deviation}"


def chosen(curve):
    """Return the rate with the best mean accuracy on the validation rows, the lower one of equals."""
    return max(curve, key=lambda rate: (round(mean(scores(curve[rate], "validation")), 9), -rate))


def gap(curve, rate, other, other_rate):
    """Return (mean difference over the seeds in points, half of its 95 % interval)."""
    gaps = [100 * (run["test"] - other[other_rate][seed]["test"]) for seed, run in curve[rate].items()]
    return mean(gaps), STUDENT[len(gaps)] * statistics.stdev(gaps) / math.sqrt(len(gaps))


def difference(*columns):
    """Return the text of a `gap`; bold if the whole interval is on one side of 0."""
    middle, half = gap(*columns)
    text = f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"
    return f"**{text}**" if abs(middle) > half else text


def table(head, rows):
    """Return a table in Markdown, the first column to the left."""
    marks = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))


def arms(results):
    """Return the table of each arm: at its tuned rate, against uniform training, and at the highest rate."""
    head, rows = ["arm"], {arm: [arm] for arm in results.arms()}
    for task in results.tasks:
        curves = results.arm_curves(task)
        uniform = curves["uniform"]
        head += [f"{task}, tuned", "against uniform", "highest rate"]
        for arm, curve in curves.items():
            best = chosen(curve)
            against = "" if curve is uniform else difference(curve, best, uniform, chosen(uniform))
            rows[arm] += [spread(scores(curve[best])), against, spread(scores(curve[max(curve)]))]
    return table(head, rows.values())


def kept_means(results):
    """Return the table of each arm at the rate tuned for uniform training, against uniform training."""
    head, rows = ["arm"], {arm: [arm] for arm in results.arms()}
    for task in results.tasks:
        curves = results.arm_curves(task)
        uniform = curves["uniform"]
        rate = chosen(uniform)
        head += [f"{task}, {number(rate)}", "against uniform"]
        for arm, curve in curves.items():
            rows[arm] += [
                spread(scores(curve[rate])),
                "" if curve is uniform else difference(curve, rate, uniform, rate),
            ]
    return table(head, rows.values())


def optimizers(results):
    """Return the table of each optimizer at its tuned rate, against AdamW with the same seeds."""
    head, rows = ["optimizer"], {name: [NAMES[name]] for name in results.optimizers()}
    for task in results.tasks:
        curves = results.optimizer_curves(task)
        adamw = curves["adamwdl"]
        head += [f"{task}, tuned rate", "accuracy", "against AdamWDL"]
        for name, curve in curves.items():
            rate = chosen(curve)
            against = "" if curve is adamw else difference(curve, rate, adamw, chosen(adamw))
            rows[name] += [number(rate), spread(scores(curve[rate])), against]
    return table(head, rows.values())


def muon(of_means, path):
    """Return the table of Muon and of AdamWDL with the same seeds and decay, each at its tuned rate."""
    records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    runs = [record for record in records if "about" not in record]
    head, rows = ["optimizer, decay"], {}
    for task in dict.fromkeys(run["task"] for run in runs):
        of_task = _finished([run for run in runs if run["task"] == task])
        head += [f"{task}, tuned rate", "accuracy", "against AdamWDL"]
        for arm in dict.fromkeys(run["arm"] for run in of_task):
            curve = {}
            for run in of_task:
                if run["arm"] == arm:
                    curve.setdefault(run["learning_rate"], {})[run["seed"]] = run
            seeds = next(iter(curve.values()))
            adamw = of_means.curve(task, "adamwdl", arm)
            adamw = {rate: {seed: one[seed] for seed in seeds} for rate, one in adamw.items()}
            best, other = chosen(curve), chosen(adamw)
            for name, rate, at, against in (
                ("AdamWDL", other, adamw, ""),
                ("Muon", best, curve, difference(curve, best, adamw, other)),
            ):
                row = rows.setdefault(f"{name}, {arm}", [f"{name}, {arm}"])
                row += [number(rate), spread(scores(at[rate])), against]
    return table(head, rows.values())


def fill(text, parts):
    """Return a document with the text between ``<!-- part: NAME -->`` and ``<!-- end -->`` replaced.

    Raises:
        ValueError: the document lacks a part.
    """
    for name, content in parts.items():
        opening, closing = f"<!-- part: {name} -->", "<!-- end -->"
        before, found, rest = text.partition(opening)
        _, ended, after = rest.partition(closing)
        if not found or not ended:
            raise ValueError(f"The document needs {opening} and {closing} after it. Received: text={text[:80]!r}...")
        text = f"{before}{opening}\n\n{content}\n\n{closing}{after}"
    return text


def plot(results, path, curves):
    """Draw {task: {label: curve}}, one panel for each task: accuracy against rate, bars of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {"svg.hashsalt": "paddle_ldopt", "svg.fonttype": "none", "font.size": 9}
    with pyplot.rc_context(settings):
        figure, panels = pyplot.subplots(1, len(results.tasks), figsize=(9, 3.6), squeeze=False, layout="constrained")
        for panel, (task, about) in zip(panels[0], results.tasks.items()):
            for i, (label, curve) in enumerate(curves[task].items()):
                shift = 1.02 ** (i - len(curves[task]) / 2)  # so that no bar hides another
                values = [[100 * value for value in scores(runs)] for runs in curve.values()]
                panel.errorbar(
                    [rate * shift for rate in curve],
                    [mean(column) for column in values],
                    [statistics.stdev(column) for column in values],
                    marker="o",
                    markersize=3,
                    linewidth=1.4,
                    capsize=2,
                    elinewidth=0.8,
                    color=ARM_COLORS[i],
                    linestyle="--" if label == "encoder at 0.1" else "-",
                    label=label,
                )
            panel.axhline(
                100 * about["majority"], color="#999999", linewidth=0.8, linestyle=":", label="majority class"
            )
            panel.set(xscale="log", xlabel="learning rate of the head", title=task)
            panel.grid(alpha=0.25)
        panels[0][0].set_ylabel("test accuracy, %")
        panels[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def parts(results, of_means):
    """Return name -> table of docs/evidence.md, from the results of the first and of the second study."""
    return {"arms": arms(results), "means": kept_means(of_means), "optimizers": optimizers(results)}


def write_report(results_path, means_path, muon_path, page):
    """Write the tables into the page, and the picture into the folder `images` beside it."""
    results, of_means = Results(results_path), Results(means_path)
    filled = parts(results, of_means)
    if muon_path.exists():
        filled["muon"] = muon(of_means, muon_path)
    page.write_text(fill(page.read_text(encoding="utf-8"), filled), encoding="utf-8")
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    plot(results, images / "evidence_decay.svg", {task: results.arm_curves(task) for task in results.tasks})
    print(f"{page}: {len(results.runs)} and {len(of_means.runs)} runs")
