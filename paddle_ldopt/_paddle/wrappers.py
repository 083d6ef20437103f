"""The wrappers of `fleet`, `amp`, group sharding and LookAhead around optimizers and networks."""

import paddle
from paddle.optimizer import Optimizer

from .optimizers import flatten_groups
from .private_names import FLEET, declare
from .tensors import sublayers

# fmt: off
__all__ = [
    "check_wrapper_state", "is_group_sharded", "may_have_cut", "name_dict_of", "parameters_of", "unwrap",
    "unwrap_model", "wrappers",
]
# fmt: on

_SHARDING = f"{FLEET}.meta_parallel.sharding"
# attribute in which wrappers keep their optimizer -> one of these wrappers
_INNER = {
    "_inner_opt": f"{FLEET}.meta_optimizers.HybridParallelOptimizer",  # also other wrappers of `fleet` and `amp`
    "_optim": f"{_SHARDING}.group_sharded_optimizer_stage2.GroupShardedOptimizerStage2",
    "inner_optimizer": "paddle.incubate.LookAhead",
    "inner_opt": f"{FLEET}.meta_optimizers.meta_optimizer_base.MetaOptimizerBase",  # static `fleet`
    "_optimizer": "paddle.incubate.asp.asp.OptimizerWithSparsityGuarantee",  # also static `amp`
}
# the same for networks
_INSIDE = {
    "_layers": "paddle.DataParallel",
    "_layer": f"{_SHARDING}.group_sharded_stage2.GroupShardedStage2",
}
# Compared by name: no version of Paddle has all. MetaParallelBase: tensor, pipeline, sharding and segment parallel.
_WRAPPERS = {"DataParallel", "MetaParallelBase", "MixPrecisionLayer"}
_WRAPPERS |= {"GroupShardedStage2", "GroupShardedStage3", "FullyShard"}


def _declare_all(wrapped: str, owners: dict[str, str]) -> None:
    for name, owner in owners.items():
        declare(owner, f"{wrapped} in wrappers", name)


_declare_all("Optimizers", _INNER)
_declare_all("Networks", _INSIDE)


def wrappers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the wrappers of an optimizer from the outermost in, and last the optimizer itself."""
    chain = [optimizer]
    while True:
        inner = [value for name in _INNER for value in [getattr(chain[-1], name, None)] if value is not None]
        if not inner:
            return chain
        chain.append(inner[0])


def unwrap(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside the wrappers of `fleet` and `amp`, and inside LookAhead."""
    return wrappers(optimizer)[-1]


def may_have_cut(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is a wrapper of `fleet` or group sharding, which may have split parameters."""
    return hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim")


def is_group_sharded(optimizer: Optimizer) -> bool:
    """Return whether `group_sharded_parallel` (stages 2 and 3) has wrapped an optimizer."""
    return any(hasattr(wrapper, "_optim") for wrapper in wrappers(optimizer))


def check_wrapper_state(optimizer: Optimizer) -> None:
    """Raise TypeError if a wrapper keeps state that checkpoints of the optimizer would lack."""
    for wrapper in wrappers(optimizer)[:-1]:
        if not may_have_cut(wrapper):
            name = type(wrapper).__name__
            raise TypeError(
                f"{name} keeps state of its own, such as slow weights or masks, which a checkpoint of the optimizer "
                f"inside would lose: train without {name}, or save both states yourself. Received: optimizer={name}"
            )


def parameters_of(optimizer: Optimizer) -> list[paddle.Tensor]:
    """Return the parameters of an optimizer in order, without groups; under sharding, of all processes."""
    # the optimizer inside the sharding wrapper has only this process's parameters
    lists = [getattr(wrapper, "_parameter_list", None) or [] for wrapper in wrappers(optimizer)]
    return flatten_groups(max(lists, key=len))


def name_dict_of(model: paddle.nn.Layer) -> dict[str, str]:
    """Return ``param.name`` -> structured name of the parameters of a model."""
    return {param.name: name for name, param in model.named_parameters()}


def unwrap_model(model: paddle.nn.Layer) -> paddle.nn.Layer:
    """Return the network inside the wrappers of `fleet`, group sharding and `paddle.DataParallel`."""
    while any(cls.__name__ in _WRAPPERS and cls.__module__.startswith("paddle.") for cls in type(model).__mro__):
        inside = next((layer for key in _INSIDE for layer in [sublayers(model).get(key)] if layer), None)
        if inside is None:
            break
        model = inside
    return model
