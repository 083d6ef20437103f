"""The command ``layers``: the layers of a model with their rates, as a table, JSON or a picture."""

import argparse
import json
import sys
from typing import Callable

from ..._checks import checked_number
from ...config.files import json_object
from ...layers.granularity import checked_granularity
from ...layers.map import LayerMap
from ...plots import check_picture
from .arguments import MODEL, add_decay_arguments, decay_from_arguments, load_model


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    """Add the arguments of the command."""
    add("--model", required=True, help=MODEL)
    add("--lr", type=float, help="learning rate of a layer whose ratio is 1")
    add_decay_arguments(add)
    add(
        "--granularity",
        default="block",
        help="what forms a layer: block, stage or N (N groups of blocks)",
    )
    add("--rules", metavar="JSON", help='layer by parameter-name pattern: \'{"adapter": "head"}\'')
    add("--plot", metavar="FILE", help="draw a chart of the rates into a .png, .svg or .pdf file")
    add("--json", action="store_true", help="print JSON instead of a table")


def show(options: argparse.Namespace) -> None:
    """Print the table of the model; draw it if asked."""
    if options.plot:
        check_picture(options.plot, "--plot")
    if options.lr is not None:
        checked_number(options.lr, "--lr")
    decay, granularity = decay_from_arguments(options), checked_granularity(options.granularity, "--granularity")
    rules = json_object(options.rules, "--rules") or None
    layers = LayerMap.from_model(load_model(options.model), rules=rules)
    table = layers.table(decay, options.lr)
    if options.json:
        print(json.dumps({"model": options.model, "towers": layers.towers, "layers": table.to_dict()}, indent=1))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    else:  # a file or a pipe has no width to fit
        print(table)
    if options.plot:
        print("plotted to", layers.plot(options.plot, decay, options.lr), file=sys.stderr)
