"""Our optimizers in configuration files of other Paddle frameworks: ``paddleclas.register()`` and so on.

Call it before the framework builds its optimizer. docs/frameworks.md lists the settings.
"""

import dataclasses
import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Optional

import paddle

from ._checks import checked_bool, checked_number, problem, refusal, unknown, wrong_type
from ._compat import name_dict_of, parameters_of
from ._files import YAML_EXPONENT
from .checkpoint import layerwise_record, record_differences
from .create import OFF, build_optimizer, included_names, named_by_letters
from .layers.decay import OPTIONS as DECAY_OPTIONS
from .layers.decay import LayerDecay
from .optimizers.options import REGISTRY
from .rates import layerwise_interface

NAMES: dict[str, str] = {info.cls.__name__: name for name, info in REGISTRY.items()}  # class name -> our name
_ALLOW = "allow_layerwise_change"
_KEY = "paddle_ldopt_layerwise"  # key of the record in an optimizer's state


def framework(module: str, name: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        wrong = f"{name} cannot be imported: install it, or run from a clone of its repository."
        raise ImportError(f"{wrong} Received: {error}", name=module) from error
    if not sys.warnoptions:  # unless the user chose by python -W; some frameworks silence all warnings
        warnings.filterwarnings("default", category=UserWarning, module=r"paddle_ldopt\.")
    return imported


def from_settings(
    name: str,
    model: Any,
    settings: Mapping[str, Any],
    *,
    learning_rate: Any,
    weight_decay: Any = None,
    grad_clip: Any = None,
    undecayed: Iterable[str] = (),
    groups: Optional[list[Any]] = None,
    own: Iterable[str] = (),
) -> Any:
    """Build the optimizer of a framework's YAML file; `name` is its class, such as "AdamWDL".

    `undecayed` are `param.name`s without weight decay, `own` the framework's settings, for errors.
    """
    info = REGISTRY[NAMES[name]]
    options = numbers_read(dict(settings))
    allowed, rules = checked_bool(options.pop(_ALLOW, False), _ALLOW), options.pop("rules", None)
    decay = LayerDecay(**{key: options.pop(key) for key in DECAY_OPTIONS if key in options})
    shapes = example = options.pop("example", None)
    if isinstance(shapes, dict):
        example = {key: paddle.zeros(shape) for key, shape in shapes.items()}
    elif shapes is not None:
        if not isinstance(shapes, (list, tuple)):
            raise wrong_type(shapes, "example", "a shape such as [1, 3, 224, 224], or a dict of shapes")
        example = paddle.zeros(shapes)
    if isinstance(model, paddle.nn.LayerDict) and example is not None:  # the first network takes the batch
        first, batch = next(iter(model.values())), example
        example = lambda _: first(**batch) if isinstance(batch, dict) else first(batch)  # noqa: E731
    known = [*info.settings, *DECAY_OPTIONS, "rules", "example", _ALLOW]
    for key, value in options.items():
        if info.setting(key) not in known:
            raise ValueError(unknown(f"setting of {name}", key, value, [*own, *known], limit=40))
    arguments = {**options, "learning_rate": numbers_read(learning_rate), "grad_clip": grad_clip}
    if isinstance(weight_decay, paddle.regularizer.L2Decay):  # decoupled weight decay replaces an L2 penalty
        arguments["weight_decay"] = float(weight_decay._coeff)
    elif isinstance(weight_decay, paddle.regularizer.WeightDecayRegularizer):
        raise refusal(ValueError, "The optimizers of paddle_ldopt have no L1 decay: use L2.", weight_decay=weight_decay)
    elif weight_decay is not None:
        arguments["weight_decay"] = checked_number(numbers_read(weight_decay), "weight_decay")
    names = name_dict_of(model)
    decayed = (names.keys() - set(undecayed)) | included_names(info, names, arguments)
    arguments["apply_decay_param_fun"] = decayed.__contains__
    plain: Any = info.cls
    recorded = dataclasses.replace(info, cls=with_record(plain))
    found = {"rules": rules, "example": example}
    optimizer = build_optimizer(recorded, model, layerwise_decay=decay, groups=groups, **found, **arguments)
    setattr(optimizer, _ALLOW, allowed)
    trained = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    if decay != OFF and all(optimizer.layerwise_ratio(param) == 1.0 for param in trained):
        wrong = "The layer-wise decay has no effect yet: all trainable parameters are in the head."
        warnings.warn(problem(wrong, layerwise_decay=decay.layerwise_decay), stacklevel=2)
    return optimizer


@functools.cache
def with_record(cls: Any) -> Any:
    """Return a subclass of the same name whose state has a record, which a resume compares."""

    def record_of(self: Any) -> dict[str, Any]:
        interface = layerwise_interface(self)
        return layerwise_record(cls.__name__, interface.decay, interface.layers)

    def state_dict(self: Any) -> dict[str, Any]:
        return {**cls.state_dict(self), _KEY: record_of(self)}

    def set_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        state, now, found = dict(state_dict), record_of(self), []
        was, allowed = state.pop(_KEY, None), getattr(self, _ALLOW)
        if was is not None:
            found = record_differences(was, now)
            if was["optimizer"] != now["optimizer"] or (found and not allowed):
                wrong = f"The checkpoint is of another optimizer or other layer-wise settings: {'; '.join(found)}."
                advice = f"Use the same, or set `{_ALLOW}: true` to resume with another decay or other layers."
                raise refusal(ValueError, f"{wrong} {advice}", **{_ALLOW: allowed})
        elif now["decay"] and not allowed:
            found = [f"it does not say its layer-wise decay, so the file's applies (`{_ALLOW}: true` silences this)"]
        if found:
            wrong = f"Resuming from a checkpoint of another run: {'; '.join(found)}."
            warnings.warn(problem(wrong, **{_ALLOW: allowed}), stacklevel=1)  # `framework` shows these
        cls.set_state_dict(self, state)

    methods = {"state_dict": state_dict, "set_state_dict": set_state_dict, "load_state_dict": set_state_dict}
    return type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, _ALLOW: False, **methods})


def numbers_read(value: Any) -> Any:
    """Convert "1e-3", which PyYAML reads as a string, to a number."""
    if isinstance(value, dict):
        return {key: numbers_read(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers_read(item) for item in value]
    return float(value) if isinstance(value, str) and YAML_EXPONENT.match(value) else value


def name_parts(parts: Any, setting: str) -> list[str]:
    """Refuse a string: its letters would match nearly every name."""
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise refusal(TypeError, f"`{setting}` must be a list of parts of names.", **{setting: parts})
    return list(parts)


def undecayed_names(model: Any, parts: Iterable[str] = (), *, one_dimensional: bool = False) -> set[str]:
    """Return `param.name`s whose structured names contain one of `parts`, and optionally of vectors."""
    wanted, named = tuple(parts), list(model.named_parameters())
    matched = {param.name for name, param in named if any(part in name for part in wanted)}
    if wanted and not matched:
        warnings.warn(problem("No name matches, so none is excluded from weight decay.", parts=wanted), stacklevel=2)
    # exactly one axis, as in PaddleClas, which decays numbers without an axis
    vectors = {param.name for name, param in named if param.ndim == 1 or name.endswith(".bias")}
    return matched | vectors if one_dimensional else matched


def named_groups(model: Any, chosen: Iterable[tuple[list[str], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a group per entry, of the parameters that it matches first, and one for the rest."""
    ungrouped = {name: param for name, param in model.named_parameters() if not param.stop_gradient}
    groups = []
    for parts, options in chosen:
        names = [name for name in ungrouped if any(re.search(part, name) for part in parts)]
        if not names:
            warnings.warn(problem("A group matches no parameter outside earlier groups.", parts=parts), stacklevel=1)
            continue
        groups.append({**numbers_read(options), "params": [ungrouped.pop(name) for name in names]})
    return [*groups, {"params": list(ungrouped.values())}] if ungrouped else groups


# ---- the frameworks


class Component:
    """As PaddleOCR and PaddleClas build optimizers: settings first, then the model."""

    own: Any = ("lr", "regularizer", "weight_decay", "clip_norm", "no_weight_decay_name")
    own += ("one_dim_param_no_weight_decay",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: Any = None,
        grad_clip: Any = None,
        no_weight_decay_name: Optional[str] = None,
        one_dim_param_no_weight_decay: bool = False,
        **settings: Any,
    ) -> None:
        settings.pop("regularizer", None)  # a null: the frameworks read all other values
        self.settings = settings
        self.common = {"learning_rate": learning_rate, "weight_decay": weight_decay, "grad_clip": grad_clip}
        if not isinstance(no_weight_decay_name, (str, type(None))):
            wrong = "`no_weight_decay_name` must be a string of parts of names, separated by spaces."
            raise refusal(TypeError, wrong, no_weight_decay_name=no_weight_decay_name)
        self.parts = (no_weight_decay_name or "").split()
        self.one_dimensional = checked_bool(one_dim_param_no_weight_decay, "one_dim_param_no_weight_decay")

    def __call__(self, model: Any) -> Any:
        undecayed = undecayed_names(model, self.parts, one_dimensional=self.one_dimensional)
        name = type(self).__name__
        return from_settings(name, model, self.settings, undecayed=undecayed, own=self.own, **self.common)


class ClasComponent(Component):
    """PaddleClas's: for a list of models, by default without weight decay."""

    own = (*Component.own, "scope", "filter_bias_and_bn")

    def __init__(self, *, weight_decay: Any = None, filter_bias_and_bn: Optional[bool] = None, **kwargs: Any) -> None:
        super().__init__(weight_decay=weight_decay or 0.0, **kwargs)
        if filter_bias_and_bn is None:
            filter_bias_and_bn = type(self).__name__ == "AdamWDL"  # as PaddleClas's own
        self._filters = checked_bool(filter_bias_and_bn, "filter_bias_and_bn")
        self.one_dimensional = self.one_dimensional or self._filters

    def __call__(self, model_list: Any) -> Any:
        if not model_list:
            raise refusal(ValueError, "`scope` must match a part of a dynamic model.", model_list=model_list)
        model = model_list[0] if len(model_list) == 1 else paddle.nn.LayerDict(named_by_letters("part", model_list))
        for part in model_list:  # the model, and a loss with parameters
            if self._filters and hasattr(part, "no_weight_decay"):
                self.parts = [*self.parts, *part.no_weight_decay()]
        return super().__call__(model)


def register_paddleclas() -> None:
    """Add our optimizers to PaddleClas's files, ``Optimizer: {name: AdamWDL, ...}``; ours replaces its `AdamWDL`."""
    module = framework("ppcls.optimizer.optimizer", "PaddleClas")
    for name in NAMES:
        setattr(module, name, type(name, (ClasComponent,), {}))


def register_paddleocr() -> None:
    """Add our optimizers to PaddleOCR's files, ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}``."""
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, type(name, (Component,), {}))
    package, of_weight_decay = framework("ppocr.optimizer", "PaddleOCR"), "CosineWeightDecayScheduler"
    schedule = getattr(package, of_weight_decay, None)  # PaddleOCR 3.7's, of `regularizer: {name: CosineL2}`
    if schedule is None or isinstance(schedule, functools.partial):
        return

    def scheduled(schedule: Any, optimizer: Any, **settings: Any) -> Any:
        if type(optimizer).__name__ in NAMES:
            wrong = "The weight decay of paddle_ldopt's optimizers is constant here: use `regularizer: {name: L2}`."
            raise refusal(ValueError, wrong, regularizer="CosineL2")
        return schedule(optimizer, **settings)

    setattr(package, of_weight_decay, functools.partial(scheduled, schedule))


def register_paddleseg() -> None:
    """Add our optimizers to PaddleSeg's files, ``optimizer: {type: AdamWDL, ...}``; ours replaces its own `AdamWDL`."""
    base: Any = framework("paddleseg.optimizers.optimizer", "PaddleSeg").BaseOptimizer
    components = framework("paddleseg.cvlibs.manager", "PaddleSeg").OPTIMIZERS.components_dict
    of_a_group = ("name", "lr_mult", "weight_decay_mult")  # settings of an entry of `custom_cfg`

    class SegComponent(base):
        def __init__(
            self, weight_decay: Any = None, grad_clip_cfg: Any = None, custom_cfg: Any = None, **settings: Any
        ) -> None:
            super().__init__(numbers_read(weight_decay), grad_clip_cfg, custom_cfg)
            self.settings = settings

        def __call__(self, model: Any, lr: Any) -> Any:
            groups = []
            for chosen in self.custom_cfg or []:
                for key in chosen.keys() - of_a_group:
                    raise ValueError(unknown("setting of `custom_cfg`", key, chosen[key], of_a_group))
                options = {"learning_rate": chosen.get("lr_mult", 1.0)}
                if self.weight_decay is not None and chosen.get("weight_decay_mult") is not None:
                    options["weight_decay"] = self.weight_decay * chosen["weight_decay_mult"]
                groups.append((name_parts([chosen.get("name")], "name"), options))
            return from_settings(
                type(self).__name__,
                model,
                self.settings,
                learning_rate=lr,
                groups=named_groups(model, groups) if groups else None,
                own=("weight_decay", "grad_clip_cfg", "custom_cfg"),
                **{**self.args, "weight_decay": self.weight_decay or 0.0},
            )

    for name in NAMES:
        components[name] = type(name, (SegComponent,), {"__doc__": f"`paddle_ldopt.{name}` for PaddleSeg."})


def register_paddledetection() -> None:
    """Add our optimizers to PaddleDetection's files; ours replaces its `AdamWDL`, whose settings still work.

    ``OptimizerBuilder: {optimizer: {type: AdamWDL, layerwise_decay: 0.7}}``.
    """
    module = framework("ppdet.optimizer.optimizer", "PaddleDetection")
    base: Any = module.OptimizerBuilder
    if base.__module__ == __name__:
        return

    class OptimizerBuilder(base):  # the name that PaddleDetection looks up in the module
        def __call__(self, learning_rate: Any, model: Any = None) -> Any:
            settings = dict(self.optimizer)
            name = settings.pop("type")
            if name not in NAMES:
                return super().__call__(learning_rate, model)
            clip, weight_decay, kind = None, settings.pop("weight_decay", None), self.regularizer
            if self.clip_grad_by_norm is not None:
                clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=self.clip_grad_by_norm)
            elif self.clip_grad_by_value is not None:
                clip = paddle.nn.ClipGradByValue(max=abs(self.clip_grad_by_value))
            if weight_decay is None and kind and kind != "None" and name != "AdamWDL":  # whose own ignores it
                weight_decay = getattr(paddle.regularizer, f"{kind['type']}Decay")(kind["factor"])
            ours = {}
            if "betas" in settings:
                ours["beta1"], ours["beta2"] = settings.pop("betas")
            if "layer_decay" in settings:
                ours["layerwise_decay"] = settings.pop("layer_decay")
            for option in ours.keys() & settings.keys():
                wrong = "`betas` and `layer_decay` set the same as `beta1`, `beta2` and `layerwise_decay`: give one."
                raise refusal(ValueError, wrong, **{option: settings[option]})
            for counted in ("num_layers", "set_param_lr_func"):  # always layerwise_lr_decay
                settings.pop(counted, None)
            filters = checked_bool(settings.pop("filter_bias_and_bn", name == "AdamWDL"), "filter_bias_and_bn")
            skipped = name_parts(settings.pop("skip_decay_names", None) or (), "skip_decay_names")
            chosen = settings.pop("param_groups", None) or ()
            groups = [(name_parts(group.get("params"), "params"), group) for group in chosen]
            return from_settings(
                name,
                model,
                {**settings, **ours},
                learning_rate=learning_rate,
                weight_decay=weight_decay or 0.0,
                grad_clip=clip,
                undecayed=undecayed_names(model, skipped, one_dimensional=filters),
                groups=named_groups(model, groups) if groups else None,
                own=("weight_decay", "betas", "layer_decay", "filter_bias_and_bn", "skip_decay_names", "param_groups"),
            )

    module.OptimizerBuilder = OptimizerBuilder


class Pending(paddle.optimizer.SGD):
    """A placeholder until PaddleSpeech's trainer has set up the model."""

    def __init__(self, learning_rate: Any, parameters: Any, grad_clip: Any = None) -> None:
        self.arguments = {"learning_rate": learning_rate, "groups": list(parameters), "grad_clip": grad_clip}
        super().__init__(learning_rate, parameters=list(parameters), grad_clip=grad_clip)

    def step(self) -> None:
        advice = "it is built at the end of `Trainer.setup()` of paddlespeech.s2t: call that."
        raise RuntimeError(f"The optimizer of the configuration file does not exist yet; {advice}")


def register_paddlespeech() -> None:
    """Add our optimizers to PaddleSpeech's s2t files: ``optim: AdamWDL``, settings in `optim_conf`.

    PaddleSpeech gives optimizers no model, so ours are built after its trainer has set up the model.
    """
    module = framework("paddlespeech.s2t.training.optimizer", "PaddleSpeech")
    trainer = framework("paddlespeech.s2t.training.trainer", "PaddleSpeech").Trainer
    names = {name.lower(): name for name in NAMES}
    module.OPTIMIZER_DICT.update(dict.fromkeys(names, f"{__name__}:{Pending.__name__}"))
    if trainer.setup.__module__ == __name__:
        return
    set_up = trainer.setup

    def setup(self: Any) -> None:
        set_up(self)
        for prefix in ("", "model_", "wav2vec2_", "hubert_", "wavlm_"):  # of a trainer's one or two optimizers
            pending = getattr(self, f"{prefix}optimizer", None)
            # the optimizer of a frozen part, which PaddleSpeech never steps, stays pending
            if isinstance(pending, Pending) and not all(param.stop_gradient for param in parameters_of(pending)):
                settings = dict(self.config[f"{prefix}optim_conf"])
                settings.pop("lr", None)  # of the schedule
                if pending.arguments["grad_clip"] is not None:  # some trainers ignore this setting, so it is unknown
                    settings.pop("grad_clip", None)
                decay, name = settings.pop("weight_decay", None) or 0.0, names[self.config[f"{prefix}optim"].lower()]
                common = {**pending.arguments, "weight_decay": decay, "own": ("lr", "weight_decay")}
                setattr(self, f"{prefix}optimizer", from_settings(name, self.model, settings, **common))

    trainer.setup = setup


paddleclas = SimpleNamespace(register=register_paddleclas)
paddledetection = SimpleNamespace(register=register_paddledetection)
paddleocr = SimpleNamespace(register=register_paddleocr)
paddleseg = SimpleNamespace(register=register_paddleseg)
paddlespeech = SimpleNamespace(register=register_paddlespeech)
