"""`Layer`, and `LayerDecay`: how learning rates fall from the head to the embeddings."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from .._checks import Option, checked_bool, checked_int, checked_number, checked_patterns, first_few, matches, refusal

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
        return 0 < self.index <= self.depth

    @property
    def is_head(self) -> bool:
        return self.index > self.depth

    @property
    def label(self) -> str:
        """The layer's name: "embeddings", "block 3" (from 0, as in the model's names) or "head"."""
        outside = "head" if self.index else "embeddings"
        return f"block {self.index - 1}" if self.is_block else outside


def lowest(layers: Iterable[Layer]) -> Layer:
    return min(layers, key=lambda layer: layer.index - layer.depth)


# With layer ids 0 = embeddings, 1..n = blocks, n + 1 = head: (d, layer id, n) -> ratio, for all ids but the head's.
CONVENTIONS: dict[str, Callable[[float, int, int], float]] = {
    "paddlenlp": lambda d, i, n: d ** (n + 1 - i),  # top block d, embeddings d^(n+1): BEiT's LayerDecayValueAssigner
    "electra": lambda d, i, n: d ** (n + 2 - i),  # one more power of d: google-research/electra calls this off by one
    "xlnet": lambda d, i, n: d ** (n - i if i else 0),  # top block 1, embeddings undecayed: zihangdai/xlnet
    "ernie_vl": lambda d, i, n: d ** (n - max(i, 1)),  # top block 1, embeddings as block 0: ERNIEKit's `vit_lr_ratio`
    # a straight line, as in ERNIEKit: embeddings and first block at the bound, the head 3 steps above the top block
    "linear": lambda bound, i, n: bound + max(i - 1, 0) / (n + 2) * (1 - bound),
}


def checked_decay(value: Any, argument: str = "layerwise_decay") -> float:
    return checked_number(value, argument, 0.0, 1.0, "(]", "a number in (0, 1]; 1 is the same rate for all layers")


def _checked_multipliers(value: Any, name: str) -> Optional[dict[str, float]]:
    patterns = checked_patterns(value, name, "factors")
    return {key: checked_number(factor, f"{name}[{key!r}]") for key, factor in patterns.items()} or None


def _checked_towers(value: Any, name: str) -> Optional[dict[str, "LayerDecay"]]:
    if not isinstance(value, dict) or not all(isinstance(tower, str) and tower for tower in value):
        raise refusal(TypeError, f"`{name}` must be a dict from the names of towers to decays.", **{name: value})
    towers = {}
    for tower, decay in value.items():
        try:
            towers[tower] = LayerDecay(**decay) if isinstance(decay, dict) else as_decay(decay)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`{name}`: the decay of the tower '{tower}': {error}") from error
        for option in ("towers", "multipliers", "preserve_mean"):
            if getattr(towers[tower], option) != OPTIONS[option].default:
                wrong = f"`{option}` is an option of the whole model, not of a tower of `{name}`."
                raise refusal(ValueError, wrong, **{tower: towers[tower]})
    return towers or None


def _option(default: Any, doc: str, *limits: Any, **fields: Any) -> Any:
    is_dict = fields["optional"] = default is None  # which cannot be hashed
    option = Option(default, doc, *limits, **fields)
    return dataclasses.field(default=default, hash=not is_dict, metadata={"option": option})


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""A layer-wise decay of the learning rate with all its options; accepted wherever `layerwise_decay` is.

    .. math::
        r_i = s \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = s \cdot \text{head\_ratio}

    for a tower of n blocks. The ratio of a parameter is r_i times its multiplier.

    Args:
        layerwise_decay: d, the ratio between the rates of neighbouring layers, in (0, 1].
        convention: the formula of the ratios, a key of `CONVENTIONS`: "paddlenlp" (as BEiT), "electra", "xlnet",
            "ernie_vl", or "linear", a straight line without d: :math:`b + (i - 1) (1 - b) / (n + 2)` as in ERNIEKit.
        min_ratio: lower bound of the ratios, in [0, 1].
        head_ratio: ratio of the head, above 0; often above 1 for a newly initialised head.
        freeze_below: blocks and embeddings with a ratio below this, in [0, 1], are frozen: neither weights nor state
            change. `scale`, `preserve_mean` and `multipliers` do not count.
        bound: b of the convention "linear", in (0, 1].
        scale: s, above 0; multiplies all ratios outside `towers`, including the head's.
        preserve_mean: divide all ratios by their mean over the blocks of all towers, so that a rate tuned for uniform
            training fits any decay. The mean leaves out `scale`, multipliers and frozen blocks.
        towers (dict): name of a part of the model with its own blocks, such as "vision_model.encoder" -> its decay: a
            number, a `LayerDecay`, or a dict of options. A tower inherits no option.
        multipliers (dict): regular expression (`re.search` in the structured name) -> factor of the ratio, at least 0;
            0 freezes. The last pattern that matches counts. Alone, multipliers need no blocks.

    Examples:
        >>> from paddle_ldopt import LayerDecay
        >>> [LayerDecay(0.5).ratio(i, n_layers=2) for i in range(4)]
        [0.125, 0.25, 0.5, 1.0]
    """

    layerwise_decay: float = _option(1.0, "ratio to the layer above; 1 is off", 0.0, 1.0, "(]", check=checked_decay)
    convention: str = _option("paddlenlp", "formula of the ratios", choices=CONVENTIONS)
    min_ratio: float = _option(0.0, "smallest ratio (rate of a layer / learning rate)", 0.0, 1.0)
    head_ratio: float = _option(1.0, "ratio of the head", ends="()")
    freeze_below: float = _option(0.0, "freeze layers with a ratio below this value", 0.0, 1.0)
    bound: float = _option(1.0, "lowest ratio of the convention 'linear'", 0.0, 1.0, "(]")
    scale: float = _option(1.0, "factor of all ratios outside `towers`", ends="()")
    preserve_mean: bool = _option(False, "divide all ratios by their mean over the blocks", check=checked_bool)
    towers: Optional[dict[str, "LayerDecay"]] = _option(
        None, "decay of each tower of blocks", check=_checked_towers, values='a dict such as {"vision_model": 0.65}'
    )
    multipliers: Optional[dict[str, float]] = _option(
        None, "factors of ratios by pattern of names", check=_checked_multipliers, values='a dict such as {"crf": 10.0}'
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.checked(getattr(self, name), name))
        linear, bounded = self.convention == "linear", self.bound != 1.0
        if linear != bounded or (linear and self.layerwise_decay != 1.0):
            only = "takes `bound` below 1 (layerwise_bound) instead of `layerwise_decay`; no other takes it."
            given = {name: getattr(self, name) for name in ("layerwise_decay", "convention", "bound")}
            raise refusal(ValueError, f"The convention 'linear' {only}", **given)

    def ratio(self, layer_id: int, n_layers: int) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks."""
        checked_int(layer_id, "layer_id"), checked_int(n_layers, "n_layers", 1)
        mean = self._mean(self._unscaled(i, n_layers) for i in range(1, n_layers + 1))
        return self._unscaled(layer_id, n_layers) * self.scale / mean

    def ratios(self, layers: Mapping[str, Layer]) -> dict[str, float]:
        """Return structured name -> ratio, given the layer of each parameter; see `LayerMap.ratios`."""
        decays = {"": self, **(self.towers or {})}
        places, unscaled = dict[str, tuple[str, Layer]](), dict[tuple[str, Layer], float]()
        for name, layer in layers.items():  # in the outermost tower of its path, then the longest
            known = [tower for tower in self.towers or () if f".{tower}." in f".{name}"]
            tower = min(known, key=lambda tower: (f".{name}".find(f".{tower}."), -len(tower)), default="")
            places[name] = tower, layer
            unscaled[tower, layer] = decays[tower]._unscaled(layer.index, layer.depth)
        blocks = [(tower, layer) for tower, layer in unscaled if layer.is_block]
        for tower in decays.keys() - {"", *(tower for tower, _ in blocks)}:
            stacks = dict.fromkeys(layer.tower for layer in layers.values() if layer.is_block)
            why = f"The model has no blocks in a part of this name (its stacks are {first_few(stacks)})"
            raise refusal(ValueError, f"{why}: use `multipliers` for parts without blocks.", towers=tower)
        if not blocks and (self.layerwise_decay, self.bound) != (1.0, 1.0):
            why = "The model has no blocks that a decay could follow: give `rules`, or `multipliers` with a decay of 1."
            raise refusal(ValueError, why, layerwise_decay=self, names=[*layers][:3])
        mean, factors = self._mean(unscaled[block] for block in blocks), self.factors(layers)
        scaled = {place: ratio * decays[place[0]].scale / mean for place, ratio in unscaled.items()}
        return {name: scaled[place] * factors.get(name, 1.0) for name, place in places.items()}

    def factors(self, names: Iterable[str]) -> dict[str, float]:
        """Return structured name -> its multiplier, for names that a pattern matches; raise for one without match."""
        multipliers = self.multipliers or {}
        found = matches(multipliers, names, "multipliers")
        return {name: multipliers[pattern] for pattern, matched in found.items() for name in matched}

    def _unscaled(self, layer_id: int, n_layers: int) -> float:
        if layer_id > n_layers:
            return self.head_ratio
        d = self.bound if self.convention == "linear" else self.layerwise_decay
        ratio = max(CONVENTIONS[self.convention](d, layer_id, n_layers), self.min_ratio)
        return 0.0 if ratio < self.freeze_below else ratio

    def _mean(self, ratios: Iterable[float]) -> float:
        trained = [ratio for ratio in ratios if ratio]  # of blocks that are not frozen
        return math.fsum(trained) / len(trained) if self.preserve_mean and trained else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return option -> value for JSON; `LayerDecay(**options)` restores the decay."""
        towers: dict[str, Any] = {}  # a number, or the options other than defaults
        for tower, decay in (self.towers or {}).items():
            options = {name: value for name, value in vars(decay).items() if value != OPTIONS[name].default}
            towers[tower] = decay.layerwise_decay if options.keys() <= {"layerwise_decay"} else options
        return {**vars(self), "towers": towers or None, "multipliers": self.multipliers and dict(self.multipliers)}


Decay = Union[float, LayerDecay]
OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(LayerDecay)}


def as_decay(layerwise_decay: Decay) -> LayerDecay:
    return layerwise_decay if isinstance(layerwise_decay, LayerDecay) else LayerDecay(layerwise_decay)
