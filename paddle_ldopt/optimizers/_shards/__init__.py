"""The shards of parameters under tensor parallelism and sharding version 2: geometry, sums over shards, search."""

from .checks import refuse_replaced_weight_decay, refuse_sharded_groups
from .finder import ShardFinder
from .missing import MissingGradients
from .shard import Shard, run_locally, run_together

__all__ = ["MissingGradients", "Shard", "ShardFinder", "refuse_replaced_weight_decay"]
__all__ += ["refuse_sharded_groups", "run_locally", "run_together"]
