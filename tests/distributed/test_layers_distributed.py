"""Two processes find the layers that one finds: measured under data and tensor parallelism, by names in a pipeline."""

import warnings

import paddle
import pytest
from distributed_cases import LAYOUTS
from distributed_launch import launch
from distributed_setup import start_fleet
from paddle.distributed import fleet
from rate_cases import VOCABULARY, Staged, Whole

from paddle_ldopt.trainer.stages import map_layers


def found(network, example=None):
    """Return how the layers were found, the layers, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = map_layers(network, example=example)
    return layers.source, layers.fingerprint(), [str(one.message) for one in caught]


def worker(layout):
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
    for got, places, said in launch(worker, 2, layout=layout):
        assert (got, places) == (source, layers) == ("by names" if layout == "pp" else "measured", layers)
        assert any("no stage can run the `example` alone" in text for text in said) == (layout == "pp")
