"""Errors for parameters and options that Paddle's wrappers, or the C library, cannot handle in shards."""

from collections.abc import Iterable
from typing import Any

from paddle import Tensor

from ..._paddle import is_sharded, sharding_setting, topology, weight_decay_fun_is_replaced
from .shard import Shard

INSTEAD = "instead of group sharding of level 'p_g_os' use 'os_g', or sharding of stage 1"


def unknown_parameter(param: Tensor) -> ValueError:
    """Return the error for a parameter with which the optimizer was not built."""
    return ValueError(
        f"The optimizer was not built with '{param.name}': a wrapper has fused parameters into buffers or cut them up. "
        f"Set sharding_configs.tensor_fusion=False; {INSTEAD}. Received: '{param.name}' of shape {list(param.shape)}"
    )


def refuse_sharded_groups(parameters: Any) -> None:
    """Raise if an optimizer under sharding has parameter groups, which Paddle cannot shard."""
    groups = [item for item in parameters or [] if isinstance(item, dict)]
    if groups and is_sharded():
        raise ValueError(
            "Paddle's sharding takes a plain list of parameters: use `layers` or `set_param_lr_fun` for rates, "
            "`apply_decay_param_fun` for the decay, or sharding_degree=1. "
            f"Received: {len(groups)} groups, sharding_degree={topology().get_sharding_parallel_world_size()}"
        )


def refuse_replaced_weight_decay(optimizer: Any) -> None:
    """Raise if sharding v1 has replaced `apply_decay_param_fun` by a function of buffers: nothing would be decayed."""
    known = sharding_setting("tensor_fusion") and sharding_setting("fuse_optimizer")
    if weight_decay_fun_is_replaced(optimizer) and not known:
        setting = sharding_setting("comm_overlap", "tensor_fusion")
        raise ValueError(
            f"With `{setting}` sharding replaces `apply_decay_param_fun`, and no parameter would be decayed: set "
            f"{setting}=False in the strategy's sharding_configs. Received: {setting}=True"
        )


def refuse_fused_shards(shards: Iterable[Shard]) -> None:
    """Raise for `fused=True` if any parameter is in shards."""
    if any(shard.groups or shard.slice_size is not None for shard in shards):
        where = "parameters in shards (tensor parallel, sharding version 2)"
        raise ValueError(f"`fused=True` does not support {where}: use None or False. Received: fused=True")
