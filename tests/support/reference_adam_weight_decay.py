"""AdamWeightDecay in float64 NumPy, written from the papers and the documentation of Keras 2."""

import numpy as np


def adam_weight_decay(
    params,
    grads,
    *,
    lr,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-7,
    weight_decay_rate=0.0,
    decayed=None,
    ratios=None,
    amsgrad=False,
    decay=0.0,
    clipvalue=None,
    clipnorm=None,
    global_clipnorm=None,
):
    """Return what the parameters become.

    The options are those of `AdamWeightDecay`. `grads` has one dict a step, in which None is no gradient; `lr`
    is a rate or a function of the step from 1; `decayed` is a function of the name.
    """
    x = {n: np.asarray(a, "float64") for n, a in params.items()}
    m, v, v_max = ({n: np.zeros_like(a) for n, a in x.items()} for _ in range(3))
    for t, grad in enumerate(grads, 1):  # t counts the steps of all parameters, whoever has a gradient
        grad = {n: np.asarray(g, "float64") for n, g in grad.items() if g is not None}
        if clipvalue is not None:
            grad = {n: np.minimum(np.maximum(g, -clipvalue), clipvalue) for n, g in grad.items()}
        if clipnorm is not None:
            grad = {n: g * min(1.0, clipnorm / max(norm([g]), 1e-300)) for n, g in grad.items()}
        if global_clipnorm is not None:
            scale = min(1.0, global_clipnorm / norm(grad.values()))
            grad = {n: g * scale for n, g in grad.items()}
        for n, g in grad.items():
            rate = (lr(t) if callable(lr) else lr) * (ratios or {}).get(n, 1.0) / (1 + decay * (t - 1))
            if decayed is None or decayed(n):
                x[n] = x[n] * (1 - rate * weight_decay_rate)
            m[n] += (1 - beta_1) * (g - m[n])
            v[n] += (1 - beta_2) * (g**2 - v[n])
            v_max[n] = np.maximum(v_max[n], v[n])
            corrected = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
            x[n] = x[n] - corrected * m[n] / (np.sqrt(v_max[n] if amsgrad else v[n]) + epsilon)
    return x


def norm(arrays):
    return np.sqrt(sum(np.sum(np.square(a)) for a in arrays))
