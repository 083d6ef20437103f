"""What the networks of distributed_cases.py, pipeline_cases.py and combinations.py share: layers, values, distances."""

import zlib

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

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
