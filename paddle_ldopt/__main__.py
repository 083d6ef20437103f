"""Command line: ``python -m paddle_ldopt layers`` shows which layer gets which rate before a run is paid for."""

import argparse
import json
import os
import sys

import paddle

from .decay import CONVENTIONS, LayerDecay
from .layers import LayerMap


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
    options = parser.parse_args(argv)
    try:
        show_layers(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


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
