"""Blocks and networks whose layers are measured in a forward pass, and what compares them with a map by hand."""

import re
import warnings

import paddle
from layer_models import Parts
from paddle import nn

from paddle_ldopt import LayerMap

D = 8


class Block(nn.Layer):
    """A block with weights of its own class, and a second argument that it may attend to."""

    def __init__(self, cross=False):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(D), nn.Linear(D, D)
        self.grow, self.shrink = nn.Linear(D, 16), nn.Linear(16, D)
        if cross:
            self.cross = nn.Linear(D, D)

    def forward(self, x, memory=None):
        x = x + self.mix(self.norm(x))
        if memory is not None:
            x = x + (self.cross(memory) if hasattr(self, "cross") else memory).mean(1, keepdim=True)
        return x + self.shrink(nn.functional.gelu(self.grow(x)))


class OtherBlock(Block):
    pass


def blocks(n, cls=Block, **how):
    return nn.LayerList([cls(**how) for _ in range(n)])


class Net(Parts):
    """Parts in any order, and a function that runs them."""

    def __init__(self, run, **parts):
        super().__init__(**parts)
        self.run = run

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def through(items, x, *more):
    for item in items:
        x = item(x, *more)
    return x


def tokens(n=5):
    return paddle.arange(2 * n).reshape([2, n]) % 9


IDS, VECTORS = tokens(), paddle.ones([2, 5, D])


def places(model, example, silent=True, **how):
    """Return {part: (layer id, depth)} by the shortest path that has one place, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = LayerMap.from_model(model, example, **how)
    said = "".join(str(one.message) for one in caught if "guesses" in str(one.message))
    assert layers.source == "measured" and (not silent or not said), said
    return layers, said


def check(model, example, want, silent=True, **how):
    """Compare the layer ids, as distances from the head, with `want`: {start of names: distance or "first..last"}."""
    layers, said = places(model, example, silent, **how)
    left = set(layers.names)
    for start, distance in want.items():
        for name in [name for name in layers.names if name == start or name.startswith(f"{start}.")]:
            layer = layers.layer_of(name)
            got = layer.depth + 1 - layer.index
            above = distance
            if isinstance(distance, tuple):  # a list: from the first item's distance on down
                above = distance[0] - int(re.match(rf"{re.escape(start)}\.(\d+)", name)[1]) // distance[1]
            assert got == above, f"{name}: {got} below the head, not {above} ({layer})"
            left.discard(name)
    assert not left, left
    return layers, said


class Parts4(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = nn.Linear(D, D), nn.LayerNorm(D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x):
        return x + self.bn2(self.conv2(self.bn1(self.conv1(x))))


def simple(**more):
    run = lambda self, x, fail=False: self.fc(through(self.body, self.proj(x)))  # noqa: E731
    return Net(run, fc=nn.Linear(D, 2), body=blocks(3), proj=nn.Linear(D, D), **more)
