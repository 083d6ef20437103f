"""ERNIEKit's and PaddleFormers' own arguments for layer-wise rates, as options of `LayerDecay`.

ERNIEKit passes them to Paddle's AdamW as `lr_ratio`, which Paddle refuses on a CPU. The numbers come from its
trainers (erniekit/train/dpo/trainer.py, erniekit/train/vl_sft/pretraining_trainer.py).
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._checks import checked_number, refusal
from ..layers.decay import OPTIONS, LayerDecay
from .decay_settings import SETTINGS

_GATE = r"^ernie\.layers\.0\.mlp\.gate\.weight$"
_VISION = '`layerwise_towers`, such as {"vision_model": {"layerwise_decay": 0.9, "convention": "ernie_vl"}}'


class _Argument(NamedTuple):
    neutral: Any  # the value without effect
    options: tuple[str, ...]  # options of `LayerDecay` that it excludes
    settings: str  # the equivalent settings of `LdoptConfig`


ARGUMENTS = {
    "layerwise_lr_decay_bound": _Argument(
        1.0,
        ("layerwise_decay", "convention", "bound", "min_ratio"),
        "`layerwise_bound` and layerwise_convention='linear'",
    ),
    "vit_lr_ratio": _Argument(None, ("towers",), _VISION),
    "visual_ld": _Argument(None, ("towers",), _VISION),  # another name for `vit_lr_ratio`, which overrides it
    "moe_gate_lr_ratio": _Argument(None, ("multipliers",), "`layerwise_multipliers`"),
}


def with_erniekit(decay: LayerDecay, args: Any) -> LayerDecay:
    """Return a decay extended by ERNIEKit's arguments, the same decay if none is set.

    - `layerwise_lr_decay_bound`: the convention "linear";
    - `vit_lr_ratio`: the convention "ernie_vl" of the tower "vision_model";
    - `moe_gate_lr_ratio`: a multiplier of the router in the first block.

    Raise TypeError or ValueError for a value out of range, or an option that the decay already sets.
    """
    arguments = _active_arguments(args)
    for argument, value in arguments.items():
        for option in ARGUMENTS[argument].options:
            present = getattr(decay, option)
            if present != OPTIONS[option].default:
                ours = SETTINGS[option]
                message = f"`{argument}` and `{ours}` exclude each other."
                raise refusal(ValueError, message, **{argument: value, ours: present})
    options: dict[str, Any] = {}
    if "layerwise_lr_decay_bound" in arguments:
        options.update(convention="linear", bound=arguments["layerwise_lr_decay_bound"])
    vision = arguments.get("vit_lr_ratio", arguments.get("visual_ld"))
    if vision is not None:
        options["towers"] = {"vision_model": LayerDecay(vision, "ernie_vl")}
    if "moe_gate_lr_ratio" in arguments:
        options["multipliers"] = {_GATE: arguments["moe_gate_lr_ratio"]}
    return dataclasses.replace(decay, **options) if options else decay


@contextlib.contextmanager
def left_to_us(args: Any) -> Iterator[None]:
    """Set the arguments to neutral values, so that ERNIEKit's `create_optimizer` passes no `lr_ratio` to AdamW."""
    before = {name: getattr(args, name) for name in ARGUMENTS if hasattr(args, name)}
    try:
        for name in before:
            setattr(args, name, ARGUMENTS[name].neutral)
        yield
    finally:
        for name, value in before.items():
            setattr(args, name, value)


def _active_arguments(args: Any) -> dict[str, float]:
    """Return the arguments with an effect, and their values."""
    values = {name: getattr(args, name, None) for name in ARGUMENTS}
    if values["vit_lr_ratio"]:
        del values["visual_ld"]
    numbers = {}
    for name, value in values.items():
        if value is not None:
            high = math.inf if name == "moe_gate_lr_ratio" else 1.0
            numbers[name] = checked_number(value, name, 0.0, high, "(]")
    return {name: number for name, number in numbers.items() if number != 1.0}
