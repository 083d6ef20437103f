"""Texts or pairs of texts with classes, sets of labels or scores: from files, hubs, or Python's own docstrings.

splits = load_splits("docstrings", examples_per_class=30)  # the default: no download
splits = load_splits("reviews.csv", text_column="review", label_column="stars")
splits = load_splits("folder/")                            # train, dev and test files
splits = load_splits("paddlenlp:clue:tnews")               # NAME or NAME:CONFIG; or "datasets:glue:sst2"
"""

import dataclasses
import re
import statistics
import sys
from collections import Counter

from .errors import error
from .files import PAIRS, Notes, is_number
from .library_data import docstring_kinds
from .rows import Parts, assign, deal, draw, first_of_each, missing, read_parts, readers, rows_of_columns


@dataclasses.dataclass(frozen=True)
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
    def description(self):
        """Source, sizes, labels and notes in words."""
        if self.kind == "scores":
            scores = [score for _, score in self.train]
            said = f"training scores from {min(scores):g} to {max(scores):g}"
        else:
            counts = _counts(self.train)
            each = ", ".join(f"{label} {counts[number]}" for number, label in enumerate(self.labels))
            if len(self.labels) > 10:
                each = " to ".join(map(str, sorted({min(counts.values()), max(counts.values())})))
                each += f" in each of {len(self.labels)} classes"
            said = f"training rows by label: {each}"
        common = len({text for text, _ in self.train} & {text for text, _ in self.test})
        repeated = f" Training texts that are in the test rows as well: {common}." if common else ""
        return f"{self.source}: {self.sizes} rows; {said}.{repeated}{self.notes}"

    @property
    def scale(self):
        """Mean and standard deviation of the training scores."""
        scores = [score for _, score in self.train]
        return statistics.fmean(scores), statistics.pstdev(scores) or 1.0


def tokens_of(text, tokenizer, max_length=None, counted=None):
    """Return the tokens of a text or a pair, cut to `max_length`; count what is cut."""
    texts = (text,) if isinstance(text, str) else text
    found = dict(tokenizer(*texts, verbose=False))
    length = len(found["input_ids"])
    if counted is not None:
        counted.count(length, max(length - max_length, 0))
    if max_length is None or length <= max_length:
        return found
    return dict(tokenizer(*texts, max_length=max_length, truncation=True))


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
    `kind` is classes, labels or scores; "auto" takes lists, or labels with a `label_separator`, as sets of labels, and
    fractions as scores. `seed` draws `examples_per_class` training rows of each class; None keeps all.

    Raises:
        ValueError: the source is unknown or unreadable, rows lack a text or a label, or the labels are not classes.
    """
    pair = {"text_pair_column": text_pair_column} if text_pair_column is not None else {}
    wanted, notes = {"text_column": text_column, **pair, "label_column": label_column}, Notes()
    if source == "docstrings":
        said = f"First paragraphs of docstrings in Python {sys.version.split()[0]}'s library"
        parts, kind = Parts(**_docstring_parts(), source=said), "classes" if kind == "auto" else kind
    else:
        read, rows_of = readers(wanted, lambda *table: _rows(*table, wanted), encoding, has_header)

        def labelled(records, split, notes):  # benchmarks do not publish their test labels
            label = next((name for name in (label_column, "label", "labels") if name in records[0]), None)
            kept = [row for row in records if label is None or row[label] not in (None, "")]
            notes.dropped["without a label"] += len(records) - len(kept)
            notes.rows += len(records) - len(kept)
            return rows_of(kept, split, notes) if kept else []

        found = read_parts(source, read, labelled, notes, own=("docstrings",))
        kind, found = _labelled(found, kind, label_separator, notes, source)
        parts = deal(found, lambda row: row[0], source, notes)
        if kind == "classes":
            parts = _with_rare(parts, missing(found))
    return _number(parts, kind, source, examples_per_class, seed)


def _docstring_parts():
    """Return split -> (text, kind) of the library's docstrings, with equal classes: accuracy is readable."""
    parts = assign(docstring_kinds(), {"test": 0.4, "validation": 0.1}, key=lambda row: row[0])
    return {split: _sample(part, min(_counts(part).values()), 0) for split, part in parts.items()}


def _rows(names, table, source, notes, wanted):
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
    counts = Counter() if lists else Counter(map(_label, labels))
    numbers = all(map(is_number, counts))
    if kind == "auto":
        fractions = len(counts) > 20 and numbers and not all(float(label).is_integer() for label in counts)
        kind = "labels" if lists else "scores" if fractions else "classes"
    if kind == "scores" and not numbers:
        raise error("Scores must be numbers.", source=source, label=next(t for t in counts if not is_number(t)))
    unique = list(counts.values()).count(1)
    if kind == "classes" and unique > len(labels) / 2:
        problem = f"{unique} of {len(labels)} rows have a unique label: use another column, or `--kind scores`."
        raise error(problem, source=source, label_column=notes.columns["label_column"])
    each = lambda value: map(_label, value if isinstance(value, list) else str(value).split(separator))  # noqa: E731
    read = {"classes": _label, "labels": lambda value: frozenset(filter(None, each(value))), "scores": float}[kind]
    return kind, {split: [(text, read(label)) for text, label in rows] for split, rows in parts.items()}


def _label(value):
    """Return a label as a string; 1.0 becomes "1", because pandas writes integers in a column with gaps as floats."""
    if not isinstance(value, (str, int, float)):
        raise error("A class must be a string or a number.", label=value)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


# Splits out of rows.


def _with_rare(parts, taken):
    """Return `parts`, in which a class of a few rows that all fell elsewhere is for training only."""
    trained, found = _counts(parts.train), {"train": list(parts.train)}
    for split in taken:
        found["train"] += [row for row in getattr(parts, split) if row[1] not in trained]
        found[split] = [row for row in getattr(parts, split) if row[1] in trained]
    return dataclasses.replace(parts, **found)


def _sample(rows, per_class, seed):
    """Keep the first rows of each class in an order drawn from seed and text: small samples are part of large ones."""
    return first_of_each(sorted(rows, key=lambda row: draw(row[0], seed)), per_class)


def _counts(rows):
    return Counter(name for _, label in rows for name in (label if isinstance(label, frozenset) else [label]))


def _number(parts, kind, source, examples_per_class, seed):
    """Return the `Splits` of `parts`; the training rows are sampled, the labels numbered in their order."""
    if examples_per_class is not None and kind != "classes":
        raise error("`examples_per_class` needs classes.", examples_per_class=examples_per_class, kind=kind)
    if kind == "scores":
        return Splits(**vars(parts), labels=["score"], kind=kind)
    counts = _counts(parts.train)
    labels = sorted(counts, key=lambda name: (0, int(name), "") if re.fullmatch("-?[0-9]+", name) else (1, 0, name))
    if len(labels) < 2:
        raise error(f"A classifier needs two labels or more; the training rows have {labels}.", source=source)
    for split, names in parts.each(_counts).items():
        unseen = sorted(set(names) - set(labels))
        if unseen:
            raise error(f"The {split} rows have labels that no training row has: {unseen}.", source=source)
    if examples_per_class is not None:
        parts = dataclasses.replace(parts, train=_sample(parts.train, examples_per_class, seed))
    number = {name: i for i, name in enumerate(labels)}
    read = number.get if kind == "classes" else lambda names: frozenset(number[name] for name in names)
    numbered = parts.each(lambda rows: [(text, read(label)) for text, label in rows])
    return Splits(**{**vars(parts), **numbered}, labels=labels, kind=kind)
