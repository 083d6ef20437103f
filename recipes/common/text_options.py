"""The options of recipes that classify texts."""

import dataclasses
from typing import Optional

from .arguments import check_least, option
from .text_data import load_splits


@dataclasses.dataclass
class TextOptions:
    """Model, data and encoding."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a .tsv, .csv or .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "column of the text: name, or number from 0")
    text_pair_column: Optional[str] = option(None, "column of the second text of a pair: name, or number from 0")
    label_column: Optional[str] = option(None, "column of the label: name, or number from 0")
    has_header: Optional[bool] = option(None, "whether files begin with column names; detected by default")
    encoding: str = option("utf-8", "encoding of the files, such as cp1252, gb18030, utf-16")
    max_length: int = option(64, "maximum tokens per input; longer inputs are cut")

    def __post_init__(self):
        check_least(self, max_length=4)

    def load(self, **more):
        """Return the `Splits` of the data."""
        reading = ("text_column", "text_pair_column", "label_column", "has_header", "encoding")
        return load_splits(self.data, **{name: getattr(self, name) for name in reading}, **more)
