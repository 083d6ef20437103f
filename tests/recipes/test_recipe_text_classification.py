"""recipes/text_classification.py as users meet it: data, options, wrong input, resumes, comparison."""

import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
from collections import Counter

import paddle
import predict
import pytest
import text_classification as recipe
from common.predictors import Predictor
from processes import search_path
from test_recipe_data import write
from test_recipes import shorten

from paddle_ldopt.trainer import StopOnSigterm, last_checkpoint
from paddle_ldopt.trainer.record import PARTIAL

QUICK = {"max_steps": 1, "evaluation_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
ROOT = pathlib.Path(recipe.__file__).parent.parent
GOOD, BAD = ["great", "lovely", "fine", "superb", "warm", "kind"], ["awful", "poor", "dull", "grim", "cold", "rude"]
ROWS = [
    (f"{word} {thing} {i % 5}", "good" if word in GOOD else "bad")
    for i, thing in enumerate(["film", "book", "chair", "river", "hill", "road", "cat"])
    for word in GOOD + BAD
]


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A file of 84 rows, of which the recipe trains on four batches of 16."""
    return write(tmp_path_factory.mktemp("data") / "rows.tsv", ROWS, ("text", "label"))


@pytest.fixture
def run(tiny, rows, tmp_path, monkeypatch, capsys):
    """Run the recipe in this process, named as in a fresh one; return its Trainer, what it printed and its folder."""
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch)
    built, build = [], recipe.build

    def noted(*args):
        built.append(build(*args))
        return built[-1]

    monkeypatch.setattr(recipe, "build", noted)

    def call(*argv, **options):
        small = {"model": tiny, "data": rows, "num_train_epochs": 1, "report_to": "none", "save_total_limit": 2}
        if "resume_from_checkpoint" in options:
            small = {}  # it has those of its run
        for name, value in {**small, **options}.items():
            values = value if isinstance(value, list) else [value]
            argv = (*argv, f"--{name}", *map(str, values))
        built.clear()
        capsys.readouterr()
        with paddle.utils.unique_name.guard():
            recipe.main(list(argv))
        trainer = built[-1]
        out, folder = capsys.readouterr().out, pathlib.Path(trainer.args.output_dir)
        return types.SimpleNamespace(trainer=trainer, trainers=built[:], out=out, folder=folder)

    return call


def refuse(run, *argv, **options):
    """Run the recipe, which is to end with one line; return the line."""
    with pytest.raises(SystemExit) as ended:
        run(*argv, **options)
    assert isinstance(ended.value.code, str), "sys.exit prints it to stderr and returns 1"
    assert ended.value.code.startswith("error: ") and "\n" not in ended.value.code
    return ended.value.code


def files(folder):
    """Return path -> content of all files below a folder, and the folders."""
    return {p: p.read_bytes() if p.is_file() else None for p in pathlib.Path(folder).rglob("*")}


def model_state(folder):
    return (pathlib.Path(folder) / "model_state.pdparams").read_bytes()


def environment(**more):
    return {**os.environ, "PYTHONPATH": search_path(), **more}


def steps(folder):
    history = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    return [(line["step"], "loss" in line) for line in history]


PAIRS = [(text, f"and {text}", label) for text, label in ROWS]
NAMED = ("stars", "id", "review"), {"text_column": "review", "label_column": "stars"}
BARE = None, {"text_column": 0, "text_pair_column": 1, "label_column": 2, "has_header": False}
FILES = {"named.csv": ([(label, "7", f'{text}, "so"') for text, label in ROWS], *NAMED), "pairs.tsv": (PAIRS, *BARE)}


def test_the_default_data_is_docstrings(run):
    done = run(data=recipe.Arguments.data, **QUICK)
    assert Counter(label for _, label in done.trainer.train_dataset.rows) == {0: 50, 1: 50, 2: 50}
    assert list(done.trainer.model.config.id2label.values()) == ["class", "function", "module"]


@pytest.mark.parametrize(
    ("kind", "warmup", "terminal"),
    [("linear", 0.1, True), ("constant", 0, False), ("reduce_lr_on_plateau", 0.1, False), ("cosine", 0.1, False)],
)
def test_a_terminal_has_a_bar_and_a_folder_the_schedule(run, monkeypatch, kind, warmup, terminal):
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    err.isatty = lambda: terminal
    more = {"optim": "adafactor", "optim_kwargs": '{"scale_parameter": true}'} if kind == "cosine" else {}
    done = run(lr_scheduler_type=kind, **{**QUICK, "evaluation_strategy": "epoch", **more})
    assert done.trainer.args.warmup_ratio == warmup
    assert ("TrainProcess: 100%" in err.getvalue()) == terminal and "step 1/1" in done.out
    assert "global_step" not in done.out + err.getvalue()
    written = {path.name for path in done.folder.glob("schedule.*")}
    assert written == (set() if kind in ("reduce_lr_on_plateau", "cosine") else {"schedule.png", "schedule.csv"})


def test_the_model_of_a_run_is_one_to_start_from(run):
    first = run(output_dir="first")
    again = run(model="first", output_dir="again", num_train_epochs=0)
    assert again.trainer.model.config.id2label == first.trainer.model.config.id2label
    assert model_state("first") == model_state("again")


@pytest.mark.parametrize("name", FILES)
def test_a_file_trains_and_the_command_at_the_end_labels_a_text(run, tmp_path, capsys, name):
    rows, header, options = FILES[name]
    write(tmp_path / name, rows, header)
    done = run(data=name, output_dir="my runs/out", max_length=7, **options, **QUICK)
    test = done.trainer.data["test"]
    data = [done.trainer.train_dataset, done.trainer.eval_dataset, test]
    assert sum(map(len, data)) == len(ROWS) and {len(row["input_ids"]) for row in data[0]} <= set(range(8))
    assert sorted(done.trainer.model.config.id2label.values()) == ["bad", "good"]
    assert {max(row["token_type_ids"]) for part in data for row in part} == {int(name == "pairs.tsv")}
    assert re.search(r"test accuracy [01]\.\d{3} \(majority class: 0\.\d{3}\)", done.out)
    assert str(done.folder / "report.html") in done.out and (done.folder / "report.html").exists()
    (said,) = re.findall(r"^predict: (.*)$", done.out, re.M)
    program, script, *argv = shlex.split(said)
    assert program == sys.executable and (tmp_path / script).samefile(predict.__file__)
    predict.main(argv)
    printed = re.findall(r"^(good|bad) \((0\.\d{3}|1\.000)\)$", capsys.readouterr().out, re.M)
    assert len(printed) == (1 if name == "pairs.tsv" else 2) and all(float(share) >= 0.5 for _, share in printed)
    folder = argv[0]
    assert folder == "my runs/out"
    logits = paddle.to_tensor(done.trainer.predict(test).predictions)
    for row in (0, len(test) - 1):
        words = test.rows[row][0]
        (found,) = Predictor(folder)([(words,) if isinstance(words, str) else words])
        assert found["label"] == done.trainer.model.config.id2label[int(logits[row].argmax())]
        expected = float(paddle.nn.functional.softmax(logits[row]).max())
        assert found["probability"] == pytest.approx(expected, abs=1e-5)


def test_the_mean_rate_is_kept_unless_it_is_declined(run):
    declined = run(layerwise_lr_decay=0.5, layerwise_preserve_mean=False, **QUICK).trainer
    ratios = [row.ratio[0] for row in declined.layer_map.table(optimizer=declined.optimizer).rows]
    assert ratios == pytest.approx([0.125, 0.25, 0.5, 1.0])
    assert recipe.Arguments(output_dir="out", layerwise_lr_decay=1).layerwise_preserve_mean is False


def test_a_run_without_best_model_or_evaluation(run):
    options = {"load_best_model_at_end": False, "evaluation_strategy": "no", "save_strategy": "steps", "save_steps": 3}
    done = run(num_train_epochs=2, **options)
    assert json.loads((done.folder / "results.json").read_text())["best validation accuracy"] >= 0
    assert done.trainer.state.global_step == 8


ERRORS = {
    "decay": ({"layerwise_lr_decay": 1.5}, "`--layerwise_lr_decay` must be"),
    "positions": ({"max_length": 513}, "`--max_length` must be 512 or less for this model. Received: max_length=513"),
    "epochs": ({"num_train_epochs": -1}, "`--num_train_epochs` must be 0 or more"),
    "batch": ({"per_device_train_batch_size": 0, "logging_steps": 0}, "must be 1 or more"),
    "patience for nothing": ({"load_best_model_at_end": False, "early_stopping_patience": 3}, "Early stopping needs"),
    "warm-up for nothing": ({"lr_scheduler_type": "constant", "warmup_steps": 5}, "`constant` has no warm-up: choose"),
    "best of nothing": ({"evaluation_strategy": "no", "save_strategy": "no"}, "needs evaluations"),
    "strategies": ({"evaluation_strategy": "no"}, "strategy"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_input_is_one_line_and_writes_nothing(run, tmp_path, case):
    options, words = ERRORS[case]
    (tmp_path / "folder").mkdir()
    before = files(tmp_path)
    assert words in refuse(run, **options)
    assert files(tmp_path) == before


def test_a_resume_with_other_settings_is_refused_and_changes_nothing(run, tmp_path):
    folder = run(output_dir="first").folder
    before = files(folder)
    assert "layerwise_lr_decay" in refuse(run, resume_from_checkpoint="first", layerwise_lr_decay=0.9)
    assert "own folder" in refuse(run, resume_from_checkpoint="first", output_dir="second")
    assert "checkpoints of another run" in refuse(run, output_dir="first")
    assert "give its `--output_dir` again" in refuse(run, "--compare", resume_from_checkpoint="first")
    assert files(folder) == before and not (tmp_path / "second").exists()


@pytest.mark.slow
def test_a_new_run_is_not_begun_over_one_whose_checkpoints_are_all_damaged(run):
    folder = run(output_dir="first", num_train_epochs=2).folder
    for step in (4, 8):
        os.truncate(folder / f"checkpoint-{step}/optimizer.pdopt", 100)
    before = files(folder)
    assert "checkpoints of another run" in refuse(run, output_dir="first")
    assert files(folder) == before
    for step in (4, 8):  # those that were cut short: the run has nothing to go on from
        (folder / f"checkpoint-{step}/ldopt_layerwise.json").rename(folder / f"checkpoint-{step}/{PARTIAL}")
    assert run(output_dir="first").trainer.state.global_step == 4


def test_a_run_that_diverges_has_an_error_and_a_report(run, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    message = refuse(run, output_dir="out", learning_rate=1e30, max_grad_norm=0, warmup_ratio=0, logging_steps=1)
    assert "nan" in message.lower() or "inf" in message.lower()
    assert "<td>stopped by</td><td>ValueError" in (tmp_path / "out/report.html").read_text()
    assert signal.getsignal(signal.SIGTERM) == before, "the next one is not swallowed"


def script(monkeypatch, values):
    """Have the validation accuracy of each epoch be the one in `values`."""
    build = recipe.build

    def scripted(*args):
        trainer = build(*args)
        trainer.eval_dataset.score = lambda _: {"accuracy": values[round(trainer.state.epoch) - 1]}
        return trainer

    monkeypatch.setattr(recipe, "build", scripted)


def test_early_stopping_stops_and_keeps_the_best(run, monkeypatch):
    """That it is exact after a resume: test_trainer_resume.py and test_checkpoints.py."""
    script(monkeypatch, [0.3, 0.5, 0.4, 0.6, 0.5, 0.6, 0.55, 0.9])
    whole = run(num_train_epochs=8, early_stopping_patience=3, output_dir="whole")
    assert whole.trainer.state.global_step == 28, "three epochs after the best, the fourth"
    assert "kept: checkpoint-16, best validation accuracy (0.600); 28 of 32 steps done" in whole.out
    assert model_state("whole") == model_state("whole/checkpoint-16")


@pytest.mark.slow
def test_sigterm_in_an_epochs_last_step_waits_for_its_evaluation_if_a_batch_is_left(run, monkeypatch):
    step = 1  # of three of the four batches
    script(monkeypatch, [0.9, 0.3, 0.4])
    options = {"num_train_epochs": 3, "gradient_accumulation_steps": 3}
    run(**options, output_dir="whole")
    before = StopOnSigterm.on_step_end

    def signalled(stop, args, state, control, **kwargs):
        if state.global_step == step:
            signal.raise_signal(signal.SIGTERM)
        before(stop, args, state, control, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(StopOnSigterm, "on_step_end", signalled)
        run(**options, output_dir="cut")
    assert ended.value.code == 128 + signal.SIGTERM and last_checkpoint("cut") == f"cut/checkpoint-{step}"
    resumed = run(resume_from_checkpoint="cut")
    assert resumed.trainer.state.best_model_checkpoint == f"cut/checkpoint-{step}"
    assert steps(resumed.folder) == steps(pathlib.Path("whole")) and model_state("cut") == model_state("whole")


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("form", ["whole", "whole/", "./whole/checkpoint-4", "../{here}/whole/checkpoint-4/", "."])
def test_a_run_is_resumed_by_folder_or_checkpoint_with_its_own_arguments(run, tmp_path, monkeypatch, form):
    whole = run(output_dir="whole", num_train_epochs=2, max_length=9, seed=7, learning_rate=1e-3)
    expected, curve = model_state("whole"), steps(whole.folder)
    shutil.rmtree("whole/checkpoint-8")
    if form == ".":
        monkeypatch.chdir("whole")
    resumed = run(resume_from_checkpoint=form.format(here=tmp_path.name))
    assert (resumed.trainer.args.seed, resumed.trainer.args.learning_rate) == (7, 1e-3)
    assert "max_length=9: " in resumed.out
    assert model_state(tmp_path / "whole") == expected and steps(tmp_path / "whole") == curve
    assert "seconds since it was resumed" in (tmp_path / "whole/results.json").read_text()
    again = run(resume_from_checkpoint=str(tmp_path / "whole"))  # nothing is left to train
    assert again.trainer.state.global_step == 8 and model_state(tmp_path / "whole") == expected


@pytest.mark.slow
def test_arguments_of_a_resume_are_those_of_the_next_one(run, tmp_path):
    run(output_dir="first", seed=7, load_best_model_at_end=False)
    longer = run(resume_from_checkpoint="first/checkpoint-4", num_train_epochs=2)
    assert longer.trainer.state.global_step == 8
    assert "layerwise_lr_decay" in refuse(run, resume_from_checkpoint="first", layerwise_lr_decay=0.9)
    shutil.copytree("first", "second")
    shutil.rmtree("second/checkpoint-8")
    again = run(resume_from_checkpoint="second")
    assert again.trainer.state.global_step == 8 and model_state("second") == model_state("first")
    written = json.loads((tmp_path / "second/arguments.json").read_text())
    assert written[-2:] == ["--num_train_epochs", "2"]
    assert not {"--output_dir", "--resume_from_checkpoint"} & set(written), "the folder may be moved"


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("change", ["a label", "a row more", "the order"])
def test_a_resume_with_other_rows_is_refused_and_says_how_to_go_on(run, tmp_path, rows, change):
    (tmp_path / "rows.tsv").write_text(rows.read_text())
    run(data="rows.tsv", output_dir="first", num_train_epochs=2)
    lines = rows.read_text().splitlines()
    if change == "a label":
        lines[9] = lines[9].replace("\tgood", "\tbad") if "\tgood" in lines[9] else lines[9].replace("\tbad", "\tgood")
    else:
        lines = [*lines, "a great day\tgood"] if change == "a row more" else [lines[0], *lines[:0:-1]]
    (tmp_path / "rows.tsv").write_text("\n".join(lines) + "\n")
    shutil.rmtree("first/checkpoint-8")
    before = files("first")
    message = refuse(run, resume_from_checkpoint="first")
    assert "rows changed after the run began" in message and "remove 'first/data.json'" in message
    assert files("first") == before
    os.remove("first/data.json")
    assert run(resume_from_checkpoint="first").trainer.state.global_step >= 8
    assert run(resume_from_checkpoint="first").trainer.state.global_step >= 8, "and they are those of the run"


@pytest.mark.parametrize(
    ("kind", "label", "metric", "predicted"),
    [
        ("labels", lambda i: [["a"], ["a", "b"], ["c"]][i % 3], "micro_f1", "labels"),
        ("scores", lambda i: i / 7, "rmse", "score"),
    ],
)
def test_several_labels_and_scores_are_learnt_and_predicted(run, tmp_path, kind, label, metric, predicted):
    lines = [json.dumps({"text": text, "label": label(i)}) for i, (text, _) in enumerate(ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    done = run(data="a.jsonl", output_dir="out", num_train_epochs=1)
    results = json.loads((done.folder / "results.json").read_text())
    assert list(results)[0] == f"test {metric}" and f"best validation {metric}" in results
    assert done.trainer.args.greater_is_better == (kind == "labels")
    (row,) = Predictor("out")([("great film",)])
    assert predicted in row
    if kind == "scores":
        assert row["score"] == pytest.approx(sum(i / 7 for i in range(len(ROWS))) / len(ROWS), abs=6)
    assert f"These labels have the metrics {metric}" in refuse(run, data="a.jsonl", metric_for_best_model="accuracy")


@pytest.mark.slow
def test_the_comparison_trains_both_arms_alike_and_goes_on(run, tmp_path):
    argv = {"compare_learning_rates": [1e-3, 3e-3], "compare_seeds": 1, "seed": 5, "output_dir": "out"}
    done = run("--compare", **argv)
    grid = [(rate, decay, 5) for rate in (1e-3, 3e-3) for decay in (1.0, 0.8)]
    trained = [(t.args.learning_rate, t.args.layerwise_lr_decay, t.args.seed) for t in done.trainers]
    assert trained == grid and len({t.state.global_step for t in done.trainers}) == 1
    assert "Verdict: " in done.out and "The better of both" in done.out and "report: out/report.html" in done.out
    lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
    assert len(lines) == 4 and not list(tmp_path.rglob("*.pdparams"))
    (tmp_path / "out/results.jsonl").write_text("\n".join(lines[:3]) + "\n")
    assert len(run("--compare", **argv).trainers) == 1, "one was missing"
    assert "another sweep" in refuse(run, "--compare", **{**argv, "max_length": 9})


@pytest.mark.slow
def test_of_two_processes_one_writes(tiny, rows, tmp_path):
    launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "log"]
    arguments = {"model": tiny, "data": rows, "num_train_epochs": 2, "logging_steps": 1, "output_dir": "out"}
    argv = [str(text) for name, value in arguments.items() for text in (f"--{name}", value)]
    env = environment(PADDLE_DISTRI_BACKEND="gloo")
    how = {"cwd": tmp_path, "env": env, "check": True, "capture_output": True, "timeout": 300}
    subprocess.run([*launch, recipe.__file__, *argv], **how)
    logs = [(tmp_path / f"log/workerlog.{rank}").read_text() for rank in (0, 1)]
    assert ["report: " in log for log in logs] == [True, False]
    assert steps(tmp_path / "out") == [(1, True), (2, True), (2, False), (3, True), (4, True), (4, False)]
    assert (tmp_path / "out/report.html").exists() and (tmp_path / "out/results.json").exists()
