"""The options of `LayerDecay` as settings of `LdoptConfig`, the Trainer's arguments and checkpoint records."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from .._checks import checked_bool
from ..layers.decay import OPTIONS, LayerDecay
from .files import json_object

# field of `LayerDecay` -> our setting
SETTINGS = {field: f"layerwise_{'lr_decay' if field == 'layerwise_decay' else field}" for field in OPTIONS}
_DICTS = {field.name for field in dataclasses.fields(LayerDecay) if "dict" in str(field.type)}


class DecaySettings:
    """Base of `LdoptConfig`, which lists the settings, and of `LdoptArgumentsMixin`, which is made from its fields."""

    @property
    def layerwise_decay(self) -> LayerDecay:
        """The `LayerDecay` of the settings."""
        return decay_from(vars(self))

    @property
    def layerwise_rule(self) -> LayerDecay:
        """An earlier name of `layerwise_decay`."""
        return self.layerwise_decay


def decay_setting(option: str) -> Any:
    """Return the field of a dataclass for an option of `LayerDecay`, with its default and a help text."""
    return setting(OPTIONS[option].default, decay_help(option))


def decay_help(option: str) -> str:
    """Return the help text of an option of `LayerDecay` for a command line."""
    declared = OPTIONS[option]
    if declared.check is checked_bool:
        return declared.doc
    span = declared.span.removesuffix(" or None")
    return f"{declared.doc}{': ' if declared.values else '; range '}{span}" + ", as JSON" * (option in _DICTS)


def setting(default: Any, help_text: str) -> Any:
    """Return the field of a setting that is also an argument of the Trainer, whose command line shows the help text."""
    how: Any = {"default_factory": dict} if default == {} else {"default": default}
    return dataclasses.field(**how, metadata={"help": help_text})


def decay_from(settings: Mapping[str, Any]) -> LayerDecay:
    """Return the decay of a mapping setting -> value, such as a record; missing options get their defaults."""
    values = {field: settings.get(name, OPTIONS[field].default) for field, name in SETTINGS.items()}
    return LayerDecay(**{field: option_of(value, field) for field, value in values.items()})


def settings_of(decay: LayerDecay) -> dict[str, Any]:
    """Return setting -> value of a decay, for `decay_from` and JSON."""
    return {SETTINGS[field]: value for field, value in decay.to_dict().items()}


def option_of(value: Any, field: str, name: str = "") -> Any:
    """Return the checked value of an option of `LayerDecay`; dicts may be JSON, and an empty dict becomes None.

    Errors call the option `name`, by default the name of its setting.
    """
    name = name or SETTINGS[field]
    if field in _DICTS and isinstance(value, (str, dict)):
        value = json_object(value, name) or None
    return OPTIONS[field].checked(value, name)


def decay_problems(settings: Any) -> Iterator[str]:
    """Yield the problems of the layer-wise settings of an object with the attributes of `DecaySettings`."""
    for field, name in SETTINGS.items():
        try:
            option_of(getattr(settings, name), field)
        except (TypeError, ValueError) as error:
            yield str(error)
