"""LAMB in float64 NumPy, written from Algorithm 2 of arXiv 1904.00962."""

import numpy as np


def lamb(
    params,
    grads,
    *,
    lr,
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    weight_decay=0.0,
    ratios=None,
    centralized=(),
    counts_calls=False,
):
    """Train with Algorithm 2, the rate and the decay of each parameter its own.

    The options are those of `Lamb`. `grads` has one dict a step, in which None is no gradient; `lr` and
    `weight_decay` are numbers or functions of name and step from 0; the gradients of those in `centralized` lose the
    mean of each output channel. t counts the updates of each parameter; with `counts_calls` the steps, as in timm.
    """
    x = {n: np.array(a, "float64") for n, a in params.items()}
    m, v, t = (dict.fromkeys(params, 0.0) for _ in range(3))
    for step, grad in enumerate(grads):
        for n, g in grad.items():
            if g is None:
                continue
            if n in centralized:
                g = np.stack([channel - channel.mean() for channel in g])
            rate = lr(n, step) if callable(lr) else lr
            decay = weight_decay(n, step) if callable(weight_decay) else weight_decay
            t[n] = step + 1 if counts_calls else t[n] + 1
            m[n] = beta1 * m[n] + (1 - beta1) * g
            v[n] = beta2 * v[n] + (1 - beta2) * g**2
            r = m[n] / (1 - beta1 ** t[n]) / (np.sqrt(v[n] / (1 - beta2 ** t[n])) + eps)
            update = r + decay * x[n]
            x_norm, update_norm = np.sqrt((x[n] ** 2).sum()), np.sqrt((update**2).sum())
            phi = x_norm / update_norm if x_norm > 0 and update_norm > 0 else 1.0
            x[n] = x[n] - rate * (ratios or {}).get(n, 1.0) * phi * update
    return x
