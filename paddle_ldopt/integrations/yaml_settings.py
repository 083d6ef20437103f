"""Build our optimizers from the settings of a framework's YAML file."""

import dataclasses
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import paddle

from .._checks import checked_bool, checked_number
from .._files import YAML_EXPONENT
from .._messages import problem, refusal, unknown
from .._paddle import parameters_of, weight_decay_coefficient
from ..create import OFF, build_optimizer
from ..layers.decay import OPTIONS as DECAY_OPTIONS
from ..layers.decay import LayerDecay
from ..optimizers.registry import REGISTRY
from ..saving.layerwise_record import ALLOW
from .resume_record import with_record

NAMES: dict[str, str] = {info.cls.__name__: name for name, info in REGISTRY.items()}  # class name -> our name


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
    allowed = checked_bool(options.pop(ALLOW, False), ALLOW)
    decay = LayerDecay(**{key: options.pop(key) for key in DECAY_OPTIONS if key in options})
    rules = options.pop("rules", None)
    known = [*info.settings, *DECAY_OPTIONS, "rules", ALLOW]
    for key, value in options.items():
        if info.setting(key) not in known:
            raise ValueError(unknown(f"setting of {name}", key, value, [*own, *known], limit=40))
    arguments = {**options, "learning_rate": numbers_read(learning_rate), "grad_clip": grad_clip}
    if weight_decay is not None:
        arguments["weight_decay"] = _weight_decay_of(weight_decay)
    arguments["apply_decay_param_fun"] = _Decays(undecayed)
    plain: Any = info.cls
    recorded = dataclasses.replace(info, cls=with_record(plain))
    optimizer = build_optimizer(recorded, model, layerwise_decay=decay, groups=groups, rules=rules, **arguments)
    setattr(optimizer, ALLOW, allowed)
    if decay != OFF and all(
        optimizer.layerwise_ratio(p) == 1.0 for p in parameters_of(optimizer) if not p.stop_gradient
    ):
        message = "The layer-wise decay has no effect yet: all trainable parameters are in the head."
        warnings.warn(problem(message, layerwise_decay=decay.layerwise_decay), stacklevel=2)
    return optimizer


class _Decays:
    """`apply_decay_param_fun`: return whether weight decay applies to a parameter, by its `param.name`."""

    def __init__(self, undecayed: Iterable[str]) -> None:
        self._undecayed = frozenset(undecayed)

    def __call__(self, name: str) -> bool:
        return name not in self._undecayed


def _weight_decay_of(weight_decay: Any) -> float:
    """Return the coefficient of a framework's weight decay; decoupled weight decay replaces an L2 penalty."""
    if isinstance(weight_decay, paddle.regularizer.L2Decay):
        return float(weight_decay_coefficient(weight_decay))
    if isinstance(weight_decay, paddle.regularizer.WeightDecayRegularizer):
        raise refusal(ValueError, "The optimizers of paddle_ldopt have no L1 decay: use L2.", weight_decay=weight_decay)
    return checked_number(numbers_read(weight_decay), "weight_decay")


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


class Component:
    """An optimizer as PaddleOCR and PaddleClas build it: settings first, then the model.

    The name of a subclass is that of the optimizer.
    """

    own: tuple[str, ...] = (  # names in the file
        "lr",
        "regularizer",
        "weight_decay",
        "clip_norm",
        "no_weight_decay_name",
        "one_dim_param_no_weight_decay",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: Any = None,
        grad_clip: Any = None,
        no_weight_decay_name: Optional[str] = None,
        one_dim_param_no_weight_decay: bool = False,
        **settings: Any,
    ) -> None:
        settings.pop("regularizer", None)  # a null: the frameworks read all other values
        self.settings = settings
        self.common = {"learning_rate": learning_rate, "weight_decay": weight_decay, "grad_clip": grad_clip}
        if not isinstance(no_weight_decay_name, (str, type(None))):
            message = "`no_weight_decay_name` must be a string of parts of names, separated by spaces."
            raise refusal(TypeError, message, no_weight_decay_name=no_weight_decay_name)
        self.parts = (no_weight_decay_name or "").split()
        self.one_dimensional = checked_bool(one_dim_param_no_weight_decay, "one_dim_param_no_weight_decay")

    def __call__(self, model: Any) -> Any:
        """Return the optimizer for a model."""
        undecayed = undecayed_names(model, self.parts, one_dimensional=self.one_dimensional)
        name = type(self).__name__
        return from_settings(name, model, self.settings, undecayed=undecayed, own=self.own, **self.common)
