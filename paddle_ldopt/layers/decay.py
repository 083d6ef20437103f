"""LayerDecay: how the learning rate falls from layer to layer, by the conventions of the field."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional, Union

from .._checks import Option, checked_bool, checked_choice, checked_int, checked_number
from .._messages import refusal, unknown
from .paddlenlp_hook import check_decay

# With layer ids 0 = embeddings, 1..n = blocks, n + 1 = head: (decay, layer id, n) -> ratio, for all ids but the head's.
CONVENTIONS: dict[str, Callable[[float, int, int], float]] = {
    # top block d, embeddings d^(n+1); the numbers of BEiT's LayerDecayValueAssigner too
    "paddlenlp": lambda decay, i, n: decay ** (n + 1 - i),
    # one power lower throughout, as in google-research/electra, where it is acknowledged to be off by one
    "electra": lambda decay, i, n: decay ** (n + 2 - i),
    # top block 1, embeddings undecayed, as in zihangdai/xlnet
    "xlnet": lambda decay, i, n: decay ** (n - i if i else 0),
    # top block 1, embeddings with the first block, as ERNIEKit's `vit_lr_ratio`
    "ernie_vl": lambda decay, i, n: decay ** (n - max(i, 1)),
    # a line up from the bound, as in ERNIEKit: embeddings and first block at the bound, the head 3 parts above the top
    "linear": lambda bound, i, n: bound + max(i - 1, 0) / (n + 2) * (1 - bound),
}


_OF_THE_WHOLE = ("towers", "multipliers", "preserve_mean", "steps")  # options that a tower cannot have


def _option(default: Any, doc: str, *limits: Any, **how: Any) -> Any:
    """Return a field of `LayerDecay` with its declaration, which settings, command line and tables read."""
    how["optional"] = default is None
    return dataclasses.field(default=default, metadata={"option": Option(default, doc, *limits, **how)})


def _checked_towers(value: Any, name: str) -> dict[str, "LayerDecay"]:
    if not isinstance(value, dict) or not value or not all(isinstance(tower, str) and tower for tower in value):
        raise refusal(
            TypeError, f"`{name}` must be a dict from the names of towers to decays, not empty.", **{name: value}
        )
    towers = {}
    for tower, decay in value.items():
        if isinstance(decay, dict):
            for option in decay.keys() - OPTIONS.keys():
                raise ValueError(f"`{name}`: {unknown('option of LayerDecay', option, decay[option], OPTIONS)}")
            build = functools.partial(LayerDecay, **decay)
        else:
            build = functools.partial(as_decay, decay)
        try:
            towers[tower] = build()
        except (TypeError, ValueError) as error:
            raise type(error)(f"`{name}`: the decay of the tower '{tower}': {error}") from error
        for option in _OF_THE_WHOLE:
            if getattr(towers[tower], option) != OPTIONS[option].default:
                whole = f"`{option}` is for the whole model: a tower of `{name}` cannot have it."
                raise refusal(ValueError, whole, **{tower: towers[tower]})
    return towers


def _checked_multipliers(value: Any, name: str) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise refusal(TypeError, f"`{name}` must be a dict from regular expressions to factors.", **{name: value})
    for pattern, factor in value.items():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise refusal(ValueError, f"`{name}` must map regular expressions ({error}).", pattern=pattern) from error
        if checked_number(factor, name) == 1.0:
            raise refusal(ValueError, f"A factor of 1 in `{name}` has no effect: leave it out.", **{name: value})
    return {pattern: checked_number(factor, name) for pattern, factor in value.items()}


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""The fall of the learning rate from layer to layer; goes wherever `layerwise_decay` is taken beside `layers`.

    .. math::
        r_i = s \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = s \cdot \text{head\_ratio}

    of a tower with n blocks; each matching multiplier multiplies it, and `preserve_mean` divides all by the mean over
    the blocks.

    Args:
        layerwise_decay: d, the ratio of the rates of neighbouring layers, in (0, 1].
        convention: which power each layer gets: "paddlenlp" (the same numbers as BEiT), "electra" (one power lower for
            all but the head), "xlnet" (top block and embeddings at the full rate), "ernie_vl" (top block at the full
            rate, embeddings at that of the first block), or "linear", without a decay:
            :math:`b + (i - 1) (1 - b) / (n + 2)` as in ERNIEKit, with the embeddings at b as the first block.
        min_ratio: floor of the ratios, in [0, 1].
        head_ratio: ratio of the head, above 0; often more than 1 for a newly initialised one.
        freeze_below: layers whose ratio is below it, in [0, 1], are frozen (ratio 0: neither the weights nor the
            optimizer's state change). It excludes `min_ratio` and `end`.
        bound: b of the convention "linear", in (0, 1].
        scale: s, a factor above 0 of all ratios, of the head's too. In a decay with `towers`: of what is outside.
        end: what d goes to over the training, in (0, 1]: :math:`(1 - p) d + p \cdot end` at the share p of the steps.
        steps: the steps until d is at `end`, from 1. None: all steps of the training, where the schedule or the Trainer
            knows their number.
        preserve_mean: divide all ratios by their mean over the blocks of all towers but those that `freeze_below`
            freezes, multipliers aside, so that a rate that is tuned for uniform training holds for any decay.
        towers (dict): name of a part of the model with blocks of its own ("vision_model", "backbone", several parts of
            a dotted name) -> its decay: a number, a `LayerDecay`, or a dict of options. The rest keeps this one.
        multipliers (dict): regular expression (`re.search` in the structured name) -> factor of the ratio, at least 0;
            0 freezes. Each that matches counts.

    Raises:
        TypeError, ValueError: an option of the wrong type or out of range, or one that has no effect beside the others.

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
    bound: float = _option(1.0, "lowest ratio of the convention 'linear'", 0.0, 1.0, "(]")
    scale: float = _option(1.0, "factor of all ratios outside of towers", ends="()")
    end: Optional[float] = _option(None, "decay at the end of the training", 0.0, 1.0, "(]")
    steps: Optional[int] = _option(
        None,
        "steps until the decay is at its end",
        check=lambda value, name: checked_int(value, name, 1),
        kind="an int from 1",
    )
    preserve_mean: bool = _option(False, "divide all ratios by their mean over the blocks", check=checked_bool)
    towers: Optional[dict[str, "LayerDecay"]] = _option(
        None, "decay of each tower", check=_checked_towers, kind="a dict from names to decays"
    )
    multipliers: Optional[dict[str, float]] = _option(
        None, "factors by name", check=_checked_multipliers, kind="a dict from regular expressions to factors"
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.checked(getattr(self, name), name))
        for problem in idle_options(vars(self), dict(zip(OPTIONS, OPTIONS))):
            raise ValueError(problem)

    def __hash__(self) -> int:  # the dicts have none
        return hash((self.layerwise_decay, self.convention, self.min_ratio, self.head_ratio, self.freeze_below))

    def ratio(self, layer_id: int, n_layers: int, progress: float = 0.0) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks.

        `progress` is the share of the training that is over, in [0, 1]. Towers and multipliers are by parameter:
        `LayerMap.ratio_fn` knows them.
        """
        checked_number(progress, "progress", 0.0, 1.0)
        if checked_int(layer_id, "layer_id") > checked_int(n_layers, "n_layers", 1) + 1:
            beyond = "`layer_id` must be at most `n_layers` + 1, the head."
            raise refusal(ValueError, beyond, layer_id=layer_id, n_layers=n_layers)
        mean = 1.0
        if self.preserve_mean:
            if self.towers:
                by_map = "The mean over the blocks of several towers needs their map: use `LayerMap.ratio_fn`."
                raise refusal(ValueError, by_map, towers=self.towers)
            mean = mean_of(self.own_ratio(i, n_layers, progress) for i in range(1, n_layers + 1))
        return self.own_ratio(layer_id, n_layers, progress) / mean

    def own_ratio(self, layer_id: int, n_layers: int, progress: float = 0.0) -> float:
        """Return the ratio of a layer before multipliers and mean, as if the model had this tower only.

        It is a value of a static graph if `progress` is.
        """
        if layer_id > n_layers:
            return self.head_ratio * self.scale
        decay = self.bound if self.convention == "linear" else self.layerwise_decay
        if self.end is not None:
            decay = (1.0 - progress) * decay + progress * self.end
        ratio: Any = CONVENTIONS[self.convention](decay, layer_id, n_layers)
        if self.min_ratio:
            ratio = ratio.clip(self.min_ratio) if hasattr(ratio, "clip") else max(ratio, self.min_ratio)
        return 0.0 if self.freeze_below and ratio < self.freeze_below else ratio * self.scale

    @property
    def moves(self) -> bool:
        """Whether the ratios change in the course of the training."""
        return any(decay.end is not None for decay in (self, *(self.towers or {}).values()))

    def to_dict(self) -> dict[str, Any]:
        """Return all options by their names, as JSON can hold them; `LayerDecay(**options)` is equal."""
        towers = {name: decay.to_tower() for name, decay in self.towers.items()} if self.towers else None
        return {**vars(self), "towers": towers, "multipliers": self.multipliers and dict(self.multipliers)}

    def to_tower(self) -> Union[float, dict[str, Any]]:
        """Return what stands for the decay in the `towers` of another: its number, or the options that it sets."""
        options = {name: value for name, value in vars(self).items() if value != OPTIONS[name].default}
        return self.layerwise_decay if options.keys() <= {"layerwise_decay"} else options


OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(LayerDecay)}


def idle_options(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each option that has no effect beside the others; `names` spells them for the caller."""

    def is_set(option: str) -> bool:
        return bool(values[option] != OPTIONS[option].default)

    def idle(why: str, *options: str) -> Iterator[str]:
        for option in filter(is_set, options):
            message = f"`{names[option]}` has no effect {why}."
            yield str(refusal(ValueError, message, **{names[option]: values[option]}))

    def exclude(first: str, second: str, why: str) -> Iterator[str]:
        if is_set(first) and is_set(second):
            both = {names[option]: values[option] for option in (first, second)}
            yield str(refusal(ValueError, f"`{names[first]}` and `{names[second]}` exclude each other: {why}.", **both))

    decay, end, towers = values["layerwise_decay"], values["end"], values["towers"] or {}
    if values["convention"] == "linear":
        yield from idle(f"with a linear decay: its `{names['bound']}` says all", "layerwise_decay", "end", "min_ratio")
        if not is_set("bound"):
            yield str(refusal(ValueError, f"A linear decay needs `{names['bound']}` below 1.", **{names["bound"]: 1.0}))
    else:
        yield from idle(f"unless `{names['convention']}` is 'linear'", "bound")
        if decay == 1.0 and end is None:
            why = f"every layer has a ratio of 1 (the head `{names['head_ratio']}`)"
            options = ("convention", "min_ratio", "freeze_below", *([] if towers else ["preserve_mean"]))
            yield from idle(f"while `{names['layerwise_decay']}` is 1: {why}", *options)
        elif end == decay:
            yield from idle("if the decay has this value from the beginning", "end")
    yield from exclude("min_ratio", "freeze_below", "a floor leaves nothing to freeze, or has no effect")
    yield from exclude("end", "freeze_below", "frozen layers stay frozen")
    if values["preserve_mean"] and not towers:
        yield from idle(f"beside `{names['preserve_mean']}`, which divides by it again", "scale")
    if end is None and all(tower.end is None for tower in towers.values()):
        yield from idle(f"without `{names['end']}`", "steps")
    own = {name: value for name, value in values.items() if name not in _OF_THE_WHOLE}
    for name, tower in towers.items():
        if own == {option: getattr(tower, option) for option in own}:
            same = f"A tower of `{names['towers']}` has no effect if its decay is that of the rest."
            yield str(refusal(ValueError, same, **{name: tower.to_tower()}))


def mean_of(ratios: Any) -> float:
    """Return the mean of the ratios that are not 0, 1 if there is none."""
    trained = [ratio for ratio in ratios if not isinstance(ratio, float) or ratio]
    return sum(trained) / len(trained) if trained else 1.0


def as_decay(layerwise_decay: Union[float, LayerDecay]) -> LayerDecay:
    """Return a number as the `LayerDecay` with that decay, a `LayerDecay` as it is."""
    return layerwise_decay if isinstance(layerwise_decay, LayerDecay) else LayerDecay(layerwise_decay)
