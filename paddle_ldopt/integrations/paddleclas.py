"""PaddleClas: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleClas builds its engine.
"""

from typing import Any, Optional

import paddle

from .._checks import checked_bool
from .._messages import refusal
from .yaml_settings import NAMES, Component, framework


class ClasComponent(Component):
    """An optimizer as PaddleClas builds it: for a list of models, and without weight decay if no regularizer is set."""

    own = (*Component.own, "scope", "filter_bias_and_bn")

    def __init__(self, *, weight_decay: Any = None, filter_bias_and_bn: Optional[bool] = None, **kwargs: Any) -> None:
        super().__init__(weight_decay=weight_decay or 0.0, **kwargs)
        if filter_bias_and_bn is None:
            filter_bias_and_bn = type(self).__name__ == "AdamWDL"  # as PaddleClas's own
        self._filters = checked_bool(filter_bias_and_bn, "filter_bias_and_bn")
        self.one_dimensional = self.one_dimensional or self._filters

    def __call__(self, model_list: Any) -> Any:
        """Return the optimizer of the parameters of one scope: a model, or parts of it."""
        if not model_list:
            message = "`scope` must match a part of the model, and the graph must be dynamic."
            raise refusal(ValueError, message, model_list=model_list)
        model = model_list[0] if len(model_list) == 1 else paddle.nn.LayerList(model_list)
        for part in model_list:  # the model, and a loss with parameters
            if self._filters and hasattr(part, "no_weight_decay"):
                self.parts = [*self.parts, *part.no_weight_decay()]
        return super().__call__(model)


def register() -> None:
    """Add our optimizers to PaddleClas's configuration files; ours replaces its own `AdamWDL`.

    Its settings: `lr`, `regularizer` (L2), `clip_norm`, `scope`, `no_weight_decay_name`,
    `one_dim_param_no_weight_decay`, `filter_bias_and_bn`. Raises ImportError without its package `ppcls`.
    """
    module = framework("ppcls.optimizer.optimizer", "PaddleClas")
    for name in NAMES:
        setattr(module, name, type(name, (ClasComponent,), {}))
