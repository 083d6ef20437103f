"""Valid calls of everything public, and values to spoil them with: the tables of test_bad_calls.py."""

import dataclasses
import functools
import inspect
import pathlib
import tempfile
from typing import Any

import paddle
from bad_values import MODEL, START, Lazy, Row, method, row, state_of, sums_of, trained
from project import public_names

import paddle_ldopt as ldopt
from paddle_ldopt import parallel, schedules, trainer
from paddle_ldopt.optimizers.options import LAYERWISE
from paddle_ldopt.schedules.factory import SCHEDULES


@functools.cache
def saved_folder():
    """Return a checkpoint in the form of `paddle.distributed`."""
    folder = tempfile.mkdtemp()
    parallel.save_checkpoint(folder, MODEL, trained())
    return folder


def layer_map():
    return ldopt.LayerMap.from_model(MODEL)


def accumulator(**more):
    out = ldopt.GradientAccumulator(**more)
    out([paddle.ones([2])], **({"weight": 1.0} if more else {}))
    return out


def weighted():
    return accumulator(reduction="token")


def sgd(parameters=None):
    return paddle.optimizer.SGD(0.1, parameters=parameters or MODEL.parameters())


def pipeline():
    return parallel.PipelineWithLossScale(MODEL, sgd())


READ = {  # the fields of a Trainer's arguments that the mixin reads
    **{"optim": "adamw", "lr_scheduler_type": "linear", "learning_rate": 0.01, "max_steps": 10, "warmup_steps": 0},
    **{"warmup_ratio": 0.0, "max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8},
    **{"fp16_opt_level": "O1", "weight_decay": 0.0, "num_cycles": 0.5, "lr_end": 1e-7, "power": 1.0},
    **{"greater_is_better": None, "metric_for_best_model": None, "evaluation_strategy": "steps", "do_eval": True},
}
FIELDS = [(name, Any, value) for name, value in READ.items()]
Arguments = dataclasses.make_dataclass("Arguments", FIELDS, namespace={"__post_init__": lambda self: None})


@dataclasses.dataclass
class OurArguments(trainer.LdoptArgumentsMixin, Arguments):
    pass


def path(ending):
    return Lazy(lambda: str(pathlib.Path.cwd() / f"bad-calls{ending}"))  # not shared with other processes


def settings_file(ending):
    file = pathlib.Path(path(ending).make())
    file.write_text('{"optim": "lamb"}')
    return str(file)


def saved_file():
    """Return a file that `save_optimizer` wrote."""
    file = path(".safetensors").make()
    ldopt.save_optimizer(file, trained(), MODEL)
    return file


GROUP = {"parameters": "(`parameters`|group|'params'|parameter)"}
WORDS = {
    **GROUP,
    "params": GROUP["parameters"],
    "set_param_lr_fun": "(set_param_lr_fun|hook|ratio)",
    "lr_ratio": "(lr_ratio|set_param_lr_fun|hook|ratio)",
    "layerwise_decay": "(layerwise_decay|LayerDecay|`rules`)",
    "optimizer": "(`optimizer`|learning_rate|scheduler|min_lr|lr_end|lr_init)",
    "lr": "(`lr`|learning_rate)",
    "name": "(`name`|SchedulerType|name=|param|ambiguous)",
}


def loading_row(build):
    """Return the row of a `set_state_dict`, which gets the state of another object that is built alike."""
    state = Lazy(lambda: build().state_dict())
    return Row(method(build, "set_state_dict", state_dict=state), state=state_of, words={"state_dict": "(state|State)"})


def summed_row(name, **arguments):
    """Return the row of a method of a `GradientAccumulator`."""
    words = {"optimizer": "(optimizer|target)"}
    return Row(method(accumulator, name, **arguments), state=sums_of, words=words)


def file_row(kind):
    given = {"path": Lazy(lambda: settings_file(f".{kind}"))}
    return row(
        getattr(ldopt.LdoptConfig, f"from_{kind}"), given, also=(OSError,), words={"path": "(path|codec|values)"}
    )


def one_parameter():
    return [paddle.create_parameter([2], "float32")]


def schedule_rows():
    """Return function -> row of every kind of schedule; the values are of the options that have no default."""
    valid = {**TIMED, "num_decay_steps": 3, "timescale": 5, "min_lr": 0.01, "warmup_lr_rate": 0.5}
    valid |= {"factor": 0.5, "patience": 1}
    rows = {}
    for kind in SCHEDULES.values():
        options = {key: valid[key] for key in valid.keys() & kind.options.keys()}
        rows[kind.function.__name__] = row(kind.function, {"optimizer": 0.1, **options}, words=WORDS, free=("verbose",))
    return rows


TIMED = {"num_warmup_steps": 2, "num_training_steps": 10}
STACK = "(`model`|stack of blocks)"
ANY = {"path": "", "optimizer": "", "scaler": ""}
WARM_UP = {"initial_learning_rate": 0.1, "decay_schedule_fn": lambda step: 0.1, "warmup_steps": 3}
BUILT = {  # optimizer -> what it is built with
    "AdamWDL": {"learning_rate": 0.01, "fused": None},
    "Lamb": {"learning_rate": 0.01},
    "Adafactor": {"lr": 0.01, "relative_step": False, "beta1": 0.9},
    "Came": {"learning_rate": 0.01},
    "AdamWeightDecay": {"clipnorm": 1.0, "clipvalue": 1.0},
    "Muon": {"use_muon": lambda param: len(param.shape) == 2},
}
SCHEDULED = {"Lamb": ("learning_rate", "weight_decay"), "Came": ("learning_rate",)}  # may be functions of the step
LOADED = {  # what has a state, built
    "AdaptiveLossScaler": ldopt.AdaptiveLossScaler,
    "PipelineWithLossScale": pipeline,
    "CurveSchedule": lambda: schedules.get_constant_schedule(0.1),
    "ReduceLROnPlateau": lambda: ldopt.ReduceLROnPlateau(0.1),
    "WarmUp": lambda: ldopt.WarmUp(0.1, paddle.optimizer.lr.ExponentialDecay(0.1, 0.9), 3),
}
SKIPPING = {"use_skip_data_by_global_norm": True, "global_norm_spike_threshold": 2.0}
OF_VALUES = {"values": "(values|setting|mapping)"}
ON_DISK = {"also": (OSError,), "words": ANY}
TRAINED = {"optimizer": Lazy(trained), "model": MODEL}
NEW, SAVED = Lazy(tempfile.mkdtemp), Lazy(saved_folder)
NETWORK = {"network": MODEL, "optimizer": Lazy(trained)}
MAPPED = {"model": MODEL, "rules": {"embeddings": 0}}
OF_A_MAP = {"model": "(model|stack|parameters|match no)", "rules": "([Rr]ule)"}
OF_NAMES = {"names": "(names|Found no stack|LayerMap|match no)", "rules": "([Rr]ule)"}
CREATED = {"name": "came", "model": MODEL, "layerwise_decay": 0.5, "learning_rate": 0.01}
OF_CREATE = {**WORDS, "rules": "([Rr]ule)", "model": STACK, "groups": "group|`parameters`"}
FACTORY = {"init_lr": 0.01, "num_train_steps": 9, "num_warmup_steps": 2, "model": MODEL, "adam_clipnorm": 1.0}
HOOKED = {"decay_rate": 0.5, "name_dict": {MODEL.head.weight.name: "head"}, "n_layers": 2, "param": MODEL.head.weight}
APPLIED = {"optimizer": Lazy(sgd), "layers": Lazy(layer_map), "layerwise_decay": 0.5}
ADDED = {"gradients": Lazy(lambda: [paddle.ones([2])]), "weight": 2.0}
PIPELINE = {"network": MODEL, "optimizer": Lazy(sgd), "max_grad_norm": 1.0, "use_clip_grad": True, **SKIPPING}
KINDS = {"name": "cosine", "optimizer": 0.1, **TIMED, "scheduler_specific_kwargs": {}}
OF_KINDS = {**WORDS, "scheduler_specific_kwargs": "(scheduler_specific_kwargs|keyword)"}
OF_AN_ENUM = ("names", "module", "qualname", "type", "start", "boundary")
OF_SETTINGS = {"lr_scheduler_type": "([Ss]chedule|lr_scheduler)", "optim_kwargs": "(optim_kwargs|option)"}
OF_CONFIG = {
    **OF_SETTINGS,
    "lr_scheduler_type": "([Ss]chedule|lr_scheduler_type)",
    "learning_rate": "(learning_rate|rate|relative_step)",
}
FIELDS_OF_TRAINER = tuple(field.name for field in dataclasses.fields(Arguments))


def optimizer_row(name, more):
    how = {"words": WORDS, "free": ("name",), "loose": SCHEDULED.get(name, ())}
    return row(getattr(ldopt, name), {"parameters": Lazy(MODEL.parameters), **more}, **how)


CALLS = {
    **{name: optimizer_row(name, more) for name, more in BUILT.items()},
    "AdafactorSchedule": row(ldopt.AdafactorSchedule, {"optimizer": Lazy(trained)}, words=WORDS),
    "create": row(ldopt.create, CREATED, words=OF_CREATE, loose=SCHEDULED["Came"]),
    "optimizer_class": row(ldopt.optimizer_class, {"name": "lamb"}),
    "list_optimizers": row(ldopt.list_optimizers, {}),
    "create_optimizer": row(ldopt.create_optimizer, FACTORY, words={**WORDS, "model": STACK}),
    "decayed_parameter_names": row(ldopt.decayed_parameter_names, {"model": MODEL}),
    "WarmUp": row(ldopt.WarmUp, WARM_UP, free=("verbose",)),
    "layerwise_lr_decay": row(ldopt.layerwise_lr_decay, HOOKED, words={"param": "(param|name)"}),
    "Layer": row(ldopt.Layer, {"tower": "a", "index": 1, "depth": 2}, free=("tower", "index", "depth")),
    "LayerDecay": row(ldopt.LayerDecay, {"layerwise_decay": 0.5}),
    "LayerMap.from_names": row(
        ldopt.LayerMap.from_names, {"names": [*START], "rules": {"embeddings": 0}}, words=OF_NAMES
    ),
    "LayerMap.from_model": row(ldopt.LayerMap.from_model, MAPPED, words=OF_A_MAP),
    "LayerMap.layer_of": Row(method(layer_map, "layer_of", name="head.weight")),
    "LayerMap.ratios": Row(method(layer_map, "ratios", layerwise_decay=0.5)),
    "LayerMap.table": Row(method(layer_map, "table", layerwise_decay=0.5, learning_rate=0.1), words=WORDS),
    "LayerMap.plot": Row(method(layer_map, "plot", path=path(".svg"), layerwise_decay=0.5), (OSError,), words=WORDS),
    "apply_layerwise_decay": row(ldopt.apply_layerwise_decay, APPLIED, state=lambda _, given: type(given["optimizer"])),
    "GradientAccumulator": row(ldopt.GradientAccumulator, {"reduction": "mean"}),
    "GradientAccumulator.__call__": Row(
        method(weighted, "__call__", **ADDED), (), sums_of, {"gradients": "([Gg]radient|Layer|parameters|model)"}
    ),
    "GradientAccumulator.write_gradients": summed_row("write_gradients", target=Lazy(one_parameter)),
    "GradientAccumulator.apply": summed_row("apply", optimizer=Lazy(lambda: sgd(one_parameter()))),
    "GradientAccumulator.synchronize": summed_row("synchronize", group=None),
    "save_optimizer": row(ldopt.save_optimizer, {"path": path(".safetensors"), **TRAINED, "step": 1}, **ON_DISK),
    "load_optimizer": row(ldopt.load_optimizer, {"path": Lazy(saved_file), **TRAINED}, **ON_DISK),
    "FixedLossScaler": row(ldopt.FixedLossScaler, {"loss_scale_value": 8.0}),
    "DynamicLossScaler": row(ldopt.DynamicLossScaler, {"loss_scale_value": 8.0}),
    "AdaptiveLossScaler": row(ldopt.AdaptiveLossScaler, {"scale_window": 20}),
    "LossScaler": row(parallel.LossScaler, {"loss_scale_value": 8.0}),
    "PipelineWithLossScale": row(
        parallel.PipelineWithLossScale, PIPELINE, words={"scale_sense": "(scale_sense|loss_scale)"}
    ),
    "parallel.save_checkpoint": row(parallel.save_checkpoint, {"folder": NEW, **NETWORK}, also=(OSError,)),
    "parallel.load_checkpoint": row(parallel.load_checkpoint, {"folder": SAVED, **NETWORK}, also=(OSError,)),
    "CurveSchedule": row(ldopt.CurveSchedule, {"learning_rate": 0.1, "curve": lambda step: 0.5}, free=("verbose",)),
    "ReduceLROnPlateau": row(ldopt.ReduceLROnPlateau, {"learning_rate": 0.1}, free=("verbose",)),
    "ReduceLROnPlateau.step": Row(
        method(LOADED["ReduceLROnPlateau"], "step", metrics=0.5), state=state_of, free=("epoch",), loose=("metrics",)
    ),
    "WarmUp.__call__": Row(method(lambda: ldopt.WarmUp(0.1, lambda k: 0.1, 3), "__call__", step=3)),
    "SchedulerType": row(
        ldopt.SchedulerType, {"value": "cosine"}, words={"value": "(name|ambiguous)"}, free=OF_AN_ENUM
    ),
    "get_scheduler": row(ldopt.get_scheduler, KINDS, words=OF_KINDS),
    **schedule_rows(),
    "LdoptConfig": row(ldopt.LdoptConfig, {"layerwise_lr_decay": 0.5}, words=OF_CONFIG),
    "LdoptConfig.from_dict": row(ldopt.LdoptConfig.from_dict, {"values": {"optim": "lamb"}}, words=OF_VALUES),
    "LdoptConfig.build": Row(
        method(ldopt.LdoptConfig, "build", model=MODEL, num_training_steps=10),
        words={"model": "(`model`|parameters|stack)"},
    ),
    **{f"LdoptConfig.from_{kind}": file_row(kind) for kind in ("yaml", "json")},
    "LdoptArgumentsMixin": row(
        OurArguments, {"optim": "lamb", "layerwise_lr_decay": 0.5}, words=OF_SETTINGS, free=FIELDS_OF_TRAINER
    ),
    "trainer.GradualUnfreezeCallback": row(trainer.GradualUnfreezeCallback, {"every_k_steps": 5}, free=("layers",)),
    "trainer.LayerLRCallback": row(trainer.LayerLRCallback, {}),
    "trainer.ScheduleCallback": row(trainer.ScheduleCallback, {"path": "a.svg"}, free=("layers",)),
    "trainer.map_layers": row(trainer.map_layers, MAPPED, words=OF_A_MAP),
    "trainer.write_whole": row(trainer.write_whole, {"path": path(".html"), "text": "a"}),
    "trainer.last_checkpoint": row(trainer.last_checkpoint, {"output_dir": tempfile.gettempdir()}, also=(OSError,)),
}
NEW_RATES = {"value": 0.1}, {"scheduler": Lazy(lambda: paddle.optimizer.lr.ExponentialDecay(0.1, 0.9))}
OF_RATES = {"value": "(value|lr|rate)", "scheduler": "(scheduler|lr)"}
for _name, _more in BUILT.items():
    LOADED[_name] = _build = functools.partial(trained, getattr(ldopt, _name), **_more)
    for _method, _given in zip(("set_lr", "set_lr_scheduler"), NEW_RATES):
        CALLS[f"{_name}.{_method}"] = Row(method(_build, _method, **_given), (RuntimeError,), state_of, OF_RATES)
CALLS.update((f"{_name}.set_state_dict", loading_row(_build)) for _name, _build in LOADED.items())

# what is public and is no call
NO_CALLS = {
    "__version__": "a string",
    "MetricSchedule": "a base: its subclasses are here",
    "LoadReport": "what `load_optimizer` returns",
    "register": "of a new optimizer: tests/test_build.py",
    "RuleOptimizer": "its base",
    "Option": "its declaration",
    "State": "its declaration",
    **dict.fromkeys(("COLUMN", "ELEMENT", "ROW", "SCALAR"), "kinds of its states"),
    "schedule": "of a new schedule: tests/schedules/test_new_schedule.py",
    "scheduled": "what its function returns",
    "rates_of": "of a schedule: tests/schedules/test_curves.py",
    "ON_METRIC": "names of schedules",
    "Curve": "its base",
    **dict.fromkeys(("Fraction", "LastStep", "NonNegative", "Positive", "Steps"), "types of its options"),
    **dict.fromkeys(("StepOutput", "StepOutputWithLocalNorm"), "what `PipelineWithLossScale` returns"),
    "LayerMap": "made by from_names and from_model",
    "trainer.LdoptName": "a string",
    "trainer.LdoptTrainerMixin": "built by a Trainer: tests/trainer/test_trainer.py",
    "trainer.ResumeMixin": "built by a Trainer: tests/trainer/test_trainer_resume.py",
    "trainer.StopOnSigterm": "takes no arguments",
}
PUBLIC = [*ldopt.__all__]
for _path, _prefix in ((".optimizers", ""), (".schedules", ""), (".parallel", ""), (".trainer", "trainer.")):
    PUBLIC += [_name if _name in PUBLIC else f"{_prefix}{_name}" for _name in public_names(f"paddle_ldopt{_path}")]


def arguments_of(function, valid):
    taken = inspect.signature(function).parameters
    named = [name for name, p in taken.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    passed_on = LAYERWISE if {"layerwise", "common"} & taken.keys() else {}
    return list(dict.fromkeys([*named, *valid, *passed_on]))


def takes_a_number(name, function, valid):
    """Say whether an argument's valid value, or default, is a number."""
    default = inspect.signature(function).parameters.get(name)
    usual = valid.get(name, default.default if default else LAYERWISE.get(name))
    return isinstance(usual, (int, float)) and not isinstance(usual, bool)
