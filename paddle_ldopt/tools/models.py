"""Models for the command line: PaddleNLP's by name, and the shapes of decoders."""

import inspect
import math
import os
from typing import Optional

import numpy as np
import paddle

from .._checks import checked_number, refusal
from .._files import checked_path, file_errors

MODEL = "a PaddleNLP class such as BertForSequenceClassification (in its default size), a local folder, or a hub name"
_LARGE = 10**9  # parameters; 4 GB


def load_model(name: str) -> paddle.nn.Layer:
    """Build a PaddleNLP model without its weights: parameters have shapes but take no memory.

    `name` is a class (built from its default config), a local folder or a hub name (only the config is read).
    ValueError: PaddleNLP is missing or lacks the model.
    """
    received = {"--model": name}
    try:
        import paddlenlp.transformers as nlp
    except ImportError as error:
        raise refusal(ValueError, f"`--model` needs PaddleNLP: pip install paddlenlp ({error}).", **received) from error
    cls = getattr(nlp, name, None) if name.isidentifier() else None
    if cls is not None:
        if getattr(cls, "config_class", None) is None:
            raise refusal(ValueError, "`--model` must be a model class.", **received)
        config = cls.config_class()
    else:
        try:
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own configs name no architecture
            cls = getattr(nlp, (config.architectures or [bare])[0])
            if getattr(cls, "config_class", None) is None:
                raise ValueError("its config names neither an architecture nor a model type")
        except Exception as error:  # hubs and config files fail in many ways: the message has the cause
            kinds = "local folder" if os.path.isdir(name) else "PaddleNLP class, local folder or hub model"
            message = f"`--model`: cannot load a {kinds} of this name ({error})."
            raise refusal(ValueError, message, **received) from error
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return cls(config)
    except Exception:  # a model that sets weights itself needs allocated parameters
        return cls(config)


def example_of(model: paddle.nn.Layer, path: Optional[str]) -> dict[str, paddle.Tensor]:
    """Return a small batch for a forward pass: the arrays of an .npz file, or ids and images by the model's signature.

    The model gets memory for its weights. Raise ValueError if there is no such input, or without a file for a model
    of more than a billion parameters.
    """
    size = sum(param.size for param in model.parameters())
    batch: dict[str, paddle.Tensor] = {}
    if path is not None:
        with file_errors(checked_path(path, "--example"), "This .npz"), np.load(path, allow_pickle=False) as arrays:
            batch = {name: paddle.to_tensor(array) for name, array in arrays.items()}
    elif size > _LARGE:
        raise refusal(ValueError, "The model is too large to run it without `--example`.", parameters=size)
    else:
        side = getattr(getattr(model, "config", None), "image_size", None) or 224
        for name in inspect.signature(model.forward).parameters:
            if name in ("input_ids", "decoder_input_ids"):
                batch[name] = paddle.arange(1, 9).unsqueeze(0)
            elif name in ("pixel_values", "images"):
                batch[name] = paddle.zeros([1, 3, side, side])
        if not batch:
            raise refusal(ValueError, "The model takes neither ids nor images.", model=type(model).__name__)
    for param in model.parameters():
        if not param._is_initialized():
            param.initialize()
    return batch


def decoder(
    hidden: int, layers: int, vocab: int = 32000, intermediate: int = 0, heads: int = 0, kv_heads: int = 0
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a decoder of LLaMA's form: untied embedding and head, no biases.

    By default, `intermediate` is 8/3 of `hidden`, rounded up to a multiple of 256, `heads` is `hidden` / 128, and
    `kv_heads` equals `heads`.
    """
    wide, heads = intermediate or -(-hidden * 8 // 3 // 256) * 256, heads or max(1, hidden // 128)
    kv = hidden * (kv_heads or heads) // heads
    block = {"q_proj": (hidden, hidden), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (hidden, hidden)}
    block |= {"gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden)}
    whole = {**block, "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    blocks = {f"layers.{i}.{name}": shape for i in range(layers) for name, shape in whole.items()}
    return {"embed_tokens": (vocab, hidden), **blocks, "norm": (hidden,), "lm_head": (hidden, vocab)}


def decoder_of_size(params: float) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a typical decoder of about `params` parameters, at least 1e9.

    A block has about :math:`12 h^2` parameters and a model h / 128 blocks, so the width h is the multiple of 1024
    nearest to the cube root of 128 `params` / 12. The number of blocks is a multiple of 8 (of 4 below 32).
    """
    params = checked_number(params, "params", 1e9, 1e14)
    hidden = 1024 * round((params * 128 / 12) ** (1 / 3) / 1024)
    one, two = (sum(map(math.prod, decoder(hidden, n).values())) for n in (1, 2))
    layers = 1 + (params - one) / (two - one)
    step = 8 if layers >= 32 else 4
    return decoder(hidden, max(step, step * round(layers / step)))
