"""Bad calls of everything public: TypeError or ValueError with the argument's name, and nothing has changed."""

import os
import re
import types
import warnings

import bad_values
import pytest
from bad_calls import CALLS, NO_CALLS, PUBLIC, arguments_of, takes_a_number
from bad_values import NO_NUMBER, VALUES
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ldopt._checks import shown


@pytest.fixture(scope="module", autouse=True)
def _elsewhere(tmp_path_factory):
    """Words that are taken for paths are not to end up in the repository."""
    here = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("bad_calls"))
    yield
    os.chdir(here)


def outcome(row, name, spoils):
    """Call with spoilt arguments; return what is wrong with what happened, None if nothing is.

    `spoils` is argument -> name of the value that it is given.
    """
    bad_values.reset()
    function, valid = row.make()
    before, model = row.state(function, valid), bad_values.seen_of_model()
    given = {**valid, **{argument: VALUES[value] for argument, value in spoils.items()}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**given)
    except (TypeError, ValueError, *row.also) as error:
        text = str(error)
        known = "|".join(row.words.get(argument, re.escape(argument)) for argument in spoils)
        called = any(callable(VALUES[value]) for value in spoils.values())  # which may have raised what it likes
        if not called and not re.search(known, text) and not isinstance(error, row.also or ()):
            return f"{name}({spoils}): the message names no argument: {text[:200]}"
        if row.state(function, valid) != before:
            return f"{name}({spoils}): the object has changed, although it raised {text[:100]}"
        if bad_values.seen_of_model() != model:
            return f"{name}({spoils}): the model has changed, although it raised {text[:100]}"
        return None
    except BaseException as error:  # a KeyboardInterrupt is none of them, and shows as well
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{name}({spoils}): {type(error).__name__}: {str(error)[:200]}"
    for argument, value in spoils.items():
        if value in NO_NUMBER and argument not in row.loose and takes_a_number(argument, function, valid):
            return f"{name}({spoils}): no error"
    return None


def spoilable(row):
    function, valid = row.make()
    return [a for a in arguments_of(function, valid) if a not in row.free]


@pytest.mark.parametrize("name", CALLS)
def test_the_base_calls_are_valid(name):
    bad_values.reset()
    function, valid = CALLS[name].make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(**valid)


def test_all_that_is_public_is_called():
    roots = {".".join(name.split(".")[:2]) if name.startswith(("memory.", "trainer.")) else name for name in CALLS}
    roots |= {name.split(".")[0] for name in CALLS} | {name.removeprefix("parallel.") for name in CALLS}
    roots |= {f"trainer.{name}" for name in CALLS}
    missing = set(PUBLIC) - roots - set(NO_CALLS)
    assert not missing, f"tests/robustness/bad_calls.py has no valid call of {sorted(missing)}"
    assert not set(NO_CALLS) - set(PUBLIC)


def fuzz(name, data, most):
    row = CALLS[name]
    arguments = spoilable(row)
    if not arguments:
        return
    some = st.lists(st.sampled_from(arguments), min_size=1, max_size=most, unique=True)
    spoils = {argument: data.draw(st.sampled_from(list(VALUES))) for argument in data.draw(some)}
    wrong = outcome(row, name, spoils)
    assert wrong is None, wrong


@pytest.mark.promise(
    "a bad call raises a TypeError or ValueError that names the argument, and changes nothing",
    seen="23,780 single bad values, 104,000 random combinations of up to three",
)
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_bad_calls(name, data):
    fuzz(name, data, 1)


@pytest.mark.promise("a bad call raises a TypeError or ValueError that names the argument, and changes nothing")
@pytest.mark.fault
@pytest.mark.parametrize("name", CALLS)
def test_every_bad_value_of_every_argument(name):
    row = CALLS[name]
    wrong = [outcome(row, name, {argument: value}) for argument in spoilable(row) for value in VALUES]
    assert not [w for w in wrong if w]


@pytest.mark.promise("a bad call raises a TypeError or ValueError that names the argument, and changes nothing")
@pytest.mark.fault
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_several_bad_values_at_once(name, data):
    fuzz(name, data, 3)


class Rude:
    """Something whose `repr` fails."""

    def __repr__(self):
        raise OSError


LONG = "x" * 10**6
LOOP: list = []
LOOP.append(LOOP)
SHOWN = [Rude(), [1, Rude()], types.SimpleNamespace(text=LONG), LONG, dict.fromkeys(range(10**6)), 10**5000, LOOP]


@pytest.mark.parametrize("value", [*SHOWN, [["x" * 10**3]]], ids=lambda value: type(value).__name__)
def test_every_value_is_shown_in_bounded_length(value):
    assert 0 < len(shown(value)) <= 403
