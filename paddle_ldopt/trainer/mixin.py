"""Layer-wise learning rates, and resumes that keep to them, for any Trainer of the PaddleNLP family."""

from typing import Any

from .folders import CONFIG, RECORD
from .layerwise import LayerwiseRatesMixin
from .record import check_record
from .resume import ResumeMixin


class LdoptTrainerMixin(LayerwiseRatesMixin, ResumeMixin):
    """Make a Trainer do what the arguments of `LdoptArgumentsMixin` say, and resume as `ResumeMixin` does.

    - ``optim="adamwdl"`` trains with `AdamWDL`; any other optimizer of the Trainer gets the layer-wise rates by
      `apply_layerwise_decay`. Biases and the parameters of norms are not decayed (`decayed_parameter_names`); groups
      of `set_optimizer_grouped_parameters` say themselves what is, and their "learning_rate" multiplies the layer's.
    - ``lr_scheduler_type`` takes every `SchedulerType`, with ``lr_scheduler_kwargs``. Those that follow a metric take a
      step after each evaluation within the training, before its checkpoint is saved.
    - ``layerwise_freeze_below`` sets `stop_gradient` on what it freezes, so backward passes end there. It stays set.
    - The Trainer logs the layer table before the first step, read back from the optimizer.
    - With ``optimizers=(opt, scheduler)``, `scheduler` must be the one that `opt` was built with, or None if `opt` sets
      its rate itself (`relative_step`, a `Lamb` with a callable). A layer-wise decay, its layers and the options are
      then `opt`'s own; if the arguments (`layerwise_rules`, `optim_kwargs`) ask for some too, both must be the same.
    - Checkpoints hold a record of the rule, the optimizer's class, the layer map and `GradualUnfreezeCallback`. A
      resume with others is refused unless ``allow_layerwise_change`` is given. They also hold ``ldopt_config.json``,
      the arguments as an `LdoptConfig`, if they made the optimizer.
    - In a distributed training all processes use the same rates, those of the whole model: a pipeline's stages agree on
      its layers, so `layer_map` must be asked for in all of them at once. The main process alone logs the table.

    Attributes:
        layer_rules (dict|callable): the `rules` of `LayerMap.from_model`, set in a subclass, or defined as a method
            ``layer_rules(self, name)``.
        layer_map (LayerMap): the layers of the model; built at its first use.

    Raises:
        TypeError: at the definition of the class, if the mixin does not come first.
        ValueError: from `train`, before anything is loaded or changed: `optimizers` that contradict the arguments or
            each other, a checkpoint that does not fit, a schedule that follows a metric and no `eval_dataset`. In the
            training: an evaluation without that metric.

    Examples:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_ldopt.trainer import LdoptTrainerMixin
        >>> class MyTrainer(LdoptTrainerMixin, Trainer):
        ...     layer_rules = {r"adapter_in": "embeddings"}
        >>> trainer = MyTrainer(model=model, args=args, train_dataset=train)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True if resume else None)  # doctest: +SKIP
    """

    def _check_checkpoint(self, folder: str) -> None:
        super()._check_checkpoint(folder)
        allowed = getattr(self.args, "allow_layerwise_change", False)
        for difference in check_record(folder, self._record, allowed, self.optimizer is None):
            self._logger.warning(f"Going on from {folder} in spite of a difference: {difference}")

    def _files(self) -> dict[str, Any]:
        config = {} if self._config is None else {CONFIG: self._config.to_dict()}
        return {**super()._files(), **config, RECORD: self._record}
