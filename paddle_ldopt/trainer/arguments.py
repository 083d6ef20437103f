"""Layer-wise arguments for the TrainingArguments of PaddleNLP and PaddleFormers."""

import dataclasses
from typing import Any, Optional

from .._checks import refusal
from ..config import BUILT_IN, DecaySettings, LdoptConfig, changed_fields, json_argument, name_of, settings_of_arguments
from ..layers.decay import LayerDecay
from ..optimizers.options import REGISTRY
from ..schedules.factory import ON_METRIC, SCHEDULES
from .resume import Args, check_mixed_in_first


class LdoptName(str):
    """Our name in `optim` or `lr_scheduler_type`, with the `value` of an enum member."""

    value = property(str)


# Argument -> our names, the Trainer's enum, which refuses them, and a name in the enum.
_CHOICES: dict[str, tuple[Any, str, str]] = {
    "optim": (REGISTRY, "OptimizerNames", "adamw"),
    "lr_scheduler_type": (SCHEDULES, "SchedulerType", "linear"),
}


# The settings with a help text, which a Trainer lacks. The frozen `LdoptConfig` cannot be a base class.
_SETTINGS: list[tuple[str, Any, Any]] = []
for _setting in dataclasses.fields(LdoptConfig):
    if "help" in _setting.metadata:
        _is_dict = "dict" in str(_setting.type)  # JSON in a string
        _field = dataclasses.field(default=None if _is_dict else _setting.default, metadata=_setting.metadata)
        _SETTINGS.append((_setting.name, Optional[str] if _is_dict else _setting.type, _field))
_Settings: Any = dataclasses.make_dataclass("_Settings", _SETTINGS, bases=(DecaySettings,))


@dataclasses.dataclass
class LdoptArgumentsMixin(_Settings, Args):
    """Add layer-wise arguments to TrainingArguments, and our names to `optim` and `lr_scheduler_type`.

    Args:
        layerwise_lr_decay: 1 is off, 0.65 to 0.95 is usual. Each other option of `LayerDecay` is an argument, such as
            `layerwise_min_ratio`. `layerwise_head_ratio` also works without a decay.
        allow_layerwise_change: resume with another decay or layer map, with a warning. In our optimizers, parameters
            that were frozen start with a new state.
        optim (str): a name of `list_optimizers` or of the Trainer.
        optim_kwargs: other options of an optimizer of `list_optimizers`, as JSON:
            ``--optim_kwargs '{"clip_threshold": 2.0}'``. The Trainer's `adam_beta1`... stay in use.
        layerwise_rules: the `rules` of `LayerMap.from_model`, as JSON, as are `layerwise_towers` and
            `layerwise_multipliers`: ``--layerwise_towers '{"vision_model": 0.65, "text_model": {"scale": 0.1}}'``.
        lr_scheduler_type (str): any `SchedulerType`. The Trainer builds the kinds that it knows (with `num_cycles`,
            `lr_end`, `power`), unless there are `lr_scheduler_kwargs`. "reduce_lr_on_plateau" steps after every
            evaluation, by `metric_for_best_model` (default: the loss) and `greater_is_better`.
        lr_scheduler_kwargs: the `scheduler_specific_kwargs` of `get_scheduler`, as JSON.

    Raises:
        ValueError: wrong values, unknown names.
        RuntimeError: a Trainer without `LdoptTrainerMixin` is built: it would ignore the arguments.
        TypeError: the mixin is not the first base class.

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

    ldopt_served = False  # a Trainer with our mixin has received them

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, LdoptArgumentsMixin, "__post_init__")

    def __post_init__(self) -> None:
        given = {argument: name_of(getattr(self, argument)) for argument in _CHOICES}
        ours = {}
        for argument, (names, _, theirs) in _CHOICES.items():
            if given[argument] in names and given[argument] not in BUILT_IN:
                ours[argument] = LdoptName(given[argument])
                setattr(self, argument, theirs)
        try:
            super().__post_init__()
        except ValueError as error:
            for argument, (names, enum, _) in _CHOICES.items():
                if enum in str(error):  # the Trainer's error about an unknown name
                    wrong = f"{error}, or of paddle_ldopt's own: {', '.join(map(repr, names))}."
                    raise refusal(ValueError, wrong, **{argument: given[argument]}) from error
            raise
        for argument, name in ours.items():
            setattr(self, argument, name)
        self._check()

    def _check(self) -> None:
        optim, options, kind = name_of(self.optim), json_argument(self, "optim_kwargs"), name_of(self.lr_scheduler_type)
        info, settings = REGISTRY.get(optim), settings_of_arguments(self)
        wrong, received = "", {"optim_kwargs": self.optim_kwargs}
        if info is None:  # the Trainer builds its own
            settings.update(optim="adamw", optim_kwargs={})
            if options:
                wrong = f"`optim_kwargs` need `optim` to be one of {', '.join(map(repr, REGISTRY))}."
                received = {"optim": optim, **received}
        else:
            fields = {**info.trainer, "multi_precision": "fp16_opt_level"}
            twice = [info.setting(name) for name in options if info.setting(name) in fields]
            others = {name: one for name, one in changed_fields(self).items() if name.startswith(f"{optim}_")}
            if twice:
                wrong = f"`{fields[twice[0]]}` sets the {twice[0]} of {optim!r}: leave it out of `optim_kwargs`."
            elif others:  # PaddleFormers has a Muon, too
                wrong, received = f"{optim!r} is paddle_ldopt's, which takes its options in `optim_kwargs`.", others
            elif options.get("relative_step"):
                wrong = "An optimizer that sets its own rate goes to the Trainer as `optimizers=`."
        if wrong:
            raise refusal(ValueError, wrong, **received)
        LdoptConfig(**settings)
        if kind in ON_METRIC and name_of(self.evaluation_strategy) == "no":
            wrong = "The schedule follows an evaluation metric: give `evaluation_strategy` 'steps' or 'epoch'."
            raise refusal(ValueError, wrong, evaluation_strategy="no", lr_scheduler_type=kind)

    @property
    def should_load_sharding_stage1_model(self) -> Any:
        """A property that the Trainer's constructor reads."""
        received = {"optim": name_of(self.optim), "layerwise_decay": self.layerwise_decay}
        received["lr_scheduler_kwargs"] = json_argument(self, "lr_scheduler_kwargs")
        ours = received["optim"] in REGISTRY or received["layerwise_decay"] != LayerDecay()
        if not self.ldopt_served and (ours or received["lr_scheduler_kwargs"]):
            wrong = "The Trainer lacks LdoptTrainerMixin and would ignore our optimizers, rates and schedules"
            raise refusal(RuntimeError, f"{wrong}: class MyTrainer(LdoptTrainerMixin, Trainer).", **received)
        return super().should_load_sharding_stage1_model

    def print_config(self, *args: Any, **kwargs: Any) -> None:
        # the Trainer's reads every property
        before, self.ldopt_served = self.ldopt_served, True
        try:
            super().print_config(*args, **kwargs)
        finally:
            self.ldopt_served = before
