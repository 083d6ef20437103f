"""Repairs of resume and checkpoints, for any Trainer of the PaddleNLP family."""

import inspect
import os
from typing import Any, Optional

from paddle import distributed

from .._messages import refusal
from ..config import name_of
from . import epoch_rng, folders
from .data_errors import raising_errors
from .shared import check_mixed_in_first, decided_by_main, listening, warn
from .types import Trainer


class ResumeMixin(Trainer):
    """Make a Trainer resume exactly, and only from complete checkpoints. No arguments of ours and no decay are needed.

    - **Exact**: in one process, a resumed run ends with the same weights, bit for bit, as an uninterrupted one.
      `gradient_accumulation_steps` must divide the number of batches in an epoch; otherwise the Trainer carries
      gradients over.
    - **Complete**: a resume refuses incomplete checkpoints and damaged files. ``train(resume_from_checkpoint=True)``
      takes the last valid checkpoint and warns of damaged checkpoints. (With asynchronous saving, a checkpoint counts
      as complete as soon as all of its files exist, and damage is not detected.)
    - **The run's end**: a finished run that is resumed takes no further step. PaddleNLP's `EarlyStoppingCallback` keeps
      its count; other callbacks set `training_is_over`.
    - **Earlier checkpoints**: a run resumed from a checkpoint before the last renames the later ones to
      ``superseded-checkpoint-<step>`` with a warning, when it first saves. Automatic resumes ignore them, and nothing
      deletes them.
    - **Errors of data sets and collators** are raised. Without the mixin, the Trainer hangs on such an error.

    Raises:
        TypeError: at the definition of the class, if the mixin does not come first.
        ValueError: from `train`: an incomplete, damaged or missing checkpoint; an `output_dir` that is not writable.

    Examples:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_ldopt.trainer import ResumeMixin
        >>> class MyTrainer(ResumeMixin, Trainer):
        ...     pass
        >>> trainer = MyTrainer(model=model, args=args, train_dataset=train)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True if resume else None)  # doctest: +SKIP
    """

    _delayed_rotations: Optional[list[Any]] = None  # arguments of `_rotate_checkpoints` while a checkpoint is saved
    _resumed_at: Optional[int] = None  # the step of a resume, until the first checkpoint is saved
    _resumed_from: Optional[str] = None  # the checkpoint with the RNG state of the first epoch
    _rng_restored = False
    _epoch_rng: Any = None  # random states of the samplers at the start of the epoch
    _steps_per_epoch = 1

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, ResumeMixin, "_rotate_checkpoints")

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from a checkpoint's folder, or with True from the last valid one; first check it and `output_dir`."""
        checkpoint = decided_by_main(self, lambda: self._checked_folder(resume_from_checkpoint))
        if name_of(self.args.save_strategy) != "no":
            decided_by_main(self, lambda: folders.check_writable(self.args.output_dir))
        self._resumed_from, self._rng_restored = checkpoint, False
        with listening(self, on_train_begin=self._find_best_model, on_epoch_begin=self._begin_epoch):
            return super().train(checkpoint, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as the Trainer does."""
        return super().evaluation_loop(raising_errors(dataloader), *args, **kwargs)

    def _checked_folder(self, checkpoint: Any) -> Optional[str]:
        """Return the folder to resume from, or None; raise if it must not be resumed."""
        if checkpoint is True:
            checkpoint = folders.last_checkpoint(self.args.output_dir)
            if checkpoint is None:
                message = (
                    "No valid checkpoint found in output directory: leave `resume_from_checkpoint` out to start a new "
                    "run, or give the folder of a complete checkpoint."
                )
                raise refusal(ValueError, message, resume_from_checkpoint=True, output_dir=self.args.output_dir)
        if checkpoint and os.path.isdir(checkpoint):  # the Trainer raises for a missing folder
            self._check_checkpoint(checkpoint)
        return checkpoint or None

    def _check_checkpoint(self, folder: str) -> None:
        folders.check_complete(folder)
        epoch_rng.read(folder)  # files written in the background have no checksum: damage shows only here

    def _checkpoint_files(self) -> dict[str, Any]:
        """Return the content of our files in a checkpoint by name."""
        return {} if self._epoch_rng is None else {folders.EPOCH_RNG: self._epoch_rng}

    def _find_best_model(self) -> None:
        """Called before the first step, with the training's state loaded."""
        best, checkpoint = self.state.best_model_checkpoint, self._resumed_from
        if best is not None and checkpoint is not None:  # the run may have been moved or copied
            self.state.best_model_checkpoint = folders.beside(checkpoint, best, self.args.output_dir)

    def _begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""
        checkpoint, self._resumed_from = self._resumed_from, None
        skips = not (self.args.ignore_data_skip or getattr(self.args, "ignore_load_lr_and_optim", False))
        if checkpoint is not None and skips and self.state.global_step > 0:
            self._restore_rng(checkpoint)
        self._epoch_rng = epoch_rng.now()

    def _restore_rng(self, checkpoint: str) -> None:
        """Restore the random state of the resumed epoch's start; the Trainer does so only after skipping batches."""
        if self.state.global_step % self._steps_per_epoch == 0:
            self._load_rng_state(checkpoint)
        elif self.args.world_size <= 1:  # in several processes, samplers shuffle with the epoch's number
            if states := epoch_rng.read(checkpoint):
                epoch_rng.restore(states)
            elif self.state.global_step > self._steps_per_epoch:
                effect = "the next batches differ from the batches of an uninterrupted run"
                warn(self, f"{checkpoint} has no random state of its epoch: {effect}")

    def _load_rng_state(self, checkpoint: Any) -> None:
        # Some samplers make the Trainer call this in every epoch after a resume. Only the first call may restore.
        if checkpoint is not None and not self._rng_restored:
            self._rng_restored = True
            super()._load_rng_state(checkpoint)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(super()._inner_training_loop).bind(*args, **kwargs)
        arguments = call.arguments
        arguments["train_dataloader"] = raising_errors(arguments["train_dataloader"])
        self._steps_per_epoch = arguments["num_update_steps_per_epoch"]  # all steps, if the length is unknown
        state, checkpoint = None, self._resumed_from
        if checkpoint is not None and not getattr(self.args, "ignore_load_lr_and_optim", False):
            state = folders.trainer_state_in(checkpoint, type(self.state))
        step = 0 if state is None else state.global_step
        self._resumed_at = None if checkpoint is None else step
        # the Trainer would take a step before it checks whether the run is over
        if self._was_stopped(state) or step >= arguments["max_steps"]:
            arguments["num_train_epochs"] = 0
        return super()._inner_training_loop(*call.args, **call.kwargs)

    def _was_stopped(self, state: Any) -> bool:
        """Return whether a callback had stopped the training; restore the counter of early stopping."""
        callbacks = self.callback_handler.callbacks
        stopped = any(getattr(callback, "training_is_over", False) for callback in callbacks)
        if state is None or not state.best_model_checkpoint:
            return stopped
        since_best = state.global_step - int(state.best_model_checkpoint.rpartition("-")[2])
        by_steps = name_of(self.args.evaluation_strategy) == "steps"
        for callback in (one for one in callbacks if hasattr(one, "early_stopping_patience_counter")):
            evaluations = since_best // (self.args.eval_steps if by_steps else self._steps_per_epoch)
            callback.early_stopping_patience_counter = evaluations
            stopped = stopped or evaluations >= callback.early_stopping_patience
        return stopped

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer saves here. In an epoch's last step, a checkpoint (also on SIGTERM) must wait for the epoch's
        # evaluation, to record the best model.
        control = self.control
        last = control.should_training_stop or self.state.global_step % self._steps_per_epoch == 0
        ahead = name_of(self.args.evaluation_strategy) == "epoch" and last and not control.should_evaluate
        waits = control.should_save and ahead
        control.should_save = control.should_save and not waits
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.control.should_save = self.control.should_save or waits

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        files = self._checkpoint_files()
        if self._resumed_at is not None:
            decided_by_main(self, self._set_aside)
            self._resumed_at = None
        if self.args.should_save:
            folders.begin_checkpoint(folder, files)
        self._wait_for_all()  # before any process writes into the checkpoint or deletes another
        self._delayed_rotations = []
        try:
            super()._save_checkpoint(*args, **kwargs)
            self._wait_for_all()  # the checkpoint is complete now; only then may older checkpoints be deleted
            if self.args.should_save:
                folders.finish_checkpoint(folder, not self._saves_in_background, folders.LAYERWISE in files)
            if not self._delayed_rotations and self.args.local_rank == -1:  # PaddleNLP rotates only if it is 0
                self._delayed_rotations.append(((), {"use_mtime": True, "output_dir": self.args.output_dir}))
        finally:
            rotations, self._delayed_rotations = self._delayed_rotations, None
        for positional, named in rotations:
            self._rotate_checkpoints(*positional, **named)

    @property
    def _saves_in_background(self) -> bool:
        unified = getattr(self.args, "unified_checkpoint_config", None) or ()
        return getattr(self.args, "use_async_save", False) or "async_save" in unified

    def _wait_for_all(self) -> None:
        if self.args.world_size > 1:
            distributed.barrier()

    def _set_aside(self) -> None:
        """Rename the checkpoints of an earlier run over the same steps."""
        step: Any = self._resumed_at
        for was, now in folders.set_aside(self.args.output_dir, step):
            warn(
                self,
                f"{was} is renamed {now}: this run was resumed from the earlier step {step}, and later resumes must "
                "not use the old checkpoints. Delete the folder if you do not need it.",
            )

    def _rotate_checkpoints(self, *args: Any, **kwargs: Any) -> None:
        if self._delayed_rotations is not None:
            self._delayed_rotations.append((args, kwargs))
            return
        # the Trainer assumes that the best checkpoint is among the checkpoints to delete
        best = self.state.best_model_checkpoint
        folder = inspect.signature(super()._rotate_checkpoints).bind(*args, **kwargs).arguments.get("output_dir")
        if best is not None and folder is not None:
            self.state.best_model_checkpoint = folders.within(folder, best)
        try:
            super()._rotate_checkpoints(*args, **kwargs)
        finally:
            self.state.best_model_checkpoint = best

    def _sorted_checkpoints(self, *args: Any, **kwargs: Any) -> list[str]:
        # The Trainer sorts by file times. After a clock was set back, it would delete the newest checkpoint.
        call = inspect.signature(super()._sorted_checkpoints).bind(*args, **kwargs)
        call.arguments["use_mtime"] = False
        saved = super()._sorted_checkpoints(*call.args, **call.kwargs)
        best = self.state.best_model_checkpoint
        return folders.oldest_first(saved, self.state.global_step, best and os.path.normpath(best))
