"""Finds the shard of each parameter that a process has, after `fleet` has wrapped the optimizer."""

import copy
import dataclasses
import itertools
import math
from typing import Any, Optional

import paddle.distributed as dist
from paddle import Tensor

from ..._paddle import is_allocated, topology
from .shard import Shard

_INSTEAD = "instead of group sharding of level 'p_g_os' use 'os_g', or sharding of stage 1"


class ShardFinder:
    """The parameters of an optimizer before any wrapper, and the shards that this process has."""

    def __init__(self, params: list[Tensor]) -> None:
        self.params = {param.name: param for param in params}
        self._shapes = {name: list(param.shape) for name, param in self.params.items()}
        self._found: dict[str, Shard] = {}
        self._found_for: tuple[Any, Any] = (None, None)  # the parameter list and the topology of `_found`

    def __deepcopy__(self, memo: Any) -> "ShardFinder":
        return ShardFinder(copy.deepcopy(list(self.params.values()), memo))  # the copies have other names

    def shape(self, param: Tensor) -> list[int]:
        """Return the shape of the whole parameter, of which `param` may be a shard."""
        shape = self._shapes.get(param.name)
        if shape is None:
            return list(param.shape)
        split = self._split(self.params[param.name])
        return shape if split is None else [n * split[2] if i == split[0] else n for i, n in enumerate(shape)]

    def original(self, param: Tensor) -> Any:
        """Return the parameter of the same name, of which `param` may be a slice; raise if it is unknown."""
        if self.params and param.name not in self.params:
            raise ValueError(
                f"The optimizer was not built with '{param.name}': a wrapper has fused parameters into buffers or cut "
                f"them up. Set sharding_configs.tensor_fusion=False; {_INSTEAD}. "
                f"Received: '{param.name}' of shape {list(param.shape)}"
            )
        return self.params.get(param.name, param)

    def check(self, param: Tensor) -> None:
        """Raise unless the optimizer was built with a parameter, or it is a flat slice of such a parameter."""
        original = self.original(param)
        shape, built_with = list(param.shape), self._shapes[param.name]
        if shape != built_with if param is original else len(shape) != 1:
            raise ValueError(
                f"'{param.name}' had another shape when the optimizer was built, and is not a slice of sharding stage "
                "1. Build the optimizer after the model is complete; "
                f"{_INSTEAD}. Received: shape={shape}, built with {built_with}"
            )

    def find(self, parameter_list: Any) -> dict[str, Shard]:
        """Return name -> `Shard` of the parameters of a step; the optimizer's list may hold slices.

        Every process of a group must call this in the same step: the first call gathers the slices of all.
        """
        if self._found_for[0] is not parameter_list or self._found_for[1] is not topology():
            if self.is_sliced(parameter_list):
                shards = {name: self._sliced(name, spans) for name, spans in self._gather(parameter_list).items()}
            else:
                shards = {name: self._unsliced(param) for name, param in self.params.items()}
            self._found = {name: shard for name, shard in shards.items() if shard is not None}
            self._found_for = parameter_list, topology()
        return self._found

    def is_whole(self, parameter_list: Any) -> bool:
        """Return whether this process has each parameter whole; it waits for no other process."""
        if self.is_sliced(parameter_list):
            return False
        return all(not shard.groups and shard.slice_size is None for shard in self.find(parameter_list).values())

    def is_sliced(self, parameter_list: Any) -> bool:
        """Return whether sharding with `split_param` has replaced the parameters by slices."""
        name = getattr(parameter_list[0], "name", None) if parameter_list else None  # a group has none
        return name in self.params and parameter_list[0] is not self.params[name]

    def _unsliced(self, param: Tensor, slice_size: Optional[int] = None) -> Shard:
        """Return the shard of a parameter that is whole, or split only by tensor parallelism."""
        split = self._split(param)
        groups = () if split is None else (topology().get_model_parallel_group(),)
        return Shard(self.shape(param), split, groups=groups, slice_size=slice_size)

    def _split(self, param: Tensor) -> Optional[tuple[int, int, int]]:
        """Return (axis, index, parts) of a tensor-parallel parameter, None for others."""
        hcg = topology()
        if hcg is None or hcg.get_model_parallel_world_size() == 1 or not getattr(param, "is_distributed", False):
            return None
        axis = getattr(param, "split_axis", None)
        if axis is None:
            raise ValueError(
                "A tensor-parallel parameter needs the axis that it is split along, as in Paddle's layers: "
                f"set `split_axis`. Received: '{param.name}' with is_distributed=True and no split_axis"
            )
        return axis, hcg.get_model_parallel_rank(), hcg.get_model_parallel_world_size()

    def _gather(self, parameter_list: Any) -> dict[str, list[tuple[int, int]]]:
        """Return name -> [(begin, end) of the flattened parameter that each process of the sharding group holds]."""
        sizes = {param.name: param.shape[0] for param in parameter_list if is_allocated(param)}
        all_sizes: list[dict[str, int]] = []
        dist.all_gather_object(all_sizes, sizes, group=topology().get_sharding_parallel_group())
        slices = {}
        for name, shape in self._shapes.items():
            size, ends = math.prod(shape), [0, *itertools.accumulate(sizes.get(name, 0) for sizes in all_sizes)]
            if 0 < ends[-1] < size:
                parts = f"The slices of '{name}' in the sharding group do not cover the parameter."
                raise ValueError(f"{parts} Received: slices of {ends[-1]} elements, shape={shape}")
            if ends[-1]:  # padding follows the last element
                slices[name] = [(min(begin, size), min(end, size)) for begin, end in zip(ends, ends[1:])]
        return slices

    def _sliced(self, name: str, spans: list[tuple[int, int]]) -> Optional[Shard]:
        """Return this process's `Shard` of a sliced parameter, None if another process has all of it."""
        begin, end = spans[topology().get_sharding_parallel_rank()]
        shard = self._unsliced(self.params[name], slice_size=end - begin)
        if (0, math.prod(self._shapes[name])) in spans:
            return None if begin == end else shard
        span = (begin, end) if begin < end else (0, 0)
        return dataclasses.replace(shard, span=span, groups=(topology().get_sharding_parallel_group(), *shard.groups))
