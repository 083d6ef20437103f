"""Shared by mixins and callbacks: the Trainer's classes, events, decisions of the main process, the logger."""

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from .._processes import together

__all__ = ["Args", "Control", "State", "Trainer"]

if TYPE_CHECKING:  # PaddleNLP's stand for PaddleFormers' too
    from paddlenlp.trainer import Trainer
    from paddlenlp.trainer import TrainerControl as Control
    from paddlenlp.trainer import TrainerState as State
    from paddlenlp.trainer import TrainingArguments as Args
else:  # base classes of the mixins: the real ones follow in the user's class
    Trainer = Args = State = Control = object


def check_mixed_in_first(cls: type, mixin: type, method: str) -> None:
    """Raise TypeError if `cls` inherits `method` from an unrelated base that precedes `mixin`."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    if not issubclass(owner, mixin):
        name = next(base.__name__ for base in cls.__mro__[1:] if issubclass(base, mixin))
        bases = ", ".join(base.__name__ for base in cls.__bases__)
        message = f"{name} must come first: class {cls.__name__}({name}, {owner.__name__})"
        raise TypeError(f"{message}. Received: class {cls.__name__}({bases})")


class Callback:
    """A TrainerCallback without the base class, which differs between packages."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


@contextlib.contextmanager
def listening(trainer: Trainer, **events: Callable[[], None]) -> Iterator[None]:
    """Call functions at events of a Trainer, such as `on_train_begin`, before the user's callbacks."""
    listener: Any = Callback()
    for event, call in events.items():
        setattr(listener, event, lambda *args, call=call, **kwargs: call())
    trainer.callback_handler.callbacks.insert(0, listener)
    try:
        yield
    finally:
        trainer.callback_handler.pop_callback(listener)


def decided_by_main(trainer: Trainer, ask: Callable[[], Any]) -> Any:
    """Return the result of `ask()` in the main process to all processes, or raise its error in all."""
    if trainer.args.world_size <= 1:
        return ask()
    _, answers = together(lambda: (None, ask() if trainer.is_world_process_zero() else None))
    return answers[0]


def logger_of(trainer: Trainer) -> Any:
    """Return the logger of the Trainer's package."""
    packages = {cls.__module__.partition(".")[0] for cls in type(trainer).__mro__}
    for package in ("paddlenlp", "paddleformers"):
        if package in packages:
            return importlib.import_module(f"{package}.utils.log").logger
    return logging.getLogger(__name__)
