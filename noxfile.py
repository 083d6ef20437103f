"""The core tests on each Python with each Paddle that is supported: `make versions`.

    nox -s "core-3.11(paddle='3.1')"      # one of them
    python docs/promises.py               # writes docs/versions.json into docs/reliability.md

A version that this machine lacks is reported in docs/versions.json as such.
"""

import json
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree

import nox

PYTHONS, PADDLES = ["3.9", "3.10", "3.11", "3.12"], ["3.1", "3.2", "3.3"]
RESULTS = pathlib.Path(__file__).parent / "docs/versions.json"
CORE = ["optimizers", "saving", "kernels/test_kernels.py", "layers/test_map.py", "layers/test_ratios.py"]
CORE += ["layers/test_measured.py", "layers/test_measuring.py"]
CORE += ["schedules/test_schedules.py", "schedules/test_warmup.py", "test_accumulator.py"]
# none of them needs PaddleNLP
TOOLS = ["pytest>=8", "pytest-timeout", "pytest-xdist", "pytest-random-order", "hypothesis"]
TOOLS += ["protobuf<7"]  # with 7, fleet refuses its own setting `hybrid_configs`, and VisualDL crashes
TOOLS += ["setuptools"]  # Paddle 3.1 and 3.2 import it, and Python 3.12 has none

nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["interpreters", "core"]


def record(python, paddle, result):
    """Write the result of one pair into the file of all."""
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    found.setdefault(python, {})[paddle] = result
    ordered = {key: dict(sorted(found[key].items())) for key in PYTHONS if key in found}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


@nox.session(venv_backend="none")
def interpreters(session):
    """Report the Pythons that are not there."""
    for python in PYTHONS:
        path = shutil.which(f"python{python}")
        if path is None or subprocess.run([path, "--version"], capture_output=True).returncode:
            session.warn(f"no python{python}")
            for paddle in PADDLES:
                record(python, paddle, {"result": "no interpreter"})


@nox.session(python=PYTHONS)
@nox.parametrize("paddle", PADDLES)
def core(session, paddle):
    """Run the core tests on one Python and Paddle, in a venv that is removed afterwards."""
    folder = pathlib.Path(session.virtualenv.location)
    try:
        try:
            session.install(f"paddlepaddle=={paddle}.*", *TOOLS)
            session.install("-e", ".")
        except nox.command.CommandFailed:
            record(session.python, paddle, {"result": "does not install"})
            session.skip(f"Paddle {paddle} does not install on Python {session.python}")
        version = session.run("python", "-W", "ignore", "-c", "import paddle; print(paddle.__version__)", silent=True)
        report = folder.parent / f"{folder.name}.xml"
        tests = session.posargs or [f"tests/{name}" for name in CORE]
        options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", "--junitxml", str(report)]
        session.run("python", "-m", "pytest", *options, *tests, success_codes=[0, 1])
        suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
        counts = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
        failed = counts["failures"] + counts["errors"]
        passed = counts["tests"] - failed - counts["skipped"]
        result = f"{passed:,} passed, {counts['skipped']} skipped" + (f", {failed} failed" if failed else "")
        found = re.search(r"\d+\.\d+\.\d+", version.splitlines()[-1])
        record(session.python, paddle, {"paddle": found.group() if found else "?", "result": result})
        if failed:
            session.error(f"{failed} tests failed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
