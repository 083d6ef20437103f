"""Make the pictures of the README: ``python docs/pictures.py``."""

import io
import os
import pathlib

from rich.console import Console

from paddle_ldopt import LayerMap
from paddle_ldopt.tools.cli import load_model

IMAGES = pathlib.Path(__file__).parent / "images"


def main():
    """Draw the layer table and the rates of BERT-base at decay 0.8."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # matplotlib's date, so that the same picture is the same file
    layers = LayerMap.from_model(load_model("BertForSequenceClassification"))
    console = Console(record=True, width=76, file=io.StringIO())
    console.print(layers.table(layerwise_decay=0.8, learning_rate=5e-5))
    console.save_svg(str(IMAGES / "layer_table.svg"), title="python -m paddle_ldopt layers", unique_id="ldopt")
    layers.plot(IMAGES / "layer_rates.svg", layerwise_decay=0.8, learning_rate=5e-5)


if __name__ == "__main__":
    main()
