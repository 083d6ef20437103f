"""A schedule of a few lines is known everywhere: the paragraph "A new schedule" of CONTRIBUTING."""

import dataclasses
from typing import Any

import pytest
import tables
import trainer_common as common
from schedule_cases import rates

import paddle_ldopt as ldopt
from paddle_ldopt.schedules import ON_METRIC, Curve, Fraction, LastStep, ReduceLROnPlateau, Steps, schedule, scheduled
from paddle_ldopt.schedules.factory import SCHEDULES
from paddle_ldopt.tools.cli import main


@dataclasses.dataclass(frozen=True)
class Triangle(Curve):
    """Up and down again, on to a floor."""

    floor: float = 0.0

    def _after(self, k: int) -> float:
        return max(self.floor, 1.0 - k / max(self.warmup, 1))


@pytest.fixture
def triangle():
    @schedule("triangle")
    def get_triangle_schedule(optimizer: Any, num_warmup_steps: Steps, floor: Fraction = 0, last_epoch: LastStep = -1):
        return scheduled(optimizer, Triangle(num_warmup_steps, floor), last_epoch)

    yield get_triangle_schedule
    del SCHEDULES["triangle"]


RATES = [0.0, 0.05, 0.1, 0.05, 0.02, 0.02]


def test_a_schedule_of_a_few_lines_is_known_everywhere(triangle, tmp_path, capsys):
    assert rates(triangle(0.1, 2, 0.2), 6) == pytest.approx(RATES)
    assert rates(ldopt.get_scheduler("triangle", 0.1, 2, 6, {"floor": 0.2}), 6) == pytest.approx(RATES)
    with pytest.raises(ValueError, match=r"`floor` must be in \[0, 1\]. Received: floor=2"):
        triangle(0.1, 2, floor=2)

    settings = {"lr_scheduler_type": "triangle", "learning_rate": 0.1, "warmup_steps": 2}
    config = ldopt.LdoptConfig(**settings, lr_scheduler_kwargs={"floor": 0.2})
    assert rates(config.build(common.tiny_model(), 6)[1], 6) == pytest.approx(RATES)
    with pytest.raises(ValueError, match="'flor' is not a known option; the nearest is 'floor'"):
        ldopt.LdoptConfig(**settings, lr_scheduler_kwargs={"flor": 0.2})

    trainer = common.trainer(tmp_path, **settings, lr_scheduler_kwargs='{"floor": 0.2}', max_steps=3)
    trainer.train()
    assert trainer.lr_scheduler() == pytest.approx(RATES[3])

    capsys.readouterr()
    options = ["--max_steps", "6", "--learning_rate", "0.1", "--lr_scheduler_kwargs", '{"floor": 0.2}']
    assert main(["schedule", "--lr_scheduler_type", "triangle", "--warmup_steps", "2", *options]) == 0
    assert "0.1" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["schedule", "--help"])
    assert "triangle" in capsys.readouterr().out
    assert "`floor=0` [0, 1] |" in tables.schedules_table()
    with pytest.raises(ValueError, match="'triangle' is not a valid SchedulerType"):
        ldopt.SchedulerType("triangle")


def test_a_new_schedule_that_follows_a_metric_is_known_as_such(tmp_path):
    schedule("patience", on_metric=ReduceLROnPlateau)(lambda optimizer, **options: None)
    try:
        with pytest.raises(ValueError, match="The schedule follows an evaluation metric: give"):
            common.arguments(tmp_path, lr_scheduler_type="patience")
    finally:
        del SCHEDULES["patience"]
        ON_METRIC.remove("patience")
