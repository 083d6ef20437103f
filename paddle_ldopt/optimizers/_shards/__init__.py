"""The shards of parameters under tensor parallelism and sharding version 2: geometry, sums over shards, search."""

from .finder import ShardFinder
from .missing import MissingGradients
from .shard import Shard, run_locally, run_together

__all__ = ["MissingGradients", "Shard", "ShardFinder", "run_locally", "run_together"]
