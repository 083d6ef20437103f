"""The README's Python runs as it is written."""

import pathlib
import re

import paddle

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 3
    with paddle.utils.unique_name.guard():
        exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "readme"})
    assert "block 3" in capsys.readouterr().out


def test_links_and_pictures_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target


def test_commands_are_targets_of_the_makefile():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make ([a-z-]+)", README.read_text(encoding="utf-8"), re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target
