"""What `make test` runs of a test with many cases: ``@pytest.mark.representatives`` or ``representatives(count=2)``.

By default each value of each argument is in one case at least. The other cases are `slow`: `make test-all` runs them.
A fixture that does the work of many cases at once takes those that run from `selected`.
"""

import collections
import random

import pytest

__all__ = ["chosen", "mark_the_rest_slow", "selected"]


def chosen(cases, count, draw):
    """Return `count` of some cases (sets of values), by default so many that each value of an argument is in one."""
    left, unseen, found = draw.sample(range(len(cases)), len(cases)), set().union(*cases), []
    while left and (unseen if count is None else len(found) < count):
        best = max(left, key=lambda i: len(unseen & cases[i]))
        unseen -= cases[best]
        found.append(best)
        left.remove(best)
    return found


def mark_the_rest_slow(items):
    """Mark the cases of a test with `representatives` as slow, except those that `make test` runs."""
    tests = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("representatives") and not any(map(item.get_closest_marker, ("slow", "fault"))):
            tests[item.path, item.originalname].append(item)
    for (_, test), cases in tests.items():
        count = cases[0].get_closest_marker("representatives").kwargs.get("count")
        values = [{(name, id(value)) for name, value in item.callspec.params.items()} for item in cases]
        kept = set(chosen(values, count, random.Random(test)))
        for i, item in enumerate(cases):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def selected(request, *arguments):
    """Return a tuple of the values of these arguments for each test that will run, has all and uses this fixture."""
    users = [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]
    params = [item.callspec.params for item in users if item.path == request.path and hasattr(item, "callspec")]
    return list(dict.fromkeys(tuple(p[name] for name in arguments) for p in params if {*arguments} <= p.keys()))
