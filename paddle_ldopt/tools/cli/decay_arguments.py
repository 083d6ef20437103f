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
        option, value_type = OPTIONS[field.name], (typing.get_args(field.type) or (field.type,))[0]
        common: dict[str, Any] = {"dest": field.name, "default": option.default}
        if value_type is bool:
            add(NAMES[field.name], **common, action="store_true", help=option.doc)
            continue
        is_json = typing.get_origin(value_type) is not None
        values = option.span.removesuffix(" or None") + ", as JSON" * is_json
        add(NAMES[field.name], **common, type=str if is_json else value_type, help=f"{option.doc}: {values}")


def decay_from_arguments(options: argparse.Namespace) -> LayerDecay:
    """Return the decay of the arguments; errors name the arguments."""
    values = {name: option_of(value, name, NAMES[name]) for name, value in _values(options).items()}
    for problem in idle_options(values, OPTIONS, NAMES):
        raise ValueError(problem)
    return LayerDecay(**values)


def given_decay_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return argument -> value of each option of a decay that differs from its default."""
    return {NAMES[name]: value for name, value in _values(options).items() if value != OPTIONS[name].default}


def _values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
