"""The pages: public names have entries, links lead somewhere, Python runs; the files that a repository's host reads."""

import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import pathlib
import re
import subprocess
import textwrap
import time
import types
import warnings

import matplotlib
import paddle
import promises
import pytest
import trainer_common
import yaml
from project import ROOT, public_names
from reference import needs_library

import paddle_ldopt
from paddle_ldopt import trainer as ours

FOLDERS = (".", "docs", "recipes", "benchmarks")
PAGES = sorted(page.relative_to(ROOT) for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
REFERENCE = ROOT / "docs" / "reference"
PUBLIC = ("", ".optimizers", ".schedules", ".parallel", ".trainer", ".layers")
CONSTANTS = {"__version__", "CONVENTIONS"}


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def anchors_of(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = []
    for title in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M), re.M):
        found.append(re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-"))
    return found


def entries():
    """The names that the reference has: module.name."""
    for page in sorted(REFERENCE.glob("*.rst")):
        module = None
        for line in page.read_text(encoding="utf-8").splitlines():
            found = re.match(r"\.\. (currentmodule|data|auto(?!module)\w+):: (\S+)$", line)
            if found and found[1] == "currentmodule":
                module = found[2]
            elif found:
                yield module, found[2]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    """By identity: what a module re-exports has one entry."""
    documented = [getattr(importlib.import_module(place), name) for place, name in entries()]
    names = set(public_names(f"paddle_ldopt{module}")) - CONSTANTS
    public = {name: getattr(importlib.import_module(f"paddle_ldopt{module}"), name) for name in names}
    assert not [name for name, value in public.items() if not any(value is one for one in documented)]


def test_the_reference_names_each_once_and_by_the_shortest_way():
    found = [(module, name) for module, name in entries()]
    assert len(found) == len(set(found)) > 60
    values = [id(getattr(importlib.import_module(module), name)) for module, name in found]
    assert len(values) == len(set(values))
    assert not [name for module, name in found if module != "paddle_ldopt" and name in paddle_ldopt.__all__]


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_recipes_use_documented_names_only(path):
    public = {*entries(), *(("paddle_ldopt", name) for name in paddle_ldopt.__all__)}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "paddle_ldopt":
            for alias in node.names:  # what a package re-exports has its entry where it is shortest
                shorter = (node.module.rpartition(".")[0], alias.name)
                assert {(node.module, alias.name), shorter, ("paddle_ldopt", alias.name)} & public, alias.name
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "ldopt":
            assert node.attr in paddle_ldopt.__all__
        elif isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("paddle_ldopt.")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text_of(page), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        assert not anchor or anchor in anchors_of(there.resolve().relative_to(ROOT)), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "CHANGELOG"], ids=str)
def test_files_that_a_page_names_are_there(page):
    for path in re.findall(r"`(?!build/)((?:\w+/)+\w+\.\w+)`", text_of(page)):
        assert any((ROOT / folder / path).exists() for folder in (".", "paddle_ldopt", "tests", page.parent)), path


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", text_of(page), re.S | re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=str)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """README, guide (both also in Chinese) and docs/migrating.md run in tests of their own."""
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        ast.parse(block)
        if page.stem not in ("README", "README.zh-CN", "guide", "guide.zh-CN", "migrating"):
            model = paddle.nn.Linear(2, 1)
            optimizer = paddle_ldopt.AdamWDL(0.1, parameters=model.parameters())
            exec(block, {"model": model, "optimizer": optimizer, "folder": str(tmp_path / "saved")})


TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


def code_cells(path):
    """Return [(source, what it printed when the notebook was saved)] of the code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    texts = [[out["text"] for out in cell["outputs"] if out["output_type"] == "stream"] for cell in cells]
    return [("".join(cell["source"]), "".join(sum(text, []))) for cell, text in zip(cells, texts)]


def run_notebook(path):
    """Run the code cells in one namespace, as Jupyter does; return (namespace, [what each prints])."""
    module = types.ModuleType("__main__")
    printed = []
    for source, _ in code_cells(path):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, str(path), "exec"), vars(module))
        printed.append(out.getvalue())
    return vars(module), printed


@pytest.mark.slow
def test_the_tutorial_runs(monkeypatch, tmp_path):
    """From top to bottom, in minutes; it says what its saved outputs say."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        names, printed = run_notebook(TUTORIAL)
    assert time.perf_counter() - start < 300
    assert names["same"] and names["report"].step == 80 and names["losses"][-1] < 0.5 * names["losses"][0]
    assert "block 3" in printed[2] and "ratio" in printed[2]
    exact = [i for i, text in enumerate(printed) if text and "accuracy" not in text and "block" not in text]
    saved = [text for _, text in code_cells(TUTORIAL)]
    assert [printed[i] for i in exact] == [saved[i] for i in exact] and len(exact) == 2


CALLBACKS = (REFERENCE / "callbacks.rst").read_text(encoding="utf-8")


def test_the_example_of_the_callbacks_runs(tmp_path):
    trainer = trainer_common.trainer(tmp_path, optim="adamwdl", layerwise_lr_decay=0.8)
    block = re.search(r"code-block:: python\n\n(.*?)\n\n(?=\S)", CALLBACKS, re.S)[1]
    exec(textwrap.dedent(block), {"trainer": trainer})
    assert {"schedule.png", "schedule.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_the_table_of_callbacks_has_every_argument():
    rows = re.findall(r"^``(\w+)`` +(``.*?|none)  ", CALLBACKS, re.M)
    found = {name: re.findall(r"``(\w+)", arguments) for name, arguments in rows}
    assert set(found) == {name for name in ours.__all__ if "Callback" in name or name == "StopOnSigterm"}
    for name, arguments in found.items():
        assert arguments == [arg for arg in inspect.signature(getattr(ours, name)).parameters if arg != "self"], name


def test_the_table_of_ratios():
    """In docs/choosing.md: the first block's, the embeddings', the mean of the blocks, 1 by that."""
    rows = r"^\| (6|12|24) \| (0\.\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$"
    rows = re.findall(rows, text_of("docs/choosing.md"), re.M)
    assert len(rows) == 10
    for blocks, decay, *shown in rows:
        rule = paddle_ldopt.LayerDecay(float(decay))
        embeddings, *inside = (rule.ratio(layer, int(blocks)) for layer in range(int(blocks) + 1))
        mean = sum(inside) / len(inside)
        for value, text in zip((inside[0], embeddings, mean, 1 / mean), shown):
            digits = len(text.split(".")[1])
            assert float(text) == pytest.approx(value, abs=0.5001 * 10**-digits), (blocks, decay, text)


def test_the_tests_that_are_named_are_there():
    page = text_of(pathlib.Path("docs/reliability.md"))
    tests = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    text = "\n".join(tests.values())
    for name, is_file in re.findall(r"`(test_\w+)(\.py)?`", page):
        assert f"{name}.py" in tests if is_file else f"def {name}(" in text, name


GITHUB = ROOT / ".github"


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_tests_run_on_every_supported_python():
    matrix = read(GITHUB / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert matrix["paddle"] == ["3.1", "3.2", "3.3"]


def test_wheels_are_built_for_every_platform():
    text = (GITHUB / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    built = yaml.safe_load(text)["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    assert {row["platform"].split("-")[0] for row in built} == {"linux", "macos", "windows"}
    assert {"x86_64", "aarch64"} <= {row["archs"] for row in built}
    assert text.count("# not tried") == sum(row["smoke"] == "no" for row in built) == 3


@pytest.mark.parametrize("path", [*GITHUB.rglob("*.yml"), *(ROOT / page for page in PAGES)], ids=lambda path: path.name)
def test_commands_are_targets_of_the_makefile(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert path.suffix == ".md" or read(path)
    for target in re.findall(r"(?:^|`|run: )make ([a-z0-9-]+)", path.read_text(encoding="utf-8"), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_citation_has_the_version():
    citation = read(ROOT / "CITATION.cff")
    assert str(citation["version"]) == paddle_ldopt.__version__ and citation["license"] == "Apache-2.0"


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


def test_the_tests_that_commands_name_exist():
    lines = [line for line in (ROOT / "noxfile.py").read_text(encoding="utf-8").splitlines() if line.startswith("CORE")]
    of_versions = [f"tests/{name}" for name in re.findall(r'"([^"]+)"', " ".join(lines))]
    of_devices = re.search("^ON_DEVICE = (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1].split()
    assert len(of_versions) > 5 and len(of_devices) > 3
    assert all((ROOT / name).exists() for name in of_versions + of_devices)


WITH = "3.3.1"  # the Paddle that the page names


@needs_library
@pytest.mark.skipif(paddle.__version__ != WITH, reason=f"the page was written with Paddle {WITH}")
def test_the_page_is_not_stale(request):
    page, cases = promises.PAGE.read_text(encoding="utf-8"), request.config.cases
    assert WITH in page
    if not {file for _, file, *_ in promises.promises()} <= {file for file, _ in cases}:
        pytest.skip("this run has not collected every marked test")
    assert promises.filled(page, cases) == page, "run `python docs/promises.py`"
