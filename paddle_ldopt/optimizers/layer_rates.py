"""Layer-wise learning rates: hooks, a mixin for optimizers, and its use on any Paddle optimizer.

A hook (`set_param_lr_fun`, `lr_ratio`) maps a parameter to its ratio.
"""

import functools
import inspect
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

import paddle
from paddle import Tensor
from paddle.optimizer import Optimizer

from .. import _compat
from .._checks import checked_int, checked_number, first_few, problem, refusal, shown
from .._compat import parameters_of
from ..layers.decay import LayerDecay, as_decay, checked_decay
from ..rates import LayerwiseInterface, has_single_lr

Names = Optional[Mapping[str, str]]  # ``param.name`` -> structured name
N_LAYERS = 12  # the default of `n_layers`, as in PaddleNLP
_ENCODER_BLOCK = re.compile(r"encoder\.layers\.(\d+)")
_ANY_BLOCK = re.compile(r"[\w.]*\b(block|blocks|h|layer|layers|resblocks|stages)\.\d+")


def layerwise_lr_decay(decay_rate: float, name_dict: Names, n_layers: int, param: Tensor) -> float:
    r"""Return the ratio of a parameter, for models whose blocks are called ``encoder.layers.<i>``.

    .. math::
        r = d^{n-i} \text{ (block } i\text{)}, \qquad d^{n+1} \text{ (embedding)}, \qquad 1 \text{ (all else)}

    Args:
        decay_rate: d, in (0, 1].
        name_dict: ``param.name`` -> structured name, for every parameter.
        n_layers: at least the number of encoder blocks.
        param: the parameter.

    Examples:
        >>> from types import SimpleNamespace
        >>> from paddle_ldopt import layerwise_lr_decay
        >>> names = {"linear_0.w_0": "bert.encoder.layers.10.linear1.weight"}
        >>> print(layerwise_lr_decay(0.5, names, 12, SimpleNamespace(name="linear_0.w_0")))
        0.25

    Source: ``paddlenlp.ops.optimizer.layerwise_lr_decay``. For other architectures use ``LayerMap`` and ``layers=``.
    """
    d, n = checked_decay(decay_rate, "decay_rate"), checked_int(n_layers, "n_layers")
    tensor = param.name if hasattr(param, "name") else str(param)
    name = name_dict.get(tensor) if isinstance(name_dict, Mapping) else None
    if name is None:
        must = "`name_dict` must map every parameter's `name` to its structured name"
        build = "Build it after the model is complete: {p.name: n for n, p in model.named_parameters()}."
        raise refusal(ValueError, f"{must}, but it lacks {shown(tensor)}. {build}", name_dict=name_dict)
    block = _ENCODER_BLOCK.search(name)
    if block is None:
        return d ** (n + 1) if "embedding" in name else 1.0
    if int(block[1]) >= n:
        must = "`n_layers` must be at least the number of encoder blocks"
        raise refusal(ValueError, f"{must}, or '{name}' would get a rate above the head's.", n_layers=n)
    return d ** (n - int(block[1]))


# layer-wise arguments of all optimizers
LAYERWISE: dict[str, Any] = {"layerwise_decay": 1.0, "n_layers": N_LAYERS, "set_param_lr_fun": layerwise_lr_decay}
LAYERWISE.update(name_dict=None, layers=None, lr_ratio=None)


def check_hook(optimizer: Any, params: list[Tensor]) -> None:
    """Raise if PaddleNLP's hook finds no block; warn if it skips blocks, or if another hook's ratios are all equal."""
    trained = [param for param in params if not param.stop_gradient]
    ratios, decay = [optimizer.hook(param) for param in trained], optimizer.layerwise_decay
    if not optimizer.has_documented_hook:
        known = [ratio for ratio in ratios if isinstance(ratio, float)]  # unknown in a static graph
        if decay != 1.0 and len(known) == len(ratios) > 1 and len(set(known)) == 1:
            same = f"The hook gives all {len(ratios)} parameters the same ratio ({ratios[0]:g}): no layer differs."
            warnings.warn(problem(same, layerwise_decay=decay), stacklevel=5)
        return
    names = [optimizer.structured_name(param) for param in trained]
    others = [name for name in names if not _ENCODER_BLOCK.search(name)]
    if others == names:
        wrong = "The default hook decays blocks called 'encoder.layers.<i>' and finds none: `layerwise_decay` would"
        advice = "have no effect on this model's blocks. Give layers=LayerMap.from_model(model), which finds other"
        received = f"parameters {first_few(map(repr, names))}"
        raise refusal(ValueError, f"{wrong} {advice} blocks too.", received)
    skipped = sorted({match.group() for match in map(_ANY_BLOCK.search, others) if match})
    if skipped:
        left = "The default hook decays only blocks called 'encoder.layers.<i>' and leaves other blocks at the full"
        advice = "rate. Give layers=LayerMap.from_model(model) to decay them too."
        warnings.warn(problem(f"{left} {advice}", f"blocks=[{first_few(skipped)}]"), stacklevel=5)


def bind_hook(hook: Any, layerwise_decay: float, name_dict: Names, n_layers: int) -> Callable[[Tensor], Any]:
    """Return a function from a parameter to a checked ratio.

    A hook returns a ratio (in a static graph a variable), or None after multiplying
    ``param.optimize_attr["learning_rate"]``, which is restored.
    """
    leading = (layerwise_decay, name_dict, n_layers)
    try:
        signature = inspect.signature(hook)
        without_default = [p for p in signature.parameters.values() if p.default is p.empty]
        required = [p for p in without_default if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(required) != 1:
            signature.bind(*leading, None)
    except (TypeError, ValueError):
        must = "`set_param_lr_fun` must take (layerwise_decay, name_dict, n_layers, param) or (param)."
        raise refusal(TypeError, must, set_param_lr_fun=hook) from None
    call = hook if len(required) == 1 else functools.partial(hook, *leading)
    if len(required) == 1:
        only = required[0]
        if only.kind is only.KEYWORD_ONLY:  # partial(hook, decay_rate=..., name_dict=..., n_layers=...)
            call = lambda param: hook(**{only.name: param})  # noqa: E731
        bound = [*getattr(hook, "args", ())[:1], *getattr(hook, "keywords", {}).values()]  # of a functools.partial
        if layerwise_decay not in [1.0, *bound]:
            unseen = "`set_param_lr_fun` takes the parameter alone and cannot see `layerwise_decay`"
            how = "leave the decay out, or give a hook that takes (layerwise_decay, name_dict, n_layers, param)."
            raise refusal(ValueError, f"{unseen}: {how}", layerwise_decay=layerwise_decay, set_param_lr_fun=hook)

    def ratio_of(param: Tensor) -> Any:  # a plain function: a deep copy of an optimizer shares the hook
        attributes = getattr(param, "optimize_attr", None) or {}
        before = attributes.get("learning_rate", 1.0)
        attributes["learning_rate"] = 1.0
        try:
            ratio = call(param)
            if ratio is None:
                ratio = attributes["learning_rate"]
        finally:
            attributes["learning_rate"] = before
        if not paddle.in_dynamic_mode() and isinstance(ratio, paddle.pir.Value):  # known at run time only
            return ratio
        try:
            return checked_number(ratio, "ratio")
        except (TypeError, ValueError) as error:
            must = "A learning-rate hook must return a number, or change `param.optimize_attr['learning_rate']` and"
            allowed = "return None; the ratio must be finite and not negative"
            raise refusal(type(error), f"{must} {allowed}.", f"{shown(ratio)} for '{param.name}'") from None

    return ratio_of


# ---- optimizers


def ratios_of(layers: Any, layerwise_decay: Any, stacklevel: int) -> dict[str, float]:
    """Return ``param.name`` -> ratio of the parameters in a LayerMap."""
    if not hasattr(layers, "ratios") or isinstance(layers, type):
        raise refusal(TypeError, "`layers` must be a LayerMap.", f"layers={type(layers).__name__}")
    if not layers.name_dict:
        wrong = "A map made by `from_names` does not know the parameters: use `LayerMap.from_model`."
        raise refusal(ValueError, wrong, layers=layers)
    ratios = layers.ratios(layerwise_decay)
    if as_decay(layerwise_decay).preserve_mean and (frozen := layers.frozen_blocks(ratios)):
        effect = "Blocks whose parameters are all frozen count in the mean of `preserve_mean`, so the others"
        advice = "train faster: freeze them by `freeze_below`, or leave `preserve_mean` out."
        warnings.warn(problem(f"{effect} {advice}", frozen=first_few(frozen)), stacklevel=stacklevel)
    return {tensor: ratios[name] for tensor, name in layers.name_dict.items()}


class LayerRates(LayerwiseInterface, Optimizer):
    """A mixin that multiplies each parameter's rate by its layer's ratio; it precedes Paddle's class."""

    ratios: dict[str, Any] = {}  # param.name -> ratio, from a LayerMap once, from a hook in every step
    structured_names: Any = {}  # param.name -> structured name, if given
    _dtype: Any  # Paddle's: type of the rate

    def set_layers(self, layers: Any, layerwise_decay: Any) -> None:
        self.ratios = ratios_of(layers, layerwise_decay, stacklevel=5)
        self.layers, self.decay, self.structured_names = layers, as_decay(layerwise_decay), layers.name_dict
        self.n_layers = layers.n_layers

    def layerwise_ratio(self, param: Tensor) -> Any:
        """Return a parameter's current ratio, without the factors of groups and ParamAttr."""
        ratio = self.ratios.get(param.name) if self.ratios else 1.0
        if ratio is None:
            name = _compat.name_before_copy(param.name, self.ratios.__contains__)
            if name not in self.ratios:
                self.layers.name_of(param.name)  # raises, except for another parameter's structured name
                raise refusal(ValueError, "The layer map does not know this parameter.", name=param.name)
            ratio = self.ratios[param.name] = self.ratios[name]
        return ratio

    def _create_global_learning_rate(self) -> Any:
        if paddle.get_default_dtype() in ("float16", "bfloat16") and self._dtype != paddle.float64:
            self._dtype = paddle.float32  # Paddle would round the rate to the default type
        return super()._create_global_learning_rate()

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        """Return a rate for Paddle's loop, static graphs and tables; our step does not call it (`OneStep._rows`)."""
        lr, ratio = super()._create_param_lr(param_and_grad), self.layerwise_ratio(param_and_grad[0])
        if isinstance(ratio, float):
            return lr if ratio == 1.0 else lr * ratio
        return lr * ratio.astype(lr.dtype)  # a static graph's


def warn_of_absolute_rates(groups: Iterable[Any]) -> None:
    """Warn if a group's "learning_rate" looks like a rate: Paddle takes it as a factor."""
    factors = [group.get("learning_rate", 1.0) for group in groups if isinstance(group, dict)]
    known = [factor for factor in factors if isinstance(factor, (int, float))]
    small = [factor for factor in known if 0 < factor < 1e-3 * max(known)]
    if small:
        wrong = 'The "learning_rate" of a parameter group is a multiplier of the optimizer\'s rate, not a rate: this'
        advice = "group takes steps below 1e-3 of the others'. Divide it by the optimizer's learning rate."
        warnings.warn(problem(f"{wrong} {advice}", learning_rate=small[0]), stacklevel=4)


def apply_layerwise_decay(optimizer: Optimizer, layers: Any, layerwise_decay: Union[float, LayerDecay]) -> Optimizer:
    """Give any Paddle optimizer layer-wise learning rates, in place, and return it.

    Nothing is written into the parameters: a second call replaces the first (a decay of 1 undoes it), and other
    optimizers of the parameters do not change.

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
    inner = _compat.unwrap(optimizer)
    if _compat.may_have_cut(optimizer) or not isinstance(inner, Optimizer):
        wrong = "`optimizer` must be a Paddle optimizer, given before `fleet` or group sharding wraps it."
        raise refusal(TypeError, wrong, f"optimizer={type(optimizer).__name__}")
    plain: Any = plain_class(inner) or type(inner)
    name = plain.__name__
    if issubclass(plain, LayerRates):
        advice = "give it `layers` and `layerwise_decay` when built."
        raise refusal(ValueError, f"{name} has a layer-wise decay of its own: {advice}", f"optimizer={name}")
    if has_single_lr(plain):
        wrong = f"{name} is not supported: it has no learning rate per parameter and would ignore a layer-wise decay."
        raise refusal(TypeError, f"{wrong} Use another optimizer.", f"optimizer={name}")
    ratios, decay = ratios_of(layers, layerwise_decay, stacklevel=3), as_decay(layerwise_decay)
    for param in parameters_of(inner):
        layers.name_of(param.name)  # raises if the map lacks it
    warn_of_absolute_rates(inner._param_groups or [])
    inner.__class__ = _layerwise_class(plain)  # in place: wrappers and schedules already hold this object
    inner.layers, inner.layerwise_decay, inner.decay, inner.ratios = layers, layerwise_decay, decay, ratios
    inner.structured_names, inner.n_layers, inner._lr_asked = layers.name_dict, layers.n_layers, set()
    return optimizer


def plain_class(optimizer: Optimizer) -> Optional[type]:
    return vars(type(optimizer)).get("_plain")


class _Applied(LayerRates):
    """Its first step raises if Paddle did not ask for every scaled rate."""

    _lr_asked: Optional[set[str]] = None  # names of the parameters of the first step; None after it
    counts_steps = False  # for files of its state

    def step(self) -> Any:
        if self._lr_asked is None or not paddle.in_dynamic_mode():
            return super().step()
        params = [p for p in parameters_of(self) if not p.stop_gradient and p._grad_ivar() is not None]
        scaled = {p.name for p in params if self.layerwise_ratio(p) not in (0.0, 1.0)}
        if getattr(self, "_use_multi_tensor", None) and any(self.layerwise_ratio(p) == 0.0 for p in params):
            wrong = "`use_multi_tensor` changes the state of frozen layers (ratio 0): leave it out."
            raise refusal(ValueError, wrong, use_multi_tensor=True)
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

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:  # of Adamax: it changes the state
        grouped = isinstance(parameters_and_grads, dict)
        pairs = parameters_and_grads["params"] if grouped else parameters_and_grads
        pairs = [pair for pair in pairs if self.layerwise_ratio(pair[0]) != 0.0]
        super()._finish_update(block, {**parameters_and_grads, "params": pairs} if grouped else pairs)

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        if self._lr_asked is not None:
            self._lr_asked.add(param_and_grad[0].name)
        return super()._create_param_lr(param_and_grad)


@functools.cache  # one class for each optimizer class
def _layerwise_class(plain: Any) -> type:
    # keep the name, by which Paddle chooses its multi-tensor path
    return type(plain.__name__, (_Applied, plain), {"_plain": plain, "__doc__": plain.__doc__})
