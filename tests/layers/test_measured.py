"""Layers measured in a forward pass: models with misleading names, random models, and a pass that leaves no trace."""

import gc
import random
import re
import warnings
import weakref

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_models import Parts
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from paddle_ldopt import LayerMap

D = 8


class Block(nn.Layer):
    """A block with weights of its own class, and a second argument that it may attend to."""

    def __init__(self, cross=False):
        super().__init__()
        self.norm, self.mix, self.grow, self.shrink = (
            nn.LayerNorm(D),
            nn.Linear(D, D),
            nn.Linear(D, 16),
            nn.Linear(16, D),
        )
        if cross:
            self.cross = nn.Linear(D, D)

    def forward(self, x, memory=None):
        x = x + self.mix(self.norm(x))
        if memory is not None:
            x = x + (self.cross(memory) if hasattr(self, "cross") else memory).mean(1, keepdim=True)
        return x + self.shrink(nn.functional.gelu(self.grow(x)))


class OtherBlock(Block):
    pass


def blocks(n, cls=Block, **how):
    return nn.LayerList([cls(**how) for _ in range(n)])


class Net(Parts):
    """Parts in any order, and a function that runs them."""

    def __init__(self, run, **parts):
        super().__init__(**parts)
        self.run = run

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def through(items, x, *more):
    for item in items:
        x = item(x, *more)
    return x


def tokens(n=5):
    return paddle.arange(2 * n).reshape([2, n]) % 9


IDS, VECTORS = tokens(), paddle.ones([2, 5, D])


def places(model, example, silent=True, **how):
    """Return {part: (layer id, depth)} by the shortest path that has one place, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = LayerMap.from_model(model, example, **how)
    said = "".join(str(one.message) for one in caught if "guesses" in str(one.message))
    assert layers.source == "measured" and (not silent or not said), said
    return layers, said


def check(model, example, want, silent=True, **how):
    """Compare the layer ids, as distances from the head, with `want`: {start of names: distance or "first..last"}."""
    layers, said = places(model, example, silent, **how)
    left = set(layers.names)
    for start, distance in want.items():
        for name in [name for name in layers.names if name == start or name.startswith(f"{start}.")]:
            layer = layers.layer_of(name)
            got = layer.depth + 1 - layer.index
            above = distance
            if isinstance(distance, tuple):  # a list: from the first item's distance on down
                above = distance[0] - int(re.match(rf"{re.escape(start)}\.(\d+)", name)[1]) // distance[1]
            assert got == above, f"{name}: {got} below the head, not {above} ({layer})"
            left.discard(name)
    assert not left, left
    return layers, said


def test_a_detector_with_heads_called_embeddings():
    def run(self, x):
        memory = through(
            self.transformer.encoder.layers, self.input_proj(through(self.backbone.body.layers, self.stem_norm(x)))
        )
        queries = paddle.zeros([2, 3, D]) + self.query_embed.weight
        hidden = through(self.transformer.decoder.layers, queries, memory)
        return {"logits": self.class_embed(hidden), "boxes": self.bbox_embed.layers(hidden)}

    model = Net(
        run,
        class_embed=nn.Linear(D, 3),
        bbox_embed__layers=nn.Sequential(nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 4)),
        transformer__decoder__layers=blocks(2, OtherBlock, cross=True),
        query_embed=nn.Embedding(3, D),
        transformer__encoder__layers=blocks(3),
        input_proj=nn.Linear(D, D),
        backbone__body__layers=nn.LayerList([Parts4() for _ in range(4)]),
        stem_norm=nn.LayerNorm(D),
    )
    _, said = check(
        model,
        VECTORS,
        {"class_embed": 0, "bbox_embed": 0, "transformer.decoder.layers": (2, 1), "query_embed": 3}
        | {"transformer.encoder.layers": (3, 1), "input_proj": 0, "backbone.body.layers": (4, 1), "stem_norm": 5},
        silent=False,
    )
    assert "'transformer.encoder.layers' is computed from 'backbone.body.layers'" in said and "`towers=`" in said


class Parts4(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = nn.Linear(D, D), nn.LayerNorm(D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x):
        return x + self.bn2(self.conv2(self.bn1(self.conv1(x))))


class DownBlock(nn.Layer):
    def __init__(self, n):
        super().__init__()
        self.attentions, self.resnets = blocks(n), nn.LayerList([Parts4() for _ in range(n)])
        self.scale = nn.Linear(D, D)

    def forward(self, x):
        for resnet, attention in zip(self.resnets, self.attentions):
            x = attention(resnet(x))
        return self.scale(x)


def test_a_unet_with_lora_layers_beside_it():
    def run(self, x):
        x, skips = self.conv_in(x), []
        for down in self.down_blocks:
            x = down(x)
            skips.append(x)
        x = self.mid_block(x)
        for i, up in enumerate(self.up_blocks):
            x = up(x + skips.pop()) + self.lora_layers[i](x)
        return self.conv_out(x)

    model = Net(
        run,
        lora_layers=nn.LayerList([nn.Linear(D, D) for _ in range(2)]),
        up_blocks=nn.LayerList([DownBlock(3) for _ in range(2)]),
        conv_out=nn.Linear(D, 3),
        mid_block=Parts4(),
        down_blocks=nn.LayerList([DownBlock(2) for _ in range(2)]),
        conv_in=nn.Linear(3, D),
    )
    layers, _ = places(model, paddle.ones([2, 5, 3]))
    of = lambda name: layers.layer_of(name).index  # noqa: E731
    assert layers.n_layers == 11 and of("conv_in.weight") == 0 and of("conv_out.weight") == 12
    order = [f"down_blocks.{i}.{kind}.{j}" for i in range(2) for j in range(2) for kind in ("resnets", "attentions")]
    order += [
        "mid_block",
        *[f"up_blocks.{i}.{kind}.{j}" for i in range(2) for j in range(3) for kind in ("resnets", "attentions")],
    ]
    ids = [of(next(name for name in layers.names if name.startswith(part))) for part in order]
    assert ids == sorted(ids) and set(ids) == set(range(1, 12)) and of("mid_block.conv1.weight") == 5
    assert of("down_blocks.0.scale.weight") == 2 and of("lora_layers.0.weight") == 8


def test_stacks_in_sequence_of_one_class_are_one_tower():
    def run(self, ids):
        x = self.last_hidden(ids)
        x = through(self.char.layer, x)
        x = self.squeeze(x)
        x = through(self.stages_0.encoder, x)
        x = through(self.final.layer, x)
        return (self.pos_embed(x),)

    parts = {"pos_embed": nn.Linear(D, 2), "final__layer": blocks(1), "stages_0__encoder": blocks(3)}
    model = Net(run, **parts, char__layer=blocks(1), squeeze=nn.LayerNorm(D), last_hidden=nn.Embedding(9, D))
    check(
        model,
        IDS,
        {"pos_embed": 0, "final.layer": 1, "stages_0.encoder": (4, 1), "char.layer": 5, "squeeze": 5, "last_hidden": 6},
    )


def test_siamese_towers_share_their_blocks():
    def run(self, a, b):
        encode = lambda ids: through(self.head.layers, self.word(ids))  # noqa: E731
        return self.embedding(paddle.abs(encode(a) - encode(b)).mean(1))

    model = Net(run, embedding=nn.Linear(D, 1), head__layers=blocks(3), word=nn.Embedding(9, D))
    check(model, (IDS, tokens(5) + 0), {"embedding": 0, "head.layers": (3, 1), "word": 4})


def test_towers_beside_each_other():
    def run(self, image, ids):
        image = self.text_proj(through(self.text.blocks, self.cls_head(image)).mean(1))
        text = self.image_proj(through(self.image.blocks, self.words(ids)).mean(1))
        return self.temperature.exp() * image @ text.T

    model = Net(
        run, temperature=[1], text__blocks=blocks(4), image__blocks=blocks(2), cls_head=nn.Linear(D, D),
        words=nn.Embedding(9, D),
        text_proj=nn.Linear(D, D), image_proj=nn.Linear(D, D),
    )  # fmt: skip
    layers, _ = check(
        model,
        {"ids": IDS, "image": VECTORS},
        {"temperature": 0, "text.blocks": (4, 1), "image.blocks": (2, 1), "cls_head": 5, "words": 3}
        | {"text_proj": 0, "image_proj": 0},
    )
    assert layers.towers == {"text.blocks": 4, "image.blocks": 2}


class Biased(nn.Layer):
    def __init__(self, first):
        super().__init__()
        self.layer = Block(cross=True)
        if first:
            self.table = nn.Embedding(5, 1)

    def forward(self, x, bias, memory=None):
        bias = self.table(paddle.arange(5)) if bias is None else bias
        return self.layer(x + bias, memory), bias


def test_an_encoder_and_a_decoder_with_tables_in_their_first_blocks():
    class Stack(nn.Layer):
        def __init__(self, n, words):
            super().__init__()
            self.block, self.embed = nn.LayerList([Biased(i == 0) for i in range(n)]), words
            self.norm = nn.LayerNorm(D)

        def forward(self, ids, memory=None):
            x, bias = self.embed(ids), None
            for block in self.block:
                x, bias = block(x, bias, memory)
            return self.norm(x)

    def run(self, ids, targets):
        return self.lm(self.b(targets, memory=self.a(ids, paddle.zeros([2, 5, D]))))

    words = nn.Embedding(9, D)
    model = Net(run, lm=nn.Linear(D, 9), a=Stack(2, words), b=Stack(4, words))
    tables = {"a.block.0.table": 3, "b.block.0.table": 5}
    want = {"lm": 0, "a.embed": 5, "a.norm": 0, "b.norm": 0}
    layers, _ = places(model, {"ids": IDS, "targets": IDS})
    for start, distance in (tables | want).items():
        layer = next(layers.layer_of(name) for name in layers.names if name.startswith(start))
        assert layer.depth + 1 - layer.index == distance, (start, layer)
    assert sorted(layers.towers.values()) == [2, 4]


def test_a_speech_model():
    def run(self, sound, ids):
        memory = self.final(through(self.encoder.blocks, self.conv2(self.conv1(sound)) + self.sinusoid_norm))
        hidden = self.decoder_ln(through(self.decoder.blocks, self.token(ids) + self.logits, memory))
        return hidden @ self.token.weight.T

    model = Net(
        run, sinusoid_norm=[5, D], logits=[5, D], decoder__blocks=blocks(4, cross=True), encoder__blocks=blocks(2),
        decoder_ln=nn.LayerNorm(D), final=nn.LayerNorm(D), conv2=nn.Linear(D, D), conv1=nn.Linear(D, D),
        token=nn.Embedding(9, D),
    )  # fmt: skip
    ends = {"sinusoid_norm": 3, "logits": 5, "conv1": 3, "conv2": 3, "token": 5, "final": 0, "decoder_ln": 0}
    check(model, (VECTORS, IDS), ends | {"decoder.blocks": (4, 1), "encoder.blocks": (2, 1)})


def test_a_block_that_runs_many_times():
    def run(self, ids):
        x = self.out(ids)
        for _ in range(4):
            x = self.group.inner[0](x)
        return self.embeddings(x)

    check(
        Net(run, embeddings=nn.Linear(D, 2), group__inner=blocks(1), out=nn.Embedding(9, D)),
        IDS,
        {"embeddings": 0, "group": 1, "out": 2},
    )


class Experts(nn.Layer):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(D, 4), blocks(4)

    def forward(self, x):
        return x + self.experts[0](x) * self.gate(x)[..., :1]  # the others are not reached


def test_experts_that_the_example_does_not_reach():
    run = lambda self, x: self.norm(through(self.tower, self.score(x)))  # noqa: E731
    model = Net(run, score=nn.Linear(D, D), tower=blocks(3, Experts), norm=nn.LayerNorm(D))
    check(model, VECTORS, {"score": 4, "tower": (3, 1), "norm": 0})


def test_adapters_take_the_layer_of_what_they_adapt():
    def run(self, x):
        x = self.b(x)
        for block, adapter in zip(self.body, self.adapters):
            x = block(x) + adapter(x)
        return self.a(x)

    model = Net(
        run,
        adapters=nn.LayerList([nn.Sequential(nn.Linear(D, 2), nn.Linear(2, D)) for _ in range(3)]),
        a=nn.Linear(D, 2),
        body=blocks(3),
        b=nn.Linear(D, D),
    )
    check(model, VECTORS, {"adapters": (3, 1), "a": 0, "body": (3, 1), "b": 4})


def test_parts_between_blocks_and_stages():
    class Stage(nn.Layer):
        def __init__(self, n, last=False):
            super().__init__()
            self.blocks = blocks(n)
            if not last:
                self.downsample = nn.Linear(D, D)

        def forward(self, x):
            x = through(self.blocks, x)
            return self.downsample(x) if hasattr(self, "downsample") else x

    def run(self, x):
        outs, x = [], self.head_conv(x)
        for i, stage in enumerate(self.layers):
            x = stage(x)
            outs.append(getattr(self, f"norm{i}")(x))
        return self.seg(sum(outs))

    norms = {f"norm{i}": nn.LayerNorm(D) for i in range(3)}
    model = Net(
        run,
        **norms,
        seg=nn.Linear(D, 2),
        layers=nn.LayerList([Stage(2), Stage(3), Stage(1, True)]),
        head_conv=nn.Linear(D, D),
    )
    layers, _ = places(model, VECTORS)
    ids = {name: layers.layer_of(name).index for name in layers.names if name.endswith("weight")}
    assert layers.towers == {"layers": 6} and ids["head_conv.weight"] == 0 and ids["seg.weight"] == 7
    assert [ids[f"norm{i}.weight"] for i in range(3)] == [7, 7, 7]
    assert ids["layers.0.downsample.weight"] == 2 and ids["layers.1.blocks.2.mix.weight"] == 5


def test_a_second_stem_is_listed():
    def run(self, x):
        side = self.spm(x) + self.level_embed  # as in a ViT adapter: to the blocks and past them to the head
        for block, injector in zip(self.blocks, self.injectors):
            x = block(x + injector(side))
        return self.head(self.norm(side) + x)

    injectors = nn.LayerList([nn.Linear(D, D) for _ in range(3)])
    parts = {"blocks": blocks(3), "spm": nn.Linear(D, D), "injectors": injectors, "norm": nn.LayerNorm(D)}
    model = Net(run, level_embed=[D], **parts, head=nn.Linear(D, 2))
    _, said = places(model, VECTORS, silent=False)
    assert "'level_embed', 'spm.weight', 'spm.bias' feed the head also past all blocks" in said
    _, said = places(model, VECTORS, rules={"^(spm|level_embed|injectors)": "head"})


def test_pairs_in_lists_without_a_forward():
    class Norm(nn.Layer):
        def __init__(self, fn):
            super().__init__()
            self.norm, self.fn = nn.LayerNorm(D), fn

        def forward(self, x):
            return x + self.fn(self.norm(x))

    mlp = lambda: Norm(nn.Sequential(nn.Linear(D, 16), nn.GELU(), nn.Linear(16, D)))  # noqa: E731
    for pair in ((mlp, mlp), (lambda: Norm(nn.Linear(D, D)), mlp)):
        run = lambda self, x: self.fc(through([part for pair in self.layers for part in pair], self.proj(x)))  # noqa: E731
        layers = nn.LayerList([nn.LayerList([make() for make in pair]) for _ in range(4)])
        check(
            Net(run, fc=nn.Linear(D, 2), layers=layers, proj=nn.Linear(D, D)),
            VECTORS,
            {"fc": 0, "layers": (4, 1), "proj": 5},
        )


def test_halves_of_blocks_in_turns():
    class Attend(nn.Layer):
        def __init__(self):
            super().__init__()
            self.norm, self.q, self.out = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            return x + self.out(self.q(self.norm(x)))

    class Feed(nn.Layer):
        def __init__(self):
            super().__init__()
            self.ff = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 16), nn.Linear(16, D))

        def forward(self, x):
            return x + self.ff(x)

    run = lambda self, x: self.fc(through(self.layers, self.proj(x)))  # noqa: E731
    layers = nn.LayerList([Feed() if i % 2 else Attend() for i in range(6)])
    check(
        Net(run, fc=nn.Linear(D, 2), layers=layers, proj=nn.Linear(D, D)),
        VECTORS,
        {"fc": 0, "layers": (3, 2), "proj": 4},
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_blocks_under_recompute(reentrant):
    def run(self, x):
        x = self.z(x)
        for block in self.body:
            x = recompute(block, x, use_reentrant=reentrant)
        return self.a(x)

    check(Net(run, a=nn.Linear(D, 2), body=blocks(3), z=nn.Linear(D, D)), VECTORS, {"a": 0, "body": (3, 1), "z": 4})


WORDS = [
    "head",
    "embed",
    "norm",
    "layers",
    "pooler",
    "stem",
    "encoder",
    "classifier",
    "tokens",
    "decoder",
    "fc",
    "proj",
]


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
            parts[name] = draw(
                st.sampled_from(
                    [
                        lambda: nn.Linear(D, D),
                        lambda: nn.LayerNorm(D),
                        lambda: nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D)),
                    ]
                )
            )()
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

    order = draw(st.permutations(list(parts)))
    return Net(run, **{name: parts[name] for name in order}), above


@given(random_models())
@settings(max_examples=60, deadline=None)
def test_random_models_are_mapped_as_they_were_built(built):
    model, above = built
    layers, _ = places(model, VECTORS, silent=False)
    assert len(layers.towers) == 1
    for name in layers.names:
        part = next(part for part in sorted(above, key=len, reverse=True) if f"{name}.".startswith(f"{part}."))
        layer = layers.layer_of(name)
        assert layer.depth + 1 - layer.index == above[part], f"{name}: {layer}"


def simple(**more):
    run = lambda self, x, fail=False: self.fc(through(self.body, self.proj(x)))  # noqa: E731
    return Net(run, fc=nn.Linear(D, 2), body=blocks(3), proj=nn.Linear(D, D), **more)


@pytest.mark.parametrize("example", [VECTORS, (VECTORS,), [VECTORS], {"x": VECTORS}, lambda model: model(VECTORS)])
def test_examples(example):
    check(simple(), example, {"fc": 0, "body": (3, 1), "proj": 4})


def test_a_failed_pass_says_why():
    model = simple()
    with pytest.raises(
        ValueError, match=r"forward pass .* failed \(\w*Error: (?s:.*)Give an `example`.*Received: example="
    ) as refused:
        LayerMap.from_model(model, {"y": VECTORS})
    assert isinstance(refused.value.__cause__, TypeError)
    with pytest.raises(TypeError, match="`example` must be a Tensor.*Received: example of type int"):
        LayerMap.from_model(model, 3)
    with pytest.raises(ValueError, match="depends on no parameter"):
        LayerMap.from_model(model, lambda model: None)
    assert not model._forward_pre_hooks and not model._forward_post_hooks


@pytest.mark.filterwarnings("ignore:When training")
def test_the_pass_leaves_no_trace():
    def run(self, x):
        self.count += 1
        random.random(), np.random.rand(), paddle.rand([2])
        return self.fc(
            nn.functional.dropout(
                self.bn(through(self.body, self.proj(x)).transpose([0, 2, 1])).transpose([0, 2, 1]), training=True
            )
        )

    model = Net(run, fc=nn.Linear(D, 2), bn=nn.BatchNorm1D(D), body=blocks(3), proj=nn.Linear(D, D))
    model.register_buffer("count", paddle.zeros([1]))
    model.body[0].eval()
    model.proj.weight.stop_gradient = True
    model(VECTORS).sum().backward()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    grads = {name: param.grad.numpy() for name, param in model.named_parameters() if param.grad is not None}
    states = random.getstate(), np.random.get_state()[1].tolist(), paddle.get_rng_state()[0].current_seed()
    drawn = [(paddle.get_rng_state(device), device) for device in (None, "cpu")]
    layers = LayerMap.from_model(model, VECTORS)
    assert layers.layer_of("proj.weight").index == 0 and layers.layer_of("bn._mean").index == 4
    assert model.training and not model.body[0].training and model.body[1].training
    assert model.proj.weight.stop_gradient and not model.fc.weight.stop_gradient and model.bn._mean.stop_gradient
    assert all((value.numpy() == before[name]).all() for name, value in model.state_dict().items())
    assert all((dict(model.named_parameters())[name].grad.numpy() == grad).all() for name, grad in grads.items())
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), paddle.get_rng_state()[0].current_seed())
    want = paddle.rand([3]).numpy()
    for state, device in drawn:
        paddle.set_rng_state(state, device)
    assert (paddle.rand([3]).numpy() == want).all()


def test_what_the_pass_did_not_use_is_said():
    model = simple(pooler=nn.Linear(D, D), mask_token=[D])
    layers, said = check(
        model, VECTORS, {"fc": 0, "body": (3, 1), "proj": 4, "pooler": 0, "mask_token": 4}, silent=False
    )
    assert "did not use" in said and "'pooler.weight'" in said and "'mask_token'" in said


def test_maps_that_are_hardly_meant_are_said():
    assert "numbered list" not in places(nn.Sequential(*[Block() for _ in range(3)]), VECTORS, silent=False)[1]
    chain = [nn.Linear(D, 2 * D), nn.Linear(2 * D, 2 * D), nn.Linear(2 * D, 3)]
    _, said = places(nn.Sequential(*chain), VECTORS, silent=False)
    assert "the whole model is one numbered list" in said
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
    model = Net(
        run,
        fc=nn.Linear(D, 2),
        high=nn.LayerList([Parts4() for _ in range(3)]),
        low=blocks(2),
        mean=nn.Linear(D, D),
        word=nn.Embedding(9, D),
    )
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
    check(
        Net(run, fc=nn.Linear(D, 2), body=blocks(3), proj=nn.Linear(D, D)),
        VECTORS,
        {"fc": 0, "body": (3, 1), "proj": 4},
    )
    gc.collect()
    assert len(alive) == 1 and alive[0]() is None
