"""benchmarks/llrd_evidence_mean.py: arms keep the mean, test splits are large, its report is in evidence_tables.md."""

import json
import pathlib
import sys

import numpy as np
import pytest

import paddle_ldopt as ldopt

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import evidence_mean_report as report  # noqa: E402
import llrd_evidence as evidence  # noqa: E402
import llrd_evidence_mean as study  # noqa: E402
from evidence_report import fill  # noqa: E402

NAME = "trec, 60 rows"


def task_of(folder, **protocol):
    settings = {"examples": 6, "epochs": 1, "batch_size": 4, "validation_rows": 4, "test_rows": 9, **protocol}
    return study.Task(NAME, folder / "texts", study.Protocol(model=str(folder / "encoder"), **settings), seeds=2)


@pytest.mark.parametrize("arm", study.ARMS)
def test_the_mean_rate_is_the_nominal_one(encoder_and_texts, monkeypatch, arm):
    task, built, create = task_of(encoder_and_texts), [], ldopt.create

    def recording(*args, **options):
        built.append((create(*args, **options), options["learning_rate"].base_lr))
        return built[-1][0]

    monkeypatch.setattr(ldopt, "create", recording)
    record = study.train(evidence.Run(NAME, "adamwdl", arm, 1e-3, 0), task)
    ((optimizer, peak),) = built
    model = task.model(whole=False)[0]
    words = model.get_input_embeddings().weight  # the runs leave out unused rows; the mean counts all 15
    rates = {name: peak * optimizer.layerwise_ratio(value) for name, value in model.named_parameters()}
    sizes = [15 * 16 if value is words else value.size for value in model.parameters()]
    by_parameters = np.average(list(rates.values()), weights=sizes)
    by_blocks = np.mean([rates[f"bert.encoder.layers.{i}.linear1.weight"] for i in range(2)])
    assert (by_parameters if "parameters" in arm else by_blocks) == pytest.approx(1e-3, rel=1e-6)
    assert record["mean_ratio"] * peak == pytest.approx(1e-3, rel=1e-5)


def test_a_small_test_split_takes_the_validation_rows(encoder_and_texts):
    enough, small = task_of(encoder_and_texts), task_of(encoder_and_texts, test_rows=12)
    assert [len(enough.test), len(small.test)] == [9, 12]
    assert len(enough.validation) == len(small.validation) == 4
    assert "validation rows are added to the test rows. 4 of the training rows" in small.description


def test_all_rows_and_the_texts_that_are_cut(encoder_and_texts):
    task = task_of(encoder_and_texts, examples=None, max_length=4)
    assert [len(rows) for rows in task.train] == [18, 18]
    assert task.cut_off == 0 and "0.0 % of their texts are longer than 4 tokens." in task.description
    assert task_of(encoder_and_texts, max_length=3).cut_off == 1


def test_the_plan_has_all_arms_of_a_seed_before_the_next():
    names = list(study.TASKS)
    runs = study.plan(names, 10)
    assert len(set(runs)) == len(runs) == 3 * 10 * 7 * 3
    groups = [(runs[i].task, runs[i].seed) for i in range(0, len(runs), 21)]
    assert all((run.task, run.seed) == groups[i // 21] for i, run in enumerate(runs))
    short, other, long = names
    assert groups[:6] == [(short, 0), (other, 0), (short, 1), (other, 1), (long, 0), (short, 2)]
    assert {run.learning_rate for run in runs if run.task == short} == {1e-4, 3e-4, 9e-4}
    assert {run.learning_rate for run in runs if run.task == long} == {3.33e-5, 1e-4, 3e-4}


def results_of(tmp_path, seeds, accuracy):
    """The `Results` of one task with an accuracy for each (arm, rate, seed)."""
    about = {"about": NAME, "rows": "", "majority": 0.3, "protocol": {"tuned": 3e-4}, "versions": {}}
    lines = [
        {**vars(run), "validation": 0.5, "test": accuracy(run), "finite": True, "seconds": 1, "mean_ratio": 0.5}
        for run in study.plan([NAME], seeds)
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, [about, *lines])))
    return report.Results(path)


def test_the_verdict_and_the_default(tmp_path):
    points = {"0.8 by blocks": 0.05, "0.9 by blocks": 0.02, "0.65 by parameters": -0.05}

    def accuracy(run):
        return 0.6 + (points.get(run.arm, 0.0) + 0.001 * run.seed * (run.arm in points)) * (run.learning_rate == 3e-4)

    results = results_of(tmp_path, 3, accuracy)
    assert "| the tuned rate" not in report.in_short(results, [NAME], 10), "less than half of the seeds"
    text = report.in_short(results, [NAME, "other"], 5)
    _, _, third, tuned, triple = (line for line in text.splitlines() if line.startswith("| "))
    assert third.startswith(f"| {NAME} | a third of the tuned rate |  | all |  |")
    assert (
        tuned.startswith(f"| {NAME} | the tuned rate | 0.9 by blocks, 0.8 by blocks | ")
        and "| 0.65 by parameters |" in tuned
    )
    assert tuned.endswith("| 0.8 by blocks: +5.1 [+4.9, +5.3] |")
    assert "The table has 18 differences from uniform training at the same rate" in text
    assert "The 95 % interval is above 0 for 2 of them, below 0 for 1, and includes 0 for 15." in text
    assert f"not finished** ({NAME}: 3 of 5 seeds; other: not in the tables" in text
    assert text.endswith(
        "0.9 by blocks (+2.1), 0.8 by blocks (+5.1)."
        " 0.8 by blocks would become the default; the recipes keep their defaults until all tasks are finished."
    )
    assert "**unlike the tuned rate of the protocol**" in report.setup(results, [NAME], 10)


def test_without_a_gain_the_default_is_uniform(tmp_path):
    text = report.in_short(results_of(tmp_path, 3, lambda run: 0.6), [NAME], 3)
    assert text.endswith("No decay meets the criterion: the default is uniform training.")
    assert "not finished" not in text


def test_the_report_is_what_the_page_says():
    results, planned = report.Results(study.RESULTS), list(study.TASKS)
    text = (ROOT / "docs" / "evidence_tables.md").read_text(encoding="utf-8")
    said = fill(text, report.blocks(results, planned, study.SEEDS))
    assert said == text, "run `python benchmarks/llrd_evidence_mean.py report`"
