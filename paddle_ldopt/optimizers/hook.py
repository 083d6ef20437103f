"""Hooks (`set_param_lr_fun`, `lr_ratio`): functions that map a parameter to its ratio, and PaddleNLP's."""

import functools
import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Optional

import paddle

from .._checks import checked_int, checked_number, first_few, refusal, shown
from ..layers.decay import checked_decay

Names = Optional[Mapping[str, str]]  # ``param.name`` -> structured name
N_LAYERS = 12  # the default of `n_layers`, as in PaddleNLP
_ENCODER_BLOCK = re.compile(r"encoder\.layers\.(\d+)")
_ANY_BLOCK = re.compile(r"[\w.]*\b(block|blocks|h|layer|layers|resblocks|stages)\.\d+")


def layerwise_lr_decay(decay_rate: float, name_dict: Names, n_layers: int, param: paddle.Tensor) -> float:
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


def check_hook(optimizer: Any, params: list[paddle.Tensor]) -> None:
    """Raise if PaddleNLP's hook finds no block; warn if it skips blocks, or if another hook gives equal ratios only."""
    trained = [param for param in params if not param.stop_gradient]
    ratios, decay = [optimizer.hook(param) for param in trained], optimizer.layerwise_decay
    if not optimizer.has_documented_hook:
        known = [ratio for ratio in ratios if isinstance(ratio, float)]  # unknown in a static graph
        if decay != 1.0 and len(known) == len(ratios) > 1 and len(set(known)) == 1:
            problem = f"The hook gives all {len(ratios)} parameters the same ratio ({ratios[0]:g}): no layer differs."
            warnings.warn(refusal(UserWarning, problem, layerwise_decay=decay), stacklevel=5)
        return
    names = [optimizer.structured_name(param) for param in trained]
    others = [name for name in names if not _ENCODER_BLOCK.search(name)]
    if others == names:
        raise ValueError(
            "The default hook decays blocks called 'encoder.layers.<i>' and finds none: `layerwise_decay` would have "
            "no effect on this model's blocks. Give layers=LayerMap.from_model(model), which finds other blocks too. "
            f"Received: parameters {first_few(map(repr, names))}"
        )
    skipped = sorted({match.group() for match in map(_ANY_BLOCK.search, others) if match})
    if skipped:
        warnings.warn(
            "The default hook decays only blocks called 'encoder.layers.<i>' and leaves other blocks at the full rate. "
            f"Give layers=LayerMap.from_model(model) to decay them too. Received: blocks=[{first_few(skipped)}]",
            stacklevel=5,
        )


def bind_hook(hook: Any, layerwise_decay: float, name_dict: Names, n_layers: int) -> Callable[[paddle.Tensor], Any]:
    """Return a function from a parameter to a checked ratio.

    A hook returns a ratio (a variable in a static graph), or None after multiplying
    ``param.optimize_attr["learning_rate"]``, which is restored.
    """
    settings = (layerwise_decay, name_dict, n_layers)
    try:
        signature = inspect.signature(hook)
        without_default = [p for p in signature.parameters.values() if p.default is p.empty]
        required = [p for p in without_default if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(required) != 1:
            signature.bind(*settings, None)
    except (TypeError, ValueError):
        must = "`set_param_lr_fun` must take (layerwise_decay, name_dict, n_layers, param) or (param)."
        raise refusal(TypeError, must, set_param_lr_fun=hook) from None
    call = hook if len(required) == 1 else functools.partial(hook, *settings)
    if len(required) == 1:
        only = required[0]
        if only.kind is only.KEYWORD_ONLY:  # partial(hook, decay_rate=..., name_dict=..., n_layers=...)
            call = lambda param: hook(**{only.name: param})  # noqa: E731
        bound = [*getattr(hook, "args", ())[:1], *getattr(hook, "keywords", {}).values()]  # of a functools.partial
        if layerwise_decay not in [1.0, *bound]:
            unseen = "`set_param_lr_fun` takes the parameter alone and cannot see `layerwise_decay`"
            how = "leave the decay out, or give a hook that takes (layerwise_decay, name_dict, n_layers, param)."
            raise refusal(ValueError, f"{unseen}: {how}", layerwise_decay=layerwise_decay, set_param_lr_fun=hook)

    def ratio_of(param: paddle.Tensor) -> Any:  # a plain function: a deep copy of an optimizer shares the hook
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
            raise type(error)(f"{must} {allowed}. Received: {shown(ratio)} for '{param.name}'") from None

    return ratio_of
