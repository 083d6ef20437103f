"""recipes/common/: run_folder and arguments: stops, resumes, whole files."""

import json
import signal

import pytest
import sweep
from common import arguments, comparison, run_folder

from paddle_ldopt.trainer import StopOnSigterm


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
        comparison.read_results(tmp_path / "results.jsonl")
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".part"} == before
    monkeypatch.undo()
    assert comparison.read_results(tmp_path / "results.jsonl") == [{"seed": 1}]
    run_folder.write_json(str(tmp_path), "arguments.json", ["--seed", "8"])
    assert json.loads((tmp_path / "arguments.json").read_text()) == ["--seed", "8"]
    assert not list(tmp_path.glob("*.part"))


def test_a_value_of_a_config_may_begin_with_dashes(tmp_path):
    (tmp_path / "c.yaml").write_text('arguments: "--fp16"\nlearning_rates: [1e-4, 3e-4]\n')
    (options,) = arguments.parse_line(["--config", str(tmp_path / "c.yaml")], sweep.Options)
    assert options.arguments == "--fp16" and options.learning_rates == [1e-4, 3e-4]
