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
