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
from paddle_ldopt.layers.paddlenlp_hook import adapt_hook, check_decay, check_ratio
from paddle_ldopt.optimizers._base.declared import LAYERWISE
from paddle_ldopt.tools import memory

NAN, INF = float("nan"), float("inf")

# name -> value; what is no number, or no finite one, comes first: where a number belongs it is refused
NO_NUMBER = {
    "nan": NAN,
    "numpy nan": np.float64(NAN),
    "nan in a Tensor": paddle.to_tensor(NAN),
    "complex": 1j,
    "word": "abc",
    "digits": "1.0",
    "bytes": b"1",
    "object": object(),
    "list": [0.5],
    "dict": {"a": 1},
    "set": {1},
    "class": int,
    "array": np.array([0.5, 0.25]),
    "Tensor": paddle.to_tensor([0.5, 0.25]),
    "ellipsis": ...,
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
    "-int beyond float": -(10**400),
    "small": 5e-324,
    "numpy float": np.float32(0.5),
    "numpy int": np.int64(3),
    "numpy -int": np.int64(-3),
    "numpy bool": np.bool_(True),
    "decimal": decimal.Decimal("0.5"),
    "decimal nan": decimal.Decimal("NaN"),
    "fraction": fractions.Fraction(1, 3),
    "empty word": "",
    "empty list": [],
    "empty tuple": (),
    "empty dict": {},
    "nested": [[None]],
    "numbers": (1.0, 2.0, 3.0),
    "dicts": [{}],
    "groups of nothing": [{"params": []}],
    "unknown group": [{"params": [], "unknown": 1}],
    "array of one": np.array(0.5),
    "Tensor of one": paddle.to_tensor(0.5),
    "int Tensor": paddle.to_tensor([1, 2]),
    "empty Tensor": paddle.zeros([0]),
    "range": range(3),
    "function of none": lambda: 1.0,
    "function": lambda x: 0.5,
    "function of many": lambda *a, **k: None,
    "function that gives words": lambda x: "abc",
    "layer": paddle.nn.Linear(2, 2),
    "schedule": paddle.optimizer.lr.ExponentialDecay(0.1, 0.9),
    "keys": {1: 2, None: []},
    "surrogate": "\ud800",
}


class Row(NamedTuple):
    """A valid call."""

    make: Callable  # () -> function, its valid arguments
    also: tuple = ()  # documented errors beside TypeError and ValueError
    state: Callable = lambda function, arguments: None  # what a call that fails must leave as it is
    words: dict = {}  # argument -> what a message may call it instead
    numbers: tuple = ()  # arguments that take a number and nothing else
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


def model_parameters():
    return MODEL.parameters()


def new(cls, /, **arguments):
    return lambda: (
        cls,
        {name: a() if name in ("parameters", "model", "layers") else a for name, a in arguments.items()},
    )


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


def method(build, called, /, **arguments):
    return lambda: (getattr(build(), called), {k: a() if isinstance(a, Lazy) else a for k, a in arguments.items()})


@functools.cache
def saved_folder():
    """Return a checkpoint in the form of `paddle.distributed`."""
    folder = tempfile.mkdtemp()
    parallel.save_checkpoint(folder, MODEL, trained())
    return folder


class Lazy:
    """An argument that is made anew for each call."""

    def __init__(self, make):
        self.make = make

    def __call__(self):
        return self.make()


def layer_map():
    return ldopt.LayerMap.from_model(MODEL)


def accumulator(called=True, **more):
    out = ldopt.GradientAccumulator(**more)
    if called:
        out([paddle.ones([2])], **({"weight": 1.0} if more.get("reduction") == "token" else {}))
    return out


def pipeline(**more):
    return parallel.PipelineWithLossScale(MODEL, paddle.optimizer.SGD(0.1, parameters=MODEL.parameters()), **more)


@dataclasses.dataclass
class Arguments:
    """The fields of a Trainer's arguments that the mixin reads."""

    optim: Any = "adamw"
    lr_scheduler_type: Any = "linear"
    learning_rate: float = 0.01
    max_steps: int = 10
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
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
    return Lazy(lambda: str(pathlib.Path(tempfile.gettempdir()) / f"ldopt-bad-calls{ending}"))


def settings_file(ending):
    """Return a file with settings; JSON is YAML, too."""
    file = pathlib.Path(path(ending).make())
    file.write_text('{"optim": "lamb"}')
    return str(file)


FIRST = next(iter(START))
TORCH_STATE = {"step": 1, "exp_avg": START[FIRST], "exp_avg_sq": START[FIRST] ** 2}


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


def optimizer_row(cls, /, words=(), loose=(), **arguments):
    return Row(
        new(cls, parameters=model_parameters, **arguments),
        words={**WORDS, **dict(words)},
        free=("name",),
        loose=loose,
    )


def schedule_row(function, **arguments):
    return Row(lambda: (function, {"optimizer": 0.1, **arguments}), words=WORDS, free=("verbose",))


TIMED = {"num_warmup_steps": 2, "num_training_steps": 10}
LOADED = {"also": (), "state": state_of, "words": {"state_dict": "(state|State)"}}
CALLS = {
    # ---- optimizers
    "AdamWDL": optimizer_row(ldopt.AdamWDL, learning_rate=0.01, fused=None),
    "Lamb": optimizer_row(ldopt.Lamb, learning_rate=0.01, loose=("learning_rate", "weight_decay")),  # schedules
    "Adafactor": optimizer_row(ldopt.Adafactor, lr=0.01, relative_step=False, beta1=0.9),
    "Came": optimizer_row(ldopt.Came, learning_rate=0.01),
    "AdamWeightDecay": optimizer_row(
        ldopt.AdamWeightDecay, learning_rate=0.01, clipnorm=1.0, clipvalue=1.0, exclude_from_weight_decay=["bias"]
    ),
    "AdafactorSchedule": Row(lambda: (ldopt.AdafactorSchedule, {"optimizer": trained(ldopt.Adafactor)}), words=WORDS),
    "create": Row(
        lambda: (ldopt.create, {"name": "came", "model": MODEL, "layerwise_decay": 0.5, "learning_rate": 0.01}),
        words={**WORDS, "rules": "([Rr]ule)", "model": "(`model`|stack of blocks)"},
    ),
    "optimizer_class": Row(lambda: (ldopt.optimizer_class, {"name": "lamb"})),
    "list_optimizers": Row(lambda: (ldopt.list_optimizers, {})),
    "create_optimizer": Row(
        lambda: (
            ldopt.create_optimizer,
            {"init_lr": 0.01, "num_train_steps": 10, "num_warmup_steps": 2, "model": MODEL, "adam_clipnorm": 1.0},
        ),
        words={**WORDS, "model": "(`model`|stack of blocks)"},
    ),
    "decayed_parameter_names": Row(lambda: (ldopt.decayed_parameter_names, {"model": MODEL})),
    "WarmUp": Row(
        lambda: (
            ldopt.WarmUp,
            {"initial_learning_rate": 0.1, "decay_schedule_fn": lambda step: 0.1, "warmup_steps": 3},
        ),
        free=("verbose",),
    ),
    # ---- layers
    "layerwise_lr_decay": Row(
        lambda: (
            ldopt.layerwise_lr_decay,
            {
                "decay_rate": 0.5,
                "name_dict": {MODEL.head.weight.name: "head"},
                "n_layers": 2,
                "param": MODEL.head.weight,
            },
        ),
        words={"param": "(param|name)"},
    ),
    "Layer": Row(lambda: (ldopt.Layer, {"tower": "a", "index": 1, "depth": 2}), free=("tower", "index", "depth")),
    "LayerDecay": Row(lambda: (ldopt.LayerDecay, {"layerwise_decay": 0.5})),
    "LayerMap.from_names": Row(
        lambda: (ldopt.LayerMap.from_names, {"names": list(START), "rules": {"embeddings": 0}}),
        words={"names": "(names|Found no stack|LayerMap|match no)", "rules": "([Rr]ule)"},
    ),
    "LayerMap.from_model": Row(
        lambda: (ldopt.LayerMap.from_model, {"model": MODEL, "rules": {"embeddings": 0}}),
        words={"model": "(model|stack|parameters|match no)", "rules": "([Rr]ule)"},
    ),
    "LayerMap.layer_of": Row(method(layer_map, "layer_of", name="head.weight")),
    "LayerMap.ratio_fn": Row(method(layer_map, "ratio_fn", layerwise_decay=0.5)),
    "LayerMap.table": Row(method(layer_map, "table", layerwise_decay=0.5, learning_rate=0.1, num_steps=5), words=WORDS),
    "LayerMap.plot": Row(
        method(layer_map, "plot", path=path(".svg"), layerwise_decay=0.5),
        words={**WORDS, "path": "path"},
        also=(OSError,),
    ),
    "apply_layerwise_decay": Row(
        lambda: (
            ldopt.apply_layerwise_decay,
            {
                "optimizer": paddle.optimizer.SGD(0.1, parameters=MODEL.parameters()),
                "layers": layer_map(),
                "layerwise_decay": 0.5,
            },
        ),
        state=lambda function, arguments: type(arguments["optimizer"]),
    ),
    "reset_layerwise_decay": Row(
        lambda: (ldopt.reset_layerwise_decay, {"optimizer": paddle.optimizer.SGD(0.1, parameters=MODEL.parameters())})
    ),
    "hooks.adapt_hook": Row(
        lambda: (adapt_hook, {"hook": lambda param: 1.0}),
        words={"hook": "set_param_lr_fun"},
        free=("layerwise_decay", "name_dict", "n_layers"),
    ),
    "hooks.check_decay": Row(
        lambda: (check_decay, {"value": 0.5}), words={"value": "layerwise_decay"}, free=("argument",)
    ),
    "hooks.check_ratio": Row(
        lambda: (check_ratio, {"ratio": 0.5, "name": "w"}), words={"ratio": "(ratio|learning-rate)"}, free=("name",)
    ),
    # ---- accumulation
    "GradientAccumulator": Row(lambda: (ldopt.GradientAccumulator, {"reduction": "mean"})),
    "GradientAccumulator.__call__": Row(
        method(
            lambda: accumulator(reduction="token"), "__call__", gradients=Lazy(lambda: [paddle.ones([2])]), weight=2.0
        ),
        state=state_of,
        words={"gradients": "([Gg]radient|Layer|parameters|model)"},
    ),
    "GradientAccumulator.write_gradients": Row(
        method(accumulator, "write_gradients", target=Lazy(lambda: [paddle.create_parameter([2], "float32")])),
        state=state_of,
    ),
    "GradientAccumulator.apply": Row(
        method(
            accumulator,
            "apply",
            optimizer=Lazy(lambda: paddle.optimizer.SGD(0.1, parameters=[paddle.create_parameter([2], "float32")])),
        ),
        state=state_of,
        words={"optimizer": "(optimizer|target)"},
    ),
    "GradientAccumulator.synchronize": Row(method(accumulator, "synchronize", group=None), state=state_of),
    "GradientAccumulator.set_state_dict": Row(
        method(accumulator, "set_state_dict", state_dict=Lazy(lambda: accumulator().state_dict())), **LOADED
    ),
    # ---- files of optimizers
    "save_optimizer": Row(
        lambda: (
            ldopt.save_optimizer,
            {"path": path(".safetensors").make(), "optimizer": trained(), "model": MODEL, "step": 1},
        ),
        also=(OSError,),
        words={"path": "", "optimizer": "", "scaler": ""},
    ),
    "load_optimizer": Row(
        lambda: (ldopt.load_optimizer, {"path": saved_file(), "optimizer": trained(), "model": MODEL}),
        also=(OSError,),
        words={"path": "", "optimizer": "", "scaler": ""},
    ),
    "convert_torch_optimizer": Row(
        lambda: (
            ldopt.convert_torch_optimizer,
            {
                "source": {"state": {0: TORCH_STATE}, "param_groups": [{"params": [0]}]},
                "optimizer": trained(ldopt.AdamWDL),
                "model": MODEL,
                "names": [FIRST],
                "strict": False,
                "transpose": [],
            },
        ),
        also=(OSError, ImportError),
        words={"source": "", "optimizer": ""},
        free=("strict",),
    ),
    # ---- scalers and the step
    "FixedLossScaler": Row(lambda: (ldopt.FixedLossScaler, {"loss_scale_value": 8.0})),
    "DynamicLossScaler": Row(lambda: (ldopt.DynamicLossScaler, {"loss_scale_value": 8.0})),
    "AdaptiveLossScaler": Row(lambda: (ldopt.AdaptiveLossScaler, {"scale_window": 20})),
    "LossScaler": Row(lambda: (parallel.LossScaler, {"loss_scale_value": 8.0})),
    "AdaptiveLossScaler.set_state_dict": Row(
        method(ldopt.AdaptiveLossScaler, "set_state_dict", state_dict=ldopt.AdaptiveLossScaler().state_dict()), **LOADED
    ),
    "PipelineWithLossScale": Row(
        lambda: (
            parallel.PipelineWithLossScale,
            {
                "network": MODEL,
                "optimizer": paddle.optimizer.SGD(0.1, parameters=MODEL.parameters()),
                "max_grad_norm": 1.0,
                "use_clip_grad": True,
                "use_skip_data_by_global_norm": True,
                "global_norm_spike_threshold": 2.0,
            },
        ),
        words={"scale_sense": "(scale_sense|loss_scale)"},
    ),
    "PipelineWithLossScale.set_state_dict": Row(
        method(pipeline, "set_state_dict", state_dict=Lazy(lambda: pipeline().state_dict())), **LOADED
    ),
    "parallel.save_checkpoint": Row(
        lambda: (parallel.save_checkpoint, {"folder": tempfile.mkdtemp(), "network": MODEL, "optimizer": trained()}),
        also=(OSError,),
    ),
    "parallel.load_checkpoint": Row(
        lambda: (parallel.load_checkpoint, {"folder": saved_folder(), "network": MODEL, "optimizer": trained()}),
        also=(OSError,),
    ),
    # ---- schedules
    "RuleSchedule": Row(
        lambda: (ldopt.RuleSchedule, {"learning_rate": 0.1, "rule": lambda step: 0.5}), free=("verbose",)
    ),
    "ReduceLROnPlateau": Row(lambda: (ldopt.ReduceLROnPlateau, {"learning_rate": 0.1}), free=("verbose",)),
    "GreedyLR": Row(lambda: (ldopt.GreedyLR, {"learning_rate": 0.1}), free=("verbose",)),
    "ReduceLROnPlateau.step": Row(
        method(lambda: ldopt.ReduceLROnPlateau(0.1), "step", metrics=0.5),
        state=state_of,
        free=("epoch",),
        loose=("metrics",),
    ),
    "GreedyLR.step": Row(
        method(lambda: ldopt.GreedyLR(0.1), "step", metrics=0.5), state=state_of, free=("epoch",), loose=("metrics",)
    ),
    "RuleSchedule.set_state_dict": Row(
        method(
            lambda: schedules.get_constant_schedule(0.1),
            "set_state_dict",
            state_dict=schedules.get_constant_schedule(0.1).state_dict(),
        ),
        **LOADED,
    ),
    "GreedyLR.set_state_dict": Row(
        method(lambda: ldopt.GreedyLR(0.1), "set_state_dict", state_dict=ldopt.GreedyLR(0.1).state_dict()), **LOADED
    ),
    "ReduceLROnPlateau.set_state_dict": Row(
        method(
            lambda: ldopt.ReduceLROnPlateau(0.1), "set_state_dict", state_dict=ldopt.ReduceLROnPlateau(0.1).state_dict()
        ),
        **LOADED,
    ),
    "WarmUp.set_state_dict": Row(
        method(
            lambda: ldopt.WarmUp(0.1, paddle.optimizer.lr.ExponentialDecay(0.1, 0.9), 3),
            "set_state_dict",
            state_dict=ldopt.WarmUp(0.1, paddle.optimizer.lr.ExponentialDecay(0.1, 0.9), 3).state_dict(),
        ),
        **LOADED,
    ),
    "WarmUp.__call__": Row(method(lambda: ldopt.WarmUp(0.1, lambda k: 0.1, 3), "__call__", step=3)),
    "SchedulerType": Row(
        lambda: (ldopt.SchedulerType, {"value": "cosine"}),
        words={"value": "(name|ambiguous)"},  # the latter is Enum's own word on an array
        free=("names", "module", "qualname", "type", "start", "boundary"),
    ),
    "get_scheduler": Row(
        lambda: (ldopt.get_scheduler, {"name": "cosine", "optimizer": 0.1, **TIMED, "scheduler_specific_kwargs": {}}),
        words={**WORDS, "scheduler_specific_kwargs": "(scheduler_specific_kwargs|keyword)"},
    ),
    "get_constant_schedule": schedule_row(ldopt.get_constant_schedule),
    "get_constant_schedule_with_warmup": schedule_row(ldopt.get_constant_schedule_with_warmup, num_warmup_steps=2),
    "get_constant_schedule_with_cool_down": schedule_row(ldopt.get_constant_schedule_with_cool_down, **TIMED),
    "get_cosine_schedule_with_warmup": schedule_row(ldopt.get_cosine_schedule_with_warmup, **TIMED),
    "get_cosine_with_hard_restarts_schedule_with_warmup": schedule_row(
        ldopt.get_cosine_with_hard_restarts_schedule_with_warmup, **TIMED
    ),
    "get_cosine_with_min_lr_schedule_with_warmup": schedule_row(
        ldopt.get_cosine_with_min_lr_schedule_with_warmup, **TIMED, min_lr=0.01
    ),
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": schedule_row(
        ldopt.get_cosine_with_min_lr_schedule_with_warmup_lr_rate, **TIMED, min_lr_rate=0.1, warmup_lr_rate=0.5
    ),
    "get_inverse_sqrt_schedule": schedule_row(ldopt.get_inverse_sqrt_schedule, num_warmup_steps=2, timescale=5),
    "get_linear_schedule_with_warmup": schedule_row(ldopt.get_linear_schedule_with_warmup, **TIMED),
    "get_polynomial_decay_schedule_with_warmup": schedule_row(ldopt.get_polynomial_decay_schedule_with_warmup, **TIMED),
    "get_wsd_schedule": schedule_row(ldopt.get_wsd_schedule, **TIMED, num_decay_steps=3),
    "get_greedy_schedule": schedule_row(ldopt.get_greedy_schedule, factor=0.5, patience=1),
    "get_reduce_on_plateau_schedule": schedule_row(ldopt.get_reduce_on_plateau_schedule, factor=0.5, patience=1),
    # ---- settings
    "LdoptConfig": Row(
        lambda: (ldopt.LdoptConfig, {"layerwise_lr_decay": 0.5}),
        words={
            "learning_rate": "(learning_rate|rate|relative_step)",
            "lr_scheduler_type": "(schedule|lr_scheduler_type)",
            "optim": "optim",
            "optim_kwargs": "(optim_kwargs|option)",
        },
    ),
    "LdoptConfig.from_dict": Row(
        lambda: (ldopt.LdoptConfig.from_dict, {"values": {"optim": "lamb"}}), words={"values": "setting"}
    ),
    "LdoptConfig.build": Row(
        method(ldopt.LdoptConfig, "build", model=MODEL, num_training_steps=10),
        words={"model": "(`model`|parameters|stack)", "num_training_steps": "num_training_steps"},
    ),
    "LdoptConfig.from_yaml": Row(
        lambda: (ldopt.LdoptConfig.from_yaml, {"path": settings_file(".yaml")}),
        also=(OSError,),
        words={"path": "(path|codec)"},
    ),
    "LdoptConfig.from_json": Row(
        lambda: (ldopt.LdoptConfig.from_json, {"path": settings_file(".json")}),
        also=(OSError,),
        words={"path": "(path|codec)"},
    ),
    "LdoptArgumentsMixin": Row(
        lambda: (OurArguments, {"optim": "lamb", "layerwise_lr_decay": 0.5}),
        words={
            "optim": "optim",
            "lr_scheduler_type": "(schedule|lr_scheduler)",
            "optim_kwargs": "(optim_kwargs|option)",
        },
        free=tuple(field.name for field in dataclasses.fields(Arguments)),
    ),
    # ---- memory
    "memory.Weight": Row(
        lambda: (memory.Weight, {"name": "w", "shape": (2, 3)}), free=("name", "shape", "split", "parts")
    ),
    "memory.Transformer": Row(lambda: (memory.Transformer, {"hidden": 256, "layers": 2})),
    "memory.Transformer.of_size": Row(lambda: (memory.Transformer.of_size, {"params": 7e9})),
    "memory.Transformer.weights": Row(
        method(lambda: memory.Transformer(256, 2), "weights", mp=1, pp=1, stage=0), numbers=("mp", "pp", "stage")
    ),
    "memory.Layout": Row(lambda: (memory.Layout, {"sharding": 2}), words={"split_param": "(split_param|stage)"}),
    "memory.OptimizerSpec": Row(lambda: (memory.OptimizerSpec, {"name": "came"}), words={"dtype": "dtype"}),
    "memory.estimate": Row(
        lambda: (
            memory.estimate,
            {
                "model": memory.Transformer(256, 2),
                "optimizer": memory.OptimizerSpec("came"),
                "layout": memory.Layout(pp=2),
                "tokens": 4,
            },
        )
    ),
    "memory.cells": Row(lambda: (memory.cells, {"plans": []}), free=("plans",)),
    "memory.gib": Row(lambda: (memory.gib, {"size": 1}), free=("size",)),
    # ---- trainer
    "trainer.GradualUnfreezeCallback": Row(
        lambda: (trainer.GradualUnfreezeCallback, {"every_k_steps": 5}), free=("layers",)
    ),
    "trainer.LayerLRCallback": Row(lambda: (trainer.LayerLRCallback, {})),
    "trainer.ScheduleCallback": Row(lambda: (trainer.ScheduleCallback, {"path": "a.svg"}), free=("layers",)),
    "trainer.RunReport": Row(
        lambda: (trainer.RunReport, {"folder": "a", "title": "b", "layers": layer_map()}), free=("title",)
    ),
    "trainer.last_checkpoint": Row(
        lambda: (trainer.last_checkpoint, {"output_dir": tempfile.gettempdir()}), also=(OSError,)
    ),
}
for _name, _cls, _more in (
    ("AdamWDL", ldopt.AdamWDL, {}),
    ("Lamb", ldopt.Lamb, {"learning_rate": 0.01}),
    ("Adafactor", ldopt.Adafactor, {"lr": 0.01, "relative_step": False}),
    ("Came", ldopt.Came, {"learning_rate": 0.01}),
    ("AdamWeightDecay", ldopt.AdamWeightDecay, {}),
):

    def _build(cls=_cls, more=_more):
        return trained(cls, **more)

    def _loading(build=_build):
        opt = build()
        return opt.set_state_dict, {"state_dict": opt.state_dict()}

    CALLS[f"{_name}.set_state_dict"] = Row(_loading, **LOADED)
    CALLS[f"{_name}.set_lr"] = Row(
        method(_build, "set_lr", value=0.1), also=(RuntimeError,), state=state_of, words={"value": "(value|lr|rate)"}
    )
    CALLS[f"{_name}.set_lr_scheduler"] = Row(
        method(_build, "set_lr_scheduler", scheduler=Lazy(lambda: paddle.optimizer.lr.ExponentialDecay(0.1, 0.9))),
        also=(RuntimeError,),
        state=state_of,
        words={"scheduler": "(scheduler|lr)"},
    )

# what is public and is no call
NO_CALLS = {
    "__version__": "a string",
    "ON_METRIC": "a constant",
    "MetricSchedule": "a base: its subclasses are here",
    "LoadReport": "what `load_optimizer` returns",
    "OptimizerInfo": "a row of the registry",
    "LayerMap": "made by from_names and from_model",
    "memory.ITEMSIZE": "a constant",
    "memory.MemoryUse": "what `estimate` returns",
    "trainer.OptimizerName": "a string",
    "trainer.SchedulerName": "a string",
    "trainer.LdoptTrainerMixin": "built by a Trainer: tests/trainer/test_trainer.py",
    "trainer.ResumeMixin": "built by a Trainer: tests/trainer/test_trainer_resume.py",
    "trainer.StopOnSigterm": "takes no arguments",
}
PUBLIC = [*ldopt.__all__]
for _path, _prefix in (
    (".optimizers", ""),
    (".schedules", ""),
    (".parallel", ""),
    (".tools.memory", "memory."),
    (".trainer", "trainer."),
):
    PUBLIC += [_name if _name in PUBLIC else f"{_prefix}{_name}" for _name in public_names(f"paddle_ldopt{_path}")]


def arguments_of(function, valid):
    """Return the names of all arguments of a function."""
    taken = inspect.signature(function).parameters
    named = [name for name, p in taken.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    passed_on = LAYERWISE if {"layerwise", "common"} & taken.keys() else {}
    return list(dict.fromkeys([*named, *valid, *passed_on]))


def takes_a_number(row, name, function, valid):
    """Say whether an argument's valid value, or default, is a number."""
    default = inspect.signature(function).parameters.get(name)
    usual = valid.get(name, default.default if default else LAYERWISE.get(name))
    return name in row.numbers or (isinstance(usual, (int, float)) and not isinstance(usual, bool))
