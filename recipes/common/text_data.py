"""Text-classification data: Python's own docstrings, a file or folder, PaddleNLP's or Hugging Face's data sets.

    splits = load_splits("docstrings", examples_per_class=30)  # the default: no download
    splits = load_splits("reviews.csv", text_column="review", label_column="stars")
    splits = load_splits("folder/")                            # train, dev and test files: .tsv, .csv or .jsonl
    splits = load_splits("paddlenlp:clue:tnews")               # NAME or NAME:CONFIG; or "datasets:glue:sst2"
    train = TextDataset(splits.train, tokenizer, max_length=64)

In order: the functions for recipes, the docstrings, splits from rows. `text_sources` reads files and hubs.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .errors import error
from .parts import Parts, assign, check_examples, check_rows, draw, missing, sizes, warn_of_few, warn_of_unknown
from .text_sources import Rows, check_labels, file_rows, hub_text_rows

NODES = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
NO_DOCSTRINGS = "The standard library of this Python has no docstrings: give a file instead."
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class Splits(Parts):
    """Three lists of (text or pair of texts, label id), the label names in id order, the columns."""

    labels: list
    columns: dict = field(default_factory=dict)  # "text_column", "text_pair_column", "label_column" -> name


class TextDataset(list):
    """Tokenized rows of `Splits`, for PaddleNLP's Trainer."""

    def __init__(self, rows, tokenizer, max_length):
        self.rows, self.tokenizer, self.max_length = rows, tokenizer, max_length
        super().__init__(
            {**self._tokens(text, max_length=max_length, truncation=True), "labels": label} for text, label in rows
        )

    def _tokens(self, text, **options):
        return self.tokenizer(*((text,) if isinstance(text, str) else text), **options)

    def lengths(self):
        """Return the number of tokens of each row before it is cut."""
        kept = [len(row["input_ids"]) for row in self]
        pairs = zip(kept, self.rows)
        return [
            n if n < self.max_length else len(self._tokens(text, verbose=False)["input_ids"]) for n, (text, _) in pairs
        ]


def say_cut(dataset, limit=0.05):
    """Return what `max_length` cuts of a `TextDataset`, with advice if it is more than `limit` of the rows.

    A second line warns of a tokenizer that does not know more than `limit` of the tokens, such as MiniLM's of Chinese.
    """
    lengths = sorted(dataset.lengths())
    cut = sum(length > dataset.max_length for length in lengths)
    share, length = cut / len(lengths), dataset.max_length
    line = f"{cut} of {len(lengths)} training texts ({share:.1%}) are cut to max_length={length}"
    if share > limit:
        enough = lengths[int((1 - limit) * (len(lengths) - 1))]
        most = dataset.tokenizer.model_max_length  # 1e30 if unknown
        advice = f"--max_length {enough} would cut at most {limit:.0%}"
        line = f"warning: {line}; {advice if enough <= most else f'this model reads at most {most}'}"
    return f"{line}.{warn_of_unknown(dataset, dataset.tokenizer, limit)}"


def load_splits(
    source="docstrings",
    *,
    text_column=None,
    text_pair_column=None,
    pairs=False,
    label_column=None,
    has_header=None,
    encoding="utf-8",
    examples_per_class=None,
    seed=0,
):
    """Return the `Splits` of a data set; missing ones are taken from its training rows, by a hash of the text.

    A column is a name or a position from 0; None looks for usual names, then takes text and label from two columns.
    The delimiter of .csv and .tsv files is detected, and by default (`has_header=None`) also whether they begin with
    column names. In a .tsv a quote is a character like any other unless all cells are quoted as pandas writes them.
    `pairs` demands pairs of texts. `seed` draws `examples_per_class` training rows of each class; None keeps all.

    Raises:
        ValueError: the source is unknown or unreadable, rows lack a text or a label, or the labels are not classes.
    """
    if not isinstance(source, (str, Path)):
        raise TypeError(f"`source` must be a string or a path. Received: source={source!r}.")
    pair = {"text_pair_column": text_pair_column} if pairs or text_pair_column is not None else {}
    wanted = {"text_column": text_column, **pair, "label_column": label_column}
    hub, _, name = str(source).partition(":")
    if source == "docstrings":
        found = Rows(_docstring_parts())
        note = f"First paragraphs of docstrings in Python {sys.version.split()[0]}'s library"
    else:
        is_hub = hub in ("paddlenlp", "datasets") and name
        found = hub_text_rows(hub, name, wanted) if is_hub else file_rows(Path(source), wanted, has_header, encoding)
        labels = [label for rows in found.parts.values() for _, label in rows]
        check_labels(labels, found.columns["label_column"], source)
        found.parts, note = _complete(found.parts, source)
    return _number(found, note, source, examples_per_class, seed)


def _docstring_parts():
    found = {}
    for tree in library_trees():
        for text, kind in _docstrings(tree):
            # One row per opening of four words, so that no template ("Python Character Mapping Codec ...") or
            # repeated text is in two splits; an opening that two kinds share says nothing and is dropped.
            opening = tuple(re.findall(r"\w+", text.casefold())[:4])
            if len(opening) == 4:
                found.setdefault(opening, (text, set()))[1].add(kind)
    rows = [(text, *kinds) for text, kinds in found.values() if len(kinds) == 1]
    if len({kind for _, kind in rows}) < 3:
        raise error(NO_DOCSTRINGS, source="docstrings")
    # Functions outnumber modules fifteen to one: with equal classes chance is one in three and accuracy is readable.
    parts = _split_off(rows, {"test": 0.4, "validation": 0.1})
    return {split: _sample(part, min(_counts(part).values()), 0) for split, part in parts.items()}


def library_trees():
    """Yield the syntax trees of the files of Python's own library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if NOT_LIBRARY.isdisjoint(path.relative_to(root).parts):
            with tokenize.open(path) as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some library files hold escapes that the compiler warns of
                yield ast.parse(file.read())


def _docstrings(tree):
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if type(node) in NODES else None
        if text:
            yield " ".join(re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0].split()), NODES[type(node)]


# Splits out of rows.


def _complete(parts, source):
    """Take missing splits from the training rows; return all three, and a note that says so."""
    shares = missing(parts)
    taken = f" ({' and '.join(shares)} taken from its training rows by a hash of the text)" if shares else ""
    return {**parts, **_split_off(parts["train"], shares)}, f"{source}{taken}"


def _split_off(rows, shares):
    parts = assign(rows, shares, key=lambda row: row[0])
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
    return Counter(label for _, label in rows)


def _number(found, note, source, examples_per_class, seed):
    """Check the splits, sample the training rows, and number the labels in their order (numbers as numbers)."""
    parts, counts = found.parts, _counts(found.parts["train"])
    labels = sorted(counts, key=lambda name: (0, int(name), "") if re.fullmatch("-?[0-9]+", name) else (1, 0, name))
    if len(labels) < 2:
        raise error(f"A classifier needs two labels or more; the training rows have {labels}.", source=source)
    for split, rows in parts.items():
        unseen = sorted(set(_counts(rows)) - set(labels))
        if unseen:
            raise error(f"The {split} rows have labels that no training row has: {unseen}.", source=source)
    check_rows(parts, source)
    if examples_per_class is not None:
        check_examples(counts, examples_per_class, "rows")
        parts = {**parts, "train": _sample(parts["train"], examples_per_class, seed)}
        if source != "docstrings":  # whose classes were made equal before
            found.dropped["beyond `examples_per_class`"] += sum(counts.values()) - len(parts["train"])
    numbered = {split: [(text, labels.index(label)) for text, label in rows] for split, rows in parts.items()}
    return Splits(**numbered, labels=labels, description=_describe(parts, labels, note, found), columns=found.columns)


def _describe(parts, labels, note, found):
    counts = _counts(parts["train"])
    each = ", ".join(f"{label} {counts[label]}" for label in labels)
    if len(labels) > 10:
        each = " to ".join(map(str, sorted({min(counts.values()), max(counts.values())})))
        each += f" in each of {len(labels)} classes"
    common = len({text for text, _ in parts["train"]} & {text for text, _ in parts["test"]})
    repeated = f" Training texts that are in the test rows as well: {common}." if common else ""
    said = f"{note}: {sizes(parts)} rows; training rows by label: {each}.{repeated}"
    if found.columns:
        roles = {option.removesuffix("_column").replace("_", " "): name for option, name in found.columns.items()}
        said += f" Columns: {', '.join(f'{role} = {name!r}' for role, name in roles.items())}."
    dropped = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items() if count)
    return f"{said} Rows dropped: {dropped or 'none'}.{warn_of_few(parts)}"
