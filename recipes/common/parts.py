"""Rows of any kind for training, validation and test: from a file, a folder or a hub, or generated.

parts = load_parts("a.jsonl", own={"dates": written_dates}, suffixes=(".jsonl",), read=..., rows_of=..., key=...)
"""

from dataclasses import dataclass
from pathlib import Path

from .text_data import draw
from .text_sources import error, hub_rows, split_files

SHARES = {"test": 0.2, "validation": 0.1}


@dataclass(frozen=True)
class Parts:
    """Three lists of rows and their description."""

    train: list
    validation: list
    test: list
    description: str


def load_parts(source, *, own, suffixes, read, rows_of, key):
    """Return the `Parts` of a source; missing splits are taken from its training rows, by a hash of their text.

    Args:
        source (str|Path): a name in `own`, a file, a folder of train, dev and test files, paddlenlp:NAME[:CONFIG] or
            datasets:NAME[:CONFIG].
        own (dict): name -> function that returns `Parts`.
        suffixes (tuple[str]): endings of files.
        read (callable): path -> rows of a file.
        rows_of (callable): (data, split) -> rows of a hub's data set.
        key (callable): row -> the text whose hash chooses its split; rows with the same text stay together.

    Raises:
        ValueError: the source does not exist or has no rows.
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
    """Return the `Parts` with all splits: a missing test split gets 20 % of the training rows, validation 10 %.

    Args:
        parts (dict|list): split -> rows, at least "train"; or the training rows.
        key (callable): row -> the text whose hash chooses its split.
        description (str): description of the rows.
    """
    parts = {"train": parts} if isinstance(parts, list) else parts
    shares = {split: share for split, share in SHARES.items() if split not in parts}
    dealt = {**{split: [] for split in ("train", "validation", "test")}, **parts, "train": []}
    for row in parts["train"]:
        drawn, least = draw(key(row)), 0.0
        split = "train"
        for name, share in shares.items():
            if least <= drawn < least + share:
                split = name
            least += share
        dealt[split].append(row)
    for split, rows in dealt.items():
        if not rows:
            raise error(f"No rows are left for {split}: give more rows, or a {split} file.", source=description)
    sizes = ", ".join(f"{len(rows)} {split}" for split, rows in dealt.items())
    return Parts(**dealt, description=f"{description}: {sizes} rows.")
