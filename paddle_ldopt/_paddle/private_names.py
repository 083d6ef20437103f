"""Four ways to declare a private name of Paddle; the package's docstring explains them."""

import functools
import importlib
from typing import Any, Callable

import paddle

OPTIMIZER, ADAMW = "paddle.optimizer.Optimizer", "paddle.optimizer.AdamW"
FLEET = "paddle.distributed.fleet"
EVERY, FUSED = "Every optimizer", "The fused step (`fused=False` does without it)"
SAVING = "Saving for another layout"
PRIVATE: list[tuple[str, str, str]] = []  # (owner, name, feature) of all declarations; name "" stands for the owner


class MovedError(RuntimeError):
    """A private name of Paddle has moved, so a feature is not available."""

    def __init__(self, owner: str, name: str, feature: str) -> None:
        super().__init__(
            f"{feature} is not available: Paddle {paddle.__version__} has moved a private name that it needs. Use "
            f"Paddle 3.1 to 3.3, or a newer paddle_ldopt. Received: no {owner}{'.' if name else ''}{name}"
        )


def attribute(owner: str, name: str, feature: str, optional: bool = False) -> Callable[[Any], Any]:
    """Return a getter of an attribute of instances of `owner`; `optional` gives None for other classes without it."""
    PRIVATE.append((owner, name, feature))

    def get(instance: Any) -> Any:
        try:
            return getattr(instance, name, None) if optional else getattr(instance, name)
        except AttributeError:
            raise MovedError(owner, name, feature) from None

    return get


def declare(owner: str, feature: str, *names: str) -> None:
    """Declare names that are used directly elsewhere, such as methods that a subclass overrides."""
    PRIVATE.extend((owner, name, feature) for name in names)


def part(owner: str, name: str, feature: str) -> Callable[..., Any]:
    """Return `owner.name`, such as a method to call with an instance; if missing, a function that raises."""
    PRIVATE.append((owner, name, feature))
    try:
        return getattr(object_at(owner), name)
    except (AttributeError, ImportError):

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise MovedError(owner, name, feature)

        return missing


def lazy(path: str, feature: str) -> Callable[[], Any]:
    """Return a function that imports and returns the object at a dotted path."""
    PRIVATE.append((path, "", feature))

    @functools.lru_cache(None)
    def get() -> Any:
        try:
            return object_at(path)
        except (AttributeError, ImportError):
            raise MovedError(path, "", feature) from None

    return get


def object_at(path: str) -> Any:
    """Return the module, class or function at a dotted path."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ImportError:
        if not module:
            raise
        return getattr(object_at(module), name)
