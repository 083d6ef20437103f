"""Every schedule: the peers' numbers, closed form, resume, attachment, what is refused, properties of all of them."""

import collections
import copy
import enum
import inspect
import math
import pickle
import re
import time
import warnings

import golden_cases
import hypothesis
import numpy as np
import paddle
import pytest
import schedule_cases
from hypothesis import strategies as st

from paddle_ldopt import schedules
from paddle_ldopt.schedules import CurveSchedule, MetricSchedule, SchedulerType, get_scheduler
from paddle_ldopt.schedules.factory import kwargs_problems
from paddle_ldopt.schedules.registry import SCHEDULES

# kind -> arguments of its function that make a schedule of 100 steps at a peak of 0.1
KINDS = {
    "linear": {"num_warmup_steps": 10, "num_training_steps": 100},
    "cosine": {"num_warmup_steps": 10, "num_training_steps": 100},
    "cosine_with_restarts": {"num_warmup_steps": 10, "num_training_steps": 100, "num_cycles": 3},
    "polynomial": {"num_warmup_steps": 10, "num_training_steps": 100, "power": 2.0},
    "constant": {},
    "constant_with_warmup": {"num_warmup_steps": 10},
    "inverse_sqrt": {"num_warmup_steps": 10},
    "reduce_lr_on_plateau": {"patience": 2, "factor": 0.5},
    "cosine_with_min_lr": {"num_warmup_steps": 10, "num_training_steps": 100, "min_lr": 0.01},
    "cosine_warmup_with_min_lr": {"num_warmup_steps": 10, "num_training_steps": 100, "min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_warmup_steps": 10, "num_training_steps": 100, "num_decay_steps": 20},
    "greedy": {"patience": 2, "factor": 0.5, "smooth": True, "window_size": 3},
    "cool_down": {"num_warmup_steps": 10, "num_training_steps": 100, "keep_steps": 30, "final_steps": 10},
}
ON_METRIC = ("reduce_lr_on_plateau", "greedy")
every_kind = pytest.mark.parametrize("kind", KINDS)
closed_kind = pytest.mark.parametrize("kind", [k for k in KINDS if k not in ON_METRIC])


def make(kind, optimizer=0.1, **more):
    return SCHEDULES[kind].function(optimizer, **{**KINDS[kind], **more})


def metric(step):
    """Return a loss that falls, stalls and rises again."""
    return 1.0 / (1 + 0.1 * (step % 40)) + (0.2 if 15 < step % 50 < 30 else 0.0)


def advance(schedule):
    schedule.step(*([metric(schedule.last_epoch)] if isinstance(schedule, MetricSchedule) else []))


def rates(schedule, steps):
    return schedule_cases.rates(schedule, steps, advance)


def optimizer_of(learning_rate=0.1):
    return paddle.optimizer.AdamW(learning_rate, parameters=paddle.nn.Linear(3, 2).parameters())


def test_every_kind_is_tested():
    assert KINDS.keys() == {kind.value for kind in SchedulerType} == SCHEDULES.keys()
    assert set(schedules.__all__) >= {kind.function.__name__ for kind in SCHEDULES.values()}


# ---- the peers' numbers

ELSEWHERE = ("create_optimizer", "WarmUp", "AdafactorSchedule")  # test_adafactor.py, and the tests of WarmUp


def ours(kind):
    return [e for e in golden_cases.cases("schedule", kind) if not e["cls"].endswith(ELSEWHERE)]


def peers_function(entry):
    return getattr(schedules, entry["cls"].rsplit(".", 1)[1])


def call(entry, optimizer):
    function = peers_function(entry)
    options = dict(entry["options"])
    first = [options.pop("name")] if "name" in options else []
    return function(*first, optimizer, **options)


@pytest.mark.parametrize("first", ["optimizer", "learning rate"])
@golden_cases.each(ours("schedule"))
def test_rates_are_the_peers(entry, first):
    want = golden_cases.load(entry).arrays["lr"]
    want = want[:, 0] if want.ndim == 2 else want
    (peak,) = entry["base_lr"]
    optimizer = optimizer_of(peak)
    schedule = call(entry, optimizer if first == "optimizer" else peak)
    u01 = golden_cases.loader()._u01
    got = []
    for t in range(len(want)):
        got.append(optimizer.get_lr() if first == "optimizer" else schedule())
        if entry.get("metric"):
            schedule.step(u01(4242 + t, 1)[0] * 0.1 + 1 / (1 + 0.05 * min(t, 60)))
        else:
            schedule.step()
    np.testing.assert_allclose(got, want, **entry["tol"])


@golden_cases.each(ours("error"))
def test_errors_are_the_peers(entry):
    kind = {"ValueError": ValueError, "TypeError": TypeError}[entry["error"]["type"]]
    with pytest.raises(kind, match="Received: ") as error:
        call(entry, optimizer_of(*entry["base_lr"]))
    # the peer's sentence, spelt right
    assert entry["error"]["match"].replace("be be", "be").rstrip(".") in str(error.value)


def test_cool_down_is_mindformers():
    arguments = {"keep_steps": 10, "decay_steps": 10, "final_steps": 10, "lr_end1": 0.002, "lr_end2": 0.001}
    got = rates(schedules.get_constant_schedule_with_cool_down(0.005, 10, **arguments), 60)
    # printed in the docstring of mindformers.core.ConstantWithCoolDownLR
    np.testing.assert_allclose([got[k] for k in (1, 15, 25, 35, 45)], [0.0005, 0.005, 0.0035, 0.002, 0.001], rtol=1e-12)
    assert got[10] == got[19] == got[20] == 0.005  # the fall starts at 20 with the peak itself
    assert got[29] > got[30] == got[39] > got[40] == got[59]
    by_default = schedules.get_constant_schedule_with_cool_down(0.005, 10, 40, keep_steps=10, final_steps=10)
    assert by_default.curve.decay == 10 and by_default.curve.end2 == by_default.curve.end1 == 0.0
    zero_last = schedules.get_constant_schedule_with_cool_down(0.005, 0, 10, lr_end1=0.002, lr_end2=0.0)
    zero_last.step(10)
    assert zero_last() == 0.0, "MindFormers takes lr_end2=0 for none"


class ReferenceGreedy:
    """The algorithm of arXiv 2512.14527 as transformers 5 has it, written as a list of events."""

    def __init__(self, lr, factor, patience, cooldown, warmup, low, high, window, reset):
        self.first = self.lr = lr
        self.settings = (factor, patience, cooldown, warmup, low, high, window, reset)
        self.anew()

    def anew(self):
        self.best, self.run, self.rest, self.due = math.inf, 0, 0, self.settings[-1]
        self.seen = collections.deque(maxlen=self.settings[-2])

    def step(self, loss):
        factor, patience, cooldown, warmup, low, high, _, reset = self.settings
        self.seen.append(loss)
        mean = float(np.mean(self.seen))
        if self.rest:
            self.rest, self.run = self.rest - 1, 0
            return
        better = mean < self.best - 1e-6
        self.best = mean if better else self.best
        self.run = max(self.run, 0) + 1 if better else min(self.run, 0) - 1
        if self.run > patience:
            self.lr, self.due, self.rest, self.run = min(self.lr / factor, high), reset, warmup, 0
        elif -self.run > patience:
            self.lr, self.rest, self.run = max(self.lr * factor, low), cooldown, 0
            if self.lr <= low:
                self.due -= 1
                if not self.due:
                    self.anew()
                    self.lr, self.rest = self.first, cooldown


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("cooldown, warmup", [(0, 0), (3, 0), (0, 4), (2, 5)])
def test_greedy_follows_its_algorithm(smooth, cooldown, warmup):
    rng = np.random.default_rng(3)
    losses = np.concatenate(
        [np.linspace(3, 1, 40), rng.uniform(1, 2, 150), np.linspace(0.9, 0.1, 60), rng.uniform(1, 2, 250)]
    )
    want = ReferenceGreedy(0.1, 0.5, 2, cooldown, warmup, 1e-3, 0.7, 5 if smooth else 1, 4)
    more = {"smooth": smooth, "window_size": 5, "max_lr": 0.7, "reset_start": 4}
    got = schedules.GreedyLR(0.1, factor=0.5, patience=2, cooldown=cooldown, warmup=warmup, **more)
    seen = []
    for loss in losses:
        want.step(float(loss))
        got.step(float(loss))
        seen.append(got())
        assert got() == pytest.approx(want.lr, rel=1e-12)
    assert max(seen) == 0.7 and min(seen) == 1e-3
    low = seen.index(1e-3)
    assert 0.1 in seen[low:], "it started anew at the lowest rate"


def test_plateau_is_pytorchs_in_its_cool_down():
    # the best of a cool-down counts: Paddle's own class forgets 0.5 and takes 0.6 for an improvement on 1.0
    schedule = schedules.ReduceLROnPlateau(0.1, factor=0.5, patience=0, cooldown=1)
    for loss, want in ((1.0, 0.1), (1.0, 0.05), (0.5, 0.05), (0.6, 0.025)):
        schedule.step(loss)
        assert schedule() == want
    paddles = paddle.optimizer.lr.ReduceOnPlateau(0.1, factor=0.5, patience=0, cooldown=1)
    for loss in (1.0, 1.0, 0.5, 0.6):
        paddles.step(loss)
    assert paddles() == 0.05


@pytest.mark.parametrize("patience, cooldown", [(p, c) for p in (0, 1, 3) for c in (0, 1, 2, 4)])
def test_plateau_follows_pytorchs_rule(patience, cooldown):
    got = schedules.ReduceLROnPlateau(0.1, factor=0.7, patience=patience, cooldown=cooldown, min_lr=1e-4, eps=0.0)
    lr, best, bad, rest = 0.1, math.inf, 0, 0
    for metric in np.random.default_rng(patience).uniform(1, 2, 120):
        better = metric < best * (1 - 1e-4)
        best, bad = (metric, 0) if better else (best, bad + 1)
        if rest:
            rest, bad = rest - 1, 0
        if bad > patience:
            lr, rest, bad = max(lr * 0.7, 1e-4), cooldown, 0
        got.step(float(metric))
        assert got() == pytest.approx(lr, rel=1e-12)
        assert (got.best, got.num_bad_epochs, got.cooldown_counter) == (best, bad, rest)


@pytest.mark.parametrize(
    "cls, defaults",
    [
        (schedules.ReduceLROnPlateau, ("min", 0.1, 10, 1e-4, "rel", 0, 0.0, 1e-8, False)),
        (schedules.GreedyLR, ("min", 0.95, 10, 1e-6, "abs", 0, 0, 1e-3, 1.0, 1e-8, False, False, 50, 500)),
    ],
)
def test_defaults_of_what_follows_a_metric(cls, defaults):
    assert tuple(p.default for p in list(inspect.signature(cls).parameters.values())[1:]) == defaults
    schedule, again = cls(0.1), cls(0.1, *defaults)
    for step in range(100):
        schedule.step(1.0 + step % 2)
        again.step(1.0 + step % 2)
    assert schedule.state_dict() == again.state_dict()


def test_the_narrowest_greedy_schedule():
    schedule = schedules.GreedyLR(0.1, patience=0, max_lr=0.1, min_lr=0.05, smooth=True, window_size=1, reset_start=1)
    rates = []
    for metric in (3.0, 2.0, 4.0, 1.0, 5.0, 6.0):
        schedule.step(metric)
        rates.append(schedule())
    assert rates == pytest.approx([0.1, 0.1, 0.095, 0.1, 0.095, 0.09025])
    with pytest.raises(ValueError, match=r"`max_lr` must be in \(0, inf\)"):
        schedules.GreedyLR(0.1, max_lr=0.0)


@pytest.mark.parametrize("mode, threshold_mode", [(m, t) for m in ("min", "max") for t in ("rel", "abs")])
@pytest.mark.parametrize("cls", [schedules.ReduceLROnPlateau, schedules.GreedyLR])
def test_what_counts_as_better(cls, mode, threshold_mode):
    sign = 1 if mode == "max" else -1
    schedule = cls(0.1, mode=mode, threshold=0.1, threshold_mode=threshold_mode)
    schedule.step(10.0)
    bar = 10 * (1 + sign * 0.1) if threshold_mode == "rel" else 10 + sign * 0.1
    schedule.step(bar - sign * 1e-6)
    assert schedule.num_bad_epochs == 1 and schedule.best == 10.0
    schedule.step(bar + sign * 1e-6)
    assert schedule.num_bad_epochs == 0 and schedule.best == bar + sign * 1e-6
    schedule.step(math.nan)
    assert schedule.num_bad_epochs == 1


@pytest.mark.parametrize("kind", ON_METRIC)
def test_metrics(kind, capsys):
    schedule = make(kind, patience=0, verbose=True)
    for value in (paddle.to_tensor(1.0), np.float32(1.0), np.array([1.0]), 1, paddle.to_tensor([1.0])):
        schedule.step(value)
    assert "set learning rate to" in capsys.readouterr().out
    schedule.step(0.5, epoch=17)
    assert schedule.last_epoch == 17
    before = schedule.state_dict()
    for value in (None, "0.5", [1.0], np.ones(2), paddle.ones([2])):
        with pytest.raises(TypeError, match="`metrics` must be one number. Received: metrics="):
            schedule.step(value)
    with pytest.raises(TypeError):
        schedule.step()
    assert schedule.state_dict() == before


def test_a_nan_leaves_the_window():
    schedule = make("greedy", patience=0)
    for loss in (1.0, math.nan, 1.0, 1.0):
        schedule.step(loss)
    assert schedule.best == 1.0 and schedule() < 0.2
    schedule.step(0.1)
    assert schedule.best == pytest.approx(0.7)


# ---- closed form, resume


@closed_kind
def test_a_schedule_is_a_function_of_the_step(kind):
    schedule = make(kind)
    assert isinstance(schedule, CurveSchedule) and isinstance(schedule, paddle.optimizer.lr.LRScheduler)
    want = rates(schedule, 120)
    jumping = make(kind)
    for step in np.random.default_rng(0).permutation(120):
        jumping.step(int(step))
        assert jumping() == jumping.last_lr == want[step]
    assert repr(schedule).startswith(f"CurveSchedule(0.1, {type(schedule.curve).__name__}(")


@closed_kind
@pytest.mark.parametrize("at", [0, 9, 10, 57, 99, 104])
def test_resume_from_last_epoch(kind, at):
    whole = rates(make(kind), 120)
    assert rates(make(kind, last_epoch=at - 1), 120 - at) == whole[at:]


@every_kind
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy", "file", "optimizer"])
def test_resume_from_a_copy(kind, how, tmp_path):
    whole = rates(make(kind), 150)
    for at in (0, 7, 10, 53, 107):
        optimizer = optimizer_of()
        first = make(kind, optimizer)
        rates(first, at)
        if how == "pickle":
            second = pickle.loads(pickle.dumps(first))
        elif how == "deepcopy":
            second = copy.deepcopy(first)
        elif how == "optimizer":
            fresh = optimizer_of()
            second = make(kind, fresh)
            fresh.set_state_dict({"LR_Scheduler": copy.deepcopy(optimizer.state_dict()["LR_Scheduler"])})
            assert fresh.get_lr() == optimizer.get_lr()
        else:
            second, state = make(kind), first.state_dict()
            if how == "file":
                paddle.save(state, str(tmp_path / "scheduler.pdparams"))
                state = paddle.load(str(tmp_path / "scheduler.pdparams"))
            rates(first, 3)  # the state is no view of the schedule
            second.set_state_dict(state)
        assert rates(second, 150 - at) == whole[at:]


@closed_kind
def test_a_million_steps(kind):
    million = 1_000_000
    long = {"num_warmup_steps": 10_000, "num_training_steps": million} if kind != "constant" else {}
    arguments = inspect.signature(SCHEDULES[kind].function).parameters
    more = {k: v for k, v in long.items() if k in arguments}
    best = math.inf
    for _ in range(3):  # other work on the machine only adds time
        schedule = make(kind, **more)
        start = time.process_time()
        for _ in range(million - 1):
            schedule.step()
        best = min(best, time.process_time() - start)
        if best < schedule_cases.a_million_takes():
            break
    assert best < schedule_cases.a_million_takes()
    assert schedule.last_epoch == million - 1
    from_last_epoch = make(kind, last_epoch=million - 2, **more)
    from_state = make(kind, **more)
    from_state.set_state_dict(schedule.state_dict())
    assert rates(schedule, 5) == rates(from_last_epoch, 5) == rates(from_state, 5)


@pytest.mark.parametrize("kind", ON_METRIC)
def test_a_million_steps_on_a_metric(kind):
    million = 1_000_000
    losses = [metric(step) for step in range(200)] * (million // 200)
    more = {"smooth": False} if kind == "greedy" else {}
    best = math.inf
    for _ in range(3):
        schedule = make(kind, **more)
        start = time.process_time()
        for loss in losses[:-1]:
            schedule.step(loss)
        best = min(best, time.process_time() - start)
        if best < schedule_cases.a_million_takes():
            break
    assert best < schedule_cases.a_million_takes()
    other = make(kind, **more)
    other.set_state_dict(schedule.state_dict())
    assert other.last_epoch == million - 1
    assert rates(other, 200) == rates(schedule, 200)


# ---- the first argument


@every_kind
def test_a_schedule_is_attached_to_an_optimizer(kind):
    optimizer = optimizer_of()
    schedule = make(kind, optimizer)
    assert optimizer._learning_rate is schedule
    want = rates(make(kind), 60)
    for rate in want:
        assert optimizer.get_lr() == rate
        advance(schedule)


@every_kind
def test_the_rate_of_an_update_is_the_schedules(kind):
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
    optimizer = paddle.optimizer.SGD(0.1, parameters=[weight])

    def update():
        before = weight.numpy().copy()
        weight.sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        return before - weight.numpy()

    np.testing.assert_allclose(update(), 0.1, rtol=1e-6)  # taken before there was a schedule
    schedule = make(kind, optimizer)
    for rate in rates(make(kind), 25):
        np.testing.assert_allclose(update(), rate, rtol=1e-4, atol=1e-6)
        advance(schedule)


@every_kind
def test_a_schedule_comes_before_its_optimizer(kind):
    schedule = make(kind)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=paddle.nn.Linear(3, 2).parameters())
    rates(schedule, 12)
    assert optimizer.get_lr() == schedule()


def test_a_second_schedule_has_the_peak_of_the_first():
    optimizer = optimizer_of()
    make("linear", optimizer)
    assert optimizer.get_lr() == 0.0
    assert make("cosine", optimizer, num_warmup_steps=0)() == 0.1 == optimizer.get_lr()


def test_a_foreign_schedule_gives_its_current_rate():
    optimizer = optimizer_of(paddle.optimizer.lr.StepDecay(0.5, step_size=1, gamma=0.2))
    optimizer._learning_rate.step()
    assert make("constant", optimizer)() == 0.1
    optimizer = optimizer_of(paddle.optimizer.lr.LinearWarmup(0.5, 10, 0.0, 0.5))
    with pytest.raises(ValueError, match=r"`learning_rate` must be in \(0, inf\). Received: learning_rate=0.0"):
        make("constant", optimizer)


@pytest.mark.parametrize("attribute", ["_inner_opt", "_optim"])
def test_wrapped_optimizers(attribute):
    class Wrapper:
        pass

    wrapper, inner = Wrapper(), optimizer_of()
    setattr(wrapper, attribute, inner)
    assert make("linear", wrapper) is inner._learning_rate


@every_kind
@pytest.mark.parametrize(
    "bad, error",
    [(0, ValueError), (0.0, ValueError), (-0.1, ValueError), (math.nan, ValueError), (math.inf, ValueError)]
    + [(None, TypeError), ("0.1", TypeError), (True, TypeError), (paddle.optimizer.lr.NoamDecay(8, 8), TypeError)],
    ids=lambda value: re.sub(" at 0x.*", "", str(value)),
)
def test_bad_first_arguments(kind, bad, error):
    with pytest.raises(error, match="Received: "):
        make(kind, bad)


def test_a_schedule_of_a_schedule_is_refused_by_name():
    with pytest.raises(
        TypeError, match=r"rate\. A schedule is built from a number, not from another schedule\. Rec"
    ):
        make("linear", paddle.optimizer.lr.NoamDecay(8, 8))
    with pytest.raises(TypeError, match=r"a learning rate\. Received: optimizer=None"):
        make("linear", None)


@every_kind
def test_numpy_arguments(kind):
    more = {k: np.int64(v) for k, v in KINDS[kind].items() if type(v) is int}
    want = rates(make(kind), 30)
    got = make(kind, np.float64(0.1), **more)
    assert rates(got, 30) == want
    assert all(type(v) is not np.int64 for v in vars(getattr(got, "curve", got)).values())


# ---- by name


@every_kind
@pytest.mark.parametrize("as_enum", [False, True])
def test_get_scheduler_is_the_function(kind, as_enum):
    general = ("num_warmup_steps", "num_training_steps")
    specific = {k: v for k, v in KINDS[kind].items() if k not in general}
    got = get_scheduler(SchedulerType(kind) if as_enum else kind, 0.1, 10, 100, specific)
    assert rates(got, 110) == rates(make(kind), 110)
    optimizer = optimizer_of()
    assert get_scheduler(kind, optimizer, 10, 100, specific) is optimizer._learning_rate


def test_names():
    class Foreign(str, enum.Enum):
        COSINE = "cosine"

    assert SchedulerType(Foreign.COSINE) is SchedulerType.COSINE
    assert SchedulerType("cool-down") is SchedulerType.COOL_DOWN
    with pytest.raises(
        ValueError, match="'cosin' is not a valid SchedulerType.*nearest is 'cosine'. Received: name='cosin'"
    ):
        get_scheduler("cosin", 0.1)
    with pytest.raises(ValueError, match="Received: name=None"):
        get_scheduler(None, 0.1)


MISSING = [
    *((kind, {}, "num_warmup_steps") for kind in KINDS if kind not in (*ON_METRIC, "constant")),
    *((k, {"num_warmup_steps": 1}, "num_training_steps") for k in KINDS if k.startswith(("linear", "cosine", "poly"))),
    ("warmup_stable_decay", {"num_warmup_steps": 1, "num_training_steps": 9}, "num_decay_steps"),
    ("cosine_with_min_lr", {"num_warmup_steps": 1, "num_training_steps": 9}, "min_lr_rate"),
    ("cosine_warmup_with_min_lr", {"num_warmup_steps": 1, "num_training_steps": 9}, "min_lr_rate"),
    ("cool_down", {"num_warmup_steps": 1}, "decay_steps"),
]


@pytest.mark.parametrize("kind, given, missing", MISSING)
def test_a_missing_argument_is_named(kind, given, missing):
    optimizer = optimizer_of()
    with pytest.raises(ValueError, match=f"{missing}.*Received: .*{missing}=None"):
        get_scheduler(kind, optimizer, **given)
    assert optimizer._learning_rate == 0.1


@every_kind
@pytest.mark.parametrize("key", ["peak", "num_warmup_steps", "num_training_steps", "optimizer", "learning_rate"])
def test_an_unknown_argument_is_refused(kind, key):
    valid = [k for k in KINDS[kind] if not k.startswith("num_") or k == "num_decay_steps"]
    with pytest.raises(
        TypeError, match=f"got an unexpected keyword argument '{key}'.*takes .*Received: {key}=3"
    ) as error:
        get_scheduler(kind, 0.1, 10, 100, {key: 3})
    assert all(k in str(error.value) for k in valid)
    listed = str(error.value).partition("takes")[2].partition("Received")[0]
    assert "num_warmup_steps" not in listed and "num_training_steps" not in listed


def test_kinds_do_not_ignore_their_arguments():
    assert get_scheduler("inverse_sqrt", 0.1, 0, None, {"timescale": 30}).curve.timescale == 30
    assert get_scheduler("constant", 0.1, None, None, {"last_epoch": 4}).last_epoch == 5


# ---- what is refused

ILLEGAL = [
    ("linear", {"num_warmup_steps": -1}),
    ("linear", {"num_training_steps": 0}),
    ("linear", {"num_training_steps": 0, "num_warmup_steps": 0}),
    ("warmup_stable_decay", {"num_training_steps": 0, "num_stable_steps": 5}),
    ("linear", {"last_epoch": -2}),
    ("cosine", {"num_cycles": 0}),
    ("cosine", {"num_cycles": math.inf}),
    ("cosine_with_restarts", {"num_cycles": -1}),
    ("polynomial", {"lr_end": 0.1}),
    ("polynomial", {"lr_end": -1e-9}),
    ("polynomial", {"power": 0}),
    ("constant", {"last_epoch": -2}),
    ("constant_with_warmup", {"num_warmup_steps": -1}),
    ("inverse_sqrt", {"timescale": 0}),
    ("inverse_sqrt", {"timescale": math.nan}),
    ("cosine_with_min_lr", {"min_lr": 0.11}),
    ("cosine_with_min_lr", {"min_lr": -0.01}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.5}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 1.1}),
    ("cosine_warmup_with_min_lr", {"warmup_lr_rate": -0.1}),
    ("cosine_warmup_with_min_lr", {"warmup_lr_rate": 1.5}),
    ("warmup_stable_decay", {"num_decay_steps": -1}),
    ("warmup_stable_decay", {"num_stable_steps": -1}),
    ("warmup_stable_decay", {"warmup_type": "sqrt"}),
    ("warmup_stable_decay", {"decay_type": "sqrt"}),
    ("warmup_stable_decay", {"min_lr_ratio": 1.5}),
    ("warmup_stable_decay", {"num_cycles": -0.5}),
    ("cool_down", {"keep_steps": -1}),
    ("cool_down", {"final_steps": -1}),
    ("cool_down", {"decay_steps": -1}),
    ("cool_down", {"lr_end1": 0.2}),
    ("cool_down", {"lr_end2": -0.1}),
    ("cool_down", {"warmup_lr_init": 0.2}),
    ("cool_down", {"num_cycles": 0}),
    *((kind, bad) for kind in ON_METRIC for bad in (
        {"mode": "mean"}, {"threshold_mode": "both"}, {"factor": 1.0}, {"factor": 0.0}, {"patience": -1},
        {"threshold": -1e-9}, {"cooldown": -1}, {"min_lr": -0.1}, {"min_lr": 0.2}, {"eps": -1e-8},
    )),
    ("reduce_lr_on_plateau", {"min_lr": 0.1}),
    ("greedy", {"max_lr": 0.05}),
    ("greedy", {"min_lr": 0.1, "max_lr": 0.1}),
    ("greedy", {"warmup": -1}),
    ("greedy", {"window_size": 0}),
    ("greedy", {"reset_start": 0}),
]  # fmt: skip


@pytest.mark.parametrize("kind, bad", ILLEGAL, ids=str)
def test_illegal_values_are_refused(kind, bad):
    optimizer = optimizer_of()
    with pytest.raises(ValueError, match=f"Received: .*{next(iter(bad))}="):
        make(kind, optimizer, **bad)
    assert optimizer._learning_rate == 0.1, "nothing was attached"


def test_each_wrong_argument_is_told_at_once():
    wrong = {"min_lr_ratio": 3, "decay_type": "x", "power": 2, "num_stable_steps": None, "num_warmup_steps": 1}
    told = sorted(kwargs_problems("warmup_stable_decay", wrong))
    want = ["SchedulerType.WARMUP_STABLE_DECAY requires `num_decay_steps`, .*Received: num_decay_steps=None"]
    want += ["`decay_type` must be one of .*Received: decay_type='x'", r"`min_lr_ratio` must be in \[0, 1\]. Rec.*=3"]
    want += [f"get_wsd_schedule.. got an unexpected keyword argument '{key}'" for key in ("num_warmup_steps", "power")]
    assert len(told) == len(want) and all(re.match(pattern, text) for pattern, text in zip(want, told)), told
    for kind, arguments in KINDS.items():
        specific = {k: v for k, v in arguments.items() if k not in ("num_warmup_steps", "num_training_steps")}
        assert not [*kwargs_problems(kind, specific)]


@every_kind
def test_wrong_types_are_refused(kind):
    parameters = list(
        inspect.signature(make(kind).__class__ if kind in ON_METRIC else SCHEDULES[kind].function).parameters
    )[1:]
    flags = {"verbose", "smooth"}
    names = {"mode", "threshold_mode", "warmup_type", "decay_type"}
    for key in set(parameters) - flags:
        more = {"min_lr": None} if key == "min_lr_rate" and "min_lr" in KINDS[kind] else {}
        more |= {"min_lr_rate": None} if key == "min_lr" and "min_lr_rate" in KINDS[kind] else {}
        for bad in ("1", True, [1], 1.5 if "steps" in key or key in ("last_epoch", "patience", "cooldown") else {}):
            with pytest.raises(ValueError if key in names else TypeError, match=f"Received: {key}="):
                make(kind, **{**more, key: bad})


def test_the_phases_of_wsd():
    with pytest.warns(UserWarning, match=r"10 \+ 50 \+ 20 steps, the training 100: num_stable_steps will be used"):
        schedule = make("warmup_stable_decay", num_stable_steps=50)
    assert schedule.curve.stable == 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make("warmup_stable_decay", num_stable_steps=70).curve == make("warmup_stable_decay").curve


RISE = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TOO_LONG = [  # kind, phases longer than the training, its rates by transformers' formulas from step 2 to 9
    ("linear", {}, [*RISE, 0, 0]),
    ("cosine", {}, [*RISE, 1, 0]),
    ("cosine_with_restarts", {}, [*RISE, 1, 0]),
    ("polynomial", {"lr_end": 0.01}, [*RISE, 0.01, 0.01]),
    ("cosine_with_min_lr", {"min_lr": 0.5}, [*RISE, 1, 0.5]),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.5}, [0.375, 0.5, 0.625, 0.75, 0.875, 1, 0.5, 1]),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 6, "decay_type": "linear"},
        [*RISE, 0, 0],
    ),
    ("cool_down", {}, [*RISE, 0, 0]),
]


@pytest.mark.parametrize("kind, specific, want", TOO_LONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_training_that_ends_within_the_warmup_is_warned_of(kind, specific, want):
    with pytest.warns(UserWarning, match="Received: num_warmup_steps=8, .*num_training_steps=2") as caught:
        schedule = get_scheduler(kind, 1.0, 8, 2, specific)
    assert caught[0].filename.endswith("factory.py"), "the caller of the kind's function"
    np.testing.assert_allclose(rates(schedule, 10)[2:], want, atol=1e-12)
    curve = schedule.curve
    assert max(map(curve, range(10))) == max(curve(step) for step in curve.turns())


def test_a_greedy_state_without_some_keys_keeps_what_was_there():
    schedule, state = make("greedy", patience=0, smooth=True), make("greedy").state_dict()
    schedule.step(0.5)
    want = {**schedule.state_dict(), "last_lr": 0.05}
    schedule.set_state_dict({"last_lr": 0.05})
    assert schedule.state_dict() == want and schedule() == 0.05
    for bad in ({}, {"step": 1}, {**state, "window": 3}, {"best": "x"}):
        with pytest.raises(ValueError, match="Received: "):
            schedule.set_state_dict(bad)
    assert schedule.state_dict() == want


def test_a_curve_must_be_callable():
    with pytest.raises(TypeError, match="`curve` must be callable. Received: curve=0.5"):
        CurveSchedule(0.1, 0.5)


# ---- warm-up 0, warm-up = total, past the end

EDGE = {  # kind -> arguments with warm-up 0 and n = 4, its rates; the same with warm-up 4, its rates: by hand
    "linear": ([1, 0.75, 0.5, 0.25, 0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "cosine_with_restarts": ([1, 0.853553, 0.5, 0.146447, 0, 0], [0, 0.25, 0.5, 0.75, 1, 0]),
    "polynomial": ([1, 0.75, 0.5, 0.25, 0, 0], [0, 0.25, 0.5, 0.75, 1, 0]),
    "cosine": ([1, 0.853553, 0.5, 0.146447, 0, 0.146447], [0, 0.25, 0.5, 0.75, 1, 0]),
    "constant_with_warmup": ([1] * 6, [0, 0.25, 0.5, 0.75, 1, 1]),
    "warmup_stable_decay": ([1] * 4 + [0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "cool_down": ([1, 0.853553, 0.5, 0.146447, 0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "inverse_sqrt": ([1, 0.999950, 0.999900, 0.999850, 0.999800, 0.999750], [0, 0.25, 0.5, 0.75, 1, 0.894427]),
}


@pytest.mark.parametrize("kind", EDGE)
def test_edges_of_the_warmup(kind):
    specific = {"polynomial": {"lr_end": 0.0}, "warmup_stable_decay": {"num_decay_steps": 0}}.get(kind)
    for warmup, want in zip((0, 4), EDGE[kind]):
        got = rates(get_scheduler(kind, 1.0, warmup, 4, specific), 6)
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_wave_begins_anew_after_each_third():
    got = rates(make("cosine_with_restarts", 1.0, num_warmup_steps=0, num_training_steps=12, num_cycles=3), 13)
    np.testing.assert_allclose(got, [1, 0.853553, 0.5, 0.146447] * 3 + [0], atol=1e-6)


@pytest.mark.parametrize(
    "curve",
    [
        schedules.curves.StableDecay(4, 7, 20, "linear", "cosine", 0.1, 1.6),
        schedules.curves.CoolDown(4, 7, 20, 5, 0.2, 0.3, 0.9, 1.6),
        schedules.curves.Cosine(4, 20, 1.6),
        schedules.curves.CosineRestarts(4, 20, 2.6),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_the_greatest_factor_ahead_is_at_a_turn(curve):
    turns = [step for step in curve.turns(59) if step < 60]
    factors = [curve(step) for step in range(60)]
    for step, factor in enumerate(factors):
        assert max([factor, *(curve(turn) for turn in turns if turn >= step)]) == max(factors[step:])


def test_a_cool_down_starts_at_0_unless_told():
    assert [schedules.curves.CoolDown(2)(step) for step in range(3)] == [0.0, 0.5, 1.0]


def test_a_polynomial_ends_at_the_step_after_its_decay():
    assert schedules.curves.Polynomial(2, 3).turns() == [2, 6]


def test_restarts_decay_in_one_step_unless_told():
    assert [schedules.curves.CosineRestarts(1)(step) for step in range(3)] == [0.0, 1.0, 0.0]


# ---- properties

steps = st.integers(0, 40)
share = st.floats(0.0, 1.0)
cycles = st.floats(0.01, 6.0)
shapes = st.sampled_from(["linear", "cosine", "1-sqrt"])


@st.composite
def legal(draw):
    """Draw a kind, a peak, legal arguments of the kind, and the step at which its rate should be the peak, or None."""
    kind = draw(st.sampled_from([k for k in KINDS if k not in ON_METRIC]))
    peak = draw(st.floats(1e-9, 1e3))
    warmup, decay = draw(steps), draw(steps)
    total = max(1, warmup + decay)
    general = {"num_warmup_steps": warmup, "num_training_steps": total}
    rate = st.floats(0.0, peak)
    top = warmup
    if kind == "constant":
        arguments, top = {}, 0
    elif kind == "constant_with_warmup":
        arguments = {"num_warmup_steps": warmup}
    elif kind == "inverse_sqrt":
        arguments = {"num_warmup_steps": warmup, "timescale": draw(st.none() | st.integers(1, 1000))}
    elif kind == "linear":
        arguments, top = general, warmup if total > warmup else None  # of no length after the warm-up: 0, as the peer's
    elif kind in ("cosine", "cosine_with_restarts"):
        arguments = {**general, "num_cycles": draw(cycles)}
    elif kind == "polynomial":
        lr_end = draw(st.floats(0.0, peak, exclude_max=True))
        arguments = {**general, "power": draw(st.floats(0.1, 5.0)), "lr_end": lr_end}
    elif kind.startswith("cosine"):
        floor = draw(st.fixed_dictionaries({"min_lr": rate}) | st.fixed_dictionaries({"min_lr_rate": share}))
        arguments = {**general, "num_cycles": draw(cycles), **floor}
        if kind == "cosine_warmup_with_min_lr":
            arguments["warmup_lr_rate"] = draw(st.none() | share)
            # its peak is the last step of the warm-up, which needs two steps if it starts where it is told to
            long_enough = warmup > (arguments["warmup_lr_rate"] is not None)
            top = warmup - 1 if long_enough else None
    elif kind == "warmup_stable_decay":
        stable = draw(steps)
        arguments = {
            "num_warmup_steps": warmup, "num_decay_steps": decay, "num_stable_steps": stable,
            "warmup_type": draw(shapes), "decay_type": draw(shapes), "min_lr_ratio": draw(share),
            "num_cycles": draw(cycles),
        }  # fmt: skip
        top = warmup if stable + decay else None
    else:
        keep = draw(steps)
        arguments = {
            "num_warmup_steps": warmup, "keep_steps": keep, "decay_steps": decay, "final_steps": draw(steps),
            "num_cycles": draw(cycles), "lr_end1": draw(rate), "lr_end2": draw(st.none() | rate),
            "warmup_lr_init": draw(rate),
        }  # fmt: skip
        top = warmup if keep + decay else None
    return kind, peak, arguments, top


@hypothesis.given(legal())
@hypothesis.settings(max_examples=400, deadline=None)
def test_properties(drawn):
    kind, peak, arguments, top = drawn
    schedule = SCHEDULES[kind].function(peak, **arguments)
    got = rates(schedule, 150)
    for far in (10**6, 10**12):
        schedule.step(far)
        got.append(schedule())
    assert all(math.isfinite(rate) and 0.0 <= rate <= peak for rate in got)
    if top is not None:
        assert got[top] == pytest.approx(peak, rel=1e-12), "the warm-up ends at the peak"
    warmup = arguments.get("num_warmup_steps", 0)
    rise = np.diff(got[: warmup if top is None else top + 1])
    assert (rise >= -1e-15 * peak).all(), "the warm-up never falls"
    if top:  # continuous: the last step up to the peak is no longer than the steepest of its shape
        slope = {"linear": 1 / top, "cosine": math.pi / 2 / top, "1-sqrt": 1 / math.sqrt(top)}
        assert rise[-1] <= (peak - got[0]) * slope[arguments.get("warmup_type", "linear")] * (1 + 1e-9) + 1e-12 * peak


@hypothesis.given(
    kind=st.sampled_from(ON_METRIC),
    peak=st.floats(1e-3, 1.0),
    factor=st.floats(0.05, 0.95),
    patience=st.integers(0, 4),
    cooldown=st.integers(0, 4),
    mode=st.sampled_from(["min", "max"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    low=share,
    high=st.floats(1.5, 10.0),
    losses=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=80),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_properties_on_a_metric(kind, peak, factor, patience, cooldown, mode, threshold_mode, low, high, losses):
    low *= 0.9 * peak
    more = {"min_lr": low, "patience": patience, "factor": factor, "mode": mode, "threshold_mode": threshold_mode}
    top = peak
    if kind == "greedy":
        top = peak * high
        more.update(max_lr=top, reset_start=2)
    schedule = make(kind, peak, cooldown=cooldown, **more)
    before = peak
    for loss in losses:
        schedule.step(loss)
        rate = schedule()
        assert math.isfinite(rate) and low <= rate <= top
        assert kind == "greedy" or rate <= before
        before = rate
    twin = make(kind, peak, cooldown=cooldown, **more)
    twin.set_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    assert rates(twin, 20) == rates(schedule, 20)
