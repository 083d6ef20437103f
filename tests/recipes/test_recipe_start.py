"""recipes/common/start.py: what is set before Paddle, what is refused within a second, and how the imports end."""

import shlex
import signal
import subprocess
import sys
import time
import types

import paddle
import pytest
import test_recipes
from common import start
from paddlenlp.trainer.trainer_utils import IntervalStrategy, OptimizerNames
from processes import search_path
from test_recipe_text_classification import environment

from paddle_ldopt import SchedulerType, list_optimizers

AMD = "vendor_id : AuthenticAMD\nflags : sse avx2 fma"


@pytest.mark.parametrize("given", [{}, {"MKL_DEBUG_CPU_TYPE": "4"}])
@pytest.mark.parametrize("text", [AMD, AMD.replace("avx2", "avx"), AMD.replace("AuthenticAMD", "GenuineIntel"), None])
def test_mkl_is_told_of_avx2_on_amd_alone(tmp_path, monkeypatch, text, given):
    monkeypatch.setattr(start.os, "environ", dict(given))
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    start.use_avx2(tmp_path / "cpuinfo")
    assert start.os.environ == ({"MKL_DEBUG_CPU_TYPE": "5"} if text == AMD and not given else given)


SCRIPTS = {path.stem: path for path in (test_recipes.ROOT / "recipes").glob("*.py")}


@pytest.mark.parametrize(
    "line, says",
    [
        ("--data nowhere.csv", "The source does not exist.*Received: data='nowhere.csv'"),
        ("--data=datasets:", "The source does not exist"),
        ("--max_lenght 7", "'--max_lenght' is not a known argument; the nearest is '--max_length'"),
        ("--lr 1e-3", "'--lr' is not a known argument; the nearest is '--learning_rate'"),
        ("--max_length 3", "`--max_length` must be 4 or more. Received: max_length=3"),
        ("--learning_rate fast", r"`--learning_rate` must be a number \(float\)"),
        ("--config nowhere.yaml", "No such file or directory: 'nowhere.yaml'"),
        ("--config list.yaml", "`name: value` lines"),
        ("--config null.yaml", "`max_grad_norm` needs a value.*Received: max_grad_norm=None"),
        ("--config wrong.yaml", "'--sead' is not a known argument; the nearest is '--seed'"),
        ("--resume_from_checkpoint runs/no", "no complete checkpoint to resume from"),
        ("--model ./no", "There is no such file or folder"),
        ("--kind tags", "`--kind` must be one of auto, classes, labels, scores"),
        ("--optim adamx", "`--optim` must be one of adamwdl, .*, adamw,"),
        ("--lr_scheduler_type=step", "`--lr_scheduler_type` must be one of constant, "),
        ("--evaluation_strategy never", "`--evaluation_strategy` must be one of no, steps, epoch"),
        ("--metric_for_best_model rouge_1", "`--metric_for_best_model` must be one of accuracy, "),
        ("--compare_learning_rates 1e-3 high", r"`--compare_learning_rates` must be a number \(float\)"),
        ("--compare perhaps", "`--compare` must be true or false"),
        ("--compare --layerwise_lr_decay 1.00", "`--compare` needs a `--layerwise_lr_decay` below 1"),
        ("--compare --learning_rate 1e-4", "`--compare` takes `--compare_learning_rates` instead"),
        ("--encoding utf-88", "Python does not know this encoding"),
        ("reviews.csv", r"Arguments begin with `--`. Received: arguments=\['reviews.csv'\]"),
        ("--seed 3 4", r"Arguments begin with `--`. Received: arguments=\['4'\]"),
        ("--metrics f1", "'--metrics' is not a known argument"),
        ("--fp16 --device cpu", "`--fp16` needs a GPU: leave it out on a CPU. Received: fp16=True, device='cpu'"),
        ("--bf16=true --device=cpu:0", "`--bf16` needs a GPU"),
        ("--device tpu", "This Paddle has no TPU support.*Received: device='tpu'"),
        ("--sharding_parallel_degree 2", "`--sharding_parallel_degree` exceeds the number of processes.*degree=2"),
        ("image_classification --weights no.pdparams", "There is no such file or folder. Received: weights="),
        ("image_classification --data .", "Images of your own need a model, .*Received: data='.', model=None"),
        ("image_classification --data no", "Accepted: digits, a folder with one subfolder per class, "),
        ("pipeline_sft --optim adamx", "`--optim` must be one of adamwdl, "),
        ("sweep --arguments '--fp16 --device cpu'", "`--fp16` needs a GPU"),
        ("sweep --recipe sweep", "`--recipe` must be one of.*Received: recipe='sweep'"),
        ("sweep --learning_rates 1e-3 high", "`--learning_rates` must be a number"),
        (
            "sweep --arguments=--layerwise_lr_decay=0.9",
            "The sweep sets layerwise_lr_decay of each run: .*arguments='--lay",
        ),
        ("sweep --arguments '--learning_rate 1e-3 --seed 7'", "The sweep sets learning_rate and seed of each run: "),
        (
            "sweep --arguments '--output_dir x'",
            "The sweep sets output_dir of each run: .*or the sweep's own `--output_dir`",
        ),
        ("sweep --seeds 0", "`--seeds` must be 1 or more"),
        ("sweep --arguments '--save_steps 3 --dta x'", "'--dta' is not a known .*nearest is '--data'"),
        ("sweep --recipe seq2seq --arguments '--dta x'", "'--dta' is not a known .*nearest is '--data'"),
        ("seq2seq --metric_for_best_model f1", "must be one of rouge_1, rouge_l, loss"),
        ("token_classification --tag_column tag", r"`--tag_column` must be a number \(int\)"),
        ("masked_lm_pretraining --resume_from_checkpoint .", "no complete checkpoint"),
    ],
)
def test_a_wrong_command_line_is_refused_without_paddle(tmp_path, monkeypatch, line, says):
    monkeypatch.chdir(tmp_path)
    for name, text in (("list", "- 1"), ("null", "max_grad_norm: null"), ("wrong", "sead: 3\nseed: x")):
        (tmp_path / f"{name}.yaml").write_text(text)
    argv = shlex.split(line)
    recipe = argv.pop(0) if argv[0] in SCRIPTS else "text_classification"
    with pytest.raises((ValueError, OSError), match=f"(?s){says}"):
        start.check(SCRIPTS[recipe], argv)


def test_valid_values_are_those_of_the_libraries():
    both = [*list_optimizers(), *(name.value for name in OptimizerNames)]
    assert start.CHOICES["optim"] == tuple(dict.fromkeys(both))
    assert set(start.CHOICES["lr_scheduler_type"]) == {kind.value for kind in SchedulerType}
    assert {kind.value for kind in IntervalStrategy} == set(start.CHOICES["save_strategy"])
    scripts = {name for name, path in SCRIPTS.items() if "\nclass Arguments(" in path.read_text(encoding="utf-8")}
    assert set(start.CHOICES["recipe"]) == scripts


def test_the_devices_are_those_of_the_installed_paddle(tmp_path, monkeypatch):
    assert start._devices() == (["cpu", "gpu"] if paddle.is_compiled_with_cuda() else ["cpu"])
    (tmp_path / "version").mkdir()
    (tmp_path / "version/__init__.py").write_text("cuda_version     = '12.6'\nxpu_xre_version  = 'False'\n")
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(start.importlib.util, "find_spec", lambda name: spec if name == "paddle" else None)
    assert start._devices() == ["cpu", "gpu"]
    start._check_machine({"fp16": []}, {})
    with pytest.raises(ValueError, match="`--fp16` needs a GPU"):
        start._check_machine({"fp16": []}, {"device": "cpu"})


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"predict"}))
def test_a_right_command_line_is_let_through(name, tmp_path):
    (tmp_path / "c.yaml").write_text("output_dir: out\n")
    argv = ["--output_dir", "out", "--config", str(tmp_path / "c.yaml"), "--help"]
    start.check(SCRIPTS[name], argv)
    known = set(start.arguments_of(SCRIPTS[name]))
    assert test_recipes.arguments_of(name) - {"help"} <= known | {f"no_{one}" for one in known}


@pytest.mark.parametrize(
    "line", ["text_classification --data no", "seq2seq --fp16 --device cpu", "predict no 'a text'"]
)
def test_a_wrong_argument_ends_a_process_before_paddle_is_imported(line, tmp_path):
    name, *argv = shlex.split(line)
    path = str(SCRIPTS[name])
    spied = f"import runpy, sys; sys.argv = {[path, *argv]}; sys.path.insert(0, {str(SCRIPTS[name].parent)!r})"
    code = f"{spied}\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\nfinally: print('paddle' in sys.modules)"
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment()}
    ended = subprocess.run([sys.executable, "-c", code], **how)
    assert ended.returncode == 1 and ended.stderr.startswith("error: ") and ended.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.1, 0.2, 0.5, 1, 2, 4])
def test_a_signal_in_the_imports_ends_the_process(tmp_path, number, after):
    command = [sys.executable, str(SCRIPTS["token_classification"]), "--output_dir", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    time.sleep(after)
    process.send_signal(number)
    if after == 0.1 and number == signal.SIGINT:  # Python's `site` swallows it while it reads .pth files: press again
        time.sleep(3)
        process.send_signal(number)
    began = time.monotonic()
    out, _ = process.communicate(timeout=60)
    in_python = process.returncode == 1 and b"init_import_site" in out  # the interpreter was not ready yet
    assert process.returncode in (-number, 128 + number) or in_python
    assert time.monotonic() - began < 20
    assert search_path() and not (tmp_path / "out").exists()
