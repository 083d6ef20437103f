"""The Trainer of the recipes that classify."""

import paddle
from paddlenlp.trainer import Trainer

from paddle_ldopt.trainer import LdoptTrainerMixin


class FineTuner(LdoptTrainerMixin, Trainer):
    """PaddleNLP's Trainer with layer-wise rates, for any classifier of texts or tokens."""

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the cross entropy; with `return_outputs` also (loss, logits)."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs[0] if isinstance(outputs, (tuple, list)) else outputs  # some models add their cache
        loss = paddle.nn.functional.cross_entropy(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss
