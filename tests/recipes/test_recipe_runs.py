"""recipes/common/: run_folder, plain_loop and arguments: stops, resumes, whole files."""

import json
import os
import signal

import matching
import paddle
import pytest
import seq2seq
import sweep
from common import arguments, plain_loop, run_folder
from paddlenlp.trainer import TrainerCallback

from paddle_ldopt import LdoptConfig
from paddle_ldopt.trainer import StopOnSigterm, last_checkpoint

OF_SEQ2SEQ = (seq2seq.Options, seq2seq.Arguments)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A function that parses a config and what is given beside it; the folder of runs is a temporary one."""
    monkeypatch.chdir(tmp_path)

    def parsed(text, *classes, more=()):
        (tmp_path / "c.yaml").write_text(text)
        return arguments.parse(["--config", "c.yaml", *more], *classes)

    return parsed


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


def test_a_file_is_whole_whatever_ends_the_writing(tmp_path, monkeypatch):
    run_folder.write_json(str(tmp_path), "arguments.json", ["--seed", "7"])
    (tmp_path / "results.jsonl").write_text('{"seed": 1}\n{"see')
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    monkeypatch.setattr(run_folder.os, "replace", lambda *_: 1 / 0)  # killed there at the latest
    with pytest.raises(ZeroDivisionError):
        run_folder.write_json(str(tmp_path), "arguments.json", ["--seed", "8"])
    with pytest.raises(ZeroDivisionError):
        sweep.read_results(tmp_path / "results.jsonl")
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".part"} == before
    monkeypatch.undo()
    assert sweep.read_results(tmp_path / "results.jsonl") == [{"seed": 1}]
    run_folder.write_json(str(tmp_path), "arguments.json", ["--seed", "8"])
    assert json.loads((tmp_path / "arguments.json").read_text()) == ["--seed", "8"]
    assert not list(tmp_path.glob("*.part"))


def test_null_is_none_wherever_it_may_be(config):
    _, args, argv = config("save_total_limit: null\nlogging_dir: null\nseed: 7\n", *OF_SEQ2SEQ)
    assert args.save_total_limit is None and args.seed == 7
    assert arguments.parse(argv, *OF_SEQ2SEQ)[1].save_total_limit is None, "nor after a resume"
    again = arguments.parse([*argv, "--save_total_limit", "3"], *OF_SEQ2SEQ)
    assert again[1].save_total_limit == 3
    assert arguments.parse([*again[2], "--null", "save_total_limit"], *OF_SEQ2SEQ)[1].save_total_limit is None
    relative = "optim: adafactor\noptim_kwargs: {relative_step: true}\nlearning_rate: null\nwarmup_ratio: 0\n"
    found = config(relative, LdoptConfig, matching.Arguments)
    assert found[0].learning_rate is None


def test_null_for_what_must_have_a_value_is_an_error_that_names_it(config, capsys):
    message = "(?s)`max_grad_norm` needs a value.*Received: max_grad_norm=None.*'max_lenght' is not a known argument"
    with pytest.raises(ValueError, match=message):
        config("max_grad_norm: null\nmax_lenght: null\n", *OF_SEQ2SEQ)
    with pytest.raises(SystemExit):
        arguments.parse(["--null", "max_grad_norm"], *OF_SEQ2SEQ)
    assert "invalid choice: 'max_grad_norm'" in capsys.readouterr().err


def test_a_value_of_a_config_may_begin_with_dashes(tmp_path):
    (tmp_path / "c.yaml").write_text('arguments: "--fp16"\nlearning_rates: [1e-4, 3e-4]\n')
    (options,) = arguments.parse_line(["--config", str(tmp_path / "c.yaml")], sweep.Options)
    assert options.arguments == "--fp16" and options.learning_rates == [1e-4, 3e-4]


class Loop(plain_loop.PlainLoop):
    """A loop that trains nothing: its model is a number, which may be stopped in a step."""

    optimizer = None

    def __init__(self, folder, number=0.0, stop=lambda step: None, keep=4):
        model = paddle.nn.Linear(1, 1, bias_attr=False)
        model.weight.set_value(paddle.full([1, 1], number))
        self.stop, self.evaluated = stop, []
        super().__init__(
            model, 64, plain_loop.LoopArguments(output_dir=str(folder), save_steps=1, save_total_limit=keep)
        )

    def train_step(self):
        self.stop(self.step + 1)
        return 0.0

    def evaluate(self):
        self.evaluated.append(self.step)
        return {}

    def states(self):
        return {"model_state.pdparams": self.model}


def test_what_a_kill_left_is_in_no_checkpoint_of_a_loop(tmp_path):
    (tmp_path / "checkpoint-1.unfinished").mkdir()
    (tmp_path / "checkpoint-1.unfinished/.ldopt-0123456789abcdef.part").write_text("half a file")
    loop = Loop(tmp_path)
    loop.step = 1
    loop.save()
    found = sorted(path.name for path in (tmp_path / "checkpoint-1").iterdir())
    assert found == ["ldopt_files.json", "model_state.pdparams", "trainer_state.json"]


def test_a_loop_that_is_stopped_has_the_evaluations_that_were_due(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    loop = Loop(tmp_path, stop=lambda step: signal.raise_signal(signal.SIGTERM) if step == 2 else None)
    with pytest.raises(SystemExit):
        loop.train(TrainerCallback())
    assert loop.evaluated == [1, 2] and last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    rest = Loop(tmp_path)
    rest.load(str(tmp_path / "checkpoint-2"))
    rest.train(TrainerCallback())
    assert rest.evaluated == [3, 4] and signal.getsignal(signal.SIGTERM) == before


def test_a_loop_keeps_the_newest_checkpoints(tmp_path):
    for keep, kept in ((1, {"checkpoint-4"}), (2, {"checkpoint-3", "checkpoint-4"})):
        Loop(tmp_path / str(keep), keep=keep).train(TrainerCallback())
        assert {path.name for path in (tmp_path / str(keep)).iterdir()} == kept


def test_a_loop_that_goes_on_from_an_earlier_checkpoint_sets_later_ones_aside(tmp_path, monkeypatch):
    def number(name):
        return paddle.load(str(tmp_path / name / "model_state.pdparams"))["weight"].item()

    def go_on(stop):
        loop = Loop(tmp_path, number=2.0, stop=stop)
        loop.step = 1
        with pytest.raises(ZeroDivisionError):
            loop.train(TrainerCallback())

    def killed(source, target, replace=os.replace):
        return 1 / 0 if source.endswith(".unfinished") else replace(source, target)

    Loop(tmp_path, number=1.0).train(TrainerCallback())
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        go_on(lambda step: None)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1"), "not one of before"
    go_on(lambda step: 1 / (3 - step))
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2") and number("checkpoint-2") == 2
    assert [number(f"superseded-checkpoint-{step}") for step in (2, 3, 4)] == [1, 1, 1]
