"""Make the pictures of README.md and docs/pictures.md: ``python docs/pictures.py``."""

import configparser
import io
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import paddle
from matplotlib import pyplot, rc_context
from paddlenlp.transformers import BartConfig, BartForConditionalGeneration
from rich.console import Console

from paddle_ldopt import LayerMap
from paddle_ldopt.tools import load_model
from paddle_ldopt.tools.cli import example_of
from paddle_ldopt.tools.cli import main as command

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


def draw_map(path):
    """Draw the measured layers of a small BART: two towers, coloured by rate."""
    size = {"d_model": 16, "encoder_layers": 6, "decoder_layers": 4, "encoder_attention_heads": 2}
    size |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50}
    tokens = paddle.randint(5, 50, [1, 8])
    model = BartForConditionalGeneration(BartConfig(**size))
    layers = LayerMap.from_model(model, {"input_ids": tokens, "decoder_input_ids": tokens})
    layers.plot(path, layerwise_decay=0.8, learning_rate=5e-5)


def draw_sweep(path):
    """Draw the accuracy of every learning rate and decay of the first study, on trec."""
    lines = (ROOT / "benchmarks/results/llrd_evidence.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if run.get("task") == "trec" and run["optimizer"] == "adamwdl"]
    rates = sorted({run["learning_rate"] for run in runs})
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    cells = [
        [100 * statistics.mean(r["test"] for r in runs if (r["arm"], r["learning_rate"]) == (arm, x)) for x in rates]
        for arm in arms
    ]
    figure, axes = pyplot.subplots(figsize=(5.5, 3.5), layout="constrained")
    figure.colorbar(axes.imshow(cells, aspect="auto"), label="test accuracy, %")
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color="white" if value < 50 else "black")
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(arms)), arms)
    axes.set_xlabel("learning rate of the head")
    figure.savefig(path, metadata={"Date": None})


def make_report(path):
    """Fine-tune as `make finetune` does, and keep the report."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = ROOT / "recipes" / "text_classification.py"
        subprocess.run([sys.executable, str(recipe), "--output_dir=run"], cwd=folder, check=True)
        report = pathlib.Path(folder, "run", "report.html").read_text("utf-8")
        path.write_text(report.replace(f"{ROOT}{os.sep}", ""), "utf-8")


def main():
    """Draw the badges, BERT-base's layer table and rates, a measured map, the rates of a run, a sweep and a report."""
    draw_badges()
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # matplotlib's date, so that the same picture is the same file
    model = load_model("BertForSequenceClassification")
    layers = LayerMap.from_model(model)
    console = Console(record=True, width=76, file=io.StringIO())
    measured = LayerMap.from_model(model, example_of(model, None))  # as the command `layers` does
    console.print(measured.table(layerwise_decay=0.8, learning_rate=5e-5))
    console.save_svg(str(IMAGES / "layer_table.svg"), title="python -m paddle_ldopt layers", unique_id="ldopt")
    with rc_context({"svg.hashsalt": "paddle_ldopt"}):
        layers.plot(IMAGES / "layer_rates.svg", layerwise_decay=0.8, learning_rate=5e-5)
        draw_map(IMAGES / "plot_map.svg")
        draw_sweep(IMAGES / "plot_sweep.svg")
        run = "schedule --lr_scheduler_type cosine --max_steps 1000 --warmup_steps 100 --learning_rate 5e-5"
        command([*run.split(), "--layerwise_lr_decay=0.8", "--layers=12", f"--plot={IMAGES / 'plot_run.svg'}"])
    make_report(IMAGES / "report.html")


if __name__ == "__main__":
    main()
