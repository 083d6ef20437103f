"""`LdoptTrainerMixin`: layers, optimizer, schedule and table from a Trainer's arguments."""

import contextlib
import functools
import os
from typing import Any, Optional

import paddle
from paddle import distributed
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

from .._checks import first_few, refusal
from .._compat import check_wrapper_state, leave_out_frozen, parameters_of, pipeline_of, unwrap, wrappers
from ..checkpoint import Record, layerwise_record, schedules_of
from ..config import (
    BUILT_IN,
    ERNIEKIT,
    LdoptConfig,
    decay_of_arguments,
    evaluation_metric,
    json_argument,
    name_of,
    settings_of_arguments,
)
from ..create import OFF, OPTIMIZERS, build_optimizer
from ..layers.decay import LayerDecay
from ..layers.map import LayerMap
from ..optimizers import LayerwiseOptimizer
from ..optimizers.layer_rates import apply_layerwise_decay
from ..optimizers.options import ADAM, REGISTRY
from ..rates import layerwise_interface
from ..schedules import MetricSchedule, get_scheduler
from ..schedules.factory import SCHEDULES
from ..schedules.warmup import resume_at, step_of_state
from . import record, resume
from .arguments import LdoptArgumentsMixin
from .callbacks import GradualUnfreezeCallback
from .resume import Args, ResumeMixin
from .stages import from_all_stages, layers_of_trainer


class LdoptTrainerMixin(ResumeMixin):
    """A Trainer that uses the arguments of `LdoptArgumentsMixin` and resumes as with `ResumeMixin`.

    - Every optimizer, ours or the Trainer's, gets the layer-wise rates. Biases and norms have no weight decay; the
      Trainer tells them by name. Groups of `set_optimizer_grouped_parameters` set their own; their "learning_rate"
      multiplies the layer's ratio.
    - A schedule that follows a metric takes a step after each evaluation, before the checkpoint.
    - ``layerwise_freeze_below`` sets `stop_gradient`, so backward passes end at the frozen layers.
    - With ``optimizers=(opt, scheduler)``, `scheduler` must be the schedule of `opt`, or None if `opt` sets its rate
      (`relative_step`, a `Lamb` with a callable). `opt` determines decay and layers; a decay or `optim` in the
      arguments must be the same. This also applies to an optimizer built by a subclass.
    - Checkpoints record the optimizer's class, the decay, the layer map and `GradualUnfreezeCallback`. A resume with
      others is refused; with ``allow_layerwise_change``, a warning lists the differences. If the optimizer was built
      from the arguments, ``ldopt_config.json`` has them as an `LdoptConfig`.
    - The layers are measured: `compute_loss` runs once on the first training row. If that fails, the log has the cause,
      and layers are found by names, as in a pipeline.
    - All processes use the rates of the whole model, and must read `layer_map` together.

    Attributes:
        layer_rules (dict|callable): the `rules` of `LayerMap.from_model`, or a method ``layer_rules(self, name)``;
            ``layerwise_rules`` of the arguments override it.

    Raises:
        TypeError: the mixin is not the first base class.
        ValueError: from `train`, before anything changes: `optimizers` that contradict the arguments or each other, an
            incompatible checkpoint. Later: an evaluation without the schedule's metric.

    Examples:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_ldopt.trainer import LdoptTrainerMixin
        >>> class MyTrainer(LdoptTrainerMixin, Trainer):
        ...     layer_rules = {r"adapter_in": "embeddings"}
        >>> trainer = MyTrainer(model=model, args=args, train_dataset=train)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True if resume else None)  # doctest: +SKIP
    """

    layer_rules: Any = None
    optimizer: Any  # the Trainer's optimizer
    lr_scheduler: Any

    _own_optimizer: Any = None  # built by us, without a wrapper
    _built_with: dict[str, Any] = {}  # the settings that it was built with
    _frozen: Any = ()  # parameters frozen by us
    _own_schedule: Any = None  # built by us or the Trainer
    _record: Record  # of the current training
    _other_metrics: Any = None  # metrics of an evaluation, until the schedule's is among them

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, LdoptArgumentsMixin):
                argument.ldopt_served = True
        super().__init__(*args, **kwargs)

    @functools.cached_property
    def layer_map(self) -> LayerMap:
        """The model's layers, measured with the first training row."""
        rules, decay = json_argument(self.args, "layerwise_rules") or self.layer_rules, decay_of_arguments(self.args)
        self._built_with = {**self._built_with, "layerwise_rules": getattr(self.args, "layerwise_rules", None)}
        return LayerMap.for_decay(decay, self.model, lambda: layers_of_trainer(self, rules))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does, after a check of optimizer and arguments and a table of the rates.

        Each call builds a schedule, unless `optimizers` had one.
        """
        if self.lr_scheduler is not None and self.lr_scheduler is self._own_schedule:
            self.lr_scheduler = None
        rules = getattr(self.args, "layerwise_rules", None)
        if self.optimizer is None and self._built_with.get("layerwise_rules", rules) != rules:
            self.__dict__.pop("layer_map", None)  # by the rules of an earlier training
        _ignore_steps_without_metric(self.lr_scheduler)
        self._check_optimizer()
        self._record = self._settings()  # in all processes: the stages of a pipeline agree on the layers
        return super().train(*args, **kwargs)

    def create_optimizer(self, lr_scheduler: Optional[LRScheduler] = None) -> Optimizer:
        """Return the Trainer's optimizer, built if missing."""
        if self.optimizer is not None:
            own, new = unwrap(self.optimizer), self._own_schedule  # of a second training
            if own is self._own_optimizer and new is not None and lr_scheduler is new and not isinstance(new, OwnRate):
                own.set_lr_scheduler(new)
            resumes = self._resumed_from is not None and not getattr(self.args, "ignore_load_lr_and_optim", False)
            if resumes and isinstance(own, LayerwiseOptimizer):
                own.forget_state()  # parameters that were frozen at the checkpoint may have one by now
            self._check_optimizer()
            return super().create_optimizer(lr_scheduler)
        args: Any = self.args
        decay, groups = decay_of_arguments(args), self.optimizer_grouped_parameters
        info = REGISTRY.get(name_of(args.optim))
        for param in self._frozen:  # by the decay of an earlier training
            param.stop_gradient = False
        self._frozen = ()
        layers = self.layer_map if decay != OFF or (info is not None and info.instead_of_layers) else None
        if layers is not None:
            self._freeze(layers, decay)
        if info is None:
            theirs = {name: getattr(args, name) for name in ERNIEKIT if hasattr(args, name)}
            vars(args).update({name: ERNIEKIT[name][0] for name in theirs})  # ERNIEKit would give AdamW an `lr_ratio`
            try:
                super().create_optimizer(lr_scheduler)
            finally:
                vars(args).update(theirs)
            if layers is not None:
                apply_layerwise_decay(self.optimizer, layers, decay)
        else:
            settings = settings_of_arguments(args)
            self.optimizer = build_optimizer(
                info,
                self.model,
                layerwise_decay=decay,
                layers=layers,
                groups=self.model.parameters() if groups is None else groups,
                max_grad_norm=settings["max_grad_norm"],
                learning_rate=self.lr_scheduler if lr_scheduler is None else lr_scheduler,
                weight_decay=settings["weight_decay"],
                **settings["optim_kwargs"],
            )
            of_formers = getattr(args, "save_checkpoint_format", None) == "unified_checkpoint"
            unified = of_formers or getattr(args, "unified_checkpoint", False)
            processes = distributed.get_world_size() if unified else 1
            params = [param for param in self.model.parameters() if not param.stop_gradient]
            if processes > 1 and len({frozenset(self.optimizer.states_of(param)) for param in params}) > 1:
                wrong = f"PaddleNLP cannot resume unified checkpoints of {info.cls.__name__} in several processes:"
                given = {"unified_checkpoint": True, "processes": processes}
                raise refusal(ValueError, f"{wrong} set unified_checkpoint=False.", **given)
        self._own_optimizer, self._built_with = unwrap(self.optimizer), _lasting_settings(args)
        leave_out_frozen(self._own_optimizer)
        return self.optimizer

    def _freeze(self, layers: LayerMap, decay: LayerDecay) -> None:
        params, ratios = self.model.parameters(), layers.ratios(decay)
        frozen = [p for p in params if not p.stop_gradient and ratios[layers.name_of(p.name)] == 0]
        for param in frozen:
            param.stop_gradient = True
        self._frozen = frozen
        if frozen or decay.freeze_below:
            found = {layers.layer_of(param.name) for param in frozen}
            labels = [layer.label for layer in sorted(found, key=lambda layer: (layer.tower, layer.index))]
            counts = f"The layer-wise decay freezes {len(frozen)} of {len(params)} parameters"
            self._inform(f"{counts}: {', '.join(labels) or 'none below its `freeze_below`'}")

    def create_scheduler(self, num_training_steps: int) -> LRScheduler:
        args, given, kind = self.args, self.lr_scheduler, name_of(self.args.lr_scheduler_type)
        # the Trainer lacks the kind, or ignores these options of its own
        ours = kind in SCHEDULES and (kind not in BUILT_IN or json_argument(args, "lr_scheduler_kwargs"))
        ours = ours and hasattr(args, "lr_scheduler_kwargs")
        if self.lr_scheduler is None and layerwise_interface(self.optimizer).sets_own_lr:
            self.lr_scheduler = OwnRate(self.optimizer)
        elif self.lr_scheduler is None and ours and not getattr(args, "freeze_training", False):  # of PaddleFormers
            settings = settings_of_arguments(args)
            rate, kwargs = settings["learning_rate"], settings["lr_scheduler_kwargs"]
            warmup = settings["warmup_steps"] or int(settings["warmup_ratio"] * num_training_steps)
            steps = max(getattr(args, "decay_steps", None) or 0, 0) or num_training_steps  # some Trainers lack them
            self.lr_scheduler = get_scheduler(settings["lr_scheduler_type"], rate, warmup, steps, kwargs)
            _ignore_steps_without_metric(self.lr_scheduler)
        schedule = super().create_scheduler(num_training_steps)
        if given is None:
            self._own_schedule = schedule
        return schedule

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if "loss" in logs:  # not of an evaluation or a summary
            layer_rates: dict[str, float] = {}
            for callback in (one for one in self.callback_handler.callbacks if hasattr(one, "extra_logs")):
                more = callback.extra_logs()
                for stage in [more] if pipeline_of(self.model) is None else from_all_stages(more):
                    for name, rate in stage.items():  # the largest rate of a layer in several stages
                        layer_rates[name] = max(rate, layer_rates.get(name, 0.0))
            logs.update(layer_rates)  # the Trainer's own "learning_rate" is the next step's
        return super().log(logs, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        metrics = super().evaluate(*args, **kwargs)
        if self._other_metrics is not None and isinstance(self.lr_scheduler, MetricSchedule):
            self._other_metrics.update(metrics)
            key = evaluation_metric(self.args)[0]
            if key in metrics:
                self.lr_scheduler.step(float(metrics[key]))
                self._other_metrics = None  # other data sets of this evaluation have other metrics
        return metrics

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # the schedule must step between the Trainer's evaluation and its checkpoint
        self._other_metrics = {}
        follows = self.control.should_evaluate and isinstance(self.lr_scheduler, MetricSchedule)
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
            if follows and self._other_metrics is not None:
                known = ", ".join(sorted(self._other_metrics)) or "those of `super().evaluate`"
                wrong = f"The evaluation lacks the schedule's metric: set `metric_for_best_model` to one of {known}."
                raise refusal(ValueError, wrong, metric_for_best_model=self.args.metric_for_best_model)
        finally:
            self._other_metrics = None

    def _begin(self, *args: Any, **kwargs: Any) -> None:
        super()._begin(*args, **kwargs)
        path = os.path.join(self._resumed_from or "", "scheduler.pdparams")
        if self._resumed_from is not None and os.path.isfile(path) and self.state.global_step:
            of_metric = step_of_state(paddle.load(path)) is None  # its steps were evaluations
            is_other = of_metric != (step_of_state(self.lr_scheduler.state_dict()) is None)
            if is_other:
                unused = "The checkpoint has the state of another kind of schedule, which is not used"
                resume.logger_of(self).warning(f"{unused}: {type(self.lr_scheduler).__name__} has its own rate.")
            resume_at(self.lr_scheduler, self.state.global_step if of_metric or is_other else None)
        self._check_optimizer()  # the Trainer's `create_optimizer_and_scheduler` may have made one
        layers = layerwise_interface(self.optimizer).layers
        if layers is not None:
            self._inform(f"Learning rates by layer:\n{layers.table(optimizer=self.optimizer)}")

    def _inform(self, text: str) -> None:
        if self.is_world_process_zero():
            resume.logger_of(self).info(text)

    def _check_optimizer(self) -> None:
        if self.optimizer is None:
            return
        if unwrap(self.optimizer) is not self._own_optimizer:
            check_given_optimizer(self.optimizer, self.lr_scheduler, self.args)
        elif changed := {
            name: now for name, now in _lasting_settings(self.args).items() if now != self._built_with[name]
        }:
            wrong = "Settings have changed since the optimizer was built: set `trainer.optimizer = None`."
            raise refusal(ValueError, wrong, **changed)
        own = schedules_of(unwrap(self.optimizer)).items()
        if others := [name for name, one in own if name != "schedule" and one is not self.lr_scheduler]:
            wrong = 'The Trainer steps one schedule: give groups a number as "learning_rate", a factor of it.'
            raise refusal(ValueError, wrong, groups=others)
        layers = [one for one in (self.model, getattr(self, "criterion", None)) if isinstance(one, paddle.nn.Layer)]
        known = {id(param) for layer in layers for param in layer.parameters()}
        params = parameters_of(self.optimizer) if len(wrappers(self.optimizer)) == 1 else []  # wrappers may cut them
        if others := [param.name for param in params if id(param) not in known and not param.stop_gradient]:
            wrong = "The optimizer must train the model's own parameters: build it after a layer was replaced;"
            beside = "layers that it trains beside the model go into `trainer.criterion`."
            raise refusal(ValueError, f"{wrong} {beside}", others=first_few(others))

    def _check_checkpoint(self, folder: str) -> None:
        super()._check_checkpoint(folder)
        allowed = getattr(self.args, "allow_layerwise_change", False)
        if getattr(self.args, "ignore_load_lr_and_optim", False):  # only the weights are loaded
            return
        for difference in record.check_record(folder, self._record, allowed):
            resume.logger_of(self).warning(f"Resuming from {folder} despite a difference: {difference}")

    def _checkpoint_files(self) -> dict[str, Any]:
        files = {**super()._checkpoint_files(), record.LAYERWISE: self._record}
        is_ours = hasattr(self.args, "layerwise_rules") and unwrap(self.optimizer) is self._own_optimizer
        if is_ours and name_of(self.args.optim) in OPTIMIZERS:
            files[record.CONFIG] = LdoptConfig.from_arguments(self.args).to_dict()
        return files

    def _settings(self) -> Record:
        args, name = self.args, name_of(self.args.optim)
        if self.optimizer is not None:
            name, interface = type(unwrap(self.optimizer)).__name__, layerwise_interface(self.optimizer)
            decay, layers = interface.decay or OFF, interface.layers
        else:
            decay = decay_of_arguments(args)
            layers = None if decay == OFF else self.layer_map
            if name in REGISTRY:
                name = REGISTRY[name].cls.__name__
            else:
                with contextlib.suppress(ValueError):  # only the `create_optimizer` of a subclass knows this optimizer
                    name = self.get_optimizer_cls_and_kwargs(args)[0].__name__
        if decay == OFF:
            layers = None
        ratios = {} if layers is None else layers.ratios(decay)
        unfreezing = [c for c in self.callback_handler.callbacks if isinstance(c, GradualUnfreezeCallback)]
        formers = {"sharding": "sharding", "tensor": "tensor_model", "pipeline": "pipeline_model"}
        degrees = {
            axis: getattr(args, f"{axis}_parallel_degree", getattr(args, f"{other}_parallel_size", 1))
            for axis, other in formers.items()
        }
        return {
            "format": record.FORMAT,
            **layerwise_record(name, decay, layers),
            "frozen": [name for name, ratio in ratios.items() if ratio == 0],
            "unfreeze_every_k_steps": unfreezing[0].every_k_steps if unfreezing else None,
            "layout": {axis: max(degree, 1) for axis, degree in degrees.items()},
        }


def _lasting_settings(args: Args) -> dict[str, Any]:
    """Return the settings that a built optimizer keeps in later trainings."""
    fields = ("optim", "optim_kwargs", "weight_decay", "max_grad_norm", "layerwise_rules", *ADAM.values())
    return {"layerwise_decay": decay_of_arguments(args), **{name: getattr(args, name, None) for name in fields}}


def check_given_optimizer(optimizer: Optimizer, scheduler: Optional[LRScheduler], args: Args) -> None:
    check_wrapper_state(optimizer)
    optimizer = unwrap(optimizer)
    name, source = type(optimizer).__name__, optimizer._learning_rate
    sets_own = layerwise_interface(optimizer).sets_own_lr
    if isinstance(scheduler, ReduceOnPlateau):
        wrong = "The Trainer steps this schedule without a metric: give paddle_ldopt's `ReduceLROnPlateau`."
        raise refusal(TypeError, wrong, lr_scheduler=type(scheduler).__name__)
    reports = getattr(scheduler, "optimizer", None) is optimizer  # AdafactorSchedule: it reports the rates
    fits = scheduler is source or (reports and not isinstance(source, LRScheduler))
    if not fits and not (sets_own and scheduler is None):
        passed, rate = (type(one).__name__ if isinstance(one, LRScheduler) else one for one in (scheduler, source))
        wrong = "The Trainer would step a scheduler that the optimizer does not use: give"
        advice = "optimizers=(opt, the scheduler it was built with), or optimizers=(opt, None) if it sets its own rate."
        received = {"optimizers": (name, passed), "learning_rate": "its own" if sets_own else rate}
        raise refusal(ValueError, f"{wrong} {advice}", **received)
    optim, decay, own_decay = name_of(args.optim), decay_of_arguments(args), layerwise_interface(optimizer).decay
    if (optim in REGISTRY and not isinstance(optimizer, REGISTRY[optim].cls)) or decay not in (own_decay, OFF):
        wrong = "The Trainer already has an optimizer, so another `optim` or decay in its arguments would be ignored:"
        received = {"optim": optim, "layerwise_decay": decay, "optimizer": name, "its_decay": own_decay}
        raise refusal(ValueError, f"{wrong} leave them out, or build the optimizer with them.", **received)


def _ignore_steps_without_metric(schedule: Any) -> None:
    """Ignore the Trainer's steps without a metric, unless the schedule has a warm-up."""
    plain: Any = type(schedule)
    if not isinstance(schedule, MetricSchedule) or hasattr(plain, "takes_any_state"):  # of an earlier training
        return

    def step(self: Any, metrics: Any = None, *args: Any, **kwargs: Any) -> None:
        if metrics is not None or self.num_warmup_steps:
            plain.step(self, metrics, *args, **kwargs)

    def set_state_dict(self: Any, state_dict: Any) -> None:
        if step_of_state(state_dict) is None:  # otherwise, the run had a schedule of steps
            plain.set_state_dict(self, state_dict)

    methods = {"step": step, "set_state_dict": set_state_dict, "takes_any_state": True, "__doc__": plain.__doc__}
    schedule.__class__ = type(plain.__name__, (plain,), methods)


class OwnRate(LRScheduler):
    """The schedule of an optimizer that sets its own rate, which it reports."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = unwrap(optimizer)
        super().__init__(float(self.optimizer.get_lr()))

    def get_lr(self) -> float:
        return float(self.optimizer.get_lr())
