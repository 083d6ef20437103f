"""recipes/run_control.py, plain_loop.py and the arguments of fine_tuning.py: stops, resumes, files that are whole."""

import json
import signal

import paddle
import plain_loop
import pytest
import run_control
import sweep
from paddlenlp.trainer import TrainerCallback

from paddle_ldopt.trainer import last_checkpoint


def test_a_sigterm_is_heeded_and_the_signal_given_back_after_an_error():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        with pytest.raises(ValueError, match="diverged"), run_control.StopOnSigterm():
            signal.raise_signal(signal.SIGTERM)
            assert not heard, "not before the step is over"
            raise ValueError("diverged")
        assert heard == ["SIGTERM"]
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_file_is_whole_whatever_ends_the_writing(tmp_path, monkeypatch):
    run_control.write_json(str(tmp_path), "arguments.json", ["--seed", "7"])
    (tmp_path / "results.jsonl").write_text('{"seed": 1}\n{"see')
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    monkeypatch.setattr(run_control.os, "replace", lambda *_: 1 / 0)  # killed there at the latest
    with pytest.raises(ZeroDivisionError):
        run_control.write_json(str(tmp_path), "arguments.json", ["--seed", "8"])
    with pytest.raises(ZeroDivisionError):
        sweep.read_results(tmp_path / "results.jsonl")
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".part"} == before
    monkeypatch.undo()
    assert sweep.read_results(tmp_path / "results.jsonl") == [{"seed": 1}]
    run_control.write_json(str(tmp_path), "arguments.json", ["--seed", "8"])
    assert json.loads((tmp_path / "arguments.json").read_text()) == ["--seed", "8"]
    assert not list(tmp_path.glob("*.part"))


class Loop(plain_loop.PlainLoop):
    """A loop that trains nothing: its model is a number, which may be stopped in a step."""

    optimizer = None

    def __init__(self, folder, number=0.0, stop=lambda step: None):
        model = paddle.nn.Linear(1, 1, bias_attr=False)
        model.weight.set_value(paddle.full([1, 1], number))
        self.stop, self.evaluated = stop, []
        super().__init__(model, 64, plain_loop.LoopArguments(output_dir=str(folder), save_steps=1))

    def train_step(self):
        self.stop(self.step + 1)
        return 0.0

    def evaluate(self):
        self.evaluated.append(self.step)
        return {}

    def states(self):
        return {"model_state.pdparams": self.model}


def test_a_loop_that_is_stopped_has_the_evaluations_that_were_due(tmp_path):
    loop = Loop(tmp_path, stop=lambda step: signal.raise_signal(signal.SIGTERM) if step == 2 else None)
    with pytest.raises(SystemExit):
        loop.train(TrainerCallback())
    assert loop.evaluated == [1, 2] and last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    rest = Loop(tmp_path)
    rest.load(str(tmp_path / "checkpoint-2"))
    rest.train(TrainerCallback())
    assert rest.evaluated == [3, 4] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
