"""A path, a saved file, and an optimizer that a refused file must not change."""

import pytest
from saving_cases import HALF, Run

import paddle_ldopt as ldopt


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "optimizer.safetensors")


@pytest.fixture
def saved(path):
    """A file of three steps of Came, all factored state in it."""
    run = Run("came").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    return path


@pytest.fixture
def victim():
    """An optimizer that has state of its own, and what must not change."""
    return Run("came", seed=1).train(1)
