"""What the networks of distributed_cases.py, pipeline_cases.py and combinations.py share: layers, values, distances."""

import zlib

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer, SharedLayerDesc

paddle.distributed.ParallelEnv._device_id = 0  # a PipelineLayer asks for it, and on CPU there is none


class Embed(nn.Layer):
    def __init__(self, vocabulary, hidden):
        super().__init__()
        self.weight = self.create_parameter([vocabulary, hidden])

    def forward(self, tokens):
        return F.embedding(tokens, self.weight)


class Block(nn.Layer):
    def __init__(self, hidden):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, hidden):
        return self.norm(hidden + paddle.tanh(self.linear(hidden)))


def tied_head(embed, hidden):
    return paddle.matmul(hidden, embed.weight, transpose_y=True)


class Whole(nn.Layer):
    """An embedding that is tied to the head, with inner layers between; returns its loss if it is given labels."""

    def __init__(self, vocabulary, hidden, inner, loss=F.cross_entropy):
        super().__init__()
        self.embed, self.loss = Embed(vocabulary, hidden), loss
        self.inner = nn.LayerList([cls(*sizes) for cls, *sizes in inner])

    def forward(self, tokens, *labels):
        hidden = self.embed(tokens)
        for layer in self.inner:
            hidden = layer(hidden)
        logits = tied_head(self.embed, hidden)
        return self.loss(logits, *labels) if labels else logits


class Staged(PipelineLayer):
    """The same network as Paddle's pipeline takes it; the head is in another stage than the embedding."""

    def __init__(self, vocabulary, hidden, inner, loss=F.cross_entropy, **arguments):
        tied = {"shared_weight_attr": "weight", "vocabulary": vocabulary, "hidden": hidden}
        layers = [SharedLayerDesc("tied", Embed, **tied), *(LayerDesc(*one) for one in inner)]
        layers.append(SharedLayerDesc("tied", Embed, forward_func=tied_head, **tied))
        super().__init__(layers=layers, loss_fn=loss, **arguments)


def plain_name(name):
    """Return the name in `Whole` of a parameter of either network, or of either wrapped."""
    name = name.replace("shared_layers.tied", "embed").replace("_layers.", "")
    number, _, rest = name.partition(".")
    return f"inner.{int(number) - 1}.{rest}" if number.isdigit() else name


def initialise(network):
    """Give each parameter a value that depends on its name in `Whole` alone."""
    for name, param in network.named_parameters():
        param.set_value(initial(plain_name(name), param.shape))
    return network


def values(network):
    return {plain_name(name): param.numpy().copy() for name, param in network.named_parameters()}


def initial(name, shape):
    """Return the start of a parameter, which depends on its name alone."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    centre = 1.0 if name.endswith("norm.weight") else 0.25 if name.endswith("scale") else 0.0
    return np.asarray(centre + 0.3 * draw.standard_normal(shape), "float32")


def apart(got, start, end):
    """Return the greatest distance of parameters from `end`, each by the way that it has gone from `start`."""
    distances = [0.0]
    for name, value in got.items():
        way, distance = np.abs(end[name] - start[name]).max(), np.abs(value - end[name]).max()
        distances.append(distance / way if way else float(distance != 0))
    return float(np.max(distances))  # NaN if one is


def data_part(hcg):
    """Return (which part of the data this process has, how many parts there are)."""
    shards = hcg.get_sharding_parallel_world_size()
    parts = hcg.get_data_parallel_world_size() * shards
    return hcg.get_data_parallel_rank() * shards + hcg.get_sharding_parallel_rank(), parts
