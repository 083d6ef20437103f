"""Make the pictures of the README: ``python docs/pictures.py``."""

import configparser
import io
import os
import pathlib
import re

from rich.console import Console

from paddle_ldopt import LayerMap
from paddle_ldopt.tools.cli import load_model

ROOT = pathlib.Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TESTED = "Python 3.11, Paddle 3.3.1, CPU"  # with which the whole suite passes: docs/reliability.md
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {value}">
<rect width="{width}" height="20" rx="3" fill="#2f6fb5"/><rect width="{left}" height="20" rx="3" fill="#555"/>
<g fill="#fff" font-family="Verdana,sans-serif" font-size="11"><text x="6" y="14">{label}</text>
<text x="{start}" y="14">{value}</text></g></svg>
"""


def draw_badges():
    """Draw the badges from setup.cfg and `TESTED`, so that they need no network."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)", settings["metadata"]["classifiers"])
    lowest, above = re.search(r">=([\d.]+),<3\.(\d+)", settings["options.extras_require"]["cpu"]).groups()
    badges = {
        "licence": settings["metadata"]["license"],
        "requires": f"Python {pythons[0]} to {pythons[-1]}, Paddle {lowest} to 3.{int(above) - 1}",
        "tested": TESTED,
    }
    for label, value in badges.items():
        left = 7 * len(label) + 10
        text = BADGE.format(label=label, value=value, left=left, start=left + 6, width=left + 7 * len(value) + 12)
        (IMAGES / f"badge_{label}.svg").write_text(text, encoding="utf-8")


def main():
    """Draw the badges, and the layer table and the rates of BERT-base at decay 0.8."""
    draw_badges()
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # matplotlib's date, so that the same picture is the same file
    layers = LayerMap.from_model(load_model("BertForSequenceClassification"))
    console = Console(record=True, width=76, file=io.StringIO())
    console.print(layers.table(layerwise_decay=0.8, learning_rate=5e-5))
    console.save_svg(str(IMAGES / "layer_table.svg"), title="python -m paddle_ldopt layers", unique_id="ldopt")
    layers.plot(IMAGES / "layer_rates.svg", layerwise_decay=0.8, learning_rate=5e-5)


if __name__ == "__main__":
    main()
