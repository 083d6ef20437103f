"""What the tests of frameworks share: an optimizer that is watched, and the float64 AdamW that it must follow."""

import numpy as np
import pytest
import reference


def another_decay(decay):
    """Return the pattern of the error of a resume with a decay of 0.5 instead of `decay`."""
    return f"decay was {{'layerwise_decay': {decay}}} and is {{'layerwise_decay': 0.5}} now.*allow_layerwise_change"


def assert_ratios(optimizer, model, ratio):
    for name, param in model.named_parameters():
        assert optimizer.layerwise_ratio(param) == pytest.approx(ratio(name), rel=1e-12), name


def assert_same_weights(model, other):
    """Check that two models are equal bit for bit."""
    for (name, want), got in zip(model.named_parameters(), other.parameters()):
        np.testing.assert_array_equal(got.numpy(), want.numpy(), err_msg=name)


class Watched:
    """Records the gradients of every step of an optimizer, and the rate at each."""

    def __init__(self, optimizer, model):
        self.optimizer = optimizer
        self.parameters = {name: p for name, p in model.named_parameters() if not p.stop_gradient}
        self.start, self.grads, self.rates = self.weights(), [], []
        self._step, optimizer.step = optimizer.step, self.step

    def weights(self):
        return {name: param.numpy().astype("float64") for name, param in self.parameters.items()}

    def step(self):
        self.rates.append(self.optimizer.get_lr())
        grads = {name: param.grad for name, param in self.parameters.items()}
        self.grads.append({n: None if grad is None else grad.numpy().astype("float64") for n, grad in grads.items()})
        self._step()

    def assert_follows(self, ratio, *, weight_decay, decayed=None, **adamw):
        """Check the way of each parameter in five steps against AdamW with the rate times `ratio(name)`.

        It is within 1e-5 of the rate.
        """
        assert len(self.rates) == 5
        ratios = {name: ratio(name) for name in self.start}
        assert len(set(ratios.values())) > 2
        how = {"lr": lambda step: self.rates[step - 1], "weight_decay": weight_decay, "decayed": decayed, **adamw}
        want = reference.adamw(self.start, self.grads, ratios, **how)
        got, path = self.weights(), sum(self.rates)
        for name, value in want.items():
            # 1.2e-7: a float32 weight is rounded twice a step, after its decay and after its move
            allowed = 1e-5 * ratios[name] * path + 1.2e-7 * len(self.rates) * np.abs(value)
            wrong = np.abs(got[name] - value) - allowed
            assert wrong.max() <= 0, (name, wrong.max() / (ratios[name] * path))
