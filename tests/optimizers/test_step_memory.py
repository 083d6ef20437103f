"""The memory that the C library writes to: a tensor that was changed from outside is noticed."""

import math

import paddle
import pytest

from paddle_ldopt import _compat


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


def test_a_tensor_inside_the_memory_of_another_has_the_bytes_from_its_start_on():
    whole = paddle.ones([10])
    part = _compat.slice_of(whole, 6, 10)
    skipped = part.data_ptr() - whole.data_ptr()
    assert skipped == 24, "they share memory"
    assert memory.allocated_bytes(part) == memory.allocated_bytes(whole) - skipped


def test_the_memory_of_a_replaced_state_is_not_reused():
    state = paddle.ones([1000])
    written = memory.WrittenMemory([], [state])
    before = state.data_ptr()
    state.data = paddle.zeros([1000])
    others = [paddle.ones([1000]) for _ in range(100)]
    assert before not in memory.addresses(others)
    assert not written.is_unchanged()
