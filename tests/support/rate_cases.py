"""The worker of test_rates_distributed.py: towers, multipliers and means, in one process and several.

The network has two towers of two layers, each with a pair of tensor-parallel matrices, between embeddings and a head.
Its names are the same as a whole and in stages, as those of PaddleNLP's models.
"""

import functools

import paddle
import paddle.distributed as dist
import pytest
import toy_layers
from combination_networks import HIDDEN, VOCABULARY, Head, Split, axis_of, loss_of
from distributed_cases import LAYOUTS, batch
from distributed_setup import start_fleet
from optimizer_cases import OPTIMIZERS
from paddle import nn
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer
from toy_layers import Block, Embed, model_group

import paddle_ldopt as ldopt
from paddle_ldopt import LayerDecay
from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
from paddle_ldopt.trainer.stages import map_layers

STEPS, HALF, ONE = 8, 4, "one process"
PLACES = ["embed", "vision.layers.0", "vision.layers.1", "text.layers.0", "text.layers.1", "head"]
DESCRIPTIONS = [(Embed, VOCABULARY, HIDDEN), (Split,), (Split,), (Block, HIDDEN), (Block, HIDDEN), (Head,)]
TOWERS = {"vision": LayerDecay(0.6, scale=2.0), "text": 0.7}
DECAYS = {
    "towers": LayerDecay(0.8, preserve_mean=True, towers=TOWERS, multipliers={r"bias$": 2.0, r"layers\.0\.": 0.5}),
    "linear": LayerDecay(convention="linear", bound=0.3),
    "mean": LayerDecay(0.5, head_ratio=1.5, preserve_mean=True),
}
CASES = [*((name, "towers") for name in OPTIMIZERS), ("momentum", "towers"), ("adamwdl", "linear"), ("lamb", "mean")]


class Tower(nn.Layer):
    def __init__(self, descriptions):
        super().__init__()
        self.layers = nn.LayerList([cls(*sizes) for cls, *sizes in descriptions])


class Whole(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed = Embed(VOCABULARY, HIDDEN)
        self.vision, self.text = Tower(DESCRIPTIONS[1:3]), Tower(DESCRIPTIONS[3:5])
        self.head = Head()

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in [*self.vision.layers, *self.text.layers, self.head]:
            hidden = layer(hidden)
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


def alone(case):
    """Train in one process; return the parameters by name before and after, and the ratios of each step."""
    run = Run(case)
    start = run.values()
    run.train(0, STEPS)
    return start, run.values(), run.ratios


def place(folder, layout, case):
    return f"{folder}/{layout}-{'-'.join(case)}"


def worker(runs, folder):
    """Train each (layout, case), then again from a checkpoint of half of the way, and from one of one process.

    Returns:
        dict: (layout, case) -> parameters, ratios of each step, layout of the checkpoint -> parameters.
    """
    out, started = {}, None
    for layout, case in sorted(runs):
        if layout != started:
            hcg, started = start_fleet(**LAYOUTS[layout]), layout
        run, resumed = Run(case, hcg).train(0, HALF), {}
        if case[0] != "momentum":  # Paddle's own
            run.save(place(folder, layout, case))
            resumed = {source: Run(case, hcg).resumed(place(folder, source, case)) for source in (layout, ONE)}
        out[layout, case] = run.train(HALF, STEPS).values(), run.ratios, resumed
    return out
