"""The ratios of any hook (`set_param_lr_fun`), a caller's function that maps a parameter to its ratio."""

import functools
import inspect
import math
import numbers
from typing import Any, Callable

import numpy as np
import paddle

from .._checks import checked_number, plain_number
from .._messages import refusal, shown
from .._paddle import graph_value
from .decay import Ratio
from .optimizer_interface import Ratios
from .paddlenlp_hook import N_LAYERS, Names

Hook = Callable[[paddle.Tensor], Any]  # parameter -> ratio, or None if it wrote the ratio to the parameter


def check_ratio(ratio: Any, name: str) -> Ratio:
    """Return a hook's ratio for parameter `name` as a float, a static graph's value unchanged; raise if invalid."""
    in_graph = not paddle.in_dynamic_mode() and isinstance(ratio, graph_value())
    if in_graph or isinstance(ratio, (paddle.Tensor, np.ndarray)):
        if math.prod(ratio.shape) != 1:
            shape = list(ratio.shape)
            raise ValueError(f"A learning-rate ratio must have one element. Received: shape={shape} for '{name}'")
        if in_graph:  # known at run time only
            return ratio
    try:
        return checked_number(ratio, "ratio")
    except TypeError:
        how = "return a number, or change `param.optimize_attr['learning_rate']` and return None"
        raise TypeError(f"A learning-rate hook must {how}. Received: {shown(ratio)} for '{name}'") from None
    except ValueError:
        needed = "A learning-rate ratio must be finite and not negative"
        raise ValueError(f"{needed}. Received: {shown(ratio)} for '{name}'") from None


class HookRatios(Ratios):
    """A hook as a function that maps a parameter to its checked ratio; every step calls the hook."""

    def __init__(self, call: Hook) -> None:
        self._call = call
        self.last: dict[str, float] = {}  # last ratios of a hook that writes to parameters, for readers that must not

    def __call__(self, param: paddle.Tensor) -> Ratio:
        """Return the hook's ratio for a parameter, with its `optimize_attr` unchanged afterwards."""
        attr = getattr(param, "optimize_attr", None)
        if attr is None:
            return check_ratio(self._call(param), param.name)
        before = attr.get("learning_rate", 1.0)
        written = not (isinstance(before, (int, float)) and before == 1.0)
        if written:
            attr["learning_rate"] = 1.0
        try:
            ratio = self._call(param)
            if ratio is None:
                ratio = attr.get("learning_rate", 1.0)
        finally:
            written = written or attr.get("learning_rate", 1.0) is not before
            if written:
                attr["learning_rate"] = before
        ratio = check_ratio(ratio, param.name)
        if written and isinstance(ratio, float):
            self.last[param.name] = ratio
        return ratio

    def __deepcopy__(self, memo: Any) -> "HookRatios":
        return self  # a copied optimizer shares the hook, which may hold the model


def adapt_hook(
    hook: Callable[..., Any], layerwise_decay: float = 1.0, name_dict: Names = None, n_layers: int = N_LAYERS
) -> HookRatios:
    """Turn a hook into a function that maps a parameter to its checked ratio.

    A hook is ``f(layerwise_decay, name_dict, n_layers, param)``, a `functools.partial` of it, or ``f(param)``. It
    returns a ratio (a number or a one-element Tensor), or multiplies ``param.optimize_attr["learning_rate"]`` and
    returns None. The attribute is restored after each call, so ratios never compound. Every step calls the hook.

    Raises:
        TypeError, ValueError: another signature; a decay that the hook cannot see, because it only takes `param`.
    """
    call, is_given = _bind(hook, (layerwise_decay, name_dict, n_layers))
    bound = [*getattr(hook, "args", ())[:1], *getattr(hook, "keywords", {}).values()]  # of a functools.partial
    is_bound = any(isinstance(n, numbers.Real) and n == layerwise_decay for n in map(plain_number, bound))
    if layerwise_decay != 1.0 and not is_given and not is_bound:
        unseen = "`set_param_lr_fun` takes the parameter alone and cannot see `layerwise_decay`"
        how = "leave the decay out, or give a hook that takes (layerwise_decay, name_dict, n_layers, param)."
        raise refusal(ValueError, f"{unseen}: {how}", layerwise_decay=layerwise_decay, set_param_lr_fun=hook)
    return HookRatios(call)


def _bind(hook: Callable[..., Any], settings: tuple[float, Names, int]) -> tuple[Hook, bool]:
    """Return `hook` as a function of the parameter alone, and whether it receives the `settings`."""
    if not callable(hook):
        raise refusal(TypeError, "`set_param_lr_fun` must be callable or None.", set_param_lr_fun=hook)
    four = functools.partial(hook, *settings)
    try:
        signature = inspect.signature(hook)
    except ValueError:  # a builtin without a signature: the documented contract
        return four, True
    arguments = list(signature.parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in arguments if p.default is p.empty and p.kind not in variadic]
    positional = [p.name for p in arguments if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(required) == 1 and not (len(positional) == 4 and positional[-1] == "param"):
        only = required[0]
        if only.kind is only.KEYWORD_ONLY:  # partial(hook, decay_rate=..., name_dict=..., n_layers=...)
            return lambda param: hook(**{only.name: param}), False
        return hook, False
    try:
        signature.bind(*settings, None)
    except TypeError:
        raise TypeError(
            "`set_param_lr_fun` must take (layerwise_decay, name_dict, n_layers, param) or (param). "
            f"Received: {getattr(hook, '__name__', hook)}{signature}"
        ) from None
    return four, True
