"""The layer-wise settings in a framework's checkpoints: a resume with other settings is refused.

An optimizer's state has neither decay nor layers, so without a record such a resume would go unnoticed.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import Any, Optional

from .._messages import refusal, shown
from .._paddle import parameters_of
from ..layers.decay import OPTIONS
from ..layers.map import layers_of
from ..layers.ratios import decay_of

__all__ = ["ALLOW", "with_record"]

ALLOW = "allow_layerwise_change"  # a setting of the YAML file, named like the Trainer's argument
_KEY = "paddle_ldopt_layerwise"  # key of the record in the state
_SHOWN = 3  # differences in a message


@functools.cache
def with_record(cls: Any) -> Any:
    """Return a subclass of an optimizer class, of the same name, with a record of decay and layers in its state."""

    def state_dict(self: Any) -> dict[str, Any]:
        return {**cls.state_dict(self), _KEY: _record(self)}

    def set_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        _check(state.pop(_KEY, None), _record(self), getattr(self, ALLOW))
        cls.set_state_dict(self, state)

    methods = {"state_dict": state_dict, "set_state_dict": set_state_dict, "load_state_dict": set_state_dict}
    return type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, ALLOW: False, **methods})


def _record(optimizer: Any) -> dict[str, Any]:
    """Return the options of the decay and the layer of each parameter by `param.name`; both empty without a decay."""
    decay, layers = decay_of(optimizer), layers_of(optimizer)
    if decay is None or layers is None:
        return {"decay": {}, "layers": {}}
    places = {param.name: layers.layer_of(param.name) for param in parameters_of(optimizer)}
    return {"decay": decay.to_dict(), "layers": {name: [at.label, at.depth] for name, at in places.items()}}


def _check(was: Optional[dict[str, Any]], now: dict[str, Any], allowed: bool) -> None:
    """Raise ValueError if the record of a checkpoint differs from the present one; warn without a record."""
    if was is None:
        if now["decay"] and not allowed:
            advice = f"set `{ALLOW}: true` to resume with the rates of the file."
            unknown = "The checkpoint does not say which layer-wise decay it was trained with"
            warnings.warn(f"{unknown}: {advice}", stacklevel=3)
        return
    found = [] if allowed else list(_differences(was, now))
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        problem = f"The checkpoint was trained with other layer-wise settings: {'; '.join(found[:_SHOWN])}{more}."
        raise refusal(ValueError, f"{problem} Use the same settings, or set `{ALLOW}: true`.", **{ALLOW: allowed})


def _differences(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for option, declared in OPTIONS.items():
        before, after = (record["decay"].get(option, declared.default) for record in (was, now))
        if before != after:
            yield f"{option} was {shown(before)} in the checkpoint and is {shown(after)} now"
    if was["layers"] and now["layers"]:
        for name in now["layers"]:
            before, after = was["layers"].get(name), now["layers"][name]
            if before is not None and list(before) != after:
                sides = [f"{label} of {depth} blocks" for label, depth in (before, after)]
                yield f"the layer of '{name}' was {sides[0]} in the checkpoint and is {sides[1]} now"
