"""The launcher of `distributed_launch`: results by rank, and what it does when a rank fails or hangs."""

import os
import subprocess
import sys
import time

import paddle
import pytest
from distributed_launch import LaunchError, launch
from processes import search_path


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


def meet_late():
    """Use the store of process 0 when that may be done."""
    paddle.distributed.init_parallel_env()
    store = paddle.base.core.create_or_get_global_tcp_store()
    time.sleep(rank())
    store.set(f"done by {rank()}", "yes")
    return store.get(f"done by {rank()}").decode()


def changed():
    return getattr(sys, "changed_at_the_start", False)


def test_each_rank_returns_its_result():
    assert launch(squares, ranks=3, timeout=30, base=5) == [(0, 25), (1, 25), (2, 25)]


def test_a_rank_that_is_done_waits_for_the_others():
    assert launch(meet_late, timeout=30) == ["yes", "yes"]


@pytest.mark.parametrize(
    "work, arguments, says, killed, returncodes",
    [
        (fail, {"grace": 0.5, "hang": True}, "Rank 1 failed.*rank 0 was here.*on purpose", [0], [-9, 1]),
        (fail, {"hang": False}, "Rank 1 failed", [], [0, 1]),
        (hang, {"timeout": 2}, "did not end within 2 seconds", [0, 1], [-9, -9]),
        (leave, {}, "without a result", [], [0, 0]),
    ],
    ids=["the others hang", "the others end", "all hang", "no result"],
)
def test_a_rank_that_fails(work, arguments, says, killed, returncodes):
    start = time.monotonic()
    with pytest.raises(LaunchError, match=f"(?s){says}") as error:
        launch(work, **{"timeout": 30, **arguments})
    assert time.monotonic() - start < 20
    assert error.value.killed == killed and error.value.returncodes == returncodes


def test_what_is_on_pythonpath_comes_first(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/first", "/second", "/first"]))
    path = search_path().split(os.pathsep)
    assert path[:2] == ["/first", "/second"] and len(path) == len(set(path)) and set(filter(None, sys.path)) < set(path)


@pytest.mark.slow
def test_ranks_begin_as_pythonpath_says(tmp_path):
    """So does mutants.py put a mutant into them."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.changed_at_the_start = True")
    code = "import test_distributed_launch as here; print(here.launch(here.changed, ranks=2))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), search_path()])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert run.stdout.splitlines()[-1:] == ["[True, True]"], run.stderr[-2000:]
