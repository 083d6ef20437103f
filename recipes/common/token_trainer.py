"""PaddleNLP's Trainer for models that predict tokens; in evaluations each token has the same weight."""

import numpy as np
import paddle
from paddle.nn.functional import cross_entropy

from .fine_tuner import FineTuner


def token_scores(prediction):
    """Return perplexity and accuracy from sums [rows, 3] of losses, correct predictions and predictions."""
    loss, right, guesses = np.asarray(prediction.predictions, "float64").sum(0)
    return {"perplexity": float(np.exp(loss / guesses)), "accuracy": float(right / guesses)}


class TokenTrainer(FineTuner):
    """Base of a recipe's Trainer, which defines `guesses`."""

    def __init__(self, **kwargs):
        super().__init__(compute_metrics=token_scores, **kwargs)

    def guesses(self, model, inputs):
        """Return (logits [n, vocabulary], right tokens [n], row numbers [n]) of the predicted tokens."""
        raise NotImplementedError

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the mean cross entropy of the predicted tokens."""
        logits, right, _ = self.guesses(model, inputs)
        loss = cross_entropy(logits, right)
        return (loss, (loss, logits)) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return (mean loss, sums of each row, the sums again as labels: the Trainer needs labels for metrics)."""
        inputs = self._prepare_inputs(inputs)
        with paddle.no_grad():
            logits, right, rows = self.guesses(model, inputs)
            losses = cross_entropy(logits, right, reduction="none").flatten()
            hits = (logits.argmax(-1) == right).astype(losses.dtype)
            each = paddle.stack([losses, hits, paddle.ones_like(losses)], 1)
            sums = paddle.zeros([len(inputs["input_ids"]), 3]).index_add(rows, 0, each)
        return losses.mean(), sums, sums
