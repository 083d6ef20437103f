"""The shards of parameters under tensor parallelism and sharding version 2: geometry, sums over shards, search."""

from .finder import ShardFinder, refuse_sharded_groups, unknown_parameter
from .missing import MissingGradients
from .shard import Shard, run_locally, run_together

__all__ = ["MissingGradients", "Shard", "ShardFinder", "run_locally", "run_together", "refuse_sharded_groups"]
__all__ += ["unknown_parameter"]
