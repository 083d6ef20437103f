"""What `make mutants` changes: modules that are there, each with tests; CONTRIBUTING.md names some."""

import re

import mutants
from project import ROOT


def test_the_lists_name_modules_and_tests_that_are_there():
    assert {*mutants.MORE, *sum(mutants.APART.values(), [])} <= set(mutants.files())
    patterns = [*sum(mutants.MORE.values(), []), *(f"distributed/{name}" for name in mutants.APART)]
    assert not [pattern for pattern in patterns if not list(mutants.TESTS.glob(pattern))]
    assert all(mutants.tests_of(file) for file in mutants.files())


def test_the_modules_that_contributing_names_are_there():
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Mutation testing")[2]
    named = re.findall(r"`(_checks\.py|\w+(?:/\w+)+\.py)`", section.partition("\n## ")[0])
    assert len(named) > 6 and set(named) <= set(mutants.files())
