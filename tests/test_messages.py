"""The parts of a message: values in one bounded line."""

import functools

import numpy as np
import paddle
import pytest

from paddle_ldopt import LayerDecay
from paddle_ldopt._checks import shown


class Rude:
    """Something whose `repr` fails, or is long."""

    def __init__(self, text=None):
        self.text = text

    def __repr__(self):
        if self.text is None:
            raise OSError
        return self.text


LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value, want",
    [
        (Rude(), "<Rude object>"),
        ([1, Rude()], "[1, <list object>"),
        (Rude("x" * 10**6), "x" * 400 + "..."),
        ("x" * 10**6, "'" + "x" * 399 + "..."),
        (range(10**9), "range(0, 1000000000)"),
        (list(range(10**6)), str(list(range(200)))[:400] + "..."),
        (dict.fromkeys(range(10**6)), str(dict.fromkeys(range(100)))[:400] + "..."),
        (10**5000, "an int of 16610 bits"),
        (np.ones(9), "ndarray of shape [9]"),
        (paddle.ones([3, 3]), "Tensor of shape [3, 3]"),
        (np.ones(2), "array([1., 1.])"),
        (functools.partial(max, 1, key=[2]), "partial(<built-in function max>, 1, key=[2])"),
        (LayerDecay(0.5), repr(LayerDecay(0.5))),
        ((1,), "(1,)"),
        ({1: (), "a": set(), "b": {2}, "c": frozenset({3})}, "{1: (), 'a': set(), 'b': {2}, 'c': frozenset({3})}"),
        (LOOP, "[" * 21 + "Ellipsis" + "]" * 21),
        (np.float64, "<class 'numpy.float64'>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_in_messages(value, want):
    assert shown(value) == want
