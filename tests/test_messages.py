"""The parts of a message: values in one bounded line."""

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
        (np.ones(9), "ndarray of shape [9]"),
        (paddle.ones([3, 3]), "Tensor of shape [3, 3]"),
        (np.ones(2), "array([1., 1.])"),
        (range(10**9), "range(0, 1000000000)"),
        (LayerDecay(0.5), repr(LayerDecay(0.5))),
        ((1,), "(1,)"),
        ({1: (), "a": set(), "b": {2}, "c": frozenset({3})}, "{1: (), 'a': set(), 'b': {2}, 'c': frozenset({3})}"),
        (list(range(10**6)), str([*range(20)])[:-1] + ", ...]"),
        (np.float64, "<class 'numpy.float64'>"),
        (paddle.nn.Linear(2, 2), "<Linear object>"),
        ([paddle.ones([2]), np.float64(0.5)], "[Tensor of shape [2], 0.5]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_in_messages(value, want):
    assert shown(value) == want


@pytest.mark.parametrize(
    "value",
    [Rude(), [1, Rude()], Rude("x" * 10**6), "x" * 10**6, dict.fromkeys(range(10**6)), 10**5000, LOOP, [["x" * 10**3]]],
    ids=lambda value: type(value).__name__,
)
def test_every_value_is_shown_in_bounded_length(value):
    assert 0 < len(shown(value)) <= 403
