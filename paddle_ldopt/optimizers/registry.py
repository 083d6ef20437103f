"""The table of our optimizers: adding one is one file and one row."""

import dataclasses

from .._checks import nearest, shown
from ..optimizers import Adafactor, AdamWDL, AdamWeightDecay, Came, Lamb

_ADAM = {"beta1": "adam_beta1", "beta2": "adam_beta2", "epsilon": "adam_epsilon"}


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """One row of the table.

    Args:
        cls (type): the class.
        summary (str): when to choose it, and bytes of state a parameter.
        weight_decay (str): what the class calls its weight decay.
        trainer (dict[str, str]): argument of the class -> field of a Trainer's arguments that it is taken from.
        external_rate (dict): arguments it needs to take its rate from outside.
        own_exclusion (tuple[str]): arguments by which it says itself what is decayed.
    """

    cls: type
    summary: str
    weight_decay: str = "weight_decay"
    trainer: dict = dataclasses.field(default_factory=dict)
    external_rate: dict = dataclasses.field(default_factory=dict)
    own_exclusion: tuple = ()


REGISTRY = {
    "adamwdl": OptimizerInfo(AdamWDL, "AdamW, layer by layer: the choice for fine-tuning; 8 bytes", trainer=_ADAM),
    "came": OptimizerInfo(
        Came,
        "large language models in half of AdamW's memory; needs a warm-up; 4 bytes",
        trainer={"beta1": "adam_beta1"},
    ),
    "lamb": OptimizerInfo(
        Lamb, "batches of thousands; 8 bytes", trainer={"beta1": "adam_beta1", "beta2": "adam_beta2"}
    ),
    "adafactor": OptimizerInfo(
        Adafactor,
        "T5 and its kin, almost without memory; below 0.02 bytes",
        external_rate={"relative_step": False, "scale_parameter": False},
    ),
    "adamweightdecay": OptimizerInfo(
        AdamWeightDecay,
        "numbers of TensorFlow's BERT fine-tuning; 8 bytes",
        weight_decay="weight_decay_rate",
        own_exclusion=("include_in_weight_decay", "exclude_from_weight_decay"),
        trainer={"beta_1": "adam_beta1", "beta_2": "adam_beta2", "epsilon": "adam_epsilon"},
    ),
}


def list_optimizers():
    """Return the names that `create` and the Trainer's ``--optim`` know.

    Examples:
        .. code-block:: python

            >>> import paddle_ldopt as ldopt
            >>> "adamwdl" in ldopt.list_optimizers()
            True
    """
    return list(REGISTRY)


def optimizer_class(name):
    """Return the class of an optimizer of ours by its name; raise ValueError if none has it."""
    if not isinstance(name, str) or name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY)) + nearest(name, REGISTRY)
        raise ValueError(f"`name` must be one of {known}. Received: name={shown(name)}")
    return REGISTRY[name].cls
