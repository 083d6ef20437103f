"""The optimizers in float64 NumPy, written from their papers; `reference.adamw` is AdamW.

Each returns what the parameters become. The options are those of the optimizer. `grads` has one dict a step, in which
None is no gradient.
"""

import math

import numpy as np
from reference import adamw


def lamb(params, grads, *, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, centralized=()):
    """Train with Algorithm 2 of arXiv 1904.00962, the rate and the decay of each parameter its own.

    `lr` and `weight_decay` are numbers or functions of name and step from 0; the gradients of those in `centralized`
    lose the mean of each output channel. t counts the updates of each parameter.
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
            t[n] += 1
            m[n] = beta1 * m[n] + (1 - beta1) * g
            v[n] = beta2 * v[n] + (1 - beta2) * g**2
            r = m[n] / (1 - beta1 ** t[n]) / (np.sqrt(v[n] / (1 - beta2 ** t[n])) + eps)
            update = r + decay * x[n]
            x_norm, update_norm = np.sqrt((x[n] ** 2).sum()), np.sqrt((update**2).sum())
            phi = x_norm / update_norm if x_norm > 0 and update_norm > 0 else 1.0
            x[n] = x[n] - rate * phi * update
    return x


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


def rms(array):
    return np.sqrt(np.mean(array**2))


def adafactor(
    params, grads, ratios=1.0, *, lr=None, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta1=None,
    weight_decay=0.0, scale_parameter=True, relative_step=True, warmup_init=False, used=None,
):  # fmt: skip
    """Train with Algorithms 4 and 5 of arXiv 1804.04235, the rate of each parameter scaled by its ratio.

    `used` gets the rates of each step.
    """
    x = {n: np.array(a, "float64") for n, a in params.items()}
    v, m, t = {n: Average(a.shape) for n, a in x.items()}, dict.fromkeys(x, 0.0), dict.fromkeys(x, 0)
    for grad in grads:
        rates = {}
        for n, g in grad.items():
            if g is None:
                continue
            t[n] += 1
            g = np.asarray(g, "float64")
            u = g / np.sqrt(v[n].take(g**2 + eps[0], 1 - t[n] ** decay_rate))
            u = u / max(1.0, rms(u) / clip_threshold)
            rate = min(1e-6 * t[n] if warmup_init else 1e-2, 1 / np.sqrt(t[n])) if relative_step else lr
            rate *= ratios if isinstance(ratios, float) else ratios[n]
            if scale_parameter:
                rate *= max(eps[1], rms(x[n]))
            rates[n] = rate
            u = rate * u
            if beta1 is not None:
                u = m[n] = beta1 * m[n] + (1 - beta1) * u
            x[n] = x[n] - rate * weight_decay * x[n] - u
        if used is not None:
            used.append(rates)
    return x


def came(
    params, grads, lr, *, eps=(1e-30, 1e-3, 1e-16), clip_threshold=1.0, decay_rate=0.8, beta1=0.9, beta2=None,
    beta3=0.99, weight_decay=0.0, scale_parameter=False, relative_step=False, warmup_init=False, loss_scale=1,
):  # fmt: skip
    """Train with Algorithm 2 of arXiv 2307.02047 and transformers' relative step, for which `lr` is 1.0."""
    x = {n: np.array(a, "float64") for n, a in params.items()}
    m, t = {n: np.zeros_like(a) for n, a in x.items()}, dict.fromkeys(x, 0)
    v, s = {n: Average(a.shape) for n, a in x.items()}, {n: Average(a.shape) for n, a in x.items()}
    for grad in grads:
        for n, g in grad.items():
            t[n] += 1
            g = np.asarray(g, "float64") / loss_scale
            rate = lr
            if relative_step:
                rate *= min(1e-6 * t[n] if warmup_init else 1e-2, 1 / np.sqrt(t[n]))
            if scale_parameter:
                rate *= max(eps[1], rms(x[n]))
            u = g / np.sqrt(v[n].take(g**2 + eps[0], 1 - t[n] ** -decay_rate if beta2 is None else beta2))
            u = u / max(1.0, rms(u) / clip_threshold)
            step = u
            if beta1:
                m[n] = beta1 * m[n] + (1 - beta1) * u
                step = m[n] / np.sqrt(s[n].take((u - m[n]) ** 2 + eps[2], beta3)) if g.ndim >= 2 else m[n]
            x[n] = x[n] - rate * weight_decay * x[n] - rate * step
    return x


def adam_weight_decay(
    params, grads, *, lr, beta_1=0.9, beta_2=0.999, epsilon=1e-7, weight_decay_rate=0.0, decayed=None, amsgrad=False,
    decay=0.0, clipvalue=None, clipnorm=None, global_clipnorm=None,
):  # fmt: skip
    """Train as the documentation of Keras 2 says.

    `lr` is a rate or a function of the step from 1; `decayed` is a function of the name.
    """
    x = {n: np.array(a, "float64") for n, a in params.items()}
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
            rate = (lr(t) if callable(lr) else lr) / (1 + decay * (t - 1))
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


def orthogonalized(matrix, coefficients=(3.4445, -4.775, 2.0315), steps=5):
    """Apply the polynomial a x + b x^3 + c x^5 to the singular values of a matrix, after scaling it to norm 1."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / max(np.linalg.norm(matrix), 1e-7)
    a, b, c = coefficients
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return left @ np.diag(values) @ right


def muon(params, grads, matrices, *, lr, weight_decay, momentum=0.95, nesterov=True, original=False, ratios):
    """Train as Jordan's post and section 2.2 of arXiv 2502.16982 say, with AdamW for all but the `matrices`.

    Weights of 2 dimensions are [in, out], of more [out, in, ...].
    """
    rest = [{n: g for n, g in grad.items() if n not in matrices} for grad in grads]
    x = adamw(params, rest, ratios, lr=lr, weight_decay=weight_decay)
    m = dict.fromkeys(matrices, 0.0)
    for grad in grads:
        for n in matrices:
            g, rate = grad[n], lr * ratios[n]
            if g is None:
                continue
            x[n] = x[n] * (1 - rate * weight_decay)
            m[n] = momentum * m[n] + (1 - momentum) * g
            u = (1 - momentum) * g + momentum * m[n] if nesterov else m[n]
            ways = (g.shape[1], g.shape[0]) if g.ndim == 2 else (g.shape[0], math.prod(g.shape[1:]))
            scale = math.sqrt(max(1, ways[0] / ways[1])) if original else 0.2 * math.sqrt(max(ways))
            x[n] = x[n] - rate * scale * orthogonalized(u.reshape(g.shape[0], -1)).reshape(g.shape)
    return x
