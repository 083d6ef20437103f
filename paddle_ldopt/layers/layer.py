"""The layer of one parameter, and what is known of its name."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

from .._messages import wrong_type

if TYPE_CHECKING:
    from .map import LayerMap

EMBEDDINGS = 0  # the layer id
HEAD = -1  # stands for the layer id until the depth is known
STATISTICS = ("_mean", "_variance")  # of batch normalization; parameters to Paddle
# names of lists of blocks
STACK_NAMES = frozenset(
    ["layers", "layer", "h", "block", "blocks", "stages", "stage", "resblocks", "encoders", "decoders"]
)


@dataclasses.dataclass(frozen=True)
class Layer:
    """The layer of one parameter."""

    tower: str  #: name of its stack of blocks; "" for parameters of several towers
    index: int  #: layer id within the tower: 0 = embeddings, 1..depth = blocks, depth + 1 = head
    depth: int  #: number of blocks of the tower; of the deepest one for parameters of several towers
    unit: str = "block"  #: "block", or with a granularity "stage" or "group"

    @property
    def kind(self) -> str:
        """Former name of `unit`."""
        return self.unit

    @property
    def is_block(self) -> bool:
        """Whether the layer is a block (or stage, or group)."""
        return 0 < self.index <= self.depth

    @property
    def is_head(self) -> bool:
        """Whether the layer is the head."""
        return self.index > self.depth

    @property
    def label(self) -> str:
        """The layer's name: "embeddings", "block 3" (from 0, as in the model's names) or "head"."""
        if self.is_block:
            return f"{self.unit} {self.index - 1}"
        return "head" if self.index else "embeddings"


def structured_names(name_dict: Any, layers: Optional["LayerMap"]) -> Mapping[str, str]:
    """Return the structured names of `name_dict` or a LayerMap, {} without them; raise if `name_dict` is no dict."""
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise wrong_type(name_dict, "name_dict", "a dict from each parameter's `name` to its structured name")
    return name_dict or getattr(layers, "name_dict", None) or {}


def name_before_copy(name: str, is_known: Callable[[str], bool]) -> str:
    """Return the known name of a parameter that Paddle renamed when it was copied; any other name unchanged."""
    original, is_copy = name, "_deepcopy_"
    while is_copy and not is_known(original):
        original, is_copy, _ = original.rpartition("_deepcopy_")
    return original or name
