"""recipes/predict.py: the runs of every recipe with an output, files and standard input, CSV and JSONL."""

import codecs
import csv
import io
import json
import os
import shutil
import types

import numpy as np
import predict
import pytest
import test_recipes
from common import files, predictors
from PIL import Image
from test_recipes import start, two_steps  # noqa: F401 - a fixture

RECIPES = ("language_model_sft", "seq2seq", "token_classification")


def predicted(capsys, *argv):
    """Run predict.py; return what it printed."""
    capsys.readouterr()
    predict.main([str(word) for word in argv])
    return capsys.readouterr().out


def rows_of(path):
    text = path.read_text(encoding="utf-8-sig")
    return (
        list(map(json.loads, text.splitlines())) if path.suffix == ".jsonl" else list(csv.DictReader(io.StringIO(text)))
    )


INPUTS = {
    "language_model_sft": [f"{sentence}: " for sentence in test_recipes.SENTENCES[:2]],
    "seq2seq": ["Return the path of value", "name"],
    "token_classification": ["Return the path", "unbelievably None"],
}
OUTPUTS = {"token_classification": "tags"}


@pytest.mark.representatives(count=3)
@pytest.mark.parametrize("name", RECIPES)
def test_the_run_of_a_recipe_is_applied(start, tmp_path, capsys, name):  # noqa: F811
    short = ["--max_length", "44"] if name == "language_model_sft" else []  # it generates token by token
    start(name, *two_steps(tmp_path / "out"), *short)
    predicted(capsys, tmp_path / "out", *INPUTS[name], "--output", tmp_path / "a.jsonl")
    found = rows_of(tmp_path / "a.jsonl")
    assert len(found) == 2
    for row in found:
        assert OUTPUTS.get(name, "output") in row
        shares = row["probabilities"] if name == "token_classification" else [row["probability"]]
        assert all(0 < share <= 1 + 1e-6 for share in shares)
    assert len(predicted(capsys, tmp_path / "out", *INPUTS[name]).splitlines()) == 2
    if name == "token_classification":
        assert [row["words"] for row in found] == [["Return", "the", "path"], ["unbelievably", "None"]]
        assert [len(row["tags"]) for row in found] == [3, 2]
        assert [row["entities"] for row in found if "B-ARGUMENT" not in row["tags"]] in ([[]], [[], []], [])


def test_long_texts_are_tagged_to_their_ends(start, tmp_path, capsys):  # noqa: F811
    start("token_classification", *two_steps(tmp_path / "out"), "--max_length", "16")
    text = " ".join(f"word{i} of unbelievably" for i in range(40))
    predicted(capsys, tmp_path / "out", text, "--output", tmp_path / "a.jsonl")
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert row["words"] == text.split() and len(row["tags"]) == len(row["probabilities"]) == 120


def write_splits(folder, suffix, row):
    for split, rows in (("train", 8), ("dev", 2), ("test", 2)):
        (folder / f"{split}.{suffix}").write_text(row * rows, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "里 O\n的 O\n人 O\n有 O\n我 O\n们 O\n2010 O\n"], ids=["characters", "a number"])
def test_a_tagger_of_characters_splits_sentences_as_it_was_trained(start, tmp_path, capsys, more):  # noqa: F811
    write_splits(tmp_path, "txt", f"张 B-PER\n三 I-PER\n在 O\n京 B-LOC\n{more}\n")
    out = start("token_classification", *two_steps(tmp_path / "out"), "--data", str(tmp_path))
    assert "warning: the tokenizer does not know " in out, "the tiny model is English"
    predicted(capsys, tmp_path / "out", "李四在京", "--output", tmp_path / "a.jsonl")
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert row["words"] == list("李四在京") and len(row["tags"]) == 4


def test_a_tagger_of_texts_with_spans_splits_texts_as_it_was_trained(start, tmp_path, capsys):  # noqa: F811
    row = {"text": "Ann Lee met 张三 in Rome.", "label": [[0, 7, "PER"], [12, 14, "PER"], [18, 22, "LOC"]]}
    write_splits(tmp_path, "jsonl", json.dumps(row) + "\n")
    start("token_classification", *two_steps(tmp_path / "out"), "--data", str(tmp_path))
    predicted(capsys, tmp_path / "out", "Bob saw 李四, in Oslo", "--output", tmp_path / "a.jsonl")
    (found,) = rows_of(tmp_path / "a.jsonl")
    assert found["words"] == ["Bob", "saw", "李", "四", ",", "in", "Oslo"] and len(found["tags"]) == 7


@pytest.mark.slow
def test_images_are_labelled(start, tmp_path, capsys):  # noqa: F811
    start("image_classification", *two_steps(tmp_path / "out"))
    for number in (1, 2):
        pixels = np.random.default_rng(number).integers(255, size=(8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    images = [tmp_path / "1.png", tmp_path / "2.png"]
    predicted(capsys, tmp_path / "out", *images, "--output", tmp_path / "a.csv")
    found = rows_of(tmp_path / "a.csv")
    assert [row["image"] for row in found] == list(map(str, images)) and {row["label"] for row in found} <= set("56789")
    printed = predicted(capsys, tmp_path / "out", images[0])
    assert printed.startswith(f"{images[0]}: "), "the name of the file"
    with pytest.raises(SystemExit, match="image cannot be read .*image='nowhere.png'"):
        predict.main([str(tmp_path / "out"), "nowhere.png"])


@pytest.fixture(scope="module")
def labels(tiny, tmp_path_factory):
    """The folder of a classifier of texts."""
    folder = tmp_path_factory.mktemp("labels")
    model = predictors.transformers.AutoModelForSequenceClassification.from_pretrained(tiny)
    model.config.id2label, model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    model.save_pretrained(str(folder))
    predictors.load_tokenizer(tiny).save_pretrained(str(folder))
    return note(folder)


def note(folder, **more):
    """Note what predictions need in the folder of a model, as a run does; return the folder."""
    noted = {"recipe": "text_classification", "max_length": 64, "pair": False, **more}
    (folder / "prediction.json").write_text(json.dumps(noted))
    return folder


@pytest.fixture(scope="module")
def labels_of_pairs(labels, tmp_path_factory):
    return note(shutil.copytree(labels, tmp_path_factory.mktemp("pairs") / "run"), pair=True)


TEXTS = [f"Return the {word}" for word in ("path", "value", "name", "delta", "café")]
FILES = {
    "a.txt": "\n".join(TEXTS) + "\n\n",
    "named.csv": "id;text\n" + "".join(f"{i};{text}\n" for i, text in enumerate(TEXTS)),
    "bare.csv": "\n".join(TEXTS) + "\n",
    "a.jsonl": "".join(json.dumps({"text": text, "label": "?"}) + "\n" for text in TEXTS),
}


@pytest.mark.representatives
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("output", ["out.csv", "out.jsonl"])
def test_files_are_labelled_in_batches(labels, tmp_path, capsys, monkeypatch, name, output):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    sizes, call = [], predictors.Labels._apply
    monkeypatch.setattr(predictors.Labels, "_apply", lambda self, batch: sizes.append(len(batch)) or call(self, batch))
    monkeypatch.setattr(predict, "BATCH", 2)
    predicted(capsys, labels, "--input", tmp_path / name, "--output", tmp_path / output)
    found = rows_of(tmp_path / output)
    assert [row["text"] for row in found] == TEXTS and sizes == [2, 2, 1]
    for row in found:
        each = row["probabilities"] if output == "out.jsonl" else {n: float(row[f"p({n})"]) for n in ("bad", "good")}
        assert sum(each.values()) == pytest.approx(1) and each[row["label"]] == max(each.values())
        assert float(row["probability"]) == max(each.values())


def test_a_csv_begins_with_the_mark_that_excel_needs_and_is_read_back(labels, tmp_path, capsys):
    predicted(capsys, labels, "评论", "中文", "--output", tmp_path / "a.CSV")
    assert (tmp_path / "a.CSV").read_bytes().startswith(codecs.BOM_UTF8 + b"text,label,")
    once = rows_of(tmp_path / "a.CSV")
    assert [row["text"] for row in once] == ["评论", "中文"]
    predicted(capsys, labels, "--input", tmp_path / "a.CSV", "--output", tmp_path / "b.jsonl")
    assert [row["label"] for row in rows_of(tmp_path / "b.jsonl")] == [row["label"] for row in once]
    assert not (tmp_path / "b.jsonl").read_bytes().startswith(codecs.BOM_UTF8)


@pytest.mark.parametrize(
    ("trained_on", "content"),
    [
        ("utterance", "id;utterance\n" + "".join(f"{i};{text}\n" for i, text in enumerate(TEXTS))),
        ("utterance", "id;text\n" + "".join(f"{i};{text}\n" for i, text in enumerate(TEXTS))),
        ("utterance", "\n".join(TEXTS)),
        ("1", "".join(f"{i};{text}\n" for i, text in enumerate(TEXTS))),
    ],
    ids=["its own name", "a usual name", "one column", "its own place"],
)
def test_a_file_is_read_as_the_file_of_the_training(labels, tmp_path, capsys, trained_on, content):
    run = note(shutil.copytree(labels, tmp_path / "run"), columns={"text_column": trained_on, "label_column": "intent"})
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    predicted(capsys, run, "--input", tmp_path / "a.csv", "--output", tmp_path / "out.jsonl")
    assert [row["text"] for row in rows_of(tmp_path / "out.jsonl")] == TEXTS


def inputs_of(path, trained):
    """Return the inputs in a file for a model that was trained so, and the notes on them."""
    found, notes = dict.fromkeys(("inputs", "encoding", "has_header", "text_column")), files.Notes()
    return predict.read_inputs(types.SimpleNamespace(**{**found, "input": path}), trained, notes), notes


ALPACA = {"source_field": "instruction + input", "target_field": "output"}


@pytest.mark.parametrize(
    ("trained_on", "name", "content"),
    [
        (ALPACA, "a.json", '[{"instruction": "译", "input": "好", "output": "x"}, {"instruction": "问", "input": ""}]'),
        (ALPACA, "a.csv", "instruction,input\n译,好\n问,\n"),
        (ALPACA, "a.jsonl", '{"prompt": "译\\n好"}\n{"prompt": "问"}'),
        ({"source_field": "ask"}, "a.csv", 'id,ask,x\n1,"译\n好",2\n2,问,3\n'),
        ({"source_field": "正文"}, "a.csv", 'article,summary\n"译\n好",x\n问,y\n'),
    ],
    ids=["alpaca", "alpaca in a table", "a usual name", "its own name", "another usual name"],
)
def test_prompts_are_read_as_in_the_training(tmp_path, trained_on, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    inputs, _ = inputs_of(tmp_path / name, {"recipe": "seq2seq", "columns": trained_on})
    assert inputs == [("译\n好",), ("问",)]


def test_conversations_are_continued_from_their_last_question(tmp_path):
    turn = lambda role, text: {"from": role, "value": text}  # noqa: E731
    talk = [turn("human", "问"), turn("gpt", "答"), turn("human", "再问")]
    rows = [{"conversations": [*talk, turn("gpt", "再答")]}, {"conversations": talk}] * 20
    (tmp_path / "a.json").write_text(json.dumps([*rows, {"conversations": [turn("gpt", "答")]}]))
    inputs, notes = inputs_of(tmp_path / "a.json", {"recipe": "language_model_sft"})
    assert inputs == [((("user", "问"), ("assistant", "答"), ("user", "再问")),)] * 40
    assert notes.rows == 41 and notes.dropped == {"without a question": 1}


def test_no_space_stands_between_chinese_characters():
    text = "张 伟 ， 在 北 京 写 Python 3 和 C 。"
    assert files.BETWEEN.sub("", text) == "张伟，在北京写 Python 3 和 C 。"
    assert files.BETWEEN.sub("", "two words, 두 단어") == "two words, 두 단어"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.csv", "", "The file has no rows. Received: source="),
        ("two.csv", "1;a text\n2;another\n", r"Name the column with `text_column`. Valid: \['0', '1'\]"),
        ("gap.csv", "id;text\n1;a text\n2; \n3;another\n4;\n", "Line 3 has no text; Line 5 has no text; 2 of 4 rows"),
        ("gap.jsonl", '{"text": "a"}\n{"id": 2}\n', "Line 2 has no text; 1 of 2 rows"),
    ],
)
def test_a_file_without_texts_is_refused(labels, tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit, match=says):
        predict.main([str(labels), "--input", str(tmp_path / name)])


def test_padding_does_not_change_a_label(labels):
    together = predictors.Predictor(labels)([(text * n,) for n, text in enumerate(TEXTS, 1)])
    for n, (text, row) in enumerate(zip(TEXTS, together), 1):
        (alone,) = predictors.Predictor(labels)([(text * n,)])
        assert (alone["label"], alone["probability"]) == (row["label"], pytest.approx(row["probability"], abs=1e-5))


def test_pairs_are_read_from_arguments_and_lines(labels_of_pairs, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a text\tits partner\nanother\tone\n")
    assert len(predicted(capsys, labels_of_pairs, "--input", tmp_path / "a.txt").splitlines()) == 2
    assert len(predicted(capsys, labels_of_pairs, *TEXTS[:4]).splitlines()) == 2
    (tmp_path / "a.txt").write_text("a text\n")
    with pytest.raises(SystemExit, match="Line 1 must be two texts with a tab between them.*a.txt"):
        predict.main([str(labels_of_pairs), "--input", str(tmp_path / "a.txt")])
    with pytest.raises(SystemExit, match="reads pairs: give an even number of texts"):
        predict.main([str(labels_of_pairs), *TEXTS])


def test_what_is_left_out_of_a_text_is_said(labels, tmp_path, capsys):
    predicted(capsys, labels, "one " * 70, "one", "--output", tmp_path / "a.jsonl")
    first, second = rows_of(tmp_path / "a.jsonl")
    assert first["tokens left out"] == 8 and "tokens left out" not in second
    assert predicted(capsys, labels, "one " * 70).endswith("; 8 tokens left out\n")
    (tmp_path / "a.txt").write_text("one\n\n" + "one " * 70)
    predict.main([str(labels), "--input", str(tmp_path / "a.txt")])
    assert capsys.readouterr().err == "scores cover 1 of 3 inputs: 1 without a text, 1 read in part.\n"


def test_a_folder_of_no_output_is_refused(start, tmp_path):  # noqa: F811
    start("masked_lm_pretraining", *two_steps(tmp_path / "out"))
    with pytest.raises(SystemExit, match="Predictions need a run of .*Received: .*recipe='masked_lm_pretraining'"):
        predict.main([str(tmp_path / "out"), "a text"])


def test_a_closed_pipe_is_no_error(labels):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as ended:
            predict.main([str(labels), *TEXTS])
    assert ended.value.code == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nowhere", "a text"], "no model of a finished run"),
        (["run"], "either inputs or `--input FILE`"),
        (["run", "a", "--output", "a.txt"], "must end in .csv or .jsonl"),
        (["run", "--input", "nowhere.csv"], "input file does not exist"),
        (["run", "--input", "."], "or is a folder; give images as arguments"),
    ],
)
def test_what_cannot_be_labelled_is_said_in_one_line(labels, argv, says):
    with pytest.raises(SystemExit, match=f"^error: .*{says}.*Received: "):
        predict.main([str(labels) if word == "run" else word for word in argv])
