"""Parts of `AdamWeightDecay` from TensorFlow: patterns for weight decay, one count of steps, `get_config`."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from ... import kernels
from ..._checks import Option
from ..._messages import refusal
from ..._paddle import keeps_masters, lr_or_scheduler, parameter_list, parameters_of
from ...layers.decay import LayerDecay, checked_decay
from ...layers.hook import layerwise_lr_decay
from .._base.layerwise_arguments import LAYERWISE
from .._base.rule_optimizer import RuleOptimizer
from .._base.rule_state import largest, loaded, state_of_all
from .._step.updates import Values
from ..states import STEP


def _compiled(value: Any, name: str) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(pattern, str) for pattern in value):
        raise refusal(TypeError, f"`{name}` must be a list of strings or None.", **{name: value})
    try:
        return [re.compile(pattern) for pattern in value]
    except re.error as error:
        raise refusal(ValueError, f"`{name}` must hold regular expressions: {error}.", **{name: value}) from None


def _option(doc: str) -> Option:
    return Option(doc=doc, optional=True, check=_compiled, values="regular expressions")


PATTERNS = {
    "include_in_weight_decay": _option("name patterns of parameters that have weight decay even if excluded"),
    "exclude_from_weight_decay": _option("name patterns of parameters without weight decay"),
}


class KerasOptimizer(RuleOptimizer):
    """An optimizer with one step number t for all parameters, as Keras' `iterations`, and with `PATTERNS`."""

    _given: dict[str, Any]  # the constructor's arguments other than options; a subclass sets it
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

    def apply_gradients(self, params_grads: Any) -> Any:
        """Take a step with the given (parameter, gradient) pairs, or with Keras' (gradient, parameter) pairs."""
        names = {param.name for param in parameters_of(self)}
        pairs = [(a, b, [getattr(item, "name", None) in names for item in (a, b)]) for a, b in params_grads]
        return super().apply_gradients([(b, a) if known == [False, True] else (a, b) for a, b, known in pairs])

    def has_weight_decay(self, param: Tensor) -> bool:
        """Return whether both `apply_decay_param_fun` and the patterns allow weight decay of the parameter."""
        if not super().has_weight_decay(param):
            return False
        name = f"{self.structured_name(param)}:0"  # with TensorFlow's suffix
        include, exclude = (any(p.search(name) for p in self._fixed[option] or ()) for option in PATTERNS)
        return include or not exclude

    def _warn_of_idle_patterns(self, params: list[Tensor]) -> None:
        names = [f"{self.structured_name(param)}:0" for param in params]
        idle = {
            option: [p.pattern for p in self._fixed[option] or () if not any(p.search(name) for name in names)]
            for option in PATTERNS
        }
        if names and any(idle.values()):
            found = ", ".join(f"{option}={patterns}" for option, patterns in idle.items() if patterns)
            where = f"They were searched in names like {', '.join(map(repr, names[:4]))}."
            remedy = "" if self.structured_names else " Give `name_dict` or `layers` to search structured names."
            warnings.warn(f"Some patterns match no parameter. {where}{remedy} Received: {found}", stacklevel=3)

    def check_in_step(self, params: list[Tensor]) -> None:
        """Warn of patterns without effect in a static graph, whose parameters are known only now."""
        super().check_in_step(params)
        if parameter_list(self) is None:
            self._warn_of_idle_patterns(params)

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
            plain["layerwise_decay"] = checked_decay(objects.pop("layerwise_decay"))
        if isinstance(lr_or_scheduler(self), LRScheduler):
            objects["learning_rate"] = lr_or_scheduler(self)
        else:
            plain["learning_rate"] = lr_or_scheduler(self)
        patterns = {option: [p.pattern for p in self._fixed[option] or ()] or None for option in PATTERNS}
        declared = {**self._defaults, **self._fixed, **patterns}
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
