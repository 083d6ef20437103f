"""An optimizer's state for Paddle's distributed checkpoints: each tensor with its offset in the whole parameter.

`paddle.distributed.save_state_dict` and `load_state_dict` move such a dict between any two layouts. As in Paddle's
AdamW, keys are structured names: "<parameter>.<state>_0", and "<parameter>.w_0" for the float32 master.
"""

import math
from typing import Any, Optional

from paddle import Tensor

from ... import _paddle
from ..._paddle import create_state, prefixed
from ..states import ELEMENT, ROW, SCALAR, STEP


def sharded_state(optimizer: Any, model_sharded_state_dict: dict[str, Any], shards: Any) -> dict[str, Any]:
    """Return key -> ShardedWeight of an optimizer's state; see `LayerwiseOptimizer.sharded_state_dict`."""
    keys: dict[str, str] = {}
    for key in sorted(model_sharded_state_dict):  # of tied parameters the first name, as Paddle's AdamW
        keys.setdefault(model_sharded_state_dict[key].local_tensor.name, key)
    params = [p for p in _paddle.parameters_of(optimizer) if not p.stop_gradient and _paddle.is_allocated(p)]
    unknown = [param.name for param in params if param.name not in keys]
    if unknown:
        wrong = "`model_sharded_state_dict` must name every parameter of the optimizer: give that of its model."
        raise ValueError(f"{wrong} Received: nothing for '{unknown[0]}' ({len(unknown)} of {len(params)})")
    create_state(optimizer, [p for p in params if optimizer.layerwise_ratio(p) != 0.0])
    sharded = {}
    for param in params:
        if shards is not None and param.name not in shards:
            continue  # only padding
        shard = shards and shards[param.name]
        weight = model_sharded_state_dict[keys[param.name]]
        for name, (value, kind) in _state_of(optimizer, param).items():
            key = f"{keys[param.name]}.{name}_0"
            sharded[key] = _placed(key, value, kind, weight, shard)
    return sharded


def _state_of(optimizer: Any, param: Tensor) -> dict[str, tuple[Any, str]]:
    """Return state name -> (Tensor, kind) of a parameter, with its master as "w"."""
    kinds, prefix = {**optimizer.state_kinds(param), STEP: SCALAR}, prefixed(optimizer)
    owner = _paddle.masters(optimizer).get(param.name, param)
    tensors = {name[len(prefix) :]: values.get(owner.name) for name, values in _paddle.accumulators(optimizer).items()}
    state = {name: (value, kinds[name]) for name, value in tensors.items() if value is not None}
    return state if owner is param else {**state, "w": (owner, ELEMENT)}


def _placed(key: str, value: Any, kind: str, weight: Any, shard: Optional[tuple[int, int]]) -> Any:
    """Return the ShardedWeight of a state of the parameter that `weight` describes."""
    ShardedWeight = type(weight)
    places = [tuple(place) for place in (weight.local_shape, weight.global_shape, weight.global_offset)]
    if kind == SCALAR or not places[0]:
        return ShardedWeight(key, value, tuple(value.shape), tuple(value.shape), (0,) * len(value.shape))
    if kind == ELEMENT and shard is not None:
        begin, end = shard
        if value.shape[0] > end - begin:
            value = _paddle.slice_of(value, 0, end - begin)  # without the padding; shares memory, to be loaded into
        _check_size(value, key, end - begin)
        return ShardedWeight(key, value, *places, is_flattened=True, flattened_range=slice(begin, end))
    if kind != ELEMENT:  # every process has that of the whole parameter
        shape = places[1][:-1] if kind == ROW else (*places[1][:-2], places[1][-1])
        places = [shape, shape, (0,) * len(shape)]
    _check_size(value, key, math.prod(places[0]))
    return ShardedWeight(key, value, *places)


def _check_size(value: Any, key: str, size: int) -> None:
    if value.size != size:
        raise ValueError(
            f"The state '{key}' belongs to a shard of the parameter whose offset is unknown here: save with "
            "`paddle_ldopt.parallel.save_checkpoint`, which asks the wrapper. "
            f"Received: {value.size} elements, not {size}"
        )
