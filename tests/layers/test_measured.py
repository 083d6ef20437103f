"""Layers measured in a forward pass: models with misleading names, random models, and a pass that leaves no trace."""

import paddle
import pytest
from measured_models import IDS, VECTORS, Block, D, Net, OtherBlock, Parts4, blocks, check, places, through, tokens
from paddle import nn

from paddle_ldopt import LayerDecay, LayerMap, create


def test_a_detector_with_heads_called_embeddings():
    def run(self, x):
        features = self.input_proj(through(self.backbone.body.layers, self.stem_norm(x)))
        memory = through(self.transformer.encoder.layers, features)
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
    want = {"class_embed": 0, "bbox_embed": 0, "transformer.decoder.layers": (2, 1), "query_embed": 3, "input_proj": 0}
    want |= {"transformer.encoder.layers": (3, 1), "backbone.body.layers": (4, 1), "stem_norm": 5}
    _, said = check(model, VECTORS, want, silent=False)
    assert "'transformer.encoder.layers' is computed from 'backbone.body.layers'" in said and "`towers=`" in said


class DownBlock(nn.Layer):
    def __init__(self, n, cls=Block):
        super().__init__()
        self.attentions, self.resnets = blocks(n, cls), nn.LayerList([Parts4() for _ in range(n)])
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
        **{"conv_out": nn.Linear(D, 3), "mid_block": Parts4()},
        down_blocks=nn.LayerList([DownBlock(2) for _ in range(2)]),
        conv_in=nn.Linear(3, D),
    )
    layers, _ = places(model, paddle.ones([2, 5, 3]))
    of = lambda name: layers.layer_of(name).index  # noqa: E731
    assert layers.n_layers == 11 and of("conv_in.weight") == 0 and of("conv_out.weight") == 12
    down = [f"down_blocks.{i}.{kind}.{j}" for i in range(2) for j in range(2) for kind in ("resnets", "attentions")]
    up = [f"up_blocks.{i}.{kind}.{j}" for i in range(2) for j in range(3) for kind in ("resnets", "attentions")]
    order = [*down, "mid_block", *up]
    ids = [of(next(name for name in layers.names if name.startswith(part))) for part in order]
    assert ids == sorted(ids) and set(ids) == set(range(1, 12)) and of("mid_block.conv1.weight") == 5
    assert of("down_blocks.0.scale.weight") == 2 and of("lora_layers.0.weight") == 8


class TwoAttentions(nn.Layer):
    """A block of diffusers, with a stack of its own: `attn1`, `attn2`."""

    def __init__(self):
        super().__init__()
        self.attn1, self.attn2, self.ff = OtherBlock(), OtherBlock(), nn.Linear(D, D)

    def forward(self, x):
        return x + self.ff(self.attn2(self.attn1(x)))


def test_the_middle_of_a_unet_has_the_blocks_of_its_sides():
    def middle(self, x):
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))

    mid_block = Net(middle, attentions=blocks(1, TwoAttentions), resnets=blocks(2, Parts4))
    downs = nn.LayerList([DownBlock(2, TwoAttentions) for _ in range(2)])
    run = lambda self, x: self.conv_out(self.mid_block(through(self.down_blocks, self.conv_in(x))))  # noqa: E731
    model = Net(run, conv_out=nn.Linear(D, 3), mid_block=mid_block, down_blocks=downs, conv_in=nn.Linear(D, D))
    sides = {f"down_blocks.{i}.{kind}": (7 - 2 * i, 1) for i in range(2) for kind in ("resnets", "attentions")}
    middles = {"mid_block.resnets.0": 3, "mid_block.attentions.0": 2, "mid_block.resnets.1": 1}
    ends = {"conv_in": 8, "down_blocks.0.scale": 6, "down_blocks.1.scale": 4, "conv_out": 0}
    check(model, VECTORS, sides | middles | ends)


def test_siamese_towers_share_their_blocks():
    def run(self, a, b):
        encode = lambda ids: through(self.head.layers, self.word(ids))  # noqa: E731
        return self.embedding(paddle.abs(encode(a) - encode(b)).mean(1))

    model = Net(run, embedding=nn.Linear(D, 1), head__layers=blocks(3), word=nn.Embedding(9, D))
    check(model, (IDS, tokens(5) + 0), {"embedding": 0, "head.layers": (3, 1), "word": 4})


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
    stages = nn.LayerList([Stage(2), Stage(3), Stage(1, True)])
    model = Net(run, **norms, seg=nn.Linear(D, 2), layers=stages, head_conv=nn.Linear(D, D))
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
    assert "'level_embed', 'spm' feed the head also past all blocks" in said
    _, said = places(model, VECTORS, rules={"^(spm|level_embed|injectors)": "head"})


def test_a_second_stem_that_blocks_change_on_the_way_is_listed():
    def run(self, x):
        side, x = self.spm(x), self.patch(x)
        for block, inject, extract in zip(self.blocks, self.injectors, self.extractors):
            x = block(x + inject(side))
            side = side + extract(x)  # as in a ViT adapter
        return self.head(side + x)

    lists = {name: nn.LayerList([nn.Linear(D, D) for _ in range(3)]) for name in ("injectors", "extractors")}
    ends = {name: nn.Linear(D, D) for name in ("spm", "patch", "head")}
    _, said = places(Net(run, blocks=blocks(3), **lists, **ends), VECTORS, silent=False)
    assert "'spm' feed the head also past all blocks" in said and "'patch'" not in said


def test_blocks_whose_residual_sums_are_outside_are_no_doubt():
    def run(self, x):
        x = self.proj(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x)

    model = Net(run, fc=nn.Linear(D, 2), blocks=blocks(3, Parts4), proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "blocks": (3, 1), "proj": 4})


def test_an_encoder_whose_residual_sums_are_outside_below_a_decoder():
    def run(self, x):
        x = self.proj(x)
        for block in self.encoder:
            x = x + block(x)
        queries = paddle.zeros([2, 3, D]) + self.queries.weight
        return self.fc(through(self.decoder, queries, self.norm(x)))

    ends = {"proj": nn.Linear(D, D), "norm": nn.LayerNorm(D), "queries": nn.Embedding(3, D), "fc": nn.Linear(D, 2)}
    model = Net(run, encoder=blocks(2, Parts4), decoder=blocks(5, OtherBlock, cross=True), **ends)
    want = {"proj": 3, "encoder": (2, 1), "norm": 0, "queries": 6, "decoder": (5, 1), "fc": 0}
    check(model, VECTORS, want, silent=False)


def test_a_stem_that_also_reaches_the_result_of_a_decoder_is_listed():
    def run(self, x):
        stem = self.proj(x)
        queries = paddle.zeros([2, 5, D]) + self.queries.weight
        return self.fc(through(self.decoder, queries, through(self.encoder, stem)) + stem)

    ends = {"proj": nn.Linear(D, D), "queries": nn.Embedding(5, D), "fc": nn.Linear(D, 2)}
    model = Net(run, encoder=blocks(2, Parts4), decoder=blocks(5, OtherBlock, cross=True), **ends)
    _, said = places(model, VECTORS, silent=False)
    assert "'proj' feed the head also past all blocks" in said


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
        model = Net(run, fc=nn.Linear(D, 2), layers=layers, proj=nn.Linear(D, D))
        check(model, VECTORS, {"fc": 0, "layers": (4, 1), "proj": 5})


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
    model = Net(run, fc=nn.Linear(D, 2), layers=layers, proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "layers": (3, 2), "proj": 4})


def test_a_part_of_a_stage_that_holds_a_block_is_no_stack():
    def stage(count):
        down = Net(lambda self, x: self.inner(x), inner=Block())
        return Net(lambda self, x: through(self.blocks, self.down(x)), down=down, blocks=blocks(count))

    run = lambda self, x: self.fc(through(self.stages, self.proj(x)))  # noqa: E731
    stages = nn.LayerList(list(map(stage, (2, 3, 4))))
    layers, _ = places(Net(run, fc=nn.Linear(D, 2), stages=stages, proj=nn.Linear(D, D)), VECTORS, True)
    assert layers.towers == {"stages": 9} and {layers.layer_of(name).index for name in layers.names} == {*range(11)}


def test_adapters_between_blocks_are_no_blocks():
    def run(self, x):
        for i, block in enumerate(self.encoder.layers):
            x = block(self.proj(x) if i == 0 else x)
            x = self.adapters[i - 2](x) if i > 1 else x
        return self.fc(x)

    ends = {"fc": nn.Linear(D, 2), "proj": nn.Linear(D, D)}
    adapters = nn.LayerList([nn.Sequential(nn.Linear(D, 2), nn.Linear(2, D)) for _ in range(2)])
    model = Net(run, encoder__layers=blocks(4), adapters=adapters, **ends)
    check(model, VECTORS, {"fc": 0, "encoder.layers": (4, 1), "proj": 5, "adapters": (2, 1)})


def test_chains_of_blocks():
    """Lists with like names hold whole blocks, equal ones need no common name, a norm behind each call is no block."""
    run = lambda self, x: self.fc(through(self.part_b, through(self.part_a, self.proj(x))))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), part_a=blocks(2), part_b=blocks(2), proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "part_a": (4, 1), "part_b": (2, 1), "proj": 5})
    run = lambda self, x: self.fc(self.high(self.mid(self.low(self.proj(x)))))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), high=Block(), low=Block(), mid=Block(), proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "high": 1, "mid": 2, "low": 3, "proj": 4})
    run = lambda self, x: self.fc(through([self.block, self.norm] * 3, self.proj(x)))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), block=Block(), norm=nn.LayerNorm(D), proj=nn.Linear(D, D))
    check(model, VECTORS, {"fc": 0, "block": 1, "norm": 2, "proj": 2})


def test_a_norm_in_a_list_belongs_to_the_item_before():
    items = [layer for _ in range(3) for layer in (nn.Conv2D(D, D, 3), nn.BatchNorm2D(D), nn.ReLU())]
    run = lambda self, x: self.fc(self.features(x).mean([2, 3]))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), features=nn.Sequential(*items[:-2]))  # no norm behind the last
    places = {"fc": 0, "features.0": 3, "features.1": 3, "features.3": 2, "features.4": 2, "features.6": 1}
    check(model, paddle.randn([2, D, 9, 9]), places)


def test_blocks_of_norms_alone_are_doubtful():
    model = Net(lambda self, x: self.fc(self.one(x)), fc=nn.Linear(D, 2), one=nn.TransformerEncoderLayer(D, 2, 4 * D))
    with pytest.warns(UserWarning, match="have no parameters but those of norms"):
        LayerMap.from_model(model, paddle.randn([1, 3, D]))


def test_stages_with_more_kinds_of_blocks_later_are_one_tower():
    class Heavy(nn.Layer):  # as a MobileViT block behind an inverted residual
        def __init__(self):
            super().__init__()
            for name in "abcdefghijklmnopqrstuvwxyz":
                self.add_sublayer(name, nn.Linear(D, D))

        def forward(self, x):
            return x + through(self.sublayers(), x)

    run = lambda self, x: self.fc(through([getattr(self, f"layer{i}") for i in range(1, 5)], self.stem(x)))  # noqa: E731
    stages = {f"layer{i}": nn.Sequential(*[Parts4() for _ in range(i)]) for i in (1, 2)}
    stages |= {f"layer{i}": nn.Sequential(Parts4(), Heavy()) for i in (3, 4)}
    model = Net(run, stem=nn.Linear(D, D), **stages, fc=nn.Linear(D, 2))
    check(model, VECTORS, {"stem": 6, "layer1": 5, "layer2": (4, 1), "layer3": 2, "layer4": 1, "fc": 0})


def test_stages_are_named_by_their_list_though_the_stem_has_a_block():
    class Part(Parts4):  # as in PP-LCNetV2, whose later blocks have more parts
        def __init__(self, names):
            super().__init__()
            self.more = nn.LayerDict({name: nn.Linear(D, D) for name in names})

        def forward(self, x):
            return super().forward(through(self.more.values(), x))

    depths = {"": (1, 2), "abcdefghij": (3, 1)}
    stages = [nn.Sequential(*[Part(names) for _ in range(n)]) for names, two in depths.items() for n in two]
    run = lambda self, x: self.fc(through(self.stages, self.stem(x)))  # noqa: E731
    parts = {"stem": nn.Sequential(nn.Linear(D, D), Part("")), "stages": nn.LayerList(stages), "fc": nn.Linear(D, 2)}
    want = {"stem.0": 9, "stem.1": 8, "stages.0": 7, "stages.1": 6, "stages.2": 4, "stages.3": 1, "fc": 0}
    layers, _ = places(Net(run, **parts), VECTORS)
    assert layers.towers == {"stages": 8}
    of = {start: next(n for n in layers.names if n.startswith(f"{start}.")) for start in want}
    assert {start: 9 - layers.layer_of(name).index for start, name in of.items()} == want


def test_norms_of_batches_behind_each_block():
    """The last norm of a list is in the last block, as a LayerNorm is, though its statistics have no graph."""

    def run(self, x):
        for block, norm in zip(self.blocks, self.norms):
            x = norm(block(x).flatten(0, 1)).reshape(x.shape)
        return self.fc(x)

    norms = nn.LayerList([nn.BatchNorm1D(D) for _ in range(3)])
    model = Net(run, fc=nn.Linear(D, 2), norms=norms, blocks=blocks(3))
    check(model, VECTORS, {"fc": 0, "norms.2": 1, "norms.1": 2, "norms.0": 3, "blocks": (3, 1)})
    beside = Net(lambda self, x: self.fc(through(self.enc, x) + self.detail(x.flatten(0, 1)).reshape(x.shape)))
    beside.detail, beside.enc = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1D(D), nn.Linear(D, D)), blocks(3)
    beside.fc = nn.Linear(D, 2)
    _, said = check(beside, VECTORS, {"fc": 0, "enc": (3, 1), "detail": 0}, silent=False)
    assert "'detail' in the head, with no block before" in said


class Recurrent(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.rnn, self.fc, self.norm = nn.GRU(width, D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, graph, x):
        x, state = self.rnn(x)
        return self.norm(self.fc(x)) * graph, state


def test_blocks_of_two_results_that_take_a_graph_first():
    def run(self, x):
        for block in self.blocks:
            x, _ = block(paddle.ones([]), x)
        return self.fc(x)

    model = Net(run, fc=nn.Linear(D, 2), blocks=nn.LayerList([Recurrent(D) for _ in range(3)]))
    check(model, VECTORS, {"fc": 0, "blocks": (3, 1)})


class Unit(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layers, self.squeeze = blocks(3, Parts4), nn.Linear(D, D)

    def forward(self, x):
        return self.squeeze(through(self.layers, x))


class Units(nn.Layer):
    """As a stage of HGNet, whose blocks have a list of convolutions."""

    def __init__(self, depth):
        super().__init__()
        self.blocks = blocks(depth, Unit)

    def forward(self, x):
        return through(self.blocks, x)


def test_a_block_that_is_alone_in_its_stage_is_cut_no_finer():
    stages = nn.LayerList([Units(depth) for depth in (1, 2, 1)])
    model = Net(lambda self, x: self.fc(through(self.stages, x)), fc=nn.Linear(D, 2), stages=stages)
    want = {"fc": 0, "stages.0": 4, "stages.1.blocks.0": 3, "stages.1.blocks.1": 2, "stages.2": 1}
    layers, _ = check(model, VECTORS, want)
    assert layers.n_layers == 4


def linears(count, size=3):
    return nn.Sequential(nn.Linear(size, D), *(nn.Linear(D, D) for _ in range(count)))


def test_towers_of_single_weights():
    both = lambda self, x: self.fc(through(self.user, x) + through(self.item, x))  # noqa: E731
    ends = {"fc": nn.Linear(D, 2), "user": linears(3)}
    equal = Net(both, item=linears(3), **ends)
    check(equal, paddle.randn([2, 5, 3]), {"fc": 0, "user": (4, 1), "item": (4, 1)}, silent=False)
    beside = Net(lambda self, x: self.fc(through(self.enc, self.user(x)) + self.item(x)), item=linears(2), **ends)
    beside.enc = blocks(3)
    want = {"fc": 0, "user": 4, "enc": (3, 1), "item": 0}
    _, said = check(beside, paddle.randn([2, 5, 3]), want, silent=False)
    assert "'item' in the head, with no block before" in said
    coder = Net(
        lambda self, x: self.down(self.up(x)), up=linears(3), down=nn.Sequential(nn.Linear(D, D), nn.Linear(D, 3))
    )
    _, said = check(coder, paddle.randn([2, 5, 3]), {"up": (4, 1), "down": 0}, silent=False)
    assert "'down' in the head, though like the blocks before" in said


def test_a_list_of_one_head_is_no_tower_beside_a_chain():
    model = Net(lambda self, x: self.heads[0](self.body(x)), body=linears(4), heads=nn.LayerList([nn.Linear(D, 2)]))
    check(model, paddle.randn([2, 5, 3]), {"heads": 0, "body": (5, 1)})


def test_recurrent_layers_are_blocks_whatever_their_names():
    parts = {"lstm": nn.LSTM(D, D), "lstm2": nn.LSTM(D, D, direction="bidirect")}
    run = lambda self, x: self.fc(self.lstm2(self.lstm(self.up(x))[0])[0])  # noqa: E731
    model = Net(run, up=nn.Linear(D, D), fc=nn.Linear(2 * D, 2), **parts)
    check(model, VECTORS, {"up": 3, "lstm": 2, "lstm2": 1, "fc": 0})


def test_parts_that_feed_later_blocks_first_are_no_norms_of_stages():
    def run(self, x):
        side, skips, control = x, [], []
        for block, conv in zip(self.control, self.convs):
            side = block(side)
            control.append(conv(side))
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block in self.up:
            x = block(x + skips.pop() + control.pop())
        return self.fc(x)

    lists = {name: blocks(3) for name in ("control", "down", "up")}
    layers, _ = places(Net(run, fc=nn.Linear(D, 2), convs=linears(2, D), **lists), VECTORS, silent=False)
    tops = [layers.layer_of(f"convs.{i}.weight") for i in range(3)]
    assert [(layer.index, layer.depth) for layer in tops] == [(5, 6), (4, 6), (4, 3)], "the last is above its tower"


def test_what_stands_beside_the_features_of_a_tower_is_an_embedding_of_the_next():
    class Speaker(Net):  # as LLaVA, with a learnt end of each row of the image
        def __init__(self, run, **parts):
            super().__init__(run, **parts)
            self.newline = self.create_parameter([1, 1, D])

    def run(self, image, ids):
        seen = self.projector(self.eye(image))
        newline = self.newline.expand([len(seen), 1, D])
        return self.fc(through(self.body, paddle.concat([seen, newline, self.words(ids)], 1)))

    see = lambda self, x: through(self.layers, self.patch(x))  # noqa: E731
    eye = Net(see, patch=nn.Linear(D, D), layers=blocks(2, Parts4))
    parts = {"fc": nn.Linear(D, 2), "words": nn.Embedding(9, D), "projector": nn.Linear(D, D)}
    model = Speaker(run, **parts, body=blocks(4), eye=eye)
    want = {"eye.patch": 3, "eye.layers": (2, 1), "projector": 0, "newline": 5, "words": 5, "body": (4, 1), "fc": 0}
    _, said = check(model, (VECTORS, IDS), want, silent=False)
    assert "past all blocks" not in said


def test_a_stack_too_small_for_blocks_is_said():
    class Branches(nn.Layer):  # as a module of HRNet
        def __init__(self):
            super().__init__()
            self.branches = nn.LayerList([blocks(3, Parts4) for _ in range(4)])

        def forward(self, x):
            return sum(through(branch, x) for branch in self.branches)

    run = lambda self, x: self.fc(through(self.st3, through(self.layer1, self.stem(x))))  # noqa: E731
    ends = {"fc": nn.Linear(D, 2), "stem": nn.Linear(D, D)}
    model = Net(run, **ends, st3=blocks(3, Branches), layer1=blocks(2, Parts4))
    want = {"stem": 4, "layer1": 4, "st3": (3, 1), "fc": 0}
    _, said = check(model, VECTORS, want, silent=False)
    assert "'layer1' is a stack of 2 parts too small for blocks, in the embeddings" in said
    check(model, VECTORS, want, rules={"^(layer1|stem)": "embeddings"})


def test_a_model_of_to_static_is_measured():
    model = Net(lambda self, x: self.fc(through(self.body, x)), fc=nn.Linear(D, 2), body=blocks(2))
    paddle.jit.to_static(model, full_graph=True)
    check(model, VECTORS, {"fc": 0, "body": (2, 1)})


class Mixed(nn.Layer):
    """A block with two norms of these names, `classes` of its two linear parts."""

    def __init__(self, names):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        for name in names:
            setattr(self, name, nn.LayerNorm(4))
        self.names = names

    def forward(self, x):
        first, second = (getattr(self, name) for name in self.names)
        return x + self.b(second(self.a(first(x))))


class Other(Mixed):
    """A block of another class."""


@pytest.mark.parametrize("names", [("norm1", "norm2"), ("rms_1", "gn2")])
def test_the_names_of_norms_do_not_change_the_blocks(names):
    blocks = nn.Sequential(*(cls(names) for _ in range(3) for cls in (Mixed, Other)))
    model = nn.Sequential(nn.Linear(4, 4), blocks, nn.Linear(4, 2))
    assert LayerMap.from_model(model, paddle.ones([1, 4])).n_layers == 6


class TwoStreams(nn.Layer):
    """Two paths, as in SlowFast: after each stage a part fuses the fast path into the slow one."""

    def __init__(self):
        super().__init__()
        self.slow_stem, self.fast_stem = nn.Linear(4, 4), nn.Linear(4, 4)
        self.slow, self.fast = (nn.LayerList([Mixed(("norm1", "norm2")) for _ in range(4)]) for _ in range(2))
        self.fuse = nn.LayerList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        slow, fast = self.slow_stem(x), self.fast_stem(x)
        for i in range(4):
            slow, fast = self.slow[i](slow), self.fast[i](fast)
            if i < 3:
                slow = slow + self.fuse[i](fast)
        return self.head(paddle.concat([slow, fast], axis=-1))


def test_what_joins_parallel_towers_is_in_the_block_before_the_one_that_it_feeds():
    layers = LayerMap.from_model(TwoStreams(), paddle.ones([1, 4]))
    found = [layers.layer_of(f"fuse.{i}.weight") for i in range(3)]
    assert [(layer.tower, layer.index) for layer in found] == [("slow", 1), ("slow", 2), ("slow", 3)]


def test_two_parts_with_the_same_names_of_parameters_are_refused():
    class Distilled(nn.Layer):
        def __init__(self):
            super().__init__()
            with paddle.utils.unique_name.guard():
                self.student = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
            with paddle.utils.unique_name.guard():
                self.teacher = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 4)

        def forward(self, x):
            return self.student(x) - self.teacher(x)

    with pytest.raises(ValueError, match="Parameters need different names.*Received: names=.'student.*teacher"):
        LayerMap.from_model(Distilled(), paddle.ones([1, 3, 8]))


def test_frozen_blocks_count_in_the_mean_and_are_said():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3)
    model = nn.Sequential(nn.Linear(8, 8), encoder, nn.Linear(8, 2))
    decay, example = LayerDecay(0.5, preserve_mean=True), paddle.ones([1, 3, 8])
    layers = LayerMap.from_model(model, example)
    create("adamwdl", model, decay, example=example)
    for param in [*encoder.layers[0].parameters(), *encoder.layers[1].parameters()]:
        param.stop_gradient = True
    with pytest.warns(UserWarning, match="all frozen count.*Received: frozen='1.layers block 0, 1.layers block 1'"):
        create("adamwdl", model, decay, example=example)
    with pytest.warns(UserWarning, match="all frozen count"):
        create("lamb", model, decay, layers=layers, learning_rate=0.1)
