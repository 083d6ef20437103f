"""The arguments of a layer-wise decay: one for each option of `LayerDecay`."""

import argparse
import dataclasses
import typing
from typing import Any, Callable

from ...config.decay_settings import option_of
from ...layers.decay import OPTIONS, LayerDecay
from ...layers.decay_checks import idle_options

NAMES = {name: "--decay" if name == "layerwise_decay" else f"--{name.replace('_', '-')}" for name in OPTIONS}


def add_decay_arguments(add: Callable[..., argparse.Action], *without: str) -> None:
    """Add the arguments of all options except `without`."""
    for field in dataclasses.fields(LayerDecay):
        if field.name in without:
            continue
        option, kind = OPTIONS[field.name], (typing.get_args(field.type) or (field.type,))[0]
        how = {"action": "store_true"} if kind is bool else {"type": str if typing.get_origin(kind) else kind}
        values = option.span.removesuffix(" or None") + ", as JSON" * bool(typing.get_origin(kind))
        about = option.doc if kind is bool else f"{option.doc}: {values}"  # it takes no value
        add(NAMES[field.name], **how, dest=field.name, default=option.default, help=about)


def decay_from_arguments(options: argparse.Namespace) -> LayerDecay:
    """Return the decay of the arguments; errors name the arguments."""
    given = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    values = {name: option_of(value, name, NAMES[name]) for name, value in given.items()}
    for problem in idle_options(values, NAMES, OPTIONS):
        raise ValueError(problem)
    return LayerDecay(**values)


def given_decay_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return argument -> value of each option of a decay that differs from its default."""
    given = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    return {NAMES[name]: value for name, value in given.items() if value != OPTIONS[name].default}
