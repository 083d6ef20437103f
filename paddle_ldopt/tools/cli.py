"""The command line: check layers, learning rates and memory before training."""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import json
import sys
import typing
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import paddle

from .._checks import checked_int, nearest, refusal
from .._files import checked_path, file_errors, json_number
from ..config import SETTINGS, decay_help, json_object, option_of
from ..layers.decay import OPTIONS, Layer, LayerDecay
from ..layers.map import LayerMap
from ..plots import Series, check_picture, plot_schedule, text_plot
from ..schedules import ON_METRIC, get_scheduler
from ..schedules.factory import SCHEDULES
from . import MODEL, load_model, memory

__all__ = ["load_model", "main"]

_LARGE = 10**9  # parameters; 4 GB
_DECAY = {name: f"--{setting}" for name, setting in SETTINGS.items()}


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m paddle_ldopt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, add_arguments, show, does in (
        ("layers", _add_layers, _show_layers, "show the layers of a model and the learning rate of each"),
        ("schedule", _add_schedule, _show_schedule, "show the learning rate of each step"),
        ("memory", memory.add_arguments, memory.show, "show the bytes that a model and its optimizer hold"),
    ):
        command = commands.add_parser(name, help=does, description=f"{does.capitalize()}.", allow_abbrev=False)
        add_arguments(command.add_argument)
        flags = [flag for action in command._actions for flag in action.option_strings]
        command.set_defaults(show=show, flags=flags)
    options, others = parser.parse_known_args(argv)
    for word in others[:1]:
        flag = word.partition("=")[0]
        parser.error(f"{flag} is not a known argument{nearest(flag, options.flags, 0.4)}")
    try:
        if getattr(options, "plot", None):
            check_picture(options.plot, "--plot")
        options.show(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


# ---- a decay, with one argument for each of its options


def _add_decay(add: Callable[..., argparse.Action], *without: str) -> None:
    for field in dataclasses.fields(LayerDecay):
        if field.name in without:
            continue
        value_type = (typing.get_args(field.type) or (field.type,))[0]
        is_json = typing.get_origin(value_type) is not None
        how: Any = {"action": "store_true"} if value_type is bool else {"type": str if is_json else value_type}
        default, text = OPTIONS[field.name].default, decay_help(field.name)
        add(_DECAY[field.name], **how, dest=field.name, default=default, help=text)


def _given_decay(options: argparse.Namespace) -> dict[str, Any]:
    values = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    given = {name: value for name, value in values.items() if value != OPTIONS[name].default}
    return {name: option_of(value, name, _DECAY[name]) for name, value in given.items()}


# ---- layers


def _add_layers(add: Callable[..., argparse.Action]) -> None:
    add("--model", required=True, help=MODEL)
    add("--learning_rate", type=float, help="learning rate of a layer whose ratio is 1")
    _add_decay(add)
    add("--layerwise_rules", metavar="JSON", help='layer by parameter-name pattern: \'{"adapter": "head"}\'')
    add("--example", metavar="FILE.npz", help="a batch for the forward pass, named arrays; default: a small input")
    add("--plot", metavar="FILE", help="draw a chart of the rates into a .png, .svg or .pdf file")
    add("--json", action="store_true", help="print JSON instead of a table")


def _show_layers(options: argparse.Namespace) -> None:
    decay = LayerDecay(**_given_decay(options))
    model, rules = load_model(options.model), json_object(options.layerwise_rules, "--layerwise_rules") or None
    try:
        layers = LayerMap.from_model(model, example_of(model, options.example), rules)
    except Exception as error:
        if options.example is not None:
            raise
        print(f"layers by names, without a forward pass: {error}", file=sys.stderr)
        layers = LayerMap.from_model(model, rules=rules)
    table = layers.table(decay, options.learning_rate)
    if options.json:
        found = {"model": options.model, "source": layers.source, "towers": layers.towers, "layers": table.to_dict()}
        print(json.dumps(found, indent=1))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    else:  # a file or a pipe has no width to fit
        print(table)
    if options.plot:
        print("plotted to", layers.plot(options.plot, decay, options.learning_rate), file=sys.stderr)


# ---- schedule


def _add_schedule(add: Callable[..., argparse.Action]) -> None:
    kinds = [kind for kind in SCHEDULES if kind not in ON_METRIC]
    add("--lr_scheduler_type", required=True, metavar="KIND", choices=kinds, help=f"schedule: {', '.join(kinds)}")
    add("--max_steps", type=_steps, required=True, help="number of optimizer steps")
    add("--warmup_steps", type=_steps, default=0, help="number of warm-up steps")
    add("--learning_rate", type=float, required=True, help="peak learning rate")
    add("--lr_scheduler_kwargs", metavar="JSON", help="further options of the schedule: '{\"num_cycles\": 3}'")
    add("--layers", type=int, metavar="N", help="number of blocks, to show each layer's rate; needs a decay")
    _add_decay(add, "towers", "multipliers")  # towers and multipliers need a model
    add("--plot", metavar="FILE", help="draw the chart into a .png, .svg or .pdf file instead of the terminal")


def _steps(text: str) -> int:
    with contextlib.suppress(ValueError):
        number = json_number(text)
        if isinstance(number, int):
            return number
    raise argparse.ArgumentTypeError(f"must be a number of steps such as 1000 or 1e5. Received: {text}")


def _show_schedule(options: argparse.Namespace) -> None:
    kwargs = json_object(options.lr_scheduler_kwargs, "--lr_scheduler_kwargs")
    steps, warmup = checked_int(options.max_steps, "--max_steps", 1), options.warmup_steps
    schedule: Any = get_scheduler(options.lr_scheduler_type, options.learning_rate, warmup, steps, kwargs)

    def rate_at(step: int, ratio: float = 1.0) -> float:
        return ratio * schedule.base_lr * schedule.curve(step)

    series: Series = {"lr": rate_at}
    n, given = options.layers, _given_decay(options)
    if (n is None) != (not given):
        received = {_DECAY[name]: value for name, value in given.items()}
        raise refusal(ValueError, "Give both `--layers` and a decay, or neither.", **received, **{"--layers": n})
    if n is not None:
        decay, layers = LayerDecay(**given), range(checked_int(n, "--layers", 1) + 2)
        series = {Layer("", i, n).label: functools.partial(rate_at, ratio=decay.ratio(i, n)) for i in layers}
    if options.plot:
        print("plotted to", plot_schedule(options.plot, steps, series), file=sys.stderr)
    else:
        print(text_plot(steps, series))


def example_of(model: paddle.nn.Layer, path: Optional[str]) -> dict[str, paddle.Tensor]:
    """Return a small batch, the arrays of a file or ids and images by the signature, and allocate the model."""
    size = sum(param.size for param in model.parameters())
    batch: dict[str, paddle.Tensor] = {}
    if path is not None:
        with file_errors(checked_path(path, "--example"), "This .npz"), np.load(path, allow_pickle=False) as arrays:
            batch = {name: paddle.to_tensor(array) for name, array in arrays.items()}
    elif size < _LARGE:
        side = getattr(getattr(model, "config", None), "image_size", None) or 224
        for name in inspect.signature(model.forward).parameters:
            if name in ("input_ids", "decoder_input_ids"):
                batch[name] = paddle.arange(1, 9).unsqueeze(0)
            elif name in ("pixel_values", "images"):
                batch[name] = paddle.zeros([1, 3, side, side])
    if not batch:
        wrong = "The model is too large to run it without `--example`, or takes neither ids nor images."
        raise refusal(ValueError, wrong, model=type(model).__name__, parameters=size)
    for param in model.parameters():
        if not param._is_initialized():
            param.initialize()
    return batch
