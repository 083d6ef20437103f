"""Adafactor in float64 NumPy, written from arXiv 1804.04235 with the sums R and C of its Algorithm 4."""

import numpy as np


def adafactor(
    params,
    grads,
    ratios=1.0,
    *,
    lr=None,
    eps=(1e-30, 1e-3),
    clip_threshold=1.0,
    decay_rate=-0.8,
    beta1=None,
    weight_decay=0.0,
    scale_parameter=True,
    relative_step=True,
    warmup_init=False,
    decayed=None,
    used=None,
):
    """Train, the rate of each parameter scaled by its ratio.

    The options are those of `Adafactor`. `grads` has one dict a step, in which None is no gradient; `lr` is a
    rate or a function of the step from 1; `decayed` is a function of the name; `used` gets the rates of each step.
    """
    x = {name: array.astype("float64") for name, array in params.items()}
    sums, momentum, count = {}, dict.fromkeys(params, 0.0), dict.fromkeys(params, 0)
    for step, grad in enumerate(grads, 1):
        rates = {}
        for name, g in grad.items():
            if g is None:
                continue
            g = g.astype("float64")
            count[name] += 1
            t = count[name]
            beta2 = 1 - t**decay_rate
            g2 = g**2 + eps[0]
            if g.ndim >= 2:
                R, C = sums.get(name, (0.0, 0.0))
                R = beta2 * R + (1 - beta2) * g2.sum(-1, keepdims=True)
                C = beta2 * C + (1 - beta2) * g2.sum(-2, keepdims=True)
                sums[name] = R, C
                V = R * C / R.sum(-2, keepdims=True)
            else:
                V = sums[name] = beta2 * sums.get(name, 0.0) + (1 - beta2) * g2
            u = g / np.sqrt(V)
            u = u / max(1.0, rms(u) / clip_threshold)
            rate = lr(step) if callable(lr) else lr
            if relative_step:
                rate = min(1e-6 * t if warmup_init else 1e-2, 1 / np.sqrt(t))
            rate *= ratios if isinstance(ratios, float) else ratios[name]
            if scale_parameter:
                rate *= max(eps[1], rms(x[name]))
            rates[name] = rate
            u = rate * u
            if beta1 is not None:
                u = momentum[name] = beta1 * momentum[name] + (1 - beta1) * u
            decay = weight_decay if decayed is None or decayed(name) else 0.0
            x[name] = x[name] - rate * decay * x[name] - u
        if used is not None:
            used.append(rates)
    return x


def rms(array):
    return np.sqrt(np.mean(array**2))
