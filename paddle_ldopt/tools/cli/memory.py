"""The command ``memory``: the bytes of each optimizer under each layout, as a table, JSON or Markdown."""

import argparse
import dataclasses
import json
import math
from typing import Any, Callable, Union

from ..._checks import checked_bool, checked_int, checked_number
from ..._messages import refusal, shown, unknown
from ...layers.table import markdown, rich_table
from ...optimizers.options import REGISTRY
from ..memory import ITEMSIZE, Layout, OptimizerSpec, Transformer, cells, estimate
from ..memory.optimizer import sizing_options
from .arguments import MODEL, load_model

_HELP = {
    "hidden": "hidden size of the decoder; --hidden and --layers replace --params",
    "layers": "number of blocks of the decoder",
    "vocab": "vocabulary size of the decoder",
    "intermediate": "width of the feed-forward layers",
    "heads": "number of attention heads",
    "kv_heads": "number of key-value heads",
    "dp": "number of data-parallel replicas",
    "sharding": "number of devices that share the optimizer's state",
    "stage": "sharding stage: 1, 2 or 3",
    "split_param": "with stage 1: split parameters over devices (sharding version 2)",
    "mp": "number of tensor-parallel devices",
    "pp": "number of pipeline stages",
}


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    """Add the arguments of the command."""
    add("--params", type=float, help="number of parameters of a typical decoder, at least 1e9")
    for field in dataclasses.fields(Transformer):
        add(_argument(field.name), type=int, help=_HELP[field.name])
    add("--model", help=f"{MODEL}; cannot be combined with --mp or --pp")
    several = "optimizers (adamwdl), options after commas: came came,compression adafactor,scale_parameter=false"
    add("--optimizer", nargs="+", default=["adamwdl"], metavar="NAME[,OPTION...]", help=several)
    add("--dtype", choices=list(ITEMSIZE), default="bfloat16", help="type of the parameters (bfloat16)")
    add("--grad-dtype", choices=list(ITEMSIZE), help="type of the gradients; by default the parameters' type")
    add("--no-masters", action="store_true", help="train low-precision parameters without float32 masters")
    for field in dataclasses.fields(Layout):
        how = {"action": "store_true", "default": None} if field.name == "split_param" else {"type": int}
        add(_argument(field.name), **how, help=_HELP[field.name])
    layouts = "layouts to compare, instead of arguments --dp to --pp: dp=8 sharding=8 sharding=8,split_param,mp=8"
    add("--layout", nargs="+", metavar="SETTING[,SETTING...]", help=layouts)
    add("--tokens", type=int, help="tokens per step of a pipeline (batch size times length), to count sent activations")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--markdown", action="store_true", help="print GitHub Markdown instead of a table")


def _argument(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def show(options: argparse.Namespace) -> None:
    """Print the bytes of each optimizer under each layout."""
    model, name, size = _sized_model(options)
    if options.tokens is not None:
        checked_int(options.tokens, "--tokens", 1)
    shared = {"dtype": options.dtype, "grad_dtype": options.grad_dtype}
    if options.no_masters:
        shared["multi_precision"] = False
    specs = [_spec(text, shared) for text in options.optimizer]
    plans = [estimate(model, spec, layout, options.tokens) for layout in _layouts(options) for spec in specs]
    if options.json:
        print(json.dumps({"model": name, "size": size, "plans": [plan.to_dict() for plan in plans]}, indent=1))
        return
    print(f"{name}: {size / 1e9:.3g} B parameters, {options.dtype}; bytes that a device holds and sends in a step")
    if options.markdown:
        header, rows = cells(plans)
        print(markdown([head.replace("\n", ", ") for head in header], rows))
        return
    from rich.console import Console

    console = Console()
    fit = max(1, (console.width - 19) // 19)
    for i in range(0, len(plans), fit):
        console.print(rich_table(*cells(plans[i : i + fit])))


def _sized_model(options: argparse.Namespace) -> tuple[Union[Transformer, dict[str, list[int]]], str, int]:
    """Return the model, its name and its number of parameters."""
    shape = _given(options, Transformer)
    if (options.params is not None) + bool(shape) + (options.model is not None) != 1:
        message = "Give one of `--params`, `--model`, or a shape with `--hidden` and `--layers`."
        received = {"--params": options.params, "--model": options.model, "shape": shape}
        raise refusal(ValueError, message, **received)
    if options.model:
        params = load_model(options.model).named_parameters()
        shapes = {name: list(param.shape) for name, param in params if not param.stop_gradient}
        return shapes, options.model, sum(math.prod(shape) for shape in shapes.values())
    if shape and not {"hidden", "layers"} <= set(shape):
        raise refusal(ValueError, "A shape needs `--hidden` and `--layers`.", shape=shape)
    if shape:
        model = Transformer(**shape)
    else:
        model = Transformer.of_size(checked_number(options.params, "--params", 1e9, 1e14))
    return model, f"{model.hidden} wide ({model.intermediate} inside), {model.layers} blocks", model.size


def _given(options: argparse.Namespace, cls: Any) -> dict[str, Any]:
    """Return the given options among the fields of a dataclass."""
    found = {field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}
    given = {name: value for name, value in found.items() if value is not None}
    return {name: value if value is True else checked_int(value, _argument(name), 1) for name, value in given.items()}


def _layouts(options: argparse.Namespace) -> list[Layout]:
    single = _given(options, Layout)
    if not options.layout:
        return [Layout(**single)]
    if single:
        received = {"--layout": options.layout, **{_argument(name): value for name, value in single.items()}}
        raise refusal(ValueError, "`--layout` replaces the other arguments of a layout.", **received)
    is_bool = {field.name: field.name == "split_param" for field in dataclasses.fields(Layout)}
    return [Layout(**_settings_in("--layout", text, text.split(","), is_bool, int)) for text in options.layout]


def _spec(text: str, shared: dict[str, Any]) -> OptimizerSpec:
    """Return the optimizer in "name,option=value,option"."""
    name, *words = text.split(",")
    if name not in REGISTRY:
        raise ValueError(unknown("optimizer", name, name, REGISTRY, f"--optimizer={shown(text)}"))
    is_bool = {option: declared.check is checked_bool for option, declared in sizing_options(name).items()}
    return OptimizerSpec(name, **shared, **_settings_in("--optimizer", text, words, is_bool, float))


def _settings_in(argument: str, text: str, words: list[str], is_bool: dict[str, bool], number: type) -> dict[str, Any]:
    """Return the settings in words such as "name=1", "name" (True) and "name=false"; `is_bool` has the names."""
    settings: dict[str, Any] = {}
    for word in words:
        name, given, value = word.partition("=")
        try:
            if is_bool[name]:
                settings[name] = {"": True, "=true": True, "=false": False}[given + value]
            else:
                settings[name] = number(value)
        except (KeyError, ValueError):
            known = ", ".join(f"{name}[=false]" if boolean else f"{name}=NUMBER" for name, boolean in is_bool.items())
            message = f"A setting in `{argument}` must be one of {known or 'none'}."
            raise refusal(ValueError, message, **{argument: text}) from None
    return settings
