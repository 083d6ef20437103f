"""Rows of text and label out of files (.tsv, .csv, .jsonl) and hubs; `text_data` makes splits of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

SUFFIXES = (".tsv", ".csv", ".jsonl")
STEMS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
USUAL_NAMES = {
    "text_column": ("text", "sentence", "sentence1", "text_a", "content", "review", "question", "query"),
    "text_pair_column": ("sentence2", "text_b"),
    "label_column": ("label", "labels", "class", "category", "intent", "sentiment"),
}


def error(problem, **received):
    """Return the ValueError that says what is wrong and what was received."""
    values = (f"{name}={str(value) if isinstance(value, Path) else value!r}" for name, value in received.items())
    return ValueError(f"{problem} Received: {', '.join(values)}.")


def split_files(path, suffixes, accepted=""):
    """Return split -> path of a file, which is for training, or of the train, dev and test files in a folder.

    Args:
        path (Path): the file or folder.
        suffixes (tuple[str]): endings that a data file may have.
        accepted (str): other kinds of source, for the error.
    """
    if not path.exists():
        accepted += "a file or a folder of " + ", ".join(suffixes)
        raise error(f"There is no such file, folder or kind of source. Accepted: {accepted}.", source=path)
    if path.is_file():
        return {"train": path}
    found = {}
    for split, stems in STEMS.items():
        files = [file for file in sorted(path.iterdir()) if file.stem in stems and file.suffix.lower() in suffixes]
        if len(files) > 1 or (split == "train" and not files):
            names = [file.name for file in files]
            raise error(f"One {split} file ({', '.join(suffixes)}) is needed, there are {names}.", source=path)
        if files:
            found[split] = files[0]
    return found


def file_parts(path, wanted, has_header):
    """Return split -> [(text or pair, label name), ...] of a file or a folder of train, dev and test files."""
    files = split_files(path, SUFFIXES, '"docstrings", "paddlenlp:NAME", "datasets:NAME", ')
    return {split: _rows(*_table(file, wanted, has_header), wanted, file) for split, file in files.items()}


def _table(path, wanted, has_header):
    """Returns the column names (positions, if the file has none) and a list of (place, cells)."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise error(f"A data file ends in {', '.join(SUFFIXES)}.", source=path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise error(f"Line {line} is not UTF-8 ({cause.reason}).", source=path) from cause
    records = []
    try:
        for line, record in _json_records(text) if suffix == ".jsonl" else _csv_records(text, suffix):
            records.append((f"Line {line}", record))
    except (csv.Error, ValueError) as cause:
        after = f"after {records[-1][0].lower()}" if records else "at the top"
        raise error(f"The row {after} cannot be read: {cause}.", source=path) from cause
    if suffix == ".jsonl":
        return _flatten(records)
    first = records[0][1] if records else []
    if has_header is None:
        has_header = _is_header(first, wanted) or _refuse_doubtful_header(records, wanted, path)
    return (first, records[1:]) if has_header else ([str(i) for i in range(len(first))], records)


def _json_records(text):
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            record = json.loads(content)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            yield line, record


def _csv_records(text, suffix):
    options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {"strict": True}
    reader = csv.reader(io.StringIO(text, newline=""), **options)
    for cells in reader:
        if cells:
            yield reader.line_num, cells


def _is_header(first, wanted):
    """Says whether a first row holds the names asked for, or else the usual ones."""
    asked = [column for column in wanted.values() if isinstance(column, str) and not column.isdigit()]
    lower = {cell.strip().lower() for cell in first}
    usual = all(not lower.isdisjoint(USUAL_NAMES[option]) for option in ("text_column", "label_column"))
    return any(column in first for column in asked) or usual


def _refuse_doubtful_header(records, wanted, path):
    """Raises if the first row's label is unique: either a heading, or a class of one row that nothing can learn."""
    column = str(1 if wanted["label_column"] is None else wanted["label_column"])
    labels = [cells[int(column)] for _, cells in records if column.isdigit() and int(column) < len(cells)]
    if len(labels) > 1 and labels[0] not in labels[1:]:
        problem = f"No other row has the first row's label {labels[0]!r}: a heading? Pass `has_header`, True or False."
        raise error(problem, source=path, has_header=None)


def hub_parts(hub, name, wanted):
    """Return split -> [(text or pair, label name), ...] of a data set of PaddleNLP or Hugging Face."""
    return hub_rows(hub, name, lambda data, split: _hub_rows(data, wanted, f"{hub}:{name} ({split})"))


def hub_rows(hub, name, rows_of):
    """Return split -> rows of a data set of PaddleNLP or Hugging Face.

    Args:
        hub (str): "paddlenlp" or "datasets".
        name (str): NAME or NAME:CONFIG.
        rows_of (callable): (data, split) -> its rows; none if they have no labels.
    """
    name, _, config = name.partition(":")
    try:
        found = (_load_paddlenlp if hub == "paddlenlp" else _load_datasets)(name, config or None)
    except Exception as cause:  # no network, no such name, a missing package: each library has errors of its own
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
    """Return the names of the numbers in a column of a hub's data set, or in its lists; None if they have none."""
    feature = (getattr(data, "features", None) or {}).get(column)
    return getattr(data, "label_list", None) or getattr(getattr(feature, "feature", feature), "names", None)


def read_jsonl(path):
    """Return the objects of a file with one JSON object a line."""
    try:
        return [record for _, record in _json_records(path.read_text(encoding="utf-8-sig"))]
    except ValueError as cause:
        raise error(f"This is no file of JSON objects, one a line: {cause}.", source=path) from cause


def _load_paddlenlp(name, config):
    from paddlenlp.datasets import load_dataset

    found = {"train": load_dataset(name, config, splits="train")}
    for split in ("dev", "validation", "test"):
        try:
            found[split] = load_dataset(name, config, splits=split)
        except ValueError:  # its word for a split that this data set lacks
            continue
    return found


def _load_datasets(name, config):
    # Not `datasets.load_dataset`: importing paddlenlp replaces that one by one that runs a data set's own code.
    from datasets.load import load_dataset

    return dict(load_dataset(name, config))


def _hub_rows(data, wanted, source):
    names, table = _flatten([(f"Row {index}", record) for index, record in enumerate(data)])
    label = _column(names, "label_column", wanted["label_column"], source)
    known = label_names(data, names[label])
    unlabelled = (None, "", -1) if known else (None, "")  # a benchmark keeps its test labels to itself
    table = [(place, cells) for place, cells in table if cells[label] not in unlabelled]
    for _, cells in table:
        if known and isinstance(cells[label], int):
            cells[label] = known[cells[label]]
    return _rows(names, table, wanted, source) if table else []


# Rows out of columns.


def _flatten(records):
    """Turns (place, dict) into the names of all columns and (place, cells), None where a record lacks a column."""
    names = list(dict.fromkeys(name for _, record in records for name in record))
    return names, [(place, [record.get(name) for name in names]) for place, record in records]


def _column(names, option, column, source):
    """Returns a column's position."""
    known = {str(i): i for i in range(len(names))}
    known.update({name.lower(): i for i, name in enumerate(names)})
    known.update({name: i for i, name in enumerate(names)})
    of_two = {"text_column": ("0",), "label_column": ("1",)}.get(option, ()) if len(names) == 2 else ()
    for choice in (str(column),) if column is not None else USUAL_NAMES[option] + of_two:
        if choice in known:
            return known[choice]
    raise error(f"Name the column through `{option}`. Valid: {names}.", source=source, **{option: column})


def _rows(names, table, wanted, source):
    """Returns [(text or pair, label name), ...], refusing any row that has not exactly these columns filled."""
    if not table:
        raise error("There are no rows in this file.", source=source)
    columns = [_column(names, option, column, source) for option, column in wanted.items()]
    if len(set(columns)) < len(columns):
        raise error(f"Texts and label are to be different columns of {names}.", source=source, **wanted)
    rows = []
    for place, cells in table:
        if len(cells) != len(names):
            raise error(f"{place}: {len(names)} columns are expected, found {len(cells)}.", source=source)
        *texts, label = [cells[column] for column in columns]  # in the order of load_splits
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise error(f"{place} has no text in the column(s) {[names[c] for c in columns[:-1]]}.", source=source)
        if not isinstance(label, (str, int)) or not str(label).strip():
            raise error(f"{place} has no string or int in column {names[columns[-1]]!r}.", source=source, label=label)
        rows.append((texts[0] if len(texts) == 1 else tuple(texts), str(label).strip()))
    return rows
