"""The pass that measures layers: random models, examples, rules, what it says, and no trace of it."""

import gc
import random
import types
import weakref

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_models import IDS, VECTORS, Block, D, Net, Parts4, blocks, check, places, simple, through
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from paddle_ldopt import LayerMap


@pytest.mark.parametrize("reentrant", [True, False])
def test_blocks_under_recompute(reentrant):
    def run(self, x):
        x = self.z(x)
        for block in self.body:
            x = recompute(block, x, use_reentrant=reentrant)
        return self.a(x)

    want = {"a": 0, "body": (3, 1), "z": 4}
    check(Net(run, a=nn.Linear(D, 2), body=blocks(3), z=nn.Linear(D, D)), VECTORS, want)
    stages = lambda self, x: self.a(recompute(lambda x: through(self.body, x), self.z(x), use_reentrant=reentrant))  # noqa: E731
    check(Net(stages, a=nn.Linear(D, 2), body=blocks(3), z=nn.Linear(D, D)), VECTORS, want)
    x = paddle.ones([2, D])
    x.stop_gradient = False
    recompute(lambda x: x.tanh(), x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None, "recompute is itself again"


WORDS = ["head", "embed", "norm", "layers", "pooler", "stem", "encoder", "classifier", "tokens", "decoder", "fc"]


@st.composite
def random_models(draw):
    """Return (model, {name of a part: distance from the head}): stacks in sequence, and parts around them."""
    words = iter(draw(st.permutations([f"{a}_{b}" for a in WORDS for b in "xy"])))
    steps, parts, above, depth = [], {}, {}, 0
    for _ in range(draw(st.integers(0, 2))):
        steps.append(("part", next(words), depth))
    for i in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2 if not i else 1, 4))
        kind = draw(st.sampled_from(["blocks", "adapted"] if count > 1 else ["blocks"]))
        steps.append((kind, next(words), (depth, count, next(words))))
        depth += count
        for _ in range(draw(st.integers(0, 2))):
            steps.append((draw(st.sampled_from(["part", "skip"])), next(words), depth))
    steps.append(("part", next(words), depth))
    side = draw(st.integers(0, depth))
    own = draw(st.sampled_from(["cls_x", "scale_y"]))
    for kind, name, at in steps:
        if kind in ("part", "skip"):
            both = lambda: nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D))  # noqa: E731
            parts[name] = draw(st.sampled_from([lambda: nn.Linear(D, D), lambda: nn.LayerNorm(D), both]))()
            above[name] = depth - at + (1 if at == 0 else 1) if at < depth else 0
        else:
            first, count, adapter = at
            parts[name] = blocks(count)
            above.update({f"{name}.{i}": depth - first - i for i in range(count)})
            if kind == "adapted":
                parts[adapter] = nn.LayerList([nn.Linear(D, D) for _ in range(count)])
                above.update({f"{adapter}.{i}": depth - first - i for i in range(count)})
    parts[own] = [D]
    above[own] = depth + 1
    parts["side_z"] = nn.Linear(D, 2)  # a second head on what comes somewhere in between
    above["side_z"] = 0

    def run(self, x):
        x, start, second, done = x * getattr(self, own), x, None, 0
        for kind, name, at in steps:
            module = getattr(self, name)
            if kind == "part":
                x = module(x)
            elif kind == "skip":
                x = module(x) + start
            else:
                for i in range(at[1]):
                    y = module[i](x)
                    x = y + getattr(self, at[2])[i](x) if kind == "adapted" else y
                    done += 1
                    second = x if done == side else second
        second = x if second is None else second
        return {"main": x, "side": [self.side_z(second)]}

    return Net(run, **{name: parts[name] for name in draw(st.permutations(list(parts)))}), above


@given(random_models())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_some_models_are_mapped_as_they_were_built(built):
    check_mapped(*built)


@pytest.mark.fault
@given(random_models())
@settings(max_examples=1000, deadline=None)
def test_random_models_are_mapped_as_they_were_built(built):
    check_mapped(*built)


def check_mapped(model, above):
    layers, _ = places(model, VECTORS, silent=False)
    assert len(layers.towers) == 1
    for name in layers.names:
        part = next(part for part in sorted(above, key=len, reverse=True) if f"{name}.".startswith(f"{part}."))
        layer = layers.layer_of(name)
        assert layer.depth + 1 - layer.index == above[part], f"{name}: {layer}"


@pytest.mark.parametrize("example", [VECTORS, (VECTORS,), [VECTORS], {"x": VECTORS}, lambda model: model(VECTORS)])
def test_examples(example):
    check(simple(), example, {"fc": 0, "body": (3, 1), "proj": 4})


def test_a_failed_pass_says_why():
    model = simple()
    with pytest.raises(ValueError, match=r"failed \(\w*Error: (?s:.*)Give an `example`.*Received: example=") as refused:
        LayerMap.from_model(model, {"y": VECTORS})
    assert isinstance(refused.value.__cause__, TypeError)
    with pytest.raises(TypeError, match="`example` must be a Tensor.*Received: example of type int"):
        LayerMap.from_model(model, 3)
    with pytest.raises(ValueError, match="depends on no parameter"):
        LayerMap.from_model(model, lambda model: None)
    assert not model._forward_pre_hooks and not model._forward_post_hooks


def test_averages_of_batches_are_kept():
    """Paddle's kernel also writes them in evaluation mode if `use_global_stats` is False."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(D, D), nn.BatchNorm1D(D, use_global_stats=False)) for _ in "123"))
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    LayerMap.from_model(model, paddle.randn([4, D]))
    assert all((value.numpy() == before[name]).all() for name, value in model.state_dict().items())
    half = simple(bn=nn.BatchNorm1D(D).to(dtype="bfloat16"))  # compared without a kernel
    layers, _ = places(half, VECTORS, silent=False)
    assert half.bn._mean.dtype == paddle.bfloat16 and layers.n_layers == 3


@pytest.mark.filterwarnings("ignore:When training")
def test_the_pass_leaves_no_trace():
    def run(self, x):
        self.count += 1
        random.random(), np.random.rand(), paddle.rand([2])
        x = self.bn(through(self.body, self.proj(x)).transpose([0, 2, 1])).transpose([0, 2, 1])
        return self.fc(nn.functional.dropout(x, training=True))

    model = Net(run, fc=nn.Linear(D, 2), bn=nn.BatchNorm1D(D), body=blocks(3), proj=nn.Linear(D, D))
    model.register_buffer("count", paddle.zeros([1]))
    model.body[0].eval()
    model.proj.weight.stop_gradient = True
    model(VECTORS).sum().backward()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    grads = {name: param.grad.numpy() for name, param in model.named_parameters() if param.grad is not None}
    states = random.getstate(), np.random.get_state()[1].tolist(), paddle.get_rng_state()[0].current_seed()
    drawn, cpu = paddle.get_rng_state(), paddle.base.core.default_cpu_generator()
    of_cpu = cpu.get_state()
    layers = LayerMap.from_model(model, VECTORS)
    assert layers.layer_of("proj.weight").index == 0 and layers.layer_of("bn._mean").index == 4
    assert model.training and not model.body[0].training and model.body[1].training
    assert model.proj.weight.stop_gradient and not model.fc.weight.stop_gradient and model.bn._mean.stop_gradient
    assert all((value.numpy() == before[name]).all() for name, value in model.state_dict().items())
    assert all((dict(model.named_parameters())[name].grad.numpy() == grad).all() for name, grad in grads.items())
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), paddle.get_rng_state()[0].current_seed())
    want = paddle.rand([3]).numpy()
    paddle.set_rng_state(drawn)
    cpu.set_state(of_cpu)
    assert (paddle.rand([3]).numpy() == want).all()


def test_what_the_pass_did_not_use_is_said_and_one_that_used_less_than_half_is_not_trusted():
    model = simple(pooler=nn.Linear(D, D), mask_token=[D])
    model.fc.other = nn.Linear(D, D)  # before the blocks, but in the head
    _, said = check(model, VECTORS, {"fc": 0, "body": (3, 1), "proj": 4, "pooler": 0, "mask_token": 4}, silent=False)
    assert "did not use" in said and "'pooler'" in said and "'mask_token'" in said
    run = lambda net, ids: through(net.seen, net.emb(ids))  # noqa: E731
    model = Net(run, emb=nn.Embedding(9, D), seen=blocks(2), layers=blocks(4), head=nn.Linear(D, 9))
    with pytest.warns(UserWarning, match="by names.*most of the model did not take part in the forward pass, such as"):
        layers = LayerMap.from_model(model, IDS)
    assert layers.source == "by names" and layers.layer_of("layers.3.mix.weight").index == 4


def test_a_model_that_is_one_numbered_list_is_said_measured_and_by_names():
    model = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    layers, said = places(model, VECTORS, silent=False)
    assert "all parameters are in blocks" in said and layers.towers == {"model": 3}
    with pytest.raises(ValueError, match="Found no stack of blocks by names.*`example=`.*names='0.weight"):
        LayerMap.from_model(model)
    with pytest.raises(ValueError, match="the lists of the model may be blocks.*`example=`"):
        LayerMap.from_model(nn.Sequential(*[Block() for _ in range(3)], nn.Linear(D, 2)))
    named = nn.Sequential(("layers", nn.Sequential(*[nn.Linear(n, n + 1) for n in (2, 3, 4)])))
    with pytest.warns(UserWarning, match="by names.*all parameters are in blocks"):
        LayerMap.from_model(named)


def test_maps_that_are_hardly_meant_are_said():
    assert (
        "all parameters are in blocks"
        not in places(nn.Sequential(*[Block() for _ in range(3)]), VECTORS, silent=False)[1]
    )
    chain = [nn.Linear(D, 2 * D), nn.Linear(2 * D, 2 * D), nn.Linear(2 * D, 3)]
    _, said = places(nn.Sequential(*chain), VECTORS, silent=False)
    assert "all parameters are in blocks" in said
    run = lambda self, x: through(self.body, self.proj(x))  # noqa: E731
    _, said = places(Net(run, body=blocks(3), proj=nn.Linear(D, D)), VECTORS, silent=False)
    assert "no parameter is in the head" in said
    run = lambda self, x: self.fc(sum(through(tower, x) for tower in self.towers))  # noqa: E731
    _, said = places(Net(run, towers=nn.LayerList([blocks(2), blocks(3)]), fc=nn.Linear(D, 2)), VECTORS, silent=False)
    assert "'towers.0', 'towers.1' count as towers beside each other" in said
    model = simple()
    for name, param in model.named_parameters():
        param.stop_gradient = not name.startswith("proj")
    assert "all trainable parameters are in one layer (embeddings)" in places(model, VECTORS, silent=False)[1]


def test_rules_override_what_was_measured():
    check(simple(), VECTORS, {"fc": 0, "body": (3, 1), "proj": 0}, rules={"^proj": "head"})
    rules = {r"^low\.(\d+)": r"\1", r"^high\.(\d+)": r"\1 + 2"}
    run = lambda self, ids: self.fc(through(self.high, self.mean(through(self.low, self.word(ids)))))  # noqa: E731
    high, low = nn.LayerList([Parts4() for _ in range(3)]), blocks(2)
    model = Net(run, fc=nn.Linear(D, 2), high=high, low=low, mean=nn.Linear(D, D), word=nn.Embedding(9, D))
    assert len(places(model, IDS, silent=False)[0].towers) in (1, 2)
    check(model, IDS, {"fc": 0, "high": (3, 1), "low": (5, 1), "word": 6, "mean": 4}, rules=rules)


def test_the_graph_is_freed():
    alive = []

    class Token:
        pass

    class Same(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.token = Token()
            alive.append(weakref.ref(ctx.token))
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad

    run = lambda self, x: self.fc(Same.apply(through(self.body, self.proj(x))))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), body=blocks(3), proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "body": (3, 1), "proj": 4})
    gc.collect()
    assert len(alive) == 1 and alive[0]() is None


def test_outputs_that_refer_to_each_other_are_read_once():
    def run(self, x):
        x = through(self.body, x)
        owners = [types.SimpleNamespace(value=x) for _ in range(20)]
        for owner in owners:
            owner.others = owners * 30
        return owners[0]

    model = Net(run, body=blocks(3))
    assert LayerMap.from_model(model, VECTORS).n_layers == 3


class Momentum(nn.Layer):
    """A model whose forward updates a frozen copy and counts in a buffer, as MoCo's."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)
        self.head, self.key = nn.Linear(4, 2), nn.Linear(4, 2)
        for param in self.key.parameters():
            param.stop_gradient = True
        self.register_buffer("seen", paddle.zeros([1]))

    def forward(self, x):
        self.key.weight.set_value(self.key.weight * 0.9 + self.head.weight * 0.1)
        self.seen.set_value(self.seen + 1)
        x = self.blocks(x)
        return self.head(x) - self.key(x)


def test_buffers_are_restored_and_a_pass_that_writes_parameters_is_said():
    model, set_value = Momentum(), paddle.Tensor.set_value
    with pytest.warns(UserWarning, match="writes parameters.*Received: changed='key.weight'"):
        LayerMap.from_model(model, paddle.ones([1, 3, 4]))
    assert model.seen.item() == 0 and paddle.Tensor.set_value is set_value
