"""Shared by mixins and callbacks: events, agreement of all processes, the logger, plain names."""

import importlib
import logging
from typing import Any, Callable

from .._processes import together

_Trainer: Any = object  # for type checkers: the Trainer that follows in the bases


def name_of(choice: Any) -> str:
    """Return the name of an optimizer, schedule or strategy given as a string or as a member of the Trainer's enum."""
    return str(getattr(choice, "value", choice))


def check_mixed_in_first(cls: type, mixin: type, method: str) -> None:
    """Raise TypeError if `cls` inherits `method` from an unrelated base that precedes `mixin`."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    if not issubclass(owner, mixin):
        name = next(base.__name__ for base in cls.__mro__[1:] if issubclass(base, mixin))
        bases = ", ".join(base.__name__ for base in cls.__bases__)
        advice = f"{name} must come first: class {cls.__name__}({name}, {owner.__name__})"
        raise TypeError(f"{advice}. Received: class {cls.__name__}({bases})")


class Callback:
    """A TrainerCallback without the base class, which differs between packages."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


class TrainerMixin(_Trainer):
    """The base of both mixins."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does."""
        events: Any = Callback()
        events.on_train_begin = lambda *args, **kwargs: self._begin_training()
        events.on_epoch_begin = lambda *args, **kwargs: self._begin_epoch()
        self.callback_handler.callbacks.insert(0, events)  # at the front, so that the user's callbacks come last
        try:
            return super().train(*args, **kwargs)
        finally:
            self.callback_handler.pop_callback(events)

    def _begin_training(self) -> None:
        """Called before the first step, with the training's state loaded."""

    def _begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""

    def _agree(self, ask: Callable[[], Any]) -> Any:
        """Return the result of `ask()` in the main process to all processes, or raise its error in all."""
        if self.args.world_size <= 1:
            return ask()
        _, answers = together(lambda: (None, ask() if self.is_world_process_zero() else None))
        return answers[0]

    def _tell(self, line: str) -> None:
        if self.is_world_process_zero():
            self._logger.info(line)

    @property
    def _logger(self) -> Any:
        """The logger of the Trainer's package."""
        packages = {cls.__module__.partition(".")[0] for cls in type(self).__mro__}
        for package in ("paddlenlp", "paddleformers"):
            if package in packages:
                return importlib.import_module(f"{package}.utils.log").logger
        return logging.getLogger(__name__)
