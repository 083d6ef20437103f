"""recipes/sweep.py: every run once, in any number of goes; the best by validation; wrong input."""

import json
import pathlib
import shlex
import sys
import types

import image_classification
import pytest
import sweep
from common import arguments, comparison
from paddlenlp.utils.log import logger

RATES = ["--learning_rates", "1e-3", "1e-2"]
ROOT = pathlib.Path(sweep.__file__).parent.parent
FAST = "--max_steps 2 --evaluation_strategy steps --eval_steps 2 --save_strategy steps --save_steps 2 --report_to none"


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    """A recipe that trains nothing: best by validation at a rate of 1e-3, on the test rows at 1e-2."""
    monkeypatch.chdir(tmp_path)
    calls, killed = [], []

    def run(argv):
        calls.append(argv)
        given = dict(part.lstrip("-").split("=") for part in argv if "=" in part)
        folder = pathlib.Path(argv[argv.index("--output_dir") + 1])
        rate, decay, seed = float(given["learning_rate"]), float(given["layerwise_lr_decay"]), int(given["seed"])
        if (rate, decay, seed) in killed:
            raise SystemExit(143)
        (folder / "checkpoint-1").mkdir()
        (folder / "model_state.pdparams").write_text("weights")
        print("what the recipe prints")
        logger.warning("what the recipe logs")
        scores = {"test accuracy": rate * decay + seed / 1000, "majority class baseline": 0.25}
        best = {"best validation accuracy": -abs(rate - 1e-3)}
        (folder / "results.json").write_text(json.dumps({**scores, "test loss": 1.0, **best}))
        (folder / "report.html").write_text("report")

    fake = types.SimpleNamespace(run=run, calls=calls, killed=killed)
    monkeypatch.setitem(sys.modules, "image_classification", fake)
    return fake


def lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_each_run_is_made_once_and_the_best_is_that_of_the_validation_rows(recipe, tmp_path, capsys):
    line = ["--output_dir", "out", *RATES, "--decays", "1.0", "0.5", "--seeds", "2", "--first_seed", "7"]
    sweep.main(line)
    out, err = capsys.readouterr()
    found = lines(tmp_path / "out")
    runs = [(run["seed"], run["learning_rate"], run["layerwise_lr_decay"]) for run in found]
    assert runs == [(seed, rate, decay) for seed in (7, 8) for rate in (1e-3, 1e-2) for decay in (1.0, 0.5)]
    assert found[0]["test"] == pytest.approx(1e-3 + 7e-3) and found[0]["baseline"] == 0.25
    assert "decay 1: 0.009 ± 0.001 at learning rate 0.001, the best by validation" in out
    assert "what the recipe prints" not in out and "what the recipe logs" not in err
    folder = tmp_path / "out/rate0.001-decay1-seed7"
    log = (folder / "log.txt").read_text()
    assert "what the recipe prints" in log and "what the recipe logs" in log
    assert {path.name for path in folder.iterdir()} == {"log.txt", "results.json", "report.html"}
    page = (tmp_path / "out/report.html").read_text()
    assert "decay 0.5 scores" in page and "The better of both does not beat the baseline (majority class)" in page
    assert "decay 0.5 scores" in out and "<td>0.001</td>" in page and page.count("<img") == 1
    sweep.main([*line, "--seeds", "3"])
    assert len(recipe.calls) == 12 and len(lines(tmp_path / "out")) == 12
    with pytest.raises(SystemExit, match="The folder has the runs of another sweep.*Received: output_dir='out'"):
        sweep.main([*line, "--arguments", "--optim lamb"])
    assert len(recipe.calls) == 12


@pytest.mark.parametrize("folder", [[], ["--output_dir", "my sweeps/out"]], ids=["default", "given"])
def test_an_interrupted_sweep_goes_on_by_the_command_that_it_prints(recipe, tmp_path, capsys, folder):
    recipe.killed.append((1e-2, 1.0, 42))
    (tmp_path / "my rows.csv").touch()
    with pytest.raises(SystemExit) as ended:
        few = [*folder, *RATES, "--decays", "1.0", "--seeds", "1"]
        sweep.main([*few, "--arguments", "--model m --data 'my rows.csv'"])
    (out,) = tmp_path.rglob("results.jsonl")
    assert ended.value.code == 143 and len(lines(out.parent)) == 1
    with open(out, "a") as file:
        file.write('{"learning_rate": 0.0')  # a line that was cut short
    recipe.killed.clear()
    first, *_ = capsys.readouterr().out.splitlines()
    program, script, *printed = shlex.split(first.removeprefix("after an interruption: "))
    assert program == sys.executable and (tmp_path / script).samefile(sweep.__file__), "also from another folder"
    sweep.main(printed)
    assert [run["learning_rate"] for run in lines(out.parent)] == [1e-3, 1e-2]
    assert len(recipe.calls) == 3


def test_a_run_that_was_cut_short_is_resumed(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "last_checkpoint", lambda folder: str(folder / "checkpoint-1"))
    with pytest.raises(ValueError, match="is not in list"):  # the recipe above knows nothing of resumes
        sweep.run(["--output_dir", "out", *RATES, "--decays", "1.0", "--seeds", "1"])
    assert recipe.calls == [["--resume_from_checkpoint", "out/rate0.001-decay1-seed42"]]


def test_what_diverges_is_noted_and_never_the_best(recipe, tmp_path, capsys):
    good = recipe.run

    def run(argv):
        if "--learning_rate=0.01" in argv:
            raise ValueError("PaddleNLP error. Loss contains inf or nan values, its value is nan")
        good(argv)

    recipe.run = run
    line = ["--output_dir", "out", "--decays", "1.0", "--seeds", "2", "--learning_rates"]
    sweep.main([*line, "1e-2", "1e-3"])
    assert [run["test"] is None for run in lines(tmp_path / "out")] == [True, False] * 2
    out = capsys.readouterr().out
    assert "0.01            diverged\n" in out and "at learning rate 0.001, the best" in out
    assert "Verdict: decay 1 does not beat the baseline (majority class): 0.207 worse." in out
    with pytest.raises(SystemExit, match="The loss of every run diverged"):
        sweep.main([*line, "1e-2"])


@pytest.mark.parametrize(("metric", "best"), [("perplexity", 1e-2), ("accuracy", 1e-3)])
def test_lower_is_better_for_perplexity(metric, best):
    scores = {1e-3: 9.0, 1e-2: 5.0, 1e-1: float("nan")}
    same = {"layerwise_lr_decay": 1.0, "metric": metric}
    runs = [{**same, "learning_rate": rate, "validation": score} for rate, score in scores.items()]
    assert comparison.best_rate(runs, list(scores), 1.0) == best


def test_a_value_of_a_config_may_begin_with_dashes(tmp_path):
    (tmp_path / "c.yaml").write_text('arguments: "--no_flip"\nlearning_rates: [1e-4, 3e-4]\n')
    options = arguments.parse_line(["--config", str(tmp_path / "c.yaml")], sweep.Options)
    assert options.arguments == "--no_flip" and options.learning_rates == [1e-4, 3e-4]


def test_validation_rows_must_be_scored_by_the_metric_of_the_test(recipe):
    def run(argv):
        folder = pathlib.Path(argv[argv.index("--output_dir") + 1])
        (folder / "results.json").write_text('{"test f1": 0.5, "baseline": 0.1, "best validation loss": 1.0}')

    recipe.run = run
    with pytest.raises(SystemExit, match="The validation rows must be scored.*`--metric_for_best_model` to f1"):
        sweep.main(["--output_dir", "out"])


@pytest.mark.slow
def test_the_config_runs_by_its_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_classification, "pretrained_on_digits", lambda seed: {})
    path = "recipes/configs/vit/sweep.yaml"
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    program, recipe, *argv = shlex.split((ROOT / path).read_text().splitlines()[0].lstrip("# "))
    assert [program, recipe, *argv] == ["python", "recipes/sweep.py", "--config", path]
    few = ["--learning_rates", "1e-3", "--decays", "1.0", "0.65", "--seeds", "1", "--output_dir", "out"]
    sweep.main([*argv, *few, "--arguments", f"{FAST} --disable_tqdm True"])
    assert "runs of image_classification" in capsys.readouterr().out
    found = lines(tmp_path / "out")
    assert [run["layerwise_lr_decay"] for run in found] == [1.0, 0.65] and found[0]["metric"] == "accuracy"
    for run in found:
        folder = tmp_path / f"out/rate0.001-decay{run['layerwise_lr_decay']:g}-seed42"
        assert "steps" in json.loads((folder / "results.json").read_text())
        assert not list(folder.rglob("*.pdparams")) and (folder / "report.html").exists()
