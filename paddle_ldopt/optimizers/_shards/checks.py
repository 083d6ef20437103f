"""Errors for parameters and options that Paddle's wrappers cannot handle in shards."""

from typing import Any

from ..._paddle import is_sharded, sharding_setting, topology, weight_decay_fun_is_replaced


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
