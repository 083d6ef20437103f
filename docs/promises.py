"""Write the tables of reliability.md: the promises that tests are marked with, and the versions they ran on.

    python docs/promises.py              # writes; with --check it only compares

A row is ``@pytest.mark.promise("what holds", seen="a figure of a run")`` on a test, or `pytestmark` of a file.
The cases are those that pytest collects, so this runs where the tests run.
"""

import argparse
import ast
import collections
import json
import pathlib
import re
import subprocess
import sys

from paddle_ldopt import kernels

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
VERSIONS = ROOT / "docs/versions.json"


def _markers(nodes):
    """Return the arguments of each `pytest.mark.promise(...)` in some expressions: (text, seen)."""
    calls = (call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call))
    for call in calls:
        if ast.unparse(call.func) == "pytest.mark.promise":
            yield ast.literal_eval(call.args[0]), *(ast.literal_eval(more.value) for more in call.keywords)


def promises():
    """Return [(text, file below tests/, test or None for the whole file, seen)], by file and line."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT / "tests").as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                found += [(text, file, node.name, *seen) for text, *seen in _markers(node.decorator_list)]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                found += [(text, file, None, *seen) for text, *seen in _markers([node.value])]
    return [(*row, "")[:4] for row in found]


def collected():
    """Return (file, test) -> number of cases, as pytest collects them."""
    files = sorted({f"tests/{file}" for _, file, *_ in promises()})
    command = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "promise", *files]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    names = re.findall(r"^tests/(\S+?\.py)::(\w+)", done.stdout, re.M)
    if done.returncode or not names:
        raise RuntimeError(f"pytest collects nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return collections.Counter(names)


def promises_table(cases):
    """Return the table of all promises; several tests of one promise are one row."""
    rows = collections.defaultdict(lambda: ([], 0, []))
    for text, file, test, seen in promises():
        count = cases[file, test] if test else sum(n for (of, _), n in cases.items() if of == file)
        tests, sum_, figures = rows[text]
        rows[text] = [*tests, (file, test)], sum_ + count, figures + [seen] * bool(seen)
    lines = ["| promise | below tests/ | cases | result |", "| --- | --- | --: | --- |"]
    for text, (tests, count, figures) in rows.items():
        files = dict.fromkeys(f"`{file}`" for file, _ in tests)
        lines.append(f"| {text} | {' '.join(files)} | {count:,} | {'; '.join(figures)} |")
    return "\n".join(lines)


def versions_table():
    """Return the table of versions.json: a row for each Python, a column for each Paddle."""
    results = json.loads(VERSIONS.read_text(encoding="utf-8"))
    paddles = ["3.1", "3.2", "3.3"]
    lines = [
        f"| Python | {' | '.join(f'Paddle {paddle}' for paddle in paddles)} |",
        "| --- |" + " --- |" * len(paddles),
    ]
    for python in ("3.9", "3.10", "3.11", "3.12"):
        cells = [results.get(python, {}).get(paddle, {"result": "not run"}) for paddle in paddles]
        shown = [f"{cell['paddle']}: {cell['result']}" if "paddle" in cell else cell["result"] for cell in cells]
        lines.append(f"| {python} | {' | '.join(shown)} |")
    return "\n".join(lines)


def filled(page, cases):
    """Return the text of the page with its tables."""
    for name, table in (("promises", promises_table(cases)), ("versions", versions_table())):
        begin, end = f"<!-- table: {name} -->\n", "\n<!-- end -->"
        head, _, rest = page.partition(begin)
        page = head + begin + table + end + rest.partition(end)[2]
    return page


def main():
    """Write the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page differs")
    check = parser.parse_args().check
    if kernels.library() is None:
        sys.exit(f"Without the C library, fewer tests are collected: {kernels.found()[1]}")
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, collected())
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    return int(check and before != after)


if __name__ == "__main__":
    sys.exit(main())
