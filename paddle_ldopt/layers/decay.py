"""Layer id -> learning-rate ratio: the conventions of the field by name, and a decay for any Paddle optimizer."""

import dataclasses
import math
from typing import Callable

from .._checks import checked_number, shown
from .paddlenlp_hook import check_decay

# With layer ids 0 = embeddings, 1..n = blocks, n + 1 = head: the exponent of the decay for all ids but the head's,
# whose ratio is 1 in every convention.
CONVENTIONS: dict[str, Callable[[int, int], int]] = {
    # top block d, embeddings d^(n+1); the numbers of BEiT's LayerDecayValueAssigner too
    "paddlenlp": lambda layer_id, n: n + 1 - layer_id,
    # one power lower throughout, as in google-research/electra, where it is acknowledged to be off by one
    "electra": lambda layer_id, n: n + 2 - layer_id,
    # top block 1, embeddings undecayed, as in zihangdai/xlnet
    "xlnet": lambda layer_id, n: n - layer_id if layer_id else 0,
}


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""Say how the learning rate falls from layer to layer; goes wherever `layerwise_decay` is taken beside `layers`.

    .. math::
        r_i = \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = \text{head\_ratio}

    Args:
        layerwise_decay (float): d, the ratio of the rates of neighbouring layers, in (0, 1].
        convention (str, optional): which power each layer gets: "paddlenlp" (the same numbers as BEiT), "electra" (one
            power lower for all but the head) or "xlnet" (top block and embeddings at the full rate).
        min_ratio (float, optional): floor of the ratios, in [0, 1].
        head_ratio (float, optional): ratio of the head, above 0; often more than 1 for a newly initialised one.
        freeze_below (float, optional): layers whose ratio is below it are frozen (ratio 0: neither the weights nor the
            optimizer's state change), in [0, 1].

    Raises:
        TypeError, ValueError: a value of the wrong type or out of range, an unknown convention.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import LayerDecay
            >>> [LayerDecay(0.5).ratio(i, n_layers=2) for i in range(4)]
            [0.125, 0.25, 0.5, 1.0]
            >>> [LayerDecay(0.5, "electra", min_ratio=0.1, head_ratio=2).ratio(i, n_layers=2) for i in range(4)]
            [0.1, 0.125, 0.25, 2.0]
    """

    layerwise_decay: float
    convention: str = "paddlenlp"
    min_ratio: float = 0.0
    head_ratio: float = 1.0
    freeze_below: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layerwise_decay", check_decay(self.layerwise_decay))
        if not isinstance(self.convention, str) or self.convention not in CONVENTIONS:
            known = ", ".join(map(repr, CONVENTIONS))
            raise ValueError(f"`convention` must be one of {known}. Received: convention={shown(self.convention)}")
        for field in ("min_ratio", "head_ratio", "freeze_below"):
            high, ends = (math.inf, "()") if field == "head_ratio" else (1.0, "[]")
            object.__setattr__(self, field, checked_number(getattr(self, field), field, 0.0, high, ends))

    def ratio(self, layer_id: int, n_layers: int) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks."""
        if layer_id > n_layers:
            return self.head_ratio
        power = self.layerwise_decay ** CONVENTIONS[self.convention](layer_id, n_layers)
        ratio = max(power, self.min_ratio)
        return 0.0 if ratio < self.freeze_below else ratio
