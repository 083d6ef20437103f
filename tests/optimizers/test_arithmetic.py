"""Arithmetic of the rules: the memory that a function uses again, and the memory that it leaves alone."""

import numpy as np
import paddle
import pytest

from paddle_ldopt.optimizers._base import arithmetic

X, Y, EPS = np.float32([4.0, 9.0]), np.float32([2.0, 3.0]), 0.5
# function: arguments, expected result, the arguments that it may overwrite
CASES = {
    "add_to": ((X, Y), X + Y, [0]),
    "multiply_by": ((X, Y), X * Y, [0]),
    "multiply_by, a number": ((X, EPS), X * EPS, [0]),
    "divide_by": ((X, Y), X / Y, [0]),
    "average": ((X, Y, EPS), EPS * X + EPS * Y, [0]),
    "at_least": ((X, 5.0), np.float32([5.0, 9.0]), []),
    "add_number": ((X, EPS), X + EPS, [0]),
    "adam_direction": ((Y, X, EPS), Y / (np.sqrt(X) + EPS), [0, 1]),
    "minus_adapted_step": ((X, X, Y), X - X * Y, [2]),
    "minus_adam_step": ((X, EPS, Y, X, EPS), X - EPS * Y / (np.sqrt(X) + EPS), []),
    "minus_step": ((X, EPS, Y), X - EPS * Y, []),
    "instability": ((X, Y, EPS), (X - Y) ** 2 + EPS, []),
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
