"""Layer-wise learning rates in a Trainer: layers, optimizer, schedule and table from its arguments."""

import functools
from typing import Any, Optional

from paddle import distributed
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._messages import refusal
from .._paddle import leave_out_frozen, pipeline_of, unwrap
from ..config import builds_schedule, clip_norm, decay_of_arguments, json_argument, left_to_us, mapped_options, name_of
from ..create import OFF, build_optimizer
from ..layers.decay import LayerDecay
from ..layers.map import LayerMap
from ..layers.rates import layerwise_interface
from ..optimizers import OptimizerInfo
from ..optimizers.apply import apply_layerwise_decay
from ..optimizers.registry import REGISTRY
from . import lr_scheduler
from .arguments import mark_received
from .optimizer_checks import check_settings, check_trainer_optimizer, check_trainer_schedule, check_unified
from .shared import check_mixed_in_first, decided_by_main, inform, listening
from .stages import from_all_stages, map_layers
from .types import Trainer
from .unfreezing import all_open


class LayerwiseRatesMixin(Trainer):
    """Build a Trainer's optimizer and schedule with layer-wise rates; a base of `LdoptTrainerMixin`.

    It overrides methods of the Trainer; each override says why.
    """

    layer_rules: Any = None
    optimizer: Any  # the Trainer's optimizer
    lr_scheduler: Any

    _own_optimizer: Any = None  # the optimizer that we built, without a wrapper
    _own_scheduler: Any = None  # the schedule that we built
    _other_metrics: Any = None  # during an evaluation: its metrics, until the schedule's metric is among them

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, LayerwiseRatesMixin, "create_optimizer")

    def __init__(self, *args: Any, **kwargs: Any):
        for argument in (*args, *kwargs.values()):
            mark_received(argument)
        super().__init__(*args, **kwargs)

    @functools.cached_property
    def layer_map(self) -> LayerMap:
        """The layers of the model."""
        rules = json_argument(self.args, "layerwise_rules")
        if rules and self.layer_rules is not None:
            message = "The Trainer has `layer_rules` and its arguments `layerwise_rules`: leave one of them out."
            raise refusal(ValueError, message, layerwise_rules=rules)
        return map_layers(self.model, rules or self.layer_rules)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does: check optimizer and arguments before, show the rates before the first step."""
        self._prepare()
        with listening(self, on_train_begin=self._begin):
            return super().train(*args, **kwargs)

    def _prepare(self) -> None:
        """Called in all processes before training begins."""
        mark_received(self.args)  # the user may have replaced them
        self._check_optimizer()
        if self._schedule_is_ours:
            passed = None if self.lr_scheduler is self._own_scheduler else self.lr_scheduler
            check_trainer_schedule(self.optimizer, passed, self.args, self.eval_dataset)
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, "extra_logs"):
                callback.attached = True

    def create_optimizer(self, lr_scheduler: Optional[LRScheduler] = None) -> Optimizer:
        """Return the Trainer's optimizer; if it has none, create it with the layer-wise rates."""
        if self.optimizer is not None:
            self._check_optimizer()
            return super().create_optimizer(lr_scheduler)
        decay, args = self._decay, self.args
        layers = None if decay == OFF else self.layer_map
        if layers is not None:
            self._freeze(layers)
        info = REGISTRY.get(name_of(args.optim))
        if info is not None:
            self.optimizer = self._build(info, layers, self.lr_scheduler if lr_scheduler is None else lr_scheduler)
            processes = distributed.get_world_size()
            decided_by_main(self, lambda: check_unified(args, self.optimizer, processes))
        else:
            with left_to_us(args):
                super().create_optimizer(lr_scheduler)
            if layers is not None:
                apply_layerwise_decay(self.optimizer, layers, decay)
        self._own_optimizer = unwrap(self.optimizer)
        leave_out_frozen(self._own_optimizer)
        return self.optimizer

    def _build(
        self, info: OptimizerInfo, layers: Optional[LayerMap], learning_rate: Optional[LRScheduler]
    ) -> Optimizer:
        """Return one of our optimizers with the settings of the Trainer's arguments."""
        args, groups = self.args, self.optimizer_grouped_parameters
        return build_optimizer(
            info,
            self.model,
            layerwise_decay=self._decay,
            layers=layers,
            groups=self.model.parameters() if groups is None else groups,
            max_grad_norm=clip_norm(args),
            learning_rate=learning_rate,
            weight_decay=args.weight_decay,
            **mapped_options(args, info),
            **json_argument(args, "optim_kwargs"),
        )

    def create_scheduler(self, num_training_steps: int) -> LRScheduler:
        """Return the Trainer's schedule; if it has none, create ours."""
        # PaddleFormers' `freeze_training` has a schedule of its own
        if self.lr_scheduler is None and layerwise_interface(self.optimizer).sets_own_lr:
            self.lr_scheduler = lr_scheduler.OwnRate(self.optimizer)
        elif self.lr_scheduler is None and self._schedule_is_ours and not getattr(self.args, "freeze_training", False):
            self.lr_scheduler = self._own_scheduler = lr_scheduler.build_scheduler(self.args, num_training_steps)
        return super().create_scheduler(num_training_steps)

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Log as the Trainer does, with the values of `LayerLRCallback`: a callback cannot add to the logs."""
        if "loss" in logs:  # logs of the training, not of an evaluation or a summary
            layer_rates: dict[str, float] = {}
            for callback in self.callback_handler.callbacks:
                if hasattr(callback, "extra_logs"):
                    more = callback.extra_logs()
                    for stage in [more] if pipeline_of(self.model) is None else from_all_stages(more):
                        for name, rate in stage.items():  # the largest rate of a layer in several stages
                            layer_rates[name] = max(rate, layer_rates.get(name, 0.0))
            logs.update(layer_rates)  # the Trainer's own "learning_rate" is the next step's
        return super().log(logs, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as the Trainer does; during training, step a schedule that follows a metric."""
        metrics = super().evaluate(*args, **kwargs)
        if self._other_metrics is not None:
            self._other_metrics.update(metrics)
            if lr_scheduler.step_on_metric(self.lr_scheduler, self.args, metrics):
                self._other_metrics = None  # other data sets of this evaluation have other metrics
        return metrics

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # the Trainer evaluates, then saves a checkpoint: the schedule must take its step in between
        self._other_metrics = {}
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
            lr_scheduler.check_metric_found(self.args, self._other_metrics)
        finally:
            self._other_metrics = None

    def _begin(self) -> None:
        """Called before the first step, with the training's state loaded."""
        if unwrap(self.optimizer) is not self._own_optimizer:  # the Trainer's `create_optimizer_and_scheduler` made it
            self._check_optimizer()
        layers = layerwise_interface(self.optimizer).layers
        if layers is not None:
            table = layers.table(optimizer=all_open(self.optimizer)[0])
            inform(self, f"Learning rates by layer:\n{table}")

    @property
    def _decay(self) -> LayerDecay:
        return decay_of_arguments(self.args)

    @property
    def _schedule_is_ours(self) -> bool:
        return hasattr(self.args, "lr_scheduler_kwargs") and builds_schedule(self.args)

    def _check_optimizer(self) -> None:
        """Raise if the Trainer's optimizer, if any, contradicts the arguments."""
        if self.optimizer is None:
            return
        check_trainer_optimizer(self.optimizer, self.lr_scheduler, name_of(self.args.optim), self._decay)
        if unwrap(self.optimizer) is not self._own_optimizer:
            layers = self.layer_map if getattr(self.args, "layerwise_rules", None) else None
            check_settings(self.optimizer, self.args, layers)

    def _freeze(self, layers: LayerMap) -> None:
        """Set `stop_gradient` of the parameters whose ratio is 0."""
        params, ratios = self.model.parameters(), layers.ratios(self._decay)
        frozen = [param for param in params if not param.stop_gradient and ratios[layers.name_of(param.name)] == 0]
        if not frozen and not self._decay.freeze_below:
            return
        for param in frozen:
            param.stop_gradient = True
        frozen_layers = {layers.layer_of(param.name) for param in frozen}
        labels = [layer.label for layer in sorted(frozen_layers, key=lambda layer: (layer.tower, layer.index))]
        counts = f"layerwise_freeze_below={self._decay.freeze_below} freezes {len(frozen)} of {len(params)} parameters"
        inform(self, f"{counts}: {', '.join(labels) or 'no layer has a smaller ratio'}")
