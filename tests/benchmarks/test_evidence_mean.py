"""benchmarks/llrd_evidence_mean.py: arms keep the mean, test splits are large, the plan has every run once."""

import pathlib
import sys

import numpy as np
import pytest

import paddle_ldopt as ldopt

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import llrd_evidence as evidence  # noqa: E402
import llrd_evidence_mean as study  # noqa: E402

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
    assert "validation rows are added to the test rows, and 4 of the training rows" in small.description


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
