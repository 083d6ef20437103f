"""The parameters of BERT-base, which the benchmarks run on."""

import paddle

HIDDEN, BLOCKS, VOCAB = 768, 12, 30522


def bert_base_shapes():
    """Return structured name -> shape of BertModel at its base size, as PaddleNLP names it."""
    shapes = {
        "embeddings.word_embeddings.weight": [VOCAB, HIDDEN],
        "embeddings.position_embeddings.weight": [512, HIDDEN],
        "embeddings.token_type_embeddings.weight": [2, HIDDEN],
    }
    linears = [(f"self_attn.{x}_proj", HIDDEN, HIDDEN) for x in ("q", "k", "v", "out")]
    linears += [("linear1", HIDDEN, 4 * HIDDEN), ("linear2", 4 * HIDDEN, HIDDEN)]
    norms = ["embeddings.layer_norm", *(f"encoder.layers.{i}.norm{j}" for i in range(BLOCKS) for j in (1, 2))]
    for name in norms:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = [HIDDEN]
    for i in range(BLOCKS):
        for name, rows, columns in linears:
            shapes[f"encoder.layers.{i}.{name}.weight"] = [rows, columns]
            shapes[f"encoder.layers.{i}.{name}.bias"] = [columns]
    shapes["pooler.dense.weight"], shapes["pooler.dense.bias"] = [HIDDEN, HIDDEN], [HIDDEN]
    return shapes


def parameters(shapes):
    """Return a list of parameters with gradients, and their name_dict."""
    params, name_dict = [], {}
    for name, shape in shapes.items():
        param = paddle.create_parameter(shape, "float32")
        param.grad = paddle.full(shape, 1e-3)
        params.append(param)
        name_dict[param.name] = name
    return params, name_dict
