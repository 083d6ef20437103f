"""What several processes do together: where one fails, all raise, because the others would wait for it."""

from typing import Any, Callable, Optional, TypeVar

import paddle.distributed as dist

__all__ = ["Outcome", "gathered", "together"]

T = TypeVar("T")
Outcome = tuple[Optional[Exception], Any]  # of a process: its error, and what it tells the others


def gathered(mine: T, group: Any = None) -> list[T]:
    """Return what each process of a group has, in their order."""
    if dist.get_world_size(group) == 1:
        return [mine]
    found: list[T] = []
    dist.all_gather_object(found, mine, group=group)
    found[dist.get_rank(group)] = mine  # an error with its traceback
    return found


def together(act: Callable[[], Any], tell: Callable[[Outcome], list[Outcome]] = gathered) -> tuple[Any, list[Any]]:
    """Return the first result of `act()`, and a list of its second result in all processes; it may return None.

    If `act` raises in one process, all of them raise the error of the first that failed. `tell` takes the outcome of
    this process, and returns those of all.
    """
    problem, own, shared = None, None, None
    try:
        own, shared = act() or (None, None)
    except Exception as error:
        problem = error
    outcomes = tell((problem, shared))
    for failed, _ in outcomes:
        if failed is not None:
            raise failed
    return own, [second for _, second in outcomes]
