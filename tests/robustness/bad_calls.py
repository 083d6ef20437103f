"""Valid calls of everything public, and values to spoil them with: the tables of test_bad_calls.py."""

import dataclasses
import decimal
import fractions
import functools
import inspect
import pathlib
import tempfile
from typing import Any, Callable, NamedTuple

import numpy as np
import paddle
from project import public_names

import paddle_ldopt as ldopt
from paddle_ldopt import parallel, schedules, trainer
from paddle_ldopt.optimizers.options import LAYERWISE
from paddle_ldopt.schedules.factory import SCHEDULES

NAN, INF = float("nan"), float("inf")

# name -> value; what is no number, or no finite one, comes first: where a number belongs it is refused
NO_NUMBER = {
    "nan": NAN,
    "nan in a Tensor": paddle.to_tensor(NAN),
    "complex": 1j,
    "word": "abc",
    "digits": "1.0",
    "object": object(),
    "list": [0.5],
    "dict": {"a": 1},
    "array": np.array([0.5, 0.25]),
    "Tensor": paddle.to_tensor([0.5, 0.25]),
}
VALUES = {
    **NO_NUMBER,
    "none": None,
    "true": True,
    "false": False,
    "inf": INF,
    "-inf": -INF,
    "zero": 0,
    "-0.0": -0.0,
    "minus one": -1,
    "minus half": -0.5,
    "half": 0.5,
    "large": 1e308,
    "int beyond float": 10**400,
    "small": 5e-324,
    "numpy float": np.float32(0.5),
    "numpy int": np.int64(3),
    "numpy bool": np.bool_(True),
    "decimal": decimal.Decimal("0.5"),
    "fraction": fractions.Fraction(1, 3),
    "empty word": "",
    "empty list": [],
    "empty dict": {},
    "numbers": (1.0, 2.0, 3.0),
    "unknown group": [{"params": [], "unknown": 1}],
    "array of one": np.array(0.5),
    "Tensor of one": paddle.to_tensor(0.5),
    "empty Tensor": paddle.zeros([0]),
    "function of none": lambda: 1.0,
    "function": lambda x: 0.5,
    "function that gives words": lambda x: "abc",
    "layer": paddle.nn.Linear(2, 2),
    "schedule": paddle.optimizer.lr.ExponentialDecay(0.1, 0.9),
    "keys": {1: 2, None: []},
}


class Row(NamedTuple):
    """A valid call."""

    make: Callable  # () -> function, its valid arguments
    also: tuple = ()  # documented errors beside TypeError and ValueError
    state: Callable = lambda function, arguments: None  # what a call that fails must leave as it is
    words: dict = {}  # argument -> what a message may call it instead
    free: tuple = ()  # arguments that may be anything, or that Paddle alone reads
    loose: tuple = ()  # arguments whose valid value is a number and that may be something else


class Block(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear1, self.norm1 = paddle.nn.Linear(3, 3), paddle.nn.LayerNorm(3)

    def forward(self, x):
        return self.norm1(self.linear1(x))


class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.embeddings = paddle.nn.Linear(3, 3)
        self.layers = paddle.nn.LayerList([Block(), Block()])
        self.head = paddle.nn.Linear(3, 1)

    def forward(self, x):
        x = self.embeddings(x)
        for block in self.layers:
            x = block(x)
        return self.head(x).mean()


MODEL = Model()
X = paddle.ones([2, 3])
START = {n: p.numpy().copy() for n, p in MODEL.named_parameters()}


def reset():
    """Put the model back to where it was."""
    for name, param in MODEL.named_parameters():
        if not np.array_equal(param.numpy(), START[name]):
            param.set_value(START[name])
        param.stop_gradient, param.regularizer = False, None
        param.optimize_attr.clear()
        param.optimize_attr["learning_rate"] = 1.0
        param.clear_gradient(False)


def seen_of_model():
    return {
        n: (p.numpy().tobytes(), p.stop_gradient, str(p.optimize_attr), str(getattr(p, "regularizer", None)), p.name)
        for n, p in MODEL.named_parameters()
    }


def plain(value):
    """Return something of a state that can be compared."""
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        return np.asarray(value).tobytes(), str(value.dtype), list(value.shape)
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return repr(value)


def state_of(function, arguments):
    return plain(function.__self__.state_dict())


def sums_of(function, arguments):
    return function.__self__.step, [total.tolist() for total in function.__self__.gradients]


class Lazy:
    """An argument that is made anew for each call."""

    def __init__(self, make):
        self.make = make


def call(function, /, **arguments):
    """Return what `Row.make` is for a function and its valid arguments."""
    return lambda: (function, {k: a.make() if isinstance(a, Lazy) else a for k, a in arguments.items()})


def method(build, called, /, **arguments):
    """Return what `Row.make` is for a method of an object that is built anew for each call."""
    return lambda: call(getattr(build(), called), **arguments)()


def trained(cls=ldopt.Adafactor, **more):
    """Return an optimizer that has taken a step."""
    reset()
    opt = cls(parameters=MODEL.parameters(), **more)
    MODEL(X).backward()
    opt.step()
    opt.clear_grad()
    for name, param in MODEL.named_parameters():
        param.set_value(START[name])
    return opt


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


def sgd(parameters=None):
    return paddle.optimizer.SGD(0.1, parameters=parameters or MODEL.parameters())


def pipeline():
    return parallel.PipelineWithLossScale(MODEL, sgd())


@dataclasses.dataclass
class Arguments:
    """The fields of a Trainer's arguments that the mixin reads."""

    optim: Any = "adamw"
    lr_scheduler_type: Any = "linear"
    learning_rate: float = 0.01
    max_steps: int = 10
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    fp16_opt_level: str = "O1"
    weight_decay: float = 0.0
    num_cycles: float = 0.5
    lr_end: float = 1e-7
    power: float = 1.0
    greater_is_better: Any = None
    metric_for_best_model: Any = None
    evaluation_strategy: str = "steps"
    do_eval: bool = True

    def __post_init__(self):
        pass


@dataclasses.dataclass
class OurArguments(trainer.LdoptArgumentsMixin, Arguments):
    pass


def path(ending):
    return Lazy(lambda: str(pathlib.Path.cwd() / f"bad-calls{ending}"))  # not shared with other processes


def settings_file(ending):
    """Return a file with settings; JSON is YAML, too."""
    file = pathlib.Path(path(ending).make())
    file.write_text('{"optim": "lamb"}')
    return str(file)


FIRST = next(iter(START))


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


def one_parameter():
    return [paddle.create_parameter([2], "float32")]


def schedule_rows():
    """Return function -> row of every kind of schedule; the values are of the options that have no default."""
    valid = {**TIMED, "num_decay_steps": 3, "timescale": 5, "min_lr": 0.01, "warmup_lr_rate": 0.5}
    valid |= {"factor": 0.5, "patience": 1}
    rows = {}
    for kind in SCHEDULES.values():
        options = {key: valid[key] for key in valid.keys() & kind.options.keys()}
        rows[kind.function.__name__] = Row(
            call(kind.function, optimizer=0.1, **options), words=WORDS, free=("verbose",)
        )
    return rows


TIMED = {"num_warmup_steps": 2, "num_training_steps": 10}
STACK = "(`model`|stack of blocks)"
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
CALLS = {
    # ---- optimizers
    **{
        name: Row(
            call(getattr(ldopt, name), parameters=Lazy(MODEL.parameters), **more),
            words=WORDS,
            free=("name",),
            loose=SCHEDULED.get(name, ()),
        )
        for name, more in BUILT.items()
    },
    "AdafactorSchedule": Row(call(ldopt.AdafactorSchedule, optimizer=Lazy(trained)), words=WORDS),
    "create": Row(
        call(ldopt.create, name="came", model=MODEL, layerwise_decay=0.5, learning_rate=0.01),
        words={**WORDS, "rules": "([Rr]ule)", "model": STACK, "groups": "group|`parameters`"},
        loose=SCHEDULED["Came"],
    ),
    "optimizer_class": Row(call(ldopt.optimizer_class, name="lamb")),
    "list_optimizers": Row(call(ldopt.list_optimizers)),
    "create_optimizer": Row(
        call(
            ldopt.create_optimizer, init_lr=0.01, num_train_steps=9, num_warmup_steps=2, model=MODEL, adam_clipnorm=1.0
        ),
        words={**WORDS, "model": STACK},
    ),
    "decayed_parameter_names": Row(call(ldopt.decayed_parameter_names, model=MODEL)),
    "WarmUp": Row(
        call(ldopt.WarmUp, initial_learning_rate=0.1, decay_schedule_fn=lambda step: 0.1, warmup_steps=3),
        free=("verbose",),
    ),
    # ---- layers
    "layerwise_lr_decay": Row(
        call(
            ldopt.layerwise_lr_decay,
            decay_rate=0.5,
            name_dict={MODEL.head.weight.name: "head"},
            n_layers=2,
            param=MODEL.head.weight,
        ),
        words={"param": "(param|name)"},
    ),
    "Layer": Row(call(ldopt.Layer, tower="a", index=1, depth=2), free=("tower", "index", "depth")),
    "LayerDecay": Row(call(ldopt.LayerDecay, layerwise_decay=0.5)),
    "LayerMap.from_names": Row(
        call(ldopt.LayerMap.from_names, names=list(START), rules={"embeddings": 0}),
        words={"names": "(names|Found no stack|LayerMap|match no)", "rules": "([Rr]ule)"},
    ),
    "LayerMap.from_model": Row(
        call(ldopt.LayerMap.from_model, model=MODEL, rules={"embeddings": 0}),
        words={"model": "(model|stack|parameters|match no)", "rules": "([Rr]ule)"},
    ),
    "LayerMap.layer_of": Row(method(layer_map, "layer_of", name="head.weight")),
    "LayerMap.ratios": Row(method(layer_map, "ratios", layerwise_decay=0.5)),
    "LayerMap.table": Row(method(layer_map, "table", layerwise_decay=0.5, learning_rate=0.1), words=WORDS),
    "LayerMap.plot": Row(
        method(layer_map, "plot", path=path(".svg"), layerwise_decay=0.5), words=WORDS, also=(OSError,)
    ),
    "apply_layerwise_decay": Row(
        call(ldopt.apply_layerwise_decay, optimizer=Lazy(sgd), layers=Lazy(layer_map), layerwise_decay=0.5),
        state=lambda function, arguments: type(arguments["optimizer"]),
    ),
    "reset_layerwise_decay": Row(call(ldopt.reset_layerwise_decay, optimizer=Lazy(sgd))),
    # ---- accumulation
    "GradientAccumulator": Row(call(ldopt.GradientAccumulator, reduction="mean")),
    "GradientAccumulator.__call__": Row(
        method(
            lambda: accumulator(reduction="token"), "__call__", gradients=Lazy(lambda: [paddle.ones([2])]), weight=2.0
        ),
        state=sums_of,
        words={"gradients": "([Gg]radient|Layer|parameters|model)"},
    ),
    "GradientAccumulator.write_gradients": Row(
        method(accumulator, "write_gradients", target=Lazy(one_parameter)), state=sums_of
    ),
    "GradientAccumulator.apply": Row(
        method(accumulator, "apply", optimizer=Lazy(lambda: sgd(one_parameter()))),
        state=sums_of,
        words={"optimizer": "(optimizer|target)"},
    ),
    "GradientAccumulator.synchronize": Row(method(accumulator, "synchronize", group=None), state=sums_of),
    # ---- files of optimizers
    "save_optimizer": Row(
        call(ldopt.save_optimizer, path=path(".safetensors"), optimizer=Lazy(trained), model=MODEL, step=1),
        also=(OSError,),
        words={"path": "", "optimizer": "", "scaler": ""},
    ),
    "load_optimizer": Row(
        call(ldopt.load_optimizer, path=Lazy(saved_file), optimizer=Lazy(trained), model=MODEL),
        also=(OSError,),
        words={"path": "", "optimizer": "", "scaler": ""},
    ),
    # ---- scalers and the step
    "FixedLossScaler": Row(call(ldopt.FixedLossScaler, loss_scale_value=8.0)),
    "DynamicLossScaler": Row(call(ldopt.DynamicLossScaler, loss_scale_value=8.0)),
    "AdaptiveLossScaler": Row(call(ldopt.AdaptiveLossScaler, scale_window=20)),
    "LossScaler": Row(call(parallel.LossScaler, loss_scale_value=8.0)),
    "PipelineWithLossScale": Row(
        call(
            parallel.PipelineWithLossScale,
            network=MODEL,
            optimizer=Lazy(sgd),
            max_grad_norm=1.0,
            use_clip_grad=True,
            use_skip_data_by_global_norm=True,
            global_norm_spike_threshold=2.0,
        ),
        words={"scale_sense": "(scale_sense|loss_scale)"},
    ),
    "parallel.save_checkpoint": Row(
        call(parallel.save_checkpoint, folder=Lazy(tempfile.mkdtemp), network=MODEL, optimizer=Lazy(trained)),
        also=(OSError,),
    ),
    "parallel.load_checkpoint": Row(
        call(parallel.load_checkpoint, folder=Lazy(saved_folder), network=MODEL, optimizer=Lazy(trained)),
        also=(OSError,),
    ),
    # ---- schedules
    "CurveSchedule": Row(call(ldopt.CurveSchedule, learning_rate=0.1, curve=lambda step: 0.5), free=("verbose",)),
    "ReduceLROnPlateau": Row(call(ldopt.ReduceLROnPlateau, learning_rate=0.1), free=("verbose",)),
    "ReduceLROnPlateau.step": Row(
        method(LOADED["ReduceLROnPlateau"], "step", metrics=0.5), state=state_of, free=("epoch",), loose=("metrics",)
    ),
    "WarmUp.__call__": Row(method(lambda: ldopt.WarmUp(0.1, lambda k: 0.1, 3), "__call__", step=3)),
    "SchedulerType": Row(
        call(ldopt.SchedulerType, value="cosine"),
        words={"value": "(name|ambiguous)"},  # the latter is Enum's own word on an array
        free=("names", "module", "qualname", "type", "start", "boundary"),
    ),
    "get_scheduler": Row(
        call(ldopt.get_scheduler, name="cosine", optimizer=0.1, **TIMED, scheduler_specific_kwargs={}),
        words={**WORDS, "scheduler_specific_kwargs": "(scheduler_specific_kwargs|keyword)"},
    ),
    **schedule_rows(),
    # ---- settings
    "LdoptConfig": Row(
        call(ldopt.LdoptConfig, layerwise_lr_decay=0.5),
        words={
            "learning_rate": "(learning_rate|rate|relative_step)",
            "lr_scheduler_type": "([Ss]chedule|lr_scheduler_type)",
            "optim_kwargs": "(optim_kwargs|option)",
        },
    ),
    "LdoptConfig.from_dict": Row(
        call(ldopt.LdoptConfig.from_dict, values={"optim": "lamb"}), words={"values": "(values|setting|mapping)"}
    ),
    "LdoptConfig.build": Row(
        method(ldopt.LdoptConfig, "build", model=MODEL, num_training_steps=10),
        words={"model": "(`model`|parameters|stack)"},
    ),
    **{
        f"LdoptConfig.from_{kind}": Row(
            call(getattr(ldopt.LdoptConfig, f"from_{kind}"), path=Lazy(lambda kind=kind: settings_file(f".{kind}"))),
            also=(OSError,),
            words={"path": "(path|codec|values)"},
        )
        for kind in ("yaml", "json")
    },
    "LdoptArgumentsMixin": Row(
        call(OurArguments, optim="lamb", layerwise_lr_decay=0.5),
        words={"lr_scheduler_type": "([Ss]chedule|lr_scheduler)", "optim_kwargs": "(optim_kwargs|option)"},
        free=tuple(field.name for field in dataclasses.fields(Arguments)),
    ),
    # ---- trainer
    "trainer.GradualUnfreezeCallback": Row(call(trainer.GradualUnfreezeCallback, every_k_steps=5), free=("layers",)),
    "trainer.LayerLRCallback": Row(call(trainer.LayerLRCallback)),
    "trainer.ScheduleCallback": Row(call(trainer.ScheduleCallback, path="a.svg"), free=("layers",)),
    "trainer.map_layers": Row(
        call(trainer.map_layers, model=MODEL, rules={"embeddings": 0}),
        words={"model": "(model|stack|parameters|match no)", "rules": "([Rr]ule)"},
    ),
    "trainer.write_whole": Row(call(trainer.write_whole, path=path(".html"), text="a")),
    "trainer.last_checkpoint": Row(call(trainer.last_checkpoint, output_dir=tempfile.gettempdir()), also=(OSError,)),
}
for _name, _more in BUILT.items():
    LOADED[_name] = _build = functools.partial(trained, getattr(ldopt, _name), **_more)
    CALLS[f"{_name}.set_lr"] = Row(
        method(_build, "set_lr", value=0.1), also=(RuntimeError,), state=state_of, words={"value": "(value|lr|rate)"}
    )
    CALLS[f"{_name}.set_lr_scheduler"] = Row(
        method(_build, "set_lr_scheduler", scheduler=Lazy(lambda: paddle.optimizer.lr.ExponentialDecay(0.1, 0.9))),
        also=(RuntimeError,),
        state=state_of,
        words={"scheduler": "(scheduler|lr)"},
    )
CALLS.update((f"{_name}.set_state_dict", loading_row(_build)) for _name, _build in LOADED.items())

# what is public and is no call
NO_CALLS = {
    "__version__": "a string",
    "MetricSchedule": "a base: its subclasses are here",
    "LoadReport": "what `load_optimizer` returns",
    "OptimizerInfo": "a row of the registry",
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
    "trainer.OptimizerName": "a string",
    "trainer.SchedulerName": "a string",
    "trainer.LdoptTrainerMixin": "built by a Trainer: tests/trainer/test_trainer.py",
    "trainer.ResumeMixin": "built by a Trainer: tests/trainer/test_trainer_resume.py",
    "trainer.StopOnSigterm": "takes no arguments",
}
PUBLIC = [*ldopt.__all__]
for _path, _prefix in ((".optimizers", ""), (".schedules", ""), (".parallel", ""), (".trainer", "trainer.")):
    PUBLIC += [_name if _name in PUBLIC else f"{_prefix}{_name}" for _name in public_names(f"paddle_ldopt{_path}")]


def arguments_of(function, valid):
    """Return the names of all arguments of a function."""
    taken = inspect.signature(function).parameters
    named = [name for name, p in taken.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    passed_on = LAYERWISE if {"layerwise", "common"} & taken.keys() else {}
    return list(dict.fromkeys([*named, *valid, *passed_on]))


def takes_a_number(name, function, valid):
    """Say whether an argument's valid value, or default, is a number."""
    default = inspect.signature(function).parameters.get(name)
    usual = valid.get(name, default.default if default else LAYERWISE.get(name))
    return isinstance(usual, (int, float)) and not isinstance(usual, bool)
