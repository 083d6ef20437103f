"""The bytes of parameters, gradients, float32 masters and optimizer state, and the command ``memory``."""

import argparse
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .._checks import checked_choice, refusal
from ..config import checked_options
from ..layers.map import LayerMap
from ..optimizers.options import REGISTRY, optimizer_class
from ..optimizers.states import rule_shape
from ..plots import rich_table
from . import MODEL, load_model

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def estimate(
    shapes: Mapping[str, Sequence[int]], optimizer: str, dtype: str = "bfloat16", /, **options: Any
) -> dict[str, int]:
    """Return the bytes in the memory of one process: of each kind, and "total".

    Activations and a step's buffers are not counted. `shapes` are name -> shape of every parameter, `options` the
    optimizer's, of which `multi_precision` is True by default. Gradients have the parameters' `dtype`.

    Examples:
        >>> estimate({"linear.weight": [64, 32], "linear.bias": [32]}, "came")["state"]
        9224
    """
    optimizer_class(optimizer)  # raises for an unknown one
    info, size, state = REGISTRY[optimizer], sum(map(math.prod, shapes.values())), 0
    names = {info.setting(name): name for name in info.options}  # name of an option in `create` -> in the class
    options = {names.get(name, name): value for name, value in options.items()}
    checked_options(options, info.options, optimizer)
    item = ITEMSIZE[checked_choice(dtype, "dtype", ITEMSIZE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only matrices of blocks matter, not which layer is a guess
        layers = LayerMap.from_names(list(shapes)) if info.instead_of_layers else None
    for name, shape in shapes.items():
        if layers is not None:  # Muon updates the matrices of blocks, AdamW all others
            options[info.instead_of_layers] = None if layers.layer_of(name).is_block else False
        for kind, state_dtype in info.states(options, tuple(shape)).values():
            state += math.prod(rule_shape(kind, shape)) * ITEMSIZE[state_dtype or "float32"]
    masters = 4 * size if options.get("multi_precision", True) and dtype != "float32" else 0
    held = {"parameters": size * item, "gradients": size * item, "masters": masters, "state": state}
    return {**held, "total": sum(held.values())}


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    add("--model", required=True, help=MODEL)
    several = "optimizers (adamwdl), options after commas: came came,compression adafactor,scale_parameter=false"
    add("--optim", nargs="+", default=["adamwdl"], metavar="NAME[,OPTION...]", help=several)
    add("--dtype", choices=list(ITEMSIZE), default="bfloat16", help="type of parameters and gradients (bfloat16)")
    add("--json", action="store_true", help="print JSON instead of a table")


def show(options: argparse.Namespace) -> None:
    named = load_model(options.model).named_parameters()
    shapes = {name: tuple(param.shape) for name, param in named if not param.stop_gradient}
    uses = {}
    for text in options.optim:
        name, *words = text.split(",")
        try:
            own = {option: json.loads(value or "true") for option, _, value in (word.partition("=") for word in words)}
        except ValueError:
            wrong = "`--optim` must be a name with options such as compression, compression=false or beta1=0.9."
            raise refusal(ValueError, wrong, **{"--optim": text}) from None
        uses[text] = estimate(shapes, name, options.dtype, **own)
    size = sum(map(math.prod, shapes.values()))
    if options.json:
        print(json.dumps({"size": size, "bytes": uses}, indent=1))
        return
    print(f"{size / 1e9:.3g} B parameters, {options.dtype}; GiB in one process")
    from rich.console import Console

    rows = [[kind, *(f"{use[kind] / 2**30:.3g}" for use in uses.values())] for kind in next(iter(uses.values()))]
    Console().print(rich_table(["GiB", *uses], rows))
