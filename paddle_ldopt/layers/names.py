"""Embeddings or head, by a parameter's name alone."""

import re
from typing import Optional

from .layer import HEAD

_EMBEDDING = re.compile(
    r"(^|[._])(embed\w*|emb|embs|wte|wpe|shared|stem|patch_proj|input_proj|"
    r"(cls|class|mask|dist|query|register)_tokens?|(patch|pixel)_pos|pos\w*_enc\w*|encode_positions|rel\w*_(attention_)?bias\w*|masked_spec_embed)(?=[._]|$)",
    re.I,
)
_HEAD = re.compile(
    r"(^|[._])(heads?|mtp_\w+|pooler|attnpool|classifier|predict(ions?|or)|score|logits?|(?<!feature_)extractor|"
    r"postnet|neck|project_out|embed_out|output_layer|after_norm|final_(ln|norm|layer_?norm)|ln_f|norm_f|fc_norm|"
    r"ln_post|post_layer_?norm|"
    r"(en|de)coder_layernorm(?=[.]|$)|cls(?=[.]|$))(?=[._]|$)",
    re.I,
)
# Parameters whose role is visible in neither name nor position.
_EXCEPTIONS: dict[re.Pattern[str], int] = {
    re.compile(r"\bbigbird\.encoder\.norm\."): 0,  # applied to the embeddings, before block 0
    # norm of the relative embeddings, and a convolution added to block 0's output
    re.compile(r"\bdeberta\.encoder\.(LayerNorm|conv)\."): 0,
    re.compile(r"\baudio_encoder\.batch_norm\."): 0,  # CLAP: of the spectrogram
    re.compile(r"\btransposed_convolution\."): HEAD,  # CLIPSeg: makes the logits
    # lists that look like blocks; the first of wav2vec 2.0, HuBERT, WavLM: of the waveform
    re.compile(r"\bfeature_(extractor|encoder)\.conv_layers\.\d+\.(conv|layer_norm|\d)\b"): 0,
    re.compile(r"\b(hubert|wavlm)\.layer_norm\."): 0,  # norm of the features, before their projection
    re.compile(r"\bembeddings\.(\w+\.)?backbone\.bit\.(embedder|encoder)\."): 0,  # hybrid DPT, ViT: makes patches
    re.compile(r"\bpatch_embed\.backbone\.stages\."): 0,  # the same in timm
    re.compile(r"\b(ppm|psp_modules?|cm)\.stages\.\d+\."): HEAD,  # PaddleSeg: pools of several sizes, side by side
    re.compile(r"\bneck\.(reassemble|fusion)_stage\."): HEAD,  # DPT
    re.compile(r"\bspeech_decoder_postnet\.layers\."): HEAD,  # SpeechT5
}
# wav2vec 2.0, HuBERT, WavLM: the large models, which normalise each convolution, apply encoder.layer_norm last
_WAVEFORM_NORM = re.compile(r"(?:^|\.)feature_extractor\.conv_layers\.(\d+)\.(?:layer_norm|2|2\.1)\.(?:weight|bias)$")
_ENCODER_NORM = re.compile(r"(^|\.)encoder\.layer_norm\.")


def is_hinted(tower: str) -> bool:
    """Return whether a tower is named like embeddings or a head."""
    return bool(_HEAD.search(tower) or _EMBEDDING.search(tower))


def index_by_words(name: str) -> Optional[int]:
    """Return 0 for a name with a word for embeddings, HEAD for one with a word for heads, None for other names."""
    return HEAD if _HEAD.search(name) else 0 if _EMBEDDING.search(name) else None


def exceptions(names: list[str]) -> dict[str, int]:
    """Return name -> 0 or HEAD of the exceptions among `names`."""
    indexes: dict[str, int] = {}
    for pattern, index in reversed(_EXCEPTIONS.items()):  # the first pattern that matches counts
        indexes.update(dict.fromkeys(filter(pattern.search, names), index))
    return indexes


def encoder_norms(names: list[str]) -> dict[str, int]:
    """Return name -> 0 or HEAD of the encoder's norm in models of speech."""
    normalised = {match[1] for match in map(_WAVEFORM_NORM.search, names) if match}
    index = HEAD if len(normalised) > 1 else 0
    return {name: index for name in names if normalised and _ENCODER_NORM.search(name)}
