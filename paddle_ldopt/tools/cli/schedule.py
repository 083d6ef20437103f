"""The command ``schedule``: the rates of a schedule by step and layer, in the terminal or as a picture."""

import argparse
import sys
from typing import Callable

from paddle.optimizer.lr import LRScheduler

from ..._checks import checked_choice, checked_int, checked_number, checked_steps
from ..._messages import refusal, tell_all
from ...config import json_object
from ...layers.layer import Layer
from ...plots import Series, check_picture, plot_schedule, text_plot
from ...schedules import get_scheduler
from ...schedules.ahead import schedule_rates
from ...schedules.kinds import SCHEDULES
from .arguments import add_decay_arguments, decay_from_arguments, given_decay_arguments


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    """Add the arguments of the command."""
    kinds = ", ".join(kind.name for kind in SCHEDULES.values() if not kind.on_metric)
    add("--type", required=True, metavar="KIND", help=f"schedule: {kinds}")
    add("--steps", type=int, dest="num_steps", required=True, help="number of optimizer steps")
    add("--warmup", type=int, default=0, help="number of warm-up steps")
    add("--lr", type=float, required=True, help="peak learning rate")
    add("--kwargs", metavar="JSON", help="further options of the schedule: '{\"num_cycles\": 3}'")
    add("--layers", type=int, metavar="N", help="number of blocks, to show each layer's rate; needs a decay")
    # a moving decay takes all steps; towers and multipliers need a model
    add_decay_arguments(add, "steps", "towers", "multipliers")
    add("--plot", metavar="FILE", help="draw the chart into a .png, .svg or .pdf file instead of the terminal")


def show(options: argparse.Namespace) -> None:
    """Plot the schedule in the terminal, or draw it into a file."""
    if options.plot:
        check_picture(options.plot, "--plot")
    schedule = _schedule(options)
    series = _by_layer(options, schedule_rates(schedule, options.num_steps)[1])
    if options.plot:
        print("plotted to", plot_schedule(options.plot, 0, series), file=sys.stderr)
    else:
        print(text_plot(0, series))


def _schedule(options: argparse.Namespace) -> LRScheduler:
    kind = checked_choice(options.type, "--type", SCHEDULES)
    if SCHEDULES[kind].on_metric:
        raise refusal(ValueError, "`--type` must be a schedule that follows no metric.", **{"--type": kind})
    checked_int(options.num_steps, "--steps", 1)
    checked_steps(options.warmup, "--warmup")
    checked_number(options.lr, "--lr", ends="(]")
    tell_all(SCHEDULES[kind].idle_warmup(**{"--warmup": options.warmup}))
    kwargs = json_object(options.kwargs, "--kwargs") or None
    return get_scheduler(kind, options.lr, options.warmup, options.num_steps, kwargs)


def _by_layer(options: argparse.Namespace, rates: list[float]) -> Series:
    """Return label -> rates of every layer; of one layer without a decay."""
    n, given = options.layers, given_decay_arguments(options)
    if n is None and not given:
        return {"lr": rates}
    if n is None or not given:
        raise refusal(ValueError, "Give both `--layers` and a decay, or neither.", **{**given, "--layers": n})
    checked_int(n, "--layers", 1)
    decay = decay_from_arguments(options)
    return {
        Layer("", i, n).label: [decay.ratio(i, n, step / options.num_steps) * rate for step, rate in enumerate(rates)]
        for i in range(n + 2)
    }
