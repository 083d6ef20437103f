"""Update rules over shards of a parameter give what they give over all of it: every rule, every kind of cut."""

import math
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from reference import needs_library

from paddle_ldopt import Adafactor, AdamWeightDecay, Came, Lamb
from paddle_ldopt.optimizers import base, sharded, step
from paddle_ldopt.optimizers.sharded import PartialShard, Shard, run_locally
from paddle_ldopt.optimizers.states import ELEMENT, STEP, rule_shape

SHAPES = {"scalar": [], "vector": [12], "matrix": [6, 8], "cube": [2, 4, 6], "conv": [4, 2, 3, 3]}
CUTS = {  # of n elements: what flat slices hold
    "two": lambda n: [(0, n // 2), (n // 2, n)],
    "inside a row": lambda n: [(0, n // 3 + 1), (n // 3 + 1, n // 2 + 2), (n // 2 + 2, n)],
    "one element": lambda n: [(0, 1), (1, n - 1), (n - 1, n)],
    "one has nothing": lambda n: [(0, 0), (0, n - 2), (n - 2, n)],
}
COMPRESSED = {"relative_step": True, "compression": True, "loss_scale": 4}
RULES = {
    "lamb": lambda p: Lamb(0.1, weight_decay=0.1, parameters=[p]),
    "lamb, centralized": lambda p: Lamb(0.1, parameters=[{"params": [p], "grad_centralization": True}]),
    "adafactor": lambda p: Adafactor([p], weight_decay=0.1),
    "adafactor, momentum": lambda p: Adafactor([p], lr=0.1, beta1=0.9, scale_parameter=False, relative_step=False),
    "came": lambda p: Came(0.1, weight_decay=0.1, parameters=[p]),
    "came, scaled": lambda p: Came(parameters=[p], scale_parameter=True, beta2=0.9, **COMPRESSED),
    "came, no momentum": lambda p: Came(0.1, beta1=0.0, parameters=[p]),
    "adam": lambda p: AdamWeightDecay(0.1, weight_decay_rate=0.1, parameters=[p]),
    "adam, clipped": lambda p: AdamWeightDecay(0.1, amsgrad=True, clipnorm=0.5, clipvalue=1.0, parameters=[p]),
}


def optimizer(rule, shape):
    param = paddle.nn.Linear(1, 1).create_parameter(shape, dtype="float64")
    return RULES[rule](param), param


def tensors_of(shape, states, seed=0):
    """Return a parameter, its gradient and its state, all random."""
    draw = np.random.default_rng(seed)
    state = {name: draw.uniform(0.5, 1.5, rule_shape(one.per, shape)) for name, one in states.items()}
    param, grad = (draw.standard_normal(shape) * (1 + np.arange(math.prod(shape)).reshape(shape)) for _ in range(2))
    return param, grad, {**state, STEP: np.float64(3.0)}


def cut(array, shard):
    part = array
    if getattr(shard, "split", None) is not None:
        axis, index, parts = shard.split
        part = np.split(array, parts, axis)[index]
    return part if shard.span is None else part.flatten()[slice(*shard.span)]


def start(opt, param, values, shard):
    value, grad, state = values
    states = opt.states_of(param)
    tensors = [paddle.to_tensor(cut(x, shard)) for x in (value, grad)]
    state = {n: paddle.to_tensor(cut(x, shard) if states[n].per == ELEMENT else x) for n, x in state.items()}
    options = opt.values_now(opt.group_of(param))[0]
    return opt.rule(*tensors, state, paddle.full([], 0.1, "float64"), shard=shard, **options)


def shards_of(shape, cut_name, axis, parts):
    """Return the shards of a tensor of this shape, split along an axis or not, then cut into flat slices or not."""
    splits = [None] if axis is None else [(axis, index, parts) for index in range(parts)]
    n = math.prod(shape) // (1 if axis is None else parts)
    spans = [None] if cut_name is None else CUTS[cut_name](n)
    return [PartialShard(shape, split, span, groups=(SimpleNamespace(id=0),)) for split in splits for span in spans]


def run_side_by_side(rules):
    """Run the rules of all shards in this process: round by round, what all yield is added up."""
    results, answers = [None] * len(rules), [None] * len(rules)
    while answers is not None:
        requests = []
        for i, rule in enumerate(rules):
            try:
                requests.append(rule.send(answers[i]))
            except StopIteration as done:
                results[i] = done.value
        sums = [sum(parts[1:], parts[0]) for parts in zip(*requests)]
        answers = [sums] * len(rules) if requests else None
    return results


def cases():
    for shape_name, shape in SHAPES.items():
        n = math.prod(shape)
        axes = [None, *(axis for axis, size in enumerate(shape) if size % 2 == 0)]
        for axis in axes:
            for cut_name in [None, *(CUTS if n >= 12 else ())]:
                if axis is not None or cut_name is not None:
                    yield shape_name, cut_name, axis


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape_name, cut_name, axis", list(cases()))
def test_shards_give_the_whole(rule, shape_name, cut_name, axis):
    shape = SHAPES[shape_name]
    opt, param = optimizer(rule, shape)
    values = tensors_of(shape, opt.states_of(param))
    want, want_state = run_locally(start(opt, param, values, Shard(shape)))
    shards = shards_of(shape, cut_name, axis, 2)
    got = run_side_by_side([start(opt, param, values, shard) for shard in shards])
    for shard, (new, state) in zip(shards, got):
        np.testing.assert_allclose(new.numpy(), cut(want.numpy(), shard), rtol=1e-11, atol=1e-11)
        assert state.keys() == want_state.keys()
        for name, value in state.items():
            whole = want_state[name].numpy()
            expected = cut(whole, shard) if opt.states_of(param)[name].per == ELEMENT else whole
            if 0 not in value.shape:
                np.testing.assert_allclose(value.numpy(), expected, rtol=1e-11, atol=1e-11, err_msg=name)


@needs_library
@pytest.mark.parametrize(
    "shard",
    [PartialShard([6], groups=(None,)), PartialShard([6], span=(0, 6), slice_size=6)],
    ids=["tensor parallel", "slice"],
)
def test_fused_true_is_refused_in_shards(shard, monkeypatch):
    param = paddle.create_parameter([6], "float32")
    opt = Lamb(0.1, parameters=[{"params": [param]}], fused=True)
    for module in (step, base._compat):
        monkeypatch.setattr(module, "topology", object)
    opt.finder.find, opt.finder.is_whole = lambda every: {param.name: shard}, lambda every: False
    param.grad, before = paddle.ones([6]), param.numpy().copy()
    with pytest.raises(ValueError, match="does not support parameters in shards.* Received: fused=True"):
        opt.step()
    np.testing.assert_array_equal(param.numpy(), before)


class SplitParam:
    """What of Paddle's DygraphShardingOptimizerV2 a checkpoint meets."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def sharded_state_dict(self):
        return self.optimizer.state_dict()


@pytest.mark.parametrize("optim", [Came, Adafactor, Lamb])
def test_paddles_own_placement_of_rows_and_columns_is_refused(optim):
    weight = paddle.create_parameter([4, 3], "float32")
    opt = optim(parameters=[weight]) if optim is Adafactor else optim(1e-2, parameters=[weight])
    wrapper = SplitParam(opt)
    assert wrapper.sharded_state_dict() == opt.state_dict()
    shard = paddle.create_parameter([6], "float32")
    shard.name = weight.name
    opt._parameter_list = [shard]
    if optim is Lamb:  # all of its state is like the parameter
        assert wrapper.sharded_state_dict() == opt.state_dict()
        return
    with pytest.raises(ValueError, match="use `paddle_ldopt.parallel.save_checkpoint`"):
        wrapper.sharded_state_dict()
    assert opt.state_dict() == {}


def test_a_former_optimizer_leaves_no_hooks(monkeypatch):
    monkeypatch.setattr(sharded, "is_sharded", lambda: True)
    param = paddle.create_parameter([2], "float32")
    missing = sharded.MissingGradients([param])
    here = missing._here
    for known in ({param.name}, set()):
        param.sum().backward()
        assert here == known
        missing = here.clear()
