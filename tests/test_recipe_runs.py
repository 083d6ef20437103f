"""recipes/run_control.py, plain_loop.py and the arguments of fine_tuning.py: stops, resumes, files that are whole."""

import signal

import pytest
import run_control


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
