"""The table of all optimizers, the options that several declare, and checks of parameters and groups."""

import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any, Callable, TypeVar, cast

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from .._checks import (
    REQUIRED,
    Option,
    checked_bool,
    checked_int,
    checked_number,
    nearest,
    one_of_two,
    plain_number,
    refusal,
    shown,
    wrong_type,
)
from .._compat import flatten_groups, topology
from .layer_rates import LAYERWISE, warn_of_absolute_rates
from .states import SCALAR, STEP, State, StepFunction, Values

_Class = TypeVar("_Class", bound=type)

from_one = functools.partial(checked_int, least=1)


def bool_option(doc: str, **more: Any) -> Option:
    return Option(doc=doc, check=checked_bool, **more)


# read by the base classes; `AdamWDL` has no batches
COMMON = {
    "multi_precision": bool_option("keep float32 masters of float16 and bfloat16 parameters"),
    "fused": bool_option("take the step in the C library; None: if possible", optional=True),
    "batch_bytes": Option(
        doc="maximum bytes of parameters updated together", optional=True, check=checked_int, values="an int from 0"
    ),
}


def decay_option(doc: str, **more: Any) -> Option:
    return Option(doc=doc, high=1.0, ends="[)", group=True, **more)


def numbers(*ends: str, low: float = 0.0) -> Callable[[Any, str], tuple[float, ...]]:
    """Return a check for a tuple of numbers from `low` on, each with the brackets of its range."""

    def check(value: Any, name: str) -> tuple[float, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(ends):
            raise refusal(ValueError, f"`{name}` must be a tuple of {len(ends)} numbers.", **{name: value})
        return tuple(checked_number(v, f"{name}[{i}]", low, ends=e) for i, (v, e) in enumerate(zip(value, ends)))

    return check


def plain_weight_decay(value: Any, name: str) -> Any:
    if isinstance(value, WeightDecayRegularizer):
        wrong = f"`{name}` must be a number such as 0.01, which decays the weights themselves, not a penalty."
        raise refusal(TypeError, wrong, f"{name}={type(value).__name__}")
    return 0.0 if value is None else value


def checked_lr(learning_rate: Any, argument: str) -> Any:
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    expected = "a number or an LRScheduler; parameters go into `parameters=`"
    return checked_number(learning_rate, argument, expected=expected)


def lr_or_function(value: Any, argument: str) -> Any:
    if isinstance(value, LRScheduler):
        return value
    value = plain_number(value)
    value = value.tolist() if isinstance(value, (paddle.Tensor, np.ndarray)) else value
    if callable(value):
        return StepFunction(value, argument)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset)):
        return StepFunction([checked_number(v, f"{argument}[{i}]") for i, v in enumerate(value)], argument)
    expected = "a number, a Tensor, an iterable of numbers, an LRScheduler or a callable of the step"
    return checked_number(value, argument, expected=expected)


def decay_or_function(value: Any, argument: str) -> Any:
    if callable(value) and not isinstance(value, (WeightDecayRegularizer, LRScheduler)):
        return StepFunction(value, argument)
    return checked_number(plain_weight_decay(value, argument), argument, expected="a number or a callable of the step")


# ---- options that several optimizers have

OWN_RATE = Option(None, "the group's own rate", optional=True, group=True, argument=False, in_rule=False)
OWN_SCHEDULE = dataclasses.replace(OWN_RATE, check=lr_or_function, values="[0, inf) or a schedule")
CLIP_THRESHOLD = Option(doc="the largest RMS of the update", ends="()", group=True)
SCALE_PARAMETER = bool_option("scale the rate by the parameter's RMS", group=True)
RELATIVE_STEP = bool_option("compute the rate from the step number")
WEIGHT_DECAY = Option(doc="decoupled weight decay", group=True, read=plain_weight_decay)

# options -> fields of a Trainer's arguments
BETAS = {"beta1": "adam_beta1", "beta2": "adam_beta2"}
ADAM = {**BETAS, "epsilon": "adam_epsilon"}


# ---- the table of optimizers


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """A registered optimizer."""

    cls: type[Any]
    summary: str  # when to choose it, and bytes of state per parameter
    # setting -> field of a Trainer's arguments
    trainer: dict[str, str] = dataclasses.field(default_factory=dict)
    external_rate: dict[str, Any] = dataclasses.field(default_factory=dict)  # with a learning rate
    own_exclusion: str = ""  # the argument that excludes parameters from weight decay
    options: dict[str, Option] = dataclasses.field(default_factory=dict)
    instead_of_layers: str = ""  # the argument that can replace `layers`, if these decide more than ratios

    @property
    def settings(self) -> dict[str, Option]:
        """Name in `create` and `LdoptConfig` -> option of the constructor, except weight decay."""
        chosen = {name: option for name, option in self.options.items() if option.argument and name != "weight_decay"}
        return {option.setting or name: option for name, option in chosen.items()}

    def setting(self, name: str) -> str:
        """Return an option's key in `settings`, given its name in the class."""
        return (name in self.options and self.options[name].setting) or name

    @property
    def all_arguments(self) -> set[str]:
        layerwise = LAYERWISE if hasattr(self.cls, "layerwise_ratio") else ["layerwise_decay"]
        return {*self.settings, *layerwise, *_arguments(self.cls)} - {"self"}

    def states(self, options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, State]:
        defaults = {name: option.default for name, option in self.options.items()}
        return {**self.cls.states({**defaults, **options}, shape), STEP: State(SCALAR)}


REGISTRY: dict[str, OptimizerInfo] = {}


def register(summary: str, **fields: Any) -> Callable[[_Class], _Class]:
    """Register a class under its name in lower case.

    `fields` are fields of `OptimizerInfo`. An option without a default takes the default of the constructor's argument.
    """

    def add(cls: Any) -> Any:
        if cls.__name__.lower() == "adamw":
            raise refusal(ValueError, 'The name "adamw" is that of Paddle\'s optimizer: choose another.', cls=cls)
        arguments = _arguments(cls)
        options = {**cls.OPTIONS, **{name: option for name, option in COMMON.items() if name in arguments}}
        for name, option in options.items():
            if option.default is REQUIRED:
                options[name] = dataclasses.replace(option, default=arguments[option.called or name])
        REGISTRY[cls.__name__.lower()] = OptimizerInfo(cls, summary, options=options, **fields)
        return cls

    return add


def _arguments(cls: type) -> dict[str, Any]:
    """Argument -> default, also of the bases that receive the arguments."""
    arguments: dict[str, Any] = {}
    for init in [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]:
        parameters = inspect.signature(init).parameters.values()
        arguments = {**{p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}, **arguments}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return arguments


def list_optimizers() -> list[str]:
    """Return the names of our optimizers; `create` and the Trainer's ``--optim`` also accept "adamw", Paddle's own.

    Examples:
        >>> import paddle_ldopt as ldopt
        >>> "adamwdl" in ldopt.list_optimizers()
        True
    """
    return list(REGISTRY)


def optimizer_class(name: str) -> type:
    """Return the class of an optimizer by its name in `list_optimizers`; raise ValueError for another."""
    if not isinstance(name, str) or name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY)) + nearest(name, REGISTRY)
        raise refusal(ValueError, f"`name` must be one of {known}.", f"name={shown(name)}")
    return REGISTRY[name].cls


# ---- parameters and groups

GROUP_KEYS = {"params", "learning_rate", "grad_clip"}
GROUP_LABELS = {"dygraph_key_name", "group", "lr_scale", "name"}  # set by ernie-m, PaddleMIX and timm, without effect


def passed_on(local: Values) -> Values:
    """Given `locals()`, return a constructor's arguments for the base class's constructor."""
    arguments = {name: value for name, value in local.items() if name not in {"self", "__class__", "params", "common"}}
    if "params" in local:
        arguments["parameters"] = one_of_two("parameters", arguments["parameters"], "params", local["params"])
    return {**arguments, **local.get("common", {})}


_Constructor = TypeVar("_Constructor", bound=Callable[..., None])


def parameters_first(constructor: _Constructor) -> _Constructor:
    """Decorate a constructor: parameters as the first argument (MindSpore) become `params`."""

    @functools.wraps(constructor)
    def with_params(self: Any, *args: Any, **kwargs: Any) -> None:
        first = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        if any(isinstance(item, dict) or not getattr(item, "stop_gradient", True) for item in first):
            constructor(self, *args[1:], params=args[0], **kwargs)
        else:
            constructor(self, *args, **kwargs)

    return cast(_Constructor, with_params)


def checked_parameters(parameters: Any, options: dict[str, Option]) -> Any:
    """Return parameters or groups as a list, without MindSpore's "order_params"; None in a static graph."""
    if parameters is None and not paddle.in_dynamic_mode():
        return None
    if not hasattr(parameters, "__iter__") or isinstance(parameters, (paddle.Tensor, np.ndarray, dict, str)):
        raise wrong_type(parameters, "parameters", "a list of parameters or of parameter groups")
    items = [item for item in parameters if not (isinstance(item, dict) and "order_params" in item)]
    groups = [checked_group(item, options) for item in items if isinstance(item, dict)]
    warn_of_absolute_rates(groups)
    if groups and len(groups) < len(items):
        raise refusal(TypeError, "`parameters` must hold either parameters or parameter groups.", "both")
    names: dict[str, None] = {}
    params = flatten_groups(groups) if groups else items
    for param in params:
        if not hasattr(param, "stop_gradient"):
            received = f"{shown(param)} of type {type(param).__name__}"
            raise refusal(TypeError, "`parameters` must hold parameters.", received)
        if param.name in names:
            wrong = "Parameters need different names, by which Paddle keeps their state: build their models in one"
            advice = "`paddle.utils.unique_name.guard()`, or in none; and list none of them twice."
            raise refusal(ValueError, f"{wrong} {advice}", f"'{param.name}'")
        names[param.name] = None
    hcg = topology()
    is_stage = hcg is not None and hcg.get_pipe_parallel_world_size() > 1  # the others may train
    if all(param.stop_gradient for param in params) and not (names and is_stage):
        received = f"{len(names)} parameters, all frozen" if names else "parameters=[]"
        raise refusal(ValueError, "`parameters` holds no trainable parameter.", received)
    return groups or items


def checked_group(group: dict[str, Any], options: dict[str, Option]) -> dict[str, Any]:
    if "params" not in group:
        raise refusal(ValueError, "A parameter group must have 'params'.", f"keys {shown(list(group))}")
    known_keys = GROUP_KEYS | {name for name, option in options.items() if option.group}
    unknown = group.keys() - known_keys - GROUP_LABELS
    if unknown:
        known = ", ".join(map(repr, sorted(known_keys)))
        received = ", ".join(sorted(str(key)[:50] for key in unknown)[:8])
        meaning = " 'learning_rate' is a multiplier of the optimizer's rate." if "lr" in unknown else ""
        raise refusal(ValueError, f"A parameter group may only have the keys {known}.{meaning}", received)
    params, rate = group["params"], group.get("learning_rate", 1.0)
    if group.get("lr") is not None and "learning_rate" in group:
        rates = "either 'lr', its absolute rate, or 'learning_rate', a multiplier of the optimizer's rate"
        raise refusal(ValueError, f"A parameter group takes {rates}, not both.", lr=group["lr"], learning_rate=rate)
    if isinstance(params, (set, str)):
        raise wrong_type(params, "params", "an ordered collection")
    if not isinstance(rate, paddle.Tensor):  # a Tensor is Paddle's way to give an absolute rate
        rate = checked_number(rate, "learning_rate", expected="a number: in a group it is a multiplier of the rate")
    scale = checked_number(group.get("lr_scale", 1.0), "lr_scale", expected="a number: it is a label of a group")
    if scale != 1.0 and "learning_rate" not in group and group.get("lr") is None:
        advice = "give the group its 'learning_rate', a multiplier of the optimizer's."
        raise refusal(ValueError, f"'lr_scale' is a label and has no effect: {advice}", lr_scale=group["lr_scale"])
    given = {"learning_rate": rate} if "learning_rate" in group else {}
    given.update((name, options[name].checked(value, name)) for name, value in group.items() if name in options)
    return {**group, **given, "params": [params] if hasattr(params, "stop_gradient") else list(params)}
