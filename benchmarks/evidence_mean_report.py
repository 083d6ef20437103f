"""The section of docs/evidence_tables.md on decays that keep the mean rate, from results of llrd_evidence_mean.py."""

from evidence_report import (
    Results,
    accuracy_table,
    chosen,
    difference,
    gap,
    mean,
    number,
    same_rate,
    scores,
    spread,
    table,
    write_parts,
)

RATES = ("a third of the tuned rate", "the tuned rate", "three times the tuned rate")
HEAD = [
    "task",
    "learning rate",
    "better than uniform",
    "interval includes 0",
    "worse",
    "largest gain, in points",
]


def blocks(results, planned, seeds):
    """Return name -> Markdown of every generated part of the section in docs/evidence_tables.md.

    Args:
        results (Results): the runs.
        planned (list): the names of all tasks of the study.
        seeds (int): how many seeds the study asks for.
    """
    found = {"mean in short": in_short(results, planned, seeds), "mean setup": setup(results, planned, seeds)}
    for part, make in (
        ("mean accuracy", accuracy_table),
        ("mean same rate", same_rate),
        ("mean tuned", tuned),
        ("mean of what", parameters_or_blocks),
    ):
        tables = {task: make(results.arm_curves(task)) for task in results.tasks}
        found[part] = "\n\n".join(f"{task}:\n\n{text}" for task, text in tables.items())
    return found


def finished(results, task):
    """Return the number of seeds of a task that have every arm at every rate."""
    return len({run["seed"] for run in results.runs if run["task"] == task})


def sign(interval):
    """Return 1 or -1 if the whole interval (middle, half of its width) is on that side of 0, else 0."""
    middle, half = interval
    return (middle > half) - (middle < -half)


def gaps(results, task):
    """Return [{decay: `gap` to uniform at the same rate} for each rate]."""
    curves = results.arm_curves(task)
    uniform = curves.pop("uniform")
    return [{arm: gap(curve, rate, uniform, rate) for arm, curve in curves.items()} for rate in uniform]


def in_short(results, planned, seeds):
    """Return the verdict on each task and rate, the count of all differences, and the default that follows.

    Tasks with less than half of their seeds are left to the tables.
    """
    rows, signs = [], []
    judged = [task for task in results.tasks if finished(results, task) * 2 >= seeds]
    for task in judged:
        found = gaps(results, task)
        signs += [sign(interval) for of_rate in found for interval in of_rate.values()]
        rows += [[task, name, *verdict(of_rate)] for name, of_rate in zip(RATES, found)]
    above, below, neither = (signs.count(side) for side in (1, -1, 0))
    parts = [text_table(HEAD, rows)] if rows else []
    parts.append(
        f"The table has {len(signs)} differences from uniform training at the same rate. The 95 % interval is above 0 "
        f"for {above} of them, below 0 for {below}, and includes 0 for {neither}. "
        f"By chance alone, about {0.05 * len(signs):.0f} intervals would exclude 0."
    )
    lacking = unfinished(results, planned, seeds)
    if lacking:
        parts.append(f"**The study is not finished** ({'; '.join(lacking)}). The results may change.")
    return "\n\n".join([*parts, default(results, judged, bool(lacking))] if judged else parts)


def verdict(found):
    """Return which of {decay: interval} are better, which intervals include 0, which are worse, and the highest."""
    groups = [[arm for arm in found if sign(found[arm]) == side] for side in (1, 0, -1)]
    best = max(found, key=lambda arm: found[arm][0])
    middle, half = found[best]
    listed = ("all" if len(arms) == len(found) else ", ".join(arms) for arms in groups)
    return [*listed, f"{best}: {middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"]


def text_table(head, rows):
    """Return a Markdown table of words."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def unfinished(results, planned, seeds):
    """Return what the study lacks: tasks with too few seeds, tasks that are in no table."""
    missing = [
        f"{name}: not in the tables, which need two finished seeds" for name in planned if name not in results.tasks
    ]
    counts = {name: finished(results, name) for name in results.tasks}
    return [f"{name}: {count} of {seeds} seeds" for name, count in counts.items() if count < seeds] + missing


def default(results, judged, unfinished):
    """Return the default by the criterion that docs/evidence_tables.md states, from the judged tasks."""
    at_tuned = [gaps(results, task)[1] for task in judged]
    fit = {
        arm: mean([found[arm][0] for found in at_tuned])
        for arm in at_tuned[0]
        if {sign(found[arm]) for found in at_tuned} in ({1}, {0, 1})
    }
    if not fit:
        return "No decay meets the criterion: the default is uniform training."
    best = max(fit, key=fit.get)
    passing = ", ".join(f"{arm} ({points:+.1f})" for arm, points in fit.items())
    end = (
        f"{best} would become the default; the recipes keep their defaults until all tasks are finished."
        if unfinished
        else f"The default is {best}."
    )
    return f"These decays meet the criterion (in brackets: mean gain over the tasks, in points): {passing}. {end}"


def tuned(curves):
    """Return the table of each arm at the rate that the validation rows choose."""
    uniform, rows = curves["uniform"], []
    for arm, curve in curves.items():
        rate, every = chosen(curve), [mean(scores(runs)) for runs in curve.values()]
        against = "" if arm == "uniform" else difference(curve, rate, uniform, chosen(uniform))
        worst = [f"{100 * mean(every):.1f}", f"{100 * min(every):.1f}"]
        rows.append([arm, number(rate), spread(scores(curve[rate])), against, *worst])
    head = ["arm", "tuned rate", "test accuracy there", "against uniform, tuned", "mean accuracy", "lowest accuracy"]
    return table(head, rows)


def parameters_or_blocks(curves):
    """Return the table of the mean by parameters minus the mean over the blocks, at the same rate and decay."""
    decays = [arm.partition(" ")[0] for arm in curves if arm.endswith(" by blocks")]
    pairs = [(curves[f"{decay} by parameters"], curves[f"{decay} by blocks"]) for decay in decays]
    rows = [[number(rate), *(difference(one, rate, other, rate) for one, other in pairs)] for rate in curves["uniform"]]
    return table(["learning rate", *decays], rows)


def setup(results, planned, seeds):
    """Return what was run: seeds, data, protocol, the rates."""
    lines = []
    for name in planned:
        about, runs = results.tasks.get(name), [run for run in results.runs if run["task"] == name]
        if about is None:
            lines.append(f"- **{name}**: no two seeds are finished.")
            continue
        infinite, minutes = sum(not run["finite"] for run in runs), sum(run["seconds"] for run in runs) / 60
        protocol = ", ".join(f"{key} {value}" for key, value in about["protocol"].items())
        best = chosen(results.curve(name, "adamwdl", "uniform"))
        expected = best == about["protocol"]["tuned"]
        agree = "as the protocol assumes" if expected else "**unlike the tuned rate of the protocol**"
        lines.append(
            f"- **{name}**: {finished(results, name)} of {seeds} seeds. {about['rows']} Majority class "
            f"{100 * about['majority']:.1f} %. {len(runs)} runs, {infinite} of them with a non-finite loss, "
            f"{minutes:.0f} minutes on one core. Protocol: {protocol}. Of the three rates, "
            f"{number(best)} has the highest validation accuracy for uniform training, {agree}."
        )
    if results.unfinished:
        lines.append(f"- {results.unfinished} runs of unfinished seeds are in the results, not in the tables.")
    ratios = {run["arm"]: run["mean_ratio"] for run in results.runs}
    factors = ", ".join(f"{arm} {1 / ratio:.2f}" for arm, ratio in ratios.items())
    lines.append(f"- Factor that preserves the mean rate, 1 / mean ratio: {factors}.")
    versions = next(iter(results.tasks.values()))["versions"]
    lines.append("- Versions: " + ", ".join(f"{key} {value}" for key, value in versions.items()) + ".")
    return "\n".join(lines)


def write_report(results_path, page, planned, seeds):
    """Write the generated parts of the section into the page."""
    results = Results(results_path)
    write_parts(page, blocks(results, planned, seeds))
    print(f"{page}: {len(results.runs)} runs")
