"""benchmarks/llrd_evidence.py and llrd_evidence_mean.py: a study resumes, its arms are what they are called.

The report is docs/evidence.md.
"""

import copy
import dataclasses
import json
import math

import evidence_report as report
import llrd_evidence as evidence
import llrd_evidence_mean as study
import numpy as np
import paddle
import pytest
from paddlenlp.transformers import BertConfig, BertForSequenceClassification, BertTokenizer
from project import ROOT

import paddle_ldopt as ldopt

DOCS = ROOT / "docs" / "evidence.md"
NAME = "trec, 60 rows"
WORDS = ["good", "fine", "nice", "bad", "poor", "worse", "thing", "book", "film"]


@pytest.fixture(scope="module")
def encoder_and_texts(tmp_path_factory):
    """A folder with a tiny random `encoder`, with a vocabulary of its own, and the files of a task, `texts`."""
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "encoder").mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "never"]))
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    paddle.seed(0)
    BertForSequenceClassification(BertConfig(vocab_size=15, **size)).save_pretrained(str(folder / "encoder"))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(str(folder / "encoder"))
    (folder / "texts").mkdir()
    rows = [(f"{word} {thing}", "yes" if i < 3 else "no") for i, word in enumerate(WORDS[:6]) for thing in WORDS[6:]]
    for part, some in (("train", rows), ("dev", rows[::4]), ("test", rows[::2])):
        (folder / "texts" / f"{part}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in some))
    return folder


@pytest.fixture(scope="module")
def task(encoder_and_texts):
    sizes = {"examples": 10, "epochs": 3, "batch_size": 4, "validation_rows": 4}
    protocol = evidence.Protocol(model=str(encoder_and_texts / "encoder"), **sizes)
    return evidence.Task(encoder_and_texts / "texts", protocol, seeds=2)


def run_of(task, **changes):
    return evidence.Run(**{"task": task.name, "optimizer": "adamwdl", "arm": "decay 0.8", **changes})


def test_a_study_goes_on_where_it_stopped(task, tmp_path, monkeypatch):
    first, second = (run_of(task, learning_rate=rate, seed=1) for rate in (1e-3, 3e-3))
    trained, train = [], evidence.train
    monkeypatch.setattr(evidence, "train", lambda run, task: trained.append(run) or train(run, task))
    path = tmp_path / "new" / "results.jsonl"
    evidence.study({task.name: task}, [first], path)
    before = path.read_text()
    evidence.study({task.name: task}, [first, second], path)
    assert trained == [first, second]
    assert path.read_text().startswith(before) and len(path.read_text().splitlines()) == 3
    results = evidence.read(path)[1]
    assert list(results) == [first, second]
    assert results[first]["finite"] and results[first]["loss"] != results[second]["loss"]
    right = results[first]["test"] * len(task.test)
    assert right == pytest.approx(round(right), abs=1e-4)


def test_results_of_another_protocol_are_refused(task, tmp_path):
    path, other = tmp_path / "results.jsonl", dataclasses.replace(task.protocol, epochs=4)
    about = {**evidence.about(task), "protocol": dataclasses.asdict(other)}
    path.write_text(json.dumps(about) + "\n")
    with pytest.raises(ValueError, match="another study.*'epochs': 4.*'epochs': 3"):
        evidence.study({task.name: task}, [], path)


@pytest.mark.parametrize("examples", [1, 22])
def test_too_few_rows_are_refused(task, examples):
    task = copy.copy(task)
    task.protocol = dataclasses.replace(task.protocol, examples=examples)
    with pytest.raises(ValueError, match=f"examples={examples}, classes=2, rows=2"):
        task._sample([(text, label) for label in (0, 1) for text in ("a", "b")], seed=0)


def test_the_same_seed_gives_the_same_numbers_whatever_ran_before(task):
    run = run_of(task, learning_rate=1e-2, seed=0)
    first = evidence.train(run, task)
    evidence.train(run_of(task, learning_rate=1e-1, seed=1), task)
    again = evidence.train(run, task)
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


def test_leaving_out_unused_word_vectors_changes_nothing_for_adamw(task, monkeypatch):
    run, small = run_of(task, learning_rate=1e-2, seed=0), task.model(whole=False)
    assert small[0].get_input_embeddings().weight.shape[0] < 15
    cut, model = evidence.train(run, task), task.model
    monkeypatch.setattr(task, "model", lambda whole: model(whole=True))
    whole = evidence.train(run, task)
    assert cut["loss"] == pytest.approx(whole["loss"], abs=2e-5)
    assert (cut["validation"], cut["test"]) == (whole["validation"], whole["test"])


def test_a_loss_that_is_not_finite_is_a_result(task, monkeypatch):
    losses = iter([1.0, math.nan, 1.0])
    monkeypatch.setattr(paddle.nn.functional, "cross_entropy", lambda x, labels: x.sum() * 0 + next(losses, 1.0))
    result = evidence.train(run_of(task, learning_rate=1e-3, seed=0), task)
    assert result["finite"] is False and result["loss"] is None


def curve(*columns):
    """{rate: {seed: run}} of (rate, validation accuracies, test accuracies)."""
    return {
        rate: {seed: {"validation": v, "test": t} for seed, (v, t) in enumerate(zip(validation, test))}
        for rate, validation, test in columns
    }


def test_a_rate_is_chosen_by_the_validation_rows_alone():
    assert report.chosen(curve((1e-4, [0.5, 0.7], [0.9, 0.9]), (1e-3, [0.6, 0.7], [0.1, 0.1]))) == 1e-3
    assert report.chosen(curve((1e-4, [0.6, 0.7], [0.1, 0.1]), (1e-3, [0.7, 0.6], [0.9, 0.9]))) == 1e-4, "the lower"


def test_a_difference_is_paired_by_seed():
    one = curve((1e-3, [0, 0, 0], [0.50, 0.60, 0.70]))
    other = curve((1e-4, [0, 0, 0], [0.49, 0.58, 0.67]))
    assert report.difference(one, 1e-3, other, 1e-4) == "+2.0 [-0.5, +4.5]"
    other[1e-4][2]["test"] = 0.68
    assert report.difference(one, 1e-3, other, 1e-4) == "**+1.7 [+0.2, +3.1]**"


def test_unfinished_seeds_are_left_out(tmp_path):
    about, path = {"about": "a", "rows": ""}, tmp_path / "results.jsonl"
    run = {"task": "a", "optimizer": "adamwdl", "arm": "uniform", "test": 0.5}
    runs = [{**run, "learning_rate": rate, "seed": seed} for seed in (0, 1, 2) for rate in (1e-4, 1e-3)]
    lamb = {**runs[0], "optimizer": "lamb"}
    path.write_text("\n".join(map(json.dumps, [about, *runs[:-1], lamb])))
    results = report.Results(path)
    assert (results.runs, results.unfinished) == (runs[:4], 2)
    path.write_text("\n".join(map(json.dumps, [about, *runs[:3]])))
    with pytest.raises(ValueError, match="No task has two finished seeds"):
        report.Results(path)


def test_the_report_is_what_the_page_says(tmp_path):
    results, means = report.Results(evidence.RESULTS), report.Results(evidence.MEANS)
    text = DOCS.read_text(encoding="utf-8")
    said = report.fill(text, report.parts(results, means))
    assert said == text, "run `python benchmarks/llrd_evidence.py report`"
    of_uniform = f"{means.tasks['trec, 60 rows']['protocol']['tuned']:g}"
    assert f"trec, 60 rows, {report.number(float(of_uniform))}" in text, "the protocol's rate is the one of the table"


def test_the_numbers_in_the_sentences_are_those_of_the_results():
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    results, means = report.Results(evidence.RESULTS), report.Results(evidence.MEANS)

    def gains(found, arm, rates, base="uniform"):
        pairs = ((results_of[arm], results_of[base]) for results_of in map(found.arm_curves, found.tasks))
        return [
            f"{abs(report.gap(curve, rate or report.chosen(curve), other, rate or report.chosen(other))[0]):.1f}"
            for (curve, other), rate in zip(pairs, rates)
        ]

    strong = results.arm_curves("docstrings"), results.arm_curves("trec")
    best = [100 * report.mean(report.scores(of[arm][3e-3])) for of in strong for arm in ("decay 0.65", "uniform")]
    assert (
        "reached {:.1f} % on docstrings (uniform training: {:.1f} %) and {:.1f} % on trec ({:.1f} %)".format(*best)
        in text
    )
    assert "lost {} points on docstrings and {} on trec".format(*gains(results, "decay 0.65", (3e-4, 3e-4))) in text
    assert "at a third of this rate {} and {}".format(*gains(results, "decay 0.65", (1e-4, 1e-4))) in text
    assert "lost {} points on docstrings. All".format(gains(results, "decay 0.65", (None,))[0]) in text
    against = [gains(results, f"decay {decay}", (None, None), "encoder at 0.1")[1] for decay in (0.9, 0.8)]
    assert "were {} to {} points better".format(*against) in text
    assert "gained {} points".format(gains(means, "0.8 by blocks", (3e-4,))[0]) in text
    assert "gained {}, {} and {} points".format(*gains(means, "0.8 by blocks", (1e-4, 1e-4, 3.33e-5))) in text


def test_the_report_changes_with_the_results(tmp_path):
    lines, page = evidence.RESULTS.read_text(encoding="utf-8").splitlines(), tmp_path / "page.md"
    page.write_text(DOCS.read_text(encoding="utf-8"), encoding="utf-8")
    first = next(i for i, line in enumerate(lines) if '"learning_rate": 0.0003' in line)
    lines[first] = json.dumps({**json.loads(lines[first]), "test": 0.0})
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence.main(["report", "--results", str(tmp_path / "results.jsonl"), "--docs", str(page)])
    assert page.read_text(encoding="utf-8") != DOCS.read_text(encoding="utf-8")
    assert (tmp_path / "images" / "evidence_decay.svg").exists()


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
