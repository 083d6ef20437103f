"""Rows of any kind for training, validation and test: from a file, a folder or a hub, or generated.

parts = load_parts("a.jsonl", own={"dates": written_dates}, suffixes=(".jsonl",), read=..., rows_of=..., key=...)
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .errors import error
from .text_sources import hub_rows, split_files

SPLITS = ("train", "validation", "test")
SHARES = {"test": 0.2, "validation": 0.1}
FEW = 20  # rows; scores on fewer mean little


@dataclass(frozen=True)
class Parts:
    """Three lists of rows and their description."""

    train: list
    validation: list
    test: list
    description: str

    def each(self, function):
        """Return split -> the result of `function` for its rows."""
        return {split: function(getattr(self, split)) for split in SPLITS}


def load_parts(source, *, own, suffixes, read, rows_of, key):
    """Return the `Parts` of a source; raise ValueError if it does not exist or has no rows.

    Args:
        source (str|Path): a name in `own`, a file, a folder of train, dev and test files, paddlenlp:NAME[:CONFIG] or
            datasets:NAME[:CONFIG].
        own (dict): name -> function that returns `Parts`.
        suffixes (tuple[str]): endings of files.
        read (callable): path -> rows of a file.
        rows_of (callable): (data, split) -> rows of a hub's data set.
        key (callable): row -> its text, for `assign`.
    """
    if source in own:
        return own[source]()
    hub, _, name = str(source).partition(":")
    if hub in ("paddlenlp", "datasets") and name:
        parts = hub_rows(hub, name, rows_of)
    else:
        names = "".join(f'"{kind}", ' for kind in (*own, "paddlenlp:NAME", "datasets:NAME"))
        parts = {split: read(file) for split, file in split_files(Path(source), suffixes, names).items()}
    return deal(parts, key, str(source))


def deal(parts, key, description):
    """Return the `Parts` of split -> rows, or of training rows; missing splits are taken from the training rows."""
    parts = {"train": parts} if isinstance(parts, list) else parts
    dealt = {**parts, **assign(parts["train"], missing(parts), key)}
    check_rows(dealt, description)
    return Parts(**dealt, description=f"{description}: {sizes(dealt)} rows.{warn_of_few(dealt)}")


def missing(parts):
    """Return the splits that are missing, with their shares of the training rows."""
    return {split: share for split, share in SHARES.items() if split not in parts}


def assign(rows, shares, key):
    """Return split -> rows by a hash of their text: equal texts stay together, on every machine and in any order."""
    parts = {split: [] for split in (*shares, "train")}
    for row in rows:
        drawn = draw(key(row))
        for split, share in {**shares, "train": 1.0}.items():
            if drawn < share:
                parts[split].append(row)
                break
            drawn -= share
    return parts


def draw(text, seed=""):
    """Return a number in [0, 1) from a text, or several, and a seed; spaces and case do not matter."""
    words = " ".join((text if isinstance(text, str) else " ".join(text)).casefold().split())
    return int(hashlib.sha1(f"{seed}\n{words}".encode("utf-8", "replace")).hexdigest()[:12], 16) / 16**12


def sizes(parts):
    """Return the number of rows in each split as text."""
    return ", ".join(f"{len(parts[split])} {split}" for split in SPLITS)


def warn_of_unknown(rows, tokenizer, limit=0.05):
    """Return a warning if a tokenizer does not know more than `limit` of the tokens of `rows`, otherwise ""."""
    tokens = [token for row in rows[:1000] for token in row["input_ids"]]
    unknown = tokens.count(tokenizer.unk_token_id) / max(len(tokens), 1)
    if unknown <= limit:
        return ""
    advice = "choose a `--model` for the language of the texts, such as ernie-3.0-base-zh for Chinese"
    return f"\nwarning: the tokenizer does not know {unknown:.1%} of the tokens ([UNK]); {advice}."


def warn_of_few(parts):
    """Return a line that warns if the validation or test rows are too few to judge a model by, or "" if not."""
    few = [f"{len(parts[split])} {split}" for split in ("validation", "test") if len(parts[split]) < FEW]
    advice = f"scores on fewer than {FEW} rows mean little; give more rows, or a separate file for each of these splits"
    return f"\nwarning: few rows to judge by ({', '.join(few)}): {advice}." if few else ""


def check_rows(parts, source):
    """Raise ValueError if a split has no rows."""
    for split, rows in parts.items():
        if not rows:
            raise error(f"No rows are left for {split}: give more rows, or a {split} file.", source=source)


def check_examples(counts, per_class, rows):
    """Raise ValueError if `per_class` is not from 1 to the rows of the rarest class."""
    fewest = min(counts, key=counts.get)
    if type(per_class) is not int or not 1 <= per_class <= counts[fewest]:
        problem = f"`examples_per_class` must be 1 to {counts[fewest]}, the number of training {rows} of {fewest!r}."
        raise error(problem, examples_per_class=per_class)
