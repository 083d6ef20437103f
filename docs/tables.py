"""Write the tables of options.md and scaling.md: `python docs/tables.py`.

With `--check`, only compare them with the pages.
"""

import argparse
import json
import math
import pathlib
import re
import sys

from paddle_ldopt._checks import REQUIRED
from paddle_ldopt.config import SETTINGS
from paddle_ldopt.layers.decay import OPTIONS as DECAY_OPTIONS
from paddle_ldopt.optimizers.options import REGISTRY
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.tools import load_model
from paddle_ldopt.tools.memory import ITEMSIZE, estimate

PAGES = [pathlib.Path(__file__).parent / name for name in ("options.md", "scaling.md")]
VARIANTS = {  # beside every optimizer with its defaults
    "came, compression": ("came", {"compression": True}),
    "came, beta1 0": ("came", {"beta1": 0.0}),
    "adafactor, beta1 0.9": ("adafactor", {"beta1": 0.9}),
    "adamweightdecay, amsgrad": ("adamweightdecay", {"amsgrad": True}),
}


def markdown(header, rows):
    """Return a table of text as GitHub Markdown, with all but the first column right-aligned."""
    line_below = ["---"] + ["--:"] * (len(header) - 1)
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in [header, line_below, *rows]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def optimizers():
    """Return label -> (optimizer, options) of the tables of states and memory."""
    found = {name: (name, {}) for name in REGISTRY} | VARIANTS
    return dict(sorted(found.items(), key=lambda item: list(REGISTRY).index(item[1][0])))


def options_table():
    """Return the table of the options of the optimizers: one row for each option and meaning."""
    rows = {}
    for name, info in REGISTRY.items():
        for option, declared in info.options.items():
            given = "" if declared.argument and declared.group else "group" if declared.group else "class"
            key = (declared.setting or option, declared.doc, given)
            row = rows.setdefault(key, {"own": {}, "default": {}, "range": {}})
            row["own"].setdefault(option, []).append(name)
            row["default"].setdefault(f"`{declared.default}`", []).append(name)
            row["range"].setdefault(declared.span, []).append(name)
    cells = []
    for (option, doc, given), row in rows.items():
        own = [f"; `{other}` in {', '.join(names)}" for other, names in row["own"].items() if other != option]
        cells.append([f"`{option}`{''.join(own)}", doc, _of_optimizers(row["default"]), _united(row["range"]), given])
    return _text_table(["option", "meaning", "default", "range", "only in"], cells)


def _of_optimizers(defaults):
    """Return {default: its optimizers} as text."""
    names = [f"{', '.join(names)}: {default}" for default, names in defaults.items()]
    every = len(defaults) == 1 and len(next(iter(defaults.values()))) == len(REGISTRY)
    return next(iter(defaults)) if every else "; ".join(names)


def _united(ranges):
    """Return {range: its optimizers} as text; the first without names."""
    (first, _), *others = ranges.items()
    return "; ".join([first, *(f"{', '.join(names)}: {span}" for span, names in others)])


def schedules_table():
    """Return the table of the arguments of each kind of schedule, with their defaults and ranges."""
    rows = []
    for kind in SCHEDULES.values():
        texts = []
        for option, declared in kind.options.items():
            if option not in ("last_epoch", "num_warmup_steps", "num_training_steps"):
                default = "" if declared.default is REQUIRED else f"={declared.default}"
                texts.append(f"`{option}{default}` {declared.span}")
        steps = [name for name in ("num_warmup_steps", "num_training_steps") if name in kind.options]
        rows.append([f"`{kind.name}`", " ".join(f"`{name}`" for name in steps), "; ".join(texts)])
    return _text_table(["kind", "steps", "further arguments"], rows)


def decay_table():
    """Return the table of the options that `LayerDecay` declares, with the names of their settings."""
    rows = []
    for field, option in DECAY_OPTIONS.items():
        rows.append([f"`{field}`", f"`{SETTINGS[field]}`", f"`{option.default}`", option.span, option.doc])
    return _text_table(["option", "setting", "default", "range", "meaning"], rows)


def states_table():
    """Return the table of the states that each optimizer declares, with their bytes."""
    rows = []
    for label, (name, options) in optimizers().items():
        matrix, vector = (REGISTRY[name].states(options, shape) for shape in ((2, 2), (2,)))
        names = ", ".join(f"`{state}`" for state in matrix)
        rows.append([label, names, _bytes(matrix, "R C"), _bytes(vector, "n")])
    return _text_table(["optimizer", "states of a matrix", "bytes for R x C elements", "bytes for n elements"], rows)


def _text_table(header, rows):
    return markdown(header, rows).replace("--:", "---")


def _bytes(state, size):
    """Return the bytes of a state as a sum: of its elements, its rows, its columns and its numbers."""
    labels = {"element": f" {size}", "row": " R", "column": " C", "scalar": ""}
    sizes = [(kind, ITEMSIZE[dtype or "float32"]) for kind, dtype in state.values()]
    sums = {kind: sum(size for of, size in sizes if of == kind) for kind in labels}
    return " + ".join(f"{total}{labels[kind]}" for kind, total in sums.items() if total)


def memory_table():
    """Return the table of GiB of state, and in all, of each optimizer for LLaMA 7B."""
    shapes = {name: param.shape for name, param in load_model("LlamaForCausalLM").named_parameters()}
    count = sum(map(math.prod, shapes.values()))
    rows = []
    for label, (name, options) in optimizers().items():
        use = estimate(shapes, name, **options)
        rows.append([label, _gib(use["state"]), _gib(use["total"])])
    return markdown(["optimizer", f"state, GiB ({count / 1e9:.4g} B parameters)", "in all, GiB"], rows)


def _gib(size):
    return f"{size / 2**30:.2f}" if size >= 2**30 else f"{size / 2**30:.2g}"


def combinations():
    """Return how many combinations of `tests/distributed/combinations.py` match one process, and why others do not."""
    results = json.loads((PAGES[0].parent / "combinations.json").read_text(encoding="utf-8"))
    cells = [cell for ways in results.values() for cell in ways.values()]
    match = sum(cell["match"] for cell in cells)
    refused = [f"{len(names)}: {' '.join(why.split())}" for cell in cells for why, names in cell["refused"].items()]
    said = f"{match} combinations of {len(results)} layouts ({', '.join(results)}) match one process; "
    return said + (f"refused are {'; '.join(refused)}." if refused else "none is refused or differs.")


def tables():
    """Return name -> table, as between the marks of the page."""
    answer = {"options": options_table(), "states": states_table()}
    answer.update(decay=decay_table(), schedules=schedules_table())
    answer.update(memory=memory_table(), combinations=combinations())
    return answer


def filled(page):
    """Return the text of a page with the tables that its marks name."""
    found = tables()
    between = r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)"
    return re.sub(between, lambda match: f"{match[1]}{found[match[2]]}\n{match[3]}", page, flags=re.S)


def main():
    """Write the pages, or say whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the tables differ")
    check = parser.parse_args().check
    stale = [page for page in PAGES if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in [] if check else stale:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
