"""benchmarks/llrd_evidence.py and llrd_evidence_mean.py: the studies run, and docs/evidence.md is what they found."""

import re

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


def test_a_study_goes_on_where_it_stopped(encoder_and_texts, tmp_path, monkeypatch):
    sizes = {"examples": 10, "epochs": 3, "batch_size": 4, "validation_rows": 4}
    protocol = evidence.Protocol(model=str(encoder_and_texts / "encoder"), **sizes)
    task = evidence.Task(encoder_and_texts / "texts", protocol, seeds=2)
    first, second = (evidence.Run(task.name, "adamwdl", "decay 0.8", rate, 1) for rate in (1e-3, 3e-3))
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


def test_the_report_is_what_the_page_says(tmp_path):
    text, page = DOCS.read_text(encoding="utf-8"), tmp_path / "page.md"
    emptied = re.sub(r"(<!-- part: .*? -->).*?(<!-- end -->)", r"\1\2", text, flags=re.S)
    page.write_text(emptied, encoding="utf-8")
    evidence.main(["report", "--docs", str(page)])
    assert emptied != text == page.read_text(encoding="utf-8"), "run `python benchmarks/llrd_evidence.py report`"
    assert (tmp_path / "images" / "evidence_decay.svg").exists()
    means = report.Results(evidence.MEANS)
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
    reached = "reached {:.1f} % on docstrings (uniform training: {:.1f} %) and {:.1f} % on trec ({:.1f} %)"
    assert reached.format(*best) in text
    assert "lost {} points on docstrings and {} on trec".format(*gains(results, "decay 0.65", (3e-4, 3e-4))) in text
    assert "at a third of this rate {} and {}".format(*gains(results, "decay 0.65", (1e-4, 1e-4))) in text
    assert "lost {} points on docstrings. All".format(gains(results, "decay 0.65", (None,))[0]) in text
    against = [gains(results, f"decay {decay}", (None, None), "encoder at 0.1")[1] for decay in (0.9, 0.8)]
    assert "were {} to {} points better".format(*against) in text
    assert "gained {} points".format(gains(means, "0.8 by blocks", (3e-4,))[0]) in text
    assert "gained {}, {} and {} points".format(*gains(means, "0.8 by blocks", (1e-4, 1e-4, 3.33e-5))) in text


@pytest.mark.parametrize("arm", study.ARMS)
def test_the_mean_rate_is_the_nominal_one(encoder_and_texts, monkeypatch, arm):
    sizes = {"examples": 6, "epochs": 1, "batch_size": 4, "validation_rows": 4, "test_rows": 9}
    protocol = study.Protocol(model=str(encoder_and_texts / "encoder"), **sizes)
    task, built, create = study.Task(NAME, encoder_and_texts / "texts", protocol, seeds=2), [], ldopt.create

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
