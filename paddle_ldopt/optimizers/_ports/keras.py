"""Keras' parts of `AdamWeightDecay`: one count of steps for all parameters, `get_config` and `from_config`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler

from ... import kernels
from ..._paddle import keeps_masters, lr_or_scheduler
from ...layers.decay import LayerDecay
from ...layers.decay_checks import check_decay
from ...layers.paddlenlp_hook import layerwise_lr_decay
from .._base.layerwise_arguments import LAYERWISE
from .._base.rule_optimizer import RuleOptimizer
from .._base.rule_state import largest, loaded, state_of_all
from .._step.updates import Values
from ..states import STEP
from .name_patterns import NamePatterns


class KerasOptimizer(RuleOptimizer):
    """An optimizer with one step number t for all, as Keras' `iterations`; a subclass sets both attributes."""

    patterns: NamePatterns
    _given: dict[str, Any]  # the constructor's arguments other than options
    _counting = False  # whether a step is running
    _this: Any = None  # the number of the running step, if known: a Tensor, or a float for the C library

    @contextlib.contextmanager
    def _one_step(self) -> Iterator[None]:
        outermost = not self._counting
        self._counting = True
        try:
            yield
        finally:
            if outermost:
                self._counting, self._this = False, None

    def counted(self, state: Values) -> Values:
        """Return 1 + the largest count of any parameter before this step."""
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters: they count alike
            return super().counted(state)
        if self._this is None:
            self._this = self._count_taken() + 1.0
        dtype = state[STEP].dtype
        known = isinstance(self._this, float)
        return {STEP: paddle.full([], self._this, dtype) if known else self._this.astype(dtype)}

    def count_planned(self, structs: Any) -> None:
        """Read the number of the running step from structs that cover all state: faster than Paddle."""
        if self._this is None and self._count_elsewhere is None and len(structs) == len(state_of_all(self, STEP)):
            self._this = max(kernels.largest_step(structs), float(largest(loaded(self, STEP)))) + 1.0

    def _this_step(self) -> float:
        """Return the number of the running step, from 1, for the C library."""
        if self._this is None:
            self._this = self._count_taken() + 1.0
        return float(self._this)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as a dict for JSON and `from_config`, with the present learning rate.

        "not_in_config" lists the given arguments that JSON cannot hold, if there are any.
        """
        objects = {"grad_clip": None, "apply_decay_param_fun": None, **LAYERWISE, **self._given}
        objects.pop("batch_bytes", None)
        plain = {name: objects.pop(name) for name in ("name", "n_layers")}
        if objects["set_param_lr_fun"] is layerwise_lr_decay:
            del objects["set_param_lr_fun"]
        if not isinstance(objects["layerwise_decay"], LayerDecay):
            plain["layerwise_decay"] = check_decay(objects.pop("layerwise_decay"))
        if isinstance(lr_or_scheduler(self), LRScheduler):
            objects["learning_rate"] = lr_or_scheduler(self)
        else:
            plain["learning_rate"] = lr_or_scheduler(self)
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
