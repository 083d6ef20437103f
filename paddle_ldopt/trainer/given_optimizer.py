"""Optimizers that users pass to the Trainer: whether they do what its arguments say."""

from typing import Any, Optional

from paddle.optimizer.lr import LRScheduler

from .._messages import shown
from .._paddle import check_wrapper_state, parameters_of, rate_source, unwrap
from ..build import OFF
from ..config import json_object
from ..layers.decay import LayerDecay
from ..layers.map import LayerMap
from ..layers.rates import sets_own_rate
from ..layers.ratios import decay_of
from ..optimizers.registry import REGISTRY


class OwnRate(LRScheduler):
    """Stand for the schedule of an optimizer that sets its rate itself: it sets nothing and reports the rate."""

    def __init__(self, optimizer: Any):
        self.optimizer = unwrap(optimizer)
        super().__init__(float(self.optimizer.get_lr()))

    def get_lr(self) -> float:
        """Return the rate that the optimizer reports."""
        return float(self.optimizer.get_lr())


def check_given_optimizer(optimizer: Any, scheduler: Any, optim: str, decay: LayerDecay) -> None:
    """Raise if the Trainer, given `optimizers=(optimizer, scheduler)`, would not do what its arguments say."""
    check_wrapper_state(optimizer)
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    _check_scheduler(optimizer, scheduler)
    chosen = REGISTRY.get(optim)
    if chosen is not None and not isinstance(optimizer, chosen.cls):
        raise _ignored("`optim`", "leave one of them out", f"optim={shown(optim)}, optimizers=({name}, ...)")
    own = decay_of(optimizer)
    if decay not in (own, OFF):
        raise _ignored(
            "the arguments' layer-wise decay",
            "leave `layerwise_lr_decay` and its kin at their defaults, or build the optimizer with the same decay "
            "(`layers` and `layerwise_decay`, or apply_layerwise_decay)",
            f"layerwise_decay={decay}, and {name} with {own or 'no LayerDecay'}",
        )


def check_given_settings(optimizer: Any, args: Any, layers: Optional[LayerMap]) -> None:
    """Raise if an optimizer has other options than `optim_kwargs`, or other layers than `layerwise_rules` make."""
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    options = json_object(getattr(args, "optim_kwargs", None), "optim_kwargs")
    remedy = "leave them out, or build the optimizer with"
    for param in parameters_of(optimizer):
        has = {"fused": optimizer.fused, **optimizer.fixed_options(), **optimizer.options_of(param)} if options else {}
        for option, value in options.items():
            own = has.get(option, "unknown")
            if (list(own) if isinstance(own, tuple) else own) != value:  # JSON has lists only
                received = f"optim_kwargs={shown(args.optim_kwargs)}, and {name} with {option}={shown(own)}"
                raise _ignored("`optim_kwargs`", f"{remedy} the same", received)
        if layers is None:
            continue
        own = optimizer.ratio_of.layers.layer_of(param.name)
        if layers.layer_of(param.name) != own:
            rules = f"layerwise_rules={shown(args.layerwise_rules)}"
            received = f"{rules}, and {name} with '{param.name}' in {own.label}"
            raise _ignored("`layerwise_rules`", f"{remedy} layers=LayerMap.from_model(model, rules)", received)


def _ignored(argument: str, remedy: str, received: str) -> ValueError:
    problem = f"`optimizers` has an optimizer already, so {argument} would be ignored: {remedy}."
    return ValueError(f"{problem} Received: {received}")


def _check_scheduler(optimizer: Any, scheduler: Any) -> None:
    name, own = type(optimizer).__name__, rate_source(optimizer)
    scheduled, sets_own = isinstance(own, LRScheduler), sets_own_rate(optimizer)
    reports = getattr(scheduler, "optimizer", None) is optimizer  # AdafactorSchedule: it tells what rate was used
    if scheduler is own or (reports and not scheduled) or (sets_own and scheduler is None):
        return
    if sets_own:
        remedy, rate = "it sets its rate itself, so give optimizers=(opt, None)", "its own"
    elif scheduled:
        remedy, rate = "give optimizers=(opt, scheduler) with the scheduler it was built with", type(own).__name__
    else:
        constant = "scheduler = paddle.optimizer.lr.LambdaDecay(lr, lambda step: 1) keeps the rate constant"
        remedy, rate = f"build it with a scheduler and give both; {constant}", own
    passed = "None" if scheduler is None else type(scheduler).__name__
    raise ValueError(
        "The Trainer would step a scheduler that the optimizer does not take its rate from, without any effect: "
        f"{remedy}. Received: optimizers=({name}, {passed}), where the learning_rate of {name} is {rate}"
    )
