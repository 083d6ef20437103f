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
    return list(map(json.loads, text.splitlines()) if path.suffix == ".jsonl" else csv.DictReader(io.StringIO(text)))


@pytest.mark.representatives(count=3)
@pytest.mark.parametrize("name", RECIPES)
def test_the_run_of_a_recipe_is_applied(start, tmp_path, capsys, name):  # noqa: F811
    short = ["--max_length", "44"] if name == "language_model_sft" else []  # it generates token by token
    start(name, *two_steps(tmp_path / "out"), *short)
    inputs = ["Return the path", "unbelievably None"]
    predicted(capsys, tmp_path / "out", *inputs, "--output", tmp_path / "a.jsonl")
    found = rows_of(tmp_path / "a.jsonl")
    assert len(found) == 2
    for row in found:
        assert ("tags" if name == "token_classification" else "output") in row
        shares = row["probabilities"] if name == "token_classification" else [row["probability"]]
        assert all(0 < share <= 1 + 1e-6 for share in shares)
    assert len(predicted(capsys, tmp_path / "out", *inputs).splitlines()) == 2
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


CHARACTERS, MORE = "张 B-PER\n三 I-PER\n在 O\n京 B-LOC\n", "里 O\n的 O\n人 O\n有 O\n我 O\n们 O\n2010 O\n"
SPANS = {"text": "Ann Lee met 张三 in Rome.", "label": [[0, 7, "PER"], [12, 14, "PER"], [18, 22, "LOC"]]}


@pytest.mark.parametrize(
    ("suffix", "row", "text", "words"),
    [
        pytest.param("txt", CHARACTERS, "李四在京", list("李四在京"), marks=pytest.mark.slow),
        pytest.param("txt", CHARACTERS + MORE, "李四在京", list("李四在京"), marks=pytest.mark.slow, id="a number"),
        ("jsonl", json.dumps(SPANS), "Bob saw 李四, in Oslo", ["Bob", "saw", "李", "四", ",", "in", "Oslo"]),
    ],
)
def test_a_tagger_splits_texts_as_it_was_trained(start, tmp_path, capsys, suffix, row, text, words):  # noqa: F811
    for split, rows in (("train", 8), ("dev", 2), ("test", 2)):
        (tmp_path / f"{split}.{suffix}").write_text(f"{row}\n" * rows, encoding="utf-8")
    out = start("token_classification", *two_steps(tmp_path / "out"), "--data", str(tmp_path))
    assert "warning: the tokenizer does not know " in out, "the tiny model is English"
    predicted(capsys, tmp_path / "out", text, "--output", tmp_path / "a.jsonl")
    assert files.noted(tmp_path / "out")["tags"] == ([] if suffix == "jsonl" else ["B-LOC", "B-PER", "I-PER", "O"])
    (found,) = rows_of(tmp_path / "a.jsonl")
    assert found["words"] == words and len(found["tags"]) == len(words)


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
    again = predicted(capsys, tmp_path / "out", "nowhere.png", *images, __file__)
    assert [line.partition(": ")[0] for line in again.splitlines()] == list(map(str, images)) and printed in again
    with pytest.raises(SystemExit, match=r"nothing to predict. Received: .*dropped=\{'unreadable': 1\}"):
        predict.main([str(tmp_path / "out"), "nowhere.png"])
    assert "image cannot be read ([Errno 2] No such file or directory" in capsys.readouterr().err


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


def inputs_of(path, trained, **given):
    """Return the inputs in a file for a model that was trained so, and the notes on them."""
    found, notes = dict.fromkeys(("inputs", "encoding", "has_header", "text_column")), files.Notes()
    return predict.read_inputs(types.SimpleNamespace(**{**found, **given, "input": path}), trained, notes), notes


NAMED = {"text_column": "utterance", "label_column": "intent"}
ALPACA = {"source_field": "instruction + input", "target_field": "output"}


@pytest.mark.parametrize(
    ("recipe", "trained_on", "name", "content"),
    [
        ("text_classification", NAMED, "a.csv", 'id;utterance\n1;"译\n好"\n2;问\n'),
        ("text_classification", NAMED, "a.csv", 'id;text\n1;"译\n好"\n2;问\n'),
        ("text_classification", NAMED, "a.csv", '"译\n好"\n问\n'),
        ("text_classification", {"text_column": "1"}, "a.csv", '1;"译\n好"\n2;问\n'),
        ("seq2seq", ALPACA, "a.json", '[{"instruction": "译", "input": "好"}, {"instruction": "问", "input": ""}]'),
        ("seq2seq", ALPACA, "a.csv", "instruction,input\n译,好\n问,\n"),
        ("seq2seq", ALPACA, "a.jsonl", '{"prompt": "译\\n好"}\n{"prompt": "问"}'),
        ("seq2seq", {"source_field": "ask"}, "a.csv", 'id,ask,x\n1,"译\n好",2\n2,问,3\n'),
        ("seq2seq", {"source_field": "正文"}, "a.csv", 'article,summary\n"译\n好",x\n问,y\n'),
    ],
)
def test_a_file_is_read_as_the_file_of_the_training(tmp_path, capsys, recipe, trained_on, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    inputs, notes = inputs_of(tmp_path / name, {"recipe": recipe, "columns": trained_on})
    assert inputs == [("译\n好",), ("问",)]
    trained, read = {*trained_on.values()} - {*"0123456789"}, {*notes.columns.values()}
    assert ("Its columns are" in capsys.readouterr().err) == (bool(trained) and trained.isdisjoint(read))


def test_lines_of_a_txt_are_texts_unless_they_have_columns_or_tags(tmp_path, capsys):
    def read(content, recipe="text_classification", **given):
        (tmp_path / "a.txt").write_text(content, encoding="utf-8")
        trained = {"recipe": recipe, "columns": {"text_column": "0", "label_column": "1"}}
        return [text for (text,) in inputs_of(tmp_path / "a.txt", trained, **given)[0]]

    assert read("one\ta\ntwo\n") == ["one\ta", "two"]
    assert read("one\tbad\ntwo\tgood\n") == ["one", "two"]
    assert read("id\ttext\n1\tone\n2\ttwo\n", text_column="text") == ["one", "two"]
    assert read("text\none\n", has_header=True) == ["one"]
    assert read("I met Ann in the USA\nand so on\n", "token_classification") == ["I met Ann in the USA", "and so on"]
    assert capsys.readouterr().err == ""
    tagged = "Ann NNP B-PER\nmet VBD O\n\n我\tO\n在\tO\n京\tB_LOC\n"
    assert read(tagged, "token_classification") == [["Ann", "met"], ["我", "在", "京"]]
    assert capsys.readouterr().err == f"{tmp_path}/a.txt has tagged words: their tags are not read.\n"


@pytest.mark.parametrize(
    ("name", "content", "columns", "said"),
    [
        ("a.conll", "1\tAnn\tB-PER\n2\tLee\tI-PER\n", {"word_column": 1, "tag_column": 2}, ""),
        ("a.tsv", "1 Ann NOUN\n2 Lee NOUN\n", {"word_column": 1, "tag_column": 2}, ""),
        ("a.txt", "1 Ann x O\n2 Lee y O\n", {"word_column": 1, "tag_column": 2}, "Its columns are {'word_column': 1, "),
        ("a.conllu", "# text = Ann\n1\tAnn\t_\tX\t_\n2\tLee\t_\tX\t_\n", {"word_column": 1, "tag_column": 3}, ""),
        ("a.jsonl", '{"id": 1, "tokens": ["Ann", "Lee"]}\n', {}, None),
    ],
)
def test_the_words_of_a_tagged_file_are_read_as_in_the_training(tmp_path, capsys, name, content, columns, said):
    (tmp_path / name).write_text(content)
    trained = {"recipe": "token_classification", "columns": columns, "tags": ["NOUN", "O"]}
    assert inputs_of(tmp_path / name, trained)[0] == [(["Ann", "Lee"],)]
    told = f"{tmp_path / name} has tagged words: their tags are not read.\n{said}"
    err = capsys.readouterr().err
    assert err == "" if said is None else err.startswith(told) and (said or err == told)


def test_conversations_are_continued_from_their_last_question(tmp_path):
    turn = lambda role, text: {"from": role, "value": text}  # noqa: E731
    talk = [turn("human", "问"), turn("gpt", "答"), turn("human", "再问")]
    rows = [{"conversations": [*talk, turn("gpt", "再答")]}, {"conversations": talk}] * 20
    (tmp_path / "a.json").write_text(json.dumps([*rows, {"conversations": [turn("gpt", "答")]}]))
    inputs, notes = inputs_of(tmp_path / "a.json", {"recipe": "language_model_sft"})
    assert inputs == [((("user", "问"), ("assistant", "答"), ("user", "再问")),)] * 40
    assert notes.rows == 41 and notes.dropped == {"without a question": 1}


def test_an_output_of_several_lines_is_printed_as_one():
    predict.write([{"output": "first\n\x0csecond", "probability": 1.0}], None, out := io.StringIO())
    assert out.getvalue() == "first  second (1.000)\n"


def test_no_space_stands_between_chinese_characters():
    text = "张 伟 ， 在 北 京 写 Python 3 和 C 。"
    assert files.BETWEEN.sub("", text) == "张伟，在北京写 Python 3 和 C 。"
    assert files.BETWEEN.sub("", "two words, 두 단어") == "two words, 두 단어"


def test_a_set_of_labels_is_one_cell_and_an_empty_text_is_left_out(labels, tmp_path, capsys):
    assert predict.cells_of({"text": "x", "labels": ["new york", "a"]})["labels"] == "new york, a"
    predict.main([str(labels), "one", "", "two"])
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 and "scores cover 2 of 3 inputs: 1 without a text" in said.err


def test_padding_does_not_change_a_label(labels):
    together = predictors.Predictor(labels)([(text * n,) for n, text in enumerate(TEXTS, 1)])
    for n, (text, row) in enumerate(zip(TEXTS, together), 1):
        (alone,) = predictors.Predictor(labels)([(text * n,)])
        assert (alone["label"], alone["probability"]) == (row["label"], pytest.approx(row["probability"], abs=1e-5))


def test_pairs_are_read_from_arguments_and_lines(labels, tmp_path, capsys):
    labels_of_pairs = note(shutil.copytree(labels, tmp_path / "pairs"), pair=True)
    (tmp_path / "a.txt").write_text("a text\tits partner\nanother\tone\n")
    assert len(predicted(capsys, labels_of_pairs, "--input", tmp_path / "a.txt").splitlines()) == 2
    assert len(predicted(capsys, labels_of_pairs, *TEXTS[:4]).splitlines()) == 2
    (tmp_path / "a.txt").write_text("a text\n")
    with pytest.raises(SystemExit, match="Line 1 must be two texts with a tab between them.*a.txt"):
        predict.main([str(labels_of_pairs), "--input", str(tmp_path / "a.txt")])
    columns = {"text_column": "one", "text_pair_column": "other"}
    of_columns = note(shutil.copytree(labels, tmp_path / "columns"), pair=True, columns=columns)
    (tmp_path / "b.txt").write_text("id\tone\tother\n1\ta text\tits partner\n2\tanother\tone\n")
    assert len(predicted(capsys, of_columns, "--input", tmp_path / "b.txt").splitlines()) == 2
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


def test_a_closed_pipe_is_no_error(labels):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as ended:
            predict.main([str(labels), *TEXTS])
    assert ended.value.code == 1


WRONG = {"empty.csv": "", "blank.txt": "\n\n", "two.csv": "1;a text\n2;another\n"}
WRONG |= {"gap.csv": "id;text\n1;a text\n2; \n3;another\n4;\n", "gap.jsonl": '{"text": "a"}\n{"id": 2}\n'}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nowhere", "a text"], "no model of a finished run"),
        (["run"], "either inputs or `--input FILE`"),
        (["run", "a", "--output", "a.txt"], "must end in .csv or .jsonl"),
        (["run", "--input", "nowhere.csv"], "input file does not exist"),
        (["run", "--input", "."], "or is a folder; give images as arguments"),
        (["run", "--input", "empty.csv"], "The file has no rows"),
        (["run", "--input", "blank.txt"], "There is nothing to predict"),
        (["run", "", " "], "There is nothing to predict"),
        (["run", "--input", "two.csv"], r"Name the column with `--text_column`. Valid: \['0', '1'\]"),
        (["run", "--input", "gap.csv"], "Line 3 has no text; Line 5 has no text; 2 of 4 rows"),
        (["run", "--input", "gap.jsonl"], "Line 2 has no text; 1 of 2 rows"),
        (["masked", "a text"], "Predictions need a run of .*train one of these with this folder as `--model`"),
    ],
)
def test_what_cannot_be_labelled_is_said_in_one_line(labels, tmp_path, monkeypatch, argv, says):
    monkeypatch.chdir(tmp_path)
    for name, content in WRONG.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "run").symlink_to(labels)
    (tmp_path / "masked").mkdir()
    note(tmp_path / "masked", recipe="masked_lm_pretraining")
    with pytest.raises(SystemExit, match=f"^error: .*{says}.*Received: "):
        predict.main(argv)
