"""Command line: ``layers`` shows which layer gets which rate before a run is paid for, ``schedule`` rates by step.

``memory`` says how many bytes each device would hold and send.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any, Optional, Union

import paddle

from .._checks import checked_bool, checked_choice, checked_int
from .._messages import refusal, shown, tell_all
from ..config import json_object, option_of
from ..layers.decay import OPTIONS, LayerDecay
from ..layers.decay_checks import idle_options
from ..layers.granularity import checked_granularity
from ..layers.map import Layer, LayerMap
from ..layers.table import markdown, rich_table
from ..optimizers.registry import optimizer_class
from ..plots import check_picture, plot_schedule, text_plot
from ..schedules import ON_METRIC, get_scheduler
from ..schedules.ahead import schedule_rates
from ..schedules.registry import SCHEDULES
from .memory import ITEMSIZE, Layout, OptimizerSpec, Transformer, cells, estimate
from .memory.optimizer import sizing_options

__all__ = ["load_model", "main"]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m paddle_ldopt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, add_options, show, does in (
        ("layers", _add_layers, _show_layers, "show the layers of a model and the rate each one gets"),
        ("schedule", _add_schedule, _show_schedule, "show the learning rate by step"),
        ("memory", _add_memory, _show_memory, "show the bytes that each device holds and sends in a step"),
    ):
        command = commands.add_parser(name, help=does)
        command.set_defaults(show=show)
        add_options(command.add_argument)
    options = parser.parse_args(argv)
    try:
        options.show(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _add_layers(add: Any) -> None:
    model = "a PaddleNLP class (BertForSequenceClassification: its default size), a local folder, or a hub name"
    add("--model", required=True, help=model)
    add("--lr", type=float, help="learning rate of the head")
    for field in dataclasses.fields(LayerDecay):
        option, kind = OPTIONS[field.name], (typing.get_args(field.type) or (field.type,))[0]
        how = {"action": "store_true"} if kind is bool else {"type": str if typing.get_origin(kind) else kind}
        about = f"{option.doc}: {option.span}" + ", as JSON" * bool(typing.get_origin(kind))
        add(_flag(field.name), **how, dest=field.name, default=option.default, help=about)
    add("--granularity", default="block", help="what a layer is: block, stage, or a number of groups of blocks")
    add("--plot", metavar="FILE", help="draw the rates into a .png, .svg or .pdf")
    add("--json", action="store_true", help="print JSON instead of a table")


def _flag(name: str) -> str:
    """Return what the command line calls an option of `LayerDecay`."""
    return "--decay" if name == "layerwise_decay" else f"--{name.replace('_', '-')}"


def _add_schedule(add: Any) -> None:
    kinds = ", ".join(kind.name for kind in SCHEDULES.values() if not kind.on_metric)
    add("--type", required=True, metavar="KIND", help=kinds)
    add("--steps", type=int, required=True, help="optimizer steps of the training")
    add("--warmup", type=int, default=0, help="steps of the warm-up")
    add("--lr", type=float, required=True, help="learning rate at the peak")
    add("--kwargs", metavar="JSON", help="further arguments of the schedule: '{\"num_cycles\": 3}'")
    add("--decay", type=float, help="ratio of the rates of neighbouring layers; needs --layers")
    add("--layers", type=int, metavar="N", help="blocks of the model; needs --decay")
    add("--plot", metavar="FILE", help="draw into a .png, .svg or .pdf instead of the terminal")


def _add_memory(add: Any) -> None:
    add("--params", type=float, help="size of a plausible decoder, from 1e9")
    for field in dataclasses.fields(Transformer):
        add(f"--{field.name.replace('_', '-')}", type=int, help="a decoder by its shape")
    add("--model", help="a model as in `layers`, by its parameters alone; it is not cut")
    several = "one or several, such as: came came,compression adafactor,beta1=0.9 adamweightdecay,amsgrad"
    add("--optimizer", nargs="+", default=["adamwdl"], metavar="NAME[,OPTION...]", help=several)
    add("--dtype", choices=list(ITEMSIZE), default="bfloat16", help="of the parameters")
    add("--grad-dtype", choices=list(ITEMSIZE), help="of the gradients; that of the parameters by default")
    add("--no-masters", action="store_true", help="no float32 masters of low-precision parameters")
    for field in dataclasses.fields(Layout):
        kind = {"action": "store_true", "default": None} if field.name == "split_param" else {"type": int}
        add(f"--{field.name.replace('_', '-')}", **kind, help="the layout, in fleet's words")
    layouts = "several layouts instead, such as: dp=8 sharding=8 sharding=8,split_param,mp=8"
    add("--layout", nargs="+", metavar="SETTING[,SETTING...]", help=layouts)
    add("--tokens", type=int, help="tokens of a step of one pipeline: batch times length")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--markdown", action="store_true", help="print GitHub Markdown instead of a table")


def _show_memory(options: argparse.Namespace) -> None:
    """Print the bytes that each optimizer takes under each layout."""
    model, name, size = _sized_model(options)
    shared = {"dtype": options.dtype, "grad_dtype": options.grad_dtype}
    if options.no_masters:
        shared["multi_precision"] = False
    specs = [_spec(text, shared) for text in options.optimizer]
    plans = [estimate(model, spec, layout, options.tokens) for layout in _layouts(options) for spec in specs]
    if options.json:
        answer = {"model": name, "size": size, "plans": [answer.to_dict() for answer in plans]}
        print(json.dumps(answer, indent=1))
        return
    print(f"{name}: {size / 1e9:.3g} B parameters, {options.dtype}; bytes a device holds, and sends in a step")
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
    """Return the model that the options of ``memory`` ask for, its name and its number of parameters."""
    shape = _given(options, Transformer)
    if (options.params is not None) + bool(shape) + (options.model is not None) != 1:
        advice = "Give one of `--params`, `--model`, or a shape with `--hidden` and `--layers`."
        raise refusal(ValueError, advice, params=options.params, model=options.model, shape=shape)
    if options.model:
        params = load_model(options.model).named_parameters()
        shapes = {name: list(param.shape) for name, param in params if not param.stop_gradient}
        return shapes, options.model, sum(math.prod(shape) for shape in shapes.values())
    if shape and not {"hidden", "layers"} <= set(shape):
        raise refusal(ValueError, "A shape needs `--hidden` and `--layers`.", shape=shape)
    model = Transformer(**{"vocab": 32000, **shape}) if shape else Transformer.of_size(options.params)
    return model, f"{model.hidden} wide ({model.intermediate} inside), {model.layers} blocks", model.size


def _given(options: argparse.Namespace, cls: Any) -> dict[str, Any]:
    """Return the options that are fields of a dataclass and were given."""
    found = {field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}
    return {name: value for name, value in found.items() if value is not None}


def _layouts(options: argparse.Namespace) -> list[Layout]:
    """Return the layouts that the options of ``memory`` ask for."""
    single = _given(options, Layout)
    if not options.layout:
        return [Layout(**single)]
    if single:
        raise refusal(ValueError, "`--layout` takes the place of the others.", layout=options.layout, **single)
    flags = {field.name: field.name == "split_param" for field in dataclasses.fields(Layout)}
    return [Layout(**_settings(text, text.split(","), flags, int)) for text in options.layout]


def _spec(text: str, shared: dict[str, Any]) -> OptimizerSpec:
    """Return the optimizer in "name,option=value,flag"."""
    name, *words = text.split(",")
    optimizer_class(name)  # raises for an unknown one
    flags = {option: declared.check is checked_bool for option, declared in sizing_options(name).items()}
    return OptimizerSpec(name, **shared, **_settings(text, words, flags, float))


def _settings(text: str, words: list[str], flags: dict[str, bool], number: type) -> dict[str, Any]:
    """Return the settings in words such as "name=value" and "flag"; `flags` has the names, and which are flags."""
    settings: dict[str, Any] = {}
    for word in words:
        name, given, value = word.partition("=")
        try:
            if name not in flags or flags[name] == bool(given):
                raise ValueError
            settings[name] = number(value) if given else True
        except ValueError:
            known = ", ".join(name if flag else f"{name}=NUMBER" for name, flag in flags.items()) or "none"
            raise ValueError(f"A setting must be one of {known}. Received: {shown(text)}") from None
    return settings


def _show_schedule(options: argparse.Namespace) -> None:
    """Print the plot of a schedule, or draw it if asked."""
    if options.plot:
        check_picture(options.plot)
    ratios = _layer_ratios(options.decay, options.layers)
    _, rates = schedule_rates(_schedule(options), options.steps)
    series = {label: [ratio * rate for rate in rates] for label, ratio in ratios.items()}
    if options.plot:
        print("plotted to", plot_schedule(options.plot, 0, series), file=sys.stderr)
    else:
        print(text_plot(0, series))


def _schedule(options: argparse.Namespace) -> Any:
    """Return the schedule that the options of ``schedule`` ask for."""
    kind = checked_choice(options.type, "type", SCHEDULES)
    if kind in ON_METRIC:
        raise refusal(ValueError, "`--type` must be a schedule that follows no evaluation metric.", type=kind)
    checked_int(options.steps, "steps", 1)
    tell_all(SCHEDULES[kind].idle_warmup(warmup=options.warmup))
    kwargs = json_object(options.kwargs, "kwargs") or None
    return get_scheduler(kind, options.lr, options.warmup, options.steps, kwargs)


def _layer_ratios(decay: Optional[float], n_layers: Optional[int]) -> dict[str, float]:
    """Return label -> ratio of every layer, of one layer without a decay."""
    if decay is None and n_layers is None:
        return {"lr": 1.0}
    if decay is None or n_layers is None:
        raise refusal(ValueError, "`--decay` and `--layers` go together.", decay=decay, layers=n_layers)
    checked_int(n_layers, "layers", 1)
    chosen = LayerDecay(decay)
    return {Layer("", i, n_layers).label: chosen.ratio(i, n_layers) for i in range(n_layers + 2)}


def _show_layers(options: argparse.Namespace) -> None:
    """Print the table of `options.model`, draw it if asked."""
    if options.plot:
        check_picture(options.plot)
    given = {name: option_of(getattr(options, name), name, _flag(name)) for name in OPTIONS}
    for problem in idle_options(given, {name: _flag(name) for name in OPTIONS}, OPTIONS):
        raise ValueError(problem)
    decay, granularity = LayerDecay(**given), checked_granularity(options.granularity)
    layers = LayerMap.from_model(load_model(options.model), granularity=granularity)
    table = layers.table(decay, options.lr)
    if options.json:
        print(json.dumps({"model": options.model, "towers": layers.towers, "layers": table.to_dict()}, indent=1))
    else:
        from rich.console import Console

        Console().print(table)
    if options.plot:
        print("plotted to", layers.plot(options.plot, decay, options.lr), file=sys.stderr)


def load_model(name: str) -> Any:
    """Build a PaddleNLP model without its weights: parameters have shapes but take no memory.

    `name` is a class (built from its default config), a local folder or a hub name (only its config is read).
    ValueError: PaddleNLP is missing, or knows no such model.
    """
    try:
        import paddlenlp.transformers as nlp
    except ImportError as error:
        raise refusal(ValueError, f"`--model` needs PaddleNLP: pip install paddlenlp ({error}).", model=name) from error
    cls = getattr(nlp, name, None) if name.isidentifier() else None
    if cls is not None:
        if getattr(cls, "config_class", None) is None:
            raise refusal(ValueError, "`--model` must be a model class.", model=name)
        config = cls.config_class()
    else:
        try:
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own names come without architectures
            cls = getattr(nlp, (config.architectures or [bare])[0])
            if getattr(cls, "config_class", None) is None:
                raise ValueError("its config names neither an architecture nor a model type")
        except Exception as error:  # hubs and config files fail in many ways: the cause is in the message
            kinds = "local folder" if os.path.isdir(name) else "PaddleNLP class, local folder or hub model"
            raise refusal(ValueError, f"Cannot load a {kinds} of that name ({error}).", model=name) from error
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return cls(config)
    except Exception:  # a model that sets weights by hand needs them to be there
        return cls(config)
