"""The Trainers of the recipes, for classifiers and for models that predict tokens; data sets score predictions."""

import numpy as np
import paddle
from paddle.nn.functional import cross_entropy
from paddlenlp.trainer import Trainer

from paddle_ldopt.trainer import LdoptTrainerMixin


def logits_of(outputs):
    """Return the logits of a model's outputs; some models also return their cache."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


class FineTuner(LdoptTrainerMixin, Trainer):
    """PaddleNLP's Trainer with layer-wise rates, for any classifier of texts, tokens or images.

    `data` is split -> data set with a method `score(prediction)`.
    """

    loss = staticmethod(cross_entropy)

    def __init__(self, model, args, data, collator, tokenizer=None):
        sets = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
        super().__init__(model, args=args, data_collator=collator, tokenizer=tokenizer, **sets)
        self.data = data

    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        logits = logits_of(model(**inputs))
        loss = self.loss(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss

    def evaluation_loop(self, dataloader, *args, **kwargs):
        self.compute_metrics = dataloader.dataset.score
        return super().evaluation_loop(dataloader, *args, **{**kwargs, "prediction_loss_only": None})


class TokenTrainer(FineTuner):
    """Base of a recipe's Trainer, which defines `guesses`."""

    def guesses(self, model, inputs):
        """Return (logits [n, vocabulary], right tokens [n], row numbers [n]) of the predicted tokens."""
        raise NotImplementedError

    def compute_loss(self, model, inputs, return_outputs=False):
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


def token_scores(prediction, lost=0):
    """Return perplexity and accuracy from sums [rows, 3] of losses, correct predictions and predictions.

    Tokens that are `lost`, because they were cut, count as wrong.
    """
    loss, right, guesses = np.asarray(prediction.predictions, "float64").sum(0)
    return {"perplexity": float(np.exp(loss / guesses)), "accuracy": float(right / (guesses + lost))}
