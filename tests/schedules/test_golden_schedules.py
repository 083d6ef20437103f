"""Schedules against the rates and errors of the real peers, where their recordings are at hand."""

import functools

import golden_cases
import numpy as np
import pytest
from schedule_cases import optimizer_of, rates
from test_warmup import constant, cosine

from paddle_ldopt import WarmUp, schedules

ELSEWHERE = ("create_optimizer", "WarmUp", "AdafactorSchedule")  # tested with these


def ours(kind):
    return [e for e in golden_cases.cases("schedule", kind) if not e["cls"].endswith(ELSEWHERE)]


def call(entry, optimizer):
    function = getattr(schedules, entry["cls"].rsplit(".", 1)[1])
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


@golden_cases.each([case for case in golden_cases.cases("schedule", "schedule") if case["cls"].endswith(".WarmUp")])
def test_warm_ups_are_tensorflows(entry):
    decays = {
        "CosineDecay(1e-2, 120)": functools.partial(cosine, start=1e-2, steps=120),
        "lambda s: 0.5e-3 (jumps)": functools.partial(constant, rate=0.5e-3),
    }
    schedule = WarmUp(**{**entry["options"], "decay_schedule_fn": decays[entry["options"]["decay_schedule_fn"]]})
    want = golden_cases.load(entry).arrays["lr"]
    np.testing.assert_allclose(rates(schedule, len(want)), want, **entry["tol"])
