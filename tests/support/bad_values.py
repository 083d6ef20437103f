"""Values that spoil a call, the model that it is given, and what it must leave as it is."""

import decimal
import fractions
from typing import Callable, NamedTuple

import numpy as np
import paddle

import paddle_ldopt as ldopt

NAN, INF = float("nan"), float("inf")
# name -> value; what is no number, or no finite one, comes first: where a number belongs it is refused
NO_NUMBER = {
    "nan": NAN,
    "nan in a Tensor": paddle.to_tensor(NAN),
    **{"complex": 1j, "word": "abc", "digits": "1.0", "object": object(), "list": [0.5], "dict": {"a": 1}},
    "array": np.array([0.5, 0.25]),
    "Tensor": paddle.to_tensor([0.5, 0.25]),
}
VALUES = {
    **NO_NUMBER,
    **{"none": None, "true": True, "false": False, "inf": INF, "-inf": -INF, "zero": 0, "-0.0": -0.0},
    **{"minus one": -1, "minus half": -0.5, "half": 0.5, "large": 1e308, "int beyond float": 10**400, "small": 5e-324},
    "numpy float": np.float32(0.5),
    "numpy int": np.int64(3),
    "numpy bool": np.bool_(True),
    "decimal": decimal.Decimal("0.5"),
    "fraction": fractions.Fraction(1, 3),
    **{"empty word": "", "empty list": [], "empty dict": {}, "numbers": (1.0, 2.0, 3.0)},
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
    make: Callable  # () -> function, its valid arguments
    also: tuple = ()  # documented errors beside TypeError and ValueError
    state: Callable = lambda function, arguments: None  # what a call that fails must leave as it is
    words: dict = {}  # argument -> what a message may call it instead
    free: tuple = ()  # arguments that may be anything, or that Paddle alone reads
    loose: tuple = ()  # arguments whose valid value is a number and that may be something else


def block():
    return paddle.nn.Sequential(("linear1", paddle.nn.Linear(3, 3)), ("norm1", paddle.nn.LayerNorm(3)))


LAYERS = paddle.nn.Sequential(block(), block())
MODEL = paddle.nn.Sequential(
    ("embeddings", paddle.nn.Linear(3, 3)), ("layers", LAYERS), ("head", paddle.nn.Linear(3, 1))
)
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


def row(function, valid, **how):
    return Row(call(function, **valid), **how)


def method(build, called, /, **arguments):
    """Return what `Row.make` is for a method of an object that is built anew for each call."""
    return lambda: call(getattr(build(), called), **arguments)()


def trained(cls=ldopt.Adafactor, **more):
    reset()
    opt = cls(parameters=MODEL.parameters(), **more)
    MODEL(X).mean().backward()
    opt.step()
    opt.clear_grad()
    for name, param in MODEL.named_parameters():
        param.set_value(START[name])
    return opt
