"""The peak and the future rates of a schedule, also in the layer table: it is read ahead without a trace."""

import functools
import threading

import paddle
import pytest
from layer_models import Tied, names_of

from paddle_ldopt import AdamWDL, LayerMap
from paddle_ldopt.schedules import CurveSchedule, get_linear_schedule_with_warmup
from paddle_ldopt.schedules.ahead import peak_learning_rate, schedule_rates
from paddle_ldopt.schedules.basic import Constant, InverseSqrt, Linear, Polynomial
from paddle_ldopt.schedules.cosine import Cosine, CosineOneAhead, CosineRestarts
from paddle_ldopt.schedules.stable_decay import StableDecay


def test_peak_learning_rate():
    lr = paddle.optimizer.lr
    warm = lr.LinearWarmup(lr.CosineAnnealingDecay(0.3, 50), 20, 0.0, 0.3)
    assert peak_learning_rate(warm) == pytest.approx(0.3) and warm.last_epoch == 0
    assert peak_learning_rate(lr.LambdaDecay(0.1, lambda s: min(s / 9, 1.0)), num_steps=3) == pytest.approx(0.1 * 3 / 9)
    assert peak_learning_rate(lr.ReduceOnPlateau(0.2)) == 0.2
    assert peak_learning_rate(lr.OneCycleLR(0.3, 20)) == pytest.approx(0.3), "it raises when it is stepped past its end"
    assert peak_learning_rate(0.4) == 0.4
    assert peak_learning_rate(lr.ReduceOnPlateau(0.2), divisor=lambda ahead: 2.0) == 0.1
    falling = lr.NaturalExpDecay(0.4, 0.1)
    assert peak_learning_rate(falling, 3, lambda ahead: 1.0 + ahead) == 0.4


@pytest.mark.parametrize("step", [0, 2, 4])
def test_the_rates_of_a_schedule_are_known_from_its_first_step(step):
    schedule = get_linear_schedule_with_warmup(0.1, 2, 4)
    schedule.step(step)
    assert schedule_rates(schedule, 5) == (0, [0.0, 0.05, 0.1, 0.05, 0.0])
    assert schedule_rates(schedule, step) == (step, [])


class Holder:
    """Keeps what a schedule may hold: the optimizer, a lock, a count of its calls."""

    def __init__(self):
        self.lock, self.calls, self.optimizer = threading.Lock(), 0, None

    def factor(self, step):
        self.calls += 1
        return min(step + 1, 4)


class OfOptimizer(paddle.optimizer.lr.LRScheduler):
    """Computes its rate from what the optimizer's rate is, and keeps all rates in a list."""

    def __init__(self, holder):
        self.holder, self.rates, self.source = holder, [], iter(range(10_000_000))
        super().__init__(0.025)

    def get_lr(self):
        self.rates.append(next(self.source))
        return self.base_lr if self.holder.optimizer is None else min(2 * self.holder.optimizer.get_lr(), 0.4)


def looks(value):
    """Return what a schedule, and what it holds, look like."""
    if isinstance(value, (paddle.optimizer.lr.LRScheduler, Holder)):
        return {name: looks(held) for name, held in vars(value).items() if name != "optimizer"}
    return list(value) if isinstance(value, list) else repr(value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make",
    [
        lambda held: paddle.optimizer.lr.LambdaDecay(0.1, held.factor),
        lambda held: paddle.optimizer.lr.LambdaDecay(0.1, functools.partial(Holder.factor, held), verbose=True),
        lambda held: paddle.optimizer.lr.LinearWarmup(
            paddle.optimizer.lr.LambdaDecay(0.4, lambda step: 1.0, verbose=True), 20, 0.0, 0.4, verbose=True
        ),
        lambda held: paddle.optimizer.lr.CyclicLR(0.1, 0.4, 5, verbose=True),  # calls a method of its own
        OfOptimizer,
    ],
)
def test_a_schedule_is_read_ahead_without_a_trace(make, capsys):
    model, held = Tied(), Holder()
    layers, schedule = LayerMap.from_model(model), make(held)
    held.optimizer = opt = AdamWDL(schedule, parameters=model.parameters())
    for param in model.parameters():
        param.grad = paddle.ones_like(param)
    opt.step()  # Paddle cannot deep-copy it from now on
    schedule.step()
    capsys.readouterr()
    before = looks(schedule), held.calls
    assert layers.table(optimizer=opt).rows[0].peak_learning_rate == pytest.approx((0.4, 0.4))
    schedule_rates(schedule, 30)
    assert (looks(schedule), held.calls) == before and capsys.readouterr().out == ""


class Unknown(paddle.optimizer.lr.LRScheduler):
    def __init__(self):
        self.rates = (0.1 for _ in range(99))
        super().__init__(0.1)

    def get_lr(self):
        return next(self.rates)


@pytest.mark.parametrize("planned", [False, True])
def test_a_schedule_that_cannot_be_read_ahead_has_no_known_peak(planned):
    model, schedule = Tied(), Unknown()
    how = {"optimizer": AdamWDL(schedule, parameters=model.parameters())}
    how = {"layerwise_decay": 1.0, "learning_rate": schedule} if planned else how
    with pytest.warns(UserWarning, match="peak is unknown. Unknown cannot be read ahead .TypeError: .*Received: a sch"):
        rows = LayerMap.from_model(model).table(**how).rows
    assert {(row.learning_rate, row.peak_learning_rate) for row in rows} == {((0.1, 0.1), None)}
    LayerMap.from_model(model).table(**how, num_steps=0)  # no warning
    with pytest.raises(ValueError, match="Received: a schedule of type Unknown"):
        schedule_rates(schedule, 5)
    assert next(schedule.rates) == 0.1 and len([*schedule.rates]) == 97


CURVES = [
    Constant(7),
    Linear(30, 40),
    InverseSqrt(20, 30),
    Polynomial(10, 30, 2.0, 0.3),
    Cosine(10, 50, 0.5, 0.1),
    Cosine(10, 50, 3.3),
    Cosine(0, 7, 40.0),
    Cosine(5, 0, 0.5),
    CosineOneAhead(10, 50, 1.7, 0.1),
    CosineOneAhead(10, 50, 0.5, 0.1, 0.2),
    CosineOneAhead(1, 50, 0.5, 0.1, 0.2),
    CosineRestarts(10, 50, 3.3),
    CosineRestarts(0, 53, 7),
    CosineRestarts(4, 20, 2.6),
    StableDecay(10, 20, 30, "linear", "cosine", 0.5, 0.1, 0.1, 0, 0.1),
    StableDecay(10, 20, 30, "1-sqrt", "cosine", 1.4, 0.1, 0.1, 0, 0.1),
    StableDecay(10, 0, 30, "cosine", "1-sqrt"),
    StableDecay(4, 7, 20, "linear", "cosine", 1.6, 0.1, 0.1, 0, 0.1),
    StableDecay(10, 20, 30, "linear", "cosine", 0.5, 0.1, 0.2, 10, 0.8),
    StableDecay(10, 0, 30, "linear", "cosine", 1.9, 0.1, 0.2, 10, 0.0),
    StableDecay(4, 7, 20, "linear", "cosine", 1.6, 0.2, 0.3, 5, 0.9),
]


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_the_peak_of_a_schedule_of_ours_is_that_of_all_its_steps(curve):
    schedule, end = CurveSchedule(0.3, curve), max(curve.warmup, curve.length or 0)
    for start in range(0, end + 5):
        schedule.step(start)
        ahead = [schedule.base_lr * curve(step) for step in range(start, max(end, start) + 1)]
        assert peak_learning_rate(schedule) == max(ahead), start
        for num_steps in (0, 1, 5, 33):
            ahead = [schedule.base_lr * curve(step) for step in range(start, start + num_steps + 1)]
            assert peak_learning_rate(schedule, num_steps) == max(ahead), (start, num_steps)


def test_the_peak_of_a_long_schedule():
    assert peak_learning_rate(get_linear_schedule_with_warmup(0.3, 10**8 + 7, 10**9)) == 0.3
    assert peak_learning_rate(CurveSchedule(0.3, CosineOneAhead(10**8 + 7, 10**8))) == 0.3
    wave = CurveSchedule(0.3, CosineRestarts(0, 10**8, 10), last_epoch=10**7 // 2)
    assert peak_learning_rate(wave) == pytest.approx(0.3, rel=1e-3)
    foreign = CurveSchedule(0.3, lambda step: min(step / 20_000, 1.0))
    assert peak_learning_rate(foreign) == pytest.approx(0.15), "10,000 steps, as documented"
    assert peak_learning_rate(foreign, 30_000) == pytest.approx(0.3)
    warm = paddle.optimizer.lr.LinearWarmup(0.3, 15_000, 0.0, 0.3)
    assert peak_learning_rate(warm) == pytest.approx(0.3), "it says how long it is"
    layers = LayerMap.from_names(names_of())
    assert layers.table(1.0, foreign).rows[0].peak_learning_rate[1] == pytest.approx(0.15)
    assert layers.table(1.0, foreign, num_steps=30_000).rows[0].peak_learning_rate[1] == pytest.approx(0.3)
