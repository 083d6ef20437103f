"""From the settings of a framework's YAML file to an optimizer of ours."""

import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import paddle

from .._checks import checked_number
from .._messages import refusal, unknown
from .._paddle import weight_decay_coefficient
from ..build import build_optimizer
from ..layers.decay import OPTIONS as DECAY_OPTIONS
from ..layers.decay import LayerDecay
from ..optimizers.registry import REGISTRY

__all__ = ["NAMES", "Component", "framework", "from_settings", "groups_by_name", "numbers_read", "undecayed_names"]

NAMES: dict[str, str] = {info.cls.__name__: name for name, info in REGISTRY.items()}  # as a YAML file has them -> ours
_OF_THE_MAP = ("rules", "granularity")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def framework(module: str, name: str) -> Any:
    """Return a module of a framework; raise ImportError that names the framework if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        advice = "install it, or run from a clone of its repository."
        raise ImportError(f"{name} cannot be imported: {advice} Received: {error}", name=module) from error


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
) -> Any:
    """Return an optimizer of ours as a framework's YAML file describes it.

    Args:
        name: of the class, as in the file: "AdamWDL".
        model: the network.
        settings: the optimizer's further options, those of `LayerDecay`, and `rules` and `granularity` of
            `LayerMap.from_model`.
        learning_rate: a number or a schedule.
        weight_decay: None for the class's default, a number or a `paddle.regularizer.L2Decay`.
        grad_clip: None or the framework's.
        undecayed: the `param.name` of parameters without weight decay, as the framework chooses them.
        groups: parameters or parameter groups instead of all of the model's.
    """
    info = REGISTRY[NAMES[name]]
    left = numbers_read(dict(settings))
    decay = LayerDecay(**{key: left.pop(key) for key in DECAY_OPTIONS if key in left})
    mapping = {key: left.pop(key) for key in _OF_THE_MAP if key in left}
    known = [*info.arguments, *DECAY_OPTIONS, *_OF_THE_MAP]
    for key, value in left.items():
        if key not in known:
            raise ValueError(unknown(f"setting of {name}", key, value, known, most=40))
    arguments = {**left, "learning_rate": numbers_read(learning_rate), "grad_clip": grad_clip}
    if weight_decay is not None:
        arguments["weight_decay"] = _weight_decay_of(weight_decay)
    if groups is None or not isinstance(groups[0], dict):
        arguments["apply_decay_param_fun"] = _Decays(undecayed)
    return build_optimizer(NAMES[name], model, layerwise_decay=decay, groups=groups, **mapping, **arguments)


class _Decays:
    """`apply_decay_param_fun`: whether a parameter is decayed, by its `param.name`."""

    def __init__(self, undecayed: Iterable[str]) -> None:
        self._undecayed = frozenset(undecayed)

    def __call__(self, name: str) -> bool:
        return name not in self._undecayed


def _weight_decay_of(weight_decay: Any) -> float:
    """Return the coefficient of a framework's weight decay; a decoupled decay takes the place of an L2 penalty."""
    if isinstance(weight_decay, paddle.regularizer.L2Decay):
        return float(weight_decay_coefficient(weight_decay))
    if isinstance(weight_decay, paddle.regularizer.WeightDecayRegularizer):
        raise refusal(ValueError, "The optimizers of paddle_ldopt have no L1 decay: use L2.", weight_decay=weight_decay)
    return checked_number(numbers_read(weight_decay), "weight_decay")


def numbers_read(value: Any) -> Any:
    """Return a value of a YAML file with numbers in place of "1e-3", which PyYAML reads as a string; in dicts too."""
    if isinstance(value, dict):
        return {key: numbers_read(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers_read(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def undecayed_names(model: Any, parts: Iterable[str] = (), *, one_dimensional: bool = False) -> set[str]:
    """Return the `param.name` of parameters whose structured name has one of `parts`, and of vectors if asked."""
    wanted = tuple(parts)
    return {
        param.name
        for name, param in model.named_parameters()
        if any(part in name for part in wanted) or (one_dimensional and (param.ndim == 1 or name.endswith(".bias")))
    }


def groups_by_name(model: Any, chosen: Iterable[tuple[list[str], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return parameter groups: for each entry those whose structured name has one of its parts, and one of all others.

    A parameter goes to the first entry that it matches. Raise ValueError for an entry that no parameter is left for.
    """
    left = {name: param for name, param in model.named_parameters() if not param.stop_gradient}
    groups = []
    for parts, options in chosen:
        names = [name for name in left if any(part in name for part in parts)]
        if not names:
            raise refusal(ValueError, "A group names no parameter that trains and is in no group before.", parts=parts)
        groups.append({**numbers_read(options), "params": [left.pop(name) for name in names]})
    return [*groups, {"params": list(left.values())}] if left else groups


class Component:
    """An optimizer as PaddleOCR and PaddleClas build it: the settings of the file first, the model second."""

    def __init__(
        self,
        name: str,
        learning_rate: Any = 0.001,
        weight_decay: Any = None,
        grad_clip: Any = None,
        no_weight_decay_name: Optional[str] = None,
        one_dim_param_no_weight_decay: bool = False,
        **settings: Any,
    ) -> None:
        self.optimizer, self.settings = name, settings
        self.common = {"learning_rate": learning_rate, "weight_decay": weight_decay, "grad_clip": grad_clip}
        self.parts, self.one_dimensional = (no_weight_decay_name or "").split(), one_dim_param_no_weight_decay

    def __call__(self, model: Any) -> Any:
        """Return the optimizer of a model's parameters."""
        undecayed = undecayed_names(model, self.parts, one_dimensional=self.one_dimensional)
        return from_settings(self.optimizer, model, self.settings, undecayed=undecayed, **self.common)
