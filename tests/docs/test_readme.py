"""The README's Python runs as it is written."""

import operator
import pathlib
import re
import shlex

import paddle
import pytest

import paddle_ldopt
from paddle_ldopt.tools.cli import main

README = pathlib.Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) == 3
    names = {"__name__": "readme"}
    with paddle.utils.unique_name.guard():
        exec(compile("\n".join(blocks), str(README), "exec"), names)
    assert "block 3" in capsys.readouterr().out
    before, after = re.search(r"```diff\n-(.*)\n\+(.*)\n```", TEXT).groups()
    exec(before, names)
    plain = names["opt"]
    exec(after, names)
    assert isinstance(names["opt"], type(plain)) and names["opt"].get_lr() == plain.get_lr() == 5e-5
    assert len({names["opt"].layerwise_ratio(param) for param in names["model"].parameters()}) == 6


@pytest.mark.parametrize("line", re.findall(r"^python -m paddle_ldopt (.*)", TEXT, re.M))
def test_commands_run(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(shlex.split(line, comments=True))
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert [path.name for path in tmp_path.iterdir()] == (["rates.png"] if "--plot" in line else [])


@pytest.mark.parametrize("line", re.findall(r'^make finetune ARGS="(.*?)"', TEXT, re.M))
def test_arguments_of_the_recipe_are_known(line, tmp_path, monkeypatch):
    from common.arguments import parse_line
    from sequence_classification import Arguments, Options

    monkeypatch.chdir(tmp_path)
    options, _ = parse_line(shlex.split(line), Options, Arguments)
    assert options.compare or (options.data, options.label_column) == ("reviews.csv", "stars")


def test_the_names_to_start_with_are_public():
    table = TEXT.partition("## Where to start")[2].partition("\n## ")[0]
    names = re.findall(r"`([\w.]+)`", table.partition("| --- |")[2])
    assert len(names) > 15 and all(operator.attrgetter(name)(paddle_ldopt) for name in names)


def test_commands_are_targets_of_the_makefile():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make ([a-z-]+)", TEXT, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target
