"""Checks of arguments: the value that each returns, and the values that it refuses."""

import math
import re

import numpy as np
import paddle
import pytest

from paddle_ldopt import _checks
from paddle_ldopt._checks import Option, checked_bool, checked_int, checked_number, one_of_two


def refuses(says, check, *arguments, error=ValueError):
    with pytest.raises(error, match=f"^{re.escape(says)}"):
        check(*arguments)


def test_a_number_of_any_library_becomes_a_float():
    for value in (1, 1.0, np.int64(1), np.float32(1), np.ones([1, 1]), paddle.ones([1])):
        number = checked_number(value, "x")
        assert number == 1.0 and type(number) is float
    for value in (None, "1", True, 1j, np.ones(2), paddle.ones([2]), np.array([True])):
        refuses("`x` must be a number. Received: x=", checked_number, value, "x", error=TypeError)


@pytest.mark.parametrize("ends", ["[]", "[)", "(]", "()"])
def test_a_square_bracket_includes_the_limit(ends):
    arguments = ("x", 2, 3, ends)
    assert checked_number(2.5, *arguments) == 2.5
    for value in (1.9, 3.1, math.nan, math.inf, -math.inf, 10**400, -(10**400)):
        refuses(f"`x` must be in {ends[0]}2, 3{ends[1]}. Received: x=", checked_number, value, *arguments)
    for limit, bracket in zip((2, 3), ends):
        if bracket in "[]":
            assert checked_number(limit, *arguments) == limit
        else:
            refuses("`x` must be in ", checked_number, limit, *arguments)


def test_infinity_is_in_no_range():
    assert checked_number(0, "x") == 0.0
    for value in (math.inf, 10**400, -1e-300):
        refuses("`x` must be in [0, inf). Received: x=", checked_number, value, "x")
    for value in (-math.inf, -(10**400)):
        refuses("`x` must be in (-inf, 0]. Received: x=", checked_number, value, "x", -math.inf, 0)


def test_integers():
    for value in (3, np.int8(3), np.array([3]), paddle.to_tensor([3])):
        number = checked_int(value, "x", 3)
        assert number == 3 and type(number) is int
    assert checked_int(0, "x") == 0 and checked_int(2**53, "x") == 2**53
    for value in (3.0, True, None, "3"):
        refuses("`x` must be an integer. Received: x=", checked_int, value, "x", error=TypeError)
    refuses("`x` must be at least 0. Received: x=-1", checked_int, -1, "x")
    refuses("`x` must be at least 4. Received: x=3", checked_int, 3, "x", 4)
    refuses(f"`x` must be at most {2**53}. Received: an int of 54 bits", checked_int, 2**53 + 1, "x")
    refuses("`x` must be a whole number of steps, not a ratio. ", _checks.checked_steps, 0.1, "x", error=TypeError)


def test_choices():
    assert _checks.checked_choice("a", "x", ("a", "b")) == "a"
    for value in ("c", 1, ["a"]):
        refuses("`x` must be one of 'a', 'b'. Received: x=", _checks.checked_choice, value, "x", ("a", "b"))


def test_an_argument_with_two_names_is_given_once():
    for given, want in {
        ("x", 1, "y", None): 1,
        ("x", None, "y", 2): 2,
        ("x", 0.1, "y", 2, 0.1): 2,  # the default
        ("x", np.float64(0.1), "y", 2, 0.1): 2,
        ("x", 0.1, "y", 0, 0.1): 0,
    }.items():
        assert one_of_two(*given) == want
    for value, default in ((1, None), (1, 0.1), ("a", 0.1)):
        refuses("`y` is another name for `x`: give one of them. Received: x=", one_of_two, "x", value, "y", 2, default)


def test_an_option_that_declares_nothing_is_a_number_from_0():
    option = Option(1, "a doc")
    assert option.span == "[0, inf)" and option.checked(np.ones([1]), "x") == 1.0
    assert not (option.optional or option.group) and option.argument and option.in_rule
    assert not (option.called or option.setting or option.values or option.read or option.check)
    refuses("`x` must be in [0, inf). Received: x=-1", option.checked, -1, "x")
    refuses("`x` must be a number. Received: x=None", option.checked, None, "x", error=TypeError)


def test_an_option_is_checked_by_its_declaration():
    number = Option(1.0, "a doc", high=1.0, ends="[)", optional=True, called="y")
    assert number.span == "[0, 1) or None" and number.checked(None, "x") is None
    assert type(number.checked(0, "x")) is float
    assert number.checked(paddle.to_tensor([0.5]), "x") == 0.5
    for value in (1.0, paddle.ones([1])):
        refuses("`y` must be in [0, 1). Received: y=", number.checked, value, "x")
    read = Option(1.0, "a doc", read=lambda value, name: (value or 0) - 1)
    assert read.checked(2, "x") == 1.0
    refuses("`x` must be in [0, inf). Received: x=-1", read.checked, None, "x")
    flag = Option(True, "a doc", check=checked_bool)
    assert flag.span == "a bool" and flag.checked(False, "x") is False
    refuses("`x` must be a bool. Received: x=1", flag.checked, 1, "x", error=TypeError)
    assert Option(True, "a doc", check=checked_bool, values="an apple").span == "an apple"
