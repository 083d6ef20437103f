"""The launcher of `distributed_launch`: results by rank, and what it does when a rank fails or hangs."""

import os
import time

import pytest
from distributed_launch import LaunchError, launch


def rank():
    return int(os.environ["PADDLE_TRAINER_ID"])


def squares(base):
    return rank(), base**2


def fail(hang):
    print(f"rank {rank()} was here")
    if rank() == 1:
        raise ValueError("on purpose")
    time.sleep(60 if hang else 0)


def hang():
    time.sleep(60)


def leave():
    os._exit(0)


def test_each_rank_returns_its_result():
    assert launch(squares, ranks=3, timeout=30, base=5) == [(0, 25), (1, 25), (2, 25)]


def test_a_failed_rank_is_shown_and_the_others_are_killed():
    start = time.monotonic()
    with pytest.raises(LaunchError, match="(?s)Rank 1 failed.*rank 0 was here.*on purpose") as error:
        launch(fail, timeout=30, grace=0.5, hang=True)
    assert time.monotonic() - start < 20
    assert error.value.killed == [0] and error.value.returncodes == [-9, 1]


def test_the_others_may_end_by_themselves():
    with pytest.raises(LaunchError, match="Rank 1 failed") as error:
        launch(fail, timeout=30, hang=False)
    assert error.value.killed == [] and error.value.returncodes == [0, 1]


def test_the_time_is_limited():
    with pytest.raises(LaunchError, match="did not end within 2 seconds") as error:
        launch(hang, timeout=2)
    assert error.value.killed == [0, 1]


def test_a_rank_without_a_result_is_an_error():
    with pytest.raises(LaunchError, match="without a result"):
        launch(leave, timeout=30)
