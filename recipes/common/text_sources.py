"""Rows of text and label from files (.tsv, .csv, .jsonl) and hubs; `text_data` makes splits of them."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections import Counter
from dataclasses import dataclass, field

from .errors import error

SUFFIXES = (".tsv", ".csv", ".jsonl")
STEMS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
PAIRS = (
    *(("sentence1", "sentence2"), ("text_a", "text_b"), ("premise", "hypothesis"), ("question1", "question2")),
    ("query", "title"),  # LCQMC and BQ of PaddleNLP
)
USUAL_NAMES = {
    "text_column": ("text", "sentence", *(a for a, _ in PAIRS), "content", "review", "question")
    + ("文本", "文本内容", "句子", "内容", "评论", "评论内容", "正文"),
    "text_pair_column": tuple(b for _, b in PAIRS),
    "label_column": ("label", "labels", "class", "category", "intent", "sentiment")
    + ("标签", "类别", "分类", "意图", "情感"),
}
DELIMITERS = (",", ";", "\t", "|")
SHOWN = 3  # wrong rows in an error


@dataclass
class Rows:
    """Split -> [(text or pair, label name), ...], the columns they were taken from, and how many rows were dropped."""

    parts: dict = field(default_factory=dict)
    columns: dict = field(
        default_factory=dict
    )  # training columns: "text_column", "text_pair_column", "label_column" -> name
    dropped: Counter = field(default_factory=Counter)  # reason -> rows


def split_files(path, suffixes, accepted=""):
    """Return split -> path: of a file for training, or of the train, dev and test files in a folder."""
    if not path.exists():
        accepted += "a file or a folder of " + ", ".join(suffixes)
        raise error(f"The source does not exist. Accepted: {accepted}.", source=path)
    if path.is_file():
        return {"train": path}
    found = {}
    for split, stems in STEMS.items():
        files = [file for file in sorted(path.iterdir()) if file.stem in stems and file.suffix.lower() in suffixes]
        if len(files) > 1 or (split == "train" and not files):
            names = [file.name for file in files]
            raise error(f"The folder must have one {split} file ({', '.join(suffixes)}), not {names}.", source=path)
        if files:
            found[split] = files[0]
    return found


def file_rows(path, wanted, has_header, encoding="utf-8"):
    """Return the `Rows` of a file or a folder of train, dev and test files."""
    found = Rows()
    for split, file in split_files(path, SUFFIXES, '"docstrings", "paddlenlp:NAME", "datasets:NAME", ').items():
        _add(found, split, *read_table(file, wanted, has_header, encoding), wanted, file)
    return found


def read_table(path, wanted, has_header=None, encoding="utf-8", likely=()):
    """Return the column names of a file (positions for a file without names) and a list of (place, cells).

    A first row that holds a name in `likely` is a header.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise error(f"The name of a data file must end in {', '.join(SUFFIXES)}.", source=path)
    text = decode(path, encoding)
    records = []
    try:
        for line, record in _json_records(text) if suffix == ".jsonl" else _csv_records(text, suffix):
            records.append((f"Line {line}", record))
    except (csv.Error, ValueError) as cause:
        after = f"after {records[-1][0].lower()}" if records else "at the top"
        raise error(f"The row {after} cannot be read: {cause}.", source=path) from cause
    if not records:
        raise error("The file has no rows.", source=path)
    if suffix == ".jsonl":
        return _flatten(records)
    first = records[0][1]
    if has_header is None:
        has_header = _is_header(first, wanted, likely) or _begins_with_label_name(records, wanted, path)
    if not has_header:
        return [str(i) for i in range(len(first))], records
    twice = [name for name, count in Counter(first).items() if count > 1]
    if twice:
        raise error(f"Several columns have the same name: {twice}. Rename one of each.", source=path)
    return first, records[1:]


def decode(path, encoding="utf-8"):
    """Return the text of a file; if it has another encoding, raise a ValueError that suggests `--encoding`."""
    try:
        return path.read_bytes().decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError as cause:
        raise error("Python does not know this encoding.", source=path, encoding=encoding) from cause
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        marked = cause.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        advice = "`--encoding utf-16`" if marked else "its encoding, for example `--encoding cp1252` or `gb18030`"
        problem = f"Line {line} is not {encoding.upper()} ({cause.reason}): pass {advice}."
        raise error(problem, source=path, encoding=encoding) from cause


def _json_records(text):
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            record = json.loads(content, object_pairs_hook=_unique_keys)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            yield line, record


def _unique_keys(pairs):
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"several values have the same name: {twice}")
    return dict(pairs)


def _csv_records(text, suffix):
    """Yield (line, cells) of each row that is not blank: Excel ends a file with rows of empty cells, `,,`."""
    delimiter = _delimiter(text, suffix)
    options = {"delimiter": delimiter, "strict": True}
    if suffix == ".tsv" and not _is_quoted(text, delimiter):
        options = {"delimiter": delimiter, "quoting": csv.QUOTE_NONE}
    reader = csv.reader(io.StringIO(text, newline=""), **options)
    for cells in reader:
        if len(cells) == 1 or any(map(str.strip, cells)):
            yield reader.line_num, cells


def _delimiter(text, suffix):
    """Return the delimiter by which most of the first 100 rows have as many cells as the first row, at least two."""
    usual = "\t" if suffix == ".tsv" else ","

    def share(delimiter):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        widths = [len(cells) for cells, _ in zip(filter(None, reader), range(100))]
        return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0

    try:
        return max((usual, *(mark for mark in DELIMITERS if mark != usual)), key=share)  # a tie: the usual
    except csv.Error:  # reading the rows raises it again
        return usual


def _is_quoted(text, delimiter):
    """Return whether a .tsv quotes cells as pandas does; in other files a quote is an ordinary character."""
    rows = "\n".join(line for line in text.replace("\r\n", "\n").split("\n") if line)
    if '"' not in rows:
        return False
    try:
        read = list(csv.reader(io.StringIO(rows, newline=""), delimiter=delimiter, strict=True))
    except csv.Error:
        return False

    def written(quoting):
        out = io.StringIO()
        csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows(read)
        return out.getvalue().rstrip("\n")

    return rows in (written(csv.QUOTE_MINIMAL), written(csv.QUOTE_ALL))


def _is_header(first, wanted, likely):
    """Return whether a first row is a header: columns are wanted by name, or it holds likely or the usual names."""
    if any(isinstance(column, str) and not column.isdigit() for column in wanted.values()):
        return True
    lower = {cell.strip().lower() for cell in first}
    usual = all(not lower.isdisjoint(USUAL_NAMES[name]) for name in ("text_column", "label_column") if name in wanted)
    return usual or not set(likely).isdisjoint(first)


def _begins_with_label_name(records, wanted, path):
    """Return whether the first row's label is unique and a usual name; raise if it is unique and another word."""
    column = str(1 if wanted.get("label_column", "") is None else wanted.get("label_column", ""))
    labels = [cells[int(column)] for _, cells in records if column.isdigit() and int(column) < len(cells)]
    if len(labels) < 2 or labels[0] in labels[1:]:
        return False
    if labels[0].strip().lower() in USUAL_NAMES["label_column"]:
        return True
    problem = f"No other row has the first row's label {labels[0]!r}. If the first row holds column names, pass"
    advice = "`--text_column` and `--label_column` with two of them; if not, `--has_header False`"
    raise error(f"{problem} {advice}.", source=path, has_header=None)


def hub_text_rows(hub, name, wanted):
    """Return the `Rows` of a data set of PaddleNLP or Hugging Face."""
    found = Rows()
    hub_rows(hub, name, lambda data, split: _add_hub_rows(found, split, data, wanted, f"{hub}:{name} ({split})"))
    return found


def hub_rows(hub, name, rows_of):
    """Return split -> rows of NAME or NAME:CONFIG on a hub; `rows_of(data, split)` gives none if labels are hidden."""
    name, _, config = name.partition(":")
    try:
        found = (_load_paddlenlp if hub == "paddlenlp" else _load_datasets)(name, config or None)
    except Exception as cause:  # no network, an unknown name, a missing package: each library has its own errors
        raise error(f"{hub} cannot load this data set: {cause}.", source=f"{hub}:{name}", config=config) from cause
    parts = {}
    for split, stems in STEMS.items():
        for data in (found[stem] for stem in stems if stem in found):
            rows = rows_of(data, split)
            if rows:
                parts[split] = rows
    if "train" not in parts:
        raise error(f"This data set has no labelled training rows; its splits: {list(found)}.", source=f"{hub}:{name}")
    return parts


def label_names(data, column):
    """Return the class names of a column of a hub's data set, or of the lists in it; None without names."""
    feature = (getattr(data, "features", None) or {}).get(column)
    return getattr(data, "label_list", None) or getattr(getattr(feature, "feature", feature), "names", None)


def read_jsonl(path):
    """Return the objects of a file with one JSON object per line."""
    try:
        return [record for _, record in _json_records(path.read_text(encoding="utf-8-sig"))]
    except ValueError as cause:
        raise error(f"This file does not have a JSON object on each line: {cause}.", source=path) from cause


def _load_paddlenlp(name, config):
    from paddlenlp.datasets import load_dataset

    found = {"train": load_dataset(name, config, splits="train")}
    for split in ("dev", "validation", "test"):
        try:
            found[split] = load_dataset(name, config, splits=split)
        except ValueError:  # the data set lacks this split
            continue
    return found


def _load_datasets(name, config):
    # Not `datasets.load_dataset`: importing paddlenlp replaces it by a function that runs a data set's own code.
    from datasets.load import load_dataset

    return dict(load_dataset(name, config))


def _add_hub_rows(found, split, data, wanted, source):
    """Add the labelled rows of a split to `found`; return whether it has any."""
    names, table = _flatten([(f"Row {index}", record) for index, record in enumerate(data)])
    columns = _columns(names, wanted, source)
    label = columns["label_column"]
    known = label_names(data, names[label])
    unlabelled = (None, "", -1) if known else (None, "")  # benchmarks do not publish their test labels
    labelled = [(place, cells) for place, cells in table if cells[label] not in unlabelled]
    found.dropped["without a label"] += len(table) - len(labelled)
    for _, cells in labelled:
        if known and isinstance(cells[label], int):
            cells[label] = known[cells[label]]
    if labelled:
        _add(found, split, names, labelled, wanted, source)
    return bool(labelled)


# Rows from columns.


def _flatten(records):
    """Turn (place, dict) into the names of all columns and (place, cells), None where a record lacks a column."""
    names = list(dict.fromkeys(name for _, record in records for name in record))
    return names, [(place, [record.get(name) for name in names]) for place, record in records]


def _columns(names, wanted, source):
    """Return the position of each column; two texts if a pair is requested or the columns have a usual pair's names."""
    lower = {name.lower() for name in names}
    usual_pair = wanted["text_column"] is None and any(lower.issuperset(pair) for pair in PAIRS)
    if usual_pair and "text_pair_column" not in wanted:
        wanted = {"text_column": None, "text_pair_column": None, "label_column": wanted["label_column"]}
    of_two = {"text_column": ("0",), "label_column": ("1",)} if len(names) == 2 else {}
    found = {
        option: column_of(names, option, column, source, of_two.get(option, ())) for option, column in wanted.items()
    }
    if len(set(found.values())) < len(found):
        raise error(f"Texts and label must be different columns of {names}.", source=source, **wanted)
    return found


def column_of(names, option, column, source, others=()):
    """Return the position of the given column, or else of a column with a usual name, or else of one in `others`."""
    known = {str(i): i for i in range(len(names))}
    known.update({name.lower(): i for i, name in enumerate(names)})
    known.update({name: i for i, name in enumerate(names)})
    for choice in (*USUAL_NAMES[option], *others) if column is None else (str(column),):
        if choice in known:
            return known[choice]
    numbered = " (numbers: the file has no column names)" if names and names[0] == "0" else ""
    problem = f"Name the column with `{option}`." if column is None else "There is no such column."
    raise error(f"{problem} Valid: {names}{numbered}.", source=source, **{option: column})


def _add(found, split, names, table, wanted, source):
    """Add the rows of a split to `found`; raise ValueError that shows the first wrong rows and counts all."""
    if not table:
        raise error("The file has no rows.", source=source)
    columns = _columns(names, wanted, source)
    *texts, label = columns.values()
    wrong = [problem for row in table if (problem := _problem(*row, names, texts, label))]
    if wrong:
        more = f"; {len(wrong)} of {len(table)} rows are wrong" if len(wrong) > 1 else ""
        raise error(f"{'; '.join(wrong[:SHOWN])}{more}.", source=source)
    if found.columns and len(found.columns) != len(columns):
        raise error(f"All splits need the columns of the training rows: {found.columns}.", source=source, has=names)
    if split == "train":
        found.columns = {option: names[i] for option, i in columns.items()}
    pick = (lambda cells: cells[texts[0]]) if len(texts) == 1 else lambda cells: tuple(cells[i] for i in texts)
    found.parts[split] = [(pick(cells), _label(cells[label])) for _, cells in table]


def _problem(place, cells, names, texts, label):
    """Return the problem of a row, or None."""
    if len(cells) != len(names):
        return f"{place} must have {len(names)} columns, not {len(cells)}"
    for column in texts:
        if not isinstance(cells[column], str) or not cells[column].strip():
            return f"{place} has no text in column {names[column]!r}"
    if not isinstance(cells[label], (str, int, float)) or _label(cells[label]) in ("", "nan"):
        return f"{place} has no string or number in column {names[label]!r}"
    return None


def _label(value):
    """Return a label as a string; 1.0 becomes "1", because pandas writes integers in a column with gaps as floats."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def check_labels(labels, column, source):
    """Raise ValueError if labels are not classes: continuous numbers, or mostly unique."""
    counts = Counter(labels)
    unique = [label for label, count in counts.items() if count == 1]
    if len(counts) > 20 and not all(map(_is_whole, counts)) and all(map(_is_number, counts)):
        values = ", ".join(list(counts)[:SHOWN])
        problem = f"The labels are continuous numbers ({values}...): a classifier needs classes, so bin them first"
    elif len(unique) > len(labels) / 2:
        problem = f"{len(unique)} of {len(labels)} rows have a unique label: the column seems to be an identifier"
    else:
        return
    raise error(f"{problem}.", source=source, label_column=column)


def _is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_whole(text):
    return _is_number(text) and float(text).is_integer()
