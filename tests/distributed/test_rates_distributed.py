"""Towers, multipliers, kept means and linear rates: several processes find the layers of one and train as one."""

import functools
import warnings

import numpy as np
import paddle
import pytest
from distributed_cases import LAYOUTS
from distributed_launch import launch
from distributed_setup import start_fleet
from paddle.distributed import fleet
from rate_cases import CASES, HALF, ONE, VOCABULARY, Run, Staged, Whole, alone, place
from rate_cases import worker as train
from representatives import selected
from toy_layers import apart

from paddle_ldopt.trainer.stages import map_layers

TOLERANCE = 1e-5  # of the way

reference = functools.cache(alone)


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    """Return the folder of all checkpoints, and what two processes trained."""
    folder, runs = str(tmp_path_factory.mktemp("rates")), selected(request, "layout", "case")
    for case in {case for _, case in runs if case[0] != "momentum"}:
        Run(case).train(0, HALF).save(place(folder, ONE, case))
    return folder, launch(train, 2, timeout=400, runs=runs, folder=folder)


@pytest.mark.promise("layer-wise rates of every kind are the same in several processes as in one")
@pytest.mark.promise("a checkpoint of one layout loads in another")
@pytest.mark.representatives
@pytest.mark.parametrize("case", CASES, ids=", ".join)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_processes_train_and_resume_as_one(two, layout, case):
    folder, results = two
    start, end, ratios = reference(case)
    names = set()
    for result in results:
        got, seen, resumed = result[layout, case]
        assert apart(got, start, end) < TOLERANCE
        assert seen == [{name: step[name] for name in got} for step in ratios]
        names |= set(got)
        if case[0] != "momentum":
            assert all(np.array_equal(resumed[layout][name], value) for name, value in got.items())
            assert apart(resumed[ONE], start, end) < TOLERANCE
    assert names == set(end)
    if case[0] != "momentum":
        assert apart(Run(case).resumed(place(folder, layout, case)), start, end) < TOLERANCE


def test_the_ratios_by_hand():
    """The mean of the ratios over the blocks of all towers is 1 before scale and multipliers."""
    for ratios in reference(("adamwdl", "towers"))[2]:
        mean = (0.6**2 + 0.6 + 0.7**2 + 0.7) / 4
        assert ratios["vision.layers.0.bias"] == pytest.approx(2 * 0.6**2 / mean * 0.5, rel=1e-12)
        assert ratios["text.layers.1.linear.weight"] == pytest.approx(0.7 / mean, rel=1e-12)
        assert ratios["embed.weight"] == pytest.approx(0.8**3 / mean, rel=1e-12)
        assert ratios["head.weight"] == pytest.approx(1 / mean, rel=1e-12)


def found(network, example=None):
    """Return how the layers were found, the layers, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = map_layers(network, example=example)
    return layers.source, layers.fingerprint(), [str(one.message) for one in caught]


def find(layout):
    hcg = start_fleet(**LAYOUTS[layout])
    example = paddle.arange(6).reshape([1, 6]) % VOCABULARY
    if layout == "pp":
        return found(Staged(topology=hcg.topology()), example)
    return found(fleet.distributed_model(Whole()), example)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_find_the_layers_of_one(layout):
    example = None if layout == "pp" else paddle.arange(6).reshape([1, 6]) % VOCABULARY
    source, layers, _ = found(Whole(), example)
    for got, places, said in launch(find, 2, layout=layout):
        assert (got, places) == (source, layers) == ("by names" if layout == "pp" else "measured", layers)
        assert any("no stage can run the `example` alone" in text for text in said) == (layout == "pp")
