"""The launcher of `distributed_launch` and the fork server of `processes`: results, errors, hanging processes."""

import os
import subprocess
import time

import paddle
import pytest
from distributed_launch import LaunchError, launch
from processes import run


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


def test_a_script_runs_as_in_a_process_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys; print(sys.argv[1:], os.environ.get('SAID'), os.getcwd(), 'paddle' in sys.modules, __name__)\n"
        "print('to stderr', file=sys.stderr)"
    )
    ended = run([script, "--rate", 1], env={"SAID": "a word"}, cwd=tmp_path)
    said = f"['--rate', '1'] a word {tmp_path} True __main__\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "to stderr\n")
    assert os.environ.get("SAID") is None and os.getcwd() != str(tmp_path)


@pytest.mark.parametrize(
    "text, code, says",
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('a reason')", 1, "a reason\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
    ids=["code", "reason", "error", "killed"],
)
def test_how_a_script_ended(tmp_path, text, code, says):
    (tmp_path / "script.py").write_text(text)
    ended = run([tmp_path / "script.py"])
    assert ended.returncode == code and ended.stderr.endswith(says)


def test_a_script_that_hangs_is_killed(tmp_path):
    (tmp_path / "script.py").write_text("print('here', flush=True); import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run([tmp_path / "script.py"], timeout=2)
    assert error.value.output == "here\n"
