"""Command line: ``layers`` shows which layer gets which rate before a run is paid for, ``schedule`` rates by step."""

import argparse
import json
import os
import sys

import paddle

from .decay import CONVENTIONS, LayerDecay
from .display import check_picture, plot_schedule, schedule_rates, text_plot
from .layers import Layer, LayerMap
from .schedules import SchedulerType, get_scheduler

ON_METRIC = ("reduce_lr_on_plateau", "greedy")


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
            f"Received: type={options.type!r}"
        )
    if options.type not in kinds:
        raise ValueError(f"`--type` must be one of {', '.join(map(repr, kinds))}. Received: type={options.type!r}")
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
    rule = LayerDecay(options.decay, options.convention, options.min_ratio, options.head_ratio, options.freeze_below)
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
            cls = getattr(nlp, (config.architectures or ["AutoModel"])[0])
        except Exception as error:  # hubs and config files fail in many ways: the cause is in the message
            what = (
                "local folder" if os.path.isdir(name) else "class in paddlenlp.transformers, local folder or hub model"
            )
            raise ValueError(f"Cannot load a {what} of that name ({error}). Received: model={name}") from error
    build = cls.from_config if cls is nlp.AutoModel else cls
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return build(config)
    except Exception:  # a model that sets weights by hand needs them to be there
        return build(config)


if __name__ == "__main__":
    sys.exit(main())
