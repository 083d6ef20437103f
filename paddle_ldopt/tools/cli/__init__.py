"""Check layers, learning rates and memory before training."""

import argparse
import sys
from collections.abc import Sequence
from typing import Optional

from . import layers, memory, schedule
from .arguments import load_model

__all__ = ["load_model", "main"]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m paddle_ldopt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module, does in (
        ("layers", layers, "show the layers of a model and the learning rate of each"),
        ("schedule", schedule, "show the learning rate of each step"),
        ("memory", memory, "show the bytes that each device holds and sends in a step"),
    ):
        command = commands.add_parser(name, help=does, description=f"{does.capitalize()}.")
        command.set_defaults(show=module.show)
        module.add_arguments(command.add_argument)
    options = parser.parse_args(argv)
    try:
        options.show(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
