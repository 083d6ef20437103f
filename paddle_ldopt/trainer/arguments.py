"""The layer-wise arguments of a fine-tuning, mixed into the TrainingArguments of PaddleNLP or PaddleFormers."""

import dataclasses
import re
from typing import Any, Optional

from ..decay import LayerDecay
from ..registry import REGISTRY
from . import schedules
from .optimizers import OFF, name_of

__all__ = ["RULE_FIELDS", "LdoptArgumentsMixin", "OptimizerName", "SchedulerName", "check_mixed_in_first"]

RULE_FIELDS = {  # our argument -> field of LayerDecay
    "layerwise_lr_decay": "layerwise_decay",
    "layerwise_convention": "convention",
    "layerwise_min_ratio": "min_ratio",
    "layerwise_head_ratio": "head_ratio",
    "layerwise_freeze_below": "freeze_below",
}
_Arguments: Any = object  # for type checkers: the TrainingArguments that follow in the bases
_ARGUMENT_OF = {field: argument for argument, field in RULE_FIELDS.items()}
_FIELD = re.compile(r"(?<=`)({0})(?=`)|(?<=Received: )({0})(?==)".format("|".join(_ARGUMENT_OF)))


class _Name(str):
    @property
    def value(self):
        """The name as a plain string."""
        return str(self)


class OptimizerName(_Name):
    """Name of an optimizer that the Trainer's own enum does not have; like a member of it, it has a `value`."""


class SchedulerName(_Name):
    """Name of a schedule that the Trainer's own enum does not have; like a member of it, it has a `value`."""


def check_mixed_in_first(cls, mixin, method):
    """Raise TypeError if `cls` takes `method` from a base that comes before `mixin` and knows nothing of it."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    if not issubclass(owner, mixin):
        raise TypeError(
            f"{mixin.__name__} must come first: class {cls.__name__}({mixin.__name__}, {owner.__name__}). "
            f"Received: class {cls.__name__}({', '.join(base.__name__ for base in cls.__bases__)})"
        )


@dataclasses.dataclass
class LdoptArgumentsMixin(_Arguments):
    """Give TrainingArguments the layer-wise arguments, and `optim` and `lr_scheduler_type` the names of ours.

    Args:
        layerwise_lr_decay (float, optional): ratio of the rates of neighbouring layers, in (0, 1]; 1 is off. 0.8 to
            0.95 are usual.
        layerwise_convention (str, optional): which power of it each layer gets: "paddlenlp", "electra" or "xlnet".
        layerwise_min_ratio (float, optional): floor of the ratios, in [0, 1].
        layerwise_head_ratio (float, optional): ratio of the head, above 0; has an effect without a decay, too.
        layerwise_freeze_below (float, optional): layers with a ratio below it are frozen, in [0, 1].
        allow_layerwise_change (bool, optional): resume even if the checkpoint has another rule or layer map.
        optim (str, optional): one of `list_optimizers`, or any that the Trainer has; all get the layer-wise rates.
        lr_scheduler_type (str, optional): any `SchedulerType`. "linear", "cosine", "constant", "constant_with_warmup"
            and "polynomial" stay the Trainer's own (with its `num_cycles`, `lr_end`, `power`) unless
            `lr_scheduler_kwargs` are given. "reduce_lr_on_plateau" and "greedy" take a step after every evaluation, on
            `metric_for_best_model` (the loss if None); `greater_is_better` says which way is better.
        lr_scheduler_kwargs (str, optional): a JSON object with what else the schedule takes, as
            `scheduler_specific_kwargs` of `get_scheduler`: ``--lr_scheduler_kwargs '{"num_cycles": 3}'``.

    Raises:
        ValueError: a value out of range or of the wrong type; an option that would change nothing; an unknown
            optimizer or schedule; a schedule that follows a metric and no `evaluation_strategy`. All are found before
            anything else happens.
        TypeError: at the definition of the class, if the mixin does not come first.

    Examples:
        .. code-block:: python

            from dataclasses import dataclass
            from paddlenlp.trainer import PdArgumentParser, TrainingArguments
            from paddle_ldopt.trainer import LdoptArgumentsMixin

            @dataclass
            class MyArguments(LdoptArgumentsMixin, TrainingArguments):
                pass

            # --output_dir out --optim adamwdl --layerwise_lr_decay 0.8
            (args,) = PdArgumentParser(MyArguments).parse_args_into_dataclasses()
            args.layerwise_rule  # LayerDecay(layerwise_decay=0.8, convention='paddlenlp', ...)
    """

    layerwise_lr_decay: float = dataclasses.field(
        default=1.0, metadata={"help": "Ratio of the learning rates of neighbouring layers, in (0, 1]; 1.0 is off."}
    )
    layerwise_convention: str = dataclasses.field(
        default="paddlenlp", metadata={"help": "Which power of the decay each layer gets: paddlenlp, electra or xlnet."}
    )
    layerwise_min_ratio: float = dataclasses.field(
        default=0.0, metadata={"help": "Floor of the layers' learning-rate ratios, in [0, 1]."}
    )
    layerwise_head_ratio: float = dataclasses.field(
        default=1.0, metadata={"help": "Learning-rate ratio of the head, above 0."}
    )
    layerwise_freeze_below: float = dataclasses.field(
        default=0.0, metadata={"help": "Freeze the layers whose ratio is below this, in [0, 1]."}
    )
    allow_layerwise_change: bool = dataclasses.field(
        default=False, metadata={"help": "Resume even if the checkpoint was trained with other layer-wise settings."}
    )
    lr_scheduler_kwargs: Optional[str] = dataclasses.field(
        default=None, metadata={"help": "What else the schedule takes, as JSON: '{\"num_cycles\": 3}'."}
    )

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, LdoptArgumentsMixin, "__post_init__")

    def __post_init__(self):
        _check_rule(self)
        args: Any = self
        schedules.check_schedule(args)
        optim, kind = name_of(args.optim), name_of(args.lr_scheduler_type)
        ours = kind in schedules.SCHEDULERS and kind not in schedules.BUILT_IN
        if optim in REGISTRY:
            args.optim = "adamw"  # the enum of the Trainer refuses names it does not have
        if ours:
            args.lr_scheduler_type = "linear"
        try:
            super().__post_init__()
        except ValueError as error:
            _tell_our_names(error, optim, kind)
            raise
        if optim in REGISTRY:
            args.optim = OptimizerName(optim)
        if ours:
            args.lr_scheduler_type = SchedulerName(kind)
        schedules.check_evaluation(args)

    @property
    def layerwise_rule(self):
        """The `LayerDecay` that the arguments make together."""
        return LayerDecay(**{field: getattr(self, argument) for argument, field in RULE_FIELDS.items()})


def _tell_our_names(error, optim, kind):
    """Raise the Trainer's error about an unknown name with our names in it; return if it is about something else."""
    for enum, names, received in (
        ("OptimizerNames", REGISTRY, f"optim={optim!r}"),
        ("SchedulerType", schedules.SCHEDULERS, f"lr_scheduler_type={kind!r}"),
    ):
        if enum in str(error):
            own = ", ".join(map(repr, names))
            raise ValueError(f"{error}, or of paddle_ldopt's own: {own}. Received: {received}") from error


def _check_rule(args):
    """Raise ValueError, in terms of the arguments, if they make no rule or one of them has no effect."""
    try:
        rule = args.layerwise_rule
    except (TypeError, ValueError) as error:
        raise ValueError(_FIELD.sub(lambda match: _ARGUMENT_OF[match.group()], str(error))) from None
    for argument, field in RULE_FIELDS.items():
        value = getattr(rule, field)
        if rule.layerwise_decay == 1.0 and field != "head_ratio" and value != getattr(OFF, field):
            raise ValueError(
                f"`{argument}` has no effect while `layerwise_lr_decay` is 1: every layer has a ratio of 1 (the head "
                f"`layerwise_head_ratio`). Received: {argument}={value!r}"
            )
    if rule.min_ratio and rule.freeze_below:
        raise ValueError(
            "`layerwise_min_ratio` and `layerwise_freeze_below` exclude each other: what the floor lifts is either "
            f"frozen all the same or nothing is. Received: layerwise_min_ratio={rule.min_ratio!r}, "
            f"layerwise_freeze_below={rule.freeze_below!r}"
        )
