"""The files that a repository's host reads: workflows, templates, citation."""

import re

import pytest
import yaml
from project import ROOT

import paddle_ldopt

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


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.name)
def test_commands_are_targets_of_the_makefile(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert read(path)
    for target in re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_citation_has_the_version():
    citation = read(ROOT / "CITATION.cff")
    assert str(citation["version"]) == paddle_ldopt.__version__ and citation["license"] == "Apache-2.0"
