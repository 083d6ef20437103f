"""What `make mutants` changes: modules that are there, each with tests; CONTRIBUTING.md names some."""

import ast
import importlib
import re

import mutants
from project import ROOT


def test_the_lists_name_modules_and_tests_that_are_there():
    assert {*mutants.MORE, *sum(mutants.APART.values(), [])} <= set(mutants.files())
    patterns = [*sum(mutants.MORE.values(), []), *(f"distributed/{name}" for name in mutants.APART)]
    assert not [pattern for pattern in patterns if not list(mutants.TESTS.glob(pattern))]
    assert all(mutants.tests_of(file) for file in mutants.files())


def test_every_module_can_be_put_in_unchanged():
    """Otherwise each of its mutants would count as killed on import."""

    def put_in(file):
        module = importlib.import_module("paddle_ldopt." + file[:-3].replace("/", "."))
        tree = ast.parse((mutants.PACKAGE / file).read_text(encoding="utf-8"))
        return mutants.Runner([file], 0, 0, 0)._verdict(None, module, tree, [], [])

    verdicts = mutants._in_child(lambda: {file: put_in(file) for file in mutants.files()}, 300)
    assert verdicts == dict.fromkeys(mutants.files(), "survived")


def test_the_modules_that_contributing_names_are_there():
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Mutation testing")[2]
    named = re.findall(r"`(_checks\.py|\w+(?:/\w+)+\.py)`", section.partition("\n## ")[0])
    assert len(named) > 6 and set(named) <= set(mutants.files())
