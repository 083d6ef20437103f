"""The architecture: imports point one way, and importing the package is cheap."""

import ast
import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import paddle_ldopt

ROOT = pathlib.Path(paddle_ldopt.__file__).parent
MODULES = [p.relative_to(ROOT) for p in sorted(ROOT.rglob("*.py"))]

# who may import whom within the package; __init__ may import all of it
ARROWS = {
    "version": set(),
    "_messages": set(),
    "_checks": {"_messages"},
    "_paddle": set(),
    "kernels": set(),
    "plots": {"_checks"},
    "schedules": {"_checks", "_paddle"},
    "layers": {"_checks", "_paddle", "plots", "schedules"},
    "optimizers": {"_checks", "_paddle", "kernels", "layers", "schedules"},
    "accumulation": {"_checks", "_paddle", "optimizers"},
    "build": {"_checks", "_paddle", "layers", "optimizers", "schedules"},
    "tensorflow_recipe": {"_checks", "_paddle", "build", "layers", "optimizers", "schedules"},
    "config": {"_checks", "_messages", "build", "layers", "optimizers", "schedules"},
    "saving": {"_checks", "_paddle", "layers", "optimizers", "version"},
    "parallel": {"_checks", "_paddle", "optimizers", "saving", "schedules"},
    "tools": {"_checks", "config", "layers", "optimizers", "plots", "schedules"},
    "trainer": {"_checks", "_paddle", "build", "config", "layers", "optimizers", "plots", "saving", "schedules"},
    "__main__": {"tools"},
}


def imports(path):
    """Return the parts of the package, and the other top-level packages, that a module imports anywhere in it."""
    inner, outer = set(), set()
    depth = len(path.parts) - 1
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            outer |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outer.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            inner |= {(node.module or alias.name).split(".")[0] for alias in node.names}
    return inner, outer


def part(path):
    return path.parts[0] if len(path.parts) > 1 else path.stem


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_one_way(path):
    inner, outer = imports(path)
    if path.name != "__init__.py" or len(path.parts) > 1:
        assert inner <= ARROWS[part(path)] | {part(path)}
    if part(path) not in ("trainer", "tools"):
        assert not outer & {"paddlenlp", "paddleformers"}
    if path.stem in ("_checks", "_messages", "stacks"):
        assert "paddle" not in outer


def test_importing_the_package_is_cheap():
    code = (
        "import sys, time; start = time.perf_counter(); import paddle; before = set(sys.modules);"
        "middle = time.perf_counter(); import paddle_ldopt; end = time.perf_counter(); new = set(sys.modules) - before;"
        "print((end - middle) / (middle - start), *{'paddlenlp', 'paddleformers', 'matplotlib', 'rich'} & new)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ratio, *heavy = run.stdout.split()
    assert not heavy
    assert float(ratio) < 0.5, "of the time that importing Paddle takes"


def test_a_missing_paddle_is_a_clear_error():
    code = "import sys; sys.modules['paddle'] = None; import paddle_ldopt"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode and "pip install paddlepaddle" in run.stderr.splitlines()[-1]


@pytest.mark.parametrize("path", [p for p in MODULES if p.stem != "__main__"], ids=str)
def test_doctests(path):
    name = ".".join(("paddle_ldopt", *path.with_suffix("").parts)).replace(".__init__", "")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize(
    "name", sorted(set(paddle_ldopt.__all__) - {"Layer", "OptimizerInfo", "__version__", "optimizer_class"})
)
def test_every_public_name_has_an_example(name):
    assert ">>>" in getattr(paddle_ldopt, name).__doc__
