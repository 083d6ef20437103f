"""`LdoptConfig`: the settings of optimizer, layers and schedule in one object."""

import copy
import dataclasses
import json
import types
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import plain_number, problem, refusal, tell_all, unknown, wrong_type
from .._files import Path, checked_path, read_json
from ..build import OPTIMIZERS, build_optimizer
from ..optimizers import Adafactor, AdafactorSchedule
from . import erniekit
from .decay_settings import DecaySettings, decay_setting, setting, settings_of
from .files import read_yaml
from .problems import config_problems
from .schedule import build_schedule
from .trainer_arguments import arguments_of_settings, settings_of_arguments


@dataclasses.dataclass(frozen=True)
class LdoptConfig(DecaySettings):
    """All settings of an optimizer, its layer-wise rates and its schedule, in one object and one file.

    The settings have the names of the Trainer's arguments with `LdoptArgumentsMixin`. The Trainer's mixin saves the
    object in each checkpoint as ``ldopt_config.json``, and `RunReport` shows it.

    Args:
        optim: one of `list_optimizers`, or "adamw" for Paddle's own.
        optim_kwargs: further options of the optimizer, such as ``{"beta2": 0.98, "epsilon": 1e-6}``. A class's own name
            (`beta_2`, `eps`) works too and is stored under the name that `create` uses.
        learning_rate: at least 0, the rate of a layer whose ratio is 1. None for Adafactor and Came with
            ``{"relative_step": True}``, which sets the rate.
        weight_decay: at least 0. Biases and the parameters of norms are excluded; "adamweightdecay" takes
            `include_in_weight_decay` and `exclude_from_weight_decay` in `optim_kwargs`.
        max_grad_norm: at least 0, the global norm for gradient clipping; 0 is off.
        layerwise_lr_decay: ratio of the rates of neighbouring layers, in (0, 1]; 1 is off. Each further option of
            `LayerDecay` is a setting of its own, such as `layerwise_min_ratio`.
        layerwise_rules: the `rules` of `LayerMap.from_model`.
        lr_scheduler_type: any `SchedulerType`.
        lr_scheduler_kwargs: the `scheduler_specific_kwargs` of `get_scheduler`.
        warmup_steps: at least 0, steps of the warm-up.
        warmup_ratio: in [0, 1], the warm-up as a fraction of all steps; instead of `warmup_steps`.

    Raises:
        ValueError: lists all problems of the settings.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import LdoptConfig
        >>> config = LdoptConfig.from_dict({"optim": "lamb", "layerwise_lr_decay": 0.5, "learning_rate": 1e-3})
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> opt, schedule = config.build(encoder, num_training_steps=100)
        >>> type(opt).__name__, opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        ('Lamb', 0.125)
        >>> LdoptConfig.from_dict(config.to_dict()) == config
        True
    """

    # plain dicts: PdArgumentParser reads JSON for no other annotation
    optim: str = "adamwdl"
    optim_kwargs: dict = setting(  # type: ignore[type-arg]
        {}, "more options of the optimizer, as JSON: '{\"clip_threshold\": 2.0}'"
    )
    learning_rate: Optional[float] = 5e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    layerwise_lr_decay: float = decay_setting("layerwise_decay")
    layerwise_convention: str = decay_setting("convention")
    layerwise_min_ratio: float = decay_setting("min_ratio")
    layerwise_head_ratio: float = decay_setting("head_ratio")
    layerwise_freeze_below: float = decay_setting("freeze_below")
    layerwise_bound: float = decay_setting("bound")
    layerwise_scale: float = decay_setting("scale")
    layerwise_preserve_mean: bool = decay_setting("preserve_mean")
    layerwise_towers: Optional[dict] = decay_setting("towers")  # type: ignore[type-arg]
    layerwise_multipliers: Optional[dict] = decay_setting("multipliers")  # type: ignore[type-arg]
    layerwise_rules: Optional[dict] = setting(  # type: ignore[type-arg]
        None, 'layer by parameter-name pattern, as JSON: \'{"adapter": "head"}\''
    )
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: dict = setting(  # type: ignore[type-arg]
        {}, "more options of the schedule, as JSON: '{\"num_cycles\": 3}'"
    )
    warmup_steps: int = 0
    warmup_ratio: float = 0.0

    def __post_init__(self) -> None:
        tell_all(config_problems(self, _defaults(type(self))))
        for field in _defaults(type(self)):  # plain numbers for JSON; copies, so that later changes have no effect
            object.__setattr__(self, field, _copied(getattr(self, field)))
        option = OPTIMIZERS[self.optim].setting
        object.__setattr__(self, "optim_kwargs", {option(name): value for name, value in self.optim_kwargs.items()})
        for field, value in settings_of(self.layerwise_decay).items():
            object.__setattr__(self, field, value)

    def build(
        self, model: paddle.nn.Layer, num_training_steps: Optional[int] = None
    ) -> tuple[Optimizer, Optional[LRScheduler]]:
        """Return an optimizer for a model's parameters and its schedule, for a training loop without a Trainer.

        The optimizer takes its rate from the schedule. With a relative step the schedule is an `AdafactorSchedule`, or
        None for Came. Schedules that need `num_training_steps` raise ValueError without it.
        """
        schedule = None if self.learning_rate is None else build_schedule(self, num_training_steps)
        opt = build_optimizer(
            self.optim,
            model,
            layerwise_decay=self.layerwise_decay,
            rules=self.layerwise_rules,
            max_grad_norm=self.max_grad_norm,
            weight_decay=self.weight_decay,
            **({} if schedule is None else {"learning_rate": schedule}),
            **self.optim_kwargs,
        )
        return opt, AdafactorSchedule(opt) if schedule is None and isinstance(opt, Adafactor) else schedule

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LdoptConfig":
        """Return the object with the settings of a dict; raise a ValueError that lists all problems."""
        if not isinstance(values, dict):
            raise wrong_type(values, "values", "a dict of settings")
        known = _defaults(cls)
        unknown_settings = [_unknown(key, value, known) for key, value in values.items() if key not in known]
        valid = {key: value for key, value in values.items() if key in known}
        if unknown_settings:  # the constructor tells the other problems
            tell_all([*unknown_settings, *config_problems(types.SimpleNamespace(**{**known, **valid}), known)])
        return cls(**valid)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as a dict for JSON or YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, path: Path) -> "LdoptConfig":
        """Return the object with a JSON file's settings; raise ValueError like `from_dict`, also for duplicate keys."""
        return cls.from_dict(read_json(path))

    def to_json(self, path: Path) -> None:
        """Write a JSON file for `from_json`."""
        with open(checked_path(path), "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=1)

    @classmethod
    def from_yaml(cls, path: Path) -> "LdoptConfig":
        """Return the object with a YAML file's settings; raise ValueError like `from_dict`, also for duplicate keys."""
        return cls.from_dict(read_yaml(path))

    def to_yaml(self, path: Path) -> None:
        """Write a YAML file for `from_yaml`."""
        import yaml

        with open(checked_path(path), "w", encoding="utf-8") as file:
            yaml.safe_dump(self.to_dict(), file, sort_keys=False)

    @classmethod
    def from_arguments(cls, args: Any) -> "LdoptConfig":
        """Return the settings of a Trainer's arguments, with or without `LdoptArgumentsMixin`.

        `decay_steps` is not a setting: pass it to `build` as the number of training steps.

        Raises ValueError for the Trainer's own optimizers other than "adamw".
        """
        return cls(**settings_of_arguments(args))

    def to_arguments(self) -> dict[str, Any]:
        """Return the settings as keyword arguments of a Trainer's arguments with `LdoptArgumentsMixin`.

        Raises ValueError for a relative step: pass ``optimizers=config.build(model)`` to the Trainer instead.
        """
        if self.learning_rate is None:
            message = "Pass an optimizer that sets its own rate to the Trainer as `optimizers=config.build(model)`."
            raise refusal(ValueError, message, optim_kwargs=self.optim_kwargs)
        return arguments_of_settings(self.to_dict())


def _unknown(key: Any, value: Any, known: dict[str, Any]) -> str:
    """Return the message for an unknown setting."""
    if key in erniekit.ARGUMENTS:
        message = f"`{key}` is an argument of ERNIEKit's Trainer: use {erniekit.ARGUMENTS[key].settings}."
        return problem(message, **{key: value})
    return unknown("setting", key, value, known)


def _defaults(cls: Any) -> dict[str, Any]:
    """Return field -> default of a dataclass."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
    }


def _copied(value: Any) -> Any:
    """Return a copy of a value in types that JSON has."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(plain_number(value))
