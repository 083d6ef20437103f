"""The layers of the networks in distributed_cases.py and pipeline_cases.py: an embedding tied to the head, a block."""

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
