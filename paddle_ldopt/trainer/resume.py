"""`ResumeMixin`, and the common parts of all mixins."""

import glob
import importlib
import inspect
import logging
import os
import random
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
import paddle
from paddle import distributed

from .._checks import refusal
from .._files import file_errors, read_json
from .._processes import together
from ..config import name_of
from . import record

__all__ = ["Args", "Control", "ResumeMixin", "State", "Trainer"]

if TYPE_CHECKING:  # also for PaddleFormers
    from paddlenlp.trainer import Trainer
    from paddlenlp.trainer import TrainerControl as Control
    from paddlenlp.trainer import TrainerState as State
    from paddlenlp.trainer import TrainingArguments as Args
else:  # the real classes follow in the user's class
    Trainer = Args = State = Control = object


def check_mixed_in_first(cls: type, mixin: type, method: str) -> None:
    """Raise TypeError if another base with this method precedes `mixin`."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    if not issubclass(owner, mixin):
        name = next(base.__name__ for base in cls.__mro__[1:] if issubclass(base, mixin))
        bases = ", ".join(base.__name__ for base in cls.__bases__)
        wrong = f"{name} must come first: class {cls.__name__}({name}, {owner.__name__})"
        raise TypeError(f"{wrong}. Received: class {cls.__name__}({bases})")


class Callback:
    """A TrainerCallback without its base class, which differs between packages."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


def decided_by_main(trainer: Trainer, ask: Callable[[], Any]) -> Any:
    """Return the main process's `ask()` in all processes, or raise its error in all."""
    _, answers = together(lambda: (None, ask() if trainer.is_world_process_zero() else None))
    return answers[0]


def logger_of(trainer: Trainer) -> Any:
    packages = {cls.__module__.partition(".")[0] for cls in type(trainer).__mro__}
    for package in ("paddlenlp", "paddleformers"):
        if package in packages:
            return importlib.import_module(f"{package}.utils.log").logger
    return logging.getLogger(__name__)


class ResumeMixin(Trainer):
    """A Trainer that resumes exactly, and only from complete checkpoints.

    - **Exact**: in one process, a resumed run ends with the same weights, bit for bit, as an uninterrupted one.
      Micro-batches left over at an epoch's end are dropped with a warning: the Trainer would add them to the next
      epoch.
    - **Complete**: a resume refuses incomplete and damaged checkpoints. ``train(resume_from_checkpoint=True)`` takes
      the last valid one. With asynchronous saving, damage is not detected.
    - **The run's end**: a resumed run that has ended takes no further step. PaddleNLP's `EarlyStoppingCallback` keeps
      its count; other callbacks set `training_is_over`.
    - **Checkpoints of an earlier run** after this run's first step are renamed to ``superseded-checkpoint-<step>``,
      with a warning, at its first save.
    - **Errors of data sets and collators** are raised; without the mixin, the Trainer hangs.

    Raises:
        TypeError: the mixin is not the first base class.
        ValueError: from `train`: an incomplete, damaged or missing checkpoint; an `output_dir` that is not writable.

    Examples:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_ldopt.trainer import ResumeMixin
        >>> class MyTrainer(ResumeMixin, Trainer):
        ...     pass
        >>> trainer = MyTrainer(model=model, args=args, train_dataset=train)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True if resume else None)  # doctest: +SKIP
    """

    _delayed_rotations: Optional[list[Any]] = None  # of `_rotate_checkpoints`, while a checkpoint is saved
    _began_at: Optional[int] = None  # the first step of a training, until its first checkpoint is saved
    _resumed_from: Optional[str] = None  # the checkpoint with the RNG state of the first epoch
    _progress: tuple[Optional[int], list[int]] = None, []  # its step, and its evaluations without gain
    _rng_restored = False
    _epoch_rng: Any = None  # random states at the start of the epoch
    _steps_per_epoch = 1

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_mixed_in_first(cls, ResumeMixin, "train")

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from a checkpoint (True: the last valid one), after a check of it and `output_dir`."""
        if getattr(self.args, "enable_zero_cost_checkpoint", False):  # of PaddleFormers: written later, by a process
            wrong = "A checkpoint must be complete when `save_checkpoint` returns: leave it out."
            raise refusal(ValueError, wrong, enable_zero_cost_checkpoint=True)

        def find() -> tuple[Optional[str], tuple[Optional[int], list[int]]]:
            checkpoint, step, counts = resume_from_checkpoint, None, list[int]()
            if checkpoint is True:
                checkpoint = record.last_checkpoint(self.args.output_dir)
                if checkpoint is None:
                    wrong = "No valid checkpoint found in output directory: leave `resume_from_checkpoint` out."
                    raise refusal(ValueError, wrong, resume_from_checkpoint=True, output_dir=self.args.output_dir)
            elif checkpoint and not glob.glob(os.path.join(glob.escape(checkpoint), "trainer_state.*")):
                checkpoint = record.last_checkpoint(checkpoint) or checkpoint  # the folder of a run
            if checkpoint and os.path.isdir(checkpoint):  # the Trainer raises for a missing folder
                self._check_checkpoint(checkpoint)
            if name_of(self.args.save_strategy) != "no":
                record.check_writable(self.args.output_dir)
            if checkpoint and not getattr(self.args, "ignore_load_lr_and_optim", False):
                for name, load in (("trainer_state.bin", "load"), ("trainer_state.json", "load_from_json")):
                    if os.path.isfile(path := os.path.join(checkpoint, name)):
                        step = getattr(type(self.state), load)(path).global_step
                if step is not None and os.path.exists(path := os.path.join(checkpoint, record.EPOCH_RNG)):
                    counts = read_json(path, "The counts of evaluations").get("evaluations_without_gain", counts)
            return checkpoint or None, (step, counts)

        checkpoint, self._progress = decided_by_main(self, find)  # other machines may lack the files
        self._resumed_from, self._rng_restored = checkpoint, False
        listener: Any = Callback()
        listener.on_train_begin, listener.on_epoch_begin = self._begin, self._begin_epoch
        listener.on_step_end = self._end_step
        self.callback_handler.callbacks.insert(0, listener)  # before the user's callbacks
        try:
            return super().train(checkpoint, *args, **kwargs)
        finally:
            self.callback_handler.pop_callback(listener)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        return super().evaluation_loop(raising_errors(dataloader), *args, **kwargs)

    def _check_checkpoint(self, folder: str) -> None:
        record.check_complete(folder)
        read_random_states(folder)  # files written in the background have no checksum: damage shows only here

    def _checkpoint_files(self) -> dict[str, Any]:
        callbacks = [one for one in self.callback_handler.callbacks if hasattr(one, "early_stopping_patience")]
        counts = {"evaluations_without_gain": [one.early_stopping_patience_counter for one in callbacks]}
        return {} if self._epoch_rng is None else {record.EPOCH_RNG: {**self._epoch_rng, **counts}}

    def _begin(self, *_: Any, **__: Any) -> None:
        """Called when the training's state is loaded."""
        best, checkpoint = self.state.best_model_checkpoint, self._resumed_from
        if best is not None and checkpoint is not None:  # the run may have been moved or copied
            beside = os.path.join(os.path.dirname(os.path.abspath(checkpoint)), os.path.basename(best))
            if os.path.isdir(beside):
                self.state.best_model_checkpoint = path_in(self.args.output_dir, beside) or beside

    def _begin_epoch(self, *_: Any, **__: Any) -> None:
        checkpoint, self._resumed_from = self._resumed_from, None
        skips = not (self.args.ignore_data_skip or getattr(self.args, "ignore_load_lr_and_optim", False))
        if checkpoint is not None and skips and self.state.global_step > 0:
            # the Trainer restores the random state of the epoch's start only after skipping batches
            if self.state.global_step % self._steps_per_epoch == 0:
                self._load_rng_state(checkpoint)
            elif self.args.world_size <= 1:  # in several processes, samplers shuffle with the epoch's number
                if states := read_random_states(checkpoint):
                    np.random.set_state(states[0])
                    random.setstate(states[1])
                elif self.state.global_step > self._steps_per_epoch:
                    effect = "the next batches differ from the batches of an uninterrupted run"
                    logger_of(self).warning(f"{checkpoint} has no random state of its epoch: {effect}")
        algorithm, keys, *rest = np.random.get_state()
        self._epoch_rng = {"numpy": [algorithm, np.asarray(keys).tolist(), *rest], "python": random.getstate()}

    def _end_step(self, *_: Any, **__: Any) -> None:
        """End the epoch before micro-batches that make no step."""
        if self._left_over and self.state.global_step % self._steps_per_epoch == 0:
            self.control.should_epoch_stop = True

    def _load_rng_state(self, checkpoint: Any) -> None:
        # After a resume, some samplers make the Trainer call this in every epoch
        if checkpoint is not None and not self._rng_restored:
            self._rng_restored = True
            super()._load_rng_state(checkpoint)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(super()._inner_training_loop).bind(*args, **kwargs)
        arguments = call.arguments
        arguments["train_dataloader"] = raising_errors(arguments["train_dataloader"])
        self._steps_per_epoch = arguments["num_update_steps_per_epoch"]  # all steps, if the length is unknown
        batches, each = arguments["len_dataloader"] or 0, self.args.gradient_accumulation_steps
        self._left_over = batches % each if batches > each else 0
        if self._left_over:
            wrong = f"The last {self._left_over} of {batches} micro-batches of each epoch are dropped"
            logger_of(self).warning(f"{wrong}: gradient_accumulation_steps={each} does not divide them.")
        step, counts = self._progress
        self._began_at = step or 0
        # the Trainer would take a step before it checks whether the run is over
        is_over = self._began_at >= arguments["max_steps"]
        for callback in self.callback_handler.callbacks:
            is_over = is_over or getattr(callback, "training_is_over", False)
            if step is not None and hasattr(callback, "early_stopping_patience"):
                callback.early_stopping_patience_counter = counts.pop(0) if counts else 0
                is_over = is_over or callback.early_stopping_patience_counter >= callback.early_stopping_patience
        if is_over:
            arguments["num_train_epochs"] = 0
        return super()._inner_training_loop(*call.args, **call.kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # In an epoch's last step, a checkpoint must wait for the epoch's evaluation, to record the best model.
        control = self.control
        last = control.should_training_stop or self.state.global_step % self._steps_per_epoch == 0
        ahead = name_of(self.args.evaluation_strategy) == "epoch" and last and not control.should_evaluate
        waits = control.should_save and ahead
        control.should_save = control.should_save and not waits
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.control.should_save = self.control.should_save or waits

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        step, self._began_at = self._began_at, None
        if step is not None:
            renamed = decided_by_main(self, lambda: record.set_aside(self.args.output_dir, step))
            for was, now in renamed if self.is_world_process_zero() else []:
                advice = "later resumes must not use the old checkpoints. Delete the folder if you do not need it."
                wrong = f"{was} is renamed {now}: this run began at the earlier step {step}, and {advice}"
                logger_of(self).warning(wrong)
        saves = self.args.should_save
        # no process writes or deletes before; an error, as of a full disk, is raised in all
        together(lambda: record.begin_checkpoint(folder, self._checkpoint_files()) if saves else None)
        wait_for_all = distributed.barrier if self.args.world_size > 1 else lambda: None
        self._delayed_rotations = []
        try:
            super()._save_checkpoint(*args, **kwargs)
            wait_for_all()  # only then may older checkpoints be deleted
            unified = getattr(self.args, "unified_checkpoint_config", None) or ()
            in_background = getattr(self.args, "use_async_save", False) or "async_save" in unified
            together(lambda: record.finish_checkpoint(folder, not in_background) if saves else None)
            if not self._delayed_rotations and self.args.local_rank == -1:  # PaddleNLP rotates only if it is 0
                self._delayed_rotations.append(((), {"use_mtime": True, "output_dir": self.args.output_dir}))
        finally:
            rotations, self._delayed_rotations = self._delayed_rotations, None
        for positional, named in rotations:
            self._rotate_checkpoints(*positional, **named)

    def _rotate_checkpoints(self, *args: Any, **kwargs: Any) -> None:
        if self._delayed_rotations is not None:
            self._delayed_rotations.append((args, kwargs))
            return
        # the Trainer looks for the best checkpoint among those to delete
        best = self.state.best_model_checkpoint
        folder = inspect.signature(super()._rotate_checkpoints).bind(*args, **kwargs).arguments.get("output_dir")
        if best is not None and folder is not None:
            self.state.best_model_checkpoint = path_in(folder, best)
        try:
            super()._rotate_checkpoints(*args, **kwargs)
        finally:
            self.state.best_model_checkpoint = best

    def _sorted_checkpoints(self, *args: Any, **kwargs: Any) -> list[str]:
        # by file times, the Trainer would delete the newest checkpoint after a clock was set back
        call = inspect.signature(super()._sorted_checkpoints).bind(*args, **kwargs)
        call.arguments["use_mtime"] = False
        saved = super()._sorted_checkpoints(*call.args, **call.kwargs)
        best = self.state.best_model_checkpoint
        return record.oldest_first(saved, self.state.global_step, best and os.path.normpath(best))


def path_in(folder: str, path: str) -> Optional[str]:
    """Return `path` as the Trainer compares it; None outside of `folder`."""
    inside = os.path.isdir(path) and os.path.realpath(os.path.dirname(path)) == os.path.realpath(folder)
    return os.path.join(folder, os.path.basename(path)) if inside else None


def read_random_states(folder: str) -> Any:
    """Return the states of NumPy's and Python's generators, or None."""
    path, content = os.path.join(folder, record.EPOCH_RNG), "The states of the random generators"
    if not os.path.exists(path):
        return None
    states = read_json(path, content)
    with file_errors(path, content):
        algorithm, keys, *rest = states["numpy"]
        version, state, gauss = states["python"]
        of_numpy, of_python = (algorithm, np.array(keys, dtype="uint32"), *rest), (version, tuple(state), gauss)
        np.random.RandomState().set_state(of_numpy)  # a trial
        random.Random().setstate(of_python)
    return of_numpy, of_python


def raising_errors(loader: paddle.io.DataLoader) -> paddle.io.DataLoader:
    """Return a DataLoader that raises its thread's errors; without workers, Paddle's waits forever."""
    cls: Any = type(loader)
    if getattr(cls, "__iter__", None) is not paddle.io.DataLoader.__iter__ or loader.num_workers:
        return loader
    from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess

    base: Any = _DataLoaderIterSingleProcess

    class Reader(base):
        error = None

        def _thread_loop(self, *args: Any) -> None:
            try:
                super()._thread_loop(*args)
            except BaseException as error:
                self.error = error
                self._exit_thread_unexpectedly()  # the waiting `next` gets a SystemError

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except SystemError as error:
                raise (self.error or error) from None

    raising: Any = object.__new__(type(cls.__name__, (cls,), {"__iter__": lambda self: Reader(self)}))
    vars(raising).update(vars(loader))
    return raising
