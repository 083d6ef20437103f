"""The one door to Paddle's private names: each is where it was, no other module uses one, and one may move."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import paddle
import pytest

import paddle_ldopt
from paddle_ldopt import _compat
from paddle_ldopt._paddle import private_names

ROOT = pathlib.Path(paddle_ldopt.__file__).parent
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
SAMPLE = paddle.optimizer.AdamW(parameters=paddle.nn.Linear(1, 1).parameters())
AREAS = [path.stem for path in (ROOT / "_paddle").glob("[a-z]*.py") if path.stem != "private_names"]
INHERITED = {*dir(SAMPLE), *dir(paddle.optimizer.lr.LinearWarmup(0.1, 1, 0, 1))}  # names that are Paddle's in any case


def defined(tree):
    """Yield the private names that a module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


OURS = {name for tree in TREES.values() for name in defined(tree)} | {
    part.split(".")[0] for p in TREES for part in p.parts
}


def is_super(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def test_only_names_of_the_package_are_imported_from_here():
    names = [name for name in vars(_paddle) if not name.startswith("__")]
    modules = [name for name in names if inspect.ismodule(getattr(_paddle, name))]
    assert set(modules) <= {path.stem for path in (ROOT / "_paddle").glob("*.py")}
    declared_here = {"PRIVATE", "MovedError"}.union(
        *(sys.modules[f"{_compat.__name__}.{name}"].__all__ for name in AREAS)
    )
    assert set(names) - set(modules) == declared_here


@pytest.mark.parametrize(("owner", "name", "feature"), _compat.PRIVATE, ids=lambda value: value or "-")
def test_every_private_part_is_where_it_was(owner, name, feature):
    found = private_names.object_at(owner)
    if name and not hasattr(found, name):  # an attribute of instances: some method of the class sets it
        sources = [inspect.getsource(cls) for cls in found.__mro__[:-1] if cls.__module__.startswith("paddle")]
        assert any(f".{name}{end}" in text for text in sources for end in " :,"), f"{owner} has no {name}: {feature}"


def touched(tree):
    """Yield (line, name) of the attributes that a module reads or sets: by a dot, a keyword, or a name in quotes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_super(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, keyword.arg or "") for keyword in node.keywords)
            quoted = node.args if getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr", "delattr") else []
            yield from ((node.lineno, value) for arg in quoted if isinstance(value := getattr(arg, "value", None), str))
        elif isinstance(node, ast.Subscript) and getattr(getattr(node.value, "func", None), "id", "") == "vars":
            yield node.lineno, str(getattr(node.slice, "value", ""))


@pytest.mark.parametrize("path", [path for path in TREES if path.parts[0] != "_paddle"], ids=str)
def test_nothing_goes_past_the_door(path):
    passed = [
        f"line {line}: {name}"
        for line, name in touched(TREES[path])
        if re.fullmatch(r"_[a-zA-Z]\w*", name) and (name not in OURS or name in INHERITED)
        if name not in ("_replace", "_asdict", "_fields", "_Unpickler")  # of every NamedTuple, and of pickle
    ]
    assert not passed


@pytest.mark.parametrize("path", [path for path in TREES if path.parts[0] == "_paddle"], ids=str)
def test_the_door_touches_only_declared_names(path):
    declared = {name for _, name, _ in _compat.PRIVATE} | {owner.rpartition(".")[2] for owner, _, _ in _compat.PRIVATE}
    own = set(defined(TREES[path])) | {"_getframe"}  # of sys
    undeclared = {name for _, name in touched(TREES[path]) if re.fullmatch(r"_[a-zA-Z]\w*", name)} - declared - own
    assert not undeclared


def test_a_part_that_has_moved_is_named_when_it_is_used():
    gone = private_names.part("paddle.Tensor", "_gone", "Every feature")
    _compat.PRIVATE.pop()
    with pytest.raises(_compat.MovedError, match=r"Every feature is not available.*Received: no paddle.Tensor._gone"):
        gone()
    with pytest.raises(_compat.MovedError, match="_accumulators"):
        object()._accumulators
    for path in ("paddle.optimizer.Gone", "gone"):
        gone = private_names.lazy(path, "Every feature")
        _compat.PRIVATE.pop()
        with pytest.raises(_compat.MovedError, match=f"Every feature is not available.*Received: no {path}$"):
            gone()


@pytest.mark.parametrize("owner", sorted({owner.split(".", 2)[1] for owner, _, _ in _compat.PRIVATE} & {"distributed"}))
def test_the_package_is_imported_without_them(owner):
    """Hide every module of Paddle that only private names are taken from, then import and take a step."""
    hidden = sorted({o for o, name, _ in _compat.PRIVATE if not name and ".fleet." in o})
    code = (
        f"import sys, paddle; hidden = {hidden!r}\n"
        "for path in hidden:\n"
        "    module, _, name = path.rpartition('.')\n"
        "    vars(sys.modules.get(module) or __import__(module, fromlist=['x'])).pop(name, None)\n"
        "import paddle_ldopt as ldopt; layer = paddle.nn.Linear(2, 2)\n"
        "opt = ldopt.AdamWDL(0.1, parameters=layer.parameters())\n"
        "layer(paddle.ones([1, 2])).sum().backward(); opt.step()\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
