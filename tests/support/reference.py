"""Float64 NumPy references written from the papers, and small helpers that several tests share."""

import numpy as np
import paddle
import pytest

from paddle_ldopt import kernels

_DEVICE = paddle.get_device()
_REASON = kernels.found()[1] if _DEVICE == "cpu" else f"the C library steps on a CPU, not {_DEVICE}"
needs_library = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


def adamw(params, grads, ratios, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01, decayed=None):
    """Train with Algorithm 2 of arXiv 1711.05101, the rate of each parameter scaled by its ratio.

    `grads` has one dict a step, in which None is no gradient; `ratios` is name -> ratio, or a function of name and
    step, `lr` a rate or a function of the step, both from 1; `decayed` says whether the weights of a name are decayed.
    """
    x = {n: a.astype("float64") for n, a in params.items()}
    m, v, t = (dict.fromkeys(params, 0.0) for _ in range(3))
    for step, grad in enumerate(grads, 1):
        for n, g in grad.items():
            if g is None:
                continue
            rate = (lr(step) if callable(lr) else lr) * (ratios(n, step) if callable(ratios) else ratios[n])
            t[n] += 1
            if decayed is None or decayed(n):
                x[n] = x[n] - rate * weight_decay * x[n]
            m[n] = beta1 * m[n] + (1 - beta1) * g
            v[n] = beta2 * v[n] + (1 - beta2) * g * g
            m_hat, v_hat = m[n] / (1 - beta1 ** t[n]), v[n] / (1 - beta2 ** t[n])
            x[n] = x[n] - rate * m_hat / (np.sqrt(v_hat) + epsilon)
    return x


SHAPES = {"0-D": (), "one": (1,), "vector": (7,), "row": (1, 5), "column": (5, 1), "matrix": (4, 6)}
SHAPES.update({"3-D": (2, 3, 4), "4-D": (3, 2, 2, 2)})


def random_run(steps=20, shapes=SHAPES, seed=0):
    """Return name -> array and the gradients of some steps, all exact in float32."""
    rng = np.random.default_rng(seed)
    arrays, *grads = (
        {n: np.asarray(rng.normal(size=s), "float32").astype("float64") for n, s in shapes.items()}
        for _ in range(steps + 1)
    )
    return arrays, grads


def make_params(arrays, dtype="float32"):
    """Make trainable parameters out of name -> array, and the name_dict that goes with them."""
    params, zero = {}, paddle.nn.initializer.Constant(0.0)  # one that Paddle has for 16 bits
    for name, array in arrays.items():
        params[name] = paddle.create_parameter(list(array.shape), dtype, default_initializer=zero)
        wide = array.astype("float64" if dtype == "float64" else "float32")
        params[name].set_value(paddle.to_tensor(wide).astype(dtype))
    return params, {param.name: name for name, param in params.items()}


def take_steps(optimizer, params, grads, each_step=None):
    for grad in grads:
        for name, g in grad.items():
            if g is not None:
                params[name].grad = paddle.to_tensor(g, dtype=params[name].dtype)
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        if each_step is not None:
            each_step()
    return {name: param.numpy() for name, param in params.items()}


def bert_like(steps=6):
    """Return name -> array of a small model with PaddleNLP's BERT names, and random gradients for some steps."""
    rng = np.random.default_rng(0)
    shapes = {"bert.embeddings.word_embeddings.weight": (7, 5)}
    for i in range(3):
        layer = f"bert.encoder.layers.{i}"
        shapes.update({f"{layer}.self_attn.q_proj.weight": (5, 5), f"{layer}.self_attn.q_proj.bias": (5,)})
        shapes[f"{layer}.norm1.weight"] = (5,)
    shapes.update({"bert.pooler.dense.weight": (5, 5), "classifier.weight": (5, 2)})
    arrays = {n: rng.normal(size=s) for n, s in shapes.items()}
    return arrays, [{n: rng.normal(size=s) for n, s in shapes.items()} for _ in range(steps)]


def llrd_ratio(name, decay, n_layers):
    """PaddleNLP's documented hook, written a second time."""
    if "encoder.layers." in name:
        return decay ** (n_layers - int(name.split("encoder.layers.")[1].split(".")[0]))
    return decay ** (n_layers + 1) if "embedding" in name else 1.0
