"""Results as Markdown: the section of README.md between the markers, its charts and results.json."""

import json

from charts import AXES, draw, milliseconds

BEGIN, END = "<!-- measured: begin (written by `make bench`) -->", "<!-- measured: end -->"


def text(results):
    """Return the Markdown of all results; a section that an earlier run measured begins with the date of this run."""
    parts, shown, of_this_run = [], [], []
    for name, writer in _WRITERS.items():
        if results.get(name):
            earlier = results.get("earlier", {}).get(name)
            title, _, body = writer({**results, "about": earlier or results["about"]}).partition("\n\n")
            parts.append(title)
            if earlier:
                again = f"Measured in the run of {earlier['date']}, commit `{earlier['commit']}`."
                parts.append(again if earlier in shown else f"Measured on {_about(earlier)}")
                shown.append(earlier)
            else:
                of_this_run.append(f'"{title.lstrip("# ")}"')
            parts.append(body)
    about = _about(results["about"])
    if shown:
        about += f"\nThis run measured only {', '.join(of_this_run)}; the other sections name their run."
    return "\n\n".join([about, *parts])


def with_others(results, folder):
    """Return the results, and those of sections that were not measured as results.json in the folder has them."""
    path = folder / "results.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    others = [name for name in _WRITERS if kept.get(name) and name not in results]
    if not others:
        return results
    earlier = {name: kept.get("earlier", {}).get(name, kept["about"]) for name in others}
    return {**results, **{name: kept[name] for name in others}, "earlier": earlier}


def shown(results):
    """Return the results that README.md shows: of the models the first, with the most threads; results.json has all."""
    found = {name: value for name, value in results.items() if name not in ("denormal", "growth")}
    if "models" in found:
        model, most = found["models"][0]["model"], max(row["threads"] for row in found["models"])
        found["models"] = [row for row in found["models"] if (row["model"], row["threads"]) == (model, most)]
    return found


def write(results, folder):
    """Put the results into README.md, between its markers, and beside it.

    Args:
        results (dict): of `bench.measure`.
        folder (Path): where README.md is.
    """
    readme = folder / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the markers are not in the page. Received: {readme}")
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    readme.write_text(f"{before}{BEGIN}\n\n{text(shown(results))}\n\n{END}{after}", encoding="utf-8")
    draw(results, folder / "images")


def table(head, rows):
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def mebibytes(value):
    """Return a size in MiB, "-" if it is not known."""
    return "-" if value is None else f"{value / 2**20:.1f}"


def _about(about):
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    bandwidths = ", ".join(
        f"{value / 1e9:.1f} GB/s ({used} thread{'s' * (str(used) != '1')})" for used, value in about["triad"].items()
    )
    lines = [
        f"{about['date']}, commit `{about['commit']}`: {about['cpu']}, {about['cores']} cores, "
        f"{about['memory_bytes'] / 2**30:.0f} GiB; load {about['load_before']:.2f} before and "
        f"{about['load_after']:.2f} after; at most {about['rounds']} rounds; took {_minutes(about['minutes'])}.",
        f"Python {about['python']}, {versions}.",
    ]
    if bandwidths:
        lines.append(f"Triad: {bandwidths}.")
    if about["absent"]:
        lines.append("Left out: " + "; ".join(f"`{label}` ({why})" for label, why in about["absent"].items()) + ".")
    return "\n".join(lines)


def _minutes(minutes):
    return f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute or less"


def _models(results):
    parts, groups = ["## A step"], {}
    for row in results["models"]:
        groups.setdefault((row["model"], row["threads"]), []).append(row)
    for (model, threads), rows in groups.items():
        size = f"{rows[0]['tensors']} tensors, {rows[0]['elements'] / 1e6:.1f} M parameters"
        parts.append(f"### {model}, {threads} thread{'s' * (threads > 1)}\n\n{size}")
        parts.append(table(_STEP_HEAD, map(_step, rows)))
    ran: dict = {}
    for row in results["models"]:
        if row["path"]:
            ran.setdefault(row["path"], set()).add(f"`{row['label']}`")
    paths = "\n".join(f"- {path}: {', '.join(sorted(labels))}" for path, labels in sorted(ran.items()))
    if paths:
        parts += ["The updates ran on:", paths]
    return "\n\n".join([parts[0], "![Times of a step](images/steps.svg)", *parts[1:]])


_STEP_HEAD = ["optimizer", "median step, ms", "ours / this", "this / floor", "peak transient, MiB"]


def _step(row):
    bold = "**" * (row["ratio"] == 1.0)
    cells = [f"{row['ratio']:.3f}", f"{row['of_floor']:.2f}", mebibytes(row["transient_bytes"])]
    return [f"{bold}`{row['label']}`{bold}", milliseconds(row["ms"]), *cells]


def _launches(results):
    cells = [
        [f"`{row['label']}`", f"{row['launches']:,}", *_cost(row["small"]), *_cost(row["whole"]), row["path"]]
        for row in results["launches"]
    ]
    head = ["optimizer", "operations", "small vocabulary, ms", "this / AdamW", "whole, ms", "this / AdamW", "ran on"]
    return (
        "## Launches\n\nThe number of Paddle operations that a step launches, and its median CPU time on 1 thread, for "
        "BERT-base's 199 parameters at a hidden size of 8. The small vocabulary has 30 words, so that arithmetic is "
        "negligible. The whole vocabulary has 30,522 words.\n\n" + table(head, cells)
    )


def _cost(measured):
    return [milliseconds(measured["ms"]), f"{measured['ratio']:.2f}"]


def _layerwise(results):
    return (
        f'## Cost of layer-wise decay\n\nBERT-base, {results["about"]["threads"]} threads. "this / AdamW" is the '
        'median ratio of neighbouring steps, not the ratio of the medians. "A step" is a separate measurement, so its '
        "times differ. `layers` is a layer map, `name_dict` PaddleNLP's argument for the parameter names.\n\n"
        + _compared(["optimizer", "median step, ms", "this / AdamW"], results["layerwise"], power=-1)
    )


def _muon(results):
    return (
        f"## Muon\n\nThe six matrices of a block of BERT-base, {results['about']['threads']} threads. Ours has "
        "float32 products on a CPU; the peers have bfloat16 products only, for which few CPUs have instructions.\n\n"
        + _compared(["optimizer", "step, ms", "ours / this"], results["muon"])
    )


def _compared(head, rows, power=1):
    cells = [[f"`{row['label']}`", milliseconds(row["ms"]), f"{row['ratio'] ** power:.3f}"] for row in rows]
    return table(head, cells)


def _denormal(results):
    cells = [[f"`{row['label']}`", f"{row['ratio']:.3f}", row["path"]] for row in results["denormal"]]
    head = ["optimizer", "denormal / normal", "ran on"]
    return (
        "## Denormal gradients\n\nThe time of a step with gradients of 1e-41 (denormal), relative to gradients of 1e-3 "
        f"(normal), on 100 matrices of 100 x 1000.\n\n{table(head, cells)}"
    )


def _growth(results):
    parts = [
        "## Growth",
        "![Growth of a step's time](images/growth.svg)",
        f"The median step in ms on {results['about']['threads']} threads. In brackets: the ratio to the floor.",
    ]
    for axis, title in AXES.items():
        rows = [row for row in results["growth"] if row["axis"] == axis]
        labels = list(dict.fromkeys(row["label"] for row in rows))
        points = list(dict.fromkeys(row[axis] for row in rows))
        found = {(row["label"], row[axis]): row for row in rows}
        cells = [[f"`{label}`", *(_grown(found[label, point]) for point in points)] for label in labels]
        parts.append(f"### {title}\n\n{table(['optimizer', *(f'{point:,}' for point in points)], cells)}")
    return "\n\n".join(parts)


def _grown(row):
    if "lacks_bytes" in row:
        return f"not run: needs {row['lacks_bytes'] / 2**30:.0f} GiB"
    return f"{milliseconds(row['ms'])} ({row['of_floor']:.1f})"


def _state(results):
    cells = [
        [f"`{row['optimizer']}`", row["what"], mebibytes(row["bytes"]), f"{row['bytes'] / row['elements']:.4f}"]
        for row in results["state"]
    ]
    head = ["optimizer", "stored values", "state, MiB", "bytes per parameter"]
    return f"## State\n\nBERT-base, counted after a step.\n\n{table(head, cells)}"


_WRITERS = {"models": _models, "launches": _launches, "layerwise": _layerwise, "muon": _muon}
_WRITERS.update(denormal=_denormal, growth=_growth, state=_state)
