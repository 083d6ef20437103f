"""PaddleNLP's hook, the default of `set_param_lr_fun`: the ratios of models with blocks ``encoder.layers.<i>``."""

import re
import warnings
from collections.abc import Mapping
from typing import Any, Optional

import paddle

from .._checks import checked_int
from .._messages import first_few, refusal, wrong_type
from .decay_checks import check_decay
from .layer import STACK_NAMES

Names = Optional[Mapping[str, str]]  # ``param.name`` -> structured name
N_LAYERS = 12  # the default of `n_layers`, as in PaddleNLP
_ENCODER_BLOCK = re.compile(r"encoder\.layers\.(\d+)")
_ANY_BLOCK = re.compile(rf"[\w.]*\b({'|'.join(sorted(STACK_NAMES))})\.\d+")


def layerwise_lr_decay(decay_rate: float, name_dict: Names, n_layers: int, param: paddle.Tensor) -> float:
    r"""Return the ratio of a parameter, for models whose blocks are called ``encoder.layers.<i>``.

    .. math::
        r = d^{n-i} \text{ (block } i\text{)}, \qquad d^{n+1} \text{ (embedding)}, \qquad 1 \text{ (all else)}

    Args:
        decay_rate: d, in (0, 1].
        name_dict: ``param.name`` -> structured name, for every parameter.
        n_layers: number of encoder blocks, at least the model's.
        param: the parameter.

    Raises:
        ValueError: `name_dict` lacks the parameter, or the model has more blocks than `n_layers`.

    Examples:
        >>> from types import SimpleNamespace
        >>> from paddle_ldopt import layerwise_lr_decay
        >>> names = {"linear_0.w_0": "bert.encoder.layers.10.linear1.weight"}
        >>> print(layerwise_lr_decay(0.5, names, 12, SimpleNamespace(name="linear_0.w_0")))
        0.25

    Source: ``paddlenlp.ops.optimizer.layerwise_lr_decay``. For other architectures use ``LayerMap`` and ``layers=``.
    """
    d, n = check_decay(decay_rate, "decay_rate"), checked_int(n_layers, "n_layers")
    name = _checked_name(name_dict, param)
    block = _checked_block(name, n)
    if block is not None:
        return d ** (n - block)
    return d ** (n + 1) if "embedding" in name else 1.0


def _checked_name(name_dict: Names, param: Any) -> str:
    """Return the structured name of a parameter; raise if `name_dict` lacks it."""
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise wrong_type(name_dict, "name_dict", "a dict")
    if not isinstance(getattr(param, "name", None), str):
        raise wrong_type(param, "param", "a parameter")
    name = (name_dict or {}).get(param.name)
    if name is None:
        must = "`name_dict` must map every parameter's `name` to its structured name"
        build = "Build it after the model is complete: {p.name: n for n, p in model.named_parameters()}."
        raise refusal(ValueError, f"{must}, but it lacks '{param.name}'. {build}", name_dict=name_dict)
    return name


def _checked_block(name: str, n_layers: int) -> Optional[int]:
    """Return the number of a parameter's encoder block, None outside of blocks; raise from `n_layers` on."""
    block = _ENCODER_BLOCK.search(name)
    if block and int(block[1]) >= n_layers:
        must = "`n_layers` must be at least the number of encoder blocks"
        raise refusal(ValueError, f"{must}, or '{name}' would get a rate above the head's.", n_layers=n_layers)
    return int(block[1]) if block else None


def check_documented_hook(names: list[str]) -> None:
    """Raise if PaddleNLP's hook finds no block among the structured `names`; warn if it skips numbered blocks."""
    others = [name for name in names if not _ENCODER_BLOCK.search(name)]
    if len(others) == len(names):
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
