"""`representatives`: what `make test` runs of a test with many cases."""

import random

import pytest
from representatives import chosen, mark_the_rest_slow

pytest_plugins = ["pytester"]

CASES = [{("name", i), ("fused", j), ("dtype", k)} for i in range(5) for j in range(2) for k in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_each_value_is_in_one_of_the_chosen(seed):
    found = chosen(CASES, None, random.Random(seed))
    assert set().union(*(CASES[i] for i in found)) == set().union(*CASES)
    assert len(found) == len(set(found)) == 5


def test_a_number_of_them():
    assert len(set(chosen(CASES, 7, random.Random(0)))) == 7
    assert len(chosen(CASES, 99, random.Random(0))) == len(CASES)
    (i, j) = chosen(CASES, 2, random.Random(0))
    assert not CASES[i] & CASES[j], "as different as can be"
    assert chosen(CASES, 3, random.Random("a")) == chosen(CASES, 3, random.Random("a"))


TESTS = """
import pytest
two = pytest.mark.parametrize("b", [1, 2])

@pytest.mark.representatives
@two
@pytest.mark.parametrize("a", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_each(a, b): pass

@pytest.mark.representatives(count=1)
@two
def test_one(b): pass

@two
def test_all(b): pass
"""


def test_the_rest_is_slow(pytester):
    items = pytester.getitems(TESTS)
    mark_the_rest_slow(items)
    quick = [item.name for item in items if not item.get_closest_marker("slow")]
    each = [name for name in quick if name.startswith("test_each")]
    assert len(each) == 2 and {*"".join(each)} >= {*"12"} and not any("3" in name for name in each)
    assert [sum(name.startswith(test) for name in quick) for test in ("test_one", "test_all")] == [1, 2]
