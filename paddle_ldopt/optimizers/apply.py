"""Layer-wise learning rates: a mixin for optimizers, and its use on an existing one of any Paddle class."""

import functools
import warnings
from typing import Any, Optional, Union

import paddle
from paddle import Tensor
from paddle.optimizer import Optimizer

from .. import _compat
from .._checks import refusal
from .._compat import parameters_of
from ..layers.decay import LayerDecay, as_decay
from ..rates import LayerwiseInterface
from .options import warn_of_absolute_rates

_ATTRIBUTES = ("layers", "decay", "ratios", "layerwise_decay", "n_layers", "structured_names", "_lr_asked")


class LayerRates(LayerwiseInterface, Optimizer):
    """A mixin that multiplies the rate of each parameter by its layer's ratio; it precedes Paddle's class."""

    ratios: dict[str, Any] = {}  # param.name -> ratio; set once by a LayerMap, in every step by a hook; or empty
    structured_names: Any = {}  # param.name -> structured name, if given
    _dtype: Any  # Paddle's: type of the rate

    def set_layers(self, layers: Any, layerwise_decay: Any) -> None:
        if not hasattr(layers, "ratios") or isinstance(layers, type):
            raise refusal(TypeError, "`layers` must be a LayerMap.", f"layers={type(layers).__name__}")
        decay, ratios = as_decay(layerwise_decay), layers.ratios(layerwise_decay)
        self.layers, self.decay, self.structured_names = layers, decay, layers.name_dict
        self.ratios = {tensor: ratios[name] for tensor, name in layers.name_dict.items()}

    def ratio_of(self, param: Tensor) -> Any:
        ratio = self.ratios.get(param.name)
        if ratio is None:
            name = _compat.name_before_copy(param.name, self.ratios.__contains__)
            if name not in self.ratios:
                name = self.layers.name_of(param.name)  # raises
            ratio = self.ratios[param.name] = self.ratios[name]
        return ratio

    def layerwise_ratio(self, param: Tensor) -> Any:
        """Return the current ratio of a parameter's rate to the optimizer's, apart from groups and ParamAttr."""
        return self.ratio_of(param) if self.ratios else 1.0

    def _create_global_learning_rate(self) -> Any:
        if paddle.get_default_dtype() in ("float16", "bfloat16") and self._dtype != paddle.float64:
            self._dtype = paddle.float32  # Paddle would round the rate to the default type
        return super()._create_global_learning_rate()

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        lr, ratio = super()._create_param_lr(param_and_grad), self.layerwise_ratio(param_and_grad[0])
        if isinstance(ratio, float):
            return lr if ratio == 1.0 else lr * ratio
        return lr * ratio.astype(lr.dtype)  # a static graph's


def apply_layerwise_decay(optimizer: Optimizer, layers: Any, layerwise_decay: Union[float, LayerDecay]) -> Optimizer:
    """Give any Paddle optimizer layer-wise learning rates, in place, and return it.

    Nothing is written into the parameters: a second call replaces the first, and other optimizers of the parameters do
    not change.

    Args:
        optimizer (paddle.optimizer.Optimizer): also with a scheduler or parameter groups, or inside LookAhead, but not
            yet wrapped by `fleet`. LBFGS, Rprop and ModelAverage, which have no rate per parameter, raise TypeError.
        layers (LayerMap): the layers of the model.
        layerwise_decay: ratio of the rates of neighbouring layers, in (0, 1], or a `LayerDecay`.

    Examples:
        >>> import paddle, paddle_ldopt as ldopt
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> momentum = paddle.optimizer.Momentum(0.1, parameters=encoder.parameters())
        >>> layers = ldopt.LayerMap.from_model(encoder)
        >>> opt = ldopt.apply_layerwise_decay(momentum, layers, layerwise_decay=0.5)
        >>> opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        0.125
    """
    _compat.run_untranslated()
    inner = _inside(optimizer)
    plain = plain_class(inner)
    if plain is None and isinstance(inner, LayerRates):
        name = type(inner).__name__
        advice = "give it `layers` and `layerwise_decay` when built."
        raise refusal(ValueError, f"{name} has a layer-wise decay of its own: {advice}", f"optimizer={name}")
    plain = plain or type(inner)
    if _compat.has_single_lr(plain):
        name = plain.__name__
        wrong = f"{name} is not supported: it has no learning rate per parameter and would ignore a layer-wise decay."
        raise refusal(TypeError, f"{wrong} Use another optimizer.", f"optimizer={name}")
    rates = LayerRates.__new__(LayerRates)
    rates.set_layers(layers, layerwise_decay)
    for param in parameters_of(inner):
        rates.ratio_of(param)  # raises if the map lacks it
    warn_of_absolute_rates(inner._param_groups or [])
    inner.__class__ = _layerwise_class(plain)  # in place: wrappers and schedules already hold this object
    more = {"layerwise_decay": layerwise_decay, "n_layers": layers.n_layers, "_lr_asked": set()}
    vars(inner).update(vars(rates), **more)
    return optimizer


def reset_layerwise_decay(optimizer: Optimizer) -> Optimizer:
    """Undo `apply_layerwise_decay` and return the optimizer.

    An optimizer of this package keeps the decay of its constructor, with a warning.

    Examples:
        >>> import paddle, paddle_ldopt as ldopt
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> sgd = paddle.optimizer.SGD(0.1, parameters=encoder.parameters())
        >>> decayed = ldopt.apply_layerwise_decay(sgd, ldopt.LayerMap.from_model(encoder), layerwise_decay=0.5)
        >>> type(ldopt.reset_layerwise_decay(decayed)) is paddle.optimizer.SGD
        True
    """
    inner = _inside(optimizer)
    plain = plain_class(inner)
    if plain is not None:
        inner.__class__ = plain
        for name in _ATTRIBUTES:
            vars(inner).pop(name, None)
    elif isinstance(inner, LayerRates):
        name = type(inner).__name__
        idle = f"`reset_layerwise_decay` does not change {name}, which was built with its decay: build another one."
        warnings.warn(f"{idle} Received: optimizer={name}", stacklevel=2)
    return optimizer


def plain_class(optimizer: Optimizer) -> Optional[type]:
    return vars(type(optimizer)).get("_plain")


def _inside(optimizer: Optimizer) -> Optimizer:
    inner = _compat.unwrap(optimizer)
    if _compat.may_have_cut(optimizer) or not isinstance(inner, Optimizer):
        wrong = "`optimizer` must be a Paddle optimizer, given before `fleet` or group sharding wraps it."
        raise refusal(TypeError, wrong, f"optimizer={type(optimizer).__name__}")
    return inner


class _Applied(LayerRates):
    """The mixin; its first step raises if Paddle's code did not ask for every scaled rate."""

    _lr_asked: Optional[set[str]] = None  # names of the parameters of the first step; None after it
    counts_steps = False  # for files of its state

    def step(self) -> Any:
        if self._lr_asked is None or not paddle.in_dynamic_mode():
            return super().step()
        params = [p for p in parameters_of(self) if not p.stop_gradient and p._grad_ivar() is not None]
        scaled = {p.name for p in params if self.layerwise_ratio(p) not in (0.0, 1.0)}
        self._lr_asked = set()
        done = super().step()
        not_asked = scaled - self._lr_asked
        if not_asked and not self._get_auxiliary_var("found_inf"):  # an overflow skips the step
            name = type(self).__name__
            wrong = f"The step of {name} did not ask `_create_param_lr` for all rates and updated parameters without"
            received = f"optimizer={name}, no rate asked for {len(not_asked)} parameters, such as '{min(not_asked)}'"
            raise refusal(RuntimeError, f"{wrong} layer-wise decay: use another optimizer.", received)
        if scaled and not not_asked:
            self._lr_asked = None
        return done

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
        pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        return None if self.layerwise_ratio(pair[0]) == 0.0 else super()._append_optimize_op(block, param_and_grad)

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        if self._lr_asked is not None:
            self._lr_asked.add(param_and_grad[0].name)
        return super()._create_param_lr(param_and_grad)


@functools.cache  # one class for each optimizer class
def _layerwise_class(plain: Any) -> type:
    # keep the name, by which Paddle chooses its multi-tensor path
    return type(plain.__name__, (_Applied, plain), {"_plain": plain, "__doc__": plain.__doc__})
