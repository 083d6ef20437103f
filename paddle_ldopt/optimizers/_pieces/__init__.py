"""The pieces of parameters under tensor parallelism and sharding version 2: geometry, sums over pieces, search."""

from .finder import PieceFinder, refuse_sharded_groups, unknown_parameter
from .missing import MissingGradients
from .piece import Piece, answer_locally, answer_together

__all__ = ["MissingGradients", "Piece", "PieceFinder", "answer_locally", "answer_together", "refuse_sharded_groups"]
__all__ += ["unknown_parameter"]
