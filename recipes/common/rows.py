"""Rows of any kind for training, validation and test, from files, a hub or the recipe itself, and their accounting."""

import contextlib
import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import error
from .files import SUFFIXES, TAG_FIELDS, Notes, column_of, flatten, placed, read_table, wrong_rows
from .start import HUBS, ON_HUB

STEMS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
SHARES = {"test": 0.2, "validation": 0.1}
FEW = 20  # rows; scores on fewer mean little


@dataclass(frozen=True)
class Parts:
    """Three lists of rows, where they are from, and what reading them found."""

    train: list
    validation: list
    test: list
    source: str
    notes: Notes = field(default_factory=Notes)
    taken: tuple = ()  # splits that are taken from the training rows

    def __post_init__(self):
        if empty := [split for split, rows in self.each(list).items() if not rows]:
            problem = f"No rows are left for {empty[0]} (equal texts are in one split): give more rows, or this split."
            raise error(problem, source=self.source, dropped=dict(+self.notes.dropped) or "none")  # those not 0

    def each(self, function):
        return {split: function(getattr(self, split)) for split in STEMS}

    @property
    def sizes(self):
        return ", ".join(f"{len(rows)} {split}" for split, rows in self.each(list).items())

    @property
    def description(self):
        return f"{self.source}: {self.sizes} rows.{self.notes}"

    @property
    def warning(self):
        """A line that warns if the validation or test rows are too few to judge a model by, or ""."""
        few = ", ".join(f"{n} {split}" for split, n in self.each(len).items() if n < FEW and split != "train")
        advice = f"scores on fewer than {FEW} rows mean little; give more rows, or each of these splits"
        return f"\nwarning: few rows to judge by ({few}): {advice}." if few else ""


class Encoded(list):
    """Rows of tokens, and how many `units` (words, answer tokens) they had, how many are lost, what `also` happened."""

    unit, rows_read, units, lost, rows_cut, nothing_left = "tokens", 0, 0, 0, 0, 0

    def __init__(self):
        super().__init__()
        self.also = Counter()

    def count(self, units, lost, left=1):
        """Count one row: its units, how many of them are cut, and how many there are to learn from."""
        self.rows_read, self.units, self.lost = self.rows_read + 1, self.units + units, self.lost + lost
        self.rows_cut, self.nothing_left = self.rows_cut + (lost > 0), self.nothing_left + (left == 0)

    def judge(self, logits, labels):
        return {}, {}

    def account(self, split):
        share = f" ({self.rows_cut / self.rows_read:.1%})" if self.rows_cut else ""
        kept = f"scores cover {self.units - self.lost} of {self.units} {self.unit}"
        kept = f"{self.lost} of {self.units} {self.unit} lost" if split == "train" else kept
        left = {"rows left without anything to learn": self.nothing_left} if self.nothing_left else {}
        others = "".join(f", {count} {what}" for what, count in {**left, **self.also}.items())
        return f"{self.rows_cut} of {self.rows_read} rows cut{share}, {kept}{others}"


def set_length(options, rows, count, limit, name="max_length"):
    """Set `max_length`, if it is None, to cover 99 % of the rows' `count(row)` tokens, up to the model's limit."""
    if getattr(options, name) is None:
        lengths = sorted(map(count, rows[:: max(len(rows) // 2000, 1)]))  # of at most about 2,000 rows
        setattr(options, name, max(min(lengths[math.ceil(0.99 * (len(lengths) - 1))], limit or math.inf), 8))


def load_parts(data, *, own, read, rows_of, key, find=None, labels=()):
    """Return the `Parts` of a recipe's `own` data, of files, or of a hub, without rows with hidden `labels`."""
    if data in own:
        return own[data]()
    notes = Notes()
    if ON_HUB.match(str(data)):
        return deal(hub_rows(data, rows_of, labels, notes), key, data, notes)
    if not Path(data).exists():
        raise error(f"The source does not exist. Accepted: {', '.join(own)}, a path, {HUBS}.", source=data)
    found = find(Path(data)) if find else split_files(Path(data), SUFFIXES)
    return deal({split: read(path, notes) for split, path in found.items()}, key, data, notes)


def load_tables(options, wanted, rows, *, own, key, has_header=None, labels=()):
    """Return the `Parts` of tables, JSON or a hub; `rows(names, table, source, notes)` are those of one file."""

    def read(path, notes):
        return rows(*read_table(path, wanted, has_header, options.encoding, notes=notes), path, notes)

    def rows_of(records, split, notes):
        return rows(*flatten(placed(records)), split, notes)

    return load_parts(options.data, own=own, read=read, rows_of=rows_of, key=key, labels=labels)


def split_files(path, suffixes):
    """Return split -> path: of a file for training, or of the train, dev and test files in a folder."""
    if path.is_file():
        if path.suffix.lower() not in suffixes:
            raise error(f"The name of a data file must end in {', '.join(suffixes)}.", source=path)
        return {"train": path}
    found, inside = {}, [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix.lower() in suffixes]
    for split, stems in STEMS.items():
        files = [file.name for file in inside if {file.name.split(".")[0], file.suffix[1:].lower()} & {*stems}]
        if len(files) > 1 or (split == "train" and not files):
            raise error(f"The folder must have one {split} file, as {split}{suffixes[0]}, not {files}.", source=path)
        if files:
            found[split] = path / files[0]
    return found


def rows_of_columns(names, table, wanted, source, notes, others=()):
    """Return the wanted cells of each row that has them; without usual names, columns are in the order of `wanted`."""
    if not table:
        raise error("The file has no rows.", source=source)
    columns, in_order = {}, len(names) == len(wanted) and (len(names) < 3 or names[0] == "0")  # names are positions
    for place, (option, column) in enumerate(wanted.items()):
        columns[option] = column_of(names, option, column, source, (*others, str(place)) if in_order else others)
    if len(set(columns.values())) < len(columns):
        raise error(f"These must be different columns of {names}.", source=source, **wanted)
    wrong = [f"{at} must have {len(names)} columns, not {len(row)}" for at, row in table if len(row) != len(names)]
    if wrong:
        raise wrong_rows(wrong, len(table), source)
    rows, dropped = [], []
    for place, cells in table:
        if any(isinstance(cells[i], (list, dict)) for option, i in columns.items() if option != "label_column"):
            raise error(f"{place}: a text is a list or a dict.", source=source)
        lacking = [option for option, i in columns.items() if cells[i] is None or str(cells[i]).strip() in ("", "nan")]
        if lacking:
            dropped.append((place, lacking[0].rpartition("_")[0].replace("_", " ")))
        else:
            rows.append(tuple(cells[i] if option == "label_column" else str(cells[i]) for option, i in columns.items()))
    notes.drop(dropped, len(table), source)
    notes.columns = notes.columns or {option: names[i] for option, i in columns.items()}
    notes.unread.update(name for i, name in enumerate(names) if name and i not in columns.values())
    return rows


def hub_rows(source, rows_of, labels, notes):
    """Return split -> rows of HUB:NAME or HUB:NAME:CONFIG, without those with hidden labels and splits of these."""
    hub, name, config = (*source.split(":", 2), None)[:3]
    try:
        found = _load(hub, name, config)
    except Exception as cause:  # no network, an unknown name, a missing package: each library has its own errors
        raise error(f"{hub} cannot load this data set: {cause}.", source=f"{hub}:{name}", config=config) from cause
    parts, label = {}, None
    for split, stems in STEMS.items():
        for records in (records_of(found[stem]) for stem in stems if stem in found):
            label = label or next((name for name in labels if records and name in records[0]), None)  # of train
            hidden = [None, "", *[-1] * all(record.get(label) == -1 for record in records)]  # scores of GLUE's STS-B
            shown = [record for record in records if label is None or record.get(label) not in hidden]
            notes.rows += len(records) - len(shown)
            notes.dropped["without a label"] += len(records) - len(shown)
            if shown:
                parts[split] = rows_of(shown, split, notes)
    if "train" not in parts:
        raise error(f"This data set has no labelled training rows; its splits: {list(found)}.", source=source)
    return parts


def _load(hub, name, config):
    if hub == "datasets":  # not `datasets.load_dataset`, which paddlenlp replaces: that runs a data set's own code
        from datasets.load import load_dataset

        return dict(load_dataset(name, config))
    from paddlenlp.datasets import load_dataset

    found = {"train": load_dataset(name, config, splits="train")}
    for split in ("dev", "validation", "test"):
        with contextlib.suppress(ValueError):  # the data set lacks this split
            found[split] = load_dataset(name, config, splits=split)
    return found


def records_of(data):
    """Return the rows of a hub's data set, with names of classes in place of their numbers, None for hidden ones."""
    known = dict.fromkeys(TAG_FIELDS, getattr(data, "label_list", None))
    for column, feature in (getattr(data, "features", None) or {}).items():
        known[column] = getattr(getattr(feature, "feature", feature), "names", None)  # of a class, or a list of classes
    known = {column: names for column, names in known.items() if names}

    def named(value, names):
        if isinstance(value, list):
            found = [named(one, names) for one in value]
            return None if None in found else found
        return value if not isinstance(value, int) else names[value] if value >= 0 else None

    return [{**row, **{name: named(row[name], known[name]) for name in known if name in row}} for row in data]


def deal(parts, key, source, notes=None):
    """Return the `Parts` of split -> rows, or of training rows; missing splits are taken from the training rows."""
    parts = {"train": parts} if isinstance(parts, list) else parts
    taken = {split: share for split, share in SHARES.items() if split not in parts}
    said = f" ({' and '.join(taken)} taken from its training rows, by a hash of each row)" if taken else ""
    parts = {**parts, **assign(parts["train"], taken, key)}
    return Parts(**parts, source=f"{source}{said}", notes=notes or Notes(), taken=tuple(taken))


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


def warn_of_unknown(rows, tokenizer, encoder=True, limit=0.05):
    """Return a warning if a tokenizer does not know more than `limit` of the tokens of `rows`, otherwise ""."""
    tokens = [token for row in rows[:1000] for token in row["input_ids"]] if tokenizer is not None else []
    unknown = tokens.count(tokenizer.unk_token_id) / len(tokens) if tokens else 0
    if unknown <= limit:
        return ""
    advice = "choose a `--model` for the language of the texts" + ", such as ernie-3.0-base-zh for Chinese" * encoder
    return f"\nwarning: the tokenizer does not know {unknown:.1%} of the tokens ([UNK]); {advice}."


def first_of_each(rows, per_class):
    seen, kept = Counter(), []
    for row in rows:
        seen[row[-1]] += 1
        if seen[row[-1]] <= per_class:
            kept.append(row)
    return kept
