"""Layer maps of real models against maps written by hand from their parameter names and their modeling code.

`zoo_maps` says how a map is written.
"""

import paddle
import pytest
from zoo import ZOO
from zoo_maps import check, expected, spelled

from paddle_ldopt import LayerMap

# The one exception of T5: the first block keeps the bias that all the blocks of its stack add.
T5_ENCODER_BIAS = "!{}encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
T5_DECODER_BIAS = "!{}decoder.block.0.layer.0.SelfAttention.relative_attention_bias"
VISION = ("vision_model.encoder.layers.{5}", "vision_model.embeddings", "vision_model.post_layernorm")
CLIP_VISION = (
    "vision_model.transformer.layers.{5}",
    "vision_model.class_embedding vision_model.conv1 vision_model.positional_embedding vision_model.ln_pre",
    "vision_model.ln_post",
)


def t5(prefix):
    """Say where T5 and its descendants keep things."""
    return [
        (f"{prefix}encoder.block.{{3}}", T5_ENCODER_BIAS.format(prefix), f"{prefix}encoder.final_layer_norm"),
        (f"{prefix}decoder.block.{{5}}", T5_DECODER_BIAS.format(prefix), f"{prefix}decoder.final_layer_norm"),
        ("", f"{prefix}shared", ""),
    ]


def llama(prefix="llama", head="lm_head", wrapper=""):
    """Say where LLaMA and its descendants keep things."""
    tower = wrapper + prefix
    return [(f"{tower}.layers.{{4}}", f"{tower}.embed_tokens", f"{tower}.norm {wrapper}{head}")]


MAPS = {
    # encoders
    "AlbertForSequenceClassification": [
        (
            "transformer.encoder.albert_layer_groups.0.albert_layers.{1}",
            "transformer.embeddings transformer.encoder.embedding_hidden_mapping_in",
            "transformer.pooler classifier",
        )
    ],
    "AlbertForMaskedLM[groups]": [
        (
            (
                "transformer.encoder.albert_layer_groups.0.albert_layers.{2}"
                " transformer.encoder.albert_layer_groups.1.albert_layers.{2}"
            ),
            "transformer.embeddings transformer.encoder.embedding_hidden_mapping_in",
            "transformer.pooler predictions",
        )
    ],
    "AlbertForPretraining": [
        (
            "transformer.encoder.albert_layer_groups.0.albert_layers.{1}",
            "transformer.embeddings transformer.encoder.embedding_hidden_mapping_in",
            "transformer.pooler predictions sop_classifier",
        )
    ],
    "BertModel": [("encoder.layers.{4}", "embeddings", "pooler")],
    "BertForSequenceClassification": [("bert.encoder.layers.{4}", "bert.embeddings", "bert.pooler classifier")],
    "BertForPretraining": [("bert.encoder.layers.{4}", "bert.embeddings", "bert.pooler cls")],
    "BertForQuestionAnswering": [("bert.encoder.layers.{4}", "bert.embeddings", "bert.pooler classifier")],
    "BertForMaskedLM[12]": [("bert.encoder.layers.{12}", "bert.embeddings", "bert.pooler cls")],
    # BigBird post-norm (the default) applies encoder.norm before the first block, to the embeddings.
    "BigBirdForSequenceClassification": [
        ("bigbird.encoder.layers.{4}", "bigbird.embeddings bigbird.encoder.norm", "bigbird.pooler linear")
    ],
    "BigBirdForPretraining": [
        ("bigbird.encoder.layers.{4}", "bigbird.embeddings bigbird.encoder.norm", "bigbird.pooler cls")
    ],
    "ChineseBertForSequenceClassification": [
        ("chinesebert.encoder.layers.{4}", "chinesebert.embeddings", "chinesebert.pooler classifier")
    ],
    "ChineseBertForPretraining": [
        ("chinesebert.encoder.layers.{4}", "chinesebert.embeddings", "chinesebert.pooler cls")
    ],
    "ConvBertForSequenceClassification": [
        (
            "convbert.encoder.layers.{4}",
            "convbert.embeddings convbert.embeddings_project",
            "convbert.pooler classifier",
        )
    ],
    "convbert.modeling.ConvBertForTotalPretraining": [
        (
            "generator.convbert.encoder.layers.{4}",
            "generator.convbert.embeddings generator.convbert.embeddings_project",
            "generator.convbert.pooler generator.generator_predictions generator.generator_lm_head_bias",
        ),
        (
            "discriminator.convbert.encoder.layers.{4}",
            "discriminator.convbert.embeddings discriminator.convbert.embeddings_project",
            "discriminator.convbert.pooler discriminator.discriminator_predictions",
        ),
    ],
    "ConvBertGenerator": [
        (
            "convbert.encoder.layers.{4}",
            "convbert.embeddings convbert.embeddings_project",
            "convbert.pooler generator_lm_head_bias generator_predictions",
        )
    ],
    "DebertaForSequenceClassification": [
        ("deberta.encoder.layer.{4}", "deberta.embeddings deberta.encoder.rel_embeddings", "pooler classifier")
    ],
    "DebertaForTokenClassification": [
        ("deberta.encoder.layer.{4}", "deberta.embeddings deberta.encoder.rel_embeddings", "classifier")
    ],
    # encoder.LayerNorm is for rel_embeddings only.
    "DebertaV2ForSequenceClassification": [
        (
            "deberta.encoder.layer.{4}",
            "deberta.embeddings deberta.encoder.rel_embeddings deberta.encoder.LayerNorm",
            "pooler classifier",
        )
    ],
    # encoder.conv is a stem: it convolves the embeddings, and is added to the first block's output.
    "DebertaV2ForTokenClassification[conv]": [
        (
            "deberta.encoder.layer.{4}",
            "deberta.embeddings deberta.encoder.rel_embeddings deberta.encoder.conv",
            "classifier",
        )
    ],
    "DistilBertForSequenceClassification": [
        ("distilbert.encoder.layers.{4}", "distilbert.embeddings", "pre_classifier classifier")
    ],
    "DistilBertForMaskedLM": [
        (
            "distilbert.encoder.layers.{4}",
            "distilbert.embeddings",
            "vocab_transform vocab_layer_norm vocab_projector",
        )
    ],
    "ElectraForSequenceClassification": [
        ("electra.encoder.layers.{4}", "electra.embeddings electra.embeddings_project", "classifier")
    ],
    "ElectraDiscriminator": [
        ("electra.encoder.layers.{4}", "electra.embeddings electra.embeddings_project", "discriminator_predictions")
    ],
    "ElectraGenerator": [
        (
            "electra.encoder.layers.{4}",
            "electra.embeddings electra.embeddings_project",
            "generator_lm_head_bias generator_predictions",
        )
    ],
    "ElectraForMultipleChoice": [
        ("electra.encoder.layers.{4}", "electra.embeddings electra.embeddings_project", "sequence_summary classifier")
    ],
    "electra.modeling.ElectraForTotalPretraining": [
        (
            "generator.electra.encoder.layers.{4}",
            "generator.electra.embeddings generator.electra.embeddings_project",
            "generator.generator_lm_head_bias generator.generator_predictions",
        ),
        (
            "discriminator.electra.encoder.layers.{4}",
            "discriminator.electra.embeddings discriminator.electra.embeddings_project",
            "discriminator.discriminator_predictions",
        ),
    ],
    "ErnieHealthForTotalPretraining": [
        (
            "generator.electra.encoder.layers.{4}",
            "generator.electra.embeddings generator.electra.embeddings_project",
            "generator.generator_lm_head_bias generator.generator_predictions",
        ),
        (
            "discriminator.electra.encoder.layers.{4}",
            "discriminator.electra.embeddings discriminator.electra.embeddings_project",
            (
                "discriminator.discriminator_rtd discriminator.discriminator_mts discriminator.bias_mts"
                " discriminator.discriminator_csp"
            ),
        ),
    ],
    "ErnieForSequenceClassification": [("ernie.encoder.layers.{4}", "ernie.embeddings", "ernie.pooler classifier")],
    "ErnieForPretraining": [("ernie.encoder.layers.{4}", "ernie.embeddings", "ernie.pooler cls")],
    "UIE": [("ernie.encoder.layers.{4}", "ernie.embeddings", "ernie.pooler linear_start linear_end")],
    "UTC": [("ernie.encoder.layers.{4}", "ernie.embeddings", "ernie.pooler linear_q linear_k")],
    "ErnieCtmForTokenClassification": [
        (
            "ernie_ctm.encoder.layers.{4}",
            "ernie_ctm.embeddings ernie_ctm.embedding_hidden_mapping_in",
            "ernie_ctm.pooler ernie_ctm.feature_fuse ernie_ctm.feature_output classifier",
        )
    ],
    "ErnieCtmWordtagModel": [
        (
            "ernie_ctm.encoder.layers.{4}",
            "ernie_ctm.embeddings ernie_ctm.embedding_hidden_mapping_in",
            "ernie_ctm.pooler ernie_ctm.feature_fuse ernie_ctm.feature_output tag_classifier crf",
        )
    ],
    "ErnieCtmNptagModel": [
        (
            "ernie_ctm.encoder.layers.{4}",
            "ernie_ctm.embeddings ernie_ctm.embedding_hidden_mapping_in",
            "ernie_ctm.pooler ernie_ctm.feature_fuse ernie_ctm.feature_output predictions",
        )
    ],
    # The blocks come before the embeddings in named_parameters; embeddings.norms is a list of three.
    "ErnieDocForSequenceClassification": [
        ("ernie_doc.encoder.layers.{4}", "ernie_doc.embeddings", "ernie_doc.pooler linear")
    ],
    # ln is the LayerNorm of the embeddings ("pre_encoder" in the code), with no encoder prefix in its name.
    "ErnieForGeneration": [("encoder_stack.block.{4}", "ln word_emb pos_emb sent_emb", "mlm mlm_ln mlm_bias")],
    "ErnieGramForSequenceClassification": [
        ("ernie_gram.encoder.layers.{4}", "ernie_gram.embeddings", "ernie_gram.pooler classifier")
    ],
    # visual is a ResNet whose feature map becomes the patch embeddings.
    "ErnieLayoutForSequenceClassification": [
        (
            "ernie_layout.encoder.layer.{4}",
            "ernie_layout.embeddings ernie_layout.visual ernie_layout.visual_proj ernie_layout.visual_LayerNorm",
            "ernie_layout.pooler classifier",
        )
    ],
    "UIEX": [
        (
            "ernie_layout.encoder.layer.{4}",
            "ernie_layout.embeddings ernie_layout.visual ernie_layout.visual_proj ernie_layout.visual_LayerNorm",
            "ernie_layout.pooler linear_start linear_end",
        )
    ],
    "ErnieMForSequenceClassification": [
        ("ernie_m.encoder.layers.{4}", "ernie_m.embeddings", "ernie_m.pooler classifier")
    ],
    "UIEM": [("ernie_m.encoder.layers.{4}", "ernie_m.embeddings", "ernie_m.pooler linear_start linear_end")],
    "FNetForSequenceClassification": [("fnet.encoder.layers.{4}", "fnet.embeddings", "fnet.pooler classifier")],
    "FNetForPreTraining": [("fnet.encoder.layers.{4}", "fnet.embeddings", "fnet.pooler cls")],
    "FunnelForSequenceClassification": [
        (
            "funnel.encoder.blocks.0.{2} funnel.encoder.blocks.1.{1} funnel.encoder.blocks.2.{3}",
            "funnel.embeddings",
            "classifier",
        )
    ],
    "FunnelForTokenClassification": [
        ("funnel.encoder.blocks.0.{2} funnel.encoder.blocks.1.{1} funnel.encoder.blocks.2.{3}", "", ""),
        ("funnel.decoder.layers.{4}", "", ""),
        ("", "funnel.embeddings", "classifier"),
    ],
    "GAUAlphaForSequenceClassification": [("gau_alpha.encoder.layer.{4}", "gau_alpha.embeddings", "classifier")],
    "GAUAlphaForMaskedLM": [("gau_alpha.encoder.layer.{4}", "gau_alpha.embeddings", "")],
    "LayoutLMForSequenceClassification": [
        ("layoutlm.encoder.layers.{4}", "layoutlm.embeddings", "layoutlm.pooler classifier")
    ],
    "LayoutLMv2ForTokenClassification": [
        (
            "layoutlmv2.encoder.layer.{4}",
            (
                "layoutlmv2.embeddings layoutlmv2.visual_LayerNorm layoutlmv2.encoder.rel_pos_bias"
                " layoutlmv2.encoder.rel_pos_x_bias layoutlmv2.encoder.rel_pos_y_bias"
            ),
            "layoutlmv2.pooler classifier",
        )
    ],
    "LayoutXLMForTokenClassification": [
        (
            "layoutxlm.encoder.layer.{4}",
            "layoutxlm.embeddings layoutxlm.visual_LayerNorm layoutxlm.visual_segment_embedding",
            "layoutxlm.pooler classifier",
        )
    ],
    # extractor is the task head, its entity_emb (the entities' labels) included.
    "LayoutXLMForRelationExtraction": [
        (
            "layoutxlm.encoder.layer.{4}",
            "layoutxlm.embeddings layoutxlm.visual_LayerNorm layoutxlm.visual_segment_embedding",
            "layoutxlm.pooler extractor",
        )
    ],
    "LukeForMaskedLM": [
        (
            "luke.encoder.layer.{4}",
            "luke.embeddings luke.entity_embeddings",
            "luke.pooler lm_head entity_predictions",
        )
    ],
    "LukeForEntityClassification": [
        ("luke.encoder.layer.{4}", "luke.embeddings luke.entity_embeddings", "luke.pooler classifier")
    ],
    "MegatronBertForSequenceClassification": [
        (
            "megatronbert.encoder.layer.{4}",
            "megatronbert.embeddings",
            "megatronbert.encoder.layer_norm megatronbert.pooler classifier",
        )
    ],
    "MegatronBertForPreTraining": [
        (
            "megatronbert.encoder.layer.{4}",
            "megatronbert.embeddings",
            "megatronbert.encoder.layer_norm megatronbert.pooler cls",
        )
    ],
    "MobileBertForSequenceClassification": [("mobilebert.encoder.layers.{4}", "mobilebert.embeddings", "classifier")],
    "MobileBertForPreTraining": [("mobilebert.encoder.layers.{4}", "mobilebert.embeddings", "cls")],
    "MPNetForSequenceClassification": [
        (
            "mpnet.encoder.layer.{4}",
            "mpnet.embeddings mpnet.encoder.relative_attention_bias",
            "mpnet.pooler classifier",
        )
    ],
    "MPNetForMaskedLM": [
        ("mpnet.encoder.layer.{4}", "mpnet.embeddings mpnet.encoder.relative_attention_bias", "mpnet.pooler lm_head")
    ],
    "NeZhaForSequenceClassification": [("nezha.encoder.layer.{4}", "nezha.embeddings", "nezha.pooler classifier")],
    "NeZhaForPretraining": [("nezha.encoder.layer.{4}", "nezha.embeddings", "nezha.pooler cls")],
    "NystromformerForSequenceClassification": [
        ("nystromformer.encoder.layer.{4}", "nystromformer.embeddings", "classifier")
    ],
    "NystromformerForMaskedLM": [("nystromformer.encoder.layer.{4}", "nystromformer.embeddings", "cls")],
    "PPMiniLMForSequenceClassification": [
        ("ppminilm.encoder.layers.{4}", "ppminilm.embeddings", "ppminilm.pooler classifier")
    ],
    # embeddings.position_embeddings.weights is a list of two.
    "ReformerForSequenceClassification": [
        ("reformer.encoder.layers.{4}", "reformer.embeddings", "reformer.encoder.layer_norm classifier")
    ],
    "RemBertForSequenceClassification": [
        (
            "rembert.encoder.layer.{4}",
            "rembert.embeddings rembert.encoder.embedding_hidden_mapping_in",
            "rembert.pooler dense",
        )
    ],
    "RemBertForMaskedLM": [
        (
            "rembert.encoder.layer.{4}",
            "rembert.embeddings rembert.encoder.embedding_hidden_mapping_in",
            "rembert.pooler cls",
        )
    ],
    "RobertaForSequenceClassification": [("roberta.encoder.layers.{4}", "roberta.embeddings", "classifier")],
    "RobertaForMaskedLM": [("roberta.encoder.layers.{4}", "roberta.embeddings", "lm_head")],
    "RoFormerForSequenceClassification": [
        (
            "roformer.encoder.layers.{4}",
            "roformer.embeddings roformer.embeddings_project",
            "roformer.pooler classifier",
        )
    ],
    "RoFormerForMaskedLM": [
        ("roformer.encoder.layers.{4}", "roformer.embeddings roformer.embeddings_project", "roformer.pooler cls")
    ],
    "RoFormerv2ForSequenceClassification": [("roformerv2.encoder.layers.{4}", "roformerv2.embeddings", "classifier")],
    "RoFormerv2ForMaskedLM": [("roformerv2.encoder.layers.{4}", "roformerv2.embeddings", "")],
    "SkepForSequenceClassification": [("skep.encoder.layers.{4}", "skep.embeddings", "skep.pooler classifier")],
    "SkepCrfForTokenClassification": [("skep.encoder.layers.{4}", "skep.embeddings", "skep.pooler gru fc crf")],
    "SqueezeBertForSequenceClassification": [
        ("squeezebert.encoder.layers.{4}", "squeezebert.embeddings", "squeezebert.pooler classifier")
    ],
    # fit_denses is a list of n_layers + 1 projections of the hidden states, for distillation.
    "TinyBertForPretraining": [
        (
            "tinybert.encoder.layers.{4}",
            "tinybert.embeddings",
            "tinybert.pooler tinybert.fit_denses tinybert.fit_dense",
        )
    ],
    # XLM keeps the parts of a block in four lists.
    "XLMForSequenceClassification": [
        (
            "xlm.attentions.{4} | xlm.layer_norm1.{4} | xlm.ffns.{4} | xlm.layer_norm2.{4}",
            "xlm.position_embeddings xlm.lang_embeddings xlm.embeddings xlm.layer_norm_emb",
            "classifier",
        )
    ],
    "XLMWithLMHeadModel": [
        (
            "xlm.attentions.{4} | xlm.layer_norm1.{4} | xlm.ffns.{4} | xlm.layer_norm2.{4}",
            "xlm.position_embeddings xlm.lang_embeddings xlm.embeddings xlm.layer_norm_emb",
            "pred_layer",
        )
    ],
    "XLMRobertaForSequenceClassification": [("roberta.encoder.layer.{4}", "roberta.embeddings", "classifier")],
    "XLMRobertaForMaskedLM": [("roberta.encoder.layer.{4}", "roberta.embeddings", "lm_head")],
    # untie_r: every block has biases and segment embeddings of its own, and they stay in it.
    "XLNetForSequenceClassification": [
        ("transformer.layer.{4}", "transformer.mask_emb transformer.word_embedding", "classifier")
    ],
    # decoder_weight is the word embedding: tied, and named_parameters meets this name first.
    "XLNetLMHeadModel": [("transformer.layer.{4}", "transformer.mask_emb decoder_weight", "decoder_bias")],
    # decoders
    "ArtistForConditionalGeneration": [("gpt.decoder.layers.{4}", "gpt.embeddings", "gpt.decoder.norm lm_head")],
    "BloomForCausalLM": [("bloom.h.{4}", "bloom.word_embeddings bloom.word_embeddings_layernorm", "bloom.ln_f")],
    "ChatGLMForCausalLM": [
        (
            "chatglm.transformer.layers.{4}",
            "chatglm.transformer.word_embeddings",
            "chatglm.transformer.final_layernorm",
        )
    ],
    "ChatGLMv2ForCausalLM": [
        (
            "chatglm_v2.encoder.layers.{4}",
            "chatglm_v2.embedding",
            "chatglm_v2.encoder.final_layernorm chatglm_v2.output_layer",
        )
    ],
    "CodeGenForCausalLM": [("transformer.h.{4}", "transformer.wte", "transformer.ln_f lm_head")],
    # w is the word embedding.
    "CTRLLMHeadModel": [("ctrl.h.{4}", "ctrl.pos_encoding ctrl.w", "ctrl.layernorm lm_head")],
    "CTRLForSequenceClassification": [("ctrl.h.{4}", "ctrl.pos_encoding ctrl.w", "ctrl.layernorm classifier")],
    "DeepseekV2ForCausalLM": llama("deepseek_v2"),
    # The layer that predicts the token after the next is the fifth of the list.
    "DeepseekV3ForCausalLM[next-token predict]": [
        ("deepseek_v3.layers.{5}", "deepseek_v3.embed_tokens", "deepseek_v3.norm lm_head")
    ],
    # lm_head is the word embedding: tied, and named_parameters meets this name first.
    "GemmaForCausalLM": [("gemma.layers.{4}", "lm_head", "gemma.norm")],
    "GLMForConditionalGeneration": [
        (
            "glm.transformer.layers.{4}",
            "glm.word_embeddings glm.transformer.position_embeddings glm.transformer.block_position_embeddings",
            "glm.transformer.final_layernorm",
        )
    ],
    "GLMForMultipleChoice": [
        (
            "glm.transformer.layers.{4}",
            "glm.word_embeddings glm.transformer.position_embeddings glm.transformer.block_position_embeddings",
            "glm.transformer.final_layernorm",
        )
    ],
    "GPTForCausalLM": [("gpt.decoder.layers.{4}", "gpt.embeddings", "gpt.decoder.norm")],
    "GPTForSequenceClassification": [("gpt.decoder.layers.{4}", "gpt.embeddings", "gpt.decoder.norm score")],
    "GPTJForCausalLM": [("transformer.h.{4}", "transformer.wte", "transformer.ln_f lm_head")],
    "JambaForCausalLM": [("jamba.layers.{6}", "jamba.embed_tokens", "jamba.final_layernorm lm_head")],
    "LlamaForCausalLM": llama(),
    "LlamaForCausalLM[fused]": [("llama.layers.{4}", "llama.embed_tokens", "llama.norm")],
    "MambaForCausalLM": [("backbone.layers.{4}", "backbone.embeddings", "backbone.norm_f")],
    "MistralForCausalLM": llama("mistral"),
    "MixtralForCausalLM": llama("mixtral"),
    "OPTForCausalLM": [("opt.decoder.layers.{4}", "opt.embeddings", "opt.decoder.final_layer_norm lm_head")],
    "OPTForCausalLM[350m]": [("opt.decoder.layers.{4}", "opt.embeddings", "opt.decoder.project_out lm_head")],
    "QWenForCausalLM": [("qwen.h.{4}", "qwen.wte", "qwen.ln_f lm_head")],
    "Qwen2ForCausalLM": llama("qwen2"),
    "Qwen2ForSequenceClassification": llama("qwen2", "score"),
    "Qwen2MoeForCausalLM": llama("qwen2_moe"),
    "ReformerModelWithLMHead": [
        ("reformer.encoder.layers.{4}", "reformer.embeddings", "reformer.encoder.layer_norm lm_head")
    ],
    "RWForCausalLM": [("transformer.h.{4}", "transformer.word_embeddings", "transformer.ln_f lm_head")],
    "RWForCausalLM[parallel]": [("transformer.h.{4}", "transformer.word_embeddings", "transformer.ln_f lm_head")],
    "UnifiedTransformerLMHeadModel": [
        (
            "unified_transformer.encoder.layers.{4}",
            "unified_transformer.embeddings",
            "unified_transformer.encoder.norm lm_head",
        )
    ],
    # encoder_norm is applied to the embeddings.
    "UNIMOLMHeadModel": [("unimo.encoder.layers.{4}", "unimo.embeddings unimo.encoder_norm", "lm_head")],
    "YuanForCausalLM": llama("yuan"),
    # encoder-decoders
    "BartForConditionalGeneration": [
        (
            "bart.encoder.encoder.layers.{3}",
            "bart.encoder.encoder_embed_positions bart.encoder.encoder_layernorm_embedding",
            "",
        ),
        (
            "bart.decoder.decoder.layers.{5}",
            "bart.decoder.decoder_embed_positions bart.decoder.decoder_layernorm_embedding",
            "",
        ),
        ("", "bart.shared", "lm_head_weight"),
    ],
    "BartForSequenceClassification": [
        (
            "bart.encoder.encoder.layers.{3}",
            "bart.encoder.encoder_embed_positions bart.encoder.encoder_layernorm_embedding",
            "",
        ),
        (
            "bart.decoder.decoder.layers.{5}",
            "bart.decoder.decoder_embed_positions bart.decoder.decoder_layernorm_embedding",
            "",
        ),
        ("", "bart.shared", "classifier"),
    ],
    # Blenderbot and Pegasus are pre-norm: encoder_layernorm and decoder_layernorm come after the blocks.
    "BlenderbotForConditionalGeneration": [
        (
            "blenderbot.encoder.encoder.layers.{3}",
            "blenderbot.encoder.embed_tokens blenderbot.encoder.encoder_embed_positions",
            "blenderbot.encoder.encoder_layernorm",
        ),
        (
            "blenderbot.decoder.decoder.layers.{5}",
            "blenderbot.decoder.embed_tokens blenderbot.decoder.decoder_embed_positions",
            "blenderbot.decoder.decoder_layernorm",
        ),
        ("", "blenderbot.shared", "lm_head_weight"),
    ],
    "BlenderbotSmallForConditionalGeneration": [
        (
            "blenderbot_small.encoder.encoder.layers.{3}",
            "blenderbot_small.encoder.encoder_embed_positions blenderbot_small.encoder.encoder_layernorm_embedding",
            "",
        ),
        (
            "blenderbot_small.decoder.decoder.layers.{5}",
            "blenderbot_small.decoder.decoder_embed_positions blenderbot_small.decoder.decoder_layernorm_embedding",
            "",
        ),
        ("", "blenderbot_small.shared", "lm_head_weight"),
    ],
    "DalleBartForConditionalGeneration": [
        (
            "dallebart.encoder.layers.{3}",
            "dallebart.encoder.embed_tokens dallebart.encoder.embed_positions dallebart.encoder.layernorm_embedding",
            "dallebart.encoder.final_ln",
        ),
        (
            "dallebart.decoder.layers.{5}",
            "dallebart.decoder.embed_tokens dallebart.decoder.embed_positions dallebart.decoder.layernorm_embedding",
            "dallebart.decoder.final_ln",
        ),
        ("", "", "lm_head"),
    ],
    "ErnieCodeForConditionalGeneration": t5("ErnieCode."),
    "MBartForConditionalGeneration": [
        (
            "mbart.encoder.encoder.layers.{3}",
            "mbart.encoder.encoder_embed_positions mbart.encoder.encoder_layernorm_embedding",
            "mbart.encoder.encoder.norm",
        ),
        (
            "mbart.decoder.decoder.layers.{5}",
            "mbart.decoder.decoder_embed_positions mbart.decoder.decoder_layernorm_embedding",
            "mbart.decoder.decoder.norm",
        ),
        ("", "mbart.shared", "lm_head_weight"),
    ],
    "MT5ForConditionalGeneration": t5("mt5."),
    "PegasusForConditionalGeneration": [
        (
            "pegasus.encoder.encoder.layers.{3}",
            "pegasus.encoder.encoder_embed_positions",
            "pegasus.encoder.encoder_layernorm",
        ),
        (
            "pegasus.decoder.decoder.layers.{5}",
            "pegasus.decoder.decoder_embed_positions",
            "pegasus.decoder.decoder_layernorm",
        ),
        ("", "pegasus.shared", "lm_head_weight"),
    ],
    # Every block of the decoder has a relative_pos_embeddings of its own, and it stays in it.
    "ProphetNetForConditionalGeneration": [
        (
            "prophetnet.encoder.layers.{3}",
            "prophetnet.encoder.position_embeddings prophetnet.encoder.embeddings_layer_norm",
            "",
        ),
        (
            "prophetnet.decoder.layers.{5}",
            (
                "prophetnet.decoder.position_embeddings prophetnet.decoder.ngram_embeddings"
                " prophetnet.decoder.embeddings_layer_norm"
            ),
            "",
        ),
        ("", "prophetnet.word_embeddings", "lm_head"),
    ],
    # wrapped_encoder.layer_norm is applied before the first block; the prenets embed speech or text, with lists inside.
    "SpeechT5ForSpeechToText": [
        (
            "speecht5.encoder.wrapped_encoder.layers.{3}",
            (
                "speecht5.encoder.prenet speecht5.encoder.wrapped_encoder.layer_norm"
                " speecht5.encoder.wrapped_encoder.embed_positions"
            ),
            "",
        ),
        ("speecht5.decoder.wrapped_decoder.layers.{5}", "speecht5.decoder.prenet", ""),
        ("", "", "text_decoder_postnet"),
    ],
    "SpeechT5ForTextToSpeech": [
        (
            "speecht5.encoder.wrapped_encoder.layers.{3}",
            (
                "speecht5.encoder.prenet speecht5.encoder.wrapped_encoder.layer_norm"
                " speecht5.encoder.wrapped_encoder.embed_positions"
            ),
            "",
        ),
        ("speecht5.decoder.wrapped_decoder.layers.{5}", "speecht5.decoder.prenet", ""),
        ("", "", "speech_decoder_postnet"),
    ],
    "T5ForConditionalGeneration": t5("t5."),
    "T5EncoderModel": [("encoder.block.{3}", "shared " + T5_ENCODER_BIAS.format(""), "encoder.final_layer_norm")],
    "TransformerModel": [
        ("transformer.encoder.layers.{3}", "", "transformer.encoder.norm"),
        ("transformer.decoder.layers.{5}", "", "transformer.decoder.norm"),
        ("", "src_word_embedding src_pos_embedding trg_word_embedding trg_pos_embedding", "linear"),
    ],
    "TransformerModel[shared words]": [
        ("transformer.encoder.layers.{3}", "", "transformer.encoder.norm"),
        ("transformer.decoder.layers.{5}", "", "transformer.decoder.norm"),
        ("", "src_word_embedding src_pos_embedding", ""),
    ],
    # vision, and vision with text
    "BitForImageClassification": [
        ("bit.encoder.stages.0.layers.{3} bit.encoder.stages.1.layers.{2}", "bit.embedder", "bit.norm classifier")
    ],
    "BlipForConditionalGeneration": [
        VISION,
        ("text_decoder.bert.encoder.layer.{3}", "text_decoder.bert.embeddings", "text_decoder.cls"),
    ],
    "BlipModel": [
        VISION,
        ("text_model.encoder.layer.{3}", "text_model.embeddings", "text_model.pooler"),
        ("", "", "logit_scale visual_projection text_projection"),
    ],
    "BlipForQuestionAnswering": [
        VISION,
        ("text_encoder.encoder.layer.{3}", "text_encoder.embeddings", ""),
        ("text_decoder.bert.encoder.layer.{3}", "text_decoder.bert.embeddings", "text_decoder.cls"),
    ],
    "BlipForImageTextRetrieval": [
        VISION,
        ("text_encoder.encoder.layer.{3}", "text_encoder.embeddings", ""),
        ("", "", "vision_proj text_proj itm_head"),
    ],
    # qformer.layernorm is applied to the queries, before the first block.
    "Blip2ForConditionalGeneration": [
        VISION,
        ("qformer.encoder.layer.{4}", "qformer.layernorm", ""),
        (
            "language_model.opt.decoder.layers.{3}",
            "language_model.opt.embeddings",
            "language_model.opt.decoder.final_layer_norm language_model.lm_head",
        ),
        ("", "query_tokens", "language_projection"),
    ],
    "ChineseCLIPModel": [
        CLIP_VISION,
        ("text_model.encoder.layers.{3}", "text_model.embeddings", ""),
        ("", "", "vision_projection text_projection logit_scale"),
    ],
    # batch_norm is for the spectrogram; a stage's downsample follows its last block.
    "ClapModel": [
        ("text_model.encoder.layer.{3}", "text_model.embeddings", "text_model.pooler"),
        (
            (
                "audio_model.audio_encoder.layers.0.blocks.{2} audio_model.audio_encoder.layers.1.blocks.{1}"
                " audio_model.audio_encoder.layers.2.blocks.{4} audio_model.audio_encoder.layers.0.downsample=2"
                " audio_model.audio_encoder.layers.1.downsample=3"
            ),
            "audio_model.audio_encoder.patch_embed audio_model.audio_encoder.batch_norm",
            "audio_model.audio_encoder.norm",
        ),
        ("", "", "logit_scale_a logit_scale_t text_projection audio_projection"),
    ],
    "CLIPModel": [
        CLIP_VISION,
        (
            "text_model.transformer.layers.{3}",
            "text_model.token_embedding text_model.positional_embedding",
            "text_model.ln_final",
        ),
        ("", "", "vision_projection text_projection logit_scale"),
    ],
    # attnpool is the pooler, its positional_embedding included.
    "CLIPModel[ResNet]": [
        (
            "vision_model.layer1.{3} vision_model.layer2.{1} vision_model.layer3.{2} vision_model.layer4.{1}",
            (
                "vision_model.conv1 vision_model.bn1 vision_model.conv2 vision_model.bn2 vision_model.conv3"
                " vision_model.bn3"
            ),
            "vision_model.attnpool",
        ),
        (
            "text_model.transformer.layers.{3}",
            "text_model.token_embedding text_model.positional_embedding",
            "text_model.ln_final",
        ),
        ("", "", "text_projection logit_scale"),
    ],
    "CLIPVisionModelWithProjection": [(*CLIP_VISION[:2], "vision_model.ln_post vision_projection")],
    # Reduce i feeds layer i of the decoder; film_mul and film_add bring the text in, ahead of the first.
    "CLIPSegForImageSegmentation": [
        (
            "clip.text_model.encoder.layers.{3}",
            "clip.text_model.embeddings",
            "clip.text_model.final_layer_norm",
        ),
        (
            "clip.vision_model.encoder.layers.{5}",
            "clip.vision_model.embeddings clip.vision_model.pre_layrnorm",
            "clip.vision_model.post_layernorm",
        ),
        (
            "decoder.layers.{4} | decoder.reduces.{4}",
            "decoder.film_mul decoder.film_add",
            "decoder.transposed_convolution",
        ),
        ("", "", "clip.logit_scale clip.visual_projection clip.text_projection"),
    ],
    # The neck, lists and all, is part of what fine-tuning trains from scratch.
    "DPTForDepthEstimation": [("dpt.encoder.layer.{5}", "dpt.embeddings", "dpt.layernorm neck head")],
    "DPTForDepthEstimation[hybrid]": [("dpt.encoder.layer.{5}", "dpt.embeddings", "dpt.layernorm neck head")],
    "DPTForSemanticSegmentation": [
        ("dpt.encoder.layer.{5}", "dpt.embeddings", "dpt.layernorm neck head auxiliary_head")
    ],
    "ErnieViLModel": [
        CLIP_VISION,
        ("text_model.encoder.layers.{3}", "text_model.embeddings", "text_model.pooler"),
        ("", "", "temperature"),
    ],
    "MiniGPT4ForConditionalGeneration": [
        VISION,
        ("qformer.encoder.layer.{4}", "qformer.layernorm", ""),
        (
            "language_model.llama.layers.{3}",
            "language_model.llama.embed_tokens",
            "language_model.llama.norm language_model.lm_head",
        ),
        ("", "query_tokens", "language_projection"),
    ],
    # Unlike BLIP-2's, this qformer is pre-norm.
    "VisualGLMForConditionalGeneration": [
        VISION,
        ("qformer.encoder.layer.{4}", "", "qformer.final_layernorm"),
        (
            "language_model.chatglm.transformer.layers.{3}",
            "language_model.chatglm.transformer.word_embeddings",
            "language_model.chatglm.transformer.final_layernorm",
        ),
        ("", "query_tokens", "language_projection"),
    ],
    # adapters
    "LoRAModel[BertForSequenceClassification]": [
        ("model.bert.encoder.layers.{4}", "model.bert.embeddings", "model.bert.pooler model.classifier")
    ],
    "LoRAModel[LlamaForCausalLM]": llama(wrapper="model."),
    "VeRAModel[LlamaForCausalLM]": llama(wrapper="model."),
    "LoKrModel[LlamaForCausalLM]": llama(wrapper="model."),
    # The prefix is keys and values for every block, trained from scratch: of no depth, so with the head.
    "PrefixModelForCausalLM": [
        ("model.llama.layers.{4}", "model.llama.embed_tokens", "model.llama.norm model.lm_head prefix_encoder")
    ],
    "PrefixModelForCausalLM[projected]": [
        ("model.llama.layers.{4}", "model.llama.embed_tokens", "model.llama.norm model.lm_head prefix_encoder")
    ],
    "ReFTModel": [("layer.{4}", "", "")],
}

# Models that PaddleNLP lacks: their names, with [first-last] and {this,that} to be spelled out, and the map.
BLOCK = "{attn.qkv.weight,attn.proj.bias,mlp.fc1.weight,norm1.weight}"
SWIN = "{attn.relative_position_bias_table,attn.qkv.weight,mlp.fc1.weight,norm1.weight}"
CONVNEXT = "{gamma,dwconv.weight,norm.weight,pwconv1.weight}"
NAMES = {
    "timm ViT": (
        f"cls_token pos_embed patch_embed.proj.{{weight,bias}} blocks.[0-11].{BLOCK} norm.bias fc_norm.bias head.bias",
        [("blocks.{12}", "cls_token pos_embed patch_embed", "norm fc_norm head")],
    ),
    "timm DeiT distilled": (
        (
            f"cls_token dist_token pos_embed patch_embed.proj.weight blocks.[0-3].{BLOCK} norm.bias"
            " head.bias head_dist.bias"
        ),
        [("blocks.{4}", "cls_token dist_token pos_embed patch_embed", "norm head head_dist")],
    ),
    # A table for all the blocks is an embedding, as in timm and unlike BEiT's own recipe (docs/numerics.md); a table of
    # a block's own is part of it.
    "timm BEiT": (
        (
            "cls_token mask_token patch_embed.proj.weight rel_pos_bias.relative_position_bias_table"
            f" blocks.[0-3].{SWIN} blocks.[0-3].{{gamma_1,gamma_2}} fc_norm.weight head.weight"
        ),
        [("blocks.{4}", "cls_token mask_token patch_embed rel_pos_bias", "fc_norm head")],
    ),
    # downsample ends a stage here (Microsoft's and PaddleClas's Swin, and timm's until 0.9) ...
    "Swin": (
        (
            f"absolute_pos_embed patch_embed.proj.weight patch_embed.norm.weight layers.0.blocks.[0-1].{SWIN}"
            f" layers.0.downsample.{{reduction.weight,norm.weight}} layers.1.blocks.[0-1].{SWIN}"
            f" layers.1.downsample.{{reduction.weight,norm.weight}} layers.2.blocks.[0-5].{SWIN}"
            f" layers.2.downsample.{{reduction.weight,norm.weight}} layers.3.blocks.[0-1].{SWIN} norm.bias head.bias"
        ),
        [
            (
                (
                    "layers.0.blocks.{2} layers.1.blocks.{2} layers.2.blocks.{6} layers.3.blocks.{2}"
                    " layers.0.downsample=2 layers.1.downsample=4 layers.2.downsample=10"
                ),
                "absolute_pos_embed patch_embed",
                "norm head",
            )
        ],
    ),
    # ... and begins one here, so the first stage has none.
    "timm Swin": (
        (
            f"patch_embed.proj.weight patch_embed.norm.weight layers.0.blocks.[0-1].{SWIN}"
            f" layers.1.downsample.{{norm.weight,reduction.weight}} layers.1.blocks.[0-1].{SWIN}"
            f" layers.2.downsample.{{norm.weight,reduction.weight}} layers.2.blocks.[0-5].{SWIN} norm.bias head.fc.bias"
        ),
        [
            (
                (
                    "layers.0.blocks.{2} layers.1.blocks.{2} layers.2.blocks.{6}"
                    " layers.1.downsample=3 layers.2.downsample=5"
                ),
                "patch_embed",
                "norm head",
            )
        ],
    ),
    # downsample_layers.0 is the stem, and each of the others comes before the stage of its number.
    "ConvNeXt": (
        (
            "downsample_layers.0.0.weight downsample_layers.0.1.weight downsample_layers.[1-3].0.weight"
            f" downsample_layers.[1-3].1.weight stages.[0-1].[0-2].{CONVNEXT} stages.2.[0-8].{CONVNEXT}"
            f" stages.3.[0-2].{CONVNEXT} norm.weight head.weight"
        ),
        [
            (
                (
                    "stages.0.{3} stages.1.{3} stages.2.{9} stages.3.{3}"
                    " downsample_layers.1=4 downsample_layers.2=7 downsample_layers.3=16"
                ),
                "downsample_layers.0",
                "norm head",
            )
        ],
    ),
    "timm ConvNeXt": (
        (
            f"stem.0.weight stem.1.weight stages.0.blocks.[0-2].{CONVNEXT} stages.1.downsample.[0-1].weight"
            f" stages.1.blocks.[0-2].{CONVNEXT} stages.2.downsample.[0-1].weight stages.2.blocks.[0-8].{CONVNEXT}"
            " head.norm.weight head.fc.weight"
        ),
        [
            (
                (
                    "stages.0.blocks.{3} stages.1.blocks.{3} stages.2.blocks.{9}"
                    " stages.1.downsample=4 stages.2.downsample=7"
                ),
                "stem",
                "head",
            )
        ],
    ),
    "PaddleViT ViT": (
        (
            "position_embedding cls_token patch_embedding.patch_embedding.{weight,bias}"
            " encoder.layers.[0-4].{attn_norm.weight,attn.qkv.weight,attn.out.weight,mlp_norm.weight,mlp.fc1.weight}"
            " encoder.encoder_norm.{weight,bias} classifier.{weight,bias}"
        ),
        [
            (
                "encoder.layers.{5}",
                "position_embedding cls_token patch_embedding",
                "encoder.encoder_norm classifier",
            )
        ],
    ),
    "PaddleViT Swin": (
        (
            f"patch_embedding.patch_embed.weight patch_embedding.norm.weight stages.0.blocks.[0-1].{SWIN}"
            f" stages.0.downsample.{{reduction.weight,norm.weight}} stages.1.blocks.[0-2].{SWIN} norm.weight fc.weight"
        ),
        [("stages.0.blocks.{2} stages.1.blocks.{3} stages.0.downsample=2", "patch_embedding", "norm fc")],
    ),
    # The text tower is at the root, where its embeddings and its head are nobody's.
    "OpenCLIP": (
        (
            "positional_embedding text_projection logit_scale"
            " visual.class_embedding visual.positional_embedding visual.proj visual.conv1.weight visual.ln_pre.weight"
            " visual.transformer.resblocks.[0-4].{ln_1.weight,attn.in_proj_weight,mlp.c_fc.weight} visual.ln_post.bias"
            " transformer.resblocks.[0-2].{ln_1.weight,attn.in_proj_weight,mlp.c_fc.weight} token_embedding.weight"
            " ln_final.weight"
        ),
        [
            (
                "visual.transformer.resblocks.{5}",
                "visual.class_embedding visual.positional_embedding visual.conv1 visual.ln_pre",
                "visual.ln_post visual.proj",
            ),
            ("transformer.resblocks.{3}", "", ""),
            ("", "positional_embedding token_embedding", "text_projection logit_scale ln_final"),
        ],
    ),
    # The convolutions over the waveform are numbered and no blocks; transformers' names, then fairseq's.
    "wav2vec 2.0": (
        (
            "wav2vec2.masked_spec_embed wav2vec2.feature_extractor.conv_layers.[0-6].conv.weight"
            " wav2vec2.feature_extractor.conv_layers.[0-6].layer_norm.{weight,bias}"
            " wav2vec2.feature_projection.layer_norm.weight wav2vec2.feature_projection.projection.weight"
            " wav2vec2.encoder.pos_conv_embed.conv.weight wav2vec2.encoder.layer_norm.weight"
            f" wav2vec2.encoder.layers.[0-3].{BLOCK} lm_head.weight"
        ),
        [
            (
                "wav2vec2.encoder.layers.{4}",
                (
                    "wav2vec2.masked_spec_embed wav2vec2.feature_extractor wav2vec2.feature_projection"
                    " wav2vec2.encoder.pos_conv_embed wav2vec2.encoder.layer_norm"
                ),
                "lm_head",
            )
        ],
    ),
    "HuBERT": (
        (
            "mask_emb feature_extractor.conv_layers.[0-6].0.weight feature_extractor.conv_layers.0.2.{weight,bias}"
            f" post_extract_proj.weight encoder.pos_conv.0.weight encoder.layers.[0-3].{BLOCK} final_proj.weight"
        ),
        [
            (
                "encoder.layers.{4}",
                "mask_emb feature_extractor post_extract_proj encoder.pos_conv",
                "final_proj",
            )
        ],
    ),
    "GPT-2": (
        "wte.weight wpe.weight h.[0-11].{ln_1.weight,attn.c_attn.weight,mlp.c_fc.weight} ln_f.weight lm_head.weight",
        [("h.{12}", "wte wpe", "ln_f lm_head")],
    ),
    "blocks only": (f"h.[0-3].{BLOCK}", [("h.{4}", "", "")]),
    "ten blocks and more": (
        f"embeddings.weight layers.[0-23].{BLOCK} norm.weight",
        [("layers.{24}", "embeddings", "norm")],
    ),
    "odd prefixes": (
        (
            f"_layers._orig_mod.student.0.tokens.embed.weight _layers._orig_mod.student.0.trunk.blocks.[0-3].{BLOCK}"
            " _layers._orig_mod.student.0.trunk.norm.weight _layers._orig_mod.student.1.classifier.weight"
        ),
        [
            (
                "_layers._orig_mod.student.0.trunk.blocks.{4}",
                "_layers._orig_mod.student.0.tokens",
                "_layers._orig_mod.student.0.trunk.norm _layers._orig_mod.student.1.classifier",
            )
        ],
    ),
    "an ensemble": (
        (
            "members.[0-1].bert.embeddings.word_embeddings.weight"
            f" members.[0-1].bert.encoder.layers.[0-3].{BLOCK} members.[0-1].classifier.weight"
        ),
        [
            ("members.0.bert.encoder.layers.{4}", "members.0.bert.embeddings", "members.0.classifier"),
            ("members.1.bert.encoder.layers.{4}", "members.1.bert.embeddings", "members.1.classifier"),
        ],
    ),
    "one numbered part with blocks": (
        f"embed.weight stage1.layers.[0-3].{BLOCK} norm.weight",
        [("stage1.layers.{4}", "embed", "norm")],
    ),
    "an ensemble of encoders": (
        f"encoders.[0-1].{{embed.weight,layers.[0-3].{BLOCK},norm.weight}}",
        [(f"encoders.{i}.layers.{{4}}", f"encoders.{i}.embed", f"encoders.{i}.norm") for i in range(2)],
    ),
    "a head with a list": (
        f"embeddings.weight encoder.layers.[0-3].{BLOCK} classifier.[0-2].weight heads.[0-5].{{weight,bias}}",
        [("encoder.layers.{4}", "embeddings", "classifier heads")],
    ),
    "experts": (
        (
            "embed_tokens.weight layers.[0-2].self_attn.q_proj.weight layers.[0-2].mlp.experts.[0-7].up_proj.weight"
            " norm.weight lm_head.weight"
        ),
        [("layers.{3}", "embed_tokens", "norm lm_head")],
    ),
}


@pytest.mark.parametrize(
    "rows",
    [
        [("h.{2}", "wte", "")],
        [("h.{2}", "wte ln_f", "ln_f")],
        [("h.{2}", "wte", "ln_f lm_head")],
        [("h.{3}", "wte", "ln_f")],
        [("h.{1}", "wte", "ln_f")],
    ],
)
def test_a_map_must_fit(rows):
    names = spelled("wte.weight h.[0-1].{q,k,v}.weight ln_f.weight")
    assert expected(names, [("h.{2}", "wte", "ln_f")])
    with pytest.raises(AssertionError):
        expected(names, rows)


def test_every_model_has_a_map():
    assert sorted(MAPS) == sorted(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_paddlenlp(name):
    with paddle.utils.unique_name.guard():
        model = ZOO[name]()
    check(LayerMap.from_model(model), [name for name, _ in model.named_parameters()], MAPS[name])


@pytest.mark.parametrize("model", NAMES)
def test_names(model):
    names = spelled(NAMES[model][0])
    check(LayerMap.from_names(names), names, NAMES[model][1])


def test_nothing_matches():
    names = spelled("conv1.weight bn1.{weight,bias} fc.{weight,bias}")
    with pytest.raises(ValueError, match="conv1.weight"):
        LayerMap.from_names(names)
    with pytest.raises(ValueError, match="names"):
        LayerMap.from_names([])


@pytest.mark.parametrize(
    "names",
    [
        f"embeddings.weight layers.[0-2].{BLOCK} oddities.[0-2].{BLOCK} norm.weight",
        f"embeddings.weight encoder.layers.[0-3].{BLOCK} quux.gizmos.[0-11].{BLOCK} head.weight",
        f"embeddings.weight encoder.layers.[0-5].{BLOCK} encoder.oddities.[6-11].{BLOCK} head.weight",
    ],
)
def test_half_of_the_blocks_in_unknown_lists(names):
    with pytest.raises(ValueError, match="oddities|gizmos"):
        LayerMap.from_names(spelled(names))
