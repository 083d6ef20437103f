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
from paddle_ldopt.layers.table import markdown
from paddle_ldopt.optimizers.options import COMMON, REGISTRY
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.tools.memory import ITEMSIZE, decoder_of_size, estimate

PAGES = [pathlib.Path(__file__).parent / name for name in ("options.md", "scaling.md")]
SIZES = {"7 B": 7e9, "70 B": 70e9, "1 T": 1e12}
VARIANTS = {  # beside every optimizer with its defaults
    "came, compression": ("came", {"compression": True}),
    "came, beta1 0": ("came", {"beta1": 0.0}),
    "adafactor, beta1 0.9": ("adafactor", {"beta1": 0.9}),
    "adamweightdecay, amsgrad": ("adamweightdecay", {"amsgrad": True}),
}


def optimizers():
    """Return label -> (optimizer, options) of the tables of states and memory."""
    found = {name: (name, {}) for name in REGISTRY} | VARIANTS
    return dict(sorted(found.items(), key=lambda item: list(REGISTRY).index(item[1][0])))


def options_table():
    """Return the table of the options that each optimizer declares."""
    rows = []
    declared_by = {f"`{name}`": info.options for name, info in REGISTRY.items()}
    common = {option: declared for option, declared in REGISTRY["adamwdl"].options.items() if option in COMMON}
    for name, options in {**declared_by, "all": common}.items():
        for option, declared in options.items():
            if name == "all" or option not in common:
                ways = ["argument"] * declared.argument + ["group"] * declared.group
                own = f"`{option}`" if declared.setting else ""
                setting, default = f"`{declared.setting or option}`", f"`{declared.default}`"
                rows.append([name, setting, own, default, declared.span, ", ".join(ways), declared.doc])
    header = ["optimizer", "option", "in the class", "default", "range", "given as", "meaning"]
    return _text_table(header, rows)


def schedules_table():
    """Return the table of the arguments of each kind of schedule."""
    rows = []
    for kind in SCHEDULES.values():
        for option, declared in kind.options.items():
            default = "" if declared.default is REQUIRED else f"`{declared.default}`"
            if option != "last_epoch":  # the same for all
                rows.append([f"`{kind.name}`", f"`{option}`", default, declared.span])
    return _text_table(["kind", "argument", "default", "range"], rows)


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
    """Return the table of GiB of state, and in all, of each optimizer for decoders of several sizes."""
    models = {size: decoder_of_size(params) for size, params in SIZES.items()}
    counts = [sum(map(math.prod, shapes.values())) for shapes in models.values()]
    rows = []
    for label, (name, options) in optimizers().items():
        uses = [estimate(shapes, name, **options) for shapes in models.values()]
        rows.append([label, *(f"{_gib(use['state'])} / {_gib(use['total'])}" for use in uses)])
    return markdown(["optimizer", *(f"{size} ({n / 1e9:.4g} B)" for size, n in zip(models, counts))], rows)


def _gib(size):
    return f"{size / 2**30:.2f}" if size >= 2**30 else f"{size / 2**30:.2g}"


def combinations_table():
    """Return the table of `tests/distributed/combinations.py`: how many of each layout match one process."""
    results = json.loads((PAGES[0].parent / "combinations.json").read_text(encoding="utf-8"))
    notes: list = []

    def shown(cell):
        text = [str(cell["match"])]
        for why, names in cell["refused"].items():
            if why not in notes:
                notes.append(why)
            text.append(f"{len(names)} refused ({notes.index(why) + 1})")
        return ", ".join(text)

    rows = [[layout, *(shown(cell) for cell in ways.values())] for layout, ways in results.items()]
    table = markdown(["layout", *next(iter(results.values()))], rows)
    cells = [cell for ways in results.values() for cell in ways.values()]
    match = sum(cell["match"] for cell in cells)
    refused = sum(len(names) for cell in cells for names in cell["refused"].values())
    said = [f"{i}. {' '.join(note.split())}" for i, note in enumerate(notes, 1)]
    return "\n".join([table, "", f"{match + refused} combinations: {match} match, {refused} are refused.", "", *said])


def tables():
    """Return name -> table, as between the marks of the page."""
    answer = {"options": options_table(), "states": states_table()}
    answer.update(decay=decay_table(), schedules=schedules_table())
    answer.update(memory=memory_table(), combinations=combinations_table())
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
