"""CAME in float64 NumPy, written from Algorithm 2 of arXiv 2307.02047, and transformers' relative step."""

import numpy as np


def came(
    params,
    grads,
    lr,
    *,
    eps=(1e-30, 1e-3, 1e-16),
    clip_threshold=1.0,
    decay_rate=0.8,
    beta1=0.9,
    beta2=None,
    beta3=0.99,
    weight_decay=0.0,
    scale_parameter=False,
    relative_step=False,
    warmup_init=False,
    loss_scale=1,
):
    """Train, and return (parameters, first moments) after every step.

    The options are those of `Came`. `grads` has one dict a step, in which None is no gradient; `lr` is a rate, 1.0
    with `relative_step`, or a function of the name.
    """
    x = {n: np.array(a, "float64") for n, a in params.items()}
    m, t = {n: np.zeros_like(a) for n, a in x.items()}, dict.fromkeys(x, 0)
    v, s = {n: Average(a.shape) for n, a in x.items()}, {n: Average(a.shape) for n, a in x.items()}
    history = []
    for grad in grads:
        for n, g in grad.items():
            if g is None:
                continue
            t[n] += 1
            g = np.asarray(g, "float64") / loss_scale
            rate = lr(n) if callable(lr) else lr
            if relative_step:
                rate *= min(1e-6 * t[n] if warmup_init else 1e-2, 1 / np.sqrt(t[n]))
            if scale_parameter:
                rate *= max(eps[1], np.sqrt(np.mean(x[n] ** 2)))
            u = g / np.sqrt(v[n].take(g**2 + eps[0], 1 - t[n] ** -decay_rate if beta2 is None else beta2))
            u = u / max(1.0, np.sqrt(np.mean(u**2)) / clip_threshold)
            step = u
            if beta1:
                m[n] = beta1 * m[n] + (1 - beta1) * u
                step = m[n] / np.sqrt(s[n].take((u - m[n]) ** 2 + eps[2], beta3)) if g.ndim >= 2 else m[n]
            x[n] = x[n] - rate * weight_decay * x[n] - rate * step
        history.append(({n: a.copy() for n, a in x.items()}, {n: a.copy() for n, a in m.items()}))
    return history


class Average:
    """The moving average of a tensor: of its rows and columns if it has both, of its elements otherwise."""

    def __init__(self, shape):
        self.factored = len(shape) >= 2
        self.all = np.zeros(shape)
        self.row, self.col = np.zeros(shape[:-1]), np.zeros(shape[:-2] + shape[-1:])

    def take(self, value, beta):
        """Take `value` in, and return the average at the shape of the tensor."""
        if not self.factored:
            self.all = beta * self.all + (1 - beta) * value
            return self.all
        self.row = beta * self.row + (1 - beta) * value.mean(-1)
        self.col = beta * self.col + (1 - beta) * value.mean(-2)
        return self.row[..., :, None] * self.col[..., None, :] / self.row.mean(-1)[..., None, None]
