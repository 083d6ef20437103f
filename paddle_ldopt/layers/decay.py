"""LayerDecay: layer id -> ratio of the layer's learning rate, by the conventions of the field."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Union

from .._checks import Option, checked_choice
from .._messages import refusal
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


def _option(default: Any, doc: str, *limits: Any, **how: Any) -> Any:
    """Return a field of `LayerDecay` with its declaration, which settings, command line and tables read."""
    return dataclasses.field(default=default, metadata={"option": Option(default, doc, *limits, **how)})


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""The fall of the learning rate from layer to layer; goes wherever `layerwise_decay` is taken beside `layers`.

    .. math::
        r_i = \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = \text{head\_ratio}

    Args:
        layerwise_decay: d, the ratio of the rates of neighbouring layers, in (0, 1].
        convention: which power each layer gets: "paddlenlp" (the same numbers as BEiT), "electra" (one power lower for
            all but the head) or "xlnet" (top block and embeddings at the full rate).
        min_ratio: floor of the ratios, in [0, 1].
        head_ratio: ratio of the head, above 0; often more than 1 for a newly initialised one.
        freeze_below: layers whose ratio is below it, in [0, 1], are frozen (ratio 0: neither the weights nor the
            optimizer's state change). It excludes `min_ratio`.

    Raises:
        TypeError, ValueError: an option of the wrong type or out of range, or one that has no effect beside the others.

    Examples:
        >>> from paddle_ldopt import LayerDecay
        >>> [LayerDecay(0.5).ratio(i, n_layers=2) for i in range(4)]
        [0.125, 0.25, 0.5, 1.0]
        >>> [LayerDecay(0.5, "electra", min_ratio=0.1, head_ratio=2).ratio(i, n_layers=2) for i in range(4)]
        [0.1, 0.125, 0.25, 2.0]
    """

    layerwise_decay: float = _option(
        1.0, "ratio of the rates of neighbouring layers; 1 is off", 0.0, 1.0, "(]", check=check_decay
    )
    convention: str = _option(
        "paddlenlp",
        "power of the decay in each layer",
        check=lambda value, name: checked_choice(value, name, CONVENTIONS),
        kind=" or ".join(CONVENTIONS),
    )
    min_ratio: float = _option(0.0, "floor of the ratios", 0.0, 1.0)
    head_ratio: float = _option(1.0, "ratio of the head", ends="()")
    freeze_below: float = _option(0.0, "layers whose ratio is below it are frozen", 0.0, 1.0)

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.checked(getattr(self, name), name))
        for problem in idle_options(vars(self), dict(zip(OPTIONS, OPTIONS))):
            raise ValueError(problem)

    def ratio(self, layer_id: int, n_layers: int) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks."""
        if layer_id > n_layers:
            return self.head_ratio
        ratio = max(self.layerwise_decay ** CONVENTIONS[self.convention](layer_id, n_layers), self.min_ratio)
        return 0.0 if ratio < self.freeze_below else ratio


OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(LayerDecay)}


def idle_options(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each option that has no effect beside the others; `names` spells them for the caller."""
    decay, limits = values["layerwise_decay"], ("min_ratio", "freeze_below")
    for option in ("convention", *limits) if decay == 1.0 else ():
        if values[option] != OPTIONS[option].default:
            why = f"every layer has a ratio of 1 (the head `{names['head_ratio']}`)."
            idle = f"`{names[option]}` has no effect while `{names['layerwise_decay']}` is 1: {why}"
            yield str(refusal(ValueError, idle, **{names[option]: values[option]}))
    if all(values[option] for option in limits):
        why = "a floor above the limit leaves nothing to freeze, a floor below it has no effect."
        exclude = f"{' and '.join(f'`{names[option]}`' for option in limits)} exclude each other: {why}"
        yield str(refusal(ValueError, exclude, **{names[option]: values[option] for option in limits}))


def as_decay(layerwise_decay: Union[float, LayerDecay]) -> LayerDecay:
    """Return a number as the `LayerDecay` with that decay, a `LayerDecay` as it is."""
    return layerwise_decay if isinstance(layerwise_decay, LayerDecay) else LayerDecay(layerwise_decay)
