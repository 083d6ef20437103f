"""docs/options.md: a line for another project gives the ratios of its arithmetic, on a model with its names."""

import pathlib
import re

import pytest
from layer_models import Parts, vit_ratio
from paddle import nn
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.transformers import CLIPConfig, CLIPModel, LlamaConfig, LlamaForCausalLM, LlamaModel
from zoo_kinds import ConvNeXt

import paddle_ldopt as ldopt
from paddle_ldopt import LayerDecay, LayerMap
from paddle_ldopt.rates import applied_rates

pytestmark = pytest.mark.filterwarnings("ignore:Some layers of the model")
OPTIONS = (pathlib.Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
PAGE = OPTIONS.partition("## Rates of other projects")[2].partition("\n## ")[0]
SIZE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def rows():
    """Return project -> the line of ours."""
    cells = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
    return {project: line.strip("`").replace("\\|", "|") for project, _, line in cells[2:]}


def block():
    return Parts(norm1=nn.LayerNorm(8), norm2=nn.LayerNorm(8), attn=nn.Linear(8, 8), mlp=nn.Linear(8, 8))


def blocks(count):
    return nn.LayerList([block() for _ in range(count)])


def vit(count, **more):
    stem = {"cls_token": [1, 1, 8], "pos_embed": [1, 5, 8], "patch_embed": Parts(proj=nn.Conv2D(3, 8, 4, 4))}
    return Parts(**stem, **more, blocks=blocks(count), norm=nn.LayerNorm(8))


BOUND, LAYERS = 0.1, 3


def ernie():
    config = LlamaConfig(vocab_size=20, num_hidden_layers=LAYERS, num_key_value_heads=2, **SIZE)
    return Parts(ernie=LlamaModel(config), lm_head=nn.Linear(16, 20))


def ernie_ratio(name):
    """`_get_layer_lrs` of erniekit/train/dpo/trainer.py."""
    if "lm_head" in name or name.endswith("norm.weight") and ".layers." not in name:
        depth = LAYERS + 2
    else:
        depth = 0 if "embed_tokens" in name else int(re.search(r"\.layers\.(\d+)\.", name).group(1))
    return BOUND + depth / (LAYERS + 2) * (1 - BOUND)


def ernie_lora(scale=1.0):
    config = LlamaConfig(vocab_size=20, num_hidden_layers=LAYERS, num_key_value_heads=2, **SIZE)
    adapters = LoRAConfig(target_modules=[".*q_proj", ".*v_proj"], r=2, lora_plus_scale=scale)
    return LoRAModel(LlamaForCausalLM(config), adapters)


def ernie_vl():
    text = Parts(embed_tokens=nn.Embedding(20, 8), layers=blocks(4), norm=nn.LayerNorm(8))
    for layer in text.layers:
        layer.mlp = Parts(gate=nn.Linear(8, 4), up=nn.Linear(8, 8))
    return Parts(ernie=text, vision_model=vit(3), lm_head=nn.Linear(8, 20))


def ernie_vl_ratio(name):
    """`lr_ratio_fn` of erniekit/train/vl_sft/pretraining_trainer.py."""
    if re.match(r"ernie\.layers\.0\.mlp\.gate\.weight", name):
        return 0.01
    if re.match(r"vision_model\.(cls_token|pos_embed|patch_embed|blocks)", name):
        block = re.match(r"vision_model\.blocks\.(\d+)\.", name)
        return 0.9 ** (3 - 1 - (int(block.group(1)) if block else 0))
    return 1.0


def eva_clip():
    transformer = Parts(resblocks=blocks(2))
    text = {"token_embedding": nn.Embedding(20, 8), "positional_embedding": [5, 8], "transformer": transformer}
    visual = vit(3)
    visual.head = nn.Linear(8, 6)
    return Parts(visual=visual, text=Parts(**text, ln_final=nn.LayerNorm(8), text_projection=[8, 6]), logit_scale=[1])


def eva_clip_ratio(name):
    """`get_num_layer_for_transformer` and `get_parameters` of paddlemix/optimization/clip_optimizer.py."""
    tower = "visual" if "visual." in name else "text" if "text." in name else None
    if tower is None:
        return 1.0
    decay, rate, depth = {"visual": (0.75, 2e-4, 3), "text": (0.65, 1e-4, 2)}[tower]
    return rate / 1e-3 * vit_ratio(name, decay, depth)


def clip():
    text = {"vocab_size": 20, "num_hidden_layers": 3, "max_position_embeddings": 8, **SIZE}
    vision = {"num_hidden_layers": 2, "image_size": 8, "patch_size": 4, **SIZE}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def clip_ratio(name):
    block = re.search(r"layers\.(\d+)", name)
    if not name.startswith(("vision_model", "text_model")) or re.search("ln_final|ln_post", name):
        return 1.0
    decay, depth = (0.65, 2) if name.startswith("vision") else (0.8, 3)
    return decay ** (depth - int(block.group(1)) if block else depth + 1)


def convnext():
    return Parts(backbone=ConvNeXt((3, 3, 9, 3), (4, 4, 8, 8)), head=Parts(fc=nn.Linear(8, 2)))


def convnext_ratio(name):
    """`ConvNeXt.get_layer_depth` of mmpretrain."""
    parts, layer = name.removeprefix("backbone.").split("."), 7
    if parts[0] == "downsample_layers":
        layer = [0, 2, 3, 6][int(parts[1])]
    elif parts[0] == "stages":
        layer = [1, 2, 3 + int(parts[2]) // 3, 6][int(parts[1])]
    return 0.8 ** (8 - layer - 1)


SWIN = (2, 2, 6, 2)


def swin():
    stages = []
    for i, depth in enumerate(SWIN):
        parts = {"blocks": blocks(depth)}
        if i < 3:
            parts["downsample"] = Parts(norm=nn.LayerNorm(8), reduction=nn.Linear(8, 8))
        stages.append(Parts(**parts))
    stem = Parts(projection=nn.Conv2D(3, 8, 4, 4), norm=nn.LayerNorm(8))
    body = Parts(patch_embed=stem, stages=nn.LayerList(stages), norm3=nn.LayerNorm(8))
    return Parts(backbone=body, head=Parts(fc=nn.Linear(8, 2)))


def swin_ratio(name):
    """`SwinTransformer.get_layer_depth` of mmpretrain."""
    total, parts = sum(SWIN) + 2, name.removeprefix("backbone.").split(".")
    layer = 0 if parts[0] == "patch_embed" else total - 1
    if parts[0] == "stages":
        stage = int(parts[1])
        behind = parts[2] == "downsample"
        layer = sum(SWIN[: stage + 1]) if behind else sum(SWIN[:stage]) + int(parts[3]) + 1
    return 0.9 ** (total - layer - 1)


def vitdet():
    backbone = vit(4)
    backbone.fpn1 = nn.Sequential(nn.Conv2D(8, 8, 2, 2), nn.BatchNorm2D(8))
    neck = Parts(convs=nn.LayerList([nn.Conv2D(8, 8, 1) for _ in range(3)]))
    return Parts(backbone=backbone, neck=neck, rpn_head=nn.Linear(8, 2), bbox_head=Parts(fc6=nn.Linear(8, 8)))


def detr():
    def conv(width):
        return Parts(conv=nn.Conv2D(width, 8, 1), norm=nn.BatchNorm2D(8))

    def stage(number):
        inner = {f"res{number}{letter}": Parts(branch2a=conv(8), branch2b=conv(8)) for letter in "ab"}
        return Parts(**inner)

    backbone = Parts(conv1=Parts(conv1_1=conv(3)), **{f"res{number}": stage(number) for number in (2, 3, 4, 5)})
    layers = Parts(encoder=Parts(layers=blocks(2)), decoder=Parts(layers=blocks(3)))
    return Parts(backbone=backbone, transformer=layers, bbox_head=nn.Linear(8, 4))


def detr_ratio(name):
    """`ResNet` of ppdet/modeling/backbones/resnet.py: `lr_mult_list` for res2 to res5, `conv1` at 1."""
    stage = re.match(r"backbone\.res(\d)\.", name)
    return [0.0, 0.1, 0.1, 0.1][int(stage.group(1)) - 2] if stage else 1.0


CASES = {
    "ERNIEKit, SFT and DPO": (ernie, ernie_ratio),
    "ERNIEKit, LoRA": (ernie_lora, ernie_ratio),
    "ERNIEKit, vision-language": (ernie_vl, ernie_vl_ratio),
    "PaddleMIX, CLIP and EVA-CLIP": (eva_clip, eva_clip_ratio),
    "PaddleMIX, EVA-02": (lambda: vit(3, rel_pos_bias=Parts(table=[4, 2])), lambda name: vit_ratio(name, 0.8, 3)),
    "PaddleNLP, CLIP with a decay per tower": (clip, clip_ratio),
    "mmpretrain, ConvNeXt-T": (convnext, convnext_ratio),
    "mmpretrain, Swin": (swin, swin_ratio),
    "PaddleDetection, ViTDet and ViTPose": (vitdet, lambda name: vit_ratio(name, 0.75, 4)),
    "PaddleDetection, DETR, DINO and RT-DETR": (detr, detr_ratio),
}


def test_each_row_has_a_case():
    assert list(rows()) == list(CASES)


@pytest.mark.parametrize("project", CASES)
def test_a_row(project):
    build, ratio = CASES[project]
    model = build()
    ratios = eval(rows()[project], {"model": model, "LayerDecay": LayerDecay, "LayerMap": LayerMap})
    for name, _ in model.named_parameters():
        if not name.endswith(("_mean", "_variance")):
            assert ratios[name] == pytest.approx(ratio(name), rel=1e-12, abs=0), name


@pytest.mark.parametrize("name", ["adamwdl", "came", "lamb", "adafactor", "adamweightdecay"])
def test_lora_plus_multiplies_the_ratio(name):
    model = ernie_lora(scale=16.0)
    opt = ldopt.create(name, model, layerwise_decay=0.5, learning_rate=0.25)
    named, seen = dict(model.named_parameters()), set()
    for tensor, rate in applied_rates(opt).items():
        structured = next(n for n, p in named.items() if p.name == tensor)
        if not named[structured].stop_gradient:
            block = int(re.search(r"layers\.(\d+)\.", structured).group(1))
            plus = 16.0 if "lora_B" in structured else 1.0
            seen.add(plus)
            assert rate == pytest.approx(0.25 * 0.5 ** (LAYERS - block) * plus, rel=1e-6), structured
    assert seen == {1.0, 16.0}
    assert LayerMap.from_model(model).table(optimizer=opt).rows[-2].ratio == pytest.approx((0.5, 8.0))
    adapters = ldopt.create(name, model, layerwise_decay=0.5, learning_rate=0.25, rules={"lora_": "head"})
    trained = [p for p in model.parameters() if not p.stop_gradient]
    assert {round(applied_rates(adapters)[p.name], 6) for p in trained} == {0.25, 4.0}
