"""The parameters that the benchmarks run on: lists of shapes, under PaddleNLP's names."""

import functools

import numpy as np

HIDDEN, BLOCKS, VOCAB = 768, 12, 30522


def _linear(shapes, name, rows, columns):
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = [rows, columns], [columns]


def _norm(shapes, name, hidden):
    shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = [hidden]


def _encoder_layer(shapes, prefix, hidden):
    for name in ("q", "k", "v", "out"):
        _linear(shapes, f"{prefix}.self_attn.{name}_proj", hidden, hidden)
    _linear(shapes, f"{prefix}.linear1", hidden, 4 * hidden)
    _linear(shapes, f"{prefix}.linear2", 4 * hidden, hidden)
    _norm(shapes, f"{prefix}.norm1", hidden)
    _norm(shapes, f"{prefix}.norm2", hidden)


def bert_base_shapes(hidden=HIDDEN, vocab=VOCAB):
    """Return structured name -> shape of BertModel at its base size, or a smaller one, as PaddleNLP names it."""
    shapes = {
        "embeddings.word_embeddings.weight": [vocab, hidden],
        "embeddings.position_embeddings.weight": [512, hidden],
        "embeddings.token_type_embeddings.weight": [2, hidden],
    }
    _norm(shapes, "embeddings.layer_norm", hidden)
    for i in range(BLOCKS):
        _encoder_layer(shapes, f"encoder.layers.{i}", hidden)
    _linear(shapes, "pooler.dense", hidden, hidden)
    return shapes


def vit_b16_shapes():
    """Return structured name -> shape of ViT-B/16 for images of 224 x 224 and 1000 classes."""
    shapes = {"pos_embed": [1, 197, HIDDEN], "cls_token": [1, 1, HIDDEN]}
    shapes["patch_embed.proj.weight"], shapes["patch_embed.proj.bias"] = [HIDDEN, 3, 16, 16], [HIDDEN]
    for i in range(BLOCKS):
        _norm(shapes, f"blocks.{i}.norm1", HIDDEN)
        _linear(shapes, f"blocks.{i}.attn.qkv", HIDDEN, 3 * HIDDEN)
        _linear(shapes, f"blocks.{i}.attn.proj", HIDDEN, HIDDEN)
        _norm(shapes, f"blocks.{i}.norm2", HIDDEN)
        _linear(shapes, f"blocks.{i}.mlp.fc1", HIDDEN, 4 * HIDDEN)
        _linear(shapes, f"blocks.{i}.mlp.fc2", 4 * HIDDEN, HIDDEN)
    _norm(shapes, "norm", HIDDEN)
    _linear(shapes, "head", HIDDEN, 1000)
    return shapes


def t5_small_shapes():
    """Return structured name -> shape of T5-small, its output tied to the embeddings."""
    hidden, inner, heads, blocks = 512, 2048, 8, 6
    shapes = {"shared.weight": [32128, hidden]}
    for tower, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        for i in range(blocks):
            block = f"{tower}.block.{i}.layer"
            for j, attention in enumerate(attentions):
                for name in "qkvo":
                    shapes[f"{block}.{j}.{attention}.{name}.weight"] = [hidden, hidden]
                if i == j == 0:
                    shapes[f"{block}.0.SelfAttention.relative_attention_bias.weight"] = [32, heads]
                shapes[f"{block}.{j}.layer_norm.weight"] = [hidden]
            dense = f"{block}.{len(attentions)}"
            shapes[f"{dense}.DenseReluDense.wi.weight"] = [hidden, inner]
            shapes[f"{dense}.DenseReluDense.wo.weight"] = [inner, hidden]
            shapes[f"{dense}.layer_norm.weight"] = [hidden]
        shapes[f"{tower}.final_layer_norm.weight"] = [hidden]
    return shapes


def llama_100m_shapes():
    """Return structured name -> shape of a LLaMA of 100 M parameters: 12 blocks of 640, an output of its own."""
    hidden, inner, vocab = 640, 1728, 32000
    shapes = {"llama.embed_tokens.weight": [vocab, hidden]}
    for i in range(BLOCKS):
        block = f"llama.layers.{i}"
        for name in "qkvo":
            shapes[f"{block}.self_attn.{name}_proj.weight"] = [hidden, hidden]
        shapes[f"{block}.mlp.gate_proj.weight"] = shapes[f"{block}.mlp.up_proj.weight"] = [hidden, inner]
        shapes[f"{block}.mlp.down_proj.weight"] = [inner, hidden]
        shapes[f"{block}.input_layernorm.weight"] = shapes[f"{block}.post_attention_layernorm.weight"] = [hidden]
    shapes["llama.norm.weight"], shapes["lm_head.weight"] = [hidden], [hidden, vocab]
    return shapes


MODELS = {
    "bert-base": bert_base_shapes,
    "vit-b16": vit_b16_shapes,
    "t5-small": t5_small_shapes,
    "llama-100m": llama_100m_shapes,
}


def matrices(tensors, rows, columns):
    """Return name -> shape of so many equal matrices, in 12 blocks."""
    return {f"encoder.layers.{i % BLOCKS}.part{i // BLOCKS}.weight": [rows, columns] for i in range(tensors)}


def stack(blocks, hidden):
    """Return name -> shape of so many encoder blocks of 16 tensors each."""
    shapes = {}
    for i in range(blocks):
        _encoder_layer(shapes, f"encoder.layers.{i}", hidden)
    return shapes


def count(shapes):
    """Return the number of elements of all the tensors."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


@functools.lru_cache
def _normal(size):
    return np.random.default_rng(0).standard_normal(size, dtype="float32")


def values(shapes, scale):
    """Yield (name, array): the same normal values of a scale in every process, repeated from 2^20 on."""
    for name, shape in shapes.items():
        yield name, np.resize(_normal(1 << 20), shape) * np.float32(scale)


def parameters(shapes, gradient=1e-3):
    """Return a list of Paddle parameters with gradients of a scale, and their name_dict."""
    import paddle

    params, name_dict = [], {}
    zero = paddle.nn.initializer.Constant(0.0)
    for (name, value), (_, grad) in zip(values(shapes, 0.02), values(shapes, gradient)):
        param = paddle.create_parameter(list(value.shape), "float32", default_initializer=zero)
        param.set_value(value)
        param.grad = paddle.to_tensor(grad)
        params.append(param)
        name_dict[param.name] = name
    return params, name_dict
