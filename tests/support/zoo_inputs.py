"""A batch for each model of the zoo, as its forward pass takes it: what `LayerMap.from_model` gets as `example`."""

import numpy as np
import paddle


def ids(length=8, rows=2, highest=30):
    return paddle.to_tensor([[(7 * i + 3 * row) % (highest - 3) + 3 for i in range(length)] for row in range(rows)])


def image(size=16, channels=3):
    return paddle.to_tensor(np.random.default_rng(0).random((2, channels, size, size), dtype="float32"))


def ones(*shape, dtype="int64"):
    return paddle.ones(shape, dtype)


TEXT, POSITIONS = {"input_ids": ids()}, paddle.tile(paddle.arange(8)[None], [2, 1])
CLIP = {"input_ids": ids(), "pixel_values": image()}
SEQ2SEQ = {"input_ids": ids(), "decoder_input_ids": ids(6)}
LUKE = {
    "entity_ids": ids(2, highest=15),
    "entity_position_ids": ones(2, 2, 3),
    "entity_token_type_ids": ones(2, 2) * 0,
    "token_type_ids": ones(2, 8) * 0,
    "position_ids": POSITIONS,
    "attention_mask": ones(2, 8),
    "entity_attention_mask": ones(2, 2),
}
MASKED = TEXT | {"token_type_ids": ones(2, 8), "position_ids": POSITIONS}
MASKED |= {"attention_mask": ones(2, 1, 8, 8, dtype="float32")}
GLM = TEXT | {"position_ids": paddle.tile(paddle.arange(8), [2, 2, 1]), "attention_mask": ones(2, 1, 8, 8)}
AUDIO = paddle.to_tensor(np.sin(np.arange(2 * 400, dtype="float32")).reshape(2, 400))
SPEECH = {"input_values": AUDIO, "decoder_input_ids": ids(6)}


# Key of the zoo, or the start of it: what differs from {"input_ids": ...}.
EXAMPLES = {
    "electra.modeling.ElectraForTotalPretraining": TEXT | {"raw_input_ids": ids(), "generator_labels": ids()},
    **dict.fromkeys(["Luke", "LukeForEntityClassification"], TEXT | LUKE),
    **dict.fromkeys(["FNetForPreTraining", "FunnelForTokenClassification"], TEXT | {"return_dict": True}),
    **dict.fromkeys(["ErnieCode", "MT5", "T5For"], SEQ2SEQ),
    "Bit": {"pixel_values": image(32)},
    **dict.fromkeys(["Blip", "BlipModel", "ChineseCLIP", "CLIPModel", "ErnieViL"], CLIP),
    **dict.fromkeys(["CLIPVision", "DPT"], {"pixel_values": image()}),
    "ChineseBert": TEXT | {"pinyin_ids": ones(2, 8, 8)},
    "UTC": MASKED | {"token_type_ids": ones(2, 8) * 0, "omask_positions": ones(2, 2), "cls_positions": ones(2)},
    "ChatGLMForCausalLM": GLM | {"attention_mask": ones(2, 1, 8, 8, dtype="bool")},
    "GLMFor": GLM,
    "GLMForMultipleChoice": GLM | {"choice_ids": [ones(1) * 3] * 2, "choice_indices": [ones(1) * 4] * 2},
    "GPTJ": TEXT | {"attention_mask": ones(2, 8, dtype="float32")},
    **dict.fromkeys(["kinds.RTDETR", "kinds.ConvNeXt"], (image(32),)),
    **dict.fromkeys(["UnifiedTransformer", "UNIMO"], MASKED),
    "BartForSequenceClassification": lambda model: model(paddle.concat([ids()[:, 1:], ones(2, 1) * 2], 1)),
    "DalleBart": SEQ2SEQ | {"decoder_input_ids": ids(6, highest=28)},
    "ProphetNet": SEQ2SEQ | {"attention_mask": ones(2, 8)},
    "SpeechT5ForSpeechToText": SPEECH,
    "SpeechT5ForTextToSpeech": TEXT
    | {"decoder_input_values": paddle.rand([2, 4, 8]), "speaker_embeddings": paddle.rand([2, 8])},
    "BlipForQuestionAnswering": CLIP | {"decoder_input_ids": ids(6)},
    "Blip2": {"pixel_values": image(), "input_ids": ids(), "attention_mask": ones(2, 8)},
    "CLIPModel[ResNet]": CLIP | {"pixel_values": image(64)},
    "MiniGPT4": {"pixel_values": image(), "first_input_ids": ids(3), "second_input_ids": ids(4)},
    "ErnieForGeneration": lambda model: model(ids(), paddle.zeros([2, 8], "int64"), POSITIONS),
    "TransformerModel": {"src_word": ids(), "trg_word": ids(6)},
}


def example_for(key):
    """Return the batch of a model: of the longest key above that begins its own."""
    start = max((start for start in EXAMPLES if key.startswith(start)), key=len, default=None)
    return TEXT if start is None else EXAMPLES[start]


# Models that PaddleNLP 3.0.0b4 cannot run on this Paddle, in the size of the zoo, or without gradients of their blocks.
NOT_RUN = {
    **dict.fromkeys(["ErnieLayoutForSequenceClassification", "UIEX"], "needs 49 positions for the image"),
    **dict.fromkeys(["LayoutLMv2ForTokenClassification", "LayoutXLMForTokenClassification"], "needs 49 positions, too"),
    "LayoutXLMForRelationExtraction": "needs 49 positions for the image",
    **dict.fromkeys(["ReformerForSequenceClassification", "ReformerModelWithLMHead"], "its blocks have no gradients"),
    **dict.fromkeys(["RemBertForSequenceClassification", "RemBertForMaskedLM"], "passes a tuple to a Linear"),
    **dict.fromkeys(["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM[next-token predict]"], "adds a dimension"),
    **dict.fromkeys(["PrefixModelForCausalLM", "PrefixModelForCausalLM[projected]"], "needs postprocessing"),
    "convbert.modeling.ConvBertForTotalPretraining": "adds int64 and int32",
    "ErnieHealthForTotalPretraining": "its heads expect another width",
    "ErnieDocForSequenceClassification": "needs the memory of the segments before",
    "ErnieGramForSequenceClassification": "its pooler ignores the config's width",
    "CTRLForSequenceClassification": "stacks no tensors",
    "MixtralForCausalLM": "multiplies [n, 16] by [n]",
    "OPTForCausalLM[350m]": "its lm_head expects another width",
    "Qwen2MoeForCausalLM": "multiplies int64 by int32",
    "YuanForCausalLM": "adds a tensor and an int",
    "ClapModel": "normalizes another axis",
    "CLIPSegForImageSegmentation": "runs CLIP without gradients",
    "DPTForDepthEstimation[hybrid]": "adds unequal shapes",
    "VisualGLMForConditionalGeneration": "has no forward",
    "ReFTModel": "needs the positions to intervene at",
}
