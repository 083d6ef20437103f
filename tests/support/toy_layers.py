"""What the tests of several processes share: layers, networks as one Layer and in stages, a training in any layout."""

import functools
import zlib

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from distributed_setup import mend_paddle
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.base import topology
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer, SharedLayerDesc

dist.ParallelEnv._device_id = 0  # a PipelineLayer asks for it, and on CPU there is none


class Embed(nn.Layer):
    def __init__(self, vocabulary, hidden):
        super().__init__()
        self.weight = self.create_parameter([vocabulary, hidden])

    def forward(self, tokens):
        return F.embedding(tokens, self.weight)


class Linear(nn.Layer):
    """A linear layer that computes in float32 whatever its weights are: Paddle has no bfloat16 kernels on a CPU."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = self.create_parameter([rows, columns])
        self.bias = self.create_parameter([columns], is_bias=True)

    def forward(self, x):
        return paddle.matmul(x, self.weight.astype(x.dtype)) + self.bias.astype(x.dtype)


class Block(nn.Layer):
    def __init__(self, hidden):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, hidden):
        return self.norm(hidden + paddle.tanh(self.linear(hidden)))


class Mix(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(1, 4, 3, padding=1)
        self.scale = self.create_parameter([1])  # not []: sharding version 1 cannot have that

    def forward(self, hidden):
        return hidden + paddle.tanh(self.conv(hidden.unsqueeze(1))).mean(1) * (4 * self.scale)  # 4: it goes far enough


def tied_head(embed, hidden):
    return paddle.matmul(hidden, embed.weight, transpose_y=True)


def made(described):
    cls, *sizes = described
    return cls(*sizes)


class Whole(nn.Layer):
    """An embedding, inner layers and a head, each (class, *sizes); returns its loss if it is given labels.

    Without a head, it is the embedding's weight, by `tied`.
    """

    def __init__(self, embed, inner, head=None, tied=tied_head, loss=F.cross_entropy):
        super().__init__()
        self.embed, self.inner = made(embed), nn.LayerList([made(one) for one in inner])
        self.head = head and made(head)
        self.tied, self.loss = tied, loss

    def forward(self, tokens, *labels):
        hidden = self.embed(tokens)
        for layer in self.inner:
            hidden = layer(hidden)
        logits = self.tied(self.embed, hidden) if self.head is None else self.head(hidden)
        return self.loss(logits, *labels) if labels else logits


class Staged(PipelineLayer):
    """The same network as Paddle's pipeline takes it; the head is in another stage than the embedding."""

    def __init__(self, embed, inner, head=None, tied=tied_head, loss=F.cross_entropy, **arguments):
        first, last = LayerDesc(*embed), head and LayerDesc(*head)
        if head is None:
            cls, vocabulary, hidden = embed
            sizes = {"shared_weight_attr": "weight", "vocabulary": vocabulary, "hidden": hidden}
            shared = functools.partial(SharedLayerDesc, "tied", cls, **sizes)
            first, last = shared(), shared(forward_func=tied)
        super().__init__(layers=[first, *(LayerDesc(*one) for one in inner), last], loss_fn=loss, **arguments)


def plain_name(name, inner=None):
    """Return the name in `Whole` of a parameter of either network, or of either wrapped.

    `inner` is the number of inner layers, which tells a head that is not tied.
    """
    for part, plain in (("shared_layers.tied", "embed"), ("_layers.", ""), (".layer.", ".")):
        name = name.replace(part, plain)
    number, _, rest = name.partition(".")
    if not number.isdigit():
        return name
    ends = {0: "embed", inner and inner + 1: "head"}
    return f"{ends.get(int(number), f'inner.{int(number) - 1}')}.{rest}"


def model_group():
    """Return (tensor-parallel group, this process's place in it, its size)."""
    hcg = topology._HYBRID_PARALLEL_GROUP
    if hcg is None or hcg.get_model_parallel_world_size() == 1:
        return None, 0, 1
    return hcg.get_model_parallel_group(), hcg.get_model_parallel_rank(), hcg.get_model_parallel_world_size()


def initialise(network, plain=plain_name, axis=lambda name: None):
    """Give each parameter a value that depends on its plain name alone; tensor parallelism cuts it along an axis."""
    _, rank, parts = model_group()
    for own, param in network.named_parameters():
        name = plain(own)
        cut = axis(name) if parts > 1 else None
        whole = initial(name, [n * parts if i == cut else n for i, n in enumerate(param.shape)])
        value = whole if cut is None else np.split(whole, parts, cut)[rank]
        param.set_value(paddle.to_tensor(value).astype(param.dtype))
    return network


def values(network, plain=plain_name):
    return {plain(name): param.numpy().copy() for name, param in network.named_parameters()}


def refusal(call, kinds=ValueError):
    """Return the message of the error that a call raises, None if it raises none."""
    try:
        call()
    except kinds as error:
        return str(error)


def gathered(value, group):
    out = []
    dist.all_gather_object(out, value, group=group)
    return out


def joined(found, axis):
    """Return the whole parameters, given this process's parts of them by name."""
    group, _, parts = model_group()
    if parts == 1:
        return found
    everyone = gathered(found, group)
    pieces = {name: [one[name] for one in everyone] for name in found if axis(name) is not None}
    return {**found, **{name: np.concatenate(arrays, axis(name)) for name, arrays in pieces.items()}}


def initial(name, shape):
    """Return the start of a parameter, which depends on its name alone."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    centre = 1.0 if name.endswith("norm.weight") else 0.25 if name.endswith("scale") else 0.0
    return np.asarray(centre + 0.3 * draw.standard_normal(shape), "float32")


def apart(got, start, end):
    """Return the greatest distance of parameters from `end`, each by the way that it has gone from `start`.

    Two neighbours of a float32 are no distance: a weight of 1 that has gone 0.01 is stored to 1e-5 of its way.
    """
    distances = [0.0]
    for name, value in got.items():
        way = np.abs(end[name] - start[name]).max()
        distance = np.maximum(np.abs(value - end[name]) - 2 * np.spacing(np.abs(end[name])), 0.0).max()
        distances.append(distance / way if way else float(distance != 0))
    return float(np.max(distances))  # NaN if one is


def data_part(hcg):
    """Return (which part of the data this process has, how many parts there are)."""
    if hcg is None:
        return 0, 1
    shards = hcg.get_sharding_parallel_world_size()
    parts = hcg.get_data_parallel_world_size() * shards
    return hcg.get_data_parallel_rank() * shards + hcg.get_sharding_parallel_rank(), parts


def tensors(arrays, part=0, parts=1):
    """Return a process's rows of some arrays, whose whole is the same for any number of parts."""
    rows = len(arrays[0]) // parts
    return [paddle.to_tensor(array[part * rows : (part + 1) * rows]) for array in arrays]


class Run:
    """A training in this process or, with an `hcg`, in a layout of `fleet`; its data are the same in each.

    `build` takes (whether in stages, arguments of a PipelineLayer), `optimizer_of` the network and returns (optimizer,
    schedule or None), `batch` takes (step, part, parts) and returns [inputs, labels] of this process. With `mends`,
    Paddle's own step is used, and its faults are mended.
    """

    def __init__(self, build, optimizer_of, batch, hcg=None, loss=F.cross_entropy, mends=True):
        self.hcg, self.batch, self.loss = hcg, batch, loss
        self.staged = hcg is not None and hcg.get_pipe_parallel_world_size() > 1
        with paddle.utils.unique_name.guard():
            self.plain = build(self.staged, **({"topology": hcg.topology()} if self.staged else {}))
            self.inner, self.schedule = optimizer_of(self.plain)
            self.network, self.optimizer = self.plain, self.inner
            if hcg is not None:
                self.optimizer = fleet.distributed_optimizer(self.inner)
                self.network = fleet.distributed_model(self.plain)
        if hcg is not None and mends:
            mend_paddle(hcg, self.plain, self.optimizer)

    def train(self, first, last):
        for step in range(first, last):
            inputs, labels = self.batch(step, *data_part(self.hcg))
            if self.staged:
                self.network.train_batch([inputs, labels], self.optimizer)
            else:
                self.loss(self.network(inputs), labels).backward()
                self.optimizer.step()
                self.optimizer.clear_grad()
            if self.schedule is not None:
                self.schedule.step()
        return self
