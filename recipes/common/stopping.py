"""Ctrl-C and SIGTERM: a checkpoint after the running step, and the command that resumes."""

import contextlib
import io
import os
import shlex
import signal
import sys

from paddle_ldopt.trainer import StopOnSigterm


class StopWithCheckpoint(StopOnSigterm):
    """End a run on Ctrl-C as `StopOnSigterm` ends it on SIGTERM, and print the command that resumes it.

    The exit code is 130 after Ctrl-C, 143 after SIGTERM. A second Ctrl-C ends the process at once.
    """

    interrupted = False

    def __enter__(self):
        """Install both signal handlers."""
        super().__enter__()
        self._before_interrupt = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind, *rest):
        """Restore the previous signal handlers."""
        signal.signal(signal.SIGINT, self._before_interrupt)
        if self.interrupted and kind is None:  # the run came to its end in the step that was interrupted
            self.asked = False
        super().__exit__(kind, *rest)

    def _note(self, *_):
        super()._note()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal also ends a step that hangs

    def _interrupt(self, *_):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # also within a step that hangs
        self.interrupted = True
        print("\nCtrl-C: saving a checkpoint after this step; Ctrl-C again ends at once", file=sys.stderr, flush=True)
        signal.raise_signal(signal.SIGTERM)

    def on_save(self, args, state, control, **kwargs):
        """Exit, and print the command that resumes."""
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # in place of its line, the command
                super().on_save(args, state, control, **kwargs)
        except SystemExit as ended:
            if getattr(args, "local_rank", 0) in (-1, 0):
                print(f"resume: {resume_command(args.output_dir)}", file=sys.stderr)
            raise SystemExit(130 if self.interrupted else ended.code) from None


def resume_command(folder):
    """Return the command that resumes the run in a folder."""
    script = os.path.relpath(sys.argv[0]) if os.path.exists(sys.argv[0]) else sys.argv[0]
    return shlex.join([sys.executable, script, "--resume_from_checkpoint", folder])
