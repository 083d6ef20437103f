"""Layer-wise learning rates and exact resumes for any Trainer of the PaddleNLP family."""

import functools
from typing import Any, Optional

from .._paddle import name_dict_of, parameters_of, unwrap
from ..build import OFF, OPTIMIZERS
from ..config import LdoptConfig, settings_of
from ..layers.map import layers_of
from ..layers.ratios import decay_of, ratios_of
from ..optimizers.registry import REGISTRY
from .base import name_of
from .folders import CONFIG, RECORD
from .layerwise import LayerwiseRatesMixin
from .record import check_record
from .resume import ResumeMixin
from .unfreezing import GradualUnfreezeCallback

_DEGREES = [(kind, f"{kind}_parallel_degree") for kind in ("sharding", "tensor", "pipeline")]  # the Trainer's arguments


class LdoptTrainerMixin(LayerwiseRatesMixin, ResumeMixin):
    """Give a Trainer the arguments of `LdoptArgumentsMixin` and the resumes of `ResumeMixin`.

    - ``optim="adamwdl"`` trains with `AdamWDL`. Any other optimizer of the Trainer gets the layer-wise rates through
      `apply_layerwise_decay`. Biases and norms have no weight decay (`decayed_parameter_names`). Groups of
      `set_optimizer_grouped_parameters` have their own; their "learning_rate" multiplies the layer's.
    - ``lr_scheduler_type`` takes every `SchedulerType`, with ``lr_scheduler_kwargs``. A schedule that follows a metric
      takes a step after each evaluation during training, before its checkpoint is saved.
    - ERNIEKit's own arguments (``layerwise_lr_decay_bound``, ``vit_lr_ratio``, ``moe_gate_lr_ratio``) apply to every
      optimizer, with the rates that ERNIEKit gives Paddle's AdamW.
    - ``layerwise_freeze_below`` sets `stop_gradient` of the layers that it freezes, so backward passes end there.
    - The Trainer logs the layer table, read back from the optimizer, before the first step.
    - With ``optimizers=(opt, scheduler)``, `scheduler` must be the rate of `opt`, or None if `opt` sets its own rate
      (`relative_step`, a `Lamb` with a callable). `opt` decides decay, layers and options. If the arguments
      (`layerwise_rules`, `optim_kwargs`) set them too, they must be equal. The same holds for an optimizer that a
      subclass creates without the mixin.
    - Checkpoints record the decay, the optimizer's class, the layer map and `GradualUnfreezeCallback`. A resume with
      other settings is refused unless ``allow_layerwise_change`` is given. Checkpoints also have ``ldopt_config.json``,
      the arguments as an `LdoptConfig`, if the optimizer was built from them.
    - In distributed training all processes use the rates of the whole model. The stages of a pipeline agree on its
      layers, so all of them must read `layer_map` together. Only the main process logs the table.

    Attributes:
        layer_rules (dict|callable): the `rules` of `LayerMap.from_model`, set in a subclass or defined as a method
            ``layer_rules(self, name)``.
        layer_map (LayerMap): the layers of the model, built on first use.

    Raises:
        TypeError: at the definition of the class, if the mixin does not come first.
        ValueError: from `train`, before anything is loaded or changed: `optimizers` that contradict the arguments or
            each other, an incompatible checkpoint, a schedule that follows a metric without an `eval_dataset`. During
            training: an evaluation without that metric.

    Examples:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_ldopt.trainer import LdoptTrainerMixin
        >>> class MyTrainer(LdoptTrainerMixin, Trainer):
        ...     layer_rules = {r"adapter_in": "embeddings"}
        >>> trainer = MyTrainer(model=model, args=args, train_dataset=train)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True if resume else None)  # doctest: +SKIP
    """

    def _prepare(self) -> None:
        super()._prepare()
        config, _ = self._config, self._settings  # both must be read before an optimizer is built
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, "config") and config is not None:
                callback.config = config

    def _check_checkpoint(self, folder: str) -> None:
        super()._check_checkpoint(folder)
        allowed = getattr(self.args, "allow_layerwise_change", False)
        for difference in check_record(folder, self._record, allowed, self.optimizer is None):
            self._logger.warning(f"Resuming from {folder} despite a difference: {difference}")

    def _files(self) -> dict[str, Any]:
        config = {} if self._config is None else {CONFIG: self._config.to_dict()}
        return {**super()._files(), **config, RECORD: self._record}

    @property
    def _record(self) -> dict[str, Any]:
        """The layer-wise settings of the training, for its checkpoints."""
        callbacks = self.callback_handler.callbacks
        unfreezing = (c.every_k_steps for c in callbacks if isinstance(c, GradualUnfreezeCallback))
        return {
            **self._settings,
            "unfreeze_every_k_steps": next(unfreezing, None),
            "layout": {name: max(getattr(self.args, field, 1), 1) for name, field in _DEGREES},
        }

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        """The constant part of the record, taken before an optimizer is built, or from a given one."""
        if self.optimizer is None:
            name, decay, ratios = self._optimizer_name(), self._decay, None
            layers = None if decay == OFF else self.layer_map
        else:
            optimizer = unwrap(self.optimizer)
            name, decay = type(optimizer).__name__, decay_of(optimizer) or OFF
            ratios = _hook_ratios(optimizer, self.model)
            layers = None if decay == OFF else layers_of(optimizer)
        fingerprint = {"towers": None, "layers": None} if layers is None else layers.fingerprint()
        return {"optimizer": name, "rule": settings_of(decay), "ratios": ratios, **fingerprint}

    @functools.cached_property
    def _config(self) -> Optional[LdoptConfig]:
        """The arguments as an `LdoptConfig`; None for a given optimizer or an optimizer that only the Trainer has."""
        if self.optimizer is not None or not hasattr(self.args, "layerwise_rules"):
            return None
        return LdoptConfig.from_arguments(self.args) if name_of(self.args.optim) in OPTIMIZERS else None

    def _optimizer_name(self) -> str:
        """Return the class name of the optimizer to build."""
        optim = name_of(self.args.optim)
        if optim in REGISTRY:
            return REGISTRY[optim].cls.__name__
        try:
            return self.get_optimizer_cls_and_kwargs(self.args)[0].__name__
        except ValueError:  # only the `create_optimizer` of a subclass knows this optimizer
            return optim


def _hook_ratios(optimizer: Any, model: Any) -> Optional[dict[str, float]]:
    """Return structured name -> ratio if the ratios come from a user's hook, else None."""
    ratios = ratios_of(optimizer)
    if ratios is None or ratios.decay is not None:
        return None
    names = name_dict_of(model)
    trained = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    return {names.get(param.name, param.name): float(optimizer.layerwise_ratio(param)) for param in trained}
