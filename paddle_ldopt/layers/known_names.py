"""Names that have a known meaning in models; a model with unusual names is one more row here.

The search for layers reads these tables. Patterns are regular expressions. The first path that matches counts. A word
for heads goes before a word for embeddings.
"""

import re
from typing import Callable, Optional, Union

from .layer import EMBEDDINGS, HEAD

# Paths of parameters whose role shows neither in a word of the name nor in their position.
_PATHS = {
    r"\bbigbird\.encoder\.norm\.": EMBEDDINGS,  # BigBird: applied before block 0
    r"\bdeberta\.encoder\.LayerNorm\.": EMBEDDINGS,  # DeBERTa: of the relative embeddings
    r"\bdeberta\.encoder\.conv\.": EMBEDDINGS,  # DeBERTa: convolves them, added to block 0's output
    r"\baudio_encoder\.batch_norm\.": EMBEDDINGS,  # CLAP: of the spectrogram
    r"\btransposed_convolution\.": HEAD,  # CLIPSeg: makes the logits
    r"\bfeature_(extractor|encoder)\.conv_layers\.\d+\.(conv|layer_norm|\d)\b": EMBEDDINGS,  # wav2vec 2.0, WavLM
    r"\b(hubert|wavlm)\.layer_norm\.": EMBEDDINGS,  # HuBERT, WavLM: of the features, before their projection
    r"\bembeddings\.(\w+\.)?backbone\.bit\.(embedder|encoder)\.": EMBEDDINGS,  # hybrid DPT and ViT: makes patches
    r"\bpatch_embed\.backbone\.stages\.": EMBEDDINGS,  # the same in timm
    r"\b(ppm|psp_modules?|cm)\.stages\.\d+\.": HEAD,  # PaddleSeg: pools of several sizes, side by side
    r"\bneck\.(reassemble|fusion)_stage\.": HEAD,  # DPT
    r"\bspeech_decoder_postnet\.layers\.": HEAD,  # SpeechT5
}
# The same for models that also have a parameter with a second path; these rows go before `_PATHS`.
_PATHS_BESIDE = [
    # wav2vec 2.0, HuBERT, WavLM: the large models, which normalise each convolution, apply encoder.layer_norm last
    (r"(^|\.)encoder\.layer_norm\.", r"\bfeature_extractor\.conv_layers\.[1-9]\d*\.(layer_norm|2)\.", HEAD),
    (r"(^|\.)encoder\.layer_norm\.", r"\bfeature_extractor\.conv_layers\.0\.(layer_norm|2)\.", EMBEDDINGS),
]
# Words between dots or underscores, in upper or lower case.
_WORDS = {
    r"heads?": HEAD,  # most models
    r"classifier|cls(?=[.]|$)": HEAD,  # BERT
    r"pooler": HEAD,  # BERT
    r"predict(ions?|or)": HEAD,  # ALBERT, ELECTRA
    r"score": HEAD,  # GPT, DETR
    r"logits?": HEAD,  # CLIP
    r"final_(ln|norm|layer_?norm)": HEAD,  # T5, OPT
    r"ln_f|norm_f": HEAD,  # GPT-2, Mamba
    r"fc_norm": HEAD,  # BEiT
    r"ln_post|post_layer_?norm": HEAD,  # CLIP
    r"after_norm": HEAD,  # Conformer
    r"(en|de)coder_layernorm(?=[.]|$)": HEAD,  # Pegasus
    r"attnpool": HEAD,  # CLIP with a ResNet
    r"(?<!feature_)extractor": HEAD,  # LayoutXLM
    r"postnet": HEAD,  # SpeechT5
    r"neck": HEAD,  # DPT, RT-DETR
    r"project_out": HEAD,  # OPT-350m
    r"embed_out": HEAD,  # GPT-NeoX
    r"output_layer": HEAD,  # ChatGLM
    r"mtp_\w+": HEAD,  # ERNIE 4.5: prediction of several tokens
    r"embed\w*": EMBEDDINGS,  # most models
    r"embs?": EMBEDDINGS,  # XLNet, HuBERT
    r"wte|wpe": EMBEDDINGS,  # GPT-2
    r"shared": EMBEDDINGS,  # T5, BART
    r"stem": EMBEDDINGS,  # ResNet, ConvNeXt
    r"(cls|class|mask|dist|query|register)_tokens?": EMBEDDINGS,  # ViT, DeiT, DINOv2
    r"(patch|pixel)_pos": EMBEDDINGS,  # TNT
    r"input_proj": EMBEDDINGS,  # DETR
    r"pos\w*_enc\w*|encode_positions": EMBEDDINGS,  # CTRL, SpeechT5
    r"rel\w*_(attention_)?bias\w*": EMBEDDINGS,  # BEiT, MPNet
    r"masked_spec_embed": EMBEDDINGS,  # wav2vec 2.0
}
# Words that count only for parts declared before the blocks: last words of heads, first words of embeddings.
MAYBE_HEAD = re.compile(r"(^|[._])(fc|linear|dense|outputs?|out|proj_out|out_proj|task\w*)\d*$", re.I)
MAYBE_EMBEDDINGS = re.compile(
    r"(^|[._])(conv|bn|(\w*_?)?la?ye?r?_?norm|norm|ln|pre|\w*proj|in|input|down\w*|tok|vis)", re.I
)

# Names of lists of blocks.
STACK_NAMES = frozenset(
    [
        *("layers", "layer", "h", "block", "blocks", "stages", "stage"),  # most models
        "resblocks",  # CLIP
        "attentions",  # XLM
        *("albert_layer_groups", "albert_layers"),  # ALBERT
        "res",  # ResNet of PaddleDetection: res2.res2a
        "bb",  # ResNet of PaddleClas: bb_0_0
        "bottleneck",  # Fast-SCNN
        "_blocks",  # EfficientNet
    ]
)
OUTER_NAMES = frozenset(["encoders", "decoders"])  # Conformer; of towers if their items have lists of blocks
STAGED_NAMES = frozenset(["res", "bb"])  # of stages, however unlike their blocks
SECOND_NAMES = {"_blocks": "block"}  # EfficientNet: `block` has the numbers that `_blocks` lacks
# lists beside the blocks, of parts of them, which may be as large as blocks: XLM, SpeechT5, DETR, ConvNeXt
PART_NAMES = frozenset(["ffns", "encoder_attn", "cross_attn", "downsample_layers"])
BETWEEN_STAGES = re.compile(r"(patch_embed(ding)?s?|sub_sample)(<i>)?$")  # SegFormer, SVTR
NORM_BETWEEN_STAGES = re.compile(r"norms?(<i>)?$")  # SegFormer: norm1 beside block1
ONE_FOR_ALL_BLOCKS = re.compile(r"(^|\.)relative_attention_bias\b")  # T5: only block 0 has it, and all blocks use it
STATISTICS = ("_mean", "_variance")  # of batch normalization; parameters to Paddle

# A part of a name with the index of a list, if a list of blocks follows: ResNet's layer1.0, PP-LCNet's blocks2.0.
NUMBERED = re.compile(r"(layers?|stages?|blocks?|res|bottleneck)(\d+)$")
# Other parts with indexes -> the indexes as parts of their own.
INDEXES_IN_NAMES: dict[str, Union[str, Callable[[re.Match[str]], str]]] = {
    r"(^|\.)bb_(\d+)_(\d+)(?=\.)": r"\1bb.\2.\3",  # ResNet of PaddleClas: stage and block
    # ResNet of PaddleDetection: res4.res4a, res4.res4b, or res4.res4b1 in deep ones
    r"(^|\.)res(\d+)\.res\2([a-z])(\d*)(?=\.)": lambda m: f"{m[1]}res.{m[2]}.{m[4] or ord(m[3]) - ord('a')}",
}
# Names of one list -> a common name.
COMMON_NAMES = {
    r"\bstage\.(\d+)\.(?:stage\.\1\.|basicblock(?=0\.))": r"stage.\1.",  # DarkNet: stage.1.stage.1.2
}


def _any_of(words: dict[str, int], index: int) -> re.Pattern[str]:
    return re.compile(rf"(^|[._])({'|'.join(word for word, i in words.items() if i == index)})(?=[._]|$)", re.I)


_HEAD, _EMBEDDINGS = _any_of(_WORDS, HEAD), _any_of(_WORDS, EMBEDDINGS)


def index_by_words(name: str) -> Optional[int]:
    """Return HEAD for a name with a word for heads, EMBEDDINGS with a word for embeddings, otherwise None."""
    return HEAD if _HEAD.search(name) else EMBEDDINGS if _EMBEDDINGS.search(name) else None


def index_by_paths(names: list[str]) -> dict[str, int]:
    """Return name -> EMBEDDINGS or HEAD of the `names` with a known path."""
    beside = [(path, index) for path, other, index in _PATHS_BESIDE if any(map(re.compile(other).search, names))]
    indexes: dict[str, int] = {}
    for path, index in [*beside, *_PATHS.items()]:
        for name in filter(re.compile(path).search, names):
            indexes.setdefault(name, index)
    return indexes
