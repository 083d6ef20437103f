"""Prompts and texts as rows of tokens, with labels for the text alone, and the unigram baseline.

inputs, labels = encode_pairs([("upper: ", "Return it in capitals.")], length=64)   # byte by byte
loss = unigram(labels[labels != IGNORED], tested[tested != IGNORED], VOCABULARY)    # per token
"""

import numpy as np

from .errors import error
from .parts import load_parts
from .text_sources import read_jsonl

IGNORED, VOCABULARY = -100, 256  # label of tokens without a loss; size of the vocabulary of bytes


def load_pairs(options, own):
    """Return the `Parts` of (source, target) rows of `options.data`: a name in `own`, .jsonl files, or a hub's data."""
    return load_parts(
        options.data,
        own=own,
        suffixes=(".jsonl",),
        read=lambda path: pairs(read_jsonl(path), options, path),
        rows_of=lambda data, split: pairs(data, options, split),
        key=lambda row: row[0],
    )


def pairs(records, options, source):
    """Return [(source, target), ...] of dicts."""
    rows = []
    for number, record in enumerate(records, 1):
        row = tuple(record.get(field) for field in (options.source_field, options.target_field))
        if not all(isinstance(text, str) and text.strip() for text in row):
            fields = {"source_field": options.source_field, "target_field": options.target_field}
            raise error(f"Row {number} lacks a text: it has {list(record)}.", source=source, **fields)
        rows.append(row)
    return rows


def by_bytes(prompt, text):
    """Return prompt and text as lists of bytes; a line break ends the text."""
    return list(prompt.encode()), list(f"{text}\n".encode())


def by_tokenizer(tokenizer):
    """Return a function prompt, text -> two lists of tokens, with the tokens that begin and end a row."""

    def tokens(prompt, text):
        ids = [tokenizer(prompt)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]]
        return ids[0], [*ids[1], tokenizer.eos_token_id]

    return tokens


def encode_pairs(pairs, length, tokens=by_bytes):
    """Return inputs and labels [rows, length] of (prompt, text) pairs; labels are the next tokens of the text alone."""
    inputs, labels = np.zeros([len(pairs), length], "int64"), np.full([len(pairs), length], IGNORED, "int64")
    for i, pair in enumerate(pairs):
        prompt, text = tokens(*pair)
        row = [*prompt, *text][: length + 1]
        inputs[i, : len(row) - 1] = row[:-1]
        labels[i, len(prompt) - 1 : len(row) - 1] = row[len(prompt) :]
    return inputs, labels


def unigram(train, test, vocabulary):
    """Return the mean of -log p of test tokens, p the share of each among the training tokens, with counts + 1."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    return float(-np.log(counts / counts.sum())[test].mean())
