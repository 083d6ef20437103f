"""The architecture: imports point one way, and importing the package is cheap."""

import ast
import doctest
import functools
import graphlib
import importlib
import pathlib
import subprocess
import sys

import pytest

import paddle_ldopt

ROOT = pathlib.Path(paddle_ldopt.__file__).parent

# who may import whom within the package; __init__ may import all of it
ARROWS = {
    "version": set(),
    "_checks": set(),
    "_files": {"_checks"},
    "_compat": {"_checks"},
    "_processes": {"_compat"},
    "_safetensors": {"_checks", "_files"},
    "kernels": set(),
    "plots": {"_checks", "_files"},
    "schedules": {"_checks", "_compat"},
    "rates": {"_checks", "_compat", "schedules"},
    "layers": {"_checks", "_compat", "_files", "plots", "rates"},
    "optimizers": {"_checks", "_compat", "_processes", "kernels", "layers", "rates"},
    "accumulator": {"_checks", "_compat", "_processes"},
    "create": {"_checks", "_compat", "layers", "optimizers", "rates"},
    "tensorflow_recipe": {"_checks", "_compat", "create", "layers", "optimizers", "schedules"},
    "config": {"_checks", "_files", "create", "layers", "optimizers", "schedules"},
    "checkpoint": {"_checks", "_compat", "_files", "_safetensors", "layers", "optimizers", "schedules", "version"},
    "integrations": {"_checks", "_compat", "_files", "checkpoint", "create", "layers", "optimizers", "rates"},
    "parallel": {"_checks", "_compat", "_files", "_processes", "checkpoint", "schedules"},
    "tools": {"_checks", "_files", "config", "layers", "optimizers", "plots", "schedules"},
    "trainer": {"_checks", "_compat", "_files", "_processes", "checkpoint", "config", "create", "layers", "optimizers"}
    | {"plots", "rates", "schedules"},
    "__main__": {"tools"},
}


def modules_of(folder, prefix=""):
    """Return name -> path of the modules in a folder."""
    paths = {path.relative_to(folder).with_suffix(""): path for path in sorted(folder.rglob("*.py"))}
    return {prefix + ".".join(p for p in name.parts if p != "__init__"): path for name, path in paths.items()}


class WithoutTypes(ast.NodeTransformer):
    """Remove the imports for type checkers, which never run."""

    def visit_If(self, node):
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


@functools.cache
def import_nodes(path, for_types):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree if for_types else WithoutTypes().visit(tree))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(name, path, modules, for_types=True):
    """Yield the full names of the modules that a module imports anywhere in it; only the package of any other."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in import_nodes(path, for_types):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*base, *filter(None, [node.module])])
            found = [full if (full := f"{base}.{alias.name}") in modules else base for alias in node.names]
        yield from (module if module in modules else module.split(".")[0] for module in found)


OURS = modules_of(ROOT, "paddle_ldopt.")
OURS["paddle_ldopt"] = OURS.pop("paddle_ldopt.")


def part(name):
    return (name.split(".") + [""])[1]


@pytest.mark.parametrize("name", OURS)
def test_imports_point_one_way(name):
    found = set(imports(name, OURS[name], OURS))
    inner = {part(module) for module in found if module in OURS}
    outer = {module for module in found if module not in OURS}
    if part(name):  # the package itself may import all of it
        assert inner <= ARROWS[part(name)] | {part(name)}
    assert "paddle_ldopt" not in outer, "every module that is imported is there"
    home = name.split(".")[:-1] if OURS[name].stem != "__init__" else name.split(".")
    for module in found & OURS.keys():  # a folder or module with an underscore belongs to the folder that it is in
        parts = module.split(".")
        assert not [p for i, p in enumerate(parts) if i > 1 and p.startswith("_") and parts[:i] != home[:i]], module
    if part(name) not in ("trainer", "tools"):
        assert not outer & {"paddlenlp", "paddleformers"}
    if name.endswith(("._checks", "._files")):
        assert "paddle" not in outer


@pytest.mark.parametrize("folder", ["paddle_ldopt", "recipes", "benchmarks"])
def test_no_imports_go_in_a_circle(folder):
    """Module by module, those within functions too; a type may be of a module further up."""
    modules = OURS if folder == ROOT.name else modules_of(ROOT.parent / folder)
    graph = {
        name: {found for found in imports(name, path, modules, for_types=False) if found in modules}
        for name, path in modules.items()
    }
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(modules) > 5


def test_the_page_draws_the_arrows():
    """Each package stands above those that it may import."""
    section = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Architecture")[2]
    rows = [line.split() for line in section.split("```")[1].splitlines()]
    height = {package: -i for i, row in enumerate(rows) for package in row if package in ARROWS}
    assert height.keys() >= ARROWS.keys() - {"version", "__main__"}
    for package in height:
        assert all(height[package] > height[below] for below in ARROWS[package] & height.keys()), package
    drawn = {(package, below) for package, arrows in ARROWS.items() for below in arrows}
    used = {(part(name), part(module)) for name, path in OURS.items() for module in imports(name, path, OURS)}
    assert drawn <= used, "every arrow is used"


def test_importing_the_package_is_cheap_and_a_missing_paddle_is_a_clear_error():
    code = (
        "import sys, time; start = time.perf_counter(); import paddle; before = set(sys.modules);"
        "middle = time.perf_counter(); import paddle_ldopt; end = time.perf_counter(); new = set(sys.modules) - before;"
        "heavy = {'paddlenlp', 'paddleformers', 'matplotlib', 'rich', 'paddle.jit.sot'};"
        "heavy |= {f'paddle_ldopt.{name}' for name in ('accumulator', 'checkpoint', 'config', 'parallel')};"
        "print((end - middle) / (middle - start), *heavy & new);"
        "import paddle_ldopt.trainer, paddle_ldopt.integrations; loaded = {n.split('.')[0] for n in sys.modules};"
        "others = {'paddlenlp', 'paddleformers', 'ppcls', 'ppdet', 'ppocr', 'paddleseg', 'paddlespeech'};"
        "assert not others & loaded, loaded; import paddle_ldopt as ldopt;"
        "lazy = {'PipelineWithLossScale', 'DynamicLossScaler', 'parallel'};"
        "assert lazy <= set(dir(ldopt)) and 'paddle_ldopt.parallel' not in sys.modules; ldopt.DynamicLossScaler();"
        "assert not hasattr(ldopt, 'nothing'); from paddle_ldopt import *; PipelineWithLossScale, ldopt.parallel"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ratio, *heavy = run.stdout.split()
    assert not heavy
    assert float(ratio) < 0.5, "of the time that importing Paddle takes"
    code = "import sys; sys.modules['paddle'] = None; import paddle_ldopt"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode and "pip install paddlepaddle" in run.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", [name for name in OURS if name != "paddle_ldopt.__main__"])
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_has_an_example():
    names = set(paddle_ldopt.__all__) - {"Layer", "__version__", "optimizer_class"}
    assert [name for name in sorted(names) if ">>>" not in getattr(paddle_ldopt, name).__doc__] == []
