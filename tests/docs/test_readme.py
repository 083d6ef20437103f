"""README.md, README.zh-CN.md and docs/guide.md: their code runs, their output and numbers are real."""

import re
import shlex

import paddle
import pytest
from paddle.nn import functional
from paddlenlp.ops.optimizer import AdamWDL as PaddleNLPs
from project import ROOT

import paddle_ldopt
from paddle_ldopt.tools.cli import main

README, CHINESE, GUIDE, CHINESE_GUIDE, BENCHMARKS = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "README.zh-CN.md", "docs/guide.md", "docs/guide.zh-CN.md", "benchmarks/README.md")
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


@pytest.mark.parametrize("line", re.findall(r'^make finetune ARGS="(.*?)"', README + CHINESE, re.M))
def test_arguments_of_the_recipe_are_known(line, tmp_path, monkeypatch):
    from common.arguments import parse_line
    from text_classification import Arguments

    monkeypatch.chdir(tmp_path)
    for name in ("reviews.csv", "评论.csv"):
        (tmp_path / name).touch()
    args = parse_line(shlex.split(line), Arguments)
    data = (args.data, args.label_column, args.encoding)
    assert args.compare or data in (("reviews.csv", "stars", None), ("评论.csv", None, None))


def test_the_times_are_those_of_the_benchmarks():
    sentence = r"takes (\d+) ms with a decay and (\d+) ms without; Paddle's AdamW takes (\d+) ms"
    shown = re.search(sentence, " ".join(README.split())).groups()
    section = BENCHMARKS.partition("## Cost of layer-wise decay")[2].partition("\n## ")[0]
    assert "BERT-base, 2 threads" in section
    rows = ("AdamWDL(layers=...)", "AdamWDL(layerwise_decay=1.0)", "paddle.optimizer.AdamW")
    times = [re.search(rf"^\| `{re.escape(row)}` \| ([\d.]+)", section, re.M)[1] for row in rows]
    assert [int(time) for time in shown] == [round(float(time)) for time in times]


def test_the_evidence_is_that_of_its_page():
    """Whose numbers tests/benchmarks/test_evidence.py computes from the results."""
    pays = " ".join(README.partition("**Does it pay?**")[2].partition("\n\n")[0].split())
    findings = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    for ours, theirs in {
        "0.65 rescues training: accuracy 71.4 % instead of 17.1 %": "71.4 % on trec (17.1 %)",
        "`preserve_mean` gained 5.1 points in one of three cases": "in one of three cases.** Decay 0.8 gained 5.1",
    }.items():
        assert ours in pays and theirs in findings, ours


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
    ours = lambda net: paddle_ldopt.AdamWDL(0.1, parameters=net.parameters(), weight_decay=0.1)  # noqa: E731
    for build, left in ((paddlenlps, 0.9801), (ours, 0.99)):
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


LOCAL = re.search(r"^## 国内镜像与中文数据\n.*?(?=^## )", CHINESE, re.S | re.M)[0]  # the Chinese page alone has it
SAME = (
    CHINESE.replace(LOCAL, "")
    .replace("guide.zh-CN.md#使用限制", "guide.md#limits")
    .replace("guide.zh-CN.md#cpu-以外的设备", "guide.md#devices-other-than-a-cpu")
    .replace("guide.zh-CN.md", "guide.md")
)
PAGES = {"README": (README, SAME), "guide": (GUIDE, CHINESE_GUIDE)}
CODE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
LITERAL = rf"`[^`\n]+`|\]\((?!README|guide)[^)]+\)|{NUMBER}"
IN_WORDS = {"one of three cases": "三种情形中的一种", "Two commands": "两条命令", "once": "一次"}


def code_of(page):
    """The language and the lines of each block, without comments and the explanations beside the diagram."""
    short = {"": lambda line: line[:45].rstrip(), "text": str}
    return [
        (language, [short.get(language, lambda line: re.sub(r"\s*#.*", "", line))(line) for line in text.splitlines()])
        for language, text in CODE.findall(page)
    ]


def literals_of(page):
    """The code, links and numbers of each heading, paragraph, list item and table row, in order."""
    parts = re.split(r"\n\n+|\n(?=[-|])", CODE.sub("```", page))
    return [(re.match(r"#+|[-|]|", part)[0], re.findall(LITERAL, part)) for part in parts]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("of", [code_of, literals_of])
def test_both_languages_have_the_same_code_numbers_and_links(of, page):
    english, chinese = map(of, PAGES[page])
    assert [kind for kind, _ in english] == [kind for kind, _ in chinese]
    assert english == chinese and len(english) > 6


def test_both_languages_have_the_same_first_line_and_numbers_in_words():
    assert README.splitlines()[0] == "English | [简体中文](README.zh-CN.md)"
    assert CHINESE.splitlines()[0] == "[English](README.md) | 简体中文"
    for english, chinese in IN_WORDS.items():
        assert " ".join(README.split()).count(english) == CHINESE.count(chinese) > 0, english


def test_the_section_for_china_has_this_release_and_the_usual_columns():
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    release = re.search(r"^paddlepaddle==(\S+)", constraints, re.M)[1]
    assert re.findall(r"paddlepaddle-gpu==(\S+)", LOCAL) == [release] * 2
    from common.files import USUAL_NAMES

    for option, names in {"text_column": ("文本", "评论"), "label_column": ("标签", "类别")}.items():
        assert all(name in USUAL_NAMES[option] and f"“{name}”" in LOCAL for name in names)


@pytest.mark.parametrize("page", [CHINESE, CHINESE_GUIDE], ids=["README", "guide"])
def test_chinese_typography(page):
    """A space between Chinese and Latin characters, full-width punctuation after Chinese ones."""
    prose = re.sub(r"`[^`]*`", "`", re.sub(r"\]\([^)]*\)", "]", CODE.sub("", page)))
    han = "[\u4e00-\u9fff]"
    wrong = rf"{han}[A-Za-z0-9`]|[A-Za-z0-9%`]{han}|{han} *[,.;:!?()]| [，。；：！？（）、]|[，。；：！？）、] (?![·|])"
    assert not [found[0] for found in re.finditer(rf".?.?(?:{wrong}).?.?", prose)]
