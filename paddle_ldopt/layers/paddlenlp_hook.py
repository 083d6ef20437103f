"""PaddleNLP's documented hook for the ratio of a parameter, and the contracts of hooks that give a ratio."""

import functools
import inspect
import math
import numbers
import re
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
import paddle

from .._checks import checked_int, checked_number, plain_number
from .._messages import refusal, shown, some, wrong_type
from .._paddle import graph_value

Names = Optional[Mapping[str, str]]  # ``param.name`` -> structured name
N_LAYERS = 12  # the default of `n_layers`, as in PaddleNLP
_ENCODER_BLOCK = re.compile(r"encoder\.layers\.(\d+)")
_ANY_BLOCK = re.compile(r"[\w.]*\b(layers|layer|h|block|blocks|resblocks)\.\d+")


def layerwise_lr_decay(decay_rate: float, name_dict: Names, n_layers: int, param: Any) -> float:
    r"""Return the ratio of PaddleNLP's documented hook, for models whose blocks are called ``encoder.layers.<i>``.

    .. math::
        r = d^{n-i} \text{ (block } i\text{)}, \qquad d^{n+1} \text{ (embedding)}, \qquad 1 \text{ (all else)}

    Args:
        decay_rate: the decay d of one layer, in (0, 1].
        name_dict: ``param.name`` -> structured name, for every parameter.
        n_layers: blocks in the encoder; at least as many as the model has.
        param: the parameter.

    Raises:
        ValueError: `name_dict` lacks the parameter, or the model has more blocks than `n_layers`.

    Examples:
        >>> from types import SimpleNamespace
        >>> from paddle_ldopt import layerwise_lr_decay
        >>> names = {"linear_0.w_0": "bert.encoder.layers.10.linear1.weight"}
        >>> print(layerwise_lr_decay(0.5, names, 12, SimpleNamespace(name="linear_0.w_0")))
        0.25

    Source: ``paddlenlp.ops.optimizer.layerwise_lr_decay``. Other architectures: ``LayerMap`` and ``layers=``.
    """
    decay_rate, n_layers = check_decay(decay_rate, "decay_rate"), checked_int(n_layers, "n_layers")
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise wrong_type(name_dict, "name_dict", "a dict")
    if not isinstance(getattr(param, "name", None), str):
        raise wrong_type(param, "param", "a parameter")
    name = (name_dict or {}).get(param.name)
    if name is None:
        must = "`name_dict` must map every parameter's `name` to its structured name"
        build = "Build it after the model is complete: {p.name: n for n, p in model.named_parameters()}."
        raise refusal(ValueError, f"{must}, and lacks '{param.name}'. {build}", name_dict=name_dict)
    block = _ENCODER_BLOCK.search(name)
    if block and int(block.group(1)) >= n_layers:
        must = "`n_layers` must be at least the number of encoder blocks"
        raise refusal(ValueError, f"{must}, or '{name}' would get a rate above the head's.", n_layers=n_layers)
    return documented_ratio(decay_rate, name, n_layers)


def documented_ratio(decay: float, name: str, n: int) -> float:
    """Return the ratio that PaddleNLP's hook gives a structured name in a model of n blocks."""
    block = _ENCODER_BLOCK.search(name)
    if block:
        return decay ** (n - int(block.group(1)))
    return decay ** (n + 1) if "embedding" in name else 1.0


def check_decay(value: Any, argument: str = "layerwise_decay") -> float:
    """Return `value` as a float if it is a decay in (0, 1], raise otherwise."""
    return checked_number(value, argument, 0.0, 1.0, "(]", kind="a number in (0, 1]; 1 is the same rate for all layers")


def check_ratio(ratio: Any, name: str) -> Any:
    """Return a hook's answer for parameter `name` as a float (a graph value as it is), raise if it is no ratio."""
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
        what = "A learning-rate ratio must be finite and not negative"
        raise ValueError(f"{what}. Received: {shown(ratio)} for '{name}'") from None


class HookRatios:
    """The function parameter -> checked ratio that a hook makes (`layers.ratios.Ratios`)."""

    decay = layers = None
    is_constant = False  # every step calls the hook anew

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        self.last: dict[str, float] = {}  # the last answers of a hook that writes: readers take them, to write nothing

    def __call__(self, param: Any) -> Any:
        """Ask the hook for the ratio of a parameter; its `optimize_attr` is as before afterwards."""
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

    def at(self, progress: Any) -> "HookRatios":
        """Return the same function: what a hook gives is of now."""
        return self

    def __deepcopy__(self, memo: Any) -> "HookRatios":
        return self  # a copied optimizer shares the hook, which may hold the model


def adapt_hook(
    hook: Callable[..., Any], layerwise_decay: float = 1.0, name_dict: Names = None, n_layers: int = N_LAYERS
) -> HookRatios:
    """Turn a hook of any contract found in the wild into a function parameter -> checked ratio.

    A hook is ``f(layerwise_decay, name_dict, n_layers, param)`` or ``f(param)``, a `functools.partial` of the first
    included. It returns a ratio (a number or a one-element Tensor), or multiplies
    ``param.optimize_attr["learning_rate"]`` and returns None; either way the attribute is as before after the call, so
    ratios never compound. Every step calls the hook anew.

    Raises:
        TypeError, ValueError: neither of these; a decay beside a hook of the parameter alone, which cannot see it.
    """
    call, is_given = _bind(hook, (layerwise_decay, name_dict, n_layers))
    bound = [*getattr(hook, "args", ())[:1], *getattr(hook, "keywords", {}).values()]  # of a functools.partial
    is_bound = any(isinstance(n, numbers.Real) and n == layerwise_decay for n in map(plain_number, bound))
    if layerwise_decay != 1.0 and not is_given and not is_bound:
        raise refusal(
            ValueError,
            "`set_param_lr_fun` takes the parameter alone and cannot see `layerwise_decay`: leave that out, or give a "
            "hook that takes (layerwise_decay, name_dict, n_layers, param).",
            layerwise_decay=layerwise_decay,
            set_param_lr_fun=hook,
        )
    return HookRatios(call)


def _bind(hook: Callable[..., Any], settings: tuple[Any, ...]) -> tuple[Callable[[Any], Any], bool]:
    """Return `hook` as a function of the parameter alone, and whether it is given the `settings`."""
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
        if only.kind is only.KEYWORD_ONLY:  # partial(rule, decay_rate=..., name_dict=..., n_layers=...)
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


def check_documented_hook(names: list[str]) -> None:
    """Raise if PaddleNLP's hook finds no block among the structured `names`, warn if it passes numbered blocks over."""
    others = [name for name in names if not _ENCODER_BLOCK.search(name)]
    if len(others) == len(names):
        raise ValueError(
            "The default hook decays blocks called 'encoder.layers.<i>' and finds none, so `layerwise_decay` would do "
            "nothing to this model's blocks. Give layers=LayerMap.from_model(model), which knows every architecture. "
            f"Received: parameters {some(map(repr, names))}"
        )
    passed_over = sorted({match.group() for match in map(_ANY_BLOCK.search, others) if match})
    if passed_over:
        warnings.warn(
            "The default hook decays blocks called 'encoder.layers.<i>' only and leaves others at the full rate: "
            f"{some(passed_over)}. layers=LayerMap.from_model(model) decays them too.",
            stacklevel=5,
        )
