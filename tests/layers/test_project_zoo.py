"""Layer maps of the models of Paddle's projects against maps written by hand from their modeling code.

The names in `tests/support/zoo_names.txt` were taken from models built by the packages, in the versions that the file
says, with few and narrow blocks where a constructor allows it. Every LayerMap was compared with its map on the built
model too (2026-11-22). `zoo_maps` says how a map is written.
"""

import contextlib
import pathlib

import pytest
import zoo_maps
from zoo_maps import check, spelled

from paddle_ldopt import LayerMap

LINES = (pathlib.Path(zoo_maps.__file__).parent / "zoo_names.txt").read_text().splitlines()
NAMES = dict(line.split(": ", 1) for line in LINES if not line.startswith("#"))


def resnet(depths, stem, head="", prefix=""):
    """Say where ResNets keep things: PaddleDetection's (res2.res2a), PaddleSeg's and PaddleClas's (bb_0_0)."""
    if prefix.endswith("res"):
        blocks = [f"{prefix}{i}.res{i}{{{','.join('abcdef'[:n])}}}" for i, n in enumerate(depths, 2)]
    else:
        blocks = [f"{prefix}bb_{i}_[0-{n - 1}]" for i, n in enumerate(depths)]
    return (" ".join(blocks), stem, head)


def pyramid(depths, prefix="", head="head"):
    """Say where SegFormer and its kin keep things: what is between two stages belongs to the last block before it."""
    ends = [sum(depths[: i + 1]) for i in range(4)]
    blocks = [f"{prefix}block{i}.{{{n}}}" for i, n in enumerate(depths, 1)]
    blocks += [f"{prefix}patch_embed{i + 1}={end}" for i, end in enumerate(ends[:3], 1)]
    blocks += [f"{prefix}norm{i}={end}" for i, end in enumerate(ends, 1)]
    return [(" ".join(blocks), f"{prefix}patch_embed1", head)]


def swin(prefix="", norms="", head="norm head"):
    """Say where Swin-T keeps things; the norms are of the stages' outputs, and belong to the head as in mmpretrain."""
    ends = {"0": 2, "1": 4, "2": 10, "3": 12}
    blocks = [f"{prefix}layers.{i}.blocks.{{{n}}}" for i, n in enumerate((2, 2, 6, 2))]
    blocks += [f"{prefix}layers.{i}.downsample={ends[i]}" for i in "012"]
    norms = " ".join(f"{prefix}norm{i}" for i in norms)
    return (" ".join(blocks), f"{prefix}patch_embed", f"{norms} {head}".strip())


def vit(n, embeddings, head, prefix=""):
    """Say where a ViT keeps things."""
    first = " ".join(f"{prefix}{word}" for word in f"{embeddings} patch_embed".split())
    return [(f"{prefix}blocks.{{{n}}}", first, head)]


def u2(decoders):
    """Say where PaddleSpeech's U2 models keep things; `decoders` has the number of blocks of each."""
    embed = ["embed", "after_norm", "output_layer"]
    towers = [("encoder.encoders.{3}", "encoder.embed", "encoder.after_norm")]
    for tower, n in decoders.items():
        first, *last = (f"{tower}.{word}" for word in embed)
        towers.append((f"{tower}.decoders.{{{n}}}", first, " ".join(last)))
    return [*towers, ("", "", "ctc")]


DETR_RESNET = resnet((3, 4, 6, 3), "backbone.conv1", prefix="backbone.res")
DETR_ENCODER = ("transformer.encoder.layers.{3}", "", "")
DINO_HEADS = "enc_output enc_score_head enc_bbox_head dec_score_head dec_bbox_head query_pos_head"
DINO_HEADS = " ".join(f"transformer.{name}" for name in DINO_HEADS.split())
CLIP_VISION = (
    "visual.transformer.resblocks.{5}",
    "visual.{class_embedding,positional_embedding,conv1,ln_pre}",
    "visual.{proj,ln_post}",
)
CLIP_TEXT = (
    "text.transformer.resblocks.{3}",
    "text.{positional_embedding,token_embedding}",
    "text.{text_projection,ln_final}",
)

MAPS = {
    # paddle.vision.models
    "pv_resnet18": [("layer[1-4].[0-1]", "conv1 bn1", "fc")],
    "pv_resnet50": [("layer1.{3} layer2.{4} layer3.{6} layer4.{3}", "conv1 bn1", "fc")],
    "pv_MobileNetV3Small": [("blocks.{11}", "conv", "lastconv classifier")],
    "pv_MobileNetV3Large": [("blocks.{15}", "conv", "lastconv classifier")],
    # PaddleClas: convolutional networks
    "clas_ResNet18": [("blocks.{8}", "stem", "fc")],
    "clas_ResNet50": [("blocks.{16}", "stem", "fc")],
    "clas_ResNet50_vd": [("blocks.{16}", "stem", "fc")],
    "clas_ResNeXt50": [resnet((3, 4, 6, 3), "conv", "out")],
    "clas_SENet": [resnet((2, 2, 2, 2), "conv1_[1-3]", "out")],
    "clas_Res2Net": [resnet((3, 4, 6, 3), "conv1", "out")],
    "clas_PPLCNet": [("blocks2.{1} blocks3.{2} blocks4.{2} blocks5.{6} blocks6.{2}", "conv1", "last_conv fc")],
    "clas_PPLCNetV2": [("stages.0.{2} stages.1.{2} stages.2.{6} stages.3.{2}", "stem", "last_conv fc")],
    # downsample begins a stage here
    "clas_PPHGNet_tiny": [
        (
            "stages.[0-1].blocks.0 stages.2.blocks.{2} stages.3.blocks.0"
            " stages.1.downsample=2 stages.2.downsample=3 stages.3.downsample=5",
            "stem",
            "last_conv fc",
        )
    ],
    "clas_PPHGNetV2_B0": [
        (
            "stages.[0-1].blocks.0 stages.2.blocks.{2} stages.3.blocks.0"
            " stages.1.downsample=2 stages.2.downsample=3 stages.3.downsample=5",
            "stem",
            "last_conv lab fc",
        )
    ],
    "clas_ESNet": [("blocks.{13}", "conv1", "conv2 last_conv fc")],
    "clas_MobileNetV1": [("blocks.{13}", "conv", "fc")],
    "clas_MobileNetV3": [("blocks.{11}", "conv", "last_second_conv last_conv fc")],
    "clas_MobileNetV4": [("blocks.{17}", "conv_stem", "conv_head classifier")],
    "clas_RepVGG": [("stage1.{2} stage2.{4} stage3.{14} stage4.{1}", "stage0", "linear")],
    # the first of each list is the downsampling, which counts as a block
    "clas_StarNet": [("stages.0.{3} stages.1.{3} stages.2.{9} stages.3.{4}", "stem", "norm head")],
    # stages 1, 3 and 5 are downsampling only
    "clas_FasterNet": [
        (
            "stages.0.blocks.{1} stages.2.blocks.{2} stages.4.blocks.{8} stages.6.blocks.{2}"
            " stages.1=1 stages.3=3 stages.5=11",
            "patch_embed",
            "avgpool_pre_head head",
        )
    ],
    "clas_ConvNeXt": [
        (
            "stages.0.{3} stages.1.{3} stages.2.{9} stages.3.{3}"
            " downsample_layers.1=4 downsample_layers.2=7 downsample_layers.3=16",
            "downsample_layers.0",
            "norm head",
        )
    ],
    # PaddleClas: transformers
    "clas_Swin": [swin()],
    "clas_SwinV2": [swin()],
    "clas_CSWin": [
        (
            "stages.0.blocks.{1} stages.1.blocks.{2} stages.2.blocks.{21} stages.3.blocks.{1}"
            " stages.0.merge=1 stages.1.merge=3 stages.2.merge=24",
            "patch_embedding",
            "norm head",
        )
    ],
    # a stage's patches are made within it
    "clas_CvT": [
        (
            "stage0.blocks.{1} stage1.blocks.{2} stage2.blocks.{10}"
            " stage0.patch_embed=1 stage1.patch_embed=2 stage2.patch_embed=4 stage2.cls_token=4",
            "",
            "norm head",
        )
    ],
    "clas_PVT": pyramid((2, 2, 2, 2)),
    "clas_VAN": pyramid((3, 3, 5, 2)),
    # patch_embeds.1 comes before stage 1, and pos_block.1 behind its first block
    "clas_Twins": [
        (
            "blocks.0.{3} blocks.1.{4} blocks.2.{6} blocks.3.{3} patch_embeds.1=3 patch_embeds.2=7 patch_embeds.3=13"
            " pos_block.0=1 pos_block.1=4 pos_block.2=8 pos_block.3=14",
            "patch_embeds.0",
            "norm head",
        )
    ],
    "clas_ViT": vit(8, "pos_embed cls_token", "norm head"),
    "clas_DeiT": vit(12, "pos_embed cls_token dist_token", "norm head head_dist"),
    "clas_CAE": vit(4, "cls_token pos_embed", "fc_norm head"),
    "clas_EVA": vit(12, "cls_token", "norm head proj"),
    "clas_FoundationViT": vit(12, "pos_embed cls_token ln_pre", "norm head proj"),
    # PaddleDetection
    "det_ResNet18": [resnet((2, 2, 2, 2), "backbone.conv1", prefix="backbone.res")],
    "det_SENet": [resnet((3, 4, 6, 3), "backbone.conv1", prefix="backbone.res")],
    "det_DETR": [
        DETR_RESNET,
        DETR_ENCODER,
        ("transformer.decoder.layers.{4}", "", "transformer.decoder.norm"),
        ("", "transformer.input_proj transformer.query_pos_embed", "detr_head"),
    ],
    "det_Deformable": [
        DETR_RESNET,
        DETR_ENCODER,
        ("transformer.decoder.layers.{4}", "", ""),
        (
            "",
            "transformer.{input_proj,level_embed,tgt_embed,query_pos_embed}",
            "transformer.reference_points detr_head",
        ),
    ],
    "det_DINO": [
        DETR_RESNET,
        DETR_ENCODER,
        ("transformer.decoder.layers.{4}", "", "transformer.decoder.norm"),
        ("", "transformer.{input_proj,denoising_class_embed,level_embed,tgt_embed}", DINO_HEADS),
    ],
    "det_DINO_swin": [
        swin("backbone.", "123", ""),
        DETR_ENCODER,
        ("transformer.decoder.layers.{4}", "", "transformer.decoder.norm"),
        ("", "transformer.{input_proj,denoising_class_embed,level_embed,tgt_embed}", DINO_HEADS),
    ],
    "det_RTDETR_r50": [
        DETR_RESNET,
        ("transformer.decoder.layers.{6}", "transformer.{input_proj,denoising_class_embed,tgt_embed}", DINO_HEADS),
        ("", "", "neck"),
    ],
    "det_RTDETR_hgnet": [
        (
            "backbone.stages.[0-1].blocks.0 backbone.stages.2.blocks.{3} backbone.stages.3.blocks.0"
            " backbone.stages.1.downsample=2 backbone.stages.2.downsample=3 backbone.stages.3.downsample=6",
            "backbone.stem",
            "",
        ),
        ("transformer.decoder.layers.{6}", "transformer.{input_proj,denoising_class_embed,tgt_embed}", DINO_HEADS),
        ("", "", "neck"),
    ],
    "det_ViTDet": vit(12, "cls_token pos_embed", "backbone.fpn1 backbone.fpn2", "backbone."),
    "det_Swin": [swin("backbone.", "0123", "")],
    "det_CSPResNet": [
        (
            "backbone.stages.0.blocks.{3} backbone.stages.1.blocks.{6} backbone.stages.2.blocks.{6}"
            " backbone.stages.3.blocks.{3} backbone.stages.0.{conv_down,conv1,conv2}=1"
            " backbone.stages.1.{conv_down,conv1,conv2}=4 backbone.stages.2.{conv_down,conv1,conv2}=10"
            " backbone.stages.3.{conv_down,conv1,conv2}=16 backbone.stages.0.{attn,conv3}=3"
            " backbone.stages.1.{attn,conv3}=9 backbone.stages.2.{attn,conv3}=15 backbone.stages.3.{attn,conv3}=18",
            "backbone.stem",
            "",
        )
    ],
    "det_LCNet": [
        (
            "backbone.blocks2.{1} backbone.blocks3.{2} backbone.blocks4.{2} backbone.blocks5.{6} backbone.blocks6.{2}",
            "backbone.conv1",
            "",
        )
    ],
    "det_Res2Net": [
        (
            "backbone.res2.blocks.{3} backbone.res3.blocks.{4} backbone.res4.blocks.{6} backbone.res5.blocks.{3}",
            "backbone.res1",
            "",
        )
    ],
    # PaddleSeg
    "seg_SegFormer": pyramid((1, 2, 1, 1), "backbone.", "linear_c{1,2,3,4} linear_fuse linear_pred"),
    "seg_SegNeXt": pyramid((3, 3, 5, 2), "backbone.", "decode_head"),
    "seg_UPerNet_Swin": [swin("backbone.", "0123", "head")],
    "seg_CAE": vit(4, "cls_token pos_embed", "", "backbone."),
    "seg_Segmenter": vit(4, "pos_embed cls_token", "backbone.norm head", "backbone."),
    "seg_LinearSegmenter": vit(4, "pos_embed cls_token", "backbone.norm head", "backbone."),
    "seg_SETR": vit(4, "pos_embed cls_token", "head", "backbone."),
    "seg_DeepLabV3P_ResNet50vd": [resnet((3, 4, 6, 3), "backbone.conv1_[1-3]", "head", "backbone.")],
    "seg_DeepLabV3P_ResNet18vd": [resnet((2, 2, 2, 2), "backbone.conv1_[1-3]", "head", "backbone.")],
    "seg_MobileSeg_V3": [("backbone.blocks.{15}", "backbone.conv", "ppseg_head seg_heads")],
    # PaddleSpeech; `enc` and `ctc` are the head of the fine-tuned models
    "sp_wav2vec2_base": [
        (
            "wav2vec2.encoder.layers.{4}",
            "wav2vec2.{masked_spec_embed,feature_extractor,feature_projection}"
            " wav2vec2.encoder.{pos_conv_embed,layer_norm}",
            "enc ctc",
        )
    ],
    "sp_hubert": [
        (
            "hubert.encoder.layers.{4}",
            "hubert.{mask_emb,feature_extractor,post_extract_proj,layer_norm,encoder.pos_conv}",
            "hubert.{encoder.layer_norm,final_proj} enc ctc",
        )
    ],
    # all blocks add the bias that the first one keeps
    "sp_wavlm": [
        (
            "wavlm.encoder.layers.{4}",
            "wavlm.{mask_emb,feature_extractor,post_extract_proj,layer_norm,encoder.pos_conv}"
            " !wavlm.encoder.layers.0.self_attn.relative_attention_bias",
            "wavlm.encoder.layer_norm enc ctc",
        )
    ],
    "sp_whisper": [
        ("encoder.blocks.{3}", "encoder.conv[1-2]", "encoder.ln_post"),
        ("decoder.blocks.{5}", "decoder.{positional_embedding,token_embedding}", "decoder.ln"),
    ],
    "sp_conformer": u2({"decoder": 2}),
    "sp_transformer": u2({"decoder": 2}),
    "sp_bi": u2({"decoder.left_decoder": 3, "decoder.right_decoder": 2}),
    "sp_u2st": u2({"st_decoder": 2, "decoder": 2}),
    "sp_tlm": [("encoder.encoders.{4}", "embed encoder.embed", "encoder.after_norm decoder")],
    # the first of the list is the convolution over the spectrogram
    "sp_ecapa": [("blocks.{4}", "", "mfa asp asp_bn fc")],
    # PaddleMIX
    "mix_clip": [CLIP_VISION, CLIP_TEXT, ("", "", "logit_scale")],
    "mix_clip_root": [
        CLIP_VISION,
        ("transformer.resblocks.{3}", "", ""),
        ("", "positional_embedding token_embedding", "text_projection logit_scale ln_final"),
    ],
    "mix_evaclip": [
        ("visual.blocks.{5}", "visual.{cls_token,pos_embed,patch_embed}", "visual.{fc_norm,head}"),
        CLIP_TEXT,
        ("", "", "logit_scale"),
    ],
    # the text decoder's second list has the cross attention behind each block
    "mix_coca": [
        (CLIP_VISION[0], CLIP_VISION[1], "visual.{proj,attn_pool,ln_post}"),
        (CLIP_TEXT[0], "text.{positional_embedding,token_embedding,cls_emb}", CLIP_TEXT[2]),
        ("text_decoder.resblocks.{4} | text_decoder.cross_attn.{4}", "", "text_decoder.{text_projection,ln_final}"),
        ("", "", "logit_scale"),
    ],
    "mix_eva02": vit(4, "cls_token pos_embed rel_pos_bias", "fc_norm head"),
    "mix_eva02p": vit(4, "cls_token mask_token pos_embed", "norm lm_head"),
}
MAPS |= {
    # ERNIE 4.5 of PaddleFormers; what predicts further tokens comes behind the last block
    "fm_ernie45": [("model.layers.{4}", "model.embed_tokens", "model.norm lm_head")],
    "fm_ernie45_tied": [("model.layers.{4}", "model.embed_tokens", "model.norm")],
    "fm_ernie45moe": [("model.layers.{4}", "model.embed_tokens", "model.norm lm_head")],
    "fm_ernie45moe_mtp": [
        (
            "model.layers.{4}",
            "model.embed_tokens",
            "model.norm model.{mtp_block,mtp_hidden_norm,mtp_emb_norm,mtp_linear_proj} lm_head",
        )
    ],
    # resampler_model is between the vision tower and the language model, and at the full rate as other connectors are
    "fm_ernie45vl": [
        ("model.layers.{4}", "model.embed_tokens", "model.norm model.resampler_model"),
        ("vision_model.blocks.{5}", "vision_model.patch_embed", "vision_model.ln"),
        ("", "", "lm_head"),
    ],
}


def with_rules(blocks, embeddings, head):
    """Give rules and map of a model whose blocks are in no list."""
    rules = {rf"^{word}\.": i for i, word in enumerate(spelled(blocks), 1)}
    rules |= {rf"^{word}\.": "embeddings" for word in spelled(embeddings)}
    return rules | {rf"^{word}\.": "head" for word in spelled(head)}, [(blocks, embeddings, head)]


# Models without a list of blocks raise, and are mapped by these rules.
UNKNOWN = {
    "pv_LeNet": ({r"features\.(\d+)": r"\1"}, [("features.{0,3}", "", "fc")]),
    "pv_AlexNet": ({r"_conv(\d)\.": r"\1"}, [("_conv[1-5]", "", "_fc[6-8]")]),
    "pv_VGG11": ({r"features\.(\d+)": r"\1"}, [("features.{0,3,6,8,11,13,16,18}", "", "classifier")]),
    # a norm is part of its convolution's block
    "pv_VGG16bn": (
        lambda name: int(name.split(".")[1]) // 7 + 1 if name.startswith("features.") else None,
        [
            (
                "features.{0,1,3,4}=1 features.{7,8,10,11}=2 features.{14,15,17,18,20}=3 features.{21,24,25,27}=4"
                " features.{28,30,31,34}=5 features.{35,37,38,40,41}=6",
                "",
                "classifier",
            )
        ],
    ),
    "pv_MobileNetV1": with_rules("conv{2_1,2_2,3_1,3_2,4_1,4_2,5_1,5_2,5_3,5_4,5_5,5_6,6}", "conv1", "fc"),
    "pv_MobileNetV2": with_rules("features.[1-17]", "features.0", "features.18 classifier"),
    "pv_densenet121": (
        {r"^conv1": 0, r"^db_conv_2|^tr_conv2": 1, r"^db_conv_3|^tr_conv3": 2}
        | {r"^db_conv_4|^tr_conv4": 3, r"^db_conv_5": 4},
        [
            (
                "db_conv_2=1 tr_conv2_blk=1 db_conv_3=2 tr_conv3_blk=2 db_conv_4=3 tr_conv4_blk=3 db_conv_5=4",
                "conv1_func",
                "batch_norm out",
            )
        ],
    ),
    "pv_googlenet": with_rules(
        "_ince{3a,3b,4a,4b,4c,4d,4e,5a,5b}", "_conv _conv_1 _conv_2", "_fc_out _conv_o[1-2] _fc_o[1-2] _out[1-2]"
    ),
    "pv_inception_v3": with_rules("inception_block_list.[0-10]", "inception_stem", "fc"),
    "pv_shufflenet": with_rules("2_[1-4] 3_[1-8] 4_[1-4]", "_conv1", "_last_conv _fc"),
    "pv_squeezenet1_0": with_rules("_conv[1-8]", "_conv", "_conv9"),
    "clas_MobileNetV2": with_rules("conv[2-8]", "conv1", "conv9 out"),
    "clas_GhostNet": with_rules("_ghostbottleneck_[0-15]", "conv1", "conv_last fc_0 fc_1"),
    "det_MobileNetV3": with_rules("backbone.conv[2-16]", "backbone.conv1", ""),
    "seg_HRNet": (
        {r"\.conv_layer1": 0, r"\.la1\.": 1, r"\.(tr1|st2)\.": 2, r"\.(tr2|st3)\.": 3, r"\.(tr3|st4)\.": 4},
        [
            (
                "backbone.la1=1 backbone.{tr1,st2}=2 backbone.{tr2,st3}=3 backbone.{tr3,st4}=4",
                "backbone.conv_layer1_[1-2]",
                "head",
            )
        ],
    ),
}


# Lists in a stem or a head that count as one layer, and stems whose names do not tell: a warning says so.
GUESSED = {"clas_ResNet50_vd", "clas_PPHGNet_tiny", "det_Deformable", "det_DINO", "det_DINO_swin", "det_RTDETR_r50"}
GUESSED |= {"clas_RepVGG", "det_Res2Net", "det_RTDETR_hgnet", "seg_UPerNet_Swin", "seg_MobileSeg_V3"}
GUESSED |= {"seg_DeepLabV3P_ResNet50vd", "seg_DeepLabV3P_ResNet18vd"}


def test_every_model_has_a_map():
    assert sorted(NAMES) == sorted([*MAPS, *UNKNOWN])


@pytest.mark.parametrize("model", MAPS)
def test_names(model):
    names = spelled(NAMES[model])
    guess = (
        pytest.warns(UserWarning, match="as one layer|before the blocks")
        if model in GUESSED
        else contextlib.nullcontext()
    )
    with guess:
        layers = LayerMap.from_names(names)
    check(layers, names, MAPS[model])


@pytest.mark.parametrize("model", UNKNOWN)
def test_models_without_a_list_of_blocks(model):
    names, (rules, rows) = spelled(NAMES[model]), UNKNOWN[model]
    with pytest.raises(ValueError, match="give `rules`"):
        LayerMap.from_names(names)
    check(LayerMap.from_names(names, rules), names, rows)


PLAIN = {"pv_LeNet", "pv_AlexNet", "pv_VGG11", "pv_VGG16bn"}  # convolutions in a row


@pytest.mark.parametrize("model", [name for name in UNKNOWN if name not in PLAIN])
def test_beside_a_transformer_blocks_without_a_list_are_not_silent(model):
    block = "encoder.layers.[0-2].{q,k,v}.@wb"
    names = [*(f"backbone.{name}" for name in spelled(NAMES[model])), *spelled(f"{block} fc.@wb")]
    with pytest.raises(ValueError, match="are in lists of unknown kind .*only 3 in known ones.*give `rules`"):
        LayerMap.from_names(names)
