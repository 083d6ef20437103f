"""The flags of a layer-wise decay: one for each option of `LayerDecay`."""

import argparse
import dataclasses
import typing
from typing import Any, Callable

from ...config.decay_settings import option_of
from ...layers.decay import OPTIONS, LayerDecay
from ...layers.decay_checks import idle_options

FLAGS = {name: "--decay" if name == "layerwise_decay" else f"--{name.replace('_', '-')}" for name in OPTIONS}


def add_decay_flags(add: Callable[..., argparse.Action], *without: str) -> None:
    """Add the flags of all options except `without`."""
    for field in dataclasses.fields(LayerDecay):
        if field.name in without:
            continue
        option, kind = OPTIONS[field.name], (typing.get_args(field.type) or (field.type,))[0]
        how = {"action": "store_true"} if kind is bool else {"type": str if typing.get_origin(kind) else kind}
        values = option.span.removesuffix(" or None") + ", as JSON" * bool(typing.get_origin(kind))
        about = option.doc if kind is bool else f"{option.doc}: {values}"  # a flag takes no value
        add(FLAGS[field.name], **how, dest=field.name, default=option.default, help=about)


def decay_from_flags(options: argparse.Namespace) -> LayerDecay:
    """Return the decay of the flags; errors name the flags."""
    given = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    values = {name: option_of(value, name, FLAGS[name]) for name, value in given.items()}
    for problem in idle_options(values, OPTIONS, FLAGS):
        raise ValueError(problem)
    return LayerDecay(**values)


def decay_flags_in(options: argparse.Namespace) -> dict[str, Any]:
    """Return flag -> value of each option of a decay that differs from its default."""
    given = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    return {FLAGS[name]: value for name, value in given.items() if value != OPTIONS[name].default}
