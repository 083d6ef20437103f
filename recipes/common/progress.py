"""A live bar and one line for each evaluation, in place of the Trainer's log."""

import time

from paddlenlp.trainer import TrainerCallback
from paddlenlp.trainer.trainer_callback import PrinterCallback, ProgressCallback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PER_SECOND = ("_runtime", "_per_second", "_ppl")


class ShortProgress(TrainerCallback):
    """Print a line after each evaluation and, on a terminal, a bar with the steps, the loss and the time left."""

    def __init__(self):
        self._console = Console(soft_wrap=True, highlight=False, markup=False)
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        self._main, self._loss, self._task = False, None, None

    def on_train_begin(self, args, state, control, **kwargs):
        """Begin the bar."""
        self._main, self._began = state.is_world_process_zero, time.perf_counter()
        if self._main and self._console.is_terminal:
            self._progress.start()
            self._task = self._progress.add_task("", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        """Advance the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Note the loss; print the metrics of an evaluation."""
        logs = logs or {}
        if "loss" in logs:
            self._loss = logs["loss"]
            if self._task is not None:
                self._progress.update(self._task, description=f"loss {self._loss:.3f}")
        found = {k[5:]: v for k, v in logs.items() if k.startswith("eval_") and not k.endswith(PER_SECOND)}
        if found and self._main:
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            loss = "" if self._loss is None else f"training loss {self._loss:.3f}; "
            seconds = time.perf_counter() - self._began
            where = f"step {state.global_step}/{state.max_steps}"
            self._console.print(f"{where}, {seconds:.0f} s: {loss}validation {metrics}")

    def on_train_end(self, args, state, control, **kwargs):
        """End the bar; later evaluations are of the test."""
        self.close()
        self._main = False
        if kwargs.get("metrics_dumper") is not None:  # as the Trainer's own callbacks do
            kwargs["metrics_dumper"].close()

    def close(self):
        """End the bar, also after an error."""
        if self._task is not None:
            self._progress.stop()
            self._task = None


def silence(trainer):
    """Remove the Trainer's own progress."""
    for kind in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(kind)


def replace_progress(trainer):
    """Replace a Trainer's progress by `ShortProgress`; return it."""
    silence(trainer)
    trainer.args.disable_tqdm = True  # nor a bar for the batches that a resume skips
    trainer.add_callback(progress := ShortProgress())
    return progress
