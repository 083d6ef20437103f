"""All recipes and all configs, found by themselves: each runs for two steps on a tiny model by its own command."""

import contextlib
import dataclasses
import importlib
import json
import math
import pathlib
import re
import shlex
import signal
import sys
import types

import image_classification
import numpy as np
import paddle
import pytest
import seq2seq
import token_classification
from common import arguments, pretrained, rows, run_report, text_data
from paddlenlp.trainer import PdArgumentParser

from paddle_ldopt import LdoptConfig
from paddle_ldopt.config import read_yaml
from paddle_ldopt.trainer import StopOnSigterm

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = sorted(p.stem for p in (ROOT / "recipes").glob("*.py") if "\nif __name__ ==" in p.read_text(encoding="utf-8"))
CONFIGS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "recipes/configs").rglob("*.yaml"))
OWN_TESTS = {"pipeline_sft", "predict", "sweep"}  # processes of its own; no training; runs recipes
ENCODERS = {"masked_lm_pretraining", "text_classification", "token_classification"}
WORDS = ["alpha", "beta", "gamma", "delta", "value", "path", "name", "None"]
SENTENCES = [f"Return the {a} of {b} or {c}" for a in WORDS for b in WORDS for c in WORDS[:2] if a != b]


def dealt(found, key=str):
    return rows.deal(found, key, "made up")


TAGS = {"path": "B-ARGUMENT"}
OWN = {  # reading the library's own files takes seconds: rows of the same form
    "tagged_docstrings": lambda: dealt([(s.split(), [TAGS.get(w, "O") for w in s.split()]) for s in SENTENCES]),
    "written_dates": lambda: dealt([(s, s.split()[2]) for s in SENTENCES], key=lambda row: row[0]),
    "docstring_texts": lambda: dealt(SENTENCES),
    "named_functions": lambda: dealt(
        [(("user", s), ("assistant", s.split()[2])) for s in SENTENCES], lambda row: row[0][1]
    ),
}


def shorten(monkeypatch):
    """Have the recipes take few rows and draw no pictures."""
    monkeypatch.setattr(sys, "argv", ["no such file"])  # as conftest.py, in processes of their own too
    monkeypatch.setattr(run_report, "_image", lambda *_, **__: "<img>")  # drawing takes most of so small a run
    kinds = [(f"{text} {kind}", kind) for kind in ("class", "function", "module") for text in SENTENCES[:60]]
    monkeypatch.setattr(text_data, "_docstring_parts", lambda: dict.fromkeys(rows.STEMS, kinds))
    digits = image_classification.digits
    few = dataclasses.replace(digits(range(5)), train=digits(range(5)).train[:64])  # that the model is pretrained on
    monkeypatch.setattr(image_classification, "digits", lambda names: few if 0 in names else digits(names))
    for recipe in (importlib.import_module(name) for name in RECIPES):
        for own, made in OWN.items():
            if hasattr(recipe, own):
                monkeypatch.setattr(recipe, own, made)


@pytest.fixture
def start(tiny, tiny_llama, tmp_path, monkeypatch, capsys):
    """Return a function that runs a recipe in this process, in an empty folder, on a tiny model and few rows."""
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch)

    def call(name, *argv, tiny_model=True):
        models = {**dict.fromkeys(ENCODERS, tiny), "language_model_sft": tiny_llama}
        more = ["--model", models[name]] if tiny_model and name in models else []
        with paddle.utils.unique_name.guard():
            importlib.import_module(name).main([*argv, *more])
        out, call.err = capsys.readouterr()
        return out

    return call


def two_steps(folder):
    """Return the arguments that have a recipe stop after two steps."""
    argv = ["--max_steps", "2", "--output_dir", str(folder)]
    by_steps = "--evaluation_strategy steps --eval_steps 1 --save_strategy steps --save_steps 1 --logging_steps 1"
    return [*argv, *by_steps.split(), "--disable_tqdm", "True", "--report_to", "none"]


def check_run(folder, out):
    """Check what every run leaves and prints."""
    results = json.loads((folder / "results.json").read_text())
    tested, baseline = list(results)[:2]
    assert tested.startswith("test ") and baseline.endswith(" baseline") and results["steps"] == 2
    if tested == "test perplexity":
        assert 1 < results[tested] < math.inf and 1 < results[baseline] < 256
    else:
        assert 0 <= results[tested] <= 1 and 0 <= results[baseline] <= 1
    printed = re.search(rf"^{tested} (\d+\.\d+) \((.+): (\d+\.\d+)\), \d+ s$", out, re.M)
    assert float(printed[1]) == round(results[tested], 3) and float(printed[3]) == round(results[baseline], 3)
    assert (folder / "report.html").exists() and list(folder.glob("*model_state.pdparams"))
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2]
    assert any(key.startswith("eval_") for line in lines for key in line)


def test_every_recipe_has_a_config():
    assert re.search(r"^finetune:.*\n\t\$\(PY\) recipes/text_cl", (ROOT / "Makefile").read_text(), re.M)
    commands = [(ROOT / path).read_text().splitlines()[0].split()[2] for path in CONFIGS]
    assert set(RECIPES) - {"pipeline_sft", "predict"} == {pathlib.Path(recipe).stem for recipe in commands}


@pytest.mark.parametrize("name", sorted(set(RECIPES) - OWN_TESTS))
def test_a_recipe_is_short_and_says_how_it_is_used(name):
    recipe = importlib.import_module(name)
    assert len((ROOT / f"recipes/{name}.py").read_text().splitlines()) < 300
    assert recipe.Arguments.recipe == name, "the resume command that it prints has its name"
    commands = re.findall(r"^    (python .*?)(?:  +#.*)?$", recipe.__doc__, re.M)
    assert len(commands) >= 3
    for command in commands:
        program, script, *argv = shlex.split(command)
        assert (program, script) == ("python", f"recipes/{name}.py")
        (args,) = PdArgumentParser(recipe.Arguments).parse_args_into_dataclasses(argv)
        assert args.output_dir.startswith(f"runs/{name}-")


def arguments_of(name):
    recipe = importlib.import_module(name)
    with contextlib.redirect_stdout(None):
        parser = PdArgumentParser(getattr(recipe, "Arguments", getattr(recipe, "Options", None)))
    return {action.dest for action in parser._actions}


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("path", [path for path in CONFIGS if pathlib.Path(path).stem not in OWN_TESTS])
def test_a_config_runs_by_the_command_in_its_first_line(start, tmp_path, path):
    program, recipe, *argv = shlex.split((ROOT / path).read_text().splitlines()[0].lstrip("# "))
    name, settings = pathlib.Path(recipe).stem, read_yaml(ROOT / path)
    assert [program, recipe, *argv] == ["python", f"recipes/{name}.py", "--config", path], "from the root of a clone"
    assert set(settings) <= arguments_of(name)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")  # the command is for the root of a clone
    args = importlib.import_module(name).Arguments()
    default = [f"--model={args.model}", f"--data={args.data}"]  # in place of a hub's
    out = start(name, *argv, *two_steps(tmp_path / "out"), *default)
    check_run(tmp_path / "out", out)
    assert "--config" not in json.loads((tmp_path / "out/arguments.json").read_text()), "a resume does without the file"
    config = LdoptConfig.from_json(tmp_path / "out/checkpoint-2/ldopt_config.json").to_dict()
    mine = settings.keys() & config.keys()
    assert len(mine) >= 4 and {key: settings[key] for key in mine} == {key: config[key] for key in mine}


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_a_checkpoint_and_says_how_to_resume(start, tiny, tmp_path, monkeypatch, capsys, number):
    """That a resume is exact: test_recipe_kills.py."""
    few = ["--save_steps", "2", "--no_load_best_model_at_end"]
    before, handler = StopOnSigterm.on_step_end, signal.getsignal(number)

    def signalled(*args, **kwargs):
        signal.raise_signal(number)
        return before(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(StopOnSigterm, "on_step_end", signalled)
        patch.setattr(sys, "argv", [str(ROOT / "recipes/sweep.py")])  # which has no --resume_from_checkpoint
        start("token_classification", *two_steps(tmp_path / "cut"), *few)
    assert ended.value.code == 128 + number and signal.getsignal(number) == handler
    err = capsys.readouterr().err
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"\n{name}: saving a checkpoint after this step; {name} again ends at once\n" in err
    printed = shlex.split(err.splitlines()[-1])
    assert (tmp_path / printed[2]).resolve() == ROOT / "recipes/token_classification.py"
    assert [printed[0], *printed[3:]] == ["resume:", "--resume_from_checkpoint", str(tmp_path / "cut")]
    assert [p.name for p in (tmp_path / "cut").glob("checkpoint-*")] == ["checkpoint-1"]
    assert not (tmp_path / "cut/results.json").exists()
    out = start("token_classification", *printed[3:], tiny_model=False)
    assert f"\nresumes from {tmp_path}/cut/checkpoint-1\n" in out
    check_run(tmp_path / "cut", out)
    assert start.err == f"new weights, not in {tiny}: classifier.bias, classifier.weight.\n"
    again = start("token_classification", *printed[3:], tiny_model=False)
    assert "This run already ended, at step 2: only the test is repeated." in again


def test_arguments_of_the_command_line_come_on_top_of_a_config(tmp_path):
    (tmp_path / "c.yaml").write_text("seed: 7\nlearning_rate: 1e-3\nlr_scheduler_kwargs: {num_cycles: 2}\n")
    line = ["--seed", "8", "--config", str(tmp_path / "c.yaml"), "--lr_scheduler_type", "cosine_with_restarts"]
    args = arguments.parse(line, seq2seq.Arguments)
    assert (args.seed, args.learning_rate, json.loads(args.lr_scheduler_kwargs)) == (8, 1e-3, {"num_cycles": 2})
    again = arguments.parse(args.argv, seq2seq.Arguments)
    assert (again.seed, again.learning_rate) == (8, 1e-3)


def test_tags_stand_at_the_first_tokens_of_words(tiny):
    tokenizer = pretrained.load_tokenizer(tiny)
    words = token_classification.TaggedWords([(["unbelievably", "path"], ["B-X", "O"])], tokenizer, ["B-X", "O"], 64)[0]
    pieces = len(tokenizer.tokenize("unbelievably"))
    assert pieces > 1
    assert words["labels"] == [-100, 0, *[-100] * (pieces - 1), 1, -100]
    assert words["input_ids"] == tokenizer("unbelievably path")["input_ids"]
    assert len(token_classification.TaggedWords([(["path"] * 9, ["O"] * 9)], tokenizer, ["O"], 5)[0]["labels"]) == 5


def test_few_tags_that_are_not_of_entities_are_mistakes():
    args = types.SimpleNamespace(data="a.conll", model="/nowhere", seed=1)
    for tags, says in (
        (("B-X", "0"), r"1 are not: \['0'\]"),
        (("X", "Y"), "neither a dir"),
        (("B-X", "0", "0"), "neither a"),
    ):
        found = [([str(i), *"abcdefghijk"], [*tags, *["O"] * (12 - len(tags))]) for i in range(30)]
        with pytest.raises(ValueError, match=says):
            token_classification.build(args, dealt(found))


def test_scores_of_tags():
    right = [["B-A", "I-A", "O"], ["B-B", "O"]]
    assert token_classification.tag_scores(right, right) == {"accuracy": 1.0, "f1": 1.0}
    found = [["B-A", "O", "O"], ["B-B", "O"]]
    assert token_classification.tag_scores(found, right) == {"accuracy": 0.8, "f1": 0.5}
    assert token_classification.tag_scores([["NN"]], [["VB"]]) == {"accuracy": 0.0}, "no entities"
    train = [(["a", "a", "b"], ["X", "Y", "Y"]), (["a"], ["X"])]
    assert token_classification.most_frequent_tags(train, [(["a", "b", "new"], ["?"] * 3)]) == [["X", "Y", "X"]]


def test_scores_of_written_texts():
    """Characters are words in Chinese."""
    assert seq2seq.rouge(["今天天气很好"], ["今天天气真好"])["rouge_1"] == pytest.approx(5 / 6)
    assert seq2seq.rouge(["今 天 天 气 很 好"], ["今天天气很好"]) == {"rouge_1": 1.0, "rouge_l": 1.0}
    assert seq2seq.words("Paddle 3.3发布了，Ok") == ["paddle", "3", "3", "发", "布", "了", "ok"]
    scores = seq2seq.rouge(["the cat sat", "a"], ["sat the cat", "b"])
    assert scores == {"rouge_1": 0.5, "rouge_l": pytest.approx(1 / 3)}
    assert seq2seq.rouge(["don ' t ."], ["Don't"]) == {"rouge_1": 1.0, "rouge_l": 1.0}
    assert seq2seq.best_lead([("x a b c d", "a b"), ("y c d e", "c d")]) == 3
    assert seq2seq.rouge([""], ["a"]) == {"rouge_1": 0.0, "rouge_l": 0.0}


def test_what_is_written_is_scored_against_the_whole_target(tiny):
    whole = "one two three four five six seven eight nine ten"
    tokenizer = pretrained.load_tokenizer("T5ForConditionalGeneration")
    data = seq2seq.Pairs([("a", whole)] * 2, tokenizer, seq2seq.Arguments(max_length=8, max_target_length=8))
    assert data.account("test") == "2 of 2 rows cut (100.0%), scores cover 16 of 24 target tokens, 0 sources cut"
    written = np.full([2, 40], seq2seq.IGNORED)
    written[0, :6] = data[0]["labels"][1:7]  # what training has of it
    written[1, :10] = tokenizer(whole)["input_ids"][1:11]
    scores = data.score(types.SimpleNamespace(predictions=written))
    assert scores == {"rouge_1": pytest.approx((12 / 16 + 1) / 2), "rouge_l": pytest.approx((12 / 16 + 1) / 2)}


def test_classes_of_a_hub_have_names_and_rows_with_hidden_ones_are_dropped_and_counted(monkeypatch):
    class Data(list):
        label_list = ["O", "B-LOC"]

    assert rows.records_of(Data([{"words": ["Ada"], "labels": [1]}])) == [{"words": ["Ada"], "labels": ["B-LOC"]}]
    named = types.SimpleNamespace(feature=types.SimpleNamespace(names=Data.label_list))
    train, test = (Data({"tokens": ["Rome", str(i)], "ner_tags": [1, tag]} for i in range(60)) for tag in (0, -1))
    for data in (train, test):
        data.label_list, data.features = None, {"ner_tags": named}
    train[0]["ner_tags"] = [-1, -1]
    assert [row["ner_tags"] for row in rows.records_of(train)[:2]] == [None, ["B-LOC", "O"]]
    read = []
    monkeypatch.setattr(rows, "_load", lambda *_: {"train": train, "test": test})
    monkeypatch.setattr(token_classification, "fine_tune", lambda trainer, score, *_: trainer)
    monkeypatch.setattr(token_classification, "build", lambda args, parts: read.append(parts))
    token_classification.run(["--data", "datasets:toy"])
    assert "61 without a label; scores cover 59 of 120 rows" in read[0].description
    assert sum(map(len, read[0].each(list).values())) == 59
