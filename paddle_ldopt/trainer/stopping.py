"""A callback that saves a checkpoint on SIGTERM and ends the run."""

import os
import signal
import sys
from typing import Any

from .shared import Callback
from .types import Args, Control, State


class StopOnSigterm(Callback):
    """Save a checkpoint after the current step and exit on SIGTERM, which cluster schedulers send before killing a job.

    In an epoch's last step, a Trainer with `ResumeMixin` evaluates first. The process exits with ``SystemExit(143)``,
    the shell's code for the signal. A second signal ends the process immediately. The callback listens
    within ``with stop:``, in the main thread. `asked` is True after the signal.

    Examples:
        >>> from paddle_ldopt.trainer import StopOnSigterm
        >>> stop = StopOnSigterm()
        >>> trainer.add_callback(stop)  # doctest: +SKIP
        >>> with stop:  # doctest: +SKIP
        ...     trainer.train(resume_from_checkpoint=True if resume else None)
    """

    asked = False

    def __enter__(self) -> "StopOnSigterm":
        """Install the signal handler."""
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        """Restore the previous handler, and pass on a signal that has not ended the run."""
        signal.signal(signal.SIGTERM, self._before)
        if self.asked and error is not SystemExit:
            os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, *_: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGTERM, self._before)  # a second signal does not wait for a step

    def on_step_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Request a checkpoint."""
        control.should_save = control.should_save or self.asked

    on_epoch_end = on_step_end  # for a signal after the epoch's last step

    def on_save(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Exit."""
        if self.asked:
            print(f"SIGTERM: resume with --resume_from_checkpoint {args.output_dir}", file=sys.stderr)
            raise SystemExit(128 + signal.SIGTERM)
