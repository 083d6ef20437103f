"""Our optimizers as the Trainer builds them: names, arguments, what decays; and what users may pass instead."""

import paddle
from paddle.distributed import fleet
from paddle.optimizer.lr import LRScheduler

from .._checks import shown
from .._paddle import check_wrapper_state, flatten_groups, parameters_of, unwrap
from ..config import json_object
from ..layers.decay import LayerDecay
from ..layers.weight_decay import decayed_parameter_names
from ..optimizers.registry import REGISTRY

__all__ = [
    "OFF",
    "OwnRate",
    "build_optimizer",
    "check_passed_optimizer",
    "check_passed_settings",
    "drop_frozen",
    "freeze",
    "hook_ratios",
    "name_of",
    "sets_own_rate",
]

OFF = LayerDecay(1.0)


class OwnRate(LRScheduler):
    """Stand, in a Trainer, for the schedule of an optimizer that sets its rate itself: it sets nothing and reports it.

    Args:
        optimizer (Optimizer): the optimizer.
    """

    def __init__(self, optimizer):
        self.optimizer = unwrap(optimizer)
        super().__init__(float(self.optimizer.get_lr()))

    def get_lr(self):
        """Return the rate that the optimizer reports."""
        return float(self.optimizer.get_lr())


def sets_own_rate(optimizer):
    """Say whether an optimizer takes its rate from its own steps, so that a scheduler beside it has no effect."""
    optimizer = unwrap(optimizer)
    # Came and Adafactor; Lamb with a sequence or a callable
    return bool(getattr(optimizer, "_relative_step", False)) or getattr(optimizer, "_schedule", None) is not None


def name_of(optim):
    """Return an optimizer's name as a plain string, from the enum of a Trainer or from a string."""
    return str(getattr(optim, "value", optim))


def build_optimizer(chosen, args, model, learning_rate, groups, rule, layers):
    """Return an optimizer of ours with all that the Trainer gives to its own, and the layer-wise rates.

    Args:
        chosen (OptimizerInfo): which one.
        args (TrainingArguments): the Trainer's.
        model (paddle.nn.Layer): the model.
        learning_rate (float|LRScheduler): the rate of a layer whose ratio is 1.
        groups (list[dict]|list[Tensor]|None): what was given to `Trainer.set_optimizer_grouped_parameters`. Dicts say
            themselves what decays, and their "learning_rate" multiplies the layer's rate.
        rule (LayerDecay): the rule.
        layers (LayerMap|None): None if the rule is off.
    """
    parameters = model.parameters() if groups is None else groups
    grouped = any(isinstance(item, dict) for item in parameters)
    kwargs = {name: getattr(args, field) for name, field in chosen.trainer.items()}
    kwargs.update(chosen.external_rate, **{chosen.weight_decay: args.weight_decay})
    kwargs.update(json_object(getattr(args, "optim_kwargs", None), "optim_kwargs"))
    if not grouped and not any(kwargs.get(argument) for argument in chosen.own_exclusion):
        kwargs["apply_decay_param_fun"] = decayed_parameter_names(model).__contains__
    if layers is not None:
        kwargs.update(layers=layers, layerwise_decay=rule)
    return chosen.cls(
        learning_rate=learning_rate,
        parameters=parameters,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(args.max_grad_norm) if args.max_grad_norm > 0 else None,
        multi_precision=args.fp16_opt_level == "O2",
        **kwargs,
    )


def check_passed_optimizer(optimizer, scheduler, optim, rule):
    """Raise if the Trainer, given `optimizers=(optimizer, scheduler)`, would not do what its arguments say.

    Args:
        optimizer (Optimizer): as it is in the Trainer; may be wrapped.
        scheduler (LRScheduler|None): as it is in the Trainer.
        optim (str): the argument `optim`.
        rule (LayerDecay): the rule of the arguments.

    Raises:
        TypeError: the optimizer is inside LookAhead.
        ValueError: the scheduler is not what the optimizer takes its rate from; the arguments ask for another optimizer
            or another rule than the optimizer has.
    """
    check_wrapper_state(optimizer)
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    _check_scheduler(optimizer, scheduler)
    chosen = REGISTRY.get(optim)
    if chosen is not None and not isinstance(optimizer, chosen.cls):
        raise ValueError(
            f"`optimizers` has an optimizer already, so `optim` would be ignored: leave one of them out. "
            f"Received: optim={shown(optim)}, optimizers=({name}, ...)"
        )
    if rule == OFF:
        return
    own = getattr(getattr(optimizer, "_ratio_of", None), "rule", None)
    if own != rule:
        raise ValueError(
            "`optimizers` has an optimizer already, so the arguments' layer-wise decay would be ignored: leave "
            "`layerwise_lr_decay` and its kin at their defaults, or build the optimizer with the same rule (`layers` "
            f"and `layerwise_decay`, or apply_layerwise_decay). Received: layerwise_rule={rule}, and {name} with "
            f"{own or 'no LayerDecay'}"
        )


def check_passed_settings(optimizer, args, layers):
    """Raise if the Trainer was given an optimizer that was built with other options or layers than its arguments say.

    Args:
        optimizer (Optimizer): one that `check_passed_optimizer` lets pass.
        args (TrainingArguments): the Trainer's.
        layers (LayerMap|None): the layers that the argument `layerwise_rules` makes, None without it.

    Raises:
        ValueError: an option has another value, or the optimizer does not tell; a parameter is in another layer.
    """
    optimizer = unwrap(optimizer)
    name = type(optimizer).__name__
    options = json_object(getattr(args, "optim_kwargs", None), "optim_kwargs")
    for param in parameters_of(optimizer):
        has = {"fused": optimizer._fused, **optimizer.fixed_options(), **optimizer.options_of(param)} if options else {}
        for option, value in options.items():
            own = has.get(option, "unknown")
            if (list(own) if isinstance(own, tuple) else own) != value:  # JSON has lists only
                raise ValueError(
                    "`optimizers` has an optimizer already, so `optim_kwargs` would be ignored: leave them out, or "
                    "build the optimizer with the same. "
                    f"Received: optim_kwargs={shown(args.optim_kwargs)}, and {name} with {option}={shown(own)}"
                )
        asked, own = layers and layers.layer_of(param.name), layers and optimizer._ratio_of.layers.layer_of(param.name)
        if asked != own:
            raise ValueError(
                "`optimizers` has an optimizer already, so `layerwise_rules` would be ignored: leave them out, or "
                "build the optimizer with layers=LayerMap.from_model(model, rules). Received: "
                f"layerwise_rules={shown(args.layerwise_rules)}, and {name} with '{param.name}' in {own.label}"
            )


def _check_scheduler(optimizer, scheduler):
    name = type(optimizer).__name__
    own = optimizer._learning_rate
    reports = getattr(scheduler, "optimizer", None) is optimizer  # AdafactorSchedule: it tells what rate was used
    if scheduler is own or (reports and not isinstance(own, LRScheduler)):
        return
    if sets_own_rate(optimizer):
        if scheduler is None:
            return
        remedy = "it sets its rate itself, so give optimizers=(opt, None)"
    elif isinstance(own, LRScheduler):
        remedy = "give optimizers=(opt, opt._learning_rate), the scheduler it was built with"
    else:
        remedy = (
            "build it with a scheduler and give both; scheduler = paddle.optimizer.lr.LambdaDecay(lr, lambda step: 1) "
            "keeps the rate constant"
        )
    what = "None" if scheduler is None else type(scheduler).__name__
    own = "its own" if sets_own_rate(optimizer) else type(own).__name__ if isinstance(own, LRScheduler) else own
    raise ValueError(
        "The Trainer would step a scheduler that the optimizer does not take its rate from, without any effect: "
        f"{remedy}. Received: optimizers=({name}, {what}), where the learning_rate of {name} is {own}"
    )


def freeze(params, ratio_of):
    """Set `stop_gradient` where the ratio is 0, return the names of those (name, parameter) pairs that were trained."""
    frozen = []
    for name, param in params:
        if not param.stop_gradient and ratio_of(param) == 0:
            param.stop_gradient = True
            frozen.append(name)
    return frozen


def drop_frozen(optimizer):
    """Take the frozen parameters out of an optimizer where sharding version 2 will split them: it refuses them."""
    strategy = getattr(fleet.fleet, "_user_defined_strategy", None)
    degrees = {} if strategy is None else strategy.hybrid_configs
    splits = degrees.get("sharding_degree", 1) > 1 and degrees["sharding_configs"].split_param
    if splits and not isinstance(optimizer._param_groups[0], dict):  # version 2 refuses groups itself
        trained = [param for param in optimizer._parameter_list if not param.stop_gradient]
        optimizer._parameter_list = optimizer._param_groups = trained  # as Paddle does with the slices


def hook_ratios(optimizer, model):
    """Return structured name -> ratio if the optimizer's ratios come from a hook of the user's, None if not."""
    ratio_of = getattr(optimizer, "_ratio_of", None)
    if ratio_of is None or hasattr(ratio_of, "rule"):
        return None
    names = {param.name: name for name, param in model.named_parameters()}
    trained = [param for param in flatten_groups(optimizer._parameter_list) if not param.stop_gradient]
    return {names.get(param.name, param.name): float(optimizer.layerwise_ratio(param)) for param in trained}
