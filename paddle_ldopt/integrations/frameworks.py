"""Register our optimizers in PaddleClas, PaddleOCR, PaddleSeg, PaddleDetection and PaddleSpeech.

Call the function of a framework before it builds its optimizer. Without the framework, it raises ImportError.
"""

import functools
from typing import Any, Optional

import paddle

from .._checks import checked_bool, refusal, unknown
from .._compat import parameters_of
from .yaml_settings import NAMES, framework, from_settings, name_parts, named_groups, numbers_read, undecayed_names


class Component:
    """An optimizer as PaddleOCR and PaddleClas build it: settings first, then the model.

    The name of a subclass is that of the optimizer.
    """

    own: tuple[str, ...] = (  # names in the file
        "lr",
        "regularizer",
        "weight_decay",
        "clip_norm",
        "no_weight_decay_name",
        "one_dim_param_no_weight_decay",
    )

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
            message = "`no_weight_decay_name` must be a string of parts of names, separated by spaces."
            raise refusal(TypeError, message, no_weight_decay_name=no_weight_decay_name)
        self.parts = (no_weight_decay_name or "").split()
        self.one_dimensional = checked_bool(one_dim_param_no_weight_decay, "one_dim_param_no_weight_decay")

    def __call__(self, model: Any) -> Any:
        """Return the optimizer for a model."""
        undecayed = undecayed_names(model, self.parts, one_dimensional=self.one_dimensional)
        name = type(self).__name__
        return from_settings(name, model, self.settings, undecayed=undecayed, own=self.own, **self.common)


class ClasComponent(Component):
    """An optimizer as PaddleClas builds it: for a list of models, and without weight decay if no regularizer is set."""

    own = (*Component.own, "scope", "filter_bias_and_bn")

    def __init__(self, *, weight_decay: Any = None, filter_bias_and_bn: Optional[bool] = None, **kwargs: Any) -> None:
        super().__init__(weight_decay=weight_decay or 0.0, **kwargs)
        if filter_bias_and_bn is None:
            filter_bias_and_bn = type(self).__name__ == "AdamWDL"  # as PaddleClas's own
        self._filters = checked_bool(filter_bias_and_bn, "filter_bias_and_bn")
        self.one_dimensional = self.one_dimensional or self._filters

    def __call__(self, model_list: Any) -> Any:
        """Return the optimizer of the parameters of one scope: a model, or parts of it."""
        if not model_list:
            message = "`scope` must match a part of the model, and the graph must be dynamic."
            raise refusal(ValueError, message, model_list=model_list)
        model = model_list[0] if len(model_list) == 1 else paddle.nn.LayerList(model_list)
        for part in model_list:  # the model, and a loss with parameters
            if self._filters and hasattr(part, "no_weight_decay"):
                self.parts = [*self.parts, *part.no_weight_decay()]
        return super().__call__(model)


def register_paddleclas() -> None:
    """Add our optimizers to PaddleClas's files, ``Optimizer: {name: AdamWDL, ...}``; ours replaces its own `AdamWDL`.

    Its settings: `lr`, `regularizer` (L2), `clip_norm`, `scope`, `no_weight_decay_name`,
    `one_dim_param_no_weight_decay`, `filter_bias_and_bn`.
    """
    module = framework("ppcls.optimizer.optimizer", "PaddleClas")
    for name in NAMES:
        setattr(module, name, type(name, (ClasComponent,), {}))


def register_paddleocr() -> None:
    """Add our optimizers to PaddleOCR's files, ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}``.

    Its settings: `lr`, `regularizer` (L2), `clip_norm`, `no_weight_decay_name`, `one_dim_param_no_weight_decay`.
    """
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, type(name, (Component,), {}))
    package, of_weight_decay = framework("ppocr.optimizer", "PaddleOCR"), "CosineWeightDecayScheduler"
    schedule = getattr(package, of_weight_decay, None)  # PaddleOCR 3.7's, of `regularizer: {name: CosineL2}`
    if schedule is None or isinstance(schedule, functools.partial):
        return

    def scheduled(schedule: Any, optimizer: Any, **settings: Any) -> Any:
        if type(optimizer).__name__ in NAMES:
            message = "The weight decay of paddle_ldopt's optimizers is constant here: use `regularizer: {name: L2}`."
            raise refusal(ValueError, message, regularizer="CosineL2")
        return schedule(optimizer, **settings)

    setattr(package, of_weight_decay, functools.partial(scheduled, schedule))


def register_paddleseg() -> None:
    """Add our optimizers to PaddleSeg's files, ``optimizer: {type: AdamWDL, ...}``; ours replaces its own `AdamWDL`.

    Its settings: `weight_decay`, `grad_clip_cfg` and `custom_cfg`, whose `lr_mult` multiplies the layer's rate.
    """
    base: Any = framework("paddleseg.optimizers.optimizer", "PaddleSeg").BaseOptimizer
    components = framework("paddleseg.cvlibs.manager", "PaddleSeg").OPTIMIZERS.components_dict
    of_a_group = ("name", "lr_mult", "weight_decay_mult")  # settings of an entry of `custom_cfg`

    class SegComponent(base):
        """An optimizer as PaddleSeg builds it: settings first, then model and schedule."""

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
    """Add our optimizers to PaddleDetection's files; ours replaces its `AdamWDL`.

    ``OptimizerBuilder: {optimizer: {type: AdamWDL, layerwise_decay: 0.7}}``. Its settings: `clip_grad_by_norm`,
    `clip_grad_by_value`, `regularizer` (L2), `param_groups`, and of its `AdamWDL` `betas`, `layer_decay`,
    `filter_bias_and_bn`, `skip_decay_names`. Blocks are counted, whatever `num_layers` says.
    """
    module = framework("ppdet.optimizer.optimizer", "PaddleDetection")
    base: Any = module.OptimizerBuilder
    if base.__module__ == __name__:
        return

    class OptimizerBuilder(base):  # the name that PaddleDetection looks up in the module
        """Build one of our optimizers, or one of PaddleDetection's."""

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
                message = "`betas` and `layer_decay` set the same as `beta1`, `beta2` and `layerwise_decay`: give one."
                raise refusal(ValueError, message, **{option: settings[option]})
            for counted in ("num_layers", "set_param_lr_func"):  # the only function there is: layerwise_lr_decay
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
    """Placeholder for an optimizer until PaddleSpeech's trainer has set up the model."""

    def __init__(self, learning_rate: Any, parameters: Any, grad_clip: Any = None) -> None:
        self.arguments = {"learning_rate": learning_rate, "groups": list(parameters), "grad_clip": grad_clip}
        super().__init__(learning_rate, parameters=list(parameters), grad_clip=grad_clip)

    def step(self) -> None:
        """Refuse to train."""
        advice = "it is built at the end of `Trainer.setup()` of paddlespeech.s2t: call that."
        raise RuntimeError(f"The optimizer of the configuration file does not exist yet; {advice}")


def register_paddlespeech() -> None:
    """Add our optimizers to the files of PaddleSpeech's s2t experiments: ``optim: AdamWDL``, settings in `optim_conf`.

    PaddleSpeech gives optimizers a list of parameters without a model, so ours are built after its trainer has set up
    the model. Experiments with two optimizers (wav2vec2, HuBERT, WavLM) take ours for either. Text to speech (t2s)
    passes no such settings on: use `apply_layerwise_decay` there.
    """
    module = framework("paddlespeech.s2t.training.optimizer", "PaddleSpeech")
    trainer = framework("paddlespeech.s2t.training.trainer", "PaddleSpeech").Trainer
    names = {name.lower(): name for name in NAMES}
    module.OPTIMIZER_DICT.update(dict.fromkeys(names, f"{__name__}:{Pending.__name__}"))
    if trainer.setup.__module__ == __name__:
        return
    set_up = trainer.setup

    def setup(self: Any) -> None:
        """Set up the experiment, and build our optimizers for its model."""
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
