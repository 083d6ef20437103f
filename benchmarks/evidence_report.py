"""Tables and pictures of docs/evidence.md and docs/evidence_tables.md from the results of llrd_evidence.py."""

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


def within(curve, points):
    """Return (lowest, highest rate, whether either is the end of the grid) that lose no more than so many points.

    Against the test accuracy at the chosen rate; between neighbouring rates of the grid the mean accuracy is taken to
    be linear in the logarithm of the rate.
    """
    rates, heights = list(curve), [mean(scores(runs)) for runs in curve.values()]
    start = rates.index(chosen(curve))
    floor = heights[start] - points / 100

    def edge(step):
        i = start
        while 0 <= i + step < len(rates):
            if heights[i + step] < floor:
                share = (heights[i] - floor) / (heights[i] - heights[i + step])
                return math.exp((1 - share) * math.log(rates[i]) + share * math.log(rates[i + step])), False
            i += step
        return rates[i], True

    (low, open_below), (high, open_above) = edge(-1), edge(1)
    return low, high, open_below, open_above


def gap(curve, rate, other, other_rate):
    """Return (mean difference over the seeds in points, half of its 95 % interval)."""
    gaps = [100 * (run["test"] - other[other_rate][seed]["test"]) for seed, run in curve[rate].items()]
    return mean(gaps), STUDENT[len(gaps)] * statistics.stdev(gaps) / math.sqrt(len(gaps))


def difference(*columns):
    """Return the text of a `gap`; bold if the whole interval is on one side of 0."""
    middle, half = gap(*columns)
    text = f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"
    return f"**{text}**" if abs(middle) > half else text


def table(head, rows, left=1):
    """Return a table in Markdown, the first columns to the left."""
    marks = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))


def accuracy_table(columns):
    """Return the test accuracy of every rate (rows) and curve (columns); the rate chosen by validation is bold."""
    rows = []
    for rate in sorted({rate for curve in columns.values() for rate in curve}):
        cells = []
        for curve in columns.values():
            text = spread(scores(curve[rate])) if rate in curve else ""
            cells.append(f"**{text}**" if rate in curve and rate == chosen(curve) else text)
        rows.append([number(rate), *cells])
    return table(["learning rate", *columns], rows)


def arm_summary(curves):
    """Return the table of what each arm gives when its rate is tuned, when it is not, and over which range."""
    uniform, rows = curves["uniform"], []
    for arm, curve in curves.items():
        rate, common = chosen(curve), [mean(scores(runs)) for runs in curve.values()]
        against = "" if arm == "uniform" else difference(curve, rate, uniform, chosen(uniform))
        cells = [number(rate), spread(scores(curve[rate])), against, f"{100 * mean(common):.1f}"]
        rows.append([arm, *cells, f"{100 * min(common):.1f}", *(span(*within(curve, points)) for points in (1, 5))])
    head = ["arm", "tuned rate", "test accuracy there", "against uniform, tuned", "mean accuracy", "lowest accuracy"]
    return table([*head, "range within 1 point", "within 5 points"], rows)


def span(low, high, open_below, open_above):
    """Return the text of a range of rates and how many times the lowest its highest is."""
    least = "at least " if open_below or open_above else ""
    marks = "≤ " * open_below, "≥ " * open_above
    return f"{marks[0]}{number(low)} to {marks[1]}{number(high)} ({least}× {high / low:.1f})"


def same_rate(curves):
    """Return the table of each arm minus uniform at the same rate, seed by seed."""
    uniform, rows = curves["uniform"], []
    others = {arm: curve for arm, curve in curves.items() if arm != "uniform"}
    for rate in uniform:
        rows.append([number(rate), *(difference(curve, rate, uniform, rate) for curve in others.values())])
    return table(["learning rate", *others], rows)


def optimizer_summary(curves):
    """Return the table of each optimizer at its tuned rate, against AdamW with the same seeds."""
    adamw, rows = curves["adamwdl"], []
    for name, curve in curves.items():
        rate = chosen(curve)
        against = "" if curve is adamw else difference(curve, rate, adamw, chosen(adamw))
        place = {min(curve): "lowest", max(curve): "highest"}.get(rate, "inside")
        rows.append([NAMES[name], number(rate), place, str(len(curve[rate])), spread(scores(curve[rate])), against])
    return table(["optimizer", "tuned rate", "place in its grid", "seeds", "test accuracy", "against AdamWDL"], rows, 3)


def no_help(curves):
    """Return where decay bought nothing in a task, or cost something."""
    uniform = curves["uniform"]
    others = {arm: curve for arm, curve in curves.items() if curve is not uniform}
    best, lowest = chosen(uniform), min(uniform)

    def verdicts(rate_of):
        signs = {arm: gap(curve, rate_of(curve), uniform, rate_of(uniform)) for arm, curve in others.items()}
        above = [arm for arm, (middle, half) in signs.items() if middle > half]
        below = [arm for arm, (middle, half) in signs.items() if middle < -half]
        inside = [arm for arm, (middle, half) in signs.items() if abs(middle) <= half]
        words = (("better", above), ("worse", below), ("interval includes 0", inside))
        return ", ".join(f"{word} ({', '.join(arms)})" for word, arms in words if arms)

    flat = curves["encoder at 0.1"]
    decays = {arm: curve for arm, curve in others.items() if curve is not flat}
    against_flat = listed(decays, lambda curve: difference(curve, chosen(curve), flat, chosen(flat)))
    lines = [
        f"against uniform, each arm at its tuned rate: {verdicts(chosen)};",
        f"against uniform, both at uniform's tuned rate {number(best)}: {verdicts(lambda curve: best)};",
        f"against uniform, both at the lowest rate {number(lowest)}: {verdicts(lambda curve: lowest)};",
        f"against the encoder at 0.1, each arm at its tuned rate: {against_flat}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def listed(curves, text_of):
    """Return "name text, name text" of curves."""
    return ", ".join(f"{name} {text_of(curve)}" for name, curve in curves.items())


def setup(results):
    """Return what was run: data, protocol, versions, counts."""
    lines = []
    for name, about in results.tasks.items():
        runs = [run for run in results.runs if run["task"] == name]
        infinite = sum(not run["finite"] for run in runs)
        minutes = sum(run["seconds"] for run in runs) / 60
        counts = f"{len(runs)} runs, {infinite} of them with a non-finite loss, {minutes:.0f} minutes on one core."
        lines.append(f"- **{name}**, {about['classes']} classes, majority class {100 * about['majority']:.1f} %. ")
        lines[-1] += f"{about['rows']} {counts}"
    first = next(iter(results.tasks.values()))
    lines.append("- Protocol: " + ", ".join(f"{key} {value}" for key, value in first["protocol"].items()) + ".")
    lines.append("- Versions: " + ", ".join(f"{key} {value}" for key, value in first["versions"].items()) + ".")
    if results.unfinished:
        lines.append(f"- {results.unfinished} runs of incomplete seeds are in the results but not in the tables.")
    return "\n".join(lines)


def findings(results):
    """Return the table of docs/evidence.md: each arm tuned, and at the highest rate, for each task."""
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


def blocks(results):
    """Return name -> Markdown of every generated part of docs/evidence_tables.md."""
    found = {"setup": setup(results)}
    for part, curves_of, make in (
        ("accuracy", results.arm_curves, accuracy_table),
        ("tuned", results.arm_curves, arm_summary),
        ("same rate", results.arm_curves, same_rate),
        ("no help", results.arm_curves, no_help),
        ("optimizers", results.optimizer_curves, optimizer_summary),
        ("optimizer accuracy", results.optimizer_curves, lambda curves: accuracy_table(named(curves))),
    ):
        curves = {task: curves_of(task) for task in results.tasks}
        tables = [f"{task}:\n\n{make(columns)}" for task, columns in curves.items() if columns]
        found[part] = "\n\n".join(tables) or "Nothing was run."
    return found


def named(curves):
    """Return the curves of optimizers under the names of their classes."""
    return {NAMES[name]: curve for name, curve in curves.items()}


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


def write_parts(page, parts):
    """Write generated parts into a page."""
    page.write_text(fill(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def write_report(results_path, docs):
    """Write the generated parts of both pages, and their pictures into the folder `images` beside them."""
    results = Results(results_path)
    write_parts(docs, {"findings": findings(results)})
    write_parts(docs.with_name("evidence_tables.md"), blocks(results))
    images = docs.parent / "images"
    images.mkdir(exist_ok=True)
    plot(results, images / "evidence_decay.svg", {task: results.arm_curves(task) for task in results.tasks})
    optimizers = {task: named(results.optimizer_curves(task)) for task in results.tasks}
    plot(results, images / "evidence_optimizers.svg", optimizers)
    print(f"{docs}: {len(results.runs)} runs")
