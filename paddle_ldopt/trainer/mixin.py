"""Layer-wise learning rates and exact resumes for any Trainer of the PaddleNLP family."""

import functools
from typing import Any, Optional

from ..config import LdoptConfig, name_of
from ..create import OPTIMIZERS
from ..saving.layerwise_record import ALLOW
from .checkpoint_record import check_record, constant_settings, record_of
from .folders import CONFIG, LAYERWISE
from .layerwise_rates_mixin import LayerwiseRatesMixin
from .resume_mixin import ResumeMixin
from .shared import warn


class LdoptTrainerMixin(LayerwiseRatesMixin, ResumeMixin):
    """Make a Trainer use the arguments of `LdoptArgumentsMixin` and resume as with `ResumeMixin`.

    It overrides no method of the Trainer itself: `LayerwiseRatesMixin` sets the rates, `ResumeMixin` repairs resume and
    rotation, and this class adds the layer-wise settings to the checkpoints and compares them at a resume.

    - Every optimizer of ours or of the Trainer gets the layer-wise rates. Biases and norms have no weight decay
      (`decayed_parameter_names`). Groups of `set_optimizer_grouped_parameters` have their own weight decay. Their
      "learning_rate" is multiplied by the layer's ratio.
    - A schedule that follows a metric takes a step after each evaluation during training, before its checkpoint is
      saved.
    - ERNIEKit's own arguments (``layerwise_lr_decay_bound``, ``vit_lr_ratio``, ``moe_gate_lr_ratio``) apply to every
      optimizer, with the rates that ERNIEKit gives Paddle's AdamW.
    - ``layerwise_freeze_below`` sets `stop_gradient` of the layers that it freezes, so backward passes end there.
    - With ``optimizers=(opt, scheduler)``, `scheduler` must be the schedule of `opt`, or None if `opt` sets its rate
      (`relative_step`, a `Lamb` with a callable). `opt` determines the decay, the layers and the options. Arguments
      that also set them must have the same values. This applies too if a subclass creates its optimizer without the
      mixin.
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
        config, _ = self._config, self._constant_settings  # both must be read before an optimizer is built
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, "config") and config is not None:
                callback.config = config

    def _check_checkpoint(self, folder: str) -> None:
        super()._check_checkpoint(folder)
        allowed = getattr(self.args, ALLOW, False)
        for change in check_record(folder, self._record, allowed, self.optimizer is None):
            warn(self, f"Resuming from {folder} despite a difference: {change}")

    def _checkpoint_files(self) -> dict[str, Any]:
        config = {} if self._config is None else {CONFIG: self._config.to_dict()}
        return {**super()._checkpoint_files(), **config, LAYERWISE: self._record}

    @property
    def _record(self) -> dict[str, Any]:
        return record_of(self, self._constant_settings)

    @functools.cached_property
    def _constant_settings(self) -> dict[str, Any]:
        return constant_settings(self)

    @functools.cached_property
    def _config(self) -> Optional[LdoptConfig]:
        """The arguments as a config; None with a given optimizer, or if only the Trainer builds its kind."""
        ours = self.optimizer is None and hasattr(self.args, "layerwise_rules")
        return LdoptConfig.from_arguments(self.args) if ours and name_of(self.args.optim) in OPTIMIZERS else None
