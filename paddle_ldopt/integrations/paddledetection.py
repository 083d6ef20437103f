"""PaddleDetection: ``OptimizerBuilder: {optimizer: {type: AdamWDL, layerwise_decay: 0.7}}`` in its YAML files.

Call `register()` before PaddleDetection builds its trainer.
"""

from typing import Any

import paddle

from .._checks import checked_bool
from .._messages import refusal
from ..layers.map import LayerMap
from .yaml_settings import NAMES, framework, from_settings, name_parts, named_groups, undecayed_names

_OWN = (
    "weight_decay",
    "betas",
    "layer_decay",
    "num_layers",
    "filter_bias_and_bn",
    "skip_decay_names",
    "set_param_lr_func",
    "param_groups",
)
_OWN_HOOK = "layerwise_lr_decay"  # the only hook that PaddleDetection's files name


def register() -> None:
    """Add our optimizers to PaddleDetection's configuration files; ours replaces its `AdamWDL`.

    Its settings: `clip_grad_by_norm`, `clip_grad_by_value`, `regularizer` (L2), `param_groups`, and of its `AdamWDL`
    `betas`, `layer_decay`, `num_layers`, `filter_bias_and_bn`, `skip_decay_names`. Raises ImportError without its
    package `ppdet`.
    """
    module = framework("ppdet.optimizer.optimizer", "PaddleDetection")
    base: Any = module.OptimizerBuilder
    if base.__module__ == __name__:
        return

    class OptimizerBuilder(base):  # the name that PaddleDetection looks up in the module
        """Build one of our optimizers, or one of PaddleDetection's."""

        def __call__(self, learning_rate: Any, model: Any = None) -> Any:
            settings = dict(self.optimizer)
            name = settings.pop("type")
            if name not in NAMES:
                return super().__call__(learning_rate, model)
            common = {"learning_rate": learning_rate, "grad_clip": self._clip()}
            weight_decay = self.regularizer["factor"] if self._regularized(name) else 0.0
            if settings.get("weight_decay") is None:
                settings["weight_decay"] = weight_decay
            return _build(name, model, settings, common)

        def _regularized(self, name: str) -> bool:
            """Return whether the file's L2 decay applies; PaddleDetection's own AdamWDL and AdamW ignore it."""
            has_regularizer = bool(self.regularizer) and self.regularizer != "None"
            if has_regularizer and name != "AdamWDL" and self.regularizer["type"] != "L2":
                message = "The optimizers of paddle_ldopt have no L1 decay: use L2."
                raise refusal(ValueError, message, regularizer=self.regularizer)
            return has_regularizer and name != "AdamWDL"

        def _clip(self) -> Any:
            if self.clip_grad_by_norm is not None:
                return paddle.nn.ClipGradByGlobalNorm(clip_norm=self.clip_grad_by_norm)
            if self.clip_grad_by_value is not None:
                return paddle.nn.ClipGradByValue(max=abs(self.clip_grad_by_value))
            return None

    module.OptimizerBuilder = OptimizerBuilder


def _build(name: str, model: Any, settings: dict[str, Any], common: dict[str, Any]) -> Any:
    """Return the optimizer, from PaddleDetection's settings and ours."""
    if "betas" in settings:
        betas = settings.pop("betas")
        if not isinstance(betas, (list, tuple)) or len(betas) != 2:
            raise refusal(ValueError, "`betas` must be two numbers, `beta1` and `beta2`.", betas=betas)
        _set_or_refuse(settings, "betas", beta1=betas[0], beta2=betas[1])
    if "layer_decay" in settings:
        _set_or_refuse(settings, "layer_decay", layerwise_decay=settings.pop("layer_decay"))
    hook = settings.pop("set_param_lr_func", _OWN_HOOK)
    if hook != _OWN_HOOK:
        raise refusal(
            ValueError, f"`layerwise_decay` sets the rates: the hook can only be {_OWN_HOOK!r}.", set_param_lr_func=hook
        )
    blocks = settings.pop("num_layers", None)
    if blocks is not None:
        n_layers = LayerMap.from_model(model, rules=settings.get("rules")).n_layers
        if blocks != n_layers:
            message = f"The model has {n_layers} blocks: leave out `num_layers`, because blocks are counted."
            raise refusal(ValueError, message, num_layers=blocks)
    filters = checked_bool(settings.pop("filter_bias_and_bn", name == "AdamWDL"), "filter_bias_and_bn")
    skipped = name_parts(settings.pop("skip_decay_names", None) or (), "skip_decay_names")
    undecayed = undecayed_names(model, skipped, one_dimensional=filters)
    chosen = [(name_parts(group.get("params"), "params"), group) for group in settings.pop("param_groups", None) or ()]
    groups = named_groups(model, chosen) if chosen else None
    common = {**common, "weight_decay": settings.pop("weight_decay"), "own": _OWN}
    return from_settings(name, model, settings, undecayed=undecayed, groups=groups, **common)


def _set_or_refuse(settings: dict[str, Any], theirs: str, **ours: Any) -> None:
    """Add options from PaddleDetection's setting `theirs`; raise ValueError if the file also sets one by our name."""
    for option in ours.keys() & settings.keys():
        raise refusal(ValueError, f"`{option}` and `{theirs}` exclude each other.", **{option: settings[option]})
    settings.update(ours)
