"""What `.ci/run` starts, with a `make` that only writes down what it was asked for."""

import os
import re
import subprocess

import pytest
from project import ROOT

MAKE = '#!/bin/sh\necho "$1" >> calls\n[ "$1" != "$FAILS" ] || exit 2\n'
ALL = ["lint", "docs", "test", "test-all"]


@pytest.mark.parametrize(
    "fails, minutes, calls, code",
    [
        ("", 90, ALL, 0),
        ("lint", 90, ALL[:1], 2),
        ("test", 90, ALL[:3], 2),
        ("test-all", 90, ALL, 2),
        ("", 40, ALL, 0),
        ("", 24, ALL[:3], 0),
    ],
    ids=["all pass", "style", "a test", "a slow test", "the default", "no time left"],
)
def test_what_runs_and_how_it_ends(tmp_path, fails, minutes, calls, code):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_bytes((ROOT / ".ci/run").read_bytes())
    (tmp_path / "make").write_text(MAKE)
    (tmp_path / "make").chmod(0o755)
    told = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "FAILS": fails, "CI_MINUTES": str(minutes)}
    env = {**os.environ, **told}
    ended = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == code and (tmp_path / "calls").read_text().split() == calls
    assert ("test-all is left out: 0 of 24 minutes" in ended.stdout) == (minutes == 24)


def test_the_core_tests_of_every_version_exist():
    lines = [line for line in (ROOT / "noxfile.py").read_text(encoding="utf-8").splitlines() if line.startswith("CORE")]
    names = re.findall(r'"([^"]+)"', " ".join(lines))
    assert len(names) > 5 and all((ROOT / "tests" / name).exists() for name in names)
