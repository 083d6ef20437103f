"""Arithmetic of the rules: the memory that a function uses again, and the memory that it leaves alone."""

import numpy as np
import paddle
import pytest
from paddle_ldopt.optimizers._base import arithmetic

X, Y, EPS = np.float32([4.0, 9.0]), np.float32([2.0, 3.0]), 0.5
# function: arguments, expected result, the arguments that it may overwrite
CASES = {
    "add_": ((X, Y), X + Y, [0]),
    "subtract_": ((X, Y), X - Y, [0]),
    "multiply_": ((X, Y), X * Y, [0]),
    "multiply_, a number": ((X, EPS), X * EPS, [0]),
    "divide_": ((X, Y), X / Y, [0]),
    "ema_": ((X, Y, 0.25), 0.25 * X + 0.75 * Y, [0]),
    "ema_, an exact 1 - beta": ((X, Y, 0.25, EPS), 0.25 * X + EPS * Y, [0]),
    "ema_of_squares_": ((X, Y, 0.25), 0.25 * X + 0.75 * Y**2, [0]),
    "maximum": ((X, 5.0), np.float32([5.0, 9.0]), []),
    "add_, a number": ((X, EPS), X + EPS, [0]),
    "square_": ((X,), X**2, [0]),
    "sqrt": ((X,), np.sqrt(X), []),
    "sqrt_": ((X,), np.sqrt(X), [0]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_overwrites_only_the_arguments_that_it_names(name):
    arrays, expected, overwritten = CASES[name]
    given = [paddle.to_tensor(value) if isinstance(value, np.ndarray) else value for value in arrays]
    result = getattr(arithmetic, name.partition(",")[0])(*given)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    for i, (tensor, array) in enumerate(zip(given, arrays)):
        if isinstance(array, np.ndarray) and i not in overwritten:
            np.testing.assert_array_equal(tensor, array)
    if overwritten:
        assert result.data_ptr() == given[overwritten[0]].data_ptr()
