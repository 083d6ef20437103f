"""Command line: ``layers`` shows which layer gets which rate before a run is paid for, ``schedule`` rates by step.

``memory`` says how many bytes each device would hold and send.
"""

import argparse
import dataclasses
import json
import math
import os
import sys

import paddle

from .._checks import shown
from ..layers.decay import CONVENTIONS, LayerDecay
from ..layers.map import Layer, LayerMap
from ..layers.table import markdown, rich_table
from ..plots import check_picture, plot_schedule, text_plot
from ..schedules import ON_METRIC, SchedulerType, get_scheduler
from ..schedules.ahead import schedule_rates
from .memory import ITEMSIZE, Layout, OptimizerSpec, Transformer, cells, plan


def main(argv=None):
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m paddle_ldopt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    layers = commands.add_parser("layers", help="show the layers of a model and the rate each one gets")
    layers.add_argument(
        "--model",
        required=True,
        help="a PaddleNLP class (BertForSequenceClassification: its default size), a local folder, or a hub name",
    )
    layers.add_argument("--decay", type=float, default=1.0, help="ratio of the rates of neighbouring layers, in (0, 1]")
    layers.add_argument("--lr", type=float, help="learning rate of the head")
    layers.add_argument("--convention", choices=list(CONVENTIONS), default="paddlenlp")
    layers.add_argument("--min-ratio", type=float, default=0.0, help="floor of the ratios")
    layers.add_argument("--head-ratio", type=float, default=1.0, help="ratio of the head")
    layers.add_argument("--freeze-below", type=float, default=0.0, help="freeze layers whose ratio is below")
    layers.add_argument("--plot", metavar="FILE", help="draw the rates into a .png, .svg or .pdf")
    layers.add_argument("--json", action="store_true", help="print JSON instead of a table")
    layers.set_defaults(show=show_layers)
    _add_schedule(commands)
    _add_memory(commands)
    options = parser.parse_args(argv)
    try:
        options.show(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _add_schedule(commands):
    schedule = commands.add_parser("schedule", help="show the learning rate by step")
    kinds = ", ".join(kind.value for kind in SchedulerType if kind.value not in ON_METRIC)
    schedule.add_argument("--type", required=True, metavar="KIND", help=kinds)
    schedule.add_argument("--steps", type=int, required=True, help="optimizer steps of the training")
    schedule.add_argument("--warmup", type=int, default=0, help="steps of the warm-up")
    schedule.add_argument("--lr", type=float, required=True, help="learning rate at the peak")
    schedule.add_argument("--kwargs", metavar="JSON", help="what else the schedule takes: '{\"num_cycles\": 3}'")
    schedule.add_argument("--decay", type=float, help="ratio of the rates of neighbouring layers; needs --layers")
    schedule.add_argument("--layers", type=int, metavar="N", help="blocks of the model; needs --decay")
    schedule.add_argument("--plot", metavar="FILE", help="draw into a .png, .svg or .pdf instead of the terminal")
    schedule.set_defaults(show=show_schedule)


def _add_memory(commands):
    memory = commands.add_parser("memory", help="show the bytes that each device holds and sends in a step")
    memory.add_argument("--params", type=float, help="size of a plausible decoder, from 1e9")
    for field in dataclasses.fields(Transformer):
        memory.add_argument(f"--{field.name.replace('_', '-')}", type=int, help="a decoder by its shape")
    memory.add_argument("--model", help="a model as in `layers`, by its parameters alone; it is not cut")
    memory.add_argument(
        "--optimizer",
        nargs="+",
        default=["adamwdl"],
        metavar="NAME[,OPTION...]",
        help="one or several, such as: came came,compression adafactor,beta1=0.9 adamweightdecay,amsgrad",
    )
    memory.add_argument("--dtype", choices=list(ITEMSIZE), default="bfloat16", help="of the parameters")
    memory.add_argument("--grad-dtype", choices=list(ITEMSIZE), help="of the gradients; that of the parameters")
    memory.add_argument("--no-masters", action="store_true", help="no float32 masters of low-precision parameters")
    for field in dataclasses.fields(Layout):
        kind = {"action": "store_true", "default": None} if field.name == "split_param" else {"type": int}
        memory.add_argument(f"--{field.name.replace('_', '-')}", **kind, help="the layout, in fleet's words")
    memory.add_argument(
        "--layout",
        nargs="+",
        metavar="SETTING[,SETTING...]",
        help="several layouts instead, such as: dp=8 sharding=8 sharding=8,split_param,mp=8",
    )
    memory.add_argument("--tokens", type=int, help="tokens of a step of one pipeline: batch times length")
    memory.add_argument("--json", action="store_true", help="print JSON instead of a table")
    memory.add_argument("--markdown", action="store_true", help="print GitHub Markdown instead of a table")
    memory.set_defaults(show=show_memory)


def show_memory(options):
    """Print what each optimizer takes under each layout."""
    model, name, size = _sized_model(options)
    shared = {"dtype": options.dtype, "grad_dtype": options.grad_dtype}
    if options.no_masters:
        shared["multi_precision"] = False
    specs = [
        OptimizerSpec(text.split(",")[0], **_settings(text, 1, OptimizerSpec), **shared) for text in options.optimizer
    ]
    plans = [plan(model, spec, layout, options.tokens) for layout in _layouts(options) for spec in specs]
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


def _sized_model(options):
    """Return the model that the options of ``memory`` ask for, what to call it, and its number of parameters."""
    shape = {field.name: getattr(options, field.name) for field in dataclasses.fields(Transformer)}
    shape = {name: value for name, value in shape.items() if value is not None}
    if (options.params is not None) + bool(shape) + (options.model is not None) != 1:
        raise ValueError(
            "Give one of `--params`, `--model`, or a shape with `--hidden` and `--layers`. "
            f"Received: params={options.params}, model={options.model}, shape={shape}"
        )
    if options.model:
        params = load_model(options.model).named_parameters()
        shapes = {name: list(param.shape) for name, param in params if not param.stop_gradient}
        return shapes, options.model, sum(math.prod(shape) for shape in shapes.values())
    if shape and not {"hidden", "layers"} <= set(shape):
        raise ValueError(f"A shape needs `--hidden` and `--layers`. Received: shape={shape}")
    model = Transformer(**{"vocab": 32000, **shape}) if shape else Transformer.of_size(options.params)
    return model, f"{model.hidden} wide ({model.intermediate} inside), {model.layers} blocks", model.size


def _layouts(options):
    """Return the layouts that the options of ``memory`` ask for."""
    single = {field.name: getattr(options, field.name) for field in dataclasses.fields(Layout)}
    single = {name: value for name, value in single.items() if value is not None}
    if not options.layout:
        return [Layout(**single)]
    if single:
        raise ValueError(f"`--layout` takes the place of the others. Received: layout={options.layout}, {single}")
    return [Layout(**_settings(text, 0, Layout)) for text in options.layout]


def _settings(text, skip, cls):
    """Return the settings in "name=value,flag" behind the first `skip` words, in the types of the fields of `cls`."""
    own = ("dtype", "grad_dtype", "multi_precision")  # those have options of their own, for all optimizers
    fields = [field for field in dataclasses.fields(cls) if field.name not in own]
    known = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    settings = {}
    for word in text.split(",")[skip:]:
        name, given, value = word.partition("=")
        try:
            if name not in known or (known[name] is False) == bool(given):
                raise ValueError
            settings[name] = True if not given else float(value) if name == "beta1" else int(value)
        except ValueError:
            numbers = [f"{name}=NUMBER" if known[name] is not False else name for name in known]
            raise ValueError(f"A setting must be one of {', '.join(numbers)}. Received: {shown(text)}") from None
    return settings


def show_schedule(options):
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


def _schedule(options):
    """Return the schedule that the options of ``schedule`` ask for."""
    kinds = [kind.value for kind in SchedulerType]
    if options.type in ON_METRIC:
        raise ValueError(
            f"`--type` must be known from the step alone; this one follows an evaluation metric. "
            f"Received: type={shown(options.type)}"
        )
    if options.type not in kinds:
        raise ValueError(f"`--type` must be one of {', '.join(map(repr, kinds))}. Received: type={shown(options.type)}")
    if options.steps < 1:
        raise ValueError(f"`--steps` must be at least 1. Received: steps={options.steps}")
    if options.type == "constant" and options.warmup:
        raise ValueError(
            f"The schedule 'constant' has no warm-up; 'constant_with_warmup' has. Received: warmup={options.warmup}"
        )
    try:
        kwargs = json.loads(options.kwargs or "{}")
    except ValueError as error:
        raise ValueError(f"`--kwargs` must be a JSON object ({error}). Received: kwargs={options.kwargs}") from None
    if not isinstance(kwargs, dict):
        raise ValueError(f"`--kwargs` must be a JSON object. Received: kwargs={options.kwargs}")
    return get_scheduler(options.type, options.lr, options.warmup, options.steps, kwargs or None)


def _layer_ratios(decay, n_layers):
    """Return label -> ratio of every layer, of one layer without a decay."""
    if (decay is None) != (n_layers is None):
        raise ValueError(f"`--decay` and `--layers` go together. Received: decay={decay}, layers={n_layers}")
    if decay is None:
        return {"lr": 1.0}
    if n_layers < 1:
        raise ValueError(f"`--layers` must be at least 1. Received: layers={n_layers}")
    rule = LayerDecay(decay)
    return {Layer("", i, n_layers).label: rule.ratio(i, n_layers) for i in range(n_layers + 2)}


def show_layers(options):
    """Print the table of `options.model`, draw it if asked."""
    if options.plot:
        check_picture(options.plot)
    rule = LayerDecay(options.decay, options.convention, options.min_ratio, options.head_ratio, options.freeze_below)
    for field in ("convention", "min_ratio", "freeze_below"):
        value = getattr(rule, field)
        if rule.layerwise_decay == 1.0 and value != getattr(LayerDecay(1.0), field):
            raise ValueError(
                f"`--{field.replace('_', '-')}` has no effect without `--decay`: every layer has a ratio of 1. "
                f"Received: {field}={shown(value)}, decay={shown(options.decay)}"
            )
    layers = LayerMap.from_model(load_model(options.model))
    table = layers.table(rule, options.lr)
    if options.json:
        print(json.dumps({"model": options.model, "towers": layers.towers, "layers": table.to_dict()}, indent=1))
    else:
        from rich.console import Console

        Console().print(table)
    if options.plot:
        print("plotted to", layers.plot(options.plot, rule, options.lr), file=sys.stderr)


def load_model(name):
    """Build the PaddleNLP model called `name` without its weights: parameters have shapes but take no memory.

    Args:
        name (str): a class name (built from its default config), a local folder, or a hub name (only its config is
            read).

    Raises:
        ValueError: PaddleNLP is missing, or knows no such model.
    """
    try:
        import paddlenlp.transformers as nlp
    except ImportError as error:
        raise ValueError(
            f"`--model` needs PaddleNLP: pip install paddlenlp ({error}). Received: model={name}"
        ) from error
    cls = getattr(nlp, name, None) if name.isidentifier() else None
    if cls is not None:
        if getattr(cls, "config_class", None) is None:
            raise ValueError(f"`--model` must be a model class. Received: model={name}")
        config = cls.config_class()
    else:
        try:
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own names come without architectures
            cls = getattr(nlp, (config.architectures or [bare])[0])
            if getattr(cls, "config_class", None) is None:
                raise ValueError("its config names neither an architecture nor a model type")
        except Exception as error:  # hubs and config files fail in many ways: the cause is in the message
            what = (
                "local folder" if os.path.isdir(name) else "class in paddlenlp.transformers, local folder or hub model"
            )
            raise ValueError(f"Cannot load a {what} of that name ({error}). Received: model={name}") from error
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return cls(config)
    except Exception:  # a model that sets weights by hand needs them to be there
        return cls(config)


if __name__ == "__main__":
    sys.exit(main())
