"""Checks of optimizers and schedules against the Trainer's arguments: a setting without effect is an error."""

from typing import Any, Optional

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._messages import refusal, shown
from .._paddle import check_wrapper_state, lr_or_scheduler, parameters_of, unwrap
from ..config import json_argument, name_of
from ..create import OFF
from ..layers.decay import LayerDecay
from ..layers.map import LayerMap
from ..layers.rates import layerwise_interface
from ..optimizers.registry import REGISTRY
from ..schedules.kinds import metric_kinds
from .types import Args


def check_trainer_optimizer(
    optimizer: Optimizer, scheduler: Optional[LRScheduler], optim: str, decay: LayerDecay
) -> None:
    """Raise if an optimizer that the mixin did not make contradicts the Trainer's schedule, `optim` or decay."""
    check_wrapper_state(optimizer)
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    _check_scheduler(optimizer, scheduler)
    chosen = REGISTRY.get(optim)
    if chosen is not None and not isinstance(optimizer, chosen.cls):
        raise _ignored("`optim`", "leave one of them out", f"optim={shown(optim)}, optimizers=({name}, ...)")
    optimizer_decay = layerwise_interface(optimizer).decay
    if decay not in (optimizer_decay, OFF):
        raise _ignored(
            "the arguments' layer-wise decay",
            "leave all arguments of the decay at their defaults, or build the optimizer with the same decay "
            "(`layers` and `layerwise_decay`, or apply_layerwise_decay)",
            f"layerwise_decay={decay}, and {name} with {optimizer_decay or 'no LayerDecay'}",
        )


def check_settings(optimizer: Optimizer, args: Args, layers: Optional[LayerMap]) -> None:
    """Raise if an optimizer differs from `optim_kwargs` in an option, or from `layerwise_rules` in a layer."""
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    options = json_argument(args, "optim_kwargs")
    remedy = "leave them out, or build the optimizer with"
    for param in parameters_of(optimizer):
        has = {"fused": optimizer.fused, **optimizer.fixed_options(), **optimizer.options_of(param)} if options else {}
        for option, value in options.items():
            actual = has.get(option, "unknown")
            if (list(actual) if isinstance(actual, tuple) else actual) != value:  # JSON has lists only
                received = f"optim_kwargs={shown(args.optim_kwargs)}, and {name} with {option}={shown(actual)}"
                raise _ignored("`optim_kwargs`", f"{remedy} the same", received)
        if layers is None:
            continue
        layer = optimizer.layers.layer_of(param.name)
        if layers.layer_of(param.name) != layer:
            rules = f"layerwise_rules={shown(args.layerwise_rules)}"
            received = f"{rules}, and {name} with '{param.name}' in {layer.label}"
            raise _ignored("`layerwise_rules`", f"{remedy} layers=LayerMap.from_model(model, rules)", received)


def _ignored(argument: str, remedy: str, received: str) -> ValueError:
    message = f"The Trainer already has an optimizer, so {argument} would be ignored: {remedy}."
    return ValueError(f"{message} Received: {received}")


def _check_scheduler(optimizer: Optimizer, scheduler: Optional[LRScheduler]) -> None:
    """Raise if the Trainer would step a schedule that the optimizer does not use."""
    name, source = type(optimizer).__name__, lr_or_scheduler(optimizer)
    scheduled, sets_own = isinstance(source, LRScheduler), layerwise_interface(optimizer).sets_own_lr
    reports = getattr(scheduler, "optimizer", None) is optimizer  # AdafactorSchedule: it reports the rates
    if scheduler is source or (reports and not scheduled) or (sets_own and scheduler is None):
        return
    if sets_own:
        remedy, rate = "it sets its own rate, so give optimizers=(opt, None)", "its own"
    elif scheduled:
        remedy, rate = "give optimizers=(opt, scheduler) with the scheduler it was built with", type(source).__name__
    else:
        constant = "scheduler = paddle.optimizer.lr.LambdaDecay(lr, lambda step: 1) keeps the rate constant"
        remedy, rate = f"build it with a scheduler and give both; {constant}", source
    passed = "None" if scheduler is None else type(scheduler).__name__
    raise ValueError(
        "The Trainer would step a scheduler that the optimizer does not use: "
        f"{remedy}. Received: optimizers=({name}, {passed}), where the learning_rate of {name} is {rate}"
    )


def check_trainer_schedule(optimizer: Optimizer, scheduler: Any, args: Args, eval_dataset: Any) -> None:
    """Raise if `lr_scheduler_type`, one of our schedules, would be ignored or lacks the metric that it follows.

    `scheduler` is the Trainer's, None if the mixin builds it.
    """
    kind, ignored = name_of(args.lr_scheduler_type), "so `lr_scheduler_type` would be ignored: leave"
    received: dict[str, Any] = {"optimizers": tuple(type(value).__name__ for value in (unwrap(optimizer), scheduler))}
    if layerwise_interface(optimizer).sets_own_lr:
        message = f"The optimizer sets its own rate, {ignored} it out."
    elif scheduler is not None:
        message = f"`optimizers` already has a scheduler, {ignored} one of them out."
    elif kind in metric_kinds() and eval_dataset is None:
        message = "The schedule follows an evaluation metric: give the Trainer an `eval_dataset`."
        received = {"eval_dataset": None}
    else:
        return
    raise refusal(ValueError, message, **received, lr_scheduler_type=kind)


def check_unified(args: Args, optimizer: Optimizer, processes: int) -> None:
    """Raise if PaddleNLP could save unified checkpoints of one of our optimizers but not resume from them."""
    if processes == 1 or not getattr(args, "unified_checkpoint", False):
        return
    params = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    if len({frozenset(optimizer.state_kinds(param)) for param in params}) > 1:
        message = (
            f"PaddleNLP cannot resume unified checkpoints of {type(optimizer).__name__} in more than one process, "
            "because matrices and vectors have different states: set unified_checkpoint=False."
        )
        raise refusal(ValueError, message, unified_checkpoint=True, processes=processes)
