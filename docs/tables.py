"""Write the tables of options.md and scaling.md: `python docs/tables.py`.

With `--check`, only compare them with the pages.
"""

import argparse
import functools
import json
import pathlib
import re
import sys

from paddle_ldopt._checks import REQUIRED
from paddle_ldopt.config import SETTINGS
from paddle_ldopt.layers.decay import OPTIONS as DECAY_OPTIONS
from paddle_ldopt.layers.table import markdown
from paddle_ldopt.optimizers.registry import REGISTRY
from paddle_ldopt.optimizers.shared_options import COMMON
from paddle_ldopt.schedules.kinds import SCHEDULES
from paddle_ldopt.tools.memory import Layout, OptimizerSpec, Transformer, estimate, gib

PAGES = [pathlib.Path(__file__).parent / name for name in ("options.md", "scaling.md")]
SIZES = {"7 B": 7e9, "70 B": 70e9, "1 T": 1e12}
TOKENS = 2**20  # that each pipeline works through in a step
OPTIMIZERS = [
    OptimizerSpec("adamwdl"),
    OptimizerSpec("lamb"),
    OptimizerSpec("came"),
    OptimizerSpec("came", compression=True),
    OptimizerSpec("adafactor"),
    OptimizerSpec("adafactor", beta1=0.9),
    OptimizerSpec("adamweightdecay", amsgrad=True),
]
LAYOUTS = [
    Layout(dp=64),
    Layout(sharding=64),
    Layout(sharding=64, split_param=True),
    Layout(sharding=64, stage=2),
    Layout(sharding=64, stage=3),
    Layout(mp=8, pp=8),
    Layout(dp=16, mp=8, pp=8),
    Layout(sharding=16, mp=8, pp=8),
    Layout(sharding=16, split_param=True, mp=8, pp=8),
]


@functools.lru_cache
def estimates(model):
    """Return layout -> one estimate for each optimizer, None where it is refused."""
    return {layout: [_estimate(model, optimizer, layout) for optimizer in OPTIMIZERS] for layout in LAYOUTS}


def _estimate(model, optimizer, layout):
    try:
        return estimate(model, optimizer, layout, TOKENS)
    except ValueError:
        return None


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
    variants = [OptimizerSpec(name) for name in REGISTRY]
    variants += [spec for spec in [*OPTIMIZERS, OptimizerSpec("came", beta1=0.0)] if spec.options]
    rows = []
    for spec in sorted(variants, key=lambda spec: list(REGISTRY).index(spec.name)):
        names = ", ".join(f"`{state}`" for state in spec.state((2, 2)))
        rows.append([str(spec), names, _bytes(spec.state((2, 2)), "R C"), _bytes(spec.state((2,)), "n")])
    return _text_table(["optimizer", "states of a matrix", "bytes for R x C elements", "bytes for n elements"], rows)


def _text_table(header, rows):
    return markdown(header, rows).replace("--:", "---")


def _bytes(state, size):
    """Return the bytes of a state as a sum: of its elements, its rows, its columns and its numbers."""
    labels = {"element": f" {size}", "row": " R", "column": " C", "scalar": ""}
    sums = {kind: sum(n for of, n in state.values() if of == kind) for kind in labels}
    return " + ".join(f"{total}{labels[kind]}" for kind, total in sums.items() if total)


def models_table():
    """Return the table of the models that stand for the sizes."""
    rows = []
    for size, params in SIZES.items():
        model = Transformer.of_size(params)
        numbers = (model.hidden, model.intermediate, model.layers, model.heads, model.vocab)
        rows.append([size, *map(str, numbers), f"{model.size / 1e9:.4g} B"])
    return markdown(["size", "hidden", "intermediate", "blocks", "heads", "vocabulary", "parameters"], rows)


def memory_table(params):
    """Return the table of one size: GiB of state, and in all, for each layout and optimizer."""
    rows = []
    for layout, answers in estimates(Transformer.of_size(params)).items():
        shown = [f"{gib(answer.state)} / {gib(answer.total)}" if answer else "refused" for answer in answers]
        rows.append([str(layout), str(layout.devices), *shown])
    return markdown(["layout", "devices", *map(str, OPTIMIZERS)], rows)


def sent_table(params):
    """Return the table of one size: GiB that a device sends, for each layout."""
    asking = [i for i, optimizer in enumerate(OPTIMIZERS) if optimizer.sums((1, 1)) and not str(optimizer).count(",")]
    rows = []
    for layout, answers in estimates(Transformer.of_size(params)).items():
        first = answers[0]
        common = (first.sent_gradients, first.sent_parameters, first.sent_activations)
        sums = [gib(answers[i].sent_sums) if answers[i] else "refused" for i in asking]
        rows.append([str(layout), *map(gib, common), *sums])
    header = ["layout", "gradients", "parameters", "activations", *(f"sums of {OPTIMIZERS[i]}" for i in asking)]
    return markdown(header, rows)


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
    answer.update(models=models_table(), combinations=combinations_table())
    for size, params in SIZES.items():
        answer[f"memory {size}"] = memory_table(params)
        answer[f"sent {size}"] = sent_table(params)
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
