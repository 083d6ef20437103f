"""Rows of any kind for training, validation and test, from files, a hub or the recipe itself, and their accounting.

parts = load_parts(options, own={"dates": written_dates}, read=..., rows_of=..., key=..., suffixes=SUFFIXES)
"""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path

from .errors import error
from .files import SUFFIXES, Notes, column_of, flatten
from .start import HUBS

STEMS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
SPLITS = tuple(STEMS)
SHARES = {"test": 0.2, "validation": 0.1}
FEW = 20  # rows; scores on fewer mean little
SHOWN = 3  # wrong rows in an error
DROPPED = 0.05  # the largest share of rows without a text that is dropped; more is an error


@dataclass(frozen=True)
class Parts:
    """Three lists of rows, their description, and what reading them found."""

    train: list
    validation: list
    test: list
    description: str
    notes: Notes = field(default_factory=Notes)

    def each(self, function):
        """Return split -> the result of `function` for its rows."""
        return {split: function(getattr(self, split)) for split in SPLITS}


class Encoded(list):
    """Rows of tokens with what became of their units (`unit`: words, answer tokens): `units` of them, `lost` cut."""

    unit, units, lost, rows_cut, nothing_left = "tokens", 0, 0, 0, 0

    def count(self, units, lost, left=1):
        """Count one row: its units, how many of them are cut, and how many there are to learn from."""
        self.units, self.lost = self.units + units, self.lost + lost
        self.rows_cut, self.nothing_left = self.rows_cut + (lost > 0), self.nothing_left + (left == 0)

    def account(self, rows):
        """Return in words what became of the rows of a split."""
        share = f" ({self.rows_cut / max(rows, 1):.1%})" if self.rows_cut else ""
        cut = f"{self.rows_cut} of {rows} rows cut{share}, {self.lost} of {self.units} {self.unit} lost"
        return cut + (f", {self.nothing_left} rows left without anything to learn" if self.nothing_left else "")


def set_length(options, rows, count, limit, name="max_length", share=0.99):
    """Set `max_length`, if it is None, so that it covers this share of the rows, up to the model's limit.

    `count(row)` returns the number of tokens of a row; at most 2,000 rows are looked at.
    """
    if getattr(options, name) is None:
        lengths = sorted(map(count, rows[:: max(len(rows) // 2000, 1)]))
        enough = lengths[math.ceil(share * (len(lengths) - 1))]
        setattr(options, name, max(min(enough, limit or enough), 8))


def load_parts(options, *, own, read, rows_of, key, suffixes=SUFFIXES):
    """Return the `Parts` of `options.data`; raise ValueError if it does not exist or has no rows.

    Args:
        options (object): has `data`.
        own (dict): name -> function that returns `Parts`.
        read (callable): (path, notes) -> rows of a file.
        rows_of (callable): (data, split) -> rows of a hub's data set.
        key (callable): row -> its text, for `assign`.
        suffixes (tuple[str]): endings of files.
    """
    if options.data in own:
        return own[options.data]()
    notes = Notes()
    hub, _, name = str(options.data).partition(":")
    if hub in HUBS and name:
        parts = hub_rows(hub, name, rows_of)
    else:
        files = split_files(Path(options.data), suffixes, own)
        parts = {split: read(file, notes) for split, file in files.items()}
    return deal(parts, key, str(options.data), notes)


def split_files(path, suffixes, own=()):
    """Return split -> path: of a file for training, or of the train, dev and test files in a folder."""
    if not path.exists():
        accepted = ", ".join((*own, "paddlenlp:NAME", "datasets:NAME", "a file or a folder of", *suffixes))
        raise error(f"The source does not exist. Accepted: {accepted}.", source=path)
    if path.is_file():
        if path.suffix.lower() not in suffixes:
            raise error(f"The name of a data file must end in {', '.join(suffixes)}.", source=path)
        return {"train": path}
    found = {}
    for split, stems in STEMS.items():
        inside = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix.lower() in suffixes]
        files = [file for file in inside if file.name.split(".")[0] in stems]  # also train.char.bmes
        if len(files) > 1 or (split == "train" and not files):
            names = [file.name for file in files]
            raise error(f"The folder must have one {split} file ({', '.join(suffixes)}), not {names}.", source=path)
        if files:
            found[split] = files[0]
    return found


def rows_of_columns(names, table, wanted, source, notes, others=None):
    """Return the cells of the wanted columns of each row; drop rows without one, refuse a file with many of these."""
    if not table:
        raise error("The file has no rows.", source=source)
    others = others or {}
    columns = {
        option: column_of(names, option, name, source, others.get(option, ())) for option, name in wanted.items()
    }
    if len(set(columns.values())) < len(columns):
        raise error(f"These must be different columns of {names}.", source=source, **wanted)
    odd = [f"{place} must have {len(names)} columns, not {len(row)}" for place, row in table if len(row) != len(names)]
    if odd:
        raise error(f"{'; '.join(odd[:SHOWN])}; {len(odd)} of {len(table)} rows are wrong.", source=source)
    rows, empty = [], []
    for place, cells in table:
        lacking = [option for option, i in columns.items() if cells[i] is None or str(cells[i]).strip() in ("", "nan")]
        empty += [f"{place} has no {lacking[0].rpartition('_')[0].replace('_', ' ')}"] if lacking else []
        rows += [] if lacking else [tuple(cells[i] for i in columns.values())]
    if len(empty) > DROPPED * len(table):
        raise error(f"{'; '.join(empty[:SHOWN])}; {len(empty)} of {len(table)} rows are wrong.", source=source)
    for said in empty:
        notes.dropped[said.partition(" has ")[2].replace("no ", "without a ")] += 1
    notes.columns = notes.columns or {option: names[i] for option, i in columns.items()}
    return rows


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
            if rows := rows_of(data, split):
                parts[split] = rows
    if "train" not in parts:
        raise error(f"This data set has no labelled training rows; its splits: {list(found)}.", source=f"{hub}:{name}")
    return parts


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


def table_of(data):
    """Return names and (place, cells) of a hub's data set, as `read_table` does."""
    return flatten([(f"Row {index}", record) for index, record in enumerate(data)])


def label_names(data, column):
    """Return the class names of a column of a hub's data set, or of the lists in it; None without names."""
    feature = (getattr(data, "features", None) or {}).get(column)
    return getattr(data, "label_list", None) or getattr(getattr(feature, "feature", feature), "names", None)


def deal(parts, key, description, notes=None):
    """Return the `Parts` of split -> rows, or of training rows; missing splits are taken from the training rows."""
    parts, notes = {"train": parts} if isinstance(parts, list) else parts, notes or Notes()
    taken = missing(parts)
    dealt = {**parts, **assign(parts["train"], taken, key)}
    check_rows(dealt, description)
    said = f"{description}{say_taken(taken)}: {sizes(dealt)} rows.{notes}{warn_of_few(dealt)}"
    return Parts(**dealt, description=said, notes=notes)


def missing(parts):
    """Return the splits that are missing, with their shares of the training rows."""
    return {split: share for split, share in SHARES.items() if split not in parts}


def say_taken(shares):
    """Return a note on the splits that were taken from the training rows."""
    return f" ({' and '.join(shares)} taken from its training rows by a hash of the text)" if shares else ""


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
