"""README.md, README.zh-CN.md and docs/guide.md: their code runs, their output and numbers are real."""

import operator
import re
import shlex

import paddle
import pytest
from paddle.nn import functional
from paddlenlp.ops.optimizer import AdamWDL as PaddleNLPs
from project import ROOT

import paddle_ldopt
from paddle_ldopt.tools.cli import main

README, CHINESE, GUIDE, BENCHMARKS = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "README.zh-CN.md", "docs/guide.md", "benchmarks/README.md")
)
NUMBER = r"(?<![A-Za-z0-9_.])\d+(?:[.,]\d+)*"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def run(text, monkeypatch, tmp_path):
    """The names that the Python of a page leaves behind."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    with paddle.utils.unique_name.guard():
        exec(compile("\n".join(blocks(text, "python")), "page", "exec"), names)
    return names


def test_the_first_example_prints_what_the_readme_shows(monkeypatch, tmp_path, capsys):
    names = run(README, monkeypatch, tmp_path)
    shown, printed = (
        [line.rstrip() for line in text.splitlines() if line.strip()]
        for text in (blocks(README, "text")[0], capsys.readouterr().out)
    )
    assert shown == printed
    before, after = re.search(r"```diff\n-(.*)\n\+(.*)\n```", README).groups()
    exec(before, names)
    plain = names["opt"]
    exec(after, names)
    assert isinstance(names["opt"], type(plain)) and names["opt"].get_lr() == plain.get_lr() == 5e-5
    assert len({names["opt"].layerwise_ratio(param) for param in names["model"].parameters()}) == 6


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*AmpScaler:UserWarning")
def test_the_guide_runs(monkeypatch, tmp_path, capsys):
    names = run(GUIDE, monkeypatch, tmp_path)
    assert "block 3" in capsys.readouterr().out
    assert names["report"].step == 1 and issubclass(names["MyTrainer"], names["Trainer"])


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^python -m paddle_ldopt (.*)", README + GUIDE, re.M))))
def test_commands_run(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(shlex.split(line, comments=True))
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert [path.name for path in tmp_path.iterdir()] == (["rates.png"] if "--plot" in line else [])


@pytest.mark.parametrize("line", re.findall(r'^make finetune ARGS="(.*?)"', README, re.M))
def test_arguments_of_the_recipe_are_known(line, tmp_path, monkeypatch):
    from common.arguments import parse_line
    from sequence_classification import Arguments, Options

    monkeypatch.chdir(tmp_path)
    options, _ = parse_line(shlex.split(line), Options, Arguments)
    assert options.compare or (options.data, options.label_column) == ("reviews.csv", "stars")


def test_the_names_by_purpose_are_public():
    table = GUIDE.partition("## Names by purpose")[2].partition("\n## ")[0]
    names = re.findall(r"`([\w.]+)`", table.partition("| --- |")[2])
    assert len(names) > 15 and all(operator.attrgetter(name)(paddle_ldopt) for name in names)


def test_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", README + CHINESE + GUIDE, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_times_are_those_of_the_benchmarks():
    shown = re.search(
        r"takes (\d+) ms with a decay and\s+(\d+) ms without; Paddle's\s+AdamW takes (\d+) ms", README
    ).groups()
    section = BENCHMARKS.partition("## What layer-wise decay costs")[2].partition("\n## ")[0]
    assert "BERT-base, 2 threads" in section
    rows = ("AdamWDL(layers=...)", "AdamWDL(layerwise_decay=1.0)", "paddle.optimizer.AdamW")
    times = [re.search(rf"^\| `{re.escape(row)}` \| ([\d.]+)", section, re.M)[1] for row in rows]
    assert [int(time) for time in shown] == [round(float(time)) for time in times]


def test_the_evidence_is_that_of_the_report():
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("evidence.md", "evidence_tables.md")]
    gain = " ".join(README.partition("**Gain.**")[2].partition("\n## ")[0].split())
    before, _, after = gain.partition(
        "57.8 % accuracy against 31.5 % with one rate for all layers, and 71.4 % against 17.1 %."
    )
    assert "294 runs" in before and "lost 2.4 points on one task and was within the spread on the other" in after
    found = ("decay 0.65 57.8 ±", "uniform 31.5 ±", "decay 0.65 71.4 ±", "uniform 17.1 ±", "**-2.4 [-4.6, -0.3]**")
    assert all(text in "".join(pages) for text in found)
    assert "".join(pages).count(" 147 runs") == 2 and "+2.9 [-8.7, +14.6]" in "".join(pages)


# ---- the table "Why": what can be seen with the packages of the tests


def paddlenlps(network, **options):
    names = {param.name: name for name, param in network.named_parameters()}
    return PaddleNLPs(0.1, parameters=network.parameters(), weight_decay=0.1, name_dict=names, **options)


def test_paddlenlps_own_class_raises_in_its_first_step():
    network = paddle.nn.Linear(2, 2)
    functional.mse_loss(network(paddle.ones([1, 2])), paddle.zeros([1, 2])).backward()
    with pytest.raises(TypeError, match="param_group_idx"):
        paddlenlps(network).step()


def test_paddlenlps_own_class_decays_twice_and_ours_once(monkeypatch):
    parent = PaddleNLPs.__mro__[1]._create_optimization_pass
    mended = lambda self, parameters, **more: (parent(self, parameters, **more), self._lr_to_coeff.clear())[0]  # noqa: E731
    monkeypatch.setattr(PaddleNLPs, "_create_optimization_pass", mended)
    for build, left in (
        (paddlenlps, 0.9801),
        (lambda net: paddle_ldopt.AdamWDL(0.1, parameters=net.parameters(), weight_decay=0.1), 0.99),
    ):
        network = paddle.nn.Linear(2, 2, weight_attr=paddle.nn.initializer.Constant(1.0))
        (network(paddle.ones([1, 2])).sum() * 0).backward()
        build(network).step()
        assert float(network.weight[0, 0]) == pytest.approx(left, rel=1e-6)


def test_lr_ratio_on_which_erniekit_relies_needs_a_gpu():
    if paddle.is_compiled_with_cuda():
        pytest.skip("Paddle's CPU build is needed")
    network = paddle.nn.Linear(2, 2)
    with pytest.raises(NotImplementedError):
        paddle.optimizer.AdamW(0.1, parameters=network.parameters(), lr_ratio=lambda param: 0.5)


# ---- the Chinese page


def test_both_languages_have_the_same_code_numbers_and_links():
    for language in ("bash", "python", "text", "diff"):
        code = [[re.sub(r"\s*#.*", "", block) for block in blocks(page, language)] for page in (README, CHINESE)]
        assert code[0] == code[1], language
    assert README.splitlines()[0] == "English | [简体中文](README.zh-CN.md)"
    assert CHINESE.splitlines()[0] == "[English](README.md) | 简体中文"
    prose = [re.sub(r"^```.*?^```", "", page, flags=re.S | re.M) for page in (README, CHINESE)]
    for pattern in (NUMBER, r"`[^`\n]+`", r"\]\(((?!README)[^)]+)\)"):
        english, chinese = (sorted(re.findall(pattern, page)) for page in prose)
        assert english == chinese and len(english) > 15, pattern
    assert len(re.findall(r"^## ", README, re.M)) == len(re.findall(r"^## ", CHINESE, re.M))


def test_the_badges_say_what_setup_cfg_says():
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    images = ROOT / "docs" / "images"
    lowest, above = re.search(r"paddlepaddle>=([\d.]+),<3\.(\d+)", setup).groups()
    pythons = re.findall(r"Python :: (3\.\d+)", setup)
    said = {"licence": ["Apache-2.0"], "python": [pythons[0], pythons[-1]], "paddle": [lowest, f"3.{int(above) - 1}"]}
    for name, texts in said.items():
        badge = (images / f"badge_{name}.svg").read_text(encoding="utf-8")
        assert all(text in badge for text in texts) and "http" not in badge.replace("http://www.w3.org/2000/svg", "")
    assert f"license = {said['licence'][0]}" in setup
