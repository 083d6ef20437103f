"""Layer-wise learning rates, and resumes that keep to them, for any Trainer of the PaddleNLP family."""

import functools
import importlib
import inspect
import logging
import os
from typing import Any

from paddle import distributed

from .._checks import shown
from .._paddle import unwrap
from ..config import OPTIMIZERS, LdoptConfig, json_object
from ..optimizers.apply import apply_layerwise_decay
from ..optimizers.registry import REGISTRY
from ..schedules import ON_METRIC
from ..trainer import checkpoints, folders, schedules
from .arguments import RULE_FIELDS, check_mixed_in_first, serve
from .callbacks import Callback, GradualUnfreezeCallback, all_open, layers_of
from .optimizers import (
    OFF,
    OwnRate,
    build_optimizer,
    check_passed_optimizer,
    check_passed_settings,
    drop_frozen,
    freeze,
    hook_ratios,
    name_of,
    sets_own_rate,
)
from .reading import errors_of_readers
from .stages import gathered, map_layers, pipeline_of

__all__ = ["LdoptTrainerMixin"]

_DEGREES = [(kind, f"{kind}_parallel_degree") for kind in ("sharding", "tensor", "pipeline")]  # of the arguments
_Trainer: Any = object  # for type checkers: the Trainer that follows in the bases


class LdoptTrainerMixin(_Trainer):
    """Make a Trainer do what the arguments of `LdoptArgumentsMixin` say.

    - ``optim="adamwdl"`` trains with `AdamWDL`; any other optimizer of the Trainer gets the layer-wise rates by
      `apply_layerwise_decay`. Biases and the parameters of norms are not decayed (`decayed_parameter_names`); groups
      given to `set_optimizer_grouped_parameters` say themselves what is, and their "learning_rate" multiplies the
      layer's.
    - ``lr_scheduler_type`` takes every `SchedulerType`, with ``lr_scheduler_kwargs``. Those that follow a metric take a
      step after each evaluation that the Trainer makes in its training; those made by hand do not count.
    - A checkpoint that is asked for after an epoch's last step (by its number, or by a callback on SIGTERM) is saved
      after the evaluation at the epoch's end, if there is one: the rate and the best model that come of it are in it.
    - ``layerwise_freeze_below`` sets `stop_gradient` on what it freezes, so backward passes end there. It stays set.
    - The layer table is logged before the first step, read back from the optimizer.
    - With ``optimizers=(opt, scheduler)``, `scheduler` must be the one that `opt` was built with, or None if `opt` sets
      its rate itself (`relative_step`, a `Lamb` with a callable). A layer-wise decay, its layers and the options are
      then `opt`'s own; if the arguments (`layerwise_rules`, `optim_kwargs`) ask for some too, both must be the same.
    - Checkpoints hold ``ldopt_config.json``, the arguments as an `LdoptConfig`, if they made the optimizer.
    - In a distributed training all processes use the same rates, those of the whole model: a pipeline's stages agree on
      its layers, so `layer_map` must be asked for in all of them at once. The main process alone logs the table.
    - Checkpoints hold a record of the rule, the optimizer's class, the layer map and `GradualUnfreezeCallback`. A
      resume with others is refused unless ``allow_layerwise_change`` is given. One from a checkpoint that was cut short
      always is, and one with a file that is not what was written; ``train(resume_from_checkpoint=True)`` takes the
      last one that is neither, and warns of those that are damaged. (With asynchronous saving, complete means that the
      files were all begun, and damage is not looked for.)
    - Going on from an earlier checkpoint than the last begins those steps anew: when the first new one is saved, later
      ones in `output_dir` get the name ``superseded-checkpoint-<step>``, with a warning. They are never deleted, and no
      automatic resume takes them.
    - ``save_total_limit`` is heeded in a training of one process too, and goes by the steps, not by the clock. A
      resumed run that is over takes no further step (a callback may say so by `training_is_over`), and the best model
      is looked for beside the checkpoint that is gone on from, if the run was moved. A folder that cannot be written
      into is found out before the first step. What a data set or a collator raises is raised by `train`, which would
      wait for ever (`evaluate` likewise).
    - In a training of one process, a resume ends with the same weights, bit for bit, as if it had never stopped. For
      that, the order of the batches in the second and later epochs, and dropout after a checkpoint at the end of an
      epoch, are restored, which the Trainer does not do. `gradient_accumulation_steps` must divide the batches of an
      epoch, for the Trainer carries gradients over into the next one.

    Attributes:
        layer_rules (dict[str, int|str]|callable, optional): set it in a subclass, or define it as a method
            ``layer_rules(self, name)``: the `rules` of `LayerMap.from_model`.
        layer_map (LayerMap): the layers of the model; built at its first use.

    Raises:
        TypeError: at the definition of the class, if the mixin does not come first.
        ValueError: from `train`, before anything is loaded or changed: `optimizers` that contradict the arguments or
            each other, a checkpoint that does not fit, a schedule that follows a metric
            and no `eval_dataset`. In the training: an evaluation without that metric.

    Examples:
        .. code-block:: python

            from paddlenlp.trainer import Trainer
            from paddle_ldopt.trainer import LdoptTrainerMixin

            class MyTrainer(LdoptTrainerMixin, Trainer):
                layer_rules = {r"adapter_in": "embeddings"}

            trainer = MyTrainer(model=model, args=args, train_dataset=train)  # args: MyArguments
            trainer.train(resume_from_checkpoint=True if resume else None)
    """

    layer_rules: Any = None
    optimizer: Any  # the Trainer's
    lr_scheduler: Any

    _rotation: Any = None  # while a checkpoint is saved: the calls of `_rotate_checkpoints`, which wait for its end
    _own_optimizer = None  # the one that we made, without a wrapper
    _own_scheduler = None  # the schedule that we made
    _found: Any = None  # the metrics of the training's running evaluation, as long as the schedule's is not among them
    _went_on_from: Any = None  # the step that a resume began with, until the first checkpoint is saved
    _resumed_from = None  # checkpoint whose RNG state is to be restored when the first epoch begins
    _rng_restored = False
    _epoch_rng = None  # what samplers shuffled this epoch with

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, LdoptTrainerMixin, "create_optimizer")

    @property
    def args(self):
        """The Trainer's arguments."""
        return self.__dict__["args"]

    @args.setter
    def args(self, args):
        serve(args)
        self.__dict__["args"] = args

    @functools.cached_property
    def layer_map(self):
        """The layers of the model."""
        rules = json_object(getattr(self.args, "layerwise_rules", None), "layerwise_rules")
        if rules and self.layer_rules is not None:
            raise ValueError(
                "The Trainer has `layer_rules` and its arguments `layerwise_rules`: leave one of them out. "
                f"Received: layerwise_rules={shown(rules)}"
            )
        return map_layers(self.model, rules or self.layer_rules)

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """Train, as the Trainer's own `train`, after all that can be checked beforehand was.

        Args:
            resume_from_checkpoint (str|bool, optional): a checkpoint's folder, or True for the last complete one in
                `args.output_dir`.
            *args: for the Trainer's own `train`.
            **kwargs: for the Trainer's own `train`.
        """
        self._check_optimizer()
        self._check_scheduler()
        record, config = self._record, self._config  # both before there is an optimizer
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, "extra_logs"):
                callback.attached = True
            if hasattr(callback, "config") and config is not None:
                callback.config = config
        checkpoint = self._agree(lambda: self._check_resume(self._resolve(resume_from_checkpoint), record))
        if name_of(self.args.save_strategy) != "no":
            self._agree(lambda: folders.check_writable(self.args.output_dir))
        self._resumed_from, self._rng_restored = checkpoint, False
        events = _Events(self)
        self.callback_handler.callbacks.insert(0, events)  # who looks for the last callback finds the user's
        try:
            with errors_of_readers():
                return super().train(checkpoint, *args, **kwargs)
        finally:
            self.callback_handler.pop_callback(events)

    def create_optimizer(self, lr_scheduler=None):
        """Return the Trainer's optimizer; make it, with the layer-wise rates, if there is none."""
        rule, optim = self._rule, name_of(self.args.optim)
        if self.optimizer is not None:
            self._check_optimizer()
            return super().create_optimizer(lr_scheduler)
        layers = None if rule == OFF else self.layer_map
        if layers is not None and rule.freeze_below:
            self._freeze(layers.ratio_fn(rule))
        if optim in REGISTRY:
            learning_rate = self.lr_scheduler if lr_scheduler is None else lr_scheduler
            groups = self.optimizer_grouped_parameters
            self.optimizer = build_optimizer(
                REGISTRY[optim], self.args, self.model, learning_rate, groups, rule, layers
            )
            processes = distributed.get_world_size()
            self._agree(lambda: checkpoints.check_unified(self.args, self.optimizer, processes))
        else:
            super().create_optimizer(lr_scheduler)
            if layers is not None:
                apply_layerwise_decay(self.optimizer, layers, rule)
        self._own_optimizer = unwrap(self.optimizer)
        drop_frozen(self._own_optimizer)
        return self.optimizer

    def create_scheduler(self, num_training_steps):
        """Return the Trainer's schedule; make it, if it is one of ours and there is none.

        Args:
            num_training_steps (int): optimizer steps.
        """
        # PaddleFormers' `freeze_training` has a schedule of its own
        if self.lr_scheduler is None and sets_own_rate(self.optimizer):
            self.lr_scheduler = OwnRate(self.optimizer)
        elif self.lr_scheduler is None and self._schedule_is_ours and not getattr(self.args, "freeze_training", False):
            self.lr_scheduler = self._own_scheduler = schedules.build_scheduler(self.args, num_training_steps)
        return super().create_scheduler(num_training_steps)

    def log(self, logs, *args, **kwargs):
        """Log, with what callbacks such as `LayerLRCallback` add for all who listen.

        Args:
            logs (dict[str, float]): the Trainer's own.
            *args: for the Trainer's own `log`.
            **kwargs: for the Trainer's own `log`.
        """
        if "loss" in logs:  # of the training, no evaluation's and no summary
            for callback in self.callback_handler.callbacks:
                if hasattr(callback, "extra_logs"):
                    logs.update(self._of_all_stages(callback.extra_logs()))
        return super().log(logs, *args, **kwargs)

    def _of_all_stages(self, rates):
        """Return the rates that all stages of a pipeline give, of a layer in several of them the greatest."""
        if pipeline_of(self.model) is None:
            return rates
        merged: dict = {}
        for stage in gathered(rates):
            merged.update({name: max(rate, merged.get(name, 0.0)) for name, rate in stage.items()})
        return merged

    def evaluate(self, *args, **kwargs):
        """Evaluate, as the Trainer's own `evaluate`; within the training, tell a schedule that follows a metric.

        Args:
            *args: for the Trainer's own `evaluate`.
            **kwargs: for the Trainer's own `evaluate`.
        """
        with errors_of_readers():
            metrics = super().evaluate(*args, **kwargs)
        if self._found is not None:
            self._found.update(metrics)
            if schedules.step_on_metric(self.lr_scheduler, self.args, metrics):
                self._found = None  # other data sets of the same evaluation have other metrics
        return metrics

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        # a checkpoint is saved in here after the evaluation: the schedule must have taken its step by then
        waits = self.control.should_save and self._evaluation_is_ahead
        self.control.should_save = self.control.should_save and not waits
        self._found = {}
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
            missed = self._found
        finally:
            self._found = None
        self.control.should_save = self.control.should_save or waits
        if missed:
            raise ValueError(
                "The evaluation does not give the metric that the schedule follows: set `metric_for_best_model` to "
                f"one of {', '.join(sorted(missed))}. Received: metric_for_best_model="
                f"{shown(self.args.metric_for_best_model)}, "
                f"lr_scheduler_type={shown(name_of(self.args.lr_scheduler_type))}"
            )

    @property
    def _evaluation_is_ahead(self):
        """Whether this is an epoch's last step, and the evaluation at the epoch's end has not begun."""
        if name_of(self.args.evaluation_strategy) != "epoch" or self.control.should_evaluate:
            return False
        return self.control.should_training_stop or self.state.epoch == int(self.state.epoch)

    def _inner_training_loop(self, *args, **kwargs):
        # the Trainer takes a step before it looks whether the run was over
        arguments = inspect.signature(super()._inner_training_loop).bind(*args, **kwargs)
        counts_from_0 = getattr(self.args, "ignore_load_lr_and_optim", False)
        taken = 0 if counts_from_0 else folders.step_of(self._resumed_from, type(self.state))
        self._went_on_from = None if self._resumed_from is None else taken
        stopped = any(getattr(callback, "training_is_over", False) for callback in self.callback_handler.callbacks)
        if stopped or taken >= arguments.arguments["max_steps"]:
            arguments.arguments["num_train_epochs"] = 0
        return super()._inner_training_loop(*arguments.args, **arguments.kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        folder = os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        if self._went_on_from is not None:
            self._agree(self._set_aside)
            self._went_on_from = None
        if self.args.should_save:
            folders.begin_checkpoint(folder, self._record, self._epoch_rng)
            if self._config is not None:
                self._config.to_json(os.path.join(folder, folders.CONFIG))
        self._wait_for_all()  # no process writes into the checkpoint before it is marked, none deletes another before
        self._rotation = []
        try:
            super()._save_checkpoint(*args, **kwargs)
            self._wait_for_all()  # it is complete
            if self.args.should_save:
                folders.finish_checkpoint(folder, all_written=not self._saves_in_background)
            if not self._rotation and self.args.local_rank == -1:  # PaddleNLP does so where it is 0 only
                self._rotation.append(((), {"use_mtime": True, "output_dir": self.args.output_dir}))
        finally:
            rotation, self._rotation = self._rotation, None
        for positional, named in rotation:
            self._rotate_checkpoints(*positional, **named)

    def _set_aside(self):
        """Rename the checkpoints that were saved when these steps were taken before."""
        for was, now in folders.set_aside(self.args.output_dir, self._went_on_from):
            self._logger.warning(
                f"{was} is called {now} from now on: this run has gone on from step {self._went_on_from}, before it, "
                "and a resume is to take what is saved since. Delete it if nobody wants it."
            )

    def _rotate_checkpoints(self, *args, **kwargs):
        if self._rotation is not None:
            self._rotation.append((args, kwargs))
            return
        # the Trainer takes for granted that the best checkpoint is among those it may delete
        best = self.state.best_model_checkpoint
        folder = inspect.signature(super()._rotate_checkpoints).bind(*args, **kwargs).arguments.get("output_dir")
        if best is not None and folder is not None:
            inside = os.path.isdir(best) and os.path.realpath(os.path.dirname(best)) == os.path.realpath(folder)
            self.state.best_model_checkpoint = os.path.join(folder, os.path.basename(best)) if inside else None
        try:
            super()._rotate_checkpoints(*args, **kwargs)
        finally:
            self.state.best_model_checkpoint = best

    def _sorted_checkpoints(self, *args, **kwargs):
        # the Trainer goes by the time of the files: after a clock was put back the newest would be deleted
        call = inspect.signature(super()._sorted_checkpoints).bind(*args, **kwargs)
        call.arguments["use_mtime"] = False
        saved = super()._sorted_checkpoints(*call.args, **call.kwargs)
        best = self.state.best_model_checkpoint
        return folders.oldest_first(saved, self.state.global_step, best and os.path.normpath(best))

    @property
    def _saves_in_background(self):
        unified = getattr(self.args, "unified_checkpoint_config", None) or ()
        return bool(getattr(self.args, "use_async_save", False)) or "async_save" in unified

    def _agree(self, ask):
        """Return in all processes what `ask()` gives in the main one, or raise what it raises there."""
        if self.args.world_size <= 1:
            return ask()
        answer: list = [None]
        if self.is_world_process_zero():
            try:
                answer = [(ask(), None)]
            except Exception as raised:  # the others would wait for this process
                answer = [(None, raised)]
        distributed.broadcast_object_list(answer, src=0)
        result, problem = answer[0]
        if problem is not None:
            raise problem
        return result

    def _wait_for_all(self):
        if self.args.world_size > 1:
            distributed.barrier()

    def _load_rng_state(self, checkpoint):
        # some samplers make the Trainer call this in every epoch after a resume
        if checkpoint is not None and not self._rng_restored:
            self._rng_restored = True
            super()._load_rng_state(checkpoint)

    @property
    def _schedule_is_ours(self):
        return hasattr(self.args, "lr_scheduler_kwargs") and schedules.is_ours(self.args)

    def _check_optimizer(self):
        """Raise if there is an optimizer that would not do what the arguments say."""
        if self.optimizer is None:
            return
        check_passed_optimizer(self.optimizer, self.lr_scheduler, name_of(self.args.optim), self._rule)
        if unwrap(self.optimizer) is not self._own_optimizer:
            layers = self.layer_map if getattr(self.args, "layerwise_rules", None) else None
            check_passed_settings(self.optimizer, self.args, layers)

    def _check_scheduler(self):
        """Raise if the schedule of the arguments would be ignored, or follows a metric that nothing gives."""
        if not self._schedule_is_ours:
            return
        received = f"lr_scheduler_type={shown(name_of(self.args.lr_scheduler_type))}"
        if sets_own_rate(self.optimizer):
            raise ValueError(
                "The optimizer sets its rate itself, so `lr_scheduler_type` would be ignored: leave it out. "
                f"Received: optimizers=({type(unwrap(self.optimizer)).__name__}, ...), {received}"
            )
        if self.lr_scheduler is not None and self.lr_scheduler is not self._own_scheduler:
            raise ValueError(
                "`optimizers` has a scheduler already, so `lr_scheduler_type` would be ignored: leave one of them out. "
                f"Received: optimizers=(..., {type(self.lr_scheduler).__name__}), {received}"
            )
        if name_of(self.args.lr_scheduler_type) in ON_METRIC and self.eval_dataset is None:
            raise ValueError(
                "The schedule follows an evaluation metric: give the Trainer an `eval_dataset`. "
                f"Received: eval_dataset=None, {received}"
            )

    @property
    def _rule(self):
        return getattr(self.args, "layerwise_rule", OFF)

    @property
    def _record(self):
        """What a checkpoint says of the training."""
        unfreezing = [c for c in self.callback_handler.callbacks if isinstance(c, GradualUnfreezeCallback)]
        return {
            **self._settings,
            "unfreeze_every_k_steps": unfreezing[0].every_k_steps if unfreezing else None,
            "layout": {name: max(getattr(self.args, field, 1), 1) for name, field in _DEGREES},
        }

    @functools.cached_property
    def _settings(self):
        """The part of the record that stays: taken before an optimizer is made, or from the one that was given."""
        if self.optimizer is None:
            name, rule, ratios = self._optimizer_name(), self._rule, None
            layers = None if rule == OFF else self.layer_map
        else:
            optimizer = unwrap(self.optimizer)
            name, rule = type(optimizer).__name__, getattr(getattr(optimizer, "_ratio_of", None), "rule", OFF)
            ratios = hook_ratios(optimizer, self.model)
            layers = None if rule == OFF else layers_of(optimizer)
        fingerprint = {"towers": None, "layers": None} if layers is None else layers.fingerprint()
        fields = {argument: getattr(rule, field) for argument, field in RULE_FIELDS.items()}
        return {"optimizer": name, "rule": fields, "ratios": ratios, **fingerprint}

    @functools.cached_property
    def _config(self):
        """The arguments as an `LdoptConfig`; None if the optimizer was given, or is one that the Trainer alone has."""
        if self.optimizer is not None or not hasattr(self.args, "layerwise_rules"):
            return None
        return LdoptConfig.from_arguments(self.args) if name_of(self.args.optim) in OPTIMIZERS else None

    def _optimizer_name(self):
        """Return the name of the class of the optimizer that is to be made."""
        optim = name_of(self.args.optim)
        if optim in REGISTRY:
            return REGISTRY[optim].cls.__name__
        try:
            return self.get_optimizer_cls_and_kwargs(self.args)[0].__name__
        except ValueError:  # one that only the create_optimizer of a subclass knows
            return optim

    def _resolve(self, checkpoint):
        """Return the folder to resume from, or None."""
        if checkpoint is not True:
            return checkpoint or None
        found = folders.last_checkpoint(self.args.output_dir)
        if found is None:
            raise ValueError(
                f"No valid checkpoint found in output directory ({self.args.output_dir}): leave "
                "`resume_from_checkpoint` out to begin a new training, or give the folder of a complete checkpoint. "
                f"Received: resume_from_checkpoint=True, output_dir={self.args.output_dir!r}"
            )
        return found

    def _check_resume(self, checkpoint, record):
        """Return `checkpoint`, raise if the training of `record` must not go on from it."""
        if checkpoint is None or not os.path.isdir(checkpoint):
            return checkpoint  # the Trainer says what is wrong with a folder that is not there
        active = any(value != getattr(OFF, RULE_FIELDS[argument]) for argument, value in record["rule"].items())
        active = active or any(ratio != 1.0 for ratio in (record["ratios"] or {}).values())
        active = active or record["unfreeze_every_k_steps"] is not None
        allowed = getattr(self.args, "allow_layerwise_change", False)
        found = checkpoints.check_checkpoint(checkpoint, record, active, allowed)
        if found and self.optimizer is None:
            checkpoints.check_thawed(checkpoint, record)
        for difference in found:
            self._logger.warning(f"Going on from {checkpoint} in spite of a difference: {difference}")
        return checkpoint

    def _freeze(self, ratio_of):
        named = list(self.model.named_parameters())
        frozen = freeze(named, ratio_of)
        of = sorted({(layer.tower, layer.index, layer.label) for layer in map(self.layer_map.layer_of, frozen)})
        self._tell(
            f"layerwise_freeze_below={self._rule.freeze_below} freezes {len(frozen)} of {len(named)} parameters: "
            f"{', '.join(label for _, _, label in of) or 'no layer has a ratio below it'}"
        )

    def _begin_training(self):
        best, checkpoint = self.state.best_model_checkpoint, self._resumed_from
        if best is not None and checkpoint is not None:
            # of the same run as the checkpoint, which may have been moved or copied since
            self.state.best_model_checkpoint = folders.beside(checkpoint, best, self.args.output_dir)
        layers = layers_of(unwrap(self.optimizer))
        if layers is not None:
            table = layers.table(optimizer=all_open(self.optimizer)[0], num_steps=self._last_step_ahead)
            self._tell(f"Learning rates by layer:\n{table}")

    @property
    def _last_step_ahead(self):
        return max(self.state.max_steps - 1 - self.state.global_step, 0)

    def _begin_epoch(self):
        checkpoint, self._resumed_from = self._resumed_from, None
        skips = not (self.args.ignore_data_skip or getattr(self.args, "ignore_load_lr_and_optim", False))
        if checkpoint is not None and skips and self.state.global_step > 0:
            self._restore_rng(checkpoint)
        self._epoch_rng = checkpoints.take_epoch_rng()

    def _restore_rng(self, checkpoint):
        """Restore what the first epoch after a resume begins with; the Trainer does so after the batches it skips."""
        try:
            batches = len(self.callback_handler.train_dataloader)
            updates = max(batches // self.args.gradient_accumulation_steps, 1)
        except (TypeError, ValueError):  # of unknown length: all steps make one epoch
            updates = self.state.max_steps
        if self.state.global_step % updates == 0:
            self._load_rng_state(checkpoint)
        elif self.args.world_size <= 1:  # else the samplers shuffle with the epoch's number
            epoch_rng = checkpoints.load_epoch_rng(checkpoint)
            if epoch_rng is not None:
                checkpoints.set_epoch_rng(epoch_rng)
            elif self.state.global_step > updates:
                self._logger.warning(
                    f"{checkpoint} does not say how its epoch was shuffled: the batches that follow are not those that "
                    "would have followed without the interruption"
                )

    def _tell(self, line):
        if self.is_world_process_zero():
            self._logger.info(line)

    @property
    def _logger(self):
        for cls in type(self).__mro__:
            package = cls.__module__.split(".")[0]
            if package in ("paddlenlp", "paddleformers"):
                return importlib.import_module(f"{package}.utils.log").logger
        return logging.getLogger(__name__)


class _Events(Callback):
    """Tells a Trainer what its mixin waits for."""

    def __init__(self, trainer):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self._trainer._begin_training()

    def on_epoch_begin(self, args, state, control, **kwargs):
        self._trainer._begin_epoch()
