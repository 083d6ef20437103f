"""The fork server of `processes`: what a process that it starts says, returns and finds."""

import os
import subprocess

import pytest
from processes import run

SAYS = """
import os, sys
print(sys.argv[1:], os.environ.get("SAID"), os.getcwd(), "paddle" in sys.modules, __name__)
print("to stderr", file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_a_script_runs_as_in_a_process_of_its_own(script, tmp_path):
    ended = run([script(SAYS), "--rate", 1], env={"SAID": "a word"}, cwd=tmp_path)
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
def test_how_it_ended(script, text, code, says):
    ended = run([script(text)])
    assert ended.returncode == code and ended.stderr.endswith(says)


def test_a_process_that_hangs_is_killed(script):
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run([script("print('here', flush=True); import time; time.sleep(60)")], timeout=2)
    assert error.value.output == "here\n"
