"""The recipe as a newcomer meets it: what a run says, its metrics, its report, its help, its refusals."""

import contextlib
import dataclasses
import io
import itertools
import json
import re
import signal
import types

import numpy as np
import paddle
import pytest
import test_recipes
import text_classification as recipe
from common import classification, comparison
from common.fine_tuning import Score
from test_recipe_data import write

from paddle_ldopt import SchedulerType
from paddle_ldopt.trainer import StopOnSigterm

NEW = "new weights, not in {}: classifier.bias, classifier.weight.\n"
SMALL = ["--disable_tqdm", "True", "--report_to", "none"]
OPENINGS = ("please", "hello, can you", "i want to", "how do i", "urgent:", "is there a way to")
THINGS = ("film", "story", "script", "cast", "music", "ending", "pacing", "director", "hero", "comedy", "drama")
OPINIONS = ("is a charming surprise", "never quite works", "feels oddly moving", "deserves far better")
OPINIONS += ("is a tedious mess", "will win you over", "is too clever by half", "wears its heart proudly")
FACTS = ("moves to the city with a brother", "is shot in black and white", "opens in a small town in 1942")
FACTS += ("follows two sisters to the coast", "runs for ninety minutes", "was made in four weeks", "has three parts")
VERBS = ("reads", "sees", "likes", "sells", "paints", "finds", "wants", "keeps")
NOUNS = ("the letter", "a red car", "these books", "an apple", "the garden", "two chairs", "some bread", "her picture")


def cola():
    """Return [(label, text), ...]: 1 for a sentence, 0 for one with two neighbouring words exchanged."""
    rows = []
    for number, parts in enumerate(itertools.product(THINGS, VERBS, NOUNS[:4])):
        words = " ".join(("the", *parts)).split()
        if number % 3 == 0:
            at = number % (len(words) - 1)
            words[at : at + 2] = words[at + 1], words[at]
        rows.append((int(number % 3 != 0), " ".join(words)))
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with subj.csv (opinion or fact), banking.csv (77 intents) and cola.tsv (grammatical or not)."""
    folder = tmp_path_factory.mktemp("files")
    ends = [(end, "subjective") for end in OPINIONS] + [(end, "objective") for end in FACTS]
    sentences = [(f"the {thing} {end}", label) for thing in THINGS for end, label in ends]
    write(folder / "subj.csv", sentences, ("text", "label"))
    whose = itertools.product(OPENINGS, ("my", "the"), range(77))
    intents = [(f"{opening} change {one} setting {intent}", f"change_{intent}") for opening, one, intent in whose]
    write(folder / "banking.csv", intents, ("text", "category"))
    write(folder / "cola.tsv", cola())
    return folder


def call(argv, code=None):
    """Run the recipe in this process; return what it printed to stdout and stderr."""
    ends = contextlib.nullcontext() if code is None else pytest.raises(SystemExit)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, paddle.utils.unique_name.guard():
        test_recipes.shorten(patch)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), ends as ended:
            recipe.main(argv)
    assert code is None or ended.value.code == code
    return types.SimpleNamespace(out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="module")
def finished(files, tiny):
    """One run on the file of opinions and facts, and what it left."""
    argv = ["--data", str(files / "subj.csv"), "--model", tiny, "--num_train_epochs", "3", "--max_length", "6"]
    folder = files / "run"
    done = call([*argv, "--logging_steps", "4", "--output_dir", str(folder), *SMALL])
    done.tiny, done.results = tiny, json.loads((folder / "results.json").read_text())
    done.history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
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


@pytest.mark.parametrize(
    ("metric", "reached", "says"),
    [
        ("accuracy", 0.75, "beats the baseline (b) by 0.250"),
        ("accuracy", 0.5, "does not beat the baseline (b): equal"),
        ("perplexity", 0.75, "does not beat the baseline (b): 0.250 worse"),
        ("perplexity", 0.25, "beats the baseline (b) by 0.250"),
    ],
)
def test_the_verdict_knows_which_scores_are_better(metric, reached, says):
    assert Score(metric, "b", 0.5).verdict(reached) == says


@pytest.mark.parametrize(
    ("name", "argv", "classes", "says"),
    [
        ("banking.csv", [], 77, r"\d to \d+ in each of 77 classes"),
        ("cola.tsv", ["--label_column", "0", "--text_column", "1"], 2, r"0 80, 1 164"),
    ],
)
def test_other_files_of_a_newcomer_run(files, tiny, tmp_path, name, argv, classes, says):
    best = ["--metric_for_best_model", "matthews"]
    few = ["--max_steps", "1", "--evaluation_strategy", "steps", "--save_strategy", "steps", "--save_steps", "1"]
    argv = [*argv, *best, *few, "--eval_steps", "1", "--data", str(files / name), "--model", tiny]
    done = call([*argv, "--output_dir", str(tmp_path), *SMALL])
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["classes"]) == classes and "best validation matthews" in results
    assert re.search(r"^max_length=\d+: train: ", done.out, re.M)
    assert re.search(rf"training rows by label: {says}\.", done.out)


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


def test_the_rates_of_a_line_are_of_one_step(finished):
    lines = [line for line in finished.history if "lr/head" in line]
    assert len(lines) > 3
    for line in lines:
        mean = (0.8 + 0.8**2) / 2  # of the ratios of the two blocks, which the recipe keeps
        assert line["learning_rate"] == pytest.approx(line["lr/head"] * mean, rel=1e-5)


def test_the_progress_is_short(finished):
    lines = finished.out.splitlines()
    assert len(lines) < 15, finished.out
    assert sum(bool(re.match(r"step \d+/\d+, \d+ s: .*validation loss \d", line)) for line in lines) == 3
    assert finished.err == NEW.format(finished.tiny)


def test_help_fits_on_two_screens():
    text = call(["--help"], code=0).out
    lines = text.splitlines()
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
        ([0.5, float("nan")], [0.6, 0.7], "none, because an arm diverged"),
        ([1.0, 1.0], [1.0, 1.0], "^Verdict: both score the same, seed by seed. The better of both beats the baseline"),
        ([0.3, 0.2], [0.1, 0.3], "The better of both does not beat the baseline \\(majority class\\): 0.250 worse.$"),
    ],
)
def test_the_verdict_of_a_comparison(uniform, layerwise, says):
    score = Score("accuracy", "majority class", 0.5)
    assert re.search(says, comparison.verdict(uniform, layerwise, "uniform", "decay", score))


def test_lower_is_better_for_some_scores():
    found = comparison.verdict([3.0, 3.1], [2.0, 2.1], "uniform", "decay", Score("rmse", "mean score", 4.0))
    assert "decay scores 1.000 less than uniform" in found and "decay is better. The better of both beats" in found


def test_the_interval_is_students():
    assert comparison.interval([1.0, 2.0, 3.0]) == pytest.approx(4.302652729911275 / np.sqrt(3))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--fp16", "True"], "`fp16` needs a GPU: leave it out on a CPU. Received: fp16=True, device='cpu'"),
        (["--bf16", "True"], "`bf16` needs a GPU"),
        (["--device", "gpu"], "This Paddle has no GPU support.*Received: device='gpu'"),
        (["--tensor_parallel_degree", "2"], "`tensor_parallel_degree` exceeds the number of processes.*degree=2"),
        (["--fp16", "--pipeline_parallel_degree", "2"], "`fp16` needs a GPU"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(tmp_path, monkeypatch, argv, says):
    if paddle.is_compiled_with_cuda():
        pytest.skip("a Paddle for GPUs runs them")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^error: .*{says}"):
        recipe.main(argv)
    assert not list(tmp_path.iterdir())
