"""What `make mutants` changes: modules that are there, each with tests."""

import ast
import importlib

import mutants
import processes


def test_the_lists_name_modules_and_tests_that_are_there():
    assert {*mutants.MORE, *sum(mutants.APART.values(), [])} <= set(mutants.files())
    patterns = [*sum(mutants.MORE.values(), []), *(f"distributed/{name}" for name in mutants.APART)]
    assert not [pattern for pattern in patterns if not list(mutants.TESTS.glob(pattern))]
    assert all(mutants.tests_of(file) for file in mutants.files())


def put_in_every_module():
    for file in mutants.files():
        module = importlib.import_module("paddle_ldopt." + file[:-3].replace("/", "."))
        tree = ast.parse((mutants.PACKAGE / file).read_text(encoding="utf-8"))
        assert mutants.Runner([file], 0, 0, 0)._verdict(None, module, tree, [], []) == "survived", file


def test_every_module_can_be_put_in_unchanged(tmp_path):
    """Otherwise each of its mutants would count as killed on import."""
    process = processes.start(put_in_every_module, log=tmp_path / "log")
    process.join(120)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
