"""What `make mutants` changes: modules that are there, each with tests; docs/mutants.md names the same."""

import re

import mutants
from project import ROOT


def test_the_lists_name_modules_and_tests_that_are_there():
    assert {*mutants.MORE, *sum(mutants.APART.values(), [])} <= set(mutants.files())
    patterns = [*sum(mutants.MORE.values(), []), *(f"distributed/{name}" for name in mutants.APART)]
    assert not [pattern for pattern in patterns if not list(mutants.TESTS.glob(pattern))]
    assert all(mutants.tests_of(file) for file in mutants.files())


def test_the_page_names_modules_that_are_there():
    page = (ROOT / "docs/mutants.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+\.py)", page, re.M)
    assert len(rows) > 15 and set(rows) <= set(mutants.files())
    assert set(re.findall(r"(?:layers|schedules|optimizers)/[\w/]+\.py", page)) <= set(mutants.files())
