"""Small models and names of parameters for tests of layer maps."""

import re

import paddle

from paddle_ldopt import LayerMap

PARTS = ("attn.w", "attn.b", "mlp.w")


def names_of(stack="h", n=3):
    return ["embed.w", *(f"{stack}.{i}.{part}" for i in range(n) for part in PARTS), "norm.w"]


def ids(layers):
    return [layers.layer_of(name).index for name in layers.names]


class Parts(paddle.nn.Layer):
    """A network of named parts in their order: sublayers by path (`a__b` is `a.b`), or shapes of own parameters."""

    def __init__(self, **parts):
        super().__init__()
        for path, part in parts.items():
            *above, name = path.replace("__", ".").split(".")
            at = self
            for step in above:
                at = getattr(at, step, None) or at.add_sublayer(step, Parts())
            if isinstance(part, paddle.nn.Layer):
                at.add_sublayer(name, part)
            else:
                at.add_parameter(name, at.create_parameter(part))


def vit_ratio(name, decay, depth):
    """Return the ratio that most projects give a parameter of a transformer, from its name and the number of blocks."""
    block = re.search(r"(?:blocks|layers)\.(\d+)\.", name)
    if block:
        return decay ** (depth - int(block[1]))
    return decay ** (depth + 1) if re.search("embed|_token", name) else 1.0


def block():
    return Parts(q=paddle.nn.Linear(4, 4), norm=paddle.nn.LayerNorm(4))


def blocks(n):
    return paddle.nn.LayerList([block() for _ in range(n)])


def indexes(layers, prefix):
    """Return the layer ids below a prefix, in the order of the names, each run of equal ones once."""
    found = [layers.layer_of(name).index for name in layers.names if name.startswith(f"{prefix}.")]
    return [index for index, before in zip(found, [None, *found]) if index != before]


class Tied(paddle.nn.Layer):
    """A decoder whose head is declared first and shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.lm_head = paddle.nn.Linear(4, 4, bias_attr=False)
        self.embed_tokens = paddle.nn.Embedding(4, 4)
        self.embed_tokens.weight = self.lm_head.weight
        self.layers = paddle.nn.LayerList([paddle.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0) for _ in range(3)])
        self.norm = paddle.nn.LayerNorm(4)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def tied():
    model = Tied()
    return model, LayerMap.from_model(model)
