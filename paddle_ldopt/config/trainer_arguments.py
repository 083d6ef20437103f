"""A Trainer's arguments as settings of `LdoptConfig`, and back."""

import json
import types
from typing import Any

from ..build import OFF, OPTIMIZERS
from ..layers.decay import LayerDecay
from ..optimizers import OptimizerInfo
from ..schedules.factory import SCHEDULES, metric_kinds
from .decay_settings import DecaySettings, settings_of
from .erniekit import with_erniekit
from .files import json_argument

# Kinds of schedules that every Trainer has -> their options among its arguments. Without `lr_scheduler_kwargs` the
# Trainer builds them itself, so adding our mixin changes nothing.
BUILT_IN: dict[str, tuple[str, ...]] = {
    "linear": (),
    "cosine": ("num_cycles",),
    "constant": (),
    "constant_with_warmup": (),
    "polynomial": ("lr_end", "power"),
}


def settings_of_arguments(args: Any) -> dict[str, Any]:
    """Return the settings of a Trainer's arguments, with or without `LdoptArgumentsMixin`."""
    optim, options = name_of(args.optim), json_argument(args, "optim_kwargs")
    if optim in OPTIMIZERS:
        info = OPTIMIZERS[optim]
        mapped = mapped_options(args, info)
        options.update({name: value for name, value in mapped.items() if value != info.settings[name].default})
    return {
        "optim": optim,
        "optim_kwargs": options,
        "weight_decay": args.weight_decay,
        "max_grad_norm": clip_norm(args),
        **settings_of(decay_of_arguments(args)),
        "layerwise_rules": json_argument(args, "layerwise_rules") or None,
        **schedule_settings(args),
    }


def mapped_options(args: Any, info: OptimizerInfo) -> dict[str, Any]:
    """Return the options of an optimizer that are fields of a Trainer's arguments."""
    options = {name: getattr(args, field) for name, field in info.trainer.items()}
    return {**options, "multi_precision": args.fp16_opt_level == "O2"}


def clip_norm(args: Any) -> float:
    """Return the global norm for gradient clipping, 0 for off; a Trainer also takes any negative number for off."""
    return max(args.max_grad_norm, 0.0)


def decay_of_arguments(args: Any) -> LayerDecay:
    """Return the decay in a Trainer's arguments, with or without `LdoptArgumentsMixin`; ERNIEKit's own included."""
    return args.layerwise_decay if isinstance(args, DecaySettings) else with_erniekit(OFF, args)


def arguments_of_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return all settings, as a dict, as keyword arguments of a Trainer's arguments with `LdoptArgumentsMixin`."""
    info, out = OPTIMIZERS[settings["optim"]], dict(settings)
    options, kwargs = out.pop("optim_kwargs"), out.pop("lr_scheduler_kwargs")
    out.update({field: options.pop(name, info.settings[name].default) for name, field in info.trainer.items()})
    if options.pop("multi_precision", False):
        out["fp16_opt_level"] = "O2"
    if "mode" in kwargs:
        out["greater_is_better"] = kwargs.pop("mode") == "max"
    out.update(optim_kwargs=options or None, lr_scheduler_kwargs=kwargs or None)
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in out.items()}


def name_of(choice: Any) -> str:
    """Return the name of an optimizer, schedule or strategy given as a string or as a member of the Trainer's enum."""
    return str(getattr(choice, "value", choice))


def builds_schedule(args: Any) -> bool:
    """Return whether we build the schedule: the Trainer lacks its kind, or `lr_scheduler_kwargs` are given."""
    kind = name_of(args.lr_scheduler_type)
    return kind in SCHEDULES and (kind not in BUILT_IN or bool(json_argument(args, "lr_scheduler_kwargs")))


def schedule_of_arguments(args: Any, num_training_steps: int) -> tuple[Any, int]:
    """Return the settings of the schedule in a Trainer's arguments, and its number of steps.

    As in the Trainer, the warm-up is `warmup_steps`, or if that is 0 `warmup_ratio` of the training's steps, rounded
    down. A positive `decay_steps`, which some Trainers lack, replaces the number of steps.
    """
    settings = types.SimpleNamespace(**schedule_settings(args))
    if args.warmup_steps <= 0:
        settings.warmup_steps, settings.warmup_ratio = int(args.warmup_ratio * num_training_steps), 0.0
    return settings, max(getattr(args, "decay_steps", None) or 0, 0) or num_training_steps


def schedule_settings(args: Any) -> dict[str, Any]:
    """Return the settings of the schedule from all fields of a Trainer's arguments."""
    kind = name_of(args.lr_scheduler_type)
    fields = {field: getattr(args, field) for field in BUILT_IN.get(kind, ())}
    kwargs = {field: value for field, value in fields.items() if value != SCHEDULES[kind].options[field].default}
    if kind in metric_kinds():
        mode = evaluation_metric(args)[1]
        if mode != SCHEDULES[kind].options["mode"].default or args.greater_is_better is not None:
            kwargs["mode"] = mode
    kwargs.update(json_argument(args, "lr_scheduler_kwargs"))
    return {
        "lr_scheduler_type": kind,
        "lr_scheduler_kwargs": kwargs,
        "learning_rate": args.learning_rate,
        "warmup_steps": args.warmup_steps,
        "warmup_ratio": 0.0 if args.warmup_steps > 0 else args.warmup_ratio,  # as in the Trainer
    }


def evaluation_metric(args: Any) -> tuple[str, str]:
    """Return the key of the evaluation metric that a schedule follows, and "max" or "min".

    The metric is `metric_for_best_model`, by default the loss. `greater_is_better` is by default false for the loss and
    true for any other metric.
    """
    metric, greater = args.metric_for_best_model or "loss", args.greater_is_better
    if greater is None:
        greater = metric not in ("loss", "eval_loss")
    return metric if metric.startswith("eval_") else f"eval_{metric}", "max" if greater else "min"
