"""The readers of recipes/common: what each source gives, how splits are drawn, and what every bad input is told."""

import functools
import json
import sys
import sysconfig
import types
from collections import Counter
from pathlib import Path

import pytest
from common import files, library_data, rows, text_data
from common.text_data import load_splits
from paddlenlp.datasets import dataset as datasets_of_paddlenlp
from paddlenlp.transformers import BertTokenizer
from text_classification import Texts

ROWS = [(f"Text number {i}, in full.", ("good", "bad")[i % 2]) for i in range(60)]


def write(path, rows, header=None):
    """Writes (text, label) or (text, pair, label) rows in the format of the path's ending."""
    if path.suffix == ".jsonl":
        names = header or ("text", "label")
        lines = [json.dumps(dict(zip(names, row)), ensure_ascii=False) for row in rows]
    elif path.suffix == ".tsv":
        lines = ["\t".join(map(str, row)) for row in ([header] if header else []) + rows]
    else:
        quoted = [['"' + str(cell).replace('"', '""') + '"' for cell in row] for row in rows]
        lines = [",".join(row) for row in ([header] if header else []) + quoted]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def texts(rows):
    return {text for text, _ in rows}


def everything(splits):
    return splits.train + splits.validation + splits.test


@pytest.fixture
def part_of_library(tmp_path, monkeypatch):
    """Have Python's own library be every third file of it: parsing all takes seconds."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(root.rglob("*.py")) if library_data.NOT_LIBRARY.isdisjoint(p.relative_to(root).parts)]
    for number, path in enumerate(files[::3]):
        (tmp_path / f"{number}.py").symlink_to(path)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(text_data, "docstring_kinds", library_data.docstring_kinds.__wrapped__)
    monkeypatch.setattr(library_data, "functions", functools.cache(library_data.functions.__wrapped__))


def test_the_tasks_of_the_library_have_right_answers(part_of_library):
    tagged = library_data.tagged_docstrings()
    assert len(tagged.train) > 200
    words, tags = next((w, t) for w, t in tagged.train if "B-EXCEPTION" in t)
    endings = ("Error", "Exception", "Interrupt", "Iteration", "Warning", "Exit")
    assert words[tags.index("B-EXCEPTION")].endswith(endings)
    assert all(name and name == name.lower() for (_, name), _ in library_data.named_functions().train)


@pytest.mark.slow
def test_docstrings_have_equal_classes_and_no_text_twice(part_of_library):
    docstrings = load_splits()
    assert docstrings.labels == ["class", "function", "module"]
    for part, least in ((docstrings.train, 40), (docstrings.validation, 5), (docstrings.test, 40)):
        counts = Counter(label for _, label in part)
        assert set(counts) == {0, 1, 2} and len(set(counts.values())) == 1 and min(counts.values()) >= least
    openings = [tuple(text_data.re.findall(r"\w+", text.casefold())[:4]) for text, _ in everything(docstrings)]
    assert len(openings) == len(set(openings))


MODULE = '''"""Module {i} is documented here.

Not in this paragraph, which is another."""
class A:
    """Class {i} is
    documented here."""
    def f(self):
        """Method {i} is documented here."""
        def g():
            "too short"
async def h():
    """Coroutine {i} is documented here."""
'''


def test_labels_are_those_of_the_syntax_tree_and_repeated_texts_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(text_data, "docstring_kinds", library_data.docstring_kinds.__wrapped__)
    for i in range(40):
        (tmp_path / f"m{i}.py").write_text(MODULE.format(i=i))
    shared = '"""Seen in two kinds once."""\ndef f():\n    """Seen in TWO kinds, twice."""\n'
    (tmp_path / "shared.py").write_text(shared)
    for folder in ("test", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text('"""Foreign text is here too."""\n')
    (tmp_path / "latin.py").write_bytes(b'# coding: latin-1\n"""Caf\xe9 text in Latin one."""\n')
    splits = load_splits("docstrings")
    kinds = {"Module": "module", "Class": "class", "Method": "function", "Coroutine": "function", "Café": "module"}
    assert {text.split()[0] for text, _ in everything(splits)} <= set(kinds), "neither Seen nor Foreign"
    assert all(kinds[text.split()[0]] == splits.labels[label] for text, label in everything(splits))
    assert all(text.endswith("is documented here.") for text in texts(everything(splits)) if text[:4] != "Café")
    assert len(everything(splits)) == len(texts(everything(splits)))


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
@pytest.mark.parametrize("header", [None, ("text", "label"), ("body", "stars")])
def test_all_kinds_of_files_give_the_same_rows(tmp_path, suffix, header):
    rows = [(text + ' He said "no".', label) for text, label in ROWS]
    path = write(tmp_path / f"reviews{suffix}", rows, header)
    named = {"text_column": "body", "label_column": "stars"} if header == ("body", "stars") else {}
    splits = load_splits(path, **named)
    assert splits.labels == ["bad", "good"]
    assert sorted((text, splits.labels[label]) for text, label in everything(splits)) == sorted(rows)


@pytest.mark.parametrize("text, label", [("body", "stars"), (2, 0), ("2", "0")])
def test_columns_are_names_or_positions(tmp_path, text, label):
    rows = [(stars, "x", body) for body, stars in ROWS]
    path = write(tmp_path / "a.csv", rows, ("stars", "id", "body"))
    splits = load_splits(path, text_column=text, label_column=label, has_header=True)
    assert texts(everything(splits)) == texts(ROWS)


@pytest.mark.parametrize("names", files.PAIRS)
def test_pairs_are_found_by_the_usual_names(tmp_path, names):
    rows = [(text, f"Pair of {i}", label) for i, (text, label) in enumerate(ROWS)]
    path = write(tmp_path / "pairs.tsv", rows, (*names, "label"))
    splits = load_splits(path)
    assert {type(text) for text, _ in everything(splits)} == {tuple}
    assert splits.notes.columns == dict(zip(("text_column", "text_pair_column", "label_column"), (*names, "label")))
    assert {type(text) for text, _ in everything(load_splits(path, text_column=names[0]))} == {str}
    bare = load_splits(write(tmp_path / "bare.tsv", rows))
    assert everything(bare) == everything(splits), "three columns without names"


def test_a_tsv_takes_quotes_as_they_are_and_a_csv_undoes_them(tmp_path):
    odd = '"Quoted" at first, then "open'
    tsv = load_splits(write(tmp_path / "a.tsv", [*ROWS, (odd, "good")]))
    assert odd in texts(everything(tsv))
    lines = [f'"{text}",{label}' for text, label in ROWS] + ['"two\nlines, ""quoted""",good']
    (tmp_path / "b.csv").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    assert 'two\nlines, "quoted"' in texts(everything(load_splits(tmp_path / "b.csv")))


@pytest.mark.parametrize("mark", ";|\t,")
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("header", ["", "text{}label\n"])
def test_delimiters_are_detected(tmp_path, mark, suffix, header):
    path = tmp_path / f"a{suffix}"
    path.write_text(header.format(mark) + "".join(f"{text.replace(',', '')}{mark}{label}\n" for text, label in ROWS))
    assert len(everything(load_splits(path))) == 60


def test_a_usual_name_that_no_row_has_as_its_label_is_a_header(tmp_path):
    splits = load_splits(write(tmp_path / "a.tsv", ROWS, ("utterance", " Intent")), label_column="Intent")
    assert list(splits.notes.columns.values()) == ["utterance", "Intent"] and len(everything(splits)) == 60
    rows = [("class", "class"), *((text, "class" if label == "good" else "module") for text, label in ROWS)]
    assert len(everything(load_splits(write(tmp_path / "b.tsv", rows)))) == 61, "here it is a label"


def test_the_number_of_training_rows_of_each_label_is_told(tmp_path):
    intents = [(f"please change my setting {i} to {n}", f"change_{i}") for n in range(12) for i in range(77)]
    found = load_splits(write(tmp_path / "banking.csv", intents, ("text", "category")))
    assert text_data.re.search(r"training rows by label: \d to \d+ in each of 77 classes\.", found.description)
    rows = [(int(i % 3 > 0), f"the {'cat sees' if i % 3 else 'sees cat'} {i}") for i in range(350)]
    found = load_splits(write(tmp_path / "cola.tsv", rows), label_column="0", text_column="1")
    assert "training rows by label: 0 92, 1 145." in found.description


def test_numeric_labels_are_ordered_as_numbers(tmp_path):
    rows = [(f"Row number {i}", i % 11) for i in range(220)]
    for path in (write(tmp_path / "a.jsonl", rows), write(tmp_path / "a.tsv", rows)):
        assert load_splits(path).labels == [str(i) for i in range(11)]


def test_a_folder_keeps_its_splits_and_names_what_it_lacks(tmp_path):
    write(tmp_path / "train.tsv", ROWS)
    write(tmp_path / "test.csv", [("Unseen text", "bad"), ROWS[0]], ("text", "label"))
    (tmp_path / "README.md").write_text("not data")
    splits = load_splits(tmp_path)
    assert [(text, splits.labels[label]) for text, label in splits.test] == [("Unseen text", "bad"), ROWS[0]]
    assert len(splits.train) + len(splits.validation) == 60 and splits.validation
    assert "(validation taken from its training rows, by a hash of each row)" in splits.description
    assert ROWS[0][0] in texts(splits.train) and "in the test rows as well: 1." in splits.description
    write(tmp_path / "dev.jsonl", ROWS[:5])
    splits = load_splits(tmp_path)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (60, 5, 2)
    assert "taken from" not in splits.description


def test_splits_depend_on_the_text_alone(tmp_path):
    first = load_splits(write(tmp_path / "a.tsv", ROWS))
    other = load_splits(write(tmp_path / "b.tsv", [(text.upper(), label) for text, label in ROWS[::-1]]))
    assert {text.upper() for text in texts(first.test)} == texts(other.test) and first.test
    assert len(first.train) > len(first.test) > len(first.validation) > 0
    sizes = [len(part) for part in rows.deal([f"row {i}" for i in range(1000)], str, "rows").each(list).values()]
    assert sum(sizes) == 1000 and abs(sizes[1] - 100) < 40 and abs(sizes[2] - 200) < 50


def test_equal_texts_share_a_split_and_rare_classes_are_for_training(tmp_path):
    rare = [(f"Rare text {i}", f"rare {i}") for i in range(20)]
    splits = load_splits(write(tmp_path / "a.tsv", [*ROWS, *ROWS, *rare]))
    assert not texts(splits.train) & texts(splits.test)
    assert not texts(splits.train) & texts(splits.validation)
    assert texts(rare) <= texts(splits.train)


def test_few_samples_are_seeded_equal_and_nested():
    small, large, other = (text_data.sample(ROWS, n, seed) for n, seed in ((5, 1), (10, 1), (5, 2)))
    assert Counter(label for _, label in small) == {"good": 5, "bad": 5}
    assert small == text_data.sample(ROWS, 5, 1) and texts(small) < texts(large) and texts(small) != texts(other)


def tsv(rows):
    return "".join(f"{text}\t{label}\n" for text, label in rows)


GOOD = tsv(ROWS)


def of_file(name, content, says, **options):
    return {name: content}, name, options, says


PAIR_IN_TRAIN = {"train.tsv": "premise\thypothesis\tlabel\n" + tsv((f"{t}\tb", y) for t, y in ROWS)}
PAIR_IN_TRAIN["test.tsv"] = "text\tlabel\na\tgood\n"
THREE = tsv((f"to category\t{text}", label) for text, label in ROWS)
UNIQUE = tsv((text, f"id{i}") for i, (text, _) in enumerate(ROWS))
UNKNOWN = "id,body,by,stars\n" + "".join(f'{i},"{text}",someone,{label}\n' for i, (text, label) in enumerate(ROWS))
LATIN = GOOD.encode() + b"caf\xe9\tx\n"
LISTS = json.dumps([{"text": text, "label": [label]} for text, label in ROWS])
MISTAKES = {  # name: (files, source, options, what the message says)
    "missing file": ({}, "a.tsv", {}, "The source does not exist. Accepted: .*docstrings"),
    "unknown kind": ({}, "sql:table", {}, "The source does not exist. Accepted: .*datasets:NAME"),
    "wrong ending": of_file("a.xlsx", "x", r"must end in .csv, .tsv, .txt, .json"),
    "empty": of_file("a.tsv", "", "The file has no rows"),
    "only a header": of_file("a.csv", "text,label\n", "The file has no rows"),
    "no objects": of_file("a.jsonl", "\n", "The file has no rows"),
    "one label": of_file("a.tsv", tsv((t, "x") for t, _ in ROWS), r"two labels or more.*\['x'\]"),
    "missing column": of_file("a.tsv", GOOD + "no tab\n", "Line 61 must have 2 columns, not 1"),
    "column too many": of_file("a.tsv", GOOD + "a tab\tin it\tgood\n", "Line 61 must have 2 columns, not 3"),
    "missing key": of_file("a.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b"}', "Line 3 has no label"),
    "unique labels": of_file("a.tsv", UNIQUE, "60 of 60 rows have a unique .*label_column='1'", has_header=False),
    "one name twice": of_file("a.csv", "text,label,text\na,b,c\n", r"the same name: \['text'\]"),
    "pair in train alone": (PAIR_IN_TRAIN, ".", {}, "need the columns of the training rows"),
    "text is a list": of_file("a.jsonl", '{"text": ["a"], "label": 1}', "Row 1: a text is a list or a dict"),
    "no label": of_file("a.jsonl", '{"sentence1": "a", "sentence2": "b", "idx": 1}', "Name .* with `--label_column`"),
    "constant first column": of_file("a.tsv", THREE, r"with `--text_column`. Valid: \['0', '1', '2'\]"),
    "four unknown names": of_file("a.csv", UNKNOWN, r"\['id', 'body', 'by', 'stars'\]: .*`--text_column` and `--label"),
    "broken json": of_file("a.jsonl", '{"text": "a", "label": 1}\n{"text"', "after line 1 cannot be read"),
    "json list": of_file("a.jsonl", "[1, 2]", "at the top cannot be read: not a JSON object"),
    "not UTF-8": of_file("a.tsv", LATIN, "Line 61 is not UTF-8.*`--encoding cp1252` or `big5`"),
    "many wrong rows": of_file("a.tsv", GOOD + "no tab\n" * 4, "Line 61 must .*; Line 63 .*; 4 of 64 rows are wrong"),
    "many empty rows": of_file("a.tsv", GOOD + " \tgood\n" * 4, "Line 61 has no text; .*; 4 of 64 rows are wrong"),
    "scores that are words": of_file("a.tsv", GOOD, "Scores must be numbers.*label='good'", kind="scores"),
    "scores that are lists": of_file("a.json", LISTS, "of the kind labels", kind="scores"),
    "a separator of classes": of_file("a.tsv", GOOD, "of the kind labels", kind="classes", label_separator="|"),
    "open quote": of_file("a.csv", 'a,x\n"b,y\nc,x\n', "after line 1 cannot be read"),
    "unknown name": of_file("a.csv", "text,label\na,b\n", r"\['text', 'label'\].*label_column='x'", label_column="x"),
    "position too high": of_file("a.tsv", GOOD, r"Valid: \['0', '1'\].*label_column=2", label_column=2),
    "no usual name": of_file("a.csv", "a,b,c\n1,2,3\n", r"`--text_column`. Valid: \['a', 'b', 'c'\]", has_header=True),
    "same column": of_file("a.tsv", GOOD, "different columns", text_column=1),
    "doubtful header": of_file(
        "a.tsv", "body\tstars\n" + GOOD, r"\['body', 'stars'\]: .*`--label_column`; .*has_header F"
    ),
    "unknown encoding": of_file("a.tsv", GOOD, "Python does not know this encoding.*encoding='cp0'", encoding="cp0"),
    "one column": of_file("a.csv", "a\nb\n", r"Valid: \['0'\] \(numbers: the file has no column names\)"),
    "no train file": ({"test.tsv": GOOD}, ".", {}, "The folder must have one train file"),
    "two train files": ({"train.tsv": GOOD, "train.csv": "a,b\n"}, ".", {}, r"\['train.csv', 'train.tsv'\]"),
    "new label": ({"train.tsv": GOOD, "test.tsv": "a\tok\nb\tok\n"}, ".", {}, r"test rows have labels .*\['ok'\]"),
    "too few to split": of_file("a.tsv", "a\tx\nb\ty\n" * 2, "No rows are left for", has_header=False),
}


def test_a_label_of_few_rows_is_for_training(tmp_path):
    rows = [(text, f"{label},rare{i}" if i in (3, 9, 15, 20) else label) for i, (text, label) in enumerate(ROWS)]
    splits = load_splits(write(tmp_path / "a.tsv", rows), label_separator=",")
    assert {*splits.labels} == {"bad", "good", *(f"rare{i}" for i in (3, 9, 15, 20))}
    assert sorted(texts(everything(splits))) == sorted(texts(ROWS)) and splits.test and splits.validation


@pytest.mark.parametrize("files, source, options, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_a_clear_answer(tmp_path, monkeypatch, files, source, options, message):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"{message}") as info:
        load_splits(source, **options)
    assert text_data.re.search(r" Received: \w+=.*\.$", str(info.value))


def test_hugging_face_class_labels_get_their_names_and_hidden_ones_are_left_out(monkeypatch):
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["zero", "acceptable"])
    features = datasets.Features({"sentence": datasets.Value("string"), "label": label})

    def part(rows):
        return datasets.Dataset.from_dict({"sentence": [r[0] for r in rows], "label": [r[1] for r in rows]}, features)

    found = {"train": part([(t, i % 2) for i, (t, _) in enumerate(ROWS)]), "test": part([("Hidden text", -1)])}
    seen = []
    loader = sys.modules["datasets.load"]
    monkeypatch.setattr(loader, "load_dataset", lambda *a: seen.append(a) or datasets.DatasetDict(found))
    splits = load_splits("datasets:glue:cola")
    assert seen == [("glue", "cola")] and splits.labels == ["acceptable", "zero"]
    assert "Hidden text" not in texts(everything(splits)) and splits.test
    assert dict(everything(splits))[ROWS[0][0]] == splits.labels.index("zero")


@pytest.mark.parametrize("hidden", [{"label": -1.0}, {}])
def test_hidden_scores_of_a_hub_and_splits_without_a_label_are_left_out(monkeypatch, hidden):
    train = [{"idx": i, "sentence": text, "label": i % 50 / 10 - 1} for i, (text, _) in enumerate(ROWS)]
    found = {"train": train, "test": [{"idx": 0, "sentence": "Hidden text", **hidden}] * 20}
    monkeypatch.setattr(rows, "_load", lambda *_: found)
    splits = load_splits("datasets:glue:stsb")
    assert splits.kind == "scores" and len(everything(splits)) == 60
    assert "20 without a label; scores cover 60 of 80 rows" in splits.description


class ToyReviews(datasets_of_paddlenlp.DatasetBuilder):
    """A data set of the kind that PaddleNLP ships."""

    SPLITS = {"train": ROWS, "dev": [("Other text", "bad")]}

    def _get_data(self, mode, **kwargs):
        return mode

    def _read(self, mode):
        yield from ({"text": text, "label": label} for text, label in self.SPLITS[mode])

    def get_labels(self):
        return ["good", "bad"]


def test_a_paddlenlp_set(tmp_path, monkeypatch):
    module = types.SimpleNamespace(ToyReviews=ToyReviews)
    monkeypatch.setitem(sys.modules, "paddlenlp.datasets.toy_reviews", module)
    monkeypatch.setattr(datasets_of_paddlenlp, "DATA_HOME", str(tmp_path))
    splits = load_splits("paddlenlp:toy_reviews")
    assert splits.labels == ["bad", "good"] and splits.validation == [("Other text", 0)]
    assert sorted((t, splits.labels[n]) for t, n in splits.train + splits.test) == sorted(ROWS)
    assert "paddlenlp:toy_reviews (test taken from" in splits.description


@pytest.mark.parametrize("hub, module", [("paddlenlp", "paddlenlp.datasets"), ("datasets", "datasets.load")])
def test_a_hub_out_of_reach_is_a_value_error_with_its_cause(monkeypatch, hub, module):
    def offline(*args, **kwargs):
        raise ConnectionError("no route to host")

    pytest.importorskip(module)
    monkeypatch.setattr(sys.modules[module], "load_dataset", offline)
    with pytest.raises(ValueError, match=f"cannot load.*no route.*Received: source='{hub}:clue', config='t'") as info:
        load_splits(f"{hub}:clue:t")
    assert isinstance(info.value.__cause__, ConnectionError)


# For the Trainer.


def tokenizer_of(folder, *words, **options):
    """Return a tokenizer that knows some words."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    return BertTokenizer(str(folder / "vocab.txt"), **options)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_of(tmp_path_factory.mktemp("vocab"), "one", "two", "three", "four")


def splits_of(rows):
    return text_data.Splits(rows, rows, rows, "made up", labels=["a", "b", "c"])


def test_what_is_cut_is_counted(tokenizer):
    made = [("one", 0)] * 18 + [("one two three", 1), (("two", "three"), 0)]
    whole, cut = (Texts(made, tokenizer, length, splits_of(made)) for length in (5, 4))
    assert whole.account("train") == "0 of 20 rows cut, 0 of 64 tokens lost"
    assert cut.account("train") == "2 of 20 rows cut (10.0%), 2 of 64 tokens lost"
    assert cut.account("test") == "2 of 20 rows cut (10.0%), scores cover 62 of 64 tokens"
    assert [len(row["input_ids"]) for row in cut] == [3] * 18 + [4, 4]


def test_the_default_length_covers_the_rows():
    options = types.SimpleNamespace(max_length=None)
    rows.set_length(options, list(range(1, 1001)), int, None)
    assert options.max_length == 991
    rows.set_length(options, [1], int, None)
    assert options.max_length == 991, "it is set"
    for limit, found in ((512, 512), (None, 600)):
        options.max_length = None
        rows.set_length(options, [600] * 5, int, limit)
        assert options.max_length == found


def test_a_tokenizer_of_another_language_is_warned_of(tokenizer):
    made = [("one two three", 0)] * 18 + [("one 汉 two", 1)] * 2
    assert rows.warn_of_unknown(Texts(made, tokenizer, 5, splits_of(made)), tokenizer) == ""  # 2 of 100 tokens
    said = (
        "\nwarning: the tokenizer does not know 8.0% of the tokens ([UNK]); choose a `--model` for the language of the"
    )
    assert rows.warn_of_unknown(Texts(made[-5:], tokenizer, 5, splits_of(made)), tokenizer).startswith(said)


def test_texts_and_pairs_become_rows_of_tokens(tokenizer):
    made = [("one two three four", 1), (("two", "three"), 0)]
    first, second = Texts(made, tokenizer, 5, splits_of(made))
    assert first["input_ids"] == [2, 5, 6, 7, 3], "it is cut"
    assert second == {"input_ids": [2, 6, 3, 7, 3], "token_type_ids": [0, 0, 0, 1, 1], "labels": 0}
