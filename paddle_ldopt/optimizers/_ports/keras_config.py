"""Keras' `get_config` and `from_config`: the arguments of an optimizer as a dict for JSON."""

from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ..._paddle import keeps_masters, rate_source
from ...layers.decay_checks import check_decay
from ...layers.paddlenlp_hook import layerwise_lr_decay
from .._base.layerwise_arguments import LAYERWISE

__all__ = ["KerasConfigMixin"]


class KerasConfigMixin(Optimizer):
    """Adds both methods to an optimizer whose constructor sets `_given`."""

    _given: dict[str, Any]  # the constructor's arguments other than options

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as a dict for JSON and `from_config`, with the present learning rate.

        "not_in_config" lists the given arguments that JSON cannot hold, if there are any.
        """
        objects = {"grad_clip": None, "apply_decay_param_fun": None, **LAYERWISE, **self._given}
        objects.pop("batch_bytes", None)
        plain = {name: objects.pop(name) for name in ("name", "n_layers")}
        if objects["set_param_lr_fun"] is layerwise_lr_decay:
            del objects["set_param_lr_fun"]
        if not hasattr(objects["layerwise_decay"], "layerwise_decay"):
            plain["layerwise_decay"] = check_decay(objects.pop("layerwise_decay"))
        if isinstance(rate_source(self), LRScheduler):
            objects["learning_rate"] = rate_source(self)
        else:
            plain["learning_rate"] = rate_source(self)
        declared = {**self._defaults, **self._fixed, **self.patterns.texts()}
        options = {self.OPTIONS[name].called or name: value for name, value in declared.items()}
        own = {"multi_precision": keeps_masters(self), "fused": self.fused, "batch_bytes": self.batch_bytes}
        missing = [argument for argument, value in objects.items() if value is not None]
        return {**options, **own, **plain, **({"not_in_config": missing} if missing else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any], **arguments: Any) -> Any:
        """Build an optimizer from the `get_config` of this class or of transformers' class.

        `arguments` are the parameters, a value or None for each name in "not_in_config", and arguments to override.
        """
        config = dict(config)
        lacking = [argument for argument in config.pop("not_in_config", ()) if argument not in arguments]
        if lacking:
            wrong = f"`from_config` needs the arguments that the configuration cannot hold: {', '.join(lacking)}."
            raise ValueError(f"{wrong} Received: {', '.join(arguments) or 'nothing'}")
        return cls(**{**config, **arguments})
