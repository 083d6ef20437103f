"""The reader of all recipes: encodings, tables, JSON, lines of text, tagged words."""

import codecs
import contextlib
import csv
import io
import json
import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import error

SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
TAGGED = (".conll", ".conllu", ".bio", ".bioes", ".bmes", ".iob", ".iob2", ".ner", ".char", ".txt", ".tsv", ".json")
TAGGED += (".jsonl", ".data", ".train", ".dev", ".test")
PAIRS = (("sentence1", "sentence2"), ("text_a", "text_b"), ("premise", "hypothesis"), ("question1", "question2"))
PAIRS += (("query", "title"),)  # LCQMC and BQ of PaddleNLP
USUAL_NAMES = {
    "text_column": ("text", "sentence", *(a for a, _ in PAIRS), "content", "review", "question")
    + ("文本", "文本内容", "句子", "内容", "评论", "评论内容", "正文"),
    "text_pair_column": tuple(b for _, b in PAIRS),
    "label_column": ("label", "labels", "class", "category", "intent", "sentiment", "score")
    + ("标签", "类别", "分类", "意图", "情感", "分数"),
    "source_field": ("source", "prompt", "instruction", "question", "article", "document", "text", "input", "content")
    + ("问题", "原文", "正文", "上联", "古文", "文言文"),
    "target_field": ("target", "response", "output", "answer", "summary", "title", "completion", "completions")
    + ("答案", "回答", "摘要", "标题", "下联", "现代文", "白话文"),
}
TAG_FIELDS = ("ner_tags", "tags", "labels", "label", "pos_tags")
SHOWN = 3  # wrong rows in an error
DROPPED = 0.05  # the largest share of rows without a text that is dropped; more is an error
DELIMITERS = (",", ";", "\t", "|")
NAMES = re.compile(r"((^|\t)[^\W\d][\w -]*)+")  # cells that may be names of columns
# characters of Chinese, Japanese and Korean, which are words of their own
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+|[^\w\s]")
# the space that some tokenizers write between two characters of Chinese or Japanese
BETWEEN = re.compile(r"(?<=[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]) (?=[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef])")
PREDICTION = "prediction.json"
PREDICTED = ("text_classification", "token_classification", "seq2seq", "language_model_sft", "image_classification")


@dataclass
class Notes:
    """What reading the files of a data set found: rows, columns, reasons why rows were dropped, encodings."""

    rows: int = 0
    columns: dict = field(default_factory=dict)  # of the training rows: option -> name
    dropped: Counter = field(default_factory=Counter)  # reason -> rows
    encodings: set = field(default_factory=set)
    texts: bool = False  # whether tagged words are those of texts with spans
    spans: int = 0
    lost_spans: int = 0  # that overlap a longer one or have no word
    unread: set = field(default_factory=set)  # columns that the recipe ignores

    def drop(self, dropped, rows, source):
        """Count the rows of a file and (place, what it lacks) of those dropped; refuse a file with many of these."""
        if len(dropped) > DROPPED * rows:
            raise wrong_rows([f"{place} has no {name}" for place, name in dropped], rows, source)
        self.rows += rows
        self.dropped.update(f"without a{'n' * name.startswith(('a', 'i'))} {name}" for _, name in dropped)

    def __str__(self):
        roles = {option.rpartition("_")[0].replace("_", " "): name for option, name in self.columns.items()}
        columns = f" Columns: {', '.join(f'{role} = {name!r}' for role, name in roles.items())}." if roles else ""
        read = f" Read as {', '.join(sorted(self.encodings))}." if self.encodings else ""
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items() if count)
        kept = f"{dropped}; scores cover {self.rows - sum(self.dropped.values())} of {self.rows} rows"
        share = f"{self.lost_spans} of {self.spans} ({self.lost_spans / max(self.spans, 1):.1%})"
        spans = f" Spans dropped: {share} that overlap a longer one or have no word." if self.lost_spans else ""
        if self.lost_spans > DROPPED * self.spans:
            spans += " Scores do not cover them: are their ends right?"
        unread = f" Columns not read: {', '.join(sorted(self.unread))}." if self.unread else ""
        return f"{columns}{read} Rows dropped: {kept if dropped else 'none'}.{spans}{unread}"


def wrong_rows(problems, rows, source):
    return error(f"{'; '.join(problems[:SHOWN])}; {len(problems)} of {rows} rows are wrong.", source=source)


def decode(path, encoding=None, notes=None):
    """Return the text of a file, whose encoding is detected by default; raise ValueError that names the line."""
    data = path.read_bytes()
    name = encoding or _detect(data)
    try:
        text = data.decode(name).lstrip("\ufeff")
    except LookupError as cause:
        raise error("Python does not know this encoding.", source=path, encoding=encoding) from cause
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        problem = f"Line {line} is not {name.upper()} ({cause.reason}): pass its encoding"
        raise error(f"{problem}, for example `--encoding cp1252` or `big5`.", source=path, encoding=encoding) from cause
    if notes and name.lower() not in ("utf-8", "utf8"):
        notes.encodings.add(name.upper())
    return text


def _detect(data):
    """Return the encoding of a file: UTF-8; UTF-16 by its mark; GB18030 if most of it is usual Chinese."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        with contextlib.suppress(UnicodeDecodeError):
            wide = re.sub("[\x00-\x7f]", "", data.decode("gb18030"))
            if 2 * 0.9 * len(wide) <= len(wide.encode("gb2312", "ignore")):
                return "gb18030"
    return "utf-8"


def read_table(path, wanted, has_header=None, encoding=None, likely=(), notes=None):
    """Return the column names of a file, or their positions, and (place, cells); `likely` names are in a header."""
    suffix, text, records = path.suffix.lower(), decode(path, encoding, notes), []
    if suffix == ".txt" and len(wanted) == 1 and not (has_header or ("\t" in text and any(wanted.values()))):
        lines = enumerate(map(str.strip, text.split("\n")), 1)
        return ["0"], [(f"Line {number}", [line]) for number, line in lines if line]
    try:
        records.extend(_json_records(text) if suffix.startswith(".json") else _csv_records(text, suffix))
    except (csv.Error, ValueError) as cause:
        after = f"after {records[-1][0].lower()}" if records else "at the top"
        raise error(f"The row {after} cannot be read: {cause}.", source=path) from cause
    if not records:
        raise error("The file has no rows.", source=path)
    if suffix.startswith(".json"):
        return flatten(records)
    first = [cell.strip() for cell in records[0][1]]
    if not (_has_header(records, wanted, likely, path) if has_header is None else has_header):
        return [str(i) for i in range(len(first))], records
    if twice := [name for name, count in Counter(filter(None, first)).items() if count > 1]:
        raise error(f"Several columns have the same name: {twice}. Rename one of each.", source=path)
    return first, records[1:]


def _json_records(text):
    """Yield (place, dict) of a JSON list, of such a list as `data`, or of one object per line."""
    try:
        whole = json.loads(text) if text.lstrip()[:1] in ("[", "{") else None
    except json.JSONDecodeError as cause:
        if text.lstrip().startswith("["):
            raise ValueError(f"line {cause.lineno} is not JSON ({cause.msg})") from cause
        whole = None
    if isinstance(whole, dict):
        whole = next((whole[name] for name in ("data", "rows", "examples") if name in whole), [whole])
    lines = ((f"Line {n}", line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    for place, record in ((at, json.loads(line)) for at, line in lines) if whole is None else placed(whole):
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
        yield place, record


def placed(rows):
    return [(f"Row {number}", row) for number, row in enumerate(rows, 1)]


def flatten(records):
    """Turn (place, dict) into the names of all columns and (place, cells), None where a record lacks a column."""
    names = list(dict.fromkeys(name for _, record in records for name in record))
    return names, [(place, [record.get(name) for name in names]) for place, record in records]


def _csv_records(text, suffix):
    """Yield (place, cells) of each row that is not blank: Excel ends a file with rows of empty cells, `,,`."""
    delimiter = _delimiter(text, suffix)
    quoted = suffix == ".csv" or _is_quoted(text, delimiter)
    how = {"delimiter": delimiter, "strict": quoted, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE}
    reader = csv.reader(io.StringIO(text, newline=""), **how)
    for cells in reader:
        if len(cells) == 1 or any(map(str.strip, cells)):
            yield f"Line {reader.line_num}", [cell.strip("\ufeff") for cell in cells]


def _delimiter(text, suffix):
    """Return the delimiter by which most of the first 100 rows have as many cells as the first row, at least two."""
    usual = "," if suffix == ".csv" else "\t"

    def share(delimiter):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        widths = [len(cells) for cells, _ in zip(filter(None, reader), range(100))]
        return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0

    with contextlib.suppress(csv.Error):  # reading the rows raises it again
        return max((usual, *DELIMITERS), key=share)  # a tie: the usual
    return usual


def _is_quoted(text, delimiter):
    """Return whether a .tsv quotes cells, as pandas does; in other files a quote is an ordinary character."""
    with contextlib.suppress(csv.Error):
        widths = {len(cells) for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)}
        return '"' in text and len(widths - {0}) == 1
    return False


def _has_header(records, wanted, likely, path):
    """Return whether the first row has the wanted or usual column names; raise if it may have other names."""
    first, others = records[0][1], [cells for _, cells in records[1:]]
    if any(isinstance(column, str) and not column.isdigit() for column in wanted.values()):
        return True
    lower, needed = {cell.strip().lower() for cell in first}, [name for name in wanted if name != "text_pair_column"]
    if all(not lower.isdisjoint(USUAL_NAMES[name]) for name in needed) or not set(likely).isdisjoint(first):
        return True
    given, width = wanted.get("label_column", ""), len(first)
    column = str(width - 1 if given is None and width in (2, 3) else 1 if given is None else given)
    labels = [cells[int(column)] for cells in (first, *others) if column.isdigit() and int(column) < len(cells)]
    unique = len(labels) > 1 and labels[0] not in labels[1:]
    if unique and labels[0].strip().lower() in USUAL_NAMES["label_column"]:
        return True
    rows = [first, *others[:100]]
    named = [NAMES.fullmatch("\t".join(cells)) for cells in rows]
    lengths = [len("".join(cells)) for cells in rows]
    new = named[0] and width > 1 and not any(cell in column[1:] for cell, column in zip(first, zip(*rows)))
    unlike = len(rows) > 10 and (named.count(None) == len(rows) - 1 or 2 * lengths[0] < statistics.median(lengths))
    if (unique and not is_number(labels[0])) or (new and unlike and set(wanted.values()) == {None}):
        options = " and ".join(f"`--{name}`" for name in needed)
        instead = "`--has_header False`" if "label_column" in wanted else "the columns' numbers, from 0"
        advice = f"choose columns with {options}; if it is a row, pass {instead}"
        raise error(f"The first row may hold column names, {str(first)[:200]}: {advice}.", source=path, has_header=None)
    return False


def is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def column_of(names, option, column, source, others=()):
    """Return the position of the given column, or else of a column with a usual name, or else of one in `others`."""
    known = {str(i): i for i in range(len(names))}
    known |= {name.lower(): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}
    for choice in (*USUAL_NAMES[option], *others) if column is None else (str(column),):
        if choice in known:
            return known[choice]
    numbered = " (numbers: the file has no column names)" if names and names[0] == "0" else ""
    problem = f"Name the column with `--{option}`." if column is None else "There is no such column."
    raise error(f"{problem} Valid: {names}{numbered}.", source=source, **{option: column})


def read_tagged(path, word_column=0, tag_column=-1, encoding=None, notes=None):
    """Return [(words, tags), ...] of a file with one word per line and an empty line between sentences, or of JSON."""
    notes = notes or Notes()
    if path.suffix.lower() in (".json", ".jsonl"):
        names, table = read_table(path, {}, encoding=encoding, notes=notes)
        return tagged_rows([(place, dict(zip(names, cells))) for place, cells in table], path, notes)
    rows, words, tags, conllu = [], [], [], path.suffix.lower() == ".conllu"
    if conllu and tag_column == -1:
        word_column, tag_column = word_column or 1, 3  # the form and its part of speech
    columns = {"word_column": word_column, "tag_column": tag_column}
    least = max(2, *(column + 1 if column >= 0 else -column for column in columns.values()))
    for number, line in enumerate([*decode(path, encoding, notes).split("\n"), ""], 1):
        if re.match(r"#|\d+[-.]" if conllu else "# id ", line):  # comments; contractions, of which the words follow
            continue
        cells = re.split(r"\t" if conllu else r"[ \t]+", line.strip(" \t\r"))  # not \u3000, a word in Chinese files
        if cells == [""] or cells[0] == "-DOCSTART-":
            if words:
                rows.append((words, tags))
            words, tags = [], []
            continue
        if len(cells) == 1 and line[0] in " \t":  # the word is a space
            cells = ["\u3000", *cells]
        if len(cells) < least:
            raise error(f"Line {number} has only {len(cells)} column(s).", source=path, **columns)
        notes.columns = notes.columns or {name: column % len(cells) for name, column in columns.items()}
        words.append(cells[word_column])
        tags.append(cells[tag_column])
    if all(re.fullmatch("O|[BIMESLU]_.+", tag) for _, each in rows for tag in each):  # entities, as B-PER
        return [(words, [tag.replace("_", "-", 1) for tag in each]) for words, each in rows]
    return rows


def tagged_rows(records, source, notes):
    """Return [(words, tags), ...] of (place, dict); drop rows without a word, refuse a file with many of these."""
    rows = [(place, tagged(record, f"{source}, {place.lower()}", notes)) for place, record in records]
    notes.drop([(place, "text") for place, (words, _) in rows if not words], len(rows), source)
    return [row for _, row in rows if row[0]]


def tagged(record, source, notes=None):
    """Return (words, tags) of a dict: lists of words and of tags, or a text and spans, of which the longest count."""
    words = next((record[name] for name in ("tokens", "words", "text") if record.get(name) is not None), None)
    found = next((record[name] for name in (*TAG_FIELDS, "entities", "spans") if record.get(name) is not None), None)
    if words is None or not isinstance(found, (list, dict)):
        needed = "`tokens` and `ner_tags`, `labels` or `tags`, or `text` and `entities` are required"
        raise error(f"{needed}; the row has {list(record)}.", source=source)
    if isinstance(found, list) and not (found and isinstance(found[0], (list, dict))) and (found or not words):
        if len(found) != len(words):
            raise error(f"A row has {len(words)} words, but {len(found)} tags.", source=source)
        return list(words), list(map(str, found))
    notes, places = notes or Notes(), [(i, i + 1) for i in range(len(words))]
    if isinstance(words, str):
        notes.texts, places = True, [match.span() for match in WORD.finditer(words)]
    tags = ["O"] * len(places)
    for begin, end, kind in sorted(_spans(found, words, source), key=lambda span: span[0] - span[1]):  # longest first
        if not 0 <= begin < end <= len(words):
            raise error("A span is outside of its text.", source=source, span=(begin, end, kind))
        inside = [i for i, (first, last) in enumerate(places) if first < end and begin < last]
        fits = inside and all(tags[i] == "O" for i in inside)
        notes.spans, notes.lost_spans = notes.spans + 1, notes.lost_spans + (not fits)
        for i in inside if fits else ():
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{kind}"
    return [words[first:last] if isinstance(words, str) else words[first] for first, last in places], tags


def _spans(found, text, source):
    """Return [(begin, end, kind), ...] of CLUENER's dicts (the last character is inside) or of lists of spans."""
    if isinstance(found, dict):
        return [(a, b + 1, kind) for kind, each in found.items() for places in each.values() for a, b in places]
    keys = [("start", "start_offset", "start_idx"), ("end", "end_offset", "end_idx"), ("type", "label", "entity_group")]
    keys += [("entity", "word", "text")]  # CMeEE's ends are inside, which only the text of a span tells
    read = lambda span: [next((span[name] for name in names if name in span), None) for names in keys]  # noqa: E731
    spans = [read(span) if isinstance(span, dict) else [*span, None] for span in found]
    if wrong := [given for given, span in zip(found, spans) if len(span) != 4 or None in span[:3]]:
        raise error("A span needs its start, its end and its label.", source=source, span=wrong[0])
    return [(a, b + (text[a:b] != word == text[a : b + 1]), kind) for a, b, kind, word in spans]


def noted(folder):
    paths = [path for path in (Path(folder, PREDICTION), Path(folder).parent / PREDICTION) if path.is_file()]
    if not paths:
        raise error("This folder has no model of a finished run.", folder=str(folder))
    found = json.loads(paths[0].read_text(encoding="utf-8"))
    if found["recipe"] not in PREDICTED:
        problem = f"Predictions need a run of {', '.join(PREDICTED)}: train one of these with this folder as `--model`."
        raise error(problem, folder=str(folder), recipe=found["recipe"])
    return found
