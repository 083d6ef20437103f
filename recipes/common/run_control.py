"""The Trainer of the recipes that classify, and what stops a run: no better model, or SIGTERM.

trainer.add_callback(EarlyStopping(3, trainer))
with StopOnSigterm() as stop: ...
"""

import math
import os
import signal
import sys

import paddle
from paddlenlp.trainer import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerState

from paddle_ldopt.trainer import LdoptTrainerMixin


class FineTuner(LdoptTrainerMixin, Trainer):
    """PaddleNLP's Trainer with layer-wise rates, for any classifier of texts or tokens."""

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the cross entropy, if wanted with (loss, logits)."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs[0] if isinstance(outputs, (tuple, list)) else outputs  # some add their cache
        loss = paddle.nn.functional.cross_entropy(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss


class EarlyStopping(EarlyStoppingCallback):
    """PaddleNLP's, after which a resumed run stops where it would have stopped without the interruption.

    Without `load_best_model_at_end` it stops nothing early.

    Args:
        patience (int): stop after so many evaluations without a better model.
        trainer (Trainer): the one that it is for, before it trains.
    """

    training_is_over = False  # `LdoptTrainerMixin` asks: the Trainer would take a step before it asks

    def __init__(self, patience, trainer):
        args, checkpoint = trainer.args, trainer.args.resume_from_checkpoint
        super().__init__(patience if args.load_best_model_at_end else math.inf)
        if checkpoint:
            state = TrainerState.load_from_json(os.path.join(checkpoint, "trainer_state.json"))
            updates = updates_of_an_epoch(trainer.get_train_dataloader(), args)
            if state.best_model_checkpoint:
                since_best = state.global_step - int(state.best_model_checkpoint.rpartition("-")[2])
                interval = args.eval_steps if args.evaluation_strategy.value == "steps" else updates
                self.early_stopping_patience_counter = since_best // interval  # those since the last may be few
            self.training_is_over = self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(self, args, state, control, **kwargs):
        """Do without what PaddleNLP's insists on: with no best model, `patience` is endless."""


def updates_of_an_epoch(train_dataloader, args):
    """Return how many steps the optimizer takes in an epoch, as the Trainer counts them."""
    return max(len(train_dataloader) // args.gradient_accumulation_steps, 1)


class StopOnSigterm(TrainerCallback):
    """On SIGTERM, as schedulers send it before they kill, save a checkpoint after the step that is running, and end.

    In an epoch's last step the epoch's evaluation comes first: a resume begins with the next epoch.

    It listens within ``with stop:``.
    """

    asked = False
    _waits = False  # for the end of the epoch

    def __enter__(self):
        """Take the signal over; it can be taken in the main thread only."""
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, kind, *_):
        """Give the signal back, also after an error, and heed one that nothing has ended for."""
        signal.signal(signal.SIGTERM, self._before)
        if self.asked and kind is not SystemExit:
            os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, *_):
        self.asked = True
        signal.signal(signal.SIGTERM, self._before)  # a second one is not made to wait for a step

    def on_step_end(self, args, state, control, train_dataloader=None, **kwargs):
        """Ask for a checkpoint, unless the epoch is over."""
        last = state.global_step % updates_of_an_epoch(train_dataloader, args) == 0
        self._waits = last or control.should_training_stop
        if self.asked and not self._waits:
            control.should_save = True

    def on_epoch_end(self, args, state, control, **kwargs):
        """Ask for a checkpoint, which comes after the epoch's evaluation."""
        self._waits = False
        if self.asked:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        """End, with the code that a shell gives for the signal."""
        if self.asked and not self._waits:
            print(f"SIGTERM: go on with --resume_from_checkpoint {args.output_dir}", file=sys.stderr)
            raise SystemExit(128 + signal.SIGTERM)
