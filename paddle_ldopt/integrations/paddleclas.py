"""PaddleClas: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleClas builds its engine.
"""

import functools
from typing import Any, Optional

import paddle

from .._messages import refusal
from .settings import NAMES, framework, from_settings, undecayed_names

__all__ = ["register"]


class Component:
    """An optimizer as PaddleClas builds it: settings first, the models second."""

    def __init__(
        self,
        name: str,
        learning_rate: Any = 0.001,
        weight_decay: Any = None,
        grad_clip: Any = None,
        no_weight_decay_name: Optional[str] = None,
        one_dim_param_no_weight_decay: bool = False,
        filter_bias_and_bn: Optional[bool] = None,
        **settings: Any,
    ) -> None:
        self._optimizer, self._settings = name, settings
        self._common = {"learning_rate": learning_rate, "grad_clip": grad_clip, "weight_decay": weight_decay or 0.0}
        self._parts = (no_weight_decay_name or "").split()
        # PaddleClas's own AdamWDL leaves them out unless told otherwise
        self._filters = name == "AdamWDL" if filter_bias_and_bn is None else filter_bias_and_bn
        self._one_dimensional = one_dim_param_no_weight_decay or self._filters

    def __call__(self, model_list: Any) -> Any:
        """Return the optimizer of the parameters of one scope: a model, or parts of it."""
        if not model_list:
            raise refusal(ValueError, "Layer-wise rates need a model: train in dynamic graph.", model_list=model_list)
        model = model_list[0] if len(model_list) == 1 else paddle.nn.LayerList(model_list)
        parts = [*self._parts, *(self._named_by(model) if self._filters else ())]
        undecayed = undecayed_names(model, parts, one_dimensional=self._one_dimensional)
        return from_settings(self._optimizer, model, self._settings, undecayed=undecayed, **self._common)

    @staticmethod
    def _named_by(model: Any) -> Any:
        return model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()


def register() -> None:
    """Make the names of our optimizers known to PaddleClas's configuration files; ours replaces its own `AdamWDL`.

    The settings of PaddleClas's own optimizers keep their meaning: `lr`, `regularizer` (L2), `clip_norm`, `scope`,
    `no_weight_decay_name`, `one_dim_param_no_weight_decay`, `filter_bias_and_bn`. Beside them stand the options of the
    optimizer, those of `LayerDecay`, `rules` and `granularity` of `LayerMap.from_model`.

    Raises:
        ImportError: PaddleClas's package `ppcls` cannot be imported.
    """
    module = framework("ppcls.optimizer.optimizer", "PaddleClas")
    for name in NAMES:
        setattr(module, name, functools.partial(Component, name))
