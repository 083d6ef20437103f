"""The memory that the C library writes to: a tensor that was changed from outside is noticed."""

import math

import paddle
import pytest

from paddle_ldopt.optimizers._step import memory


@pytest.mark.parametrize("checked_before", range(4))
@pytest.mark.parametrize("count", range(1, 6))
def test_every_state_is_checked_within_one_round(count, checked_before, monkeypatch):
    monkeypatch.setattr(memory, "_CHECKED", 2)
    for changed in range(count):
        states = [paddle.ones([2]) for _ in range(count)]
        written = memory.WrittenMemory([paddle.ones([2])], states)
        assert all(written.is_unchanged() for _ in range(checked_before))
        states[changed].zero_()
        assert not all(written.is_unchanged() for _ in range(math.ceil(count / 2)))


def test_every_master_is_checked_in_each_step():
    masters = [paddle.ones([2]) for _ in range(3)]
    written = memory.WrittenMemory(masters, [paddle.ones([2])])
    assert written.is_unchanged()
    masters[2].zero_()
    assert not written.is_unchanged()
