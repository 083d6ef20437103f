"""Towers, multipliers, kept means and linear rates: several processes find the layers of one and train as one.

The network has two towers of two layers, each with a pair of tensor-parallel matrices, between embeddings and a head.
Its names are the same as a whole and in stages, as those of PaddleNLP's models.
"""

import functools
import warnings

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
import toy_layers
from combination_networks import HIDDEN, VOCABULARY, Head, Split, axis_of, loss_of
from distributed_cases import batch
from distributed_launch import launch
from distributed_setup import LAYOUTS, each_started, start_fleet
from layer_models import Parts
from optimizer_cases import OPTIMIZERS
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer
from representatives import selected
from toy_layers import Block, Embed, apart, model_group

import paddle_ldopt as ldopt
from paddle_ldopt import LayerDecay
from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
from paddle_ldopt.trainer.stages import map_layers

STEPS, HALF, ONE = 8, 4, "one process"
TOLERANCE = 1e-5  # of the way
PLACES = ["embed", "vision.layers.0", "vision.layers.1", "text.layers.0", "text.layers.1", "head"]
DESCRIPTIONS = [(Embed, VOCABULARY, HIDDEN), (Split,), (Split,), (Block, HIDDEN), (Block, HIDDEN), (Head,)]
TOWERS = {"vision": LayerDecay(0.6, scale=2.0), "text": 0.7}
DECAYS = {
    "towers": LayerDecay(0.8, preserve_mean=True, towers=TOWERS, multipliers={r"bias$": 2.0, r"layers\.0\.": 0.5}),
    "linear": LayerDecay(convention="linear", bound=0.3),
    "mean": LayerDecay(0.5, head_ratio=1.5, preserve_mean=True),
}
CASES = [
    *((name, "towers") for name in OPTIMIZERS if name != "muon"),
    ("momentum", "towers"),
    ("adamwdl", "linear"),
    ("lamb", "mean"),
]


class Whole(Parts):
    def __init__(self):
        super().__init__(**{place: toy_layers.made(one) for place, one in zip(PLACES, DESCRIPTIONS)})

    def forward(self, hidden):
        for place in PLACES:
            hidden = dict(self.named_sublayers())[place](hidden)
        return hidden

    def sharded_state_dict(self, structured_name_prefix=""):
        """Say which parameters tensor parallelism cuts, as its layers do in Paddle."""
        state = self.state_dict()
        cut = {name: axis(name) for name in state if axis(name) is not None} if model_group()[2] > 1 else None
        return dist.build_sharded_state_dict(state, cut, structured_name_prefix)


class Staged(PipelineLayer):
    """The network as Paddle's pipeline takes it, with the names of `Whole` in its `state_dict`."""

    def __init__(self, **arguments):
        super().__init__(layers=[LayerDesc(*one) for one in DESCRIPTIONS], loss_fn=loss_of, **arguments)

    def state_dict(self, *args, **kwargs):
        return {plain_name(name): value for name, value in super().state_dict(*args, **kwargs).items()}


def plain_name(name):
    """Return the name in `Whole` of a parameter of either network."""
    first, _, rest = name.partition(".")
    return f"{PLACES[int(first)]}.{rest}" if first.isdigit() else name


def axis(name):
    """Return the axis along which tensor parallelism cuts a parameter."""
    place = next(place for place in PLACES if name.startswith(f"{place}."))
    split = DESCRIPTIONS[PLACES.index(place)][0] is Split
    return axis_of(name.replace(place, "inner.1")) if split else None


def build(staged, **arguments):
    network = toy_layers.initialise(Staged(**arguments) if staged else Whole(), plain_name, axis)
    if staged:
        with pytest.raises(ValueError, match="one stage of a pipeline.*map_layers.*Received: model='?Staged"):
            ldopt.LayerMap.from_model(network)
    return network


def optimizer_of(name, decay, network):
    """Return (optimizer with these layer-wise rates, its schedule)."""
    layers, decay = map_layers(network), DECAYS[decay]
    # With 0.06, one process too makes 4e-5 (Adafactor) and 3e-5 (Came) of a rounding of the start.
    rate = {"adafactor": 0.02, "came": 0.04}.get(name, 0.06)
    schedule = ldopt.get_linear_schedule_with_warmup(rate, 2, STEPS + 2)
    if name == "momentum":
        optimizer = paddle.optimizer.Momentum(schedule, parameters=network.parameters())
        return ldopt.apply_layerwise_decay(optimizer, layers, decay), schedule
    options = {**OPTIMIZERS[name], "learning_rate": schedule}
    cls = ldopt.optimizer_class(name)
    return cls(parameters=network.parameters(), layers=layers, layerwise_decay=decay, **options), schedule


class Run(toy_layers.Run):
    """A training, in one process or under `fleet`."""

    def __init__(self, case, hcg=None):
        super().__init__(build, functools.partial(optimizer_of, *case), batch, hcg, loss_of)
        self.ratios = []  # of each step, by name

    def train(self, first, last):
        for step in range(first, last):
            ratio = self.inner.layerwise_ratio
            self.ratios.append({plain_name(own): ratio(param) for own, param in self.plain.named_parameters()})
            super().train(step, step + 1)
        return self

    def save(self, folder):
        save_checkpoint(folder, self.plain, self.optimizer, rename=plain_name)

    def resumed(self, folder):
        """Return the parameters at the end of a training that goes on from a checkpoint."""
        load_checkpoint(folder, self.plain, self.optimizer, rename=plain_name)
        return self.train(HALF, STEPS).values()

    def values(self):
        """Return the whole parameters of this process by name."""
        return toy_layers.joined(toy_layers.values(self.plain, plain_name), axis)


@functools.cache
def alone(case):
    """Train in one process; return the parameters by name before and after, and the ratios of each step."""
    run = Run(case)
    start = run.values()
    run.train(0, STEPS)
    return start, run.values(), run.ratios


def place(folder, layout, case):
    return f"{folder}/{layout}-{'-'.join(case)}"


def train(runs, folder):
    """Train each (layout, case), then again from a checkpoint of half of the way, and from one of one process.

    Returns (layout, case) -> parameters, ratios of each step, layout of the checkpoint -> parameters.
    """
    out = {}
    for hcg, layout, case in each_started(runs):
        run, resumed = Run(case, hcg).train(0, HALF), {}
        if case[0] != "momentum":  # Paddle's own
            run.save(place(folder, layout, case))
            resumed = {source: Run(case, hcg).resumed(place(folder, source, case)) for source in (layout, ONE)}
        out[layout, case] = run.train(HALF, STEPS).values(), run.ratios, resumed
    return out


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
    start, end, ratios = alone(case)
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
