"""docs/choosing.md: what it computes, and where it points."""

import pathlib
import re

import pytest

from paddle_ldopt import LayerDecay

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "choosing.md"
TEXT = PAGE.read_text(encoding="utf-8")


def ratios(blocks, decay):
    """Return the ratios of all layers, the embeddings' first and the head's last."""
    return [LayerDecay(decay).ratio(layer, blocks) for layer in range(blocks + 2)]


def test_the_table_of_ratios():
    rows = re.findall(r"^\| (6|12|24) \| (0\.\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", TEXT, re.M)
    assert len(rows) == 10
    for blocks, decay, *shown in rows:
        embeddings, *inside, _ = ratios(int(blocks), float(decay))
        mean = sum(inside) / len(inside)
        for value, text in zip((inside[0], embeddings, mean, 1 / mean), shown):
            digits = len(text.split(".")[1])
            assert float(text) == pytest.approx(value, abs=0.5001 * 10**-digits), (blocks, decay, text)
