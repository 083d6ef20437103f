"""Arithmetic of the rules: operators that reuse the memory of intermediate results."""

import operator

import numpy as np
import paddle
import pytest

from paddle_ldopt.optimizers._base.arithmetic import Temporary

OTHERS = {"tensor": lambda: paddle.full([2, 3], 3.0), "temporary": lambda: Temporary(paddle.full([2, 3], 3.0))}


@pytest.mark.parametrize("name", ["add", "mul", "truediv"])
@pytest.mark.parametrize("other", OTHERS)
def test_an_operation_overwrites_a_temporary_and_no_tensor(name, other):
    x, y, apply = paddle.arange(6.0).reshape([2, 3]), OTHERS[other](), getattr(operator, name)
    value = y.tensor if other == "temporary" else y
    result = apply(Temporary(x), y)
    np.testing.assert_array_equal(result.tensor, apply(np.arange(6.0, dtype="float32").reshape(2, 3), np.float32(3)))
    assert result.tensor.data_ptr() == x.data_ptr()
    assert value.tolist() == [[3.0] * 3] * 2


def test_squares_roots_and_sums_with_a_number():
    result = (Temporary(paddle.to_tensor([-3.0, 4.0])).square().sqrt() + 0.5).tensor
    np.testing.assert_allclose(result, [3.5, 4.5], rtol=1e-6)


@pytest.mark.parametrize("use", [lambda x: x + 1.0, lambda x: Temporary(paddle.ones([2])) * x, lambda x: x.tensor])
def test_a_temporary_is_an_operand_once(use):
    x = Temporary(paddle.ones([2]))
    assert (x * x.tensor).tensor.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="an operand only once"):
        use(x)
