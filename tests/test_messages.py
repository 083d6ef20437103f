"""The parts of a message: values in one bounded line."""

import pytest

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
    "value",
    [Rude(), [1, Rude()], Rude("x" * 10**6), "x" * 10**6, dict.fromkeys(range(10**6)), 10**5000, LOOP, [["x" * 10**3]]],
    ids=lambda value: type(value).__name__,
)
def test_every_value_is_shown_in_bounded_length(value):
    assert 0 < len(shown(value)) <= 403
