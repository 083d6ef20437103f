"""The layer of one parameter, and what is known of its name."""

import dataclasses

HEAD = -1  # stands for the layer id until the depth is known
STATISTICS = ("_mean", "_variance")  # of batch normalization; parameters to Paddle


class NoBlocksError(ValueError):
    """No blocks were found in a model, or no part of it is known to be one."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """The layer of one parameter."""

    tower: str  #: name of its stack of blocks; "" for parameters of several towers
    index: int  #: layer id within the tower: 0 = embeddings, 1..depth = blocks, depth + 1 = head
    depth: int  #: number of blocks of the tower; of the deepest one for parameters of several towers

    @property
    def is_block(self) -> bool:
        """Whether the layer is a block."""
        return 0 < self.index <= self.depth

    @property
    def is_head(self) -> bool:
        """Whether the layer is the head."""
        return self.index > self.depth

    @property
    def label(self) -> str:
        """The layer's name: "embeddings", "block 3" (from 0, as in the model's names) or "head"."""
        if self.is_block:
            return f"block {self.index - 1}"
        return "head" if self.index else "embeddings"
