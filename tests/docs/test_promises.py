"""docs/reliability.md has what the tests are marked with, and what they were collected as."""

import paddle
import promises
import pytest
from reference import needs_library

WITH = "3.3.1"  # the Paddle that the page names


@needs_library
@pytest.mark.skipif(paddle.__version__ != WITH, reason=f"the page was written with Paddle {WITH}")
def test_the_page_is_not_stale(request):
    page, cases = promises.PAGE.read_text(encoding="utf-8"), request.config.cases
    assert WITH in page
    if not {file for _, file, *_ in promises.promises()} <= {file for file, _ in cases}:
        pytest.skip("this run has not collected every marked test")
    assert promises.filled(page, cases) == page, "run `python docs/promises.py`"


def test_a_marker_is_a_row(monkeypatch, tmp_path):
    (tmp_path / "tests/room").mkdir(parents=True)
    (tmp_path / "tests/room/test_one.py").write_text(
        "pytestmark = pytest.mark.promise('all hold')\n"
        "@pytest.mark.promise('a holds', seen='3 s')\n@pytest.mark.slow\ndef test_a(): pass\n"
        "@pytest.mark.promise('a holds')\ndef test_b(): pass\n"
    )
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    assert promises.promises() == [
        ("all hold", "room/test_one.py", None, ""),
        ("a holds", "room/test_one.py", "test_a", "3 s"),
        ("a holds", "room/test_one.py", "test_b", ""),
    ]
    table = promises.promises_table({("room/test_one.py", "test_a"): 2, ("room/test_one.py", "test_b"): 1000})
    assert table.split("\n")[2:] == [
        "| all hold | `tests/room/test_one.py` | 1,002 |  |",
        "| a holds | `tests/room/test_one.py` `test_a` `test_b` | 1,002 | 3 s |",
    ]
