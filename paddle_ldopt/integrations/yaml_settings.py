"""Build our optimizers from the settings of a framework's YAML file, and keep these settings in its checkpoints."""

import dataclasses
import functools
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import paddle

from .._checks import checked_bool, checked_number, differences, problem, refusal, unknown
from .._compat import parameters_of
from .._files import YAML_EXPONENT
from ..create import OFF, build_optimizer
from ..layers.decay import OPTIONS as DECAY_OPTIONS
from ..layers.decay import LayerDecay
from ..layers.rates import layerwise_interface
from ..optimizers.options import REGISTRY

NAMES: dict[str, str] = {info.cls.__name__: name for name, info in REGISTRY.items()}  # class name -> our name
_ALLOW = "allow_layerwise_change"
_KEY = "paddle_ldopt_layerwise"  # key of the record in an optimizer's state


def framework(module: str, name: str) -> Any:
    """Return a module of a framework; raise an ImportError that names the framework if it is not installed.

    PaddleOCR, PaddleClas and PaddleDetection silence all warnings when they are imported. Ours are shown again.
    """
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"{name} cannot be imported: install it, or run from a clone of its repository."
        raise ImportError(f"{message} Received: {error}", name=module) from error
    if not sys.warnoptions:  # the user's own choice, python -W
        warnings.filterwarnings("default", category=UserWarning, module=r"paddle_ldopt\.")
    return imported


def from_settings(
    name: str,
    model: Any,
    settings: Mapping[str, Any],
    *,
    learning_rate: Any,
    weight_decay: Any = None,
    grad_clip: Any = None,
    undecayed: Iterable[str] = (),
    groups: Optional[list[Any]] = None,
    own: Iterable[str] = (),
) -> Any:
    """Return the optimizer that a framework's YAML file describes.

    Args:
        name: the class name in the file, such as "AdamWDL".
        model: the network.
        settings: options of the optimizer and of `LayerDecay`, `rules` of `LayerMap.from_model`, and
            `allow_layerwise_change`.
        learning_rate: a number or a schedule.
        weight_decay: None for the class's default, a number or a `paddle.regularizer.L2Decay`.
        grad_clip: the framework's clipping, or None.
        undecayed: `param.name` of the parameters that the framework excludes from weight decay.
        groups: parameters or parameter groups; all parameters of the model by default.
        own: the framework's settings, which are read before; the error for an unknown setting names them too.
    """
    info = REGISTRY[NAMES[name]]
    options = numbers_read(dict(settings))
    allowed, rules = checked_bool(options.pop(_ALLOW, False), _ALLOW), options.pop("rules", None)
    decay = LayerDecay(**{key: options.pop(key) for key in DECAY_OPTIONS if key in options})
    known = [*info.settings, *DECAY_OPTIONS, "rules", _ALLOW]
    for key, value in options.items():
        if info.setting(key) not in known:
            raise ValueError(unknown(f"setting of {name}", key, value, [*own, *known], limit=40))
    arguments = {**options, "learning_rate": numbers_read(learning_rate), "grad_clip": grad_clip}
    if isinstance(weight_decay, paddle.regularizer.L2Decay):  # decoupled weight decay replaces an L2 penalty
        arguments["weight_decay"] = float(weight_decay._coeff)
    elif isinstance(weight_decay, paddle.regularizer.WeightDecayRegularizer):
        raise refusal(ValueError, "The optimizers of paddle_ldopt have no L1 decay: use L2.", weight_decay=weight_decay)
    elif weight_decay is not None:
        arguments["weight_decay"] = checked_number(numbers_read(weight_decay), "weight_decay")
    arguments["apply_decay_param_fun"] = ({param.name for param in model.parameters()} - set(undecayed)).__contains__
    plain: Any = info.cls
    recorded = dataclasses.replace(info, cls=with_record(plain))
    optimizer = build_optimizer(recorded, model, layerwise_decay=decay, groups=groups, rules=rules, **arguments)
    setattr(optimizer, _ALLOW, allowed)
    trained = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    if decay != OFF and all(optimizer.layerwise_ratio(param) == 1.0 for param in trained):
        message = "The layer-wise decay has no effect yet: all trainable parameters are in the head."
        warnings.warn(problem(message, layerwise_decay=decay.layerwise_decay), stacklevel=2)
    return optimizer


@functools.cache
def with_record(cls: Any) -> Any:
    """Return a subclass of an optimizer class, of the same name, which saves a record of class, decay and layers.

    It refuses the state of another class, and with another decay or other layers unless they are allowed.
    """

    def record_of(self: Any) -> dict[str, Any]:
        ratios = layerwise_interface(self)
        if ratios.decay is None:
            return {"optimizer": cls.__name__, "decay": {}, "layers": {}}
        places = {param.name: ratios.layers.layer_of(param.name) for param in parameters_of(self)}
        layers = {name: [layer.label, layer.depth] for name, layer in places.items()}
        return {"optimizer": cls.__name__, "decay": ratios.decay.to_dict(), "layers": layers}

    def state_dict(self: Any) -> dict[str, Any]:
        return {**cls.state_dict(self), _KEY: record_of(self)}

    def set_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        state, now, found = dict(state_dict), record_of(self), []
        was, allowed = state.pop(_KEY, None), getattr(self, _ALLOW)
        if was is not None:
            both = was["layers"].keys() & now["layers"].keys()  # Paddle's names
            of_both = ({**one, "layers": {name: one["layers"][name] for name in both}} for one in (was, now))
            found = differences(*of_both)
            if was["optimizer"] != now["optimizer"] or (found and not allowed):
                message = f"The checkpoint is of another optimizer or other layer-wise settings: {'; '.join(found)}."
                advice = f"Use the same, or set `{_ALLOW}: true` to resume with another decay or other layers."
                raise refusal(ValueError, f"{message} {advice}", **{_ALLOW: allowed})
        elif now["decay"] and not allowed:
            found = [f"it does not say its layer-wise decay, so the configuration file's applies. `{_ALLOW}: true`"]
            found[0] += " silences this warning"
        if found:
            message = f"Resuming from a checkpoint of another run: {'; '.join(found)}."
            warnings.warn(problem(message, **{_ALLOW: allowed}), stacklevel=1)  # `framework` shows these
        cls.set_state_dict(self, state)

    methods = {"state_dict": state_dict, "set_state_dict": set_state_dict, "load_state_dict": set_state_dict}
    return type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, _ALLOW: False, **methods})


def numbers_read(value: Any) -> Any:
    """Return a value of a YAML file, nested ones too, with numbers for "1e-3", which PyYAML reads as a string."""
    if isinstance(value, dict):
        return {key: numbers_read(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers_read(item) for item in value]
    return float(value) if isinstance(value, str) and YAML_EXPONENT.match(value) else value


def name_parts(parts: Any, setting: str) -> list[str]:
    """Return a list of parts of names; raise TypeError for a string, whose letters would match nearly every name."""
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise refusal(TypeError, f"`{setting}` must be a list of parts of names.", **{setting: parts})
    return list(parts)


def undecayed_names(model: Any, parts: Iterable[str] = (), *, one_dimensional: bool = False) -> set[str]:
    """Return `param.name` of the parameters whose structured name contains one of `parts`, or also of vectors."""
    wanted, named = tuple(parts), list(model.named_parameters())
    matched = {param.name for name, param in named if any(part in name for part in wanted)}
    if wanted and not matched:
        message = "No parameter is excluded from weight decay by name: no name contains one of these parts."
        warnings.warn(problem(message, parts=wanted), stacklevel=2)
    vectors = {param.name for name, param in named if param.ndim == 1 or name.endswith(".bias")}
    return matched | vectors if one_dimensional else matched


def named_groups(model: Any, chosen: Iterable[tuple[list[str], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a parameter group for each entry, matched by parts of structured names, and one for all other parameters.

    The first entry that matches gets the parameter. Raise ValueError for an entry without a parameter.
    """
    ungrouped = {name: param for name, param in model.named_parameters() if not param.stop_gradient}
    groups = []
    for parts, options in chosen:
        names = [name for name in ungrouped if any(part in name for part in parts)]
        if not names:
            raise refusal(
                ValueError,
                "A parameter group matches no trainable parameter outside the earlier groups.",
                parts=parts,
            )
        groups.append({**numbers_read(options), "params": [ungrouped.pop(name) for name in names]})
    return [*groups, {"params": list(ungrouped.values())}] if ungrouped else groups
