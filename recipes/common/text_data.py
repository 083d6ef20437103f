"""Texts or pairs of texts with classes, sets of labels or scores: from files, hubs, or Python's own docstrings.

splits = load_splits("docstrings", examples_per_class=30)  # the default: no download
splits = load_splits("reviews.csv", text_column="review", label_column="stars")
splits = load_splits("folder/")                            # train, dev and test files
splits = load_splits("paddlenlp:clue:tnews")               # NAME or NAME:CONFIG; or "datasets:glue:sst2"
train = TextDataset(splits.train, tokenizer, 64, splits)
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .errors import error
from .files import PAIRS, SUFFIXES, Notes, read_table
from .library_data import docstring_kinds
from .rows import (  # fmt: skip
    Encoded,
    Parts,
    assign,
    check_examples,
    check_rows,
    draw,
    hub_rows,
    label_names,
    missing,
    rows_of_columns,
    say_taken,
    sizes,
    split_files,
    table_of,
    warn_of_few,
)
from .start import HUBS

KINDS = ("classes", "labels", "scores")


@dataclass(frozen=True)
class Splits(Parts):
    """Three lists of (text or pair of texts, label): a class number, a set of these, or a score; names of classes."""

    labels: list = ()
    kind: str = "classes"

    def target(self, label):
        """Return the label as the loss takes it: a number, a 0 or 1 for each class, or a score of unit deviation."""
        if self.kind == "labels":
            return [float(number in label) for number in range(len(self.labels))]
        return label if self.kind == "classes" else [(label - self.scale[0]) / self.scale[1]]

    @property
    def scale(self):
        """Mean and standard deviation of the training scores."""
        scores = [score for _, score in self.train]
        mean = sum(scores) / len(scores)
        return mean, math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) or 1.0


class TextDataset(Encoded):
    """Tokenized rows of `Splits`, for PaddleNLP's Trainer; what `max_length` cuts is counted."""

    def __init__(self, rows, tokenizer, max_length, splits=None):
        super().__init__()
        self.rows, self.max_length = rows, max_length
        for text, label in rows:
            self.append(
                {**tokens_of(text, tokenizer, max_length, self), "labels": splits.target(label) if splits else label}
            )


def tokens_of(text, tokenizer, max_length, counted=None):
    """Return the tokens of a text or a pair, cut to `max_length`; count what is cut."""
    texts = (text,) if isinstance(text, str) else text
    found = dict(tokenizer(*texts, verbose=False))
    length = len(found["input_ids"])
    if counted is not None:
        counted.count(length, max(length - max_length, 0))
    return found if length <= max_length else dict(tokenizer(*texts, max_length=max_length, truncation=True))


def load_splits(
    source="docstrings",
    *,
    text_column=None,
    text_pair_column=None,
    label_column=None,
    has_header=None,
    encoding=None,
    kind="auto",
    label_separator=None,
    examples_per_class=None,
    seed=0,
):
    """Return the `Splits` of a data set; missing ones are taken from its training rows, by a hash of the text.

    A column is a name or a position from 0; None looks for usual names, then takes text and label from two columns, or
    a pair and its label from three without names. Delimiters, encodings and (`has_header=None`) headers are detected.
    `kind` is one of `KINDS`; "auto" takes lists, or labels with a `label_separator`, as sets of labels, and fractions
    as scores. `seed` draws `examples_per_class` training rows of each class; None keeps all.

    Raises:
        ValueError: the source is unknown or unreadable, rows lack a text or a label, or the labels are not classes.
    """
    if not isinstance(source, (str, Path)):
        raise TypeError(f"`source` must be a string or a path. Received: source={source!r}.")
    if kind not in ("auto", *KINDS):
        raise error(f"`kind` must be auto, {', '.join(KINDS)}.", kind=kind)
    pair = {"text_pair_column": text_pair_column} if text_pair_column is not None else {}
    wanted, notes = {"text_column": text_column, **pair, "label_column": label_column}, Notes()
    hub, _, name = str(source).partition(":")
    if source == "docstrings":
        parts = _docstring_parts()
        note = f"First paragraphs of docstrings in Python {sys.version.split()[0]}'s library"
    else:
        if hub in HUBS and name:
            parts = hub_rows(hub, name, lambda data, split: _of_hub(data, split, wanted, source, notes))
        else:
            parts = {}
            for split, file in split_files(Path(source), SUFFIXES, ("docstrings",)).items():
                names, table = read_table(file, wanted, has_header, encoding, notes=notes)
                parts[split] = _rows(names, table, wanted, file, notes)
        shares = missing(parts)
        parts, note = _labelled(parts, kind, label_separator, notes, source), f"{source}{say_taken(shares)}"
        kind, parts = parts[0], {**parts[1], **_split_off(parts[1]["train"], shares)}
    return _number(parts, "classes" if kind == "auto" else kind, note, source, notes, examples_per_class, seed)


def _docstring_parts():
    """Return split -> (text, kind) of the library's docstrings, with equal classes: accuracy is readable."""
    parts = _split_off(docstring_kinds(), {"test": 0.4, "validation": 0.1})
    return {split: _sample(part, min(_counts(part).values()), 0) for split, part in parts.items()}


def _of_hub(data, split, wanted, source, notes):
    """Return the labelled rows of a hub's split; benchmarks do not publish their test labels."""
    names, table = table_of(data)
    wanted = _with_pair(names, table, wanted)
    at = next(
        (i for i, name in enumerate(names) if name == wanted["label_column"] or name in ("label", "labels")), None
    )
    known = label_names(data, names[at]) if at is not None else None
    hidden = (None, "", -1) if known else (None, "")
    kept = [(place, cells) for place, cells in table if at is None or cells[at] not in hidden]
    notes.dropped["without a label"] += len(table) - len(kept)
    for _, cells in kept if known else ():
        cells[at] = known[cells[at]] if isinstance(cells[at], int) else cells[at]
    return _rows(names, kept, wanted, f"{source} ({split})", notes) if kept else []


def _rows(names, table, wanted, source, notes):
    wanted = _with_pair(names, table, wanted)
    others = {"text_column": ("0",), "label_column": (str(len(names) - 1),)} if len(names) == 2 else {}
    if "text_pair_column" in wanted and names == ["0", "1", "2"]:
        others = {"text_column": ("0",), "text_pair_column": ("1",), "label_column": ("2",)}
    found = rows_of_columns(names, table, wanted, source, notes, others)
    if found and len(found[0]) != len(notes.columns):
        raise error(f"All splits need the columns of the training rows: {notes.columns}.", source=source, has=names)
    wrong = [row for row in found if not all(isinstance(text, str) for text in row[:-1])]
    if wrong:
        raise error("A text is no string.", source=source, row=wrong[0])
    return [(row[0] if len(row) == 2 else row[:2], row[-1]) for row in found]


def _with_pair(names, table, wanted):
    """Add the second text of a pair if the columns have a usual pair's names, or are three without names."""
    lower = {name.lower() for name in names}
    three = names == ["0", "1", "2"] and not all(str(cells[0]).isdigit() for _, cells in table[:100])
    free = wanted["text_column"] is None and "text_pair_column" not in wanted
    if free and (any(lower.issuperset(pair) for pair in PAIRS) or (three and wanted["label_column"] is None)):
        return {"text_column": None, "text_pair_column": None, "label_column": wanted["label_column"]}
    return wanted


# Labels.


def _labelled(parts, kind, separator, notes, source):
    """Return the kind of the labels, and split -> rows with strings, sets of strings or numbers as labels."""
    labels = [label for rows in parts.values() for _, label in rows]
    lists = separator is not None or any(isinstance(label, list) for label in labels)
    texts = [] if lists else [_label(label) for label in labels]
    distinct = set(texts)
    fractions = len(distinct) > 20 and all(map(_is_number, distinct)) and not all(map(_is_whole, distinct))
    kind = ("labels" if lists else "scores" if fractions else "classes") if kind == "auto" else kind
    if kind == "classes":
        check_classes(texts, notes.columns["label_column"], source)
        read = _label
    elif kind == "labels":

        def read(value):
            return frozenset(
                map(_label, value if isinstance(value, list) else filter(None, str(value).split(separator)))
            )

    else:
        if not all(map(_is_number, texts)):
            raise error("Scores must be numbers.", source=source, label=next(t for t in texts if not _is_number(t)))
        read = float
    return kind, {split: [(text, read(label)) for text, label in rows] for split, rows in parts.items()}


def _label(value):
    """Return a label as a string; 1.0 becomes "1", because pandas writes integers in a column with gaps as floats."""
    if not isinstance(value, (str, int, float)):
        raise error("A class must be a string or a number.", label=value)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def check_classes(labels, column, source):
    """Raise ValueError if labels are not classes: fractions, or mostly unique."""
    counts = Counter(labels)
    unique = [label for label, count in counts.items() if count == 1]
    if len(counts) > 20 and not all(map(_is_whole, counts)) and all(map(_is_number, counts)):
        values = ", ".join(list(counts)[:3])
        problem = f"The labels are continuous numbers ({values}...): pass `--kind scores`, or bin them"
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


# Splits out of rows.


def _split_off(rows, shares):
    parts = assign(rows, shares, key=lambda row: row[0])
    if rows and not isinstance(rows[0][1], str):
        return parts
    trained = _counts(parts["train"])
    for split in shares:  # a class of a few rows that all fell elsewhere is of use in training only
        parts["train"] += [row for row in parts[split] if row[1] not in trained]
        parts[split] = [row for row in parts[split] if row[1] in trained]
    return parts


def _sample(rows, per_class, seed):
    """Keep the first rows of each class in an order drawn from seed and text: small samples are part of large ones."""
    kept, seen = [], Counter()
    for text, label in sorted(rows, key=lambda row: draw(row[0], seed)):
        seen[label] += 1
        if seen[label] <= per_class:
            kept.append((text, label))
    return kept


def _counts(rows):
    return Counter(name for _, label in rows for name in (label if isinstance(label, frozenset) else [label]))


def _number(parts, kind, note, source, notes, examples_per_class, seed):
    """Check the splits, sample the training rows, and number the labels in their order (numbers as numbers)."""
    check_rows(parts, source)
    if examples_per_class is not None and kind != "classes":
        raise error("`examples_per_class` needs classes.", examples_per_class=examples_per_class, kind=kind)
    if kind == "scores":
        scores = [score for _, score in parts["train"]]
        said = f"{note}: {sizes(parts)} rows; training scores from {min(scores):g} to {max(scores):g}.{notes}"
        return Splits(**parts, description=said + warn_of_few(parts), notes=notes, labels=["score"], kind=kind)
    counts = _counts(parts["train"])
    labels = sorted(counts, key=lambda name: (0, int(name), "") if re.fullmatch("-?[0-9]+", name) else (1, 0, name))
    if len(labels) < 2:
        raise error(f"A classifier needs two labels or more; the training rows have {labels}.", source=source)
    for split, rows in parts.items():
        unseen = sorted(set(_counts(rows)) - set(labels))
        if unseen:
            raise error(f"The {split} rows have labels that no training row has: {unseen}.", source=source)
    if examples_per_class is not None:
        check_examples(counts, examples_per_class, "rows")
        parts = {**parts, "train": _sample(parts["train"], examples_per_class, seed)}
        if source != "docstrings":  # whose classes were made equal before
            notes.dropped["beyond `examples_per_class`"] += sum(counts.values()) - len(parts["train"])
    number = {name: i for i, name in enumerate(labels)}
    read = number.get if kind == "classes" else lambda names: frozenset(number[name] for name in names)
    numbered = {split: [(text, read(label)) for text, label in rows] for split, rows in parts.items()}
    return Splits(**numbered, description=_describe(parts, labels, note, notes), notes=notes, labels=labels, kind=kind)


def _describe(parts, labels, note, notes):
    counts = _counts(parts["train"])
    each = ", ".join(f"{label} {counts[label]}" for label in labels)
    if len(labels) > 10:
        each = " to ".join(map(str, sorted({min(counts.values()), max(counts.values())})))
        each += f" in each of {len(labels)} classes"
    common = len({text for text, _ in parts["train"]} & {text for text, _ in parts["test"]})
    repeated = f" Training texts that are in the test rows as well: {common}." if common else ""
    return f"{note}: {sizes(parts)} rows; training rows by label: {each}.{repeated}{notes}{warn_of_few(parts)}"
