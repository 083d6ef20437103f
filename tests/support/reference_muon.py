"""Muon in float64 NumPy, written from Jordan's post and section 2.2 of arXiv 2502.16982, with AdamW for the rest."""

import math

import numpy as np


def orthogonalized(matrix, coefficients=(3.4445, -4.775, 2.0315), steps=5):
    """Apply the polynomial a x + b x^3 + c x^5 to the singular values of a matrix, after scaling it to norm 1."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / max(np.linalg.norm(matrix), 1e-7)
    a, b, c = coefficients
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return left @ np.diag(values) @ right


def muon(params, grads, matrices, *, lr, weight_decay, momentum=0.95, nesterov=True, original=False, ratios=None):
    """Train with one dict of gradients a step, in which None is no gradient; `matrices` are the names for Muon.

    Weights of 2 dimensions are [in, out], of more [out, in, ...].
    """
    x = {n: np.array(a, "float64") for n, a in params.items()}
    m, v, t = (dict.fromkeys(params, 0.0) for _ in range(3))
    for grad in grads:
        for n, g in grad.items():
            if g is None:
                continue
            rate, t[n] = lr * (ratios or {}).get(n, 1.0), t[n] + 1
            x[n] = x[n] * (1 - rate * weight_decay)
            if n in matrices:
                m[n] = momentum * m[n] + (1 - momentum) * g
                u = (1 - momentum) * g + momentum * m[n] if nesterov else m[n]
                ways = (g.shape[1], g.shape[0]) if g.ndim == 2 else (g.shape[0], math.prod(g.shape[1:]))
                scale = math.sqrt(max(1, ways[0] / ways[1])) if original else 0.2 * math.sqrt(max(ways))
                x[n] = x[n] - rate * scale * orthogonalized(u.reshape(g.shape[0], -1)).reshape(g.shape)
            else:
                m[n], v[n] = 0.9 * m[n] + 0.1 * g, 0.999 * v[n] + 0.001 * g**2
                root = np.sqrt(v[n] / (1 - 0.999 ** t[n])) + 1e-8
                x[n] = x[n] - rate * m[n] / (1 - 0.9 ** t[n]) / root
    return x
