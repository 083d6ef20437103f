"""The class and layer-wise settings in a framework's checkpoints: a resume with others is refused."""

import functools
import warnings
from typing import Any, Optional

from .._messages import problem
from .._paddle import parameters_of
from ..layers.decay import OPTIONS
from ..layers.rates import layerwise_interface
from ..saving.layerwise_record import ALLOW, LayerwiseSettings, changes, check_changes
from ..saving.optimizer_record import check_class

_KEY = "paddle_ldopt_layerwise"  # key of the record in the state


@functools.cache
def with_record(cls: Any) -> Any:
    """Return a subclass of an optimizer class, of the same name, which saves a record of class, decay and layers."""

    def state_dict(self: Any) -> dict[str, Any]:
        return {**cls.state_dict(self), _KEY: {"optimizer": cls.__name__, **_record(self)}}

    def set_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        record = state.pop(_KEY, None)
        check_class((record or {}).get("optimizer", cls.__name__), cls.__name__)
        if not getattr(self, ALLOW):
            _check(record, _record(self))
        cls.set_state_dict(self, state)

    methods = {"state_dict": state_dict, "set_state_dict": set_state_dict, "load_state_dict": set_state_dict}
    return type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, ALLOW: False, **methods})


def _record(optimizer: Any) -> dict[str, Any]:
    """Return the options of the decay and the layer of each parameter by `param.name`; both empty without a decay."""
    ratios = layerwise_interface(optimizer)
    if ratios.decay is None:
        return {"decay": {}, "layers": {}}
    places = {param.name: ratios.layers.layer_of(param.name) for param in parameters_of(optimizer)}
    return {"decay": ratios.decay.to_dict(), "layers": {name: [at.label, at.depth] for name, at in places.items()}}


def _check(was: Optional[dict[str, Any]], now: dict[str, Any]) -> None:
    """Raise ValueError if the record of a checkpoint differs from the present one; warn without a record."""
    if was is not None:
        names = was["layers"].keys() & now["layers"].keys()  # Paddle's names
        differences = changes(*(_layerwise_settings(record, names) for record in (was, now)))
        check_changes(differences, f"set `{ALLOW}: true`", **{ALLOW: False})
    elif now["decay"]:
        message = "The checkpoint does not say which layer-wise decay it was trained with"
        applies = f"the decay of the configuration file applies. `{ALLOW}: true` silences this warning."
        warnings.warn(problem(f"{message}: {applies}", **{ALLOW: False}), stacklevel=2)


def _layerwise_settings(record: dict[str, Any], names: set[str]) -> LayerwiseSettings:
    decay = {option: record["decay"].get(option, declared.default) for option, declared in OPTIONS.items()}
    layers = {name: "{} of {} blocks".format(*record["layers"][name]) for name in sorted(names)}
    return LayerwiseSettings(decay, layers=layers)
