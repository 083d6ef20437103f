"""LayerDecay: how learning rates fall from the head to the embeddings."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Callable, Optional, Union

from paddle import Tensor

from .._checks import Option, checked_bool, checked_choice, checked_int, checked_number
from .._messages import refusal, unknown
from .decay_checks import OF_THE_WHOLE_MODEL, check_decay, checked_multipliers, idle_options

Ratio = Union[float, Tensor]  # a Tensor in a static graph
# With layer ids 0 = embeddings, 1..n = blocks, n + 1 = head: (d, layer id, n) -> ratio, for all ids but the head's.
CONVENTIONS: dict[str, Callable[[float, int, int], float]] = {
    # top block d, embeddings d^(n+1), as in BEiT's LayerDecayValueAssigner
    "paddlenlp": lambda d, i, n: d ** (n + 1 - i),
    # one more power of d throughout, as in google-research/electra, whose own comment calls this off by one
    "electra": lambda d, i, n: d ** (n + 2 - i),
    # top block 1, embeddings undecayed, as in zihangdai/xlnet
    "xlnet": lambda d, i, n: d ** (n - i if i else 0),
    # top block 1, embeddings with the first block, as ERNIEKit's `vit_lr_ratio`
    "ernie_vl": lambda d, i, n: d ** (n - max(i, 1)),
    # a straight line, as in ERNIEKit: embeddings and first block at the bound, the head 3 steps above the top block
    "linear": lambda bound, i, n: bound + max(i - 1, 0) / (n + 2) * (1 - bound),
}


def _option(default: Any, doc: str, *limits: Any, **fields: Any) -> Any:
    """Return a field of `LayerDecay` with its declaration, which settings, command line and docs read."""
    fields["optional"] = default is None
    return dataclasses.field(default=default, metadata={"option": Option(default, doc, *limits, **fields)})


def _built_towers(value: Any, name: str) -> dict[str, "LayerDecay"]:
    """Return tower -> `LayerDecay`, built from a number or a dict of options; raise for other values."""
    if not isinstance(value, dict) or not value or not all(isinstance(tower, str) and tower for tower in value):
        problem = f"`{name}` must be a non-empty dict from the names of towers to decays."
        raise refusal(TypeError, problem, **{name: value})
    towers = {}
    for tower, decay in value.items():
        for option in decay.keys() - OPTIONS.keys() if isinstance(decay, dict) else ():
            raise ValueError(f"`{name}`: {unknown('option of LayerDecay', option, decay[option], OPTIONS)}")
        try:
            towers[tower] = LayerDecay(**decay) if isinstance(decay, dict) else as_decay(decay)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`{name}`: the decay of the tower '{tower}': {error}") from error
        for option in OF_THE_WHOLE_MODEL:
            if getattr(towers[tower], option) != OPTIONS[option].default:
                problem = f"`{option}` is an option of the whole model, not of a tower of `{name}`."
                raise refusal(ValueError, problem, **{tower: towers[tower]})
    return towers


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""A layer-wise decay of the learning rate with all its options; accepted wherever `layerwise_decay` is.

    .. math::
        r_i = s \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = s \cdot \text{head\_ratio}

    for a tower of n blocks. The ratio of a parameter is r_i times all multipliers that match its name. `preserve_mean`
    divides r_i by its mean over the blocks.

    Args:
        layerwise_decay: d, the ratio between the rates of neighbouring layers, in (0, 1].
        convention: the exponent of each layer. "paddlenlp" (as BEiT); "electra" (one more power of d, except for the
            head); "xlnet" (top block and embeddings at the full rate); "ernie_vl" (top block at the full rate, the
            embeddings share the first block's ratio); or "linear", a straight line without d:
            :math:`b + (i - 1) (1 - b) / (n + 2)` as in ERNIEKit, with embeddings and first block at b.
        min_ratio: lower bound of the ratios, in [0, 1].
        head_ratio: ratio of the head, above 0; often above 1 for a newly initialised head.
        freeze_below: freeze layers with a ratio below this, in [0, 1]: neither their weights nor their optimizer state
            change. Cannot be combined with `min_ratio` or `end`.
        bound: b of the convention "linear", in (0, 1].
        scale: s, above 0; multiplies all ratios, including the head's. With `towers`, it multiplies only the ratios
            outside the towers.
        end: final value of d, in (0, 1]: :math:`(1 - p) d + p \cdot end` after a fraction p of
            the steps.
        steps: number of steps until d reaches `end`, at least 1. None: all steps of the run, if the schedule or the
            Trainer knows their number.
        preserve_mean: divide all ratios by their mean over the blocks of all towers, so that a rate tuned for uniform
            training fits any decay. The mean leaves out `scale`, multipliers and the blocks that `freeze_below`
            freezes.
        towers (dict): name of a part of the model with its own blocks ("vision_model", or a dotted name such as
            "vision_model.encoder") -> its decay: a number, a `LayerDecay`, or a dict of options.
        multipliers (dict): regular expression (`re.search` in the structured name) -> factor of the ratio, at least 0;
            0 freezes. The factors of all matching patterns are multiplied.

    Raises:
        TypeError, ValueError: an option of the wrong type, out of range, or without effect given the others.

    Examples:
        >>> from paddle_ldopt import LayerDecay
        >>> [LayerDecay(0.5).ratio(i, n_layers=2) for i in range(4)]
        [0.125, 0.25, 0.5, 1.0]
        >>> [LayerDecay(0.5, "electra", min_ratio=0.1, head_ratio=2).ratio(i, n_layers=2) for i in range(4)]
        [0.1, 0.125, 0.25, 2.0]
        >>> [LayerDecay(convention="linear", bound=0.2).ratio(i, n_layers=2) for i in range(4)]
        [0.2, 0.2, 0.4, 1.0]
        >>> [LayerDecay(0.5, preserve_mean=True).ratio(i, n_layers=2) for i in (1, 2)]
        [0.6666666666666666, 1.3333333333333333]
        >>> [LayerDecay(0.5, end=1.0).ratio(1, n_layers=1, progress=p) for p in (0, 0.5, 1)]
        [0.5, 0.75, 1.0]
    """

    layerwise_decay: float = _option(
        1.0, "rate of a layer / rate of the layer above; 1 is off", 0.0, 1.0, "(]", check=check_decay
    )
    convention: str = _option(
        "paddlenlp",
        "formula of the ratios (rate of a layer / learning rate)",
        check=lambda value, name: checked_choice(value, name, CONVENTIONS),
        values=" or ".join(CONVENTIONS),
    )
    min_ratio: float = _option(0.0, "smallest ratio", 0.0, 1.0)
    head_ratio: float = _option(1.0, "ratio of the head", ends="()")
    freeze_below: float = _option(0.0, "freeze layers with a ratio below this value", 0.0, 1.0)
    bound: float = _option(1.0, "lowest ratio of the convention 'linear'", 0.0, 1.0, "(]")
    scale: float = _option(1.0, "factor of all ratios outside `towers`", ends="()")
    end: Optional[float] = _option(None, "decay at the end of the training", 0.0, 1.0, "(]")
    steps: Optional[int] = _option(
        None,
        "steps until the decay reaches `end` (default: all)",
        check=lambda value, name: checked_int(value, name, 1),
        values="an int from 1",
    )
    preserve_mean: bool = _option(False, "divide all ratios by their mean over the blocks", check=checked_bool)
    towers: Optional[dict[str, "LayerDecay"]] = _option(
        None,
        "decay of each tower (a part of the model with its own blocks)",
        check=_built_towers,
        values='a dict such as {"vision_model": 0.65}',
    )
    multipliers: Optional[dict[str, float]] = _option(
        None,
        "factor of the ratios of parameters whose names match a pattern",
        check=checked_multipliers,
        values='a dict such as {"crf": 10.0}',
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.checked(getattr(self, name), name))
        for problem in idle_options(vars(self), OPTIONS):
            raise ValueError(problem)

    def __hash__(self) -> int:  # without the dicts, which cannot be hashed
        return hash((self.layerwise_decay, self.convention, self.min_ratio, self.head_ratio, self.freeze_below))

    def ratio(self, layer_id: int, n_layers: int, progress: float = 0.0) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks.

        `progress` is the fraction of the training steps taken, in [0, 1]. Towers and multipliers are not applied: they
        depend on the parameter (`LayerMap.ratio_fn`).
        """
        checked_number(progress, "progress", 0.0, 1.0)
        if checked_int(layer_id, "layer_id") > checked_int(n_layers, "n_layers", 1) + 1:
            beyond = "`layer_id` must be at most `n_layers` + 1, the head."
            raise refusal(ValueError, beyond, layer_id=layer_id, n_layers=n_layers)
        if self.preserve_mean and self.towers:
            problem = "The mean over the blocks of several towers needs a layer map: use `LayerMap.ratio_fn`."
            raise refusal(ValueError, problem, towers=self.towers)
        blocks = (self.unscaled_ratio(i, n_layers, progress) for i in range(1, n_layers + 1))
        mean = mean_of(blocks) if self.preserve_mean else 1.0
        return self.unscaled_ratio(layer_id, n_layers, progress) * self.scale / mean

    def unscaled_ratio(self, layer_id: int, n_layers: int, progress: Ratio = 0.0) -> Ratio:
        """Return the ratio of a layer before scale, multipliers and mean; `progress` may be a static graph's value."""
        if layer_id > n_layers:
            return self.head_ratio
        d = self.bound if self.convention == "linear" else self.layerwise_decay
        if self.end is not None:
            d = (1.0 - progress) * d + progress * self.end
        ratio: Ratio = CONVENTIONS[self.convention](d, layer_id, n_layers)
        if self.min_ratio:
            ratio = ratio.clip(self.min_ratio) if hasattr(ratio, "clip") else max(ratio, self.min_ratio)
        return 0.0 if self.freeze_below and ratio < self.freeze_below else ratio

    @property
    def moves(self) -> bool:
        """Whether the ratios change during training."""
        return any(decay.end is not None for decay in (self, *(self.towers or {}).values()))

    def to_dict(self) -> dict[str, Any]:
        """Return option -> value for JSON; `LayerDecay(**options)` restores the decay."""
        towers = {name: decay.to_tower() for name, decay in self.towers.items()} if self.towers else None
        return {**vars(self), "towers": towers, "multipliers": self.multipliers and dict(self.multipliers)}

    def to_tower(self) -> Union[float, dict[str, Any]]:
        """Return the short form for the `towers` of another decay: a number, or the options other than defaults."""
        options = {name: value for name, value in vars(self).items() if value != OPTIONS[name].default}
        return self.layerwise_decay if options.keys() <= {"layerwise_decay"} else options


Decay = Union[float, LayerDecay]
OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(LayerDecay)}


def mean_of(ratios: Iterable[Ratio]) -> float:
    """Return the mean of the ratios other than 0; 1 if all are 0."""
    trained = [ratio for ratio in ratios if not isinstance(ratio, float) or ratio]
    return sum(trained) / len(trained) if trained else 1.0


def as_decay(layerwise_decay: Decay) -> LayerDecay:
    """Return a `LayerDecay`: convert a number, return a `LayerDecay` unchanged."""
    return layerwise_decay if isinstance(layerwise_decay, LayerDecay) else LayerDecay(layerwise_decay)
