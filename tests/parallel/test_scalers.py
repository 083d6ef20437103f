"""Loss scalers against references in float64, and the numbers that MindSpore and MindFormers document."""

import math

import numpy as np
import paddle
import pytest

from paddle_ldopt import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler
from paddle_ldopt.parallel.scalers import as_scaler


def reference(overflows, scale, factor, window, windows=None):
    """MindFormers' rule by iteration numbers, as its cell counts, in float64; the scale and window of each step.

    Ours stays within float32, where MindFormers' goes to inf for good.
    """
    scale, factor = np.float64(scale), np.float64(factor)
    iteration, last = 1, 0
    index = windows.index(window) if windows else None
    ups = downs = 0
    out = []
    for overflow in overflows:
        out.append((float(scale), window))
        if overflow:
            scale, last = max(scale / factor, np.float64(1)), iteration
        elif iteration - last >= window:
            last = iteration
            if scale * factor > np.finfo(np.float32).max:
                iteration += 1
                continue
            scale = scale * factor
            ups, downs = (ups + 1) % 4, 0
            if windows and ups == 3 and index != len(windows) - 1:
                index, ups = index + 1, 0
                window = windows[max(index, 0)]
        iteration += 1
        if overflow and windows:
            downs = (downs + 1) % 4
            if downs == 3 and index not in (-1, 0):
                index, window, ups, downs = -1, 1, 0, 0
    return out


def trajectory(scaler, overflows):
    out = []
    for overflow in overflows:
        out.append((scaler.get_loss_scale(), scaler.scale_window))
        scaler.update(overflow)
    return out


def drawn(seed, steps, rate):
    """Overflows that come in bursts: what moves the window both ways."""
    draw = np.random.default_rng(seed)
    state, out = False, []
    for _ in range(steps):
        state = draw.random() < (0.7 if state else rate)
        out.append(bool(state))
    return out


WINDOWS = [20, 30, 40, 50, 100, 200, 500, 1000]


@pytest.mark.parametrize("window", [1, 3, 20])
@pytest.mark.parametrize("factor", [2, 1.5])
def test_dynamic_follows_the_reference(window, factor):
    overflows = drawn(window, 2000, 0.05)
    scaler = DynamicLossScaler(2**10, factor, window)
    assert trajectory(scaler, overflows) == reference(overflows, 2**10, factor, window)


def test_dynamic_stays_finite_and_never_falls_below_1():
    for start, window, overflows, expected in (
        (2**126, 1, [False] * 3 + [True] * 2, [2.0**126, 2.0**127, 2.0**127, 2.0**127, 2.0**126]),
        (3, 10, [True] * 4, [3.0, 1.5, 1.0, 1.0]),
    ):
        assert [scale for scale, _ in trajectory(DynamicLossScaler(start, 2, window), overflows)] == expected


@pytest.mark.parametrize(("seed", "rate", "start"), [(0, 0.001, 20), (1, 0.005, 1000), (2, 0.03, 50), (3, 0.0, 20)])
def test_adaptive_follows_the_reference(seed, rate, start):
    overflows = drawn(seed, 6000, rate)
    scaler = AdaptiveLossScaler(2**32, 2, start)
    got = trajectory(scaler, overflows)
    assert got == reference(overflows, 2**32, 2, start, WINDOWS)
    assert len({window for _, window in got}) >= (5 if seed != 2 else 3)


@pytest.mark.parametrize(
    ("low", "high", "windows"),
    [(20, 150, [20, 150]), (7, 50, [7, 8, 11, 15, 18, 22, 25, 29, 32, 36, 39, 43, 46, 50]), (100, 250, [100, 250])],
)
def test_no_window_is_below_the_smallest(low, high, windows):
    assert AdaptiveLossScaler(max_scale_window=high, min_scale_window=low).windows == windows


MAKE = {
    "fixed": lambda: FixedLossScaler(8),
    "dynamic": lambda: DynamicLossScaler(2**8, 2, 3),
    "adaptive": lambda: AdaptiveLossScaler(2**8, 2, 20, 200, 20),
}


@pytest.mark.parametrize("name", MAKE)
def test_state_goes_on_where_it_was(name, tmp_path):
    overflows, path = drawn(5, 900, 0.02), str(tmp_path / "scaler.pdstate")
    whole, first, second = MAKE[name](), MAKE[name](), MAKE[name]()
    for overflow in overflows[:437]:
        whole.update(overflow), first.update(overflow)
    paddle.save(first.state_dict(), path)
    second.set_state_dict(paddle.load(path))
    scales = set()
    for overflow in overflows[437:]:
        assert whole.state_dict() == second.state_dict()
        scales.add(whole.get_loss_scale())
        whole.update(overflow), second.update(overflow)
    assert name == "fixed" or len(scales) > 3


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"loss_scale": 2.0}, "AdaptiveLossScaler must have the keys"),
        ({"window_index": 99}, "same windows"),
        ({"loss_scale": math.inf}, "loss_scale"),
        ({"loss_scale": 0.5}, r"`loss_scale` must be in \[1, inf\). Received: loss_scale=0.5"),
        ({"good_steps": -1}, "good_steps"),
    ],
)
def test_a_state_that_is_wrong_changes_nothing(state, message):
    scaler = AdaptiveLossScaler()
    before = scaler.state_dict()
    wrong = state if "must have the keys" in message else {**before, **state}
    with pytest.raises(ValueError, match=message):
        scaler.set_state_dict(wrong)
    assert scaler.state_dict() == before


@pytest.mark.parametrize("given", [64, 64.0, np.float64(64), paddle.to_tensor(64.0), paddle.to_tensor([64.0])])
def test_a_number_is_a_fixed_scale(given):
    scaler = as_scaler(given)
    assert type(scaler) is FixedLossScaler and scaler.get_loss_scale() == 64.0
    assert scaler.scale(paddle.to_tensor([1.5])).tolist() == [96.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FixedLossScaler(0), ValueError, "loss_scale_value=0"),
        (lambda: DynamicLossScaler(0.5), ValueError, "loss_scale_value=0.5"),
        (lambda: DynamicLossScaler(scale_factor=1), ValueError, "scale_factor"),
        (lambda: DynamicLossScaler(scale_window=0), ValueError, "scale_window"),
        (lambda: AdaptiveLossScaler(max_scale_window=20), ValueError, "max_scale_window"),
        (lambda: AdaptiveLossScaler(scale_window=25), ValueError, "scale_window"),
        (lambda: as_scaler(True), TypeError, "scale_sense=True"),
        (lambda: as_scaler(np.ones(2)), TypeError, "array"),
        (lambda: as_scaler(paddle.ones([2])), TypeError, "scale_sense=Tensor"),
        (lambda: as_scaler(0), ValueError, "scale_sense=0"),
        (lambda: as_scaler(math.inf), ValueError, "scale_sense=inf"),
    ],
)
def test_wrong_arguments_and_scales(call, error, message):
    with pytest.raises(error, match=f"Received: .*{message}"):
        call()


def test_paddles_scaler_is_off_on_a_cpu():
    with pytest.warns(UserWarning, match="makes no effect"):
        off = paddle.amp.GradScaler()
    with pytest.raises(ValueError, match="use DynamicLossScaler"):
        as_scaler(off)


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim")  # of Paddle's own scaler, where it halves
def test_paddles_scaler_gets_our_overflows(monkeypatch, capsys):
    """As it is on GPU: its own arithmetic and its own state, our decisions."""
    place = type("Place", (), {"is_gpu_place": lambda self: True})()
    tracer = type("Tracer", (), {"_expected_place": place})()
    settings = {"init_loss_scaling": 2.0**8, "incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 2}
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr("paddle.amp.grad_scaler._dygraph_tracer", lambda: tracer)
        theirs, again = paddle.amp.GradScaler(**settings), paddle.amp.GradScaler(**settings)
    scaler = as_scaler(theirs)
    scales = []
    for overflow in (False, True, True, False, False, False):
        scales.append(scaler.get_loss_scale())
        scaler.update(overflow)
    assert scales == [256.0, 256.0, 256.0, 128.0, 128.0, 128.0] and scaler.get_loss_scale() == 256.0
    assert scaler.scale(paddle.to_tensor([2.0])).tolist() == [512.0]
    other = as_scaler(again)
    scaler.update(True)
    other.load_state_dict(scaler.state_dict())
    for each in (scaler, other):
        each.update(True)
        assert each.get_loss_scale() == 128.0
