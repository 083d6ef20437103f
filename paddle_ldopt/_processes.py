"""Actions of several processes: an error in one is raised in all."""

import pickle
from typing import Any, Callable, Optional, TypeVar

import paddle.distributed as dist

T = TypeVar("T")


def gathered(mine: T, group: Any = None) -> list[T]:
    if dist.get_world_size(group) == 1:
        return [mine]
    values: list[T] = []
    dist.all_gather_object(values, mine, group=group)
    values[dist.get_rank(group)] = mine  # keeps the traceback of an error
    return values


def together(act: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return the first result of `act()` here, and the second results of all processes; it may return None.

    If `act` raises, all processes raise the error of the first that failed.
    """
    problem: Optional[Exception] = None
    result, message = None, None
    try:
        result, message = act() or (None, None)
    except Exception as error:
        problem = error
        try:
            pickle.dumps(error)
        except Exception:
            problem = RuntimeError(f"{type(error).__name__}: {error}")
    outcomes = gathered((problem, message))
    for failed, _ in outcomes:
        if failed is not None:
            raise failed
    return result, [second for _, second in outcomes]
