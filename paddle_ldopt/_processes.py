"""Actions of several processes: an error in one is raised in all."""

import json
import pickle
from typing import Any, Callable, Optional, TypeVar

import paddle.distributed as dist
from paddle.optimizer import Optimizer

from ._compat import unwrap

T = TypeVar("T")


def gathered(mine: T, group: Any = None) -> list[T]:
    if (dist.get_world_size() if group is None else group.nranks) == 1:
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
            pickle.loads(pickle.dumps(error))
        except Exception:
            problem = RuntimeError(f"{type(error).__name__}: {error}")
    outcomes = gathered((problem, message))
    for failed, _ in outcomes:
        if failed is not None:
            raise failed
    return result, [second for _, second in outcomes]


def check_same_options(optimizer: Optimizer, group: Any = None) -> None:
    inner = unwrap(optimizer)
    given = vars(inner).get("_options", inner._default_dict)
    plain = (type(None), bool, int, float, str, tuple, list)
    mine = {name: value for name, value in given.items() if isinstance(value, plain)}
    own_rate = getattr(inner, "sets_own_lr", False)  # such a rate may be that of a parameter
    mine.update(optimizer=type(inner).__name__, learning_rate=None if own_rate else inner.get_lr())
    decay = getattr(inner, "layerwise_decay", 1.0)
    mine["layerwise_decay"] = json.dumps(decay.to_dict() if hasattr(decay, "to_dict") else decay, sort_keys=True)
    first, *others = gathered(mine, group)  # [mine] in a group of one
    zero, *ranks = range(len(others) + 1) if group is None else group.ranks
    for rank, theirs in zip(ranks, others):
        for name in {**first, **theirs}:
            if first.get(name) != theirs.get(name):
                received = f"{name}={first.get(name)!r} in process {zero} and {theirs.get(name)!r} in process {rank}"
                raise ValueError(f"All processes must give the optimizer the same options. Received: {received}")
