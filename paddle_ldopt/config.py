"""All settings of optimizer, layers and schedule in one object: from and to YAML, JSON and a Trainer's arguments.

In order: the object; what is wrong with settings; files.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import json
import os
import re
import types
import warnings
from typing import Any, Optional

import paddle

from ._checks import checked_number, checked_steps, nearest, plain_number, shown
from .build import create
from .layers.decay import LayerDecay
from .layers.map import LayerMap
from .layers.weight_decay import decayed_parameter_names
from .optimizers import Adafactor, AdafactorSchedule
from .optimizers._base.groups import parameters_to_train
from .optimizers.apply import apply_layerwise_decay
from .optimizers.registry import REGISTRY, OptimizerInfo
from .schedules import ON_METRIC, SchedulerType, get_scheduler

__all__ = [
    "BUILT_IN",
    "OPTIMIZERS",
    "RULE_FIELDS",
    "LdoptConfig",
    "json_object",
    "option_problems",
    "read_yaml",
    "rule_problems",
    "tell_all",
    "unknown",
]

RULE_FIELDS = {  # our setting -> field of LayerDecay
    "layerwise_lr_decay": "layerwise_decay",
    "layerwise_convention": "convention",
    "layerwise_min_ratio": "min_ratio",
    "layerwise_head_ratio": "head_ratio",
    "layerwise_freeze_below": "freeze_below",
}
# Kinds that every Trainer has -> the fields of its arguments that shape them. Without `lr_scheduler_kwargs` they stay
# the Trainer's own, so that adding our mixin to a training changes nothing in it.
BUILT_IN: dict = {
    "linear": (),
    "cosine": ("num_cycles",),
    "constant": (),
    "constant_with_warmup": (),
    "polynomial": ("lr_end", "power"),
}
OPTIMIZERS = {"adamw": OptimizerInfo(paddle.optimizer.AdamW, "Paddle's", trainer=REGISTRY["adamwdl"].trainer)}
OPTIMIZERS.update(REGISTRY)
# What other settings say, and what is no number, word or list.
_NO_OPTIONS = {"self", "parameters", "params", "learning_rate", "lr", "weight_decay", "weight_decay_rate", "name"}
_NO_OPTIONS |= {"apply_decay_param_fun", "grad_clip", "layers", "layerwise_decay", "n_layers", "name_dict"}
_NO_OPTIONS |= {"set_param_lr_fun", "lr_ratio", "layerwise", "common"}
_OFF = LayerDecay(1.0)
_ARGUMENT_OF = {field: argument for argument, field in RULE_FIELDS.items()}
_FIELD = re.compile(r"(?<=`)({0})(?=`)|(?<=Received: )({0})(?==)".format("|".join(_ARGUMENT_OF)))
_MOST_PROBLEMS = 40  # that are told at once
_LONG = 10**9  # stands for a number of steps that is not known yet


@dataclasses.dataclass(frozen=True)
class LdoptConfig:
    """Hold all that decides how a model's weights are updated; choose it to keep a training's settings in one file.

    The names are those of the Trainer's arguments with `LdoptArgumentsMixin`. The Trainer's mixin saves the object as
    ``ldopt_config.json`` in each checkpoint, and `RunReport` shows it.

    Args:
        optim (str, optional): one of `list_optimizers`, or "adamw", Paddle's own.
        optim_kwargs (dict, optional): what else the optimizer takes: ``{"beta2": 0.98}``. What is decayed is its to say
            for "adamweightdecay" (`include_in_weight_decay`, `exclude_from_weight_decay`); the others leave out biases
            and the parameters of norms.
        learning_rate (float|None, optional): at least 0, the rate of a layer whose ratio is 1; None for Adafactor and
            Came with ``{"relative_step": True}``, which sets it.
        weight_decay (float, optional): at least 0.
        max_grad_norm (float, optional): at least 0, the norm that all gradients together are clipped to; 0 is off.
        layerwise_lr_decay (float, optional): ratio of the rates of neighbouring layers, in (0, 1]; 1 is off.
        layerwise_convention (str, optional): which power each layer gets: "paddlenlp", "electra" or "xlnet".
        layerwise_min_ratio (float, optional): floor of the ratios, in [0, 1].
        layerwise_head_ratio (float, optional): ratio of the head, above 0.
        layerwise_freeze_below (float, optional): layers with a ratio below it are frozen, in [0, 1].
        layerwise_rules (dict, optional): the `rules` of `LayerMap.from_model`.
        lr_scheduler_type (str, optional): any `SchedulerType`.
        lr_scheduler_kwargs (dict, optional): the `scheduler_specific_kwargs` of `get_scheduler`.
        warmup_steps (int, optional): at least 0, steps of the warm-up.
        warmup_ratio (float, optional): in [0, 1], the same as a part of all steps; instead of `warmup_steps`.

    Raises:
        ValueError: anything is wrong; the message has all there is, not the first alone.

    Examples:
        .. code-block:: python

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

    optim: str = "adamwdl"
    optim_kwargs: dict = dataclasses.field(default_factory=dict)
    learning_rate: Optional[float] = 5e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    layerwise_lr_decay: float = 1.0
    layerwise_convention: str = "paddlenlp"
    layerwise_min_ratio: float = 0.0
    layerwise_head_ratio: float = 1.0
    layerwise_freeze_below: float = 0.0
    layerwise_rules: Optional[dict] = None
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: dict = dataclasses.field(default_factory=dict)
    warmup_steps: int = 0
    warmup_ratio: float = 0.0

    def __post_init__(self):
        tell_all(_problems(self))
        for field in _defaults(type(self)):  # plain numbers, for JSON; copies, whose changes would go unchecked
            object.__setattr__(self, field, _copied(getattr(self, field)))

    def build(self, model, num_training_steps=None):
        """Return the optimizer of a model's parameters and its schedule, for a loop without a Trainer.

        Args:
            model (paddle.nn.Layer): the model.
            num_training_steps (int, optional): optimizer steps; for the schedules that need it.

        Returns:
            tuple[Optimizer, LRScheduler|None]: the schedule is the one the optimizer takes its rate from; with a
            relative step an `AdafactorSchedule`, or None for Came.

        Raises:
            ValueError: the schedule needs `num_training_steps`; the model's layers are not found.
        """
        if not hasattr(model, "named_sublayers"):
            raise TypeError(f"`model` must be a paddle.nn.Layer. Received: model of type {type(model).__name__}")
        arguments = {OPTIMIZERS[self.optim].weight_decay: self.weight_decay, **self.optim_kwargs}
        arguments["grad_clip"] = _clip(self.max_grad_norm)
        rule, schedule = self.layerwise_rule, None
        if self.learning_rate is not None:
            arguments["learning_rate"] = schedule = self._schedule(num_training_steps)
        if self.optim in REGISTRY:
            opt = create(self.optim, model, rule, self.layerwise_rules, **arguments)
        else:
            arguments["parameters"] = parameters_to_train(model)
            arguments["apply_decay_param_fun"] = decayed_parameter_names(model).__contains__
            opt = paddle.optimizer.AdamW(**arguments)
            if rule != _OFF:
                apply_layerwise_decay(opt, LayerMap.from_model(model, self.layerwise_rules), rule)
        return opt, AdafactorSchedule(opt) if schedule is None and isinstance(opt, Adafactor) else schedule

    def _schedule(self, steps):
        warmup = self.warmup_steps
        if self.warmup_ratio:
            if steps is None:
                raise ValueError(
                    "`warmup_ratio` is a part of all steps: give their number. Received: num_training_steps=None"
                )
            warmup = int(self.warmup_ratio * steps)
        return _build_schedule(self, warmup, steps, self.lr_scheduler_kwargs)

    @property
    def layerwise_rule(self):
        """The `LayerDecay` that the settings make together."""
        return LayerDecay(**{field: getattr(self, argument) for argument, field in RULE_FIELDS.items()})

    @classmethod
    def from_dict(cls, values):
        """Return the object with the settings of a dict; raise ValueError that has all that is wrong with it."""
        if not isinstance(values, dict):
            raise TypeError(f"The settings must be a dict. Received: {shown(values)}")
        known = _defaults(cls)
        wrong = (unknown("setting", key, value, known) for key, value in values.items() if key not in known)
        valid = {key: value for key, value in values.items() if key in known}
        tell_all(itertools.chain(wrong, _problems(types.SimpleNamespace(**{**known, **valid}))))
        return cls(**valid)

    def to_dict(self):
        """Return all settings as a dict of what JSON and YAML can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, path):
        """Return the object whose settings are in a JSON file; raise ValueError as `from_dict`, and for a key twice."""
        with open(_path(path), encoding="utf-8") as file, _naming("JSON", path):
            values = json.load(file, object_pairs_hook=_once)
        return cls.from_dict(values)

    def to_json(self, path):
        """Write a JSON file that `from_json` reads."""
        with open(_path(path), "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=1)

    @classmethod
    def from_yaml(cls, path):
        """Return the object whose settings are in a YAML file; raise ValueError as `from_dict`, and for a key twice."""
        return cls.from_dict(read_yaml(path))

    def to_yaml(self, path):
        """Write a YAML file that `from_yaml` reads."""
        import yaml

        with open(_path(path), "w", encoding="utf-8") as file:
            yaml.safe_dump(self.to_dict(), file, sort_keys=False)

    @classmethod
    def from_arguments(cls, args):
        """Return the object that says what a Trainer does with its arguments.

        Args:
            args (TrainingArguments): of PaddleNLP or PaddleFormers, with `LdoptArgumentsMixin` or without.

        Raises:
            ValueError: an optimizer of the Trainer's own other than "adamw"; as the class.
        """
        optim, kind = _plain(args.optim), _plain(args.lr_scheduler_type)
        options = json_object(getattr(args, "optim_kwargs", None), "optim_kwargs")
        if optim in OPTIMIZERS:
            defaults = _options(OPTIMIZERS[optim].cls)
            mapped = {name: getattr(args, field) for name, field in OPTIMIZERS[optim].trainer.items()}
            options.update({name: value for name, value in mapped.items() if value != defaults[name]})
        if args.fp16_opt_level == "O2":
            options["multi_precision"] = True
        kwargs = {field: getattr(args, field) for field in BUILT_IN.get(kind, ())}
        kwargs = {field: value for field, value in kwargs.items() if value != _defaults(type(args))[field]}
        kwargs.update(json_object(getattr(args, "lr_scheduler_kwargs", None), "lr_scheduler_kwargs"))
        if kind in ON_METRIC and args.greater_is_better is not None:
            kwargs["mode"] = "max" if args.greater_is_better else "min"
        own = {name: getattr(args, name) for name in RULE_FIELDS if hasattr(args, name)}
        rules = json_object(getattr(args, "layerwise_rules", None), "layerwise_rules")
        return cls(
            optim=optim,
            optim_kwargs=options,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            max_grad_norm=max(args.max_grad_norm, 0.0),  # the Trainer takes any below 0 for off
            **own,
            layerwise_rules=rules or None,
            lr_scheduler_type=kind,
            lr_scheduler_kwargs=kwargs,
            warmup_steps=args.warmup_steps,
            warmup_ratio=0.0 if args.warmup_steps > 0 else args.warmup_ratio,  # as the Trainer reads them
        )

    def to_arguments(self):
        """Return the settings as keyword arguments of a Trainer's arguments with `LdoptArgumentsMixin`.

        Raises:
            ValueError: a relative step, which the Trainer takes as ``optimizers=config.build(model)`` only.
        """
        if self.learning_rate is None:
            raise ValueError(
                "An optimizer that sets its rate itself goes to the Trainer as `optimizers=config.build(model)`. "
                f"Received: optim_kwargs={shown(self.optim_kwargs)}"
            )
        info, out = OPTIMIZERS[self.optim], self.to_dict()
        options, kwargs = out.pop("optim_kwargs"), out.pop("lr_scheduler_kwargs")
        defaults = _options(info.cls)
        out.update({field: options.pop(name, defaults[name]) for name, field in info.trainer.items()})
        if options.pop("multi_precision", False):
            out["fp16_opt_level"] = "O2"
        if "mode" in kwargs:
            out["greater_is_better"] = kwargs.pop("mode") == "max"
        for name, value in (
            ("optim_kwargs", options),
            ("lr_scheduler_kwargs", kwargs),
            ("layerwise_rules", self.layerwise_rules),
        ):
            out[name] = json.dumps(value) if value else None
        return out


def tell_all(problems):
    """Raise one ValueError that lists the problems, the first 40 at most; return if there is none.

    Args:
        problems (Iterable[str]): what is wrong, each a sentence or two.
    """
    found = list(dict.fromkeys(itertools.islice(problems, _MOST_PROBLEMS)))
    if len(found) == 1:
        raise ValueError(found[0])
    if found:
        lines = "".join(f"\n  {i}. {problem}" for i, problem in enumerate(found, 1))
        more = " or more" if len(found) == _MOST_PROBLEMS else ""
        raise ValueError(f"{len(found)}{more} settings are wrong:{lines}")


def rule_problems(settings):
    """Yield what is wrong with the layer-wise settings, those that would have no effect included.

    Args:
        settings (LdoptConfig|TrainingArguments): anything with the attributes of `RULE_FIELDS`.
    """
    found = []
    for argument, field in RULE_FIELDS.items():  # one by one, for LayerDecay tells the first only
        try:
            LayerDecay(**{"layerwise_decay": 1.0, field: getattr(settings, argument)})
        except (TypeError, ValueError) as error:
            found.append(_FIELD.sub(lambda match: _ARGUMENT_OF[match.group()], str(error)))
    yield from found
    if found:
        return
    rule = LayerDecay(**{field: getattr(settings, argument) for argument, field in RULE_FIELDS.items()})
    for argument, field in RULE_FIELDS.items():
        value = getattr(rule, field)
        if rule.layerwise_decay == 1.0 and field != "head_ratio" and value != getattr(_OFF, field):
            yield (
                f"`{argument}` has no effect while `layerwise_lr_decay` is 1: every layer has a ratio of 1 (the head "
                f"`layerwise_head_ratio`). Received: {argument}={shown(value)}"
            )
    if rule.min_ratio and rule.freeze_below:
        yield (
            "`layerwise_min_ratio` and `layerwise_freeze_below` exclude each other: what the floor lifts is either "
            f"frozen all the same or nothing is. Received: layerwise_min_ratio={shown(rule.min_ratio)}, "
            f"layerwise_freeze_below={shown(rule.freeze_below)}"
        )
    if isinstance(settings.layerwise_rules, (str, dict)) and settings.layerwise_rules and rule == _OFF:
        yield (
            "`layerwise_rules` have no effect without a layer-wise decay. "
            f"Received: layerwise_rules={shown(settings.layerwise_rules)}"
        )


def option_problems(optim, options, learning_rate=1e-3, weight_decay=0.0, max_grad_norm=0.0):
    """Yield what is wrong with the options of an optimizer, found by building one over a parameter of one number.

    Args:
        optim (str): its name, one that is known.
        options (dict): the options.
        learning_rate (float|None, optional): the rate, None if the optimizer sets it itself.
        weight_decay (float, optional): the weight decay.
        max_grad_norm (float, optional): the norm to clip to.
    """
    info = OPTIMIZERS[optim]
    known = _options(info.cls)
    yield from (unknown(f"option of {shown(optim)}", key, options[key], known) for key in options if key not in known)

    def attempt(given):
        arguments = {info.weight_decay: weight_decay, "grad_clip": _clip(max_grad_norm), **given}
        if learning_rate is not None:  # a schedule, as in `build`
            arguments = {**info.external_rate, "learning_rate": get_scheduler("constant", learning_rate), **arguments}
        with paddle.utils.unique_name.guard():
            zero = paddle.nn.initializer.Constant(0.0)
            info.cls(parameters=[paddle.create_parameter([1], "float32", default_initializer=zero)], **arguments)

    yield from _each_problem(attempt, {key: value for key, value in options.items() if key in known})


def _problems(config):
    """Yield all that is wrong with the settings."""
    unreadable = []
    for field, check in (
        ("learning_rate", functools.partial(checked_number, kind="a number or None")),
        ("weight_decay", checked_number),
        ("max_grad_norm", checked_number),
        ("warmup_ratio", functools.partial(checked_number, high=1.0)),
        ("warmup_steps", checked_steps),
        ("optim_kwargs", _check_names),
        ("lr_scheduler_kwargs", _check_names),
        ("layerwise_rules", _check_rules),
    ):
        value = getattr(config, field)
        try:
            if value is not None or field not in ("learning_rate", "layerwise_rules"):
                check(value, field)
        except (TypeError, ValueError) as error:
            unreadable.append(str(error))
    yield from [*unreadable, *rule_problems(config)]
    yield from _optimizer_problems(config, bool(unreadable))
    yield from _schedule_problems(config, bool(unreadable))


def _check_names(value, field):
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"`{field}` must be a dict. Received: {field}={shown(value)}")


def _check_rules(value, field):
    _check_names(value, field)
    if any(isinstance(layer, bool) or not isinstance(layer, (int, str)) for layer in value.values()):
        raise TypeError(f"`{field}` must map names to layer ids or strings. Received: {field}={shown(value)}")


def _copied(value):
    """Return a copy of a value in the types that JSON can hold."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(plain_number(value))


def _optimizer_problems(config, unreadable):
    if not isinstance(config.optim, str) or config.optim not in OPTIMIZERS:
        yield unknown("optimizer", config.optim, None, OPTIMIZERS, f"optim={shown(config.optim)}")
    elif isinstance(config.optim_kwargs, dict) and _sets_its_rate(config) != (config.learning_rate is None):
        yield (
            "`learning_rate` must be None with `relative_step`, which sets the rate, and only then. Received: "
            f"optim={shown(config.optim)}, learning_rate={shown(config.learning_rate)}, "
            f"optim_kwargs={shown(config.optim_kwargs)}"
        )
    elif isinstance(config.optim_kwargs, dict):
        sure = {} if unreadable else {name: getattr(config, name) for name in ("weight_decay", "max_grad_norm")}
        rate = None if config.learning_rate is None else 1e-3
        yield from option_problems(config.optim, config.optim_kwargs, rate, **sure)
    if config.learning_rate is None:
        shape = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
        given = {name: getattr(config, name) for name in shape}
        given = {name: value for name, value in given.items() if value != _defaults(LdoptConfig)[name]}
        if given:
            received = ", ".join(f"{name}={shown(value)}" for name, value in given.items())
            yield f"No schedule has an effect while `learning_rate` is None: the step sets it. Received: {received}"


def _sets_its_rate(config):
    """Say whether the options have the optimizer set its rate; with a rate those who can both ways do not."""
    usual = _options(OPTIMIZERS[config.optim].cls).get("relative_step", False) and config.learning_rate is None
    return config.optim_kwargs.get("relative_step", usual) is True


def _schedule_problems(config, unreadable):
    kind = config.lr_scheduler_type
    kinds = [member.value for member in SchedulerType]
    if not isinstance(kind, str) or kind not in kinds:
        yield unknown("schedule", kind, None, kinds, f"lr_scheduler_type={shown(kind)}")
        return
    if unreadable or config.learning_rate is None:
        return
    received = f"Received: warmup_steps={shown(config.warmup_steps)}, warmup_ratio={shown(config.warmup_ratio)}"
    if config.warmup_steps and config.warmup_ratio:
        yield f"`warmup_steps` and `warmup_ratio` exclude each other. {received}"
    if kind in ON_METRIC and (config.warmup_steps or config.warmup_ratio):
        yield f"The schedule {shown(kind)} has no warm-up. {received}"
    if kind == "constant" and (config.warmup_steps or config.warmup_ratio):
        yield f"The schedule 'constant' has no warm-up: use 'constant_with_warmup'. {received}"
    warmup = config.warmup_steps or int(config.warmup_ratio * _LONG)

    def attempt(kwargs):
        _build_schedule(config, warmup, _LONG, kwargs)

    yield from (f"`lr_scheduler_kwargs`: {problem}" for problem in _each_problem(attempt, config.lr_scheduler_kwargs))


def _build_schedule(config, warmup, steps, kwargs):
    kind = config.lr_scheduler_type
    timed = {} if kind in ON_METRIC else {"num_warmup_steps": warmup, "num_training_steps": steps}
    return get_scheduler(kind, config.learning_rate, **timed, scheduler_specific_kwargs=kwargs or None)


def _each_problem(attempt, options):
    """Yield what `attempt` says of each option that it refuses: what it names is left out of the next attempt."""
    left = dict(options)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they come again when it is built for good
                attempt(left)
            return
        except (AssertionError, TypeError, ValueError) as error:  # Paddle's own optimizers assert
            text = str(error) or f"There is a value that cannot be. Received: {shown(left)}"
            yield text
            received = text.rpartition("Received: ")[2]
            named = [name for name in left if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", received)]
            if not named:
                return
            left = {name: value for name, value in left.items() if name not in named}


def unknown(what, key, value, known, received=None, most=20):
    """Return the sentence that says that there is no such name, which is the nearest, and which there are if few.

    Args:
        what (str): what it was taken for.
        key (str): the name.
        value: what it was given, for "Received".
        known (Iterable[str]): the names that there are.
        received (str, optional): instead of the name and its value.
        most (int, optional): with more names than these they are left out.
    """
    names = list(known)
    valid = f" Valid: {', '.join(names)}." if len(names) <= most else ""
    name = shown(key)
    received = received or f"{name if not isinstance(key, str) or len(key) > len(name) else key}={shown(value)}"
    return f"{name} is no {what}{nearest(key, names, 0.4)}.{valid} Received: {received}"


def _options(cls):
    """Return the names and defaults of what `optim_kwargs` may hold."""
    parameters = inspect.signature(cls).parameters
    return {name: taken.default for name, taken in parameters.items() if name not in _NO_OPTIONS}


def _defaults(cls):
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
    }


def _clip(max_grad_norm):
    return paddle.nn.ClipGradByGlobalNorm(max_grad_norm) if max_grad_norm > 0 else None


def _plain(name):
    return str(getattr(name, "value", name))  # a Trainer has enums


@contextlib.contextmanager
def _naming(kind, path):
    """Make one ValueError, which names the file, of all errors that the content of a file of settings can be."""
    try:
        yield
    except RecursionError:
        raise ValueError(f"This {kind} is nested too deeply. Received: {os.fspath(path)!r}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"This {kind} cannot be read: {error}. Received: {os.fspath(path)!r}") from error


def json_object(value, name):
    """Return an argument that holds a JSON object, or is one, as a dict; an empty one for None.

    Args:
        value (str|dict|None): the argument.
        name (str): what it is called.

    Raises:
        ValueError: it is no JSON object.
    """
    found: Any = value
    why = ""
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (RecursionError, ValueError) as error:
            why = f" ({error})"
    if found is not None and not isinstance(found, dict):
        raise ValueError(
            f"`{name}` must be a JSON object such as '{{\"min_lr\": 1e-6}}'{why}. Received: {name}={shown(value)}"
        )
    return dict(found or {})


def read_yaml(path):
    """Return what is in a YAML file, in which 1e-5 is a number and no key may be there twice.

    Args:
        path (str|os.PathLike): the file.

    Raises:
        ValueError: it is no YAML, is nested too deeply, or has a key twice.
    """
    import yaml

    path = _path(path)

    class Loader(yaml.SafeLoader):
        """PyYAML's, with the numbers of YAML 1.2."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )

    def mapping(loader, node):
        return _once([(loader.construct_object(k, True), loader.construct_object(v, True)) for k, v in node.value])

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    with open(path, encoding="utf-8") as file, _naming("YAML", path):
        try:
            return yaml.load(file, Loader)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def _path(path):
    """Return a path, raise TypeError if it is none: `open` takes a number for a file that is open, and closes it."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be a string or a path. Received: path={shown(path)}")
    return path


def _once(pairs):
    """Return a dict of (key, value), raise ValueError if a key is there twice: the first would be lost."""
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"A key is there twice. Received: {shown(next(k for k in keys if keys.count(k) > 1))}")
    return out
