"""`LdoptConfig`: settings in one object, in files and in a Trainer's arguments.

A Trainer's arguments are any object with the attributes of PaddleNLP's TrainingArguments.
"""

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ._checks import Option, checked_bool, checked_int, checked_number, plain_number, refusal, unknown
from ._files import Path, checked_path, json_number, read_json, read_yaml, unique_keys
from .create import OFF, OPTIMIZERS, build_optimizer, info_of
from .layers.decay import OPTIONS, LayerDecay
from .layers.measure import Example
from .optimizers import Adafactor, AdafactorSchedule
from .schedules import ON_METRIC, get_scheduler
from .schedules.factory import SCHEDULES, kind_of

# option of `LayerDecay` -> our setting
SETTINGS = {option: f"layerwise_{'lr_decay' if option == 'layerwise_decay' else option}" for option in OPTIONS}
_DICTS = ("towers", "multipliers")  # options that are JSON on a command line
_EXAMPLES = {  # last word of a setting's name -> a value
    "towers": '{"vision_model": 0.65}',
    "multipliers": '{"bias$": 2.0}',
    "rules": '{"lora_": "head"}',
    "optim_kwargs": '{"fused": false}',
}
# Kinds of schedules that every Trainer has. It builds them itself if there are no `lr_scheduler_kwargs`, so adding our
# mixin changes nothing.
BUILT_IN = {"linear", "cosine", "constant", "constant_with_warmup", "polynomial"}
_OPTIONS_OF_SCHEDULES = ("num_cycles", "lr_end", "power", "min_lr")  # among a Trainer's arguments
# Arguments of ERNIEKit and PaddleFormers -> (value without effect, options of `LayerDecay` that they exclude). The
# numbers are from erniekit/train/dpo/trainer.py and erniekit/train/vl_sft/pretraining_trainer.py.
ERNIEKIT: dict[str, tuple[Optional[float], tuple[str, ...]]] = {
    "layerwise_lr_decay_bound": (1.0, ("layerwise_decay", "convention", "bound", "min_ratio")),
    "vit_lr_ratio": (None, ("towers",)),
    "visual_ld": (None, ("towers",)),  # another name for `vit_lr_ratio`, which overrides it
    "moe_gate_lr_ratio": (None, ("multipliers",)),
}


# ---- JSON


def json_object(value: Any, name: str) -> dict[str, Any]:
    content, why = value, ""
    if isinstance(value, str):
        try:
            content = json.loads(value, object_pairs_hook=unique_keys, parse_float=json_number)
        except (RecursionError, ValueError) as error:
            why = f" ({error})"
    if content is not None and not isinstance(content, dict):
        example = next((example for end, example in _EXAMPLES.items() if name.endswith(end)), '{"min_lr": 1e-6}')
        raise refusal(ValueError, f"`{name}` must be a JSON object such as '{example}'{why}.", **{name: value})
    return dict(content or {})


def json_argument(args: Any, name: str) -> dict[str, Any]:
    return json_object(getattr(args, name, None), name)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]  # as in JSON
    return copy.deepcopy(plain_number(value))


# ---- the options of a decay as settings


def option_of(value: Any, option: str, name: str = "") -> Any:
    name = name or SETTINGS[option]
    if option in _DICTS and isinstance(value, str):
        value = json_object(value, name)
    return OPTIONS[option].checked(value, name)


def settings_of(decay: LayerDecay) -> dict[str, Any]:
    return {SETTINGS[option]: value for option, value in decay.to_dict().items()}


def decay_help(option: str) -> str:
    declared = OPTIONS[option]
    if declared.check is checked_bool:
        return declared.doc
    how = ": " if declared.values or declared.choices else "; range "
    return declared.doc + how + declared.span.removesuffix(" or None") + ", as JSON" * (option in _DICTS)


def _setting(default: Any, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text})


_SETTINGS_OF_DECAY = {option: _setting(declared.default, decay_help(option)) for option, declared in OPTIONS.items()}


class DecaySettings:
    """Base of `LdoptConfig` and `LdoptArgumentsMixin`."""

    @property
    def layerwise_decay(self) -> LayerDecay:
        """The `LayerDecay`, including ERNIEKit's own arguments."""
        values = {option: getattr(self, name, OPTIONS[option].default) for option, name in SETTINGS.items()}
        return with_erniekit(LayerDecay(**{option: option_of(value, option) for option, value in values.items()}), self)


# ---- the object


@dataclasses.dataclass(frozen=True)
class LdoptConfig(DecaySettings):
    """All settings of an optimizer, its layer-wise rates and its schedule.

    They have the names of the Trainer's arguments. The Trainer's mixin saves them as ``ldopt_config.json``.

    Args:
        optim: one of `list_optimizers`, or "adamw" for Paddle's own.
        optim_kwargs: further options of the optimizer, by the names of `create` or of the class.
        learning_rate: the rate of a layer whose ratio is 1; None with a relative step.
        weight_decay: not of biases and the parameters of norms.
        max_grad_norm: for clipping by the global norm; 0 is off.
        layerwise_lr_decay: ratio of the rates of neighbouring layers, in (0, 1]; 1 is off. Each other option of
            `LayerDecay` is a setting, such as `layerwise_min_ratio`.
        layerwise_rules: the `rules` of `LayerMap.from_model`.
        lr_scheduler_type: any `SchedulerType`.
        lr_scheduler_kwargs: the `scheduler_specific_kwargs` of `get_scheduler`.
        warmup_steps: length of the warm-up.
        warmup_ratio: the same as a fraction of all steps, if `warmup_steps` is 0.

    Raises:
        TypeError, ValueError: the first problem of the settings.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import LdoptConfig
        >>> config = LdoptConfig.from_dict({"optim": "lamb", "layerwise_lr_decay": 0.5, "learning_rate": 1e-3})
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> opt, schedule = config.build(encoder, num_training_steps=100)
        >>> type(opt).__name__, opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        ('Lamb', 0.125)
    """

    # plain dicts: PdArgumentParser reads JSON for no other annotation
    optim: str = "adamwdl"
    optim_kwargs: Optional[dict] = _setting(  # type: ignore[type-arg]
        None, "more options of the optimizer, as JSON: '{\"clip_threshold\": 2.0}'"
    )
    learning_rate: Optional[float] = 5e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    layerwise_lr_decay: float = _SETTINGS_OF_DECAY["layerwise_decay"]
    layerwise_convention: str = _SETTINGS_OF_DECAY["convention"]
    layerwise_min_ratio: float = _SETTINGS_OF_DECAY["min_ratio"]
    layerwise_head_ratio: float = _SETTINGS_OF_DECAY["head_ratio"]
    layerwise_freeze_below: float = _SETTINGS_OF_DECAY["freeze_below"]
    layerwise_bound: float = _SETTINGS_OF_DECAY["bound"]
    layerwise_scale: float = _SETTINGS_OF_DECAY["scale"]
    layerwise_preserve_mean: bool = _SETTINGS_OF_DECAY["preserve_mean"]
    layerwise_towers: Optional[dict] = _SETTINGS_OF_DECAY["towers"]  # type: ignore[type-arg]
    layerwise_multipliers: Optional[dict] = _SETTINGS_OF_DECAY["multipliers"]  # type: ignore[type-arg]
    layerwise_rules: Optional[dict] = _setting(  # type: ignore[type-arg]
        None, 'layer by parameter-name pattern, as JSON: \'{"adapter": "head"}\''
    )
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: Optional[dict] = _setting(  # type: ignore[type-arg]
        None, "more options of the schedule, as JSON: '{\"num_cycles\": 3}'"
    )
    warmup_steps: int = 0
    warmup_ratio: float = 0.0

    def __post_init__(self) -> None:
        info, kind = info_of(self.optim, "optim"), kind_of(self.lr_scheduler_type)
        given = json_object(self.optim_kwargs, "optim_kwargs")
        options = {info.setting(name): value for name, value in given.items()}
        if len(options) < len(given):
            raise refusal(ValueError, "`optim_kwargs` has two names for one option.", optim_kwargs=given)
        schedule = json_object(self.lr_scheduler_kwargs, "lr_scheduler_kwargs")
        general = ("num_warmup_steps", "num_training_steps")
        of_kind = {name: option for name, option in kind.options.items() if name not in general}
        values = {
            "optim_kwargs": checked_options(options, info.settings, "optim_kwargs"),
            "weight_decay": checked_number(self.weight_decay, "weight_decay"),
            "max_grad_norm": checked_number(self.max_grad_norm, "max_grad_norm"),
            "layerwise_rules": json_object(self.layerwise_rules, "layerwise_rules") or None,
            "lr_scheduler_type": kind.name,
            "lr_scheduler_kwargs": checked_options(schedule, of_kind, "lr_scheduler_kwargs"),
            "warmup_steps": checked_int(self.warmup_steps, "warmup_steps"),
            "warmup_ratio": checked_number(self.warmup_ratio, "warmup_ratio", 0.0, 1.0),
            **settings_of(self.layerwise_decay),
        }
        if self.learning_rate is not None:
            expected = "a number or None"
            values["learning_rate"] = checked_number(self.learning_rate, "learning_rate", ends="(]", expected=expected)
        if "weight_decay" in info.options:
            info.options["weight_decay"].checked(self.weight_decay, "weight_decay")
        if options.get("global_clipnorm") and self.max_grad_norm:
            both = "`max_grad_norm` and `global_clipnorm` both clip gradients: set one of them to 0 or None."
            raise refusal(ValueError, both, max_grad_norm=self.max_grad_norm, **options)
        own = info.settings.get("relative_step")  # a given rate overrides its default
        sets_rate = options.get("relative_step", own is not None and own.default and self.learning_rate is None)
        if bool(sets_rate) != (self.learning_rate is None):
            wrong = "`learning_rate` must be None with `relative_step`, which sets the rate, and given without it."
            raise refusal(ValueError, wrong, optim=self.optim, learning_rate=self.learning_rate, **options)
        warmup = {name: values[name] for name in ("warmup_steps", "warmup_ratio") if values[name]}
        unused = ""
        if sets_rate and (warmup or schedule):
            unused = "An optimizer that sets its own rate takes no schedule: leave out warm-up and options."
        elif warmup and "num_warmup_steps" not in kind.options:
            instead = "choose another schedule, such as `constant_with_warmup`, or set the warm-up to 0."
            unused = f"The schedule `{kind.name}` has no warm-up: {instead}"
        if unused:
            raise refusal(ValueError, unused, lr_scheduler_type=kind.name, lr_scheduler_kwargs=schedule, **warmup)
        for name, value in values.items():  # plain numbers for JSON; copies, so that later changes have no effect
            object.__setattr__(self, name, _plain(value))

    def build(
        self, model: paddle.nn.Layer, num_training_steps: Optional[int] = None, example: Optional[Example] = None
    ) -> tuple[Optimizer, Optional[LRScheduler]]:
        """Return an optimizer and its schedule; `example` is as in `create`.

        With a relative step, the schedule is an `AdafactorSchedule`, or None for Came.
        """
        schedule, warmup = None, self.warmup_steps
        if self.learning_rate is not None:
            if self.warmup_ratio and not warmup:
                warmup = int(self.warmup_ratio * checked_int(num_training_steps, "num_training_steps"))
            schedule = get_scheduler(
                self.lr_scheduler_type, self.learning_rate, warmup, num_training_steps, self.lr_scheduler_kwargs
            )
        opt = build_optimizer(
            self.optim,
            model,
            layerwise_decay=self.layerwise_decay,
            rules=self.layerwise_rules,
            example=example,
            max_grad_norm=self.max_grad_norm,
            weight_decay=self.weight_decay,
            **({} if schedule is None else {"learning_rate": schedule}),
            **(self.optim_kwargs or {}),
        )
        return opt, AdafactorSchedule(opt) if schedule is None and isinstance(opt, Adafactor) else schedule

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LdoptConfig":
        """Build from settings; raise for an unknown one, and in a file for duplicate keys."""
        known = [field.name for field in dataclasses.fields(cls)]
        settings = json_object(values, "values")
        for key, value in settings.items():
            if key not in known:
                raise ValueError(unknown("setting", key, value, known))
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, path: Path) -> "LdoptConfig":
        return cls.from_dict(read_json(path))

    def to_json(self, path: Path) -> None:
        text = json.dumps(self.to_dict(), indent=1)  # before the file is opened, which may be a pipe
        with open(checked_path(path), "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def from_yaml(cls, path: Path) -> "LdoptConfig":
        return cls.from_dict(read_yaml(path))

    @classmethod
    def from_arguments(cls, args: Any) -> "LdoptConfig":
        """Build from a Trainer's arguments; raise for its own optimizers except "adamw".

        Pass `decay_steps`, which is no setting, to `build` as `num_training_steps`.
        """
        return cls(**settings_of_arguments(args))


def checked_options(given: dict[str, Any], declared: Mapping[str, Option], argument: str) -> dict[str, Any]:
    for key, value in given.items():
        if key not in declared:
            raise ValueError(f"`{argument}`: {unknown('option', key, value, declared)}")
        declared[key].checked(value, key)
    return given


# ---- a Trainer's arguments


def settings_of_arguments(args: Any) -> dict[str, Any]:
    optim, options = name_of(args.optim), json_argument(args, "optim_kwargs")
    if optim in OPTIMIZERS:
        info = OPTIMIZERS[optim]
        mapped = {name: getattr(args, field) for name, field in info.trainer.items()}
        mapped["multi_precision"] = args.fp16_opt_level == "O2"
        options.update({name: value for name, value in mapped.items() if value != info.settings[name].default})
    kind = name_of(args.lr_scheduler_type)
    if kind == "cosine" and getattr(args, "min_lr", None):  # of PaddleFormers
        kind = "cosine_with_min_lr"
    declared = SCHEDULES[kind].options
    given = {name: getattr(args, name) for name in _OPTIONS_OF_SCHEDULES if hasattr(args, name)}
    if kind not in BUILT_IN and dataclasses.is_dataclass(args):  # whose defaults differ from the kind's
        given = changed_fields(args)
    kwargs = {name: given[name] for name in _OPTIONS_OF_SCHEDULES if name in declared and name in given}
    kwargs = {name: value for name, value in kwargs.items() if value != declared[name].default}
    if kind in ON_METRIC:
        metric, mode = evaluation_metric(args)
        given_mode = json_argument(args, "lr_scheduler_kwargs").get("mode")
        if mode == "max" and metric != "eval_loss" and metric.endswith("loss") and given_mode is None:
            wrong = f'"{kind}" would lower the rate when the loss falls: set greater_is_better=False.'
            given = {"metric_for_best_model": args.metric_for_best_model, "greater_is_better": args.greater_is_better}
            raise refusal(ValueError, wrong, **given)
        if mode != declared["mode"].default or args.greater_is_better is not None:
            kwargs["mode"] = mode
    return {
        "optim": optim,
        "optim_kwargs": options,
        "weight_decay": args.weight_decay,
        "max_grad_norm": max(args.max_grad_norm, 0.0),  # for a Trainer, any negative number is off, too
        **settings_of(decay_of_arguments(args)),
        "layerwise_rules": json_argument(args, "layerwise_rules") or None,
        "lr_scheduler_type": kind,
        "lr_scheduler_kwargs": {**kwargs, **json_argument(args, "lr_scheduler_kwargs")},
        "learning_rate": args.learning_rate,
        "warmup_steps": args.warmup_steps,
        "warmup_ratio": 0.0 if args.warmup_steps > 0 else args.warmup_ratio,  # as in the Trainer
    }


def changed_fields(args: Any) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    changed = {}
    for field in dataclasses.fields(args) if dataclasses.is_dataclass(args) else ():
        make: Any = field.default_factory
        value, default = getattr(args, field.name), field.default if make is dataclasses.MISSING else make()
        if value is not default and not (isinstance(value, type(default)) and value == default):
            changed[field.name] = value
    return changed


def name_of(choice: Any) -> str:
    return str(getattr(choice, "value", choice))


def evaluation_metric(args: Any) -> tuple[str, str]:
    """The key of the metric for the best model, and "max" or "min"."""
    metric, greater = args.metric_for_best_model or "loss", args.greater_is_better
    if greater is None:
        greater = metric not in ("loss", "eval_loss")
    return metric if metric.startswith("eval_") else f"eval_{metric}", "max" if greater else "min"


def decay_of_arguments(args: Any) -> LayerDecay:
    return args.layerwise_decay if isinstance(args, DecaySettings) else with_erniekit(OFF, args)


def with_erniekit(decay: LayerDecay, args: Any) -> LayerDecay:
    given = {name: getattr(args, name, None) for name in ERNIEKIT}
    if given["vit_lr_ratio"]:
        del given["visual_ld"]
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or checked_number(value, name, 0.0, math.inf if "moe" in name else 1.0, "(]") == 1.0:
            continue
        for option in ERNIEKIT[name][1]:
            present, ours = getattr(decay, option), SETTINGS[option]
            if present != OPTIONS[option].default:
                raise refusal(ValueError, f"`{name}` and `{ours}` exclude each other.", **{name: value, ours: present})
        if name == "layerwise_lr_decay_bound":
            options.update(convention="linear", bound=value)
        elif name == "moe_gate_lr_ratio":
            options["multipliers"] = {r"^ernie\.layers\.0\.mlp\.gate\.weight$": value}
        else:
            options["towers"] = {"vision_model": LayerDecay(value, "ernie_vl")}
    return dataclasses.replace(decay, **options) if options else decay
