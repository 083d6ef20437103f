"""Layer-wise arguments for the TrainingArguments of PaddleNLP and PaddleFormers."""

import dataclasses
import warnings
from typing import Any, Optional

from .._messages import refusal, shown
from ..config import (
    BUILT_IN,
    DecaySettings,
    LdoptConfig,
    builds_schedule,
    json_argument,
    name_of,
    settings_of,
    settings_of_arguments,
    with_erniekit,
)
from ..create import OFF
from ..layers.decay import LayerDecay
from ..optimizers.registry import REGISTRY
from ..schedules.kinds import SCHEDULES
from . import lr_scheduler
from .shared import check_mixed_in_first
from .types import Args


class _Name(str):
    """A name with the `value` that a member of the Trainer's enum has."""

    value = property(str)


class OptimizerName(_Name):
    """The name of one of our optimizers in `optim`."""


class SchedulerName(_Name):
    """The name of one of our schedules in `lr_scheduler_type`."""


_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")  # the Trainer's own

# Argument -> our names, the Trainer's enum, a name in this enum, the class of ours. The enum refuses our names.
_CHOICES: dict[str, tuple[Any, str, str, type[_Name]]] = {
    "optim": (REGISTRY, "OptimizerNames", "adamw", OptimizerName),
    "lr_scheduler_type": (SCHEDULES, "SchedulerType", "linear", SchedulerName),
}


def _as_argument(setting: Any) -> tuple[str, Any, Any]:
    """Return name, type and field of a setting of `LdoptConfig` as an argument; a dict becomes JSON in a string."""
    is_dict = "dict" in str(setting.type)
    field = dataclasses.field(default=None if is_dict else setting.default, metadata=setting.metadata)
    return setting.name, Optional[str] if is_dict else setting.type, field


# The settings with a help text, which every Trainer lacks. `LdoptConfig` is frozen, so it cannot be a base class here.
_SETTINGS = [_as_argument(setting) for setting in dataclasses.fields(LdoptConfig) if "help" in setting.metadata]
_Settings: Any = dataclasses.make_dataclass("_Settings", _SETTINGS, bases=(DecaySettings,))


@dataclasses.dataclass
class LdoptArgumentsMixin(_Settings, Args):
    """Add the layer-wise arguments to TrainingArguments, and our names to `optim` and `lr_scheduler_type`.

    Args:
        layerwise_lr_decay: 1 is off, 0.65 to 0.95 is usual. Every other option of `LayerDecay` is an argument too, such
            as `layerwise_min_ratio`. `layerwise_head_ratio` also works without a decay.
        allow_layerwise_change: resume even if the checkpoint has another decay or layer map.
        optim (str): a name of `list_optimizers` or of the Trainer; every optimizer gets the layer-wise rates.
        optim_kwargs: other options of an optimizer of `list_optimizers`, as a JSON object:
            ``--optim_kwargs '{"clip_threshold": 2.0}'``. The Trainer's own arguments (`adam_beta1`...) stay in use.
        layerwise_rules: the `rules` of `LayerMap.from_model`, as a JSON object; so are `layerwise_towers` and
            `layerwise_multipliers`: ``--layerwise_towers '{"vision_model": 0.65, "text_model": {"scale": 0.1}}'``.
        lr_scheduler_type (str): any `SchedulerType`. "linear", "cosine", "constant", "constant_with_warmup" and
            "polynomial" are the Trainer's own (with its `num_cycles`, `lr_end`, `power`) unless `lr_scheduler_kwargs`
            are given. "reduce_lr_on_plateau" and "greedy" take a step after every evaluation, following
            `metric_for_best_model` (the loss if None) in the direction of `greater_is_better`.
        lr_scheduler_kwargs: the `scheduler_specific_kwargs` of `get_scheduler`, as a JSON object.

    Raises:
        ValueError: values out of range or of the wrong type, unknown names.
        RuntimeError: a Trainer without `LdoptTrainerMixin`, which would ignore the arguments, is constructed.
        TypeError: at the definition of the class, if the mixin does not come first.

    Examples:
        >>> from dataclasses import dataclass
        >>> from paddlenlp.trainer import PdArgumentParser, TrainingArguments
        >>> from paddle_ldopt.trainer import LdoptArgumentsMixin
        >>> @dataclass
        ... class MyArguments(LdoptArgumentsMixin, TrainingArguments):
        ...     pass
        >>> line = "--output_dir out --device cpu --optim adamwdl --layerwise_lr_decay 0.8"
        >>> (args,) = PdArgumentParser(MyArguments).parse_args_into_dataclasses(line.split())
        >>> args.layerwise_decay.layerwise_decay
        0.8
    """

    allow_layerwise_change: bool = dataclasses.field(
        default=False, metadata={"help": "resume even if the checkpoint has other layer-wise settings"}
    )

    ldopt_served = False  # whether a Trainer with our mixin has received the arguments

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, LdoptArgumentsMixin, "__post_init__")

    def __post_init__(self) -> None:
        _warn_of_unused(self)
        given = {argument: name_of(getattr(self, argument)) for argument in _CHOICES}
        ours = {}
        for argument, (names, _, theirs, cls) in _CHOICES.items():
            if given[argument] in names and given[argument] not in BUILT_IN:
                ours[argument] = cls(given[argument])
                setattr(self, argument, theirs)
        try:
            super().__post_init__()
        except ValueError as error:
            for argument, (names, enum, *_) in _CHOICES.items():
                if enum in str(error):  # the Trainer's error about an unknown name
                    message = f"{error}, or of paddle_ldopt's own: {', '.join(map(repr, names))}."
                    raise refusal(ValueError, message, **{argument: given[argument]}) from error
            raise
        for argument, name in ours.items():
            setattr(self, argument, name)
        lr_scheduler.check_evaluation(self)
        self._check()

    def _check(self) -> None:
        """Raise for a wrong setting."""
        optim, options = name_of(self.optim), json_argument(self, "optim_kwargs")
        info, settings = REGISTRY.get(optim), settings_of_arguments(self)
        if info is None:  # the Trainer builds its own
            if options:
                message = f"`optim_kwargs` need `optim` to be one of {', '.join(map(repr, REGISTRY))}."
                raise refusal(ValueError, message, optim=optim, optim_kwargs=self.optim_kwargs)
            settings.update(optim="adamw", optim_kwargs={})
        else:
            fields = {**info.trainer, "multi_precision": "fp16_opt_level"}
            for field in [fields[info.setting(name)] for name in options if info.setting(name) in fields]:
                message = f"`{field}` sets this option: leave it out of `optim_kwargs`."
                raise refusal(ValueError, message, **{field: getattr(self, field)}, optim_kwargs=self.optim_kwargs)
        LdoptConfig(**settings)

    @property
    def layerwise_decay(self) -> LayerDecay:
        """The `LayerDecay` of all arguments, ERNIEKit's own included."""
        return with_erniekit(super().layerwise_decay, self)

    @property
    def should_load_sharding_stage1_model(self) -> Any:
        """The Trainer's own property, which its constructor reads.

        Raises:
            RuntimeError: the Trainer lacks `LdoptTrainerMixin`.
        """
        if not self.ldopt_served:
            self._check_unused()
        return super().should_load_sharding_stage1_model

    def print_config(self, *args: Any, **kwargs: Any) -> None:
        """Print the arguments as the Trainer does, which reads every property."""
        before, self.ldopt_served = self.ldopt_served, True
        try:
            super().print_config(*args, **kwargs)
        finally:
            self.ldopt_served = before

    def __getstate__(self) -> dict[str, Any]:  # a copy is for another Trainer
        return {key: value for key, value in vars(self).items() if key != "ldopt_served"}

    def _check_unused(self) -> None:
        """Raise if our arguments are used, which a Trainer without our mixin would silently ignore."""
        settings, off = settings_of(super().layerwise_decay), settings_of(OFF)
        chosen = {name: value for name, value in settings.items() if value != off[name]}
        if name_of(self.optim) in REGISTRY:
            chosen["optim"] = name_of(self.optim)
        if builds_schedule(self):
            chosen["lr_scheduler_type"] = name_of(self.lr_scheduler_type)
        if chosen:
            message = "The Trainer lacks LdoptTrainerMixin and would ignore these arguments"
            raise refusal(RuntimeError, f"{message}: class MyTrainer(LdoptTrainerMixin, Trainer).", **chosen)


def mark_received(args: Args) -> None:
    """Mark our arguments as received by a Trainer with our mixin; leave other objects alone."""
    if isinstance(args, LdoptArgumentsMixin):
        args.ldopt_served = True


def _warn_of_unused(args: Args) -> None:
    """Warn of the Trainer's own arguments for Adam that the chosen optimizer does not have."""
    optim = name_of(args.optim)
    used = REGISTRY[optim].trainer.values() if optim in REGISTRY else _ADAM
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    for name in _ADAM:
        value = getattr(args, name, None)
        if name not in used and value != defaults.get(name):
            instead = f"`{name}` has no effect with optim={shown(optim)}: set its options in `optim_kwargs`"
            warnings.warn(f"{instead}. Received: {name}={shown(value)}", stacklevel=4)
