"""One line for each evaluation, in place of the Trainer's log; on a terminal the Trainer's bar stays."""

import sys
import time

from paddlenlp.trainer import TrainerCallback
from paddlenlp.trainer.trainer_callback import PrinterCallback, ProgressCallback

UNSHOWN = ("_runtime", "_per_second", "_ppl")


class ShortProgress(TrainerCallback):
    """Print a line after each evaluation."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Take the time."""
        self._main, self._began, self._loss = state.is_world_process_zero, time.perf_counter(), None

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Note the loss; print the metrics of an evaluation."""
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        found = {k[5:]: v for k, v in logs.items() if k.startswith("eval_") and not k.endswith(UNSHOWN)}
        if found and self._main:
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            loss = "" if self._loss is None else f"training loss {self._loss:.3f}; "
            seconds = time.perf_counter() - self._began
            print(
                f"step {state.global_step}/{state.max_steps}, {seconds:.0f} s: {loss}validation {metrics}", flush=True
            )

    def on_train_end(self, args, state, control, **kwargs):
        """Print no later evaluations, which are of the test."""
        self._main = False
        if kwargs.get("metrics_dumper") is not None:  # as the Trainer's own callbacks do
            kwargs["metrics_dumper"].close()


class Bar(ProgressCallback):
    """The Trainer's bar, without its log."""

    def on_log(self, *args, **kwargs):
        """Print nothing."""


def replace_progress(trainer):
    """Replace a Trainer's log by `ShortProgress`."""
    for kind in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(kind)
    trainer.add_callback(ShortProgress())
    if sys.stderr.isatty():
        trainer.add_callback(Bar())
    else:
        trainer.args.disable_tqdm = True  # nor a bar for the batches that a resume skips
