"""Arguments of several commands: a PaddleNLP model by name, and a decay with one argument for each of its options."""

import argparse
import dataclasses
import os
import typing
from typing import Any, Callable

import paddle

from ..._messages import refusal
from ...config import decay_help, option_of
from ...layers.decay import OPTIONS, LayerDecay

MODEL = "a PaddleNLP class such as BertForSequenceClassification (in its default size), a local folder, or a hub name"
NAMES = {name: "--decay" if name == "layerwise_decay" else f"--{name.replace('_', '-')}" for name in OPTIONS}


def load_model(name: str) -> paddle.nn.Layer:
    """Build a PaddleNLP model without its weights: parameters have shapes but take no memory.

    `name` is a class (built from its default config), a local folder or a hub name (only the config is read).
    ValueError: PaddleNLP is missing or lacks the model.
    """
    received = {"--model": name}
    try:
        import paddlenlp.transformers as nlp
    except ImportError as error:
        raise refusal(ValueError, f"`--model` needs PaddleNLP: pip install paddlenlp ({error}).", **received) from error
    cls = getattr(nlp, name, None) if name.isidentifier() else None
    if cls is not None:
        if getattr(cls, "config_class", None) is None:
            raise refusal(ValueError, "`--model` must be a model class.", **received)
        config = cls.config_class()
    else:
        try:
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own configs name no architecture
            cls = getattr(nlp, (config.architectures or [bare])[0])
            if getattr(cls, "config_class", None) is None:
                raise ValueError("its config names neither an architecture nor a model type")
        except Exception as error:  # hubs and config files fail in many ways: the message has the cause
            kinds = "local folder" if os.path.isdir(name) else "PaddleNLP class, local folder or hub model"
            raise refusal(
                ValueError, f"`--model`: cannot load a {kinds} of this name ({error}).", **received
            ) from error
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return cls(config)
    except Exception:  # a model that sets weights itself needs allocated parameters
        return cls(config)


def add_decay_arguments(add: Callable[..., argparse.Action], *without: str) -> None:
    """Add the arguments of all options except `without`."""
    for field in dataclasses.fields(LayerDecay):
        if field.name in without:
            continue
        value_type = (typing.get_args(field.type) or (field.type,))[0]
        is_json = typing.get_origin(value_type) is not None
        kind: Any = {"action": "store_true"} if value_type is bool else {"type": str if is_json else value_type}
        default, text = OPTIONS[field.name].default, decay_help(field.name)
        add(NAMES[field.name], **kind, dest=field.name, default=default, help=text)


def decay_from_arguments(options: argparse.Namespace) -> LayerDecay:
    """Return the decay of the arguments; errors name the arguments."""
    values = {name: option_of(value, name, NAMES[name]) for name, value in _values(options).items()}
    return LayerDecay(**values)


def given_decay_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return argument -> value of each option of a decay that differs from its default."""
    return {NAMES[name]: value for name, value in _values(options).items() if value != OPTIONS[name].default}


def _values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
