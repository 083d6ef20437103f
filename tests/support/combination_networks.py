"""The network of combinations.py, as one Layer and in stages, with parameters that tensor parallelism cuts."""

import functools
import zlib

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
import toy_layers
from paddle import nn
from paddle.autograd import PyLayer
from toy_layers import Block, Embed, Mix, model_group, tied_head

VOCABULARY, HIDDEN, INNER, LENGTH, ROWS = 25, 18, 12, 5, 16
FROZEN = "inner.2."


class _Enter(PyLayer):
    """Into a tensor-parallel pair: the gradients of the processes are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad


class _Leave(PyLayer):
    """Out of it: the outputs are summed."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


class Split(nn.Layer):
    """Two matrices, by columns and by rows, as Megatron cuts them; Paddle's own layers have no CPU kernel."""

    AXES = {"up": 1, "up_bias": 0, "down": 0}

    def __init__(self):
        super().__init__()
        parts = model_group()[2]
        self.up = self.create_parameter([HIDDEN, INNER // parts])
        self.up_bias = self.create_parameter([INNER // parts])
        self.down = self.create_parameter([INNER // parts, HIDDEN])
        self.bias = self.create_parameter([HIDDEN])
        if parts > 1:
            for name, axis in self.AXES.items():
                param = getattr(self, name)
                param.is_distributed, param.split_axis = True, axis

    def forward(self, hidden):
        group = model_group()[0]
        inner = hidden if group is None else _Enter.apply(hidden, group)
        inner = paddle.matmul(paddle.tanh(paddle.matmul(inner, self.up) + self.up_bias), self.down)
        return hidden + (inner if group is None else _Leave.apply(inner, group)) + self.bias


class Head(nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([HIDDEN, VOCABULARY])

    def forward(self, hidden):
        return paddle.matmul(hidden, self.weight)


def axis_of(name):
    """Return the axis along which tensor parallelism cuts a parameter, given its name in `Whole`."""
    return Split.AXES.get(name.partition("inner.1.")[2])


def part_of(name, array, offset=0):
    _, rank, parts = model_group()
    axis = axis_of(name)
    return array if axis is None or parts == 1 else np.split(array, parts, axis + offset)[rank]


def linearly(layer, prefix, x, use=""):
    """Add `(parameter * number).sum()` to each row's value; x holds each row's number and its value."""
    rows, value = x[:, 0].numpy().astype("int64"), x[:, 1]
    for name, param in layer.named_parameters():
        shape = [*param.shape]
        axis = axis_of(prefix + name)
        if axis is not None:
            shape[axis] *= model_group()[2]
        draws = [np.random.default_rng([row, zlib.crc32(f"{prefix}{name}{use}".encode())]) for row in rows]
        numbers = np.stack([draw.integers(-4, 5, shape) / 4 for draw in draws]).astype("float32")
        numbers = paddle.to_tensor(part_of(prefix + name, numbers, offset=1))
        value = value + (param.astype("float32") * numbers).flatten(1).sum(1)
    return paddle.stack([x[:, 0], value], axis=1)


class ExactEmbed(Embed):
    def forward(self, tokens):
        x = paddle.concat([tokens[:, :1].astype("float32"), paddle.zeros([len(tokens), 1])], axis=1)
        return linearly(self, "embed.", x)


def exact_tied(embed, x):
    return linearly(embed, "embed.", x, "head")


class Exact(nn.Layer):
    """An inner layer or the head with a gradient of few bits."""

    def __init__(self, cls, prefix, *args):
        super().__init__()
        self.layer, self.prefix = cls(*args), prefix

    def forward(self, x):
        return linearly(self.layer, self.prefix, x)


INNER_LAYERS = [(Mix,), (Split,), (Block, HIDDEN), (Block, HIDDEN)]


def loss_of(output, labels):
    if output.ndim == 2:  # of exact layers
        return output[:, 1].mean()
    return F.cross_entropy(output, labels)


def described(features):
    """Return what `toy_layers.Whole` and `Staged` are given for these features."""
    exact = "bfloat16" in features
    inner = [(Exact, cls, f"inner.{i}.", *a) if exact else (cls, *a) for i, (cls, *a) in enumerate(INNER_LAYERS)]
    head = (Exact, Head, "head.") if exact else (Head,)
    return {
        "embed": (ExactEmbed if exact else Embed, VOCABULARY, HIDDEN),
        "inner": inner,
        "head": None if "tied" in features else head,
        "tied": exact_tied if exact else tied_head,
        "loss": loss_of,
    }


plain_name = functools.partial(toy_layers.plain_name, inner=len(INNER_LAYERS))


def build(features, staged, **arguments):
    """Return the network as one Layer or in stages, its values by name alone; cast and frozen as the features say."""
    network = (toy_layers.Staged if staged else toy_layers.Whole)(**described(features), **arguments)
    if "bfloat16" in features:
        network.to(dtype="bfloat16")
    toy_layers.initialise(network, plain_name, axis_of)
    for own, param in network.named_parameters():
        if "frozen" in features and plain_name(own).startswith(FROZEN):
            param.stop_gradient = True
    return network
