"""Texts or pairs of texts with classes, sets of labels or scores: from files, hubs, or Python's own docstrings."""

import dataclasses
import functools
import re
import statistics
import types
from collections import Counter

from . import error
from .files import PAIRS, is_number
from .library_data import docstring_kinds, source_of
from .rows import Parts, assign, draw, first_of_each, load_tables, rows_of_columns

READING = dict.fromkeys(("text_column", "text_pair_column", "label_column", "has_header", "encoding"))
READING |= {"kind": "auto", "label_separator": None}


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
        if self.kind == "scores":
            each = [score for _, score in self.train]
            said = f"labels are scores (`--kind classes` for classes), in training from {min(each):g} to {max(each):g}"
        else:
            counts = _counts(self.train)
            each = ", ".join(f"{label} {counts[number]}" for number, label in enumerate(self.labels))
            if len(self.labels) > 10:
                limits = sorted({min(counts.values()), max(counts.values())})
                each = f"{' to '.join(map(str, limits))} in each of {len(self.labels)} classes"
            numbers = self.kind == "classes" and len(self.labels) > 2 and all(map(is_number, self.labels))
            several = [name for name in self.labels if {name} != {*re.split("[,;|]", name)} <= {*self.labels}]
            said = f"training rows by label: {each}" + " (classes; `--kind scores` for scores)" * numbers
            said += f"; `--label_separator` divides labels such as {several[0]!r}" if several else ""
        common = len({text for text, _ in self.train} & {text for text, _ in self.test})
        repeated = f" Training texts that are in the test rows as well: {common}." if common else ""
        return f"{self.source}: {self.sizes} rows; {said}.{repeated}{self.notes}"

    @functools.cached_property
    def scale(self):
        scores = [score for _, score in self.train]
        return statistics.fmean(scores), statistics.pstdev(scores) or 1.0


def tokens_of(text, tokenizer, max_length=None, counted=None):
    """Return the tokens of a text or a pair, cut to `max_length`; count what is cut."""
    texts = (text,) if isinstance(text, str) else text
    found = dict(tokenizer(*texts, verbose=False))
    length = len(found["input_ids"])
    if counted is not None:
        counted.count(length, max(length - max_length, 0))
    fits = max_length is None or length <= max_length
    return found if fits else dict(tokenizer(*texts, max_length=max_length, truncation=True))


def load_splits(source="docstrings", **given):
    """Return the `Splits` of a data set, read by the options of `READING` that are given."""
    options = types.SimpleNamespace(**{**READING, **given}, data=source)
    pair = {} if options.text_pair_column is None else {"text_pair_column": options.text_pair_column}
    wanted = {"text_column": options.text_column, **pair, "label_column": options.label_column}
    own = {"docstrings": lambda: Parts(**_docstring_parts(), source=source_of("First paragraphs of docstrings"))}
    how = {"has_header": options.has_header, "labels": (options.label_column, "label", "labels")}
    parts = load_tables(options, wanted, functools.partial(_rows, wanted), own=own, key=lambda row: row[0], **how)
    return _number(*_labelled(parts, options), options)


def _docstring_parts():
    """Return split -> (text, kind) of the library's docstrings, with equal classes: accuracy is readable."""
    parts = assign(docstring_kinds(), {"test": 0.4, "validation": 0.1}, key=lambda row: row[0])
    return {split: sample(part, min(_counts(part).values()), 0) for split, part in parts.items()}


def sample(rows, per_class, seed):
    """Return rows of each class, drawn from seed and text: small samples are part of large ones."""
    return first_of_each(sorted(rows, key=lambda row: draw(row[0], seed)), per_class)


def _rows(wanted, names, table, source, notes):
    found = rows_of_columns(names, table, _with_pair(names, table, wanted), source, notes)
    if found and len(found[0]) != len(notes.columns):
        raise error(f"All splits need the columns of the training rows: {notes.columns}.", source=source, has=names)
    return [(row[0] if len(row) == 2 else row[:2], row[-1]) for row in found]


def _with_pair(names, table, wanted):
    """Add the second text of a pair if the columns have a usual pair's names, or are three without names."""
    lower = {name.lower() for name in names}
    first = {str(cells[0]) for _, cells in table[:100]}
    three = names == ["0", "1", "2"] and len(first) > 1 and not all(map(str.isdigit, first))  # no constant, no number
    is_pair = any(lower.issuperset(pair) for pair in PAIRS) or (three and wanted["label_column"] is None)
    both = ("text_column", "text_pair_column") if is_pair and wanted["text_column"] is None else ()
    return {**dict.fromkeys(both), **wanted}


def _labelled(parts, options):
    """Return `Parts` with strings, sets of strings or numbers as labels, and their kind."""
    labels, kind = [label for rows in parts.each(list).values() for _, label in rows], options.kind
    lists = options.label_separator is not None or any(isinstance(label, list) for label in labels)
    if lists and kind not in ("auto", "labels"):
        raise error("Lists, and labels with a separator, are of the kind labels.", source=options.data, kind=kind)
    counts = Counter() if lists else Counter(map(_label, labels))
    numbers = all(map(is_number, counts))
    if kind == "auto":
        fractions = numbers and not all(float(label).is_integer() for label in counts)
        kind = "labels" if lists else "scores" if fractions else "classes"
    if kind == "scores" and not numbers:
        raise error("Scores must be numbers.", source=options.data, label=next(t for t in counts if not is_number(t)))
    unique = list(counts.values()).count(1)
    if kind == "classes" and unique > len(labels) / 2:
        problem = f"{unique} of {len(labels)} rows have a unique label: use another column, or `--kind scores`."
        raise error(problem, source=options.data, label_column=parts.notes.columns["label_column"])
    split = lambda value: value if isinstance(value, list) else str(value).split(options.label_separator)  # noqa: E731
    several = lambda value: frozenset(filter(None, map(_label, split(value))))  # noqa: E731
    read = {"classes": _label, "labels": several, "scores": float}[kind]
    parts = dataclasses.replace(parts, **parts.each(lambda rows: [(text, read(label)) for text, label in rows]))
    return parts if kind == "scores" else _with_rare(parts), kind


def _label(value):
    """Return a label as a string; 1.0 becomes "1", because pandas writes integers in a column with gaps as floats."""
    if not isinstance(value, (str, int, float)):
        raise error("A class must be a string or a number.", label=value)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _with_rare(parts):
    """Return `parts`, in which a class of a few rows that all fell elsewhere is for training only."""
    trained, found = _counts(parts.train).keys(), {"train": list(parts.train)}
    for split in parts.taken:
        found["train"] += [row for row in getattr(parts, split) if not _counts([row]).keys() <= trained]
        found[split] = [row for row in getattr(parts, split) if _counts([row]).keys() <= trained]
    return dataclasses.replace(parts, **found)


def _counts(rows):
    return Counter(name for _, label in rows for name in (label if isinstance(label, frozenset) else [label]))


def _number(parts, kind, options):
    if kind == "scores":
        return Splits(**vars(parts), labels=["score"], kind=kind)
    counts = _counts(parts.train)
    labels = sorted(counts, key=lambda name: (0, int(name), "") if re.fullmatch("-?[0-9]+", name) else (1, 0, name))
    if len(labels) < 2:
        raise error(f"A classifier needs two labels or more; the training rows have {labels}.", source=options.data)
    for split, names in parts.each(_counts).items():
        if unseen := sorted(set(names) - set(labels)):
            raise error(f"The {split} rows have labels that no training row has: {unseen}.", source=options.data)
    number = {name: i for i, name in enumerate(labels)}
    read = number.get if kind == "classes" else lambda names: frozenset(number[name] for name in names)
    numbered = parts.each(lambda rows: [(text, read(label)) for text, label in rows])
    return Splits(**{**vars(parts), **numbered}, labels=labels, kind=kind)
