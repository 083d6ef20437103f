"""The Trainers of the recipes, what they print while they train, and how they end on Ctrl-C and SIGTERM."""

import signal
import sys
import time

import numpy as np
import paddle
from paddle.nn.functional import cross_entropy
from paddlenlp.trainer import Trainer, TrainerCallback
from paddlenlp.trainer.trainer_callback import PrinterCallback, ProgressCallback

from paddle_ldopt.trainer import LdoptTrainerMixin, StopOnSigterm

from . import command

UNSHOWN, SILENCE = ("_runtime", "_per_second", "_ppl"), 60  # seconds between two lines


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
        args.disable_tqdm |= not sys.stderr.isatty()
        super().__init__(model, args=args, data_collator=collator, tokenizer=tokenizer, **sets)
        self.data = data
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        self.add_callback(ShortProgress())
        if not args.disable_tqdm:
            self.add_callback(Bar())

    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        logits = logits_of(model(**inputs))
        loss = self.loss(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss

    def evaluation_loop(self, dataloader, *args, **kwargs):
        self.compute_metrics = dataloader.dataset.score
        return super().evaluation_loop(dataloader, *args, **{**kwargs, "prediction_loss_only": None})


class TokenTrainer(FineTuner):
    """Base of a recipe's Trainer, which defines `guesses(model, inputs)`.

    It returns (logits [n, vocabulary], right tokens [n], row numbers [n]) of the predicted tokens.
    """

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


class ShortProgress(TrainerCallback):
    """Print a line after each evaluation of a training, and after a minute without one."""

    _main, _loss = False, ""

    def on_train_begin(self, args, state, control, **kwargs):
        self._main, self._began = state.is_world_process_zero, time.perf_counter()
        self._printed = self._began

    def on_log(self, args, state, control, logs, **kwargs):
        now = time.perf_counter()
        if "loss" in logs:
            self._loss = f"training loss {logs['loss']:.3f}"
        found = {k[5:]: v for k, v in logs.items() if k.startswith("eval_") and not k.endswith(UNSHOWN)}
        if self._main and (found or ("loss" in logs and now - self._printed > SILENCE)):
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            said = "; ".join(filter(None, (self._loss, f"validation {metrics}" * bool(found))))
            print(f"step {state.global_step}/{state.max_steps}, {now - self._began:.0f} s: {said}", flush=True)
            self._printed = now

    def on_train_end(self, args, state, control, **kwargs):
        """Print no later evaluations, which are of the test."""
        self._main = False


class Bar(ProgressCallback):
    """The Trainer's bar, without its log."""

    def on_log(self, *args, **kwargs):
        """Print nothing."""


class StopWithCheckpoint(StopOnSigterm):
    """End a run on Ctrl-C as `StopOnSigterm` ends it on SIGTERM, and print the command that resumes it.

    The exit code is 130 after Ctrl-C, 143 after SIGTERM. A second signal ends the process at once.
    """

    number = signal.SIGTERM

    def __enter__(self):
        super().__enter__()
        self._before_interrupt = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind, *rest):
        signal.signal(signal.SIGINT, self._before_interrupt)
        if self.number == signal.SIGINT and kind is None:  # the run came to its end in the step that was interrupted
            self.asked = False
        super().__exit__(kind, *rest)

    def _note(self, number, *_):
        super()._note()
        for each in (signal.SIGINT, signal.SIGTERM):  # a second signal also ends a step that hangs
            signal.signal(each, signal.SIG_DFL)
        self.number, name = number, "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        print(f"\n{name}: saving a checkpoint after this step; {name} again ends at once", file=sys.stderr, flush=True)

    def on_save(self, args, state, control, **kwargs):
        """Exit, and print the command that resumes."""
        if self._agreed:
            if args.local_rank in (-1, 0):
                again = command(args.recipe, "--resume_from_checkpoint", args.output_dir)  # also in a sweep
                print(f"resume: {again}", file=sys.stderr)
            raise SystemExit(128 + self.number)
