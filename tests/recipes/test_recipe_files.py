"""recipes/common/files.py: encodings, JSON, several labels, tagged words and conversations."""

import json
import types

import pytest
from common import files, language_data
from common.text_data import load_splits
from test_recipe_data import GOOD, ROWS, everything, tsv, write

CHINESE = "".join(f"第{i}家酒店，早餐很{'好,好评' if i % 2 else '差,差评'}\n" for i in range(40))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gbk", "utf-16"])
def test_encodings_are_detected(tmp_path, encoding):
    (tmp_path / "评论.csv").write_text(f"评论,标签\n{CHINESE}", encoding=encoding)
    splits = load_splits(tmp_path / "评论.csv")
    assert splits.notes.columns == {"text_column": "评论", "label_column": "标签"} and len(everything(splits)) == 40
    assert sorted(splits.labels) == ["好评", "差评"]
    named = {"gbk": "Read as GB18030.", "utf-16": "Read as UTF-16."}.get(encoding, "Rows dropped")
    assert named in splits.description


def test_western_bytes_are_not_taken_for_chinese(tmp_path):
    (tmp_path / "a.tsv").write_bytes(tsv((f"{t} für Müßige, où ça é", name) for t, name in ROWS).encode("cp1252"))
    with pytest.raises(ValueError, match="Line 1 is not UTF-8"):
        load_splits(tmp_path / "a.tsv")
    assert "für Müßige" in everything(load_splits(tmp_path / "a.tsv", encoding="cp1252"))[0][0]


def test_few_rows_without_a_text_or_label_are_dropped_and_counted(tmp_path):
    (tmp_path / "a.tsv").write_text(GOOD + " \tgood\ntext\t \n")
    splits = load_splits(tmp_path / "a.tsv")
    assert "Rows dropped: 1 without a text, 1 without a label; scores cover 60 of 62 rows." in splits.description
    assert len(everything(splits)) == 60


@pytest.mark.parametrize("name", ["list.json", "lines.json", "inside.json", "lines.jsonl"])
def test_json_is_a_list_or_lines_or_in_an_object(tmp_path, name):
    made = [{"text": text, "label": label} for text, label in ROWS]
    lines = "\n".join(json.dumps(row) for row in made)
    whole = json.dumps(made, indent=1) if "list" in name else json.dumps({"version": 1, "data": made})
    (tmp_path / name).write_text(lines if "lines" in name else whole)
    assert len(everything(load_splits(tmp_path / name))) == 60


def test_several_labels_and_scores(tmp_path):
    labels = [["a"], ["a", "b"], [], ["c", "b"]]
    made = [{"text": text, "label": labels[i % 4]} for i, (text, _) in enumerate(ROWS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    splits = load_splits(tmp_path / "a.jsonl")
    assert (splits.kind, splits.labels) == ("labels", ["a", "b", "c"])
    assert splits.target(frozenset([0, 2])) == [1.0, 0.0, 1.0]
    write(tmp_path / "b.tsv", [(text, "|".join(labels[i % 4]) or "none") for i, (text, _) in enumerate(ROWS)])
    assert load_splits(tmp_path / "b.tsv", label_separator="|").labels == ["a", "b", "c", "none"]
    write(tmp_path / "d.tsv", [(text, ("4", "4,27", "27", "27,4")[i % 4]) for i, (text, _) in enumerate(ROWS)])
    assert "; `--label_separator` divides labels such as '27,4'." in load_splits(tmp_path / "d.tsv").description
    several = load_splits(tmp_path / "d.tsv", label_separator=",")
    assert several.labels == ["4", "27"] and "--" not in several.description
    scores = load_splits(write(tmp_path / "c.tsv", [(text, i / 7) for i, (text, _) in enumerate(ROWS)]))
    mean, deviation = scores.scale
    assert scores.kind == "scores" and scores.target(mean + deviation) == pytest.approx([1.0])
    assert "labels are scores (`--kind classes` for classes), in training from 0" in scores.description


@pytest.mark.parametrize(
    ("labels", "kind", "says"),
    [
        (["0.0", "0.5", "5.0"], "scores", "labels are scores (`--kind classes` for classes)"),
        (["1", "2", "3"], "classes", " (classes; `--kind scores` for scores)"),
        (["1.0", "2.0", "3.0"], "classes", " (classes; `--kind scores` for scores)"),
        (["0", "1", "0"], "classes", "training rows by label: 0 "),
    ],
)
def test_decimals_are_scores_and_integers_are_classes(tmp_path, labels, kind, says):
    found = load_splits(write(tmp_path / "a.tsv", [(text, labels[i % 3]) for i, (text, _) in enumerate(ROWS)]))
    assert found.kind == kind and says in found.description
    assert load_splits(tmp_path / "a.tsv", kind="scores").kind == "scores"


TAGS = (["我", "在", "北", "京"], ["O", "O", "B-LOC", "I-LOC"])
TAGGED = {
    "a.bmes": ("我 O\n在 O\n北 B-LOC\n京 E-LOC\n\n我 O\n", (TAGS[0], ["O", "O", "B-LOC", "E-LOC"])),
    "a.tags": ("我 O\n在 O\n北 B_LOC\n京 I_LOC\n", TAGS),
    "a.conll": ("-DOCSTART- O\n\n我 n O\n在 v O\n北 n B-LOC\n京 n I-LOC\n\n\n我 n O", TAGS),
    "a.conllu": (
        "# text = 我在\n# id = a b c\n1-2\t我在\t_\t_\n1\t我\t我\tPRON\n2\t北 京\t_\tPROPN\n2.1\t的\t_\tX\n",
        (["我", "北 京"], ["PRON", "PROPN"]),
    ),
    "a.multiconer": ("# id 12-ab\tdomain=train\n我 _ _ O\n在 _ _ O\n北 _ _ B-LOC\n京 _ _ I-LOC\n", TAGS),
    "a.txt": ("我\tO\r\n在\tO\r\n北\tB-LOC\r\n京\tI-LOC\r\n\r\n", TAGS),
    "a.json": (json.dumps([{"tokens": TAGS[0], "ner_tags": TAGS[1]}, {"tokens": ["我"], "ner_tags": ["O"]}]), TAGS),
    "clue.json": (json.dumps({"text": "我在北京", "label": {"LOC": {"北京": [[2, 3]]}}}), TAGS),
    "spans.jsonl": (json.dumps({"text": "我在北京", "entities": [{"start": 2, "end": 4, "label": "LOC"}]}), TAGS),
    "cmeee.json": (
        json.dumps({"text": "我在北京", "entities": [{"start_idx": 2, "end_idx": 3, "type": "LOC", "entity": "北京"}]}),
        TAGS,
    ),
    "doccano.jsonl": (json.dumps({"text": "我在北京", "label": [[2, 4, "LOC"]]}), TAGS),
}


@pytest.mark.parametrize("name", TAGGED)
def test_tagged_words_are_read_from_all_usual_files(tmp_path, name):
    content, first = TAGGED[name]
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert files.read_tagged(tmp_path / name)[0] == first


def test_the_columns_of_tagged_words_are_told(tmp_path):
    (tmp_path / "a.conll").write_text("1 Ann NNP B-PER\n2 met VBD O\n")
    rows = files.read_tagged(tmp_path / "a.conll", word_column=1, notes=(notes := files.Notes()))
    assert rows == [(["Ann", "met"], ["B-PER", "O"])] and str(notes).startswith(" Columns: word = 1, tag = 3.")


def test_texts_with_spans_are_split_into_words_and_characters(tmp_path):
    made = [
        {"text": "Ann Lee met 张三 in 2021, in Rome", "label": [[0, 7, "PER"], [12, 14, "PER"], [27, 31, "LOC"]]},
        {"text": "清华大学出版社", "label": [[0, 4, "ORG"], [0, 7, "PUB"]]},
        {"text": "", "label": []},
        *[{"text": "nothing", "label": [[0, 7, "X"]]}] * 16,
        {"text": "a  b", "label": [[1, 3, "X"]]},
    ]

    def read(rows):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return files.read_tagged(tmp_path / "a.jsonl", notes=(notes := files.Notes())), notes

    (first, second, *_, third, last), notes = read(made)
    assert first[0] == ["Ann", "Lee", "met", "张", "三", "in", "2021", ",", "in", "Rome"]
    assert first[1] == ["B-PER", "I-PER", "O", "B-PER", "I-PER", "O", "O", "O", "O", "B-LOC"]
    assert second[1] == ["B-PUB", *["I-PUB"] * 6]
    assert third == (["nothing"], ["B-X"]) and last == (["a", "b"], ["O", "O"])
    told = " Rows dropped: 1 without a text; scores cover 19 of 20 rows. Spans dropped: 2 of 22 (9.1%) that overlap a"
    told += " longer one or have no word."
    assert notes.texts and str(notes) == told + " Scores do not cover them: are their ends right?"
    assert str(read(made[:2] * 4 + made[3:-1] * 8)[1]).endswith("longer one or have no word."), "few are only said"
    with pytest.raises(ValueError, match="Line 3 has no text; 1 of 19 rows are wrong"):
        read(made[:-1])


def test_wrong_tagged_files_name_the_line(tmp_path):
    (tmp_path / "a.bio").write_text("我 O\n \tO\n在\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Line 3 has only 1 column"):
        files.read_tagged(tmp_path / "a.bio")
    for record, says in (
        ({"tokens": ["a"], "tags": ["O", "O"]}, "1 words, but 2 tags"),
        ({"text": "ab", "entities": [[1, 5, "X"]]}, "outside of its text"),
        ({"text": "ab"}, "are required; the row has"),
        ({"text": "ab", "entities": [{"from": 0, "to": 1, "label": "X"}]}, "needs its start, its end and its label"),
    ):
        with pytest.raises(ValueError, match=says):
            files.tagged(record, "a.json")


ALPACA = [{"instruction": "翻译", "input": "你好", "output": "hello"}]
ALPACA += [{"instruction": "问", "input": "", "output": "答"}]
TALK = [{"from": "human", "value": "问"}, {"from": "gpt", "value": "答"}, {"from": "human", "value": "再问"}]
MESSAGES = [{"role": r, "content": t} for r, t in (("system", "s"), ("user", "问"), ("assistant", "答"))]
PARTS = [{"role": r, "content": [{"type": "text", "value": t}]} for r, t in (("user", "问"), ("assistant", "答"))]


def pairs_of(source, source_field=None, target_field=None, **options):
    """Return what the recipes of language models read from a file or folder."""
    fields = {"source_field": source_field, "target_field": target_field}
    return language_data.load_pairs(types.SimpleNamespace(data=str(source), encoding=None, **fields), {}, **options)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (ALPACA, [(("user", "翻译\n你好"), ("assistant", "hello")), (("user", "问"), ("assistant", "答"))]),
        ([{"conversations": TALK}], [(("user", "问"), ("assistant", "答"), ("user", "再问"))]),
        ([{"messages": MESSAGES}], [(("system", "s"), ("user", "问"), ("assistant", "答"))]),
        ([{"messages": PARTS}], [(("user", "问"), ("assistant", "答"))]),
        ([{"prompt": "问", "response": "答"}], [(("user", "问"), ("assistant", "答"))]),
    ],
    ids=["alpaca", "sharegpt", "openai", "parts of LLaMA-Factory", "pairs"],
)
def test_conversations_are_read(tmp_path, records, found):
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.json").write_text(json.dumps(records))
    parts = pairs_of(tmp_path, conversations=True)
    assert parts.train == found and "not read" not in parts.description


UNKNOWN = "src,tgt\n" + "".join(f"question {i},answer number {i}\n" for i in range(30))
CHOSEN = {"prompt": "问", "chosen": "答", "rejected": "不"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.csv",
            UNKNOWN,
            r"names, \['src', 'tgt'\]: choose columns with `--source_field` and `--target_field`; if it",
        ),
        (
            "a.tsv",
            "号,错句,改正\n" + "1,今天天汽很好。,今天天气好。\n" * 10,
            r"names, \['号', '错句', '改正'\]: choose",
        ),
        ("a.txt", "床前明月光\n疑是地上霜\n" * 10, "Prompts and answers need two columns; masked_lm_pretraining.py"),
        ("a.json", json.dumps([{"conversation": [{"input": "问"}]}]), "XTuner's `conversation` is not read"),
        (
            "a.json",
            json.dumps([CHOSEN]),
            "No recipe trains on preferences .DPO.: .*`--target_field`.*columns=.*'chosen'",
        ),
        ("a.json", json.dumps([{"conversations": TALK}] * 30), "language_model_sft.py alone reads conversations"),
        ("a.csv", "instruction,input,output\nask,more,answer\nask\n", "Line 3 must have"),
    ],
)
def test_a_file_that_is_not_of_sources_and_targets_is_told_so(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says):
        pairs_of(tmp_path / name)


def test_columns_that_are_chosen_are_read(tmp_path):
    (tmp_path / "a.csv").write_text(UNKNOWN)
    found = [pairs_of(tmp_path / "a.csv", source_field=a, target_field=b) for a, b in (("src", "tgt"), ("0", "1"))]
    assert [sum(map(len, one.each(list).values())) for one in found] == [30, 31]
    (tmp_path / "b.json").write_text(json.dumps([{**CHOSEN, "prompt": f"问{i}"} for i in range(30)]))
    assert set(pairs_of(tmp_path / "b.json", target_field="chosen").train[0]) & {"答"}


def test_conversations_without_text_are_dropped_and_counted(tmp_path):
    def load(records):
        (tmp_path / "a.json").write_text(json.dumps(records))
        return pairs_of(tmp_path / "a.json", conversations=True)

    asked, answer = {"role": "user", "content": "ask"}, {"role": "assistant", "content": "a"}
    talks = [{"messages": [{**asked, "content": f"ask {i}"}, answer]} for i in range(60)]
    parts = {"role": "user", "content": [{"type": "text", "text": "again"}] * 2}
    found = load([*talks, {"messages": None, "tools": "[]", "label": 1}, {"messages": [parts, answer]}])
    told = "Rows dropped: 1 without an answer; scores cover 61 of 62 rows. Columns not read: label, tools."
    assert told in found.description
    assert (("user", "againagain"), ("assistant", "a")) in [*found.train, *found.validation, *found.test]
    with pytest.raises(ValueError, match="Row 1 has no answer; Row 2 .*; Row 3 .*; 9 of 9 rows are wrong"):
        load([{"messages": [asked]}] * 9)
    with pytest.raises(ValueError, match="Row 61 has no answer; .*; 4 of 64 rows are wrong"):
        load([*talks, *[{"messages": [asked]}] * 4])
    parts = {"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]}
    with pytest.raises(ValueError, match=r"Row 1 has no turns with .*\('text'\)"):
        load([{"messages": [parts, answer]}])


def test_one_system_prompt_of_all_conversations_leaves_rows_in_every_split(tmp_path):
    talk = [{"role": "system", "content": "Be kind."}, *MESSAGES[1:]]
    talks = [{"messages": [talk[0], {**talk[1], "content": f"ask {i}"}, talk[2]]} for i in range(90)]
    (tmp_path / "a.json").write_text(json.dumps(talks))
    found = pairs_of(tmp_path / "a.json", conversations=True)
    assert min(map(len, (found.train, found.validation, found.test))) > 5


def test_splits_that_are_too_small_to_judge_by_are_warned_of(tmp_path):
    write(tmp_path / "train.tsv", ROWS, ("text", "label"))
    for validation, test, said in (
        (19, 20, "(19 validation): scores on fewer than 20 rows mean little"),
        (19, 2, "(19 validation, 2 test): "),
        (20, 2, "(2 test): "),
        (20, 20, None),
    ):
        write(tmp_path / "dev.tsv", ROWS[:validation], ("text", "label"))
        write(tmp_path / "test.tsv", ROWS[:test], ("text", "label"))
        warning = load_splits(tmp_path).warning
        assert warning.startswith(f"\nwarning: few rows to judge by {said}") if said else "warning" not in warning


def test_rows_of_empty_cells_count_as_blank(tmp_path):
    rows = "".join(f"{i},{text.replace(',', '')},{label}\n" for i, (text, label) in enumerate(ROWS))
    (tmp_path / "excel.csv").write_text(f"id,text,label\n{rows},,\n, ,\n")
    splits = load_splits(tmp_path / "excel.csv")
    assert len(everything(splits)) == 60 and splits.description.endswith(" Columns not read: id.")
    (tmp_path / "kaggle.csv").write_text("label,text,,,\n" + "".join(f'{label},"{text}",,,\n' for text, label in ROWS))
    assert len(everything(load_splits(tmp_path / "kaggle.csv"))) == 60
    (tmp_path / "one.csv").write_text('text\na\n""\nb\n')  # an empty text, not a row of empty cells
    assert len(files.read_table(tmp_path / "one.csv", {"text_column": "text"})[1]) == 3
