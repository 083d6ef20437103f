"""Small builds of real PaddleNLP classes, and `zoo_kinds.py`, without a download.

They have three blocks or more, and encoders and decoders of unequal depth.
"""

# ruff: noqa: C408 -- the rows are the keyword arguments of configs, and read as such

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from tempfile import TemporaryDirectory

import paddle
from paddlenlp import peft
from paddlenlp import transformers as pt
from paddlenlp.peft.reft.interventions import LoreftIntervention
from paddlenlp.peft.reft.reft_config import ReFTConfig
from zoo_kinds import RTDETR, ConvNeXt

LABELS = dict(num_labels=3)
SIZE = dict(vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32)
BERT = SIZE | dict(max_position_embeddings=16, type_vocab_size=2) | LABELS
LLAMA = SIZE | dict(max_position_embeddings=16, seq_length=16, num_key_value_heads=2)
T5 = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=3, num_decoder_layers=5)
FFN = dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32)
BART = FFN | dict(vocab_size=40, d_model=16, max_position_embeddings=16) | LABELS
BART_3_5 = BART | dict(encoder_layers=3, decoder_layers=5)
GPT2 = dict(vocab_size=40, n_embd=16, n_layer=4, n_head=2, n_positions=16) | LABELS
TEXT = SIZE | dict(num_hidden_layers=3, max_position_embeddings=16, projection_dim=8)
IMAGE = dict(hidden_size=16, num_hidden_layers=5, num_attention_heads=2, intermediate_size=32)
IMAGE |= dict(image_size=16, patch_size=8, projection_dim=8)
BLIP = dict(text_config=TEXT | dict(encoder_hidden_size=16), vision_config=IMAGE)
DPT = IMAGE | dict(backbone_out_indices=[0, 1, 2, 4], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8)
BIT = dict(embedding_size=8, hidden_sizes=[8, 8, 16], depths=[2, 1, 1], num_groups=2)
BIT |= dict(out_features=["stage1", "stage2", "stage3"])
QFORMER = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, encoder_hidden_size=16)
DEEPSEEK = LLAMA | dict(moe_intermediate_size=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2)
DEEPSEEK |= dict(kv_lora_rank=4, q_lora_rank=4, qk_rope_head_dim=4, v_head_dim=8, qk_nope_head_dim=4)
DEEPSEEK |= dict(first_k_dense_replace=1, topk_method="greedy", n_group=1, topk_group=1)
GLM = dict(vocab_size=40, hidden_size=16, num_layers=4, num_attention_heads=2, max_sequence_length=16)
MOBILE = BERT | dict(embedding_size=8, true_hidden_size=8, intra_bottleneck_size=8, num_feedforward_networks=2)
REFORMER = BERT | dict(attn_layers=["local", "lsh"] * 2, axial_pos_shape=[4, 4], axial_pos_embds_dim=[8, 8])
REFORMER |= dict(attention_head_size=8, feed_forward_size=32)
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
FUNNEL = dict(vocab_size=40, block_sizes=[2, 1, 3], d_model=16, n_head=2, d_head=8, d_inner=32) | LABELS
LAYOUT = BERT | dict(max_2d_position_embeddings=1024, coordinate_size=2, shape_size=4, hidden_size=12)
CONV = dict(conv_dim=(8, 8), conv_stride=(2, 2), conv_kernel=(3, 3), num_conv_pos_embeddings=4)
SPEECH = FFN | CONV | dict(vocab_size=40, hidden_size=16, encoder_layers=3, decoder_layers=5, num_mel_bins=8)
SPEECH |= dict(num_conv_pos_embedding_groups=2, speech_decoder_prenet_units=8, speech_decoder_postnet_units=8)
SPEECH |= dict(speaker_embedding_dim=8, max_speech_positions=20, max_text_positions=20)

OF_BERT = """
BertModel BertForSequenceClassification BertForPretraining BertForQuestionAnswering
BigBirdForSequenceClassification BigBirdForPretraining DistilBertForSequenceClassification
DistilBertForMaskedLM ElectraForMultipleChoice ErnieForSequenceClassification UIE UTC
ErnieDocForSequenceClassification ErnieMForSequenceClassification UIEM FNetForSequenceClassification
FNetForPreTraining MegatronBertForSequenceClassification MegatronBertForPreTraining
MPNetForSequenceClassification MPNetForMaskedLM PPMiniLMForSequenceClassification
RobertaForSequenceClassification RobertaForMaskedLM RoFormerv2ForSequenceClassification
RoFormerv2ForMaskedLM SkepForSequenceClassification SkepCrfForTokenClassification
XLMRobertaForSequenceClassification XLMRobertaForMaskedLM ArtistForConditionalGeneration GPTForCausalLM
GPTForSequenceClassification
"""
WITH_SMALL_EMBEDDINGS = """
AlbertForSequenceClassification AlbertForPretraining ConvBertForSequenceClassification
convbert.modeling.ConvBertForTotalPretraining ConvBertGenerator ElectraForSequenceClassification
ElectraDiscriminator ElectraGenerator electra.modeling.ElectraForTotalPretraining
ErnieHealthForTotalPretraining ErnieCtmForTokenClassification ErnieCtmWordtagModel ErnieCtmNptagModel
RoFormerForSequenceClassification RoFormerForMaskedLM
"""

# Key: the class, with a note in brackets where one class is built more than once. Value: its config.
CONFIGS: dict[str, dict] = {
    **dict.fromkeys(OF_BERT.split(), BERT),
    **dict.fromkeys(WITH_SMALL_EMBEDDINGS.split(), BERT | dict(embedding_size=8)),
    "ChineseBertForSequenceClassification": BERT | dict(glyph_embedding_dim=12, pinyin_embedding_size=8),
    "ChineseBertForPretraining": BERT | dict(glyph_embedding_dim=12, pinyin_embedding_size=8),
    **dict.fromkeys(["ErnieLayoutForSequenceClassification", "UIEX", "LayoutXLMForTokenClassification"], LAYOUT),
    "LayoutXLMForRelationExtraction": LAYOUT,
    **dict.fromkeys(["GAUAlphaForSequenceClassification", "GAUAlphaForMaskedLM"], BERT | dict(attention_key_size=8)),
    "LukeForMaskedLM": BERT | dict(entity_vocab_size=20, entity_emb_size=8),
    "LukeForEntityClassification": BERT | dict(entity_vocab_size=20, entity_emb_size=8),
    "NeZhaForSequenceClassification": BERT | dict(use_relative_position=True, embedding_size=16),
    "NeZhaForPretraining": BERT | dict(use_relative_position=True, embedding_size=16),
    **dict.fromkeys(["RemBertForSequenceClassification", "RemBertForMaskedLM"], BERT | dict(input_embedding_size=8)),
    **dict.fromkeys(["BloomForCausalLM", "RWForCausalLM"], dict(vocab_size=40, hidden_size=16, n_layer=4, n_head=2)),
    **dict.fromkeys(["CTRLLMHeadModel", "CTRLForSequenceClassification"], GPT2 | dict(dff=32)),
    **dict.fromkeys(["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"], LLAMA),
    "UnifiedTransformerLMHeadModel": BERT | dict(unk_token_id=1, mask_token_id=2),
    "UNIMOLMHeadModel": BERT | dict(unk_token_id=1, mask_token_id=2),
    **dict.fromkeys(["BartForConditionalGeneration", "BartForSequenceClassification"], BART_3_5),
    **dict.fromkeys(["MBartForConditionalGeneration", "PegasusForConditionalGeneration"], BART_3_5),
    "BlenderbotForConditionalGeneration": BART | dict(num_encoder_layers=3, num_decoder_layers=5),
    "BlenderbotSmallForConditionalGeneration": BART | dict(num_encoder_layers=3, num_decoder_layers=5),
    **dict.fromkeys(["ErnieCodeForConditionalGeneration", "MT5ForConditionalGeneration"], T5),
    **dict.fromkeys(["T5ForConditionalGeneration", "T5EncoderModel"], T5),
    **dict.fromkeys(["SpeechT5ForSpeechToText", "SpeechT5ForTextToSpeech"], SPEECH),
    **dict.fromkeys(["ChineseCLIPModel", "CLIPModel"], dict(text_config=TEXT, vision_config=IMAGE, projection_dim=8)),
    "AlbertForMaskedLM[groups]": BERT | dict(embedding_size=8, num_hidden_groups=2, inner_group_num=2),
    "BertForMaskedLM[12]": BERT | dict(num_hidden_layers=12),
    "DebertaForSequenceClassification": BERT | dict(pooler_hidden_size=16, pooler_hidden_act="gelu", pooler_dropout=0),
    "DebertaForTokenClassification": BERT | dict(position_biased_input=True),
    "DebertaV2ForSequenceClassification": BERT | dict(relative_attention=True, norm_rel_ebd="layer_norm"),
    "DebertaV2ForTokenClassification[conv]": BERT
    | dict(relative_attention=True, conv_kernel_size=3, conv_act="gelu", position_buckets=8),
    "ErnieForPretraining": BERT | dict(use_task_id=True),
    "ErnieGramForSequenceClassification": BERT | dict(rel_pos_size=8),
    "FunnelForSequenceClassification": FUNNEL,
    "FunnelForTokenClassification": FUNNEL | dict(num_decoder_layers=4),
    "LayoutLMForSequenceClassification": BERT | dict(max_2d_position_embeddings=16),
    "LayoutLMv2ForTokenClassification": LAYOUT | dict(use_visual_backbone=False),
    **dict.fromkeys(["MobileBertForSequenceClassification", "MobileBertForPreTraining"], MOBILE),
    "NystromformerForSequenceClassification": BERT | dict(conv_kernel_size=3, num_landmarks=4, segment_means_seq_len=4),
    "NystromformerForMaskedLM": BERT | dict(conv_kernel_size=3, num_landmarks=4, segment_means_seq_len=4),
    "ReformerForSequenceClassification": REFORMER | dict(is_decoder=False),
    "ReformerModelWithLMHead": REFORMER,
    "SqueezeBertForSequenceClassification": BERT
    | dict(embedding_size=16, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2, output_groups=2),
    "TinyBertForPretraining": BERT | dict(fit_size=24),
    "XLMForSequenceClassification": dict(vocab_size=40, emb_dim=16, n_layers=4, n_heads=2, n_langs=2) | LABELS,
    "XLMWithLMHeadModel": dict(vocab_size=40, emb_dim=16, n_layers=4, n_heads=2, n_langs=2),
    "XLNetForSequenceClassification": dict(vocab_size=40, d_model=16, n_layer=4, n_head=2, d_inner=32) | LABELS,
    "XLNetLMHeadModel": dict(vocab_size=40, d_model=16, n_layer=4, n_head=2, d_inner=32),
    "ChatGLMForCausalLM": SIZE | dict(max_sequence_length=16, inner_hidden_size=32),
    "ChatGLMv2ForCausalLM": SIZE | dict(max_sequence_length=16, ffn_hidden_size=32, kv_channels=8),
    "CodeGenForCausalLM": GPT2 | dict(n_head=4, rotary_dim=2),
    "DeepseekV2ForCausalLM": DEEPSEEK,
    "DeepseekV3ForCausalLM[next-token predict]": DEEPSEEK | dict(num_nextn_predict_layers=1),
    "GemmaForCausalLM": LLAMA | dict(head_dim=8),
    **dict.fromkeys(["GLMForConditionalGeneration", "GLMForMultipleChoice"], GLM),
    "GPTJForCausalLM": GPT2 | dict(rotary_dim=2),
    "JambaForCausalLM": LLAMA
    | dict(num_hidden_layers=6, attn_layer_period=3, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False),
    "LlamaForCausalLM[fused]": LLAMA | dict(fuse_attention_qkv=True, fuse_attention_ffn=True, tie_word_embeddings=True),
    "MambaForCausalLM": dict(vocab_size=40, hidden_size=16, num_hidden_layers=4, state_size=4),
    "MixtralForCausalLM": LLAMA | dict(num_local_experts=3),
    "OPTForCausalLM": BERT | dict(word_embed_proj_dim=16),
    "OPTForCausalLM[350m]": BERT | dict(word_embed_proj_dim=8, normalize_before=False),
    "QWenForCausalLM": SIZE | dict(kv_channels=8, seq_length=16),
    "Qwen2ForSequenceClassification": LLAMA | LABELS,
    "Qwen2MoeForCausalLM": LLAMA
    | dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8),
    "RWForCausalLM[parallel]": dict(vocab_size=40, hidden_size=16, n_layer=4, n_head=2, parallel_attn=True),
    "YuanForCausalLM": SIZE
    | dict(pad_token_id=0, eod_token=2, sep_token=3, use_loss_mask=False, causal_mask=True)
    | dict(reset_attention_mask=False, reset_position_ids=False, max_position_embeddings=16),
    "DalleBartForConditionalGeneration": FFN
    | dict(vocab_size=40, image_vocab_size=30, bos_token_id=30, pad_token_id=30, eos_token_id=30, d_model=16)
    | dict(decoder_start_token_id=30, num_encoder_layers=3, num_decoder_layers=5),
    "ProphetNetForConditionalGeneration": BART
    | dict(hidden_size=16, num_encoder_layers=3, num_decoder_layers=5)
    | dict(num_encoder_attention_heads=2, num_decoder_attention_heads=2),
    "BitForImageClassification": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[3, 2], num_groups=2) | LABELS,
    **dict.fromkeys(["BlipForConditionalGeneration", "BlipForQuestionAnswering", "BlipForImageTextRetrieval"], BLIP),
    "BlipModel": BLIP | dict(projection_dim=8),
    "Blip2ForConditionalGeneration": dict(
        text_config=BERT | dict(num_hidden_layers=3, word_embed_proj_dim=16, model_type="opt"),
        vision_config=IMAGE,
        qformer_config=QFORMER,
        num_query_tokens=2,
    ),
    "ClapModel": dict(
        text_config=TEXT | dict(type_vocab_size=2),
        audio_config=dict(spec_size=16, num_mel_bins=8, patch_size=4, depths=[2, 1, 4], num_attention_heads=[2, 2, 2])
        | dict(hidden_size=32, patch_embeds_hidden_size=8, window_size=2, num_hidden_layers=3, projection_dim=8),
        projection_dim=8,
    ),
    "CLIPModel[ResNet]": dict(
        text_config=TEXT,
        vision_config=IMAGE | dict(num_hidden_layers=[3, 1, 2, 1], hidden_size=64, image_size=64),
        projection_dim=8,
    ),
    "CLIPVisionModelWithProjection": IMAGE,
    "CLIPSegForImageSegmentation": dict(text_config=TEXT, vision_config=IMAGE, projection_dim=8)
    | dict(extract_layers=[1, 2, 3, 4], reduce_dim=16, decoder_num_attention_heads=2, decoder_intermediate_size=32),
    "DPTForDepthEstimation": DPT,
    "DPTForSemanticSegmentation": DPT | LABELS,
    "DPTForDepthEstimation[hybrid]": DPT
    | dict(is_hybrid=True, hidden_size=16, image_size=32, backbone_featmap_shape=[1, 16, 2, 2])
    | dict(backbone_config=BIT),
    "ErnieViLModel": dict(text_config=BERT | dict(num_hidden_layers=3), vision_config=IMAGE),
    "MiniGPT4ForConditionalGeneration": dict(
        text_config=LLAMA | dict(num_hidden_layers=3), vision_config=IMAGE, qformer_config=QFORMER, num_query_tokens=2
    ),
    "VisualGLMForConditionalGeneration": dict(
        text_config=SIZE | dict(num_hidden_layers=3, max_sequence_length=16, inner_hidden_size=32),
        vision_config=IMAGE,
        qformer_config=QFORMER,
        num_query_tokens=2,
    ),
}


def _pretrained(key: str) -> paddle.nn.Layer:
    """Build the PaddleNLP class a key names from its row of CONFIGS."""
    cls = attrgetter(key.partition("[")[0])(pt)
    return cls(cls.config_class(**CONFIGS[key]))


def _adapted(key: str, target: str, **config) -> paddle.nn.Layer:
    """Wrap the model of a row of CONFIGS in the adapter a key names."""
    name = key.partition("[")[0]
    settings = getattr(peft, name.replace("Model", "Config"))(target_modules=[target], **config)
    return getattr(peft, name)(_pretrained(key.partition("[")[2].rstrip("]")), settings)


def _lokr() -> paddle.nn.Layer:
    """Wrap a small LLaMA in LoKr, which reads the base model's config from a directory even when given the model."""
    model = _pretrained("LlamaForCausalLM")
    with TemporaryDirectory() as base:
        model.config.save_pretrained(base)
        settings = peft.LoKrConfig(target_modules=[".*q_proj"], lokr_dim=2, base_model_name_or_path=base)
        return peft.LoKrModel(model, settings)


def _prefix(projection: bool) -> paddle.nn.Layer:
    """Give a small LLaMA a learnt prefix for every block's attention."""
    settings = peft.PrefixConfig(num_prefix_tokens=2, num_attention_heads=2, num_hidden_layers=4, hidden_size=16)
    settings.prefix_projection, settings.prefix_projection_hidden_size = projection, 8
    return peft.PrefixModelForCausalLM(_pretrained("LlamaForCausalLM"), settings)


def _reft() -> paddle.nn.Layer:
    """Hang a LoReFT intervention on each block of a small LLaMA; its names are `layer.<block>.<parameter>`."""
    new = partial(LoreftIntervention, embed_dim=16, low_rank_dimension=2, dtype="float32")
    rows = [dict(layer=i, component="block_output", low_rank_dimension=2, intervention=new()) for i in range(4)]
    return peft.ReFTModel(ReFTConfig(rows), _pretrained("LlamaForCausalLM"))


def _transformer(weight_sharing: bool) -> paddle.nn.Layer:
    """Build the machine-translation Transformer, which takes no config object."""
    return pt.TransformerModel(40, 40, 16, 3, 5, 2, 16, 32, 0.1, weight_sharing)


def _ernie_gen() -> paddle.nn.Layer:
    """Build ERNIE-GEN, which takes a plain dict and does not call PretrainedModel's constructor."""
    return pt.ErnieForGeneration(BERT | dict(hidden_act="gelu", initializer_range=0.02) | DROPOUT)


ZOO: dict[str, Callable[[], paddle.nn.Layer]] = {
    **{key: partial(_pretrained, key) for key in CONFIGS},
    "ErnieForGeneration": _ernie_gen,
    "TransformerModel": partial(_transformer, False),
    "TransformerModel[shared words]": partial(_transformer, True),
    **{
        key: partial(_adapted, key, target, **config)
        for key, target, config in [
            ("LoRAModel[BertForSequenceClassification]", ".*q_proj", dict(r=2)),
            ("LoRAModel[LlamaForCausalLM]", ".*(q|v)_proj", dict(r=2)),
            ("VeRAModel[LlamaForCausalLM]", ".*q_proj", dict(r=2)),
        ]
    },
    "LoKrModel[LlamaForCausalLM]": _lokr,
    "PrefixModelForCausalLM": partial(_prefix, False),
    "PrefixModelForCausalLM[projected]": partial(_prefix, True),
    "ReFTModel": _reft,
    **{f"kinds.{cls.__name__}": cls for cls in (RTDETR, ConvNeXt)},
}
