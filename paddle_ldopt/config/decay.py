"""The options of `LayerDecay` as settings: of `LdoptConfig`, of the Trainer's arguments and of checkpoint records."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from .._checks import refused
from .._messages import shown
from ..layers.decay import OPTIONS, LayerDecay, idle_options

Class = TypeVar("Class", bound=type)

# field of `LayerDecay` -> our setting
SETTINGS = {field: f"layerwise_{'lr_decay' if field == 'layerwise_decay' else field}" for field in OPTIONS}


_Fields: Any = object  # for type checkers: any fields


class DecaySettings(_Fields):
    """Base of a dataclass of settings to which `with_decay_settings` adds a field for each option of `LayerDecay`."""

    @property
    def layerwise_rule(self) -> LayerDecay:
        """The `LayerDecay` that the settings make together."""
        return decay_of(vars(self))


def with_decay_settings(cls: Class) -> Class:
    """Add to a class, which is to become a dataclass, a field for each option, before `layerwise_rules`."""
    fields = {}
    for name, annotation in cls.__annotations__.items():
        if name == "layerwise_rules":
            fields.update({SETTINGS[field.name]: field.type for field in dataclasses.fields(LayerDecay)})
        fields[name] = annotation
    cls.__annotations__ = fields
    for field, option in OPTIONS.items():
        help_text = f"{option.doc[0].upper()}{option.doc[1:]}: {option.span}."
        setattr(cls, SETTINGS[field], dataclasses.field(default=option.default, metadata={"help": help_text}))
    return cls


def decay_of(settings: Mapping[str, Any]) -> LayerDecay:
    """Return the decay of the settings by their names, as of a record; options that they lack have their defaults."""
    return LayerDecay(**{field: settings.get(name, OPTIONS[field].default) for field, name in SETTINGS.items()})


def settings_of(decay: LayerDecay) -> dict[str, Any]:
    """Return the settings of a decay by their names, for `decay_of`."""
    return {name: getattr(decay, field) for field, name in SETTINGS.items()}


def decay_problems(settings: Any) -> Iterator[str]:
    """Yield the problems of the layer-wise settings of an object with the attributes of `DecaySettings`."""
    given = {field: getattr(settings, name) for field, name in SETTINGS.items()}
    found = list(refused({SETTINGS[field]: (OPTIONS[field].checked, value) for field, value in given.items()}))
    yield from found
    if found:
        return
    yield from idle_options(given, SETTINGS)
    rules = settings.layerwise_rules
    if isinstance(rules, (str, dict)) and rules and all(OPTIONS[f].default == value for f, value in given.items()):
        yield f"`layerwise_rules` have no effect without a layer-wise decay. Received: layerwise_rules={shown(rules)}"
