"""The recipe as a newcomer meets it: what a run says, its metrics, its report, its help, its refusals."""

import contextlib
import dataclasses
import io
import json
import re
import signal
import types

import numpy as np
import paddle
import pytest
import test_recipes
import text_classification as recipe
from common import classification, comparison, fine_tuning
from common.fine_tuning import Score
from test_recipe_data import write

from paddle_ldopt import SchedulerType
from paddle_ldopt.trainer import StopOnSigterm


def call(argv):
    """Run the recipe in this process; return what it printed to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, paddle.utils.unique_name.guard():
        test_recipes.shorten(patch)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            recipe.main(argv)
    return types.SimpleNamespace(out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """One run on a file of opinions and facts, and what it left."""
    folder = tmp_path_factory.mktemp("run")
    kinds = (("is a charming surprise", "subjective"), ("is shot in black and white", "objective"))
    sentences = [(f"the film number {i} {end}", label) for i in range(70) for end, label in kinds]
    data = write(folder / "subj.csv", sentences, ("text", "label"))
    argv = ["--data", str(data), "--model", tiny, "--num_train_epochs", "3", "--max_length", "6"]
    done = call(
        [*argv, "--logging_steps", "4", "--output_dir", str(folder), *["--disable_tqdm", "True", "--report_to", "none"]]
    )
    done.tiny, done.results = tiny, json.loads((folder / "results.json").read_text())
    return done


def test_a_run_says_what_it_uses_and_what_came_of_it(finished):
    assert "Columns: text = 'text', label = 'label'. Rows dropped: none." in finished.out
    cut = r"^max_length=6: train: \d+ of \d+ rows cut .*; test: .*, scores cover \d+ of \d+ tokens\.$"
    assert re.search(cut, finished.out, re.M)
    rates = r"^peak rates: head [\d.e-]+, top block [\d.e-]+, embeddings [\d.e-]+ \(learning_rate 0.0003 is the mean of"
    assert re.search(rates, finished.out, re.M)
    assert finished.results["test rows"] in finished.out
    for name in ("verdict", "kept"):
        assert f"\n{name}: {finished.results[name]}\n" in finished.out
    assert re.match(r"(beats|does not beat) the baseline \(majority class\)", finished.results["verdict"])
    kept = r"checkpoint-\d+, best validation accuracy \(0\.\d+\); (\d+) of \1 steps done$"
    assert re.match(kept, finished.results["kept"])


def test_the_verdict_knows_which_scores_are_better():
    for metric, sign in (("accuracy", 1), ("perplexity", -1)):
        score = Score(metric, "b", 0.5)
        assert score.verdict(0.5 + 0.25 * sign) == "beats the baseline (b) by 0.250"
        assert score.verdict(0.5 - 0.25 * sign) == "does not beat the baseline (b): 0.250 worse"
        assert score.verdict(0.5) == "does not beat the baseline (b): equal"


def test_the_scores_are_scikit_learns():
    right, found = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]
    scores = classification.class_scores(np.eye(3)[found], right)
    f1 = [4 / 5, 1 / 2, 2 / 3]
    assert scores["accuracy"] == pytest.approx(4 / 6) and scores["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert scores["matthews"] == pytest.approx((4 * 6 - 14 + 2) / np.sqrt((36 - 12) * (36 - 14)))
    logits = np.log(np.eye(3)[found] * [[0.5], [0.6], [0.9], [0.5], [0.7], [0.6]] + 0.1)
    details, tables = classification.judge(logits, right, ["a", "b", "c"], list(zip("uvwxyz", right)))
    assert details["classes"]["a"] == {"precision": 1.0, "recall": 2 / 3, "f1": pytest.approx(4 / 5), "rows": 3.0}
    first, second = tables["Most confident mistakes"][1]
    assert first == ("w", "a", "b", "0.833") and second[:3] == ("y", "b", "c")


def test_a_sigterm_is_heeded_and_the_signal_given_back_after_an_error():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        with pytest.raises(ValueError, match="diverged"), StopOnSigterm():
            signal.raise_signal(signal.SIGTERM)
            assert not heard, "not before the step is over"
            raise ValueError("diverged")
        assert heard == ["SIGTERM"]
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_progress_is_short(finished):
    lines = finished.out.splitlines()
    assert len(lines) < 15, finished.out
    assert sum(bool(re.match(r"step \d+/\d+, \d+ s: .*validation loss \d", line)) for line in lines) == 3
    assert finished.err == f"new weights, not in {finished.tiny}: classifier.bias, classifier.weight.\n"


def test_help_fits_on_two_screens(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        recipe.main(["--help"])
    lines = (text := capsys.readouterr().out).splitlines()
    own = [name for name in recipe.Arguments.__annotations__ if hasattr(recipe.Arguments, name)]
    layerwise = [f.name for f in dataclasses.fields(recipe.Arguments) if f.name.startswith("layerwise_")]
    assert len(lines) <= 90 and max(len(line) for line in lines if line.startswith("  --")) <= 100
    assert len(layerwise) > 10
    for name in (*own, *layerwise, "learning_rate", "fp16"):
        assert re.search(rf"^  --{name} +\S", text, re.M), name
    (kinds,) = re.findall(r"--lr_scheduler_type(.*?)\n  --", text, re.S)
    assert set(re.findall(r"\w+", kinds)) >= {kind.value for kind in SchedulerType}
    assert re.search(r"--layerwise_lr_decay .*\(0\.8\)", text) and "--dataloader_num_workers" not in text


@pytest.mark.parametrize(
    ("uniform", "layerwise", "says"),
    [
        ([0.5, 0.6, 0.55], [0.7, 0.8, 0.76], "scores 0.203 more than uniform .*, 3 seeds\\): decay is better. The"),
        ([0.7, 0.8, 0.76], [0.5, 0.6, 0.55], "decay scores 0.203 less than uniform .*: uniform is better"),
        ([0.5, 0.6], [0.4, 0.8], r"more .*95 % interval -1\.\d+ to \+1\.\d+, 2 seeds\): the difference may be chance"),
        ([0.5], [0.6], "With one seed, this may be chance"),
        ([3.0, 3.1], [2.0, 2.1], "decay scores 1.000 less than uniform .*: decay is better. The better of both does n"),
        ([0.5, float("nan")], [0.6, 0.7], "none, because an arm diverged"),
        ([1.0, 1.0], [1.0, 1.0], "^Verdict: both score the same, seed by seed. The better of both beats the baseline"),
        ([0.3, 0.2], [0.1, 0.3], "The better of both does not beat the baseline \\(majority class\\): 0.250 worse.$"),
    ],
)
def test_the_verdict_of_a_comparison(uniform, layerwise, says):
    score = Score("rmse" if min(uniform) > 1 else "accuracy", "majority class", 0.5)
    assert re.search(says, comparison.verdict(uniform, layerwise, "uniform", "decay", score))


def test_the_interval_is_students():
    assert comparison.interval([1.0, 2.0, 3.0]) == pytest.approx(4.302652729911275 / np.sqrt(3))


def test_a_run_without_evaluations_says_its_step_once_a_minute(monkeypatch, capsys):
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=5, max_steps=9)
    progress = fine_tuning.ShortProgress()
    progress.on_train_begin(None, state, None)
    progress.on_log(None, state, None, logs={"loss": 0.5})
    monkeypatch.setattr(fine_tuning, "SILENCE", 0)
    progress.on_log(None, state, None, logs={"loss": 0.25})
    progress.on_log(None, state, None, logs={"train_runtime": 1.0})
    assert capsys.readouterr().out == "step 5/9, 0 s: training loss 0.250\n"
