"""A step by operations that is like the last one: it asks nothing of each parameter again but what may have changed."""

from typing import Any, NamedTuple, Optional

import paddle

from ... import _paddle
from .._fused.seen import Seen
from .batches import Batch
from .collecting import Task
from .declared import compute_dtype

__all__ = ["RepeatedStep"]

_Tensor = paddle.Tensor


class Unit(NamedTuple):
    """Parameters that are updated together, or one that goes alone."""

    batch: Optional[Batch]
    task: Task  # of the first of them, without its gradient
    rows: list[int]  # of the parameters in `Seen`
    factor: Any  # of their rates: a number, or a Tensor with one for each
    ratio: Any


class RepeatedStep:
    """What a step of a plain list of parameters did, and all that it depended on."""

    def __init__(self, optimizer: Any, units: list[tuple[Optional[Batch], list[Task]]], seen: Seen) -> None:
        self.every = _paddle.parameter_list(optimizer)
        self._seen = seen._replace(grads=[])  # they are not to be kept alive
        self._ratios = optimizer._ratios_now(self.every, seen.frozen)
        self._decayed, self._defaults = list(map(optimizer.has_weight_decay, seen.params)), dict(optimizer._defaults)
        self._shapes = [_paddle.view_of(param.detach(), list(param.shape)) for param in seen.params]
        row = {param.name: row for row, param in enumerate(seen.params)}
        rate = _paddle.global_rate(optimizer)()
        self.units = []
        for batch, tasks in units:
            rows = [row[task.param.name] for task in tasks]
            factor: Any = [float(seen.factors[i]) for i in rows]
            ratio: Any = [float(self._ratios[seen.live[i]]) for i in rows]
            spread = (lambda values, dtype: values[0]) if batch is None else batch.spread
            first = tasks[0]._replace(grad=None)
            self.units.append(Unit(batch, first, rows, spread(factor, rate.dtype), spread(ratio, rate.dtype)))

    def __deepcopy__(self, memo: Any) -> None:
        """Return nothing: the parameters of a copied optimizer are others."""

    @classmethod
    def of(cls, optimizer: Any, units: list[tuple[Optional[Batch], list[Task]]]) -> "Optional[RepeatedStep]":
        """Return it, None if the step depended on more than it can see."""
        every = _paddle.parameter_list(optimizer)
        if not every or isinstance(every[0], dict) or not optimizer._may_be_repeated():
            return None
        seen, moved = Seen.of(every), [task.param.name for _, tasks in units for task in tasks]
        if seen is None or not {param.name for param in seen.params}.issuperset(moved):
            return None
        step = cls(optimizer, units, seen)
        # a weight decay that is a function of the step may be 0 in this one, for those that are not decayed too
        constant = isinstance(optimizer._defaults.get("weight_decay", 0.0), float)
        mixed = any(len({step._decayed[row] for row in unit.rows}) > 1 for unit in step.units)
        all_moved = len(moved) == sum(step._ratios[i] != 0.0 for i in seen.live)
        return step if all_moved and (constant or not mixed) else None

    def again(self, optimizer: Any) -> Optional[Seen]:
        """Return the gradients of the next step if it is like this one otherwise."""
        if self.every is not _paddle.parameter_list(optimizer) or self._defaults != optimizer._defaults:
            return None
        last, seen = self._seen, Seen.of(self.every)
        if seen is None or (seen.live, seen.frozen, seen.types) != (last.live, last.frozen, last.types):
            return None
        same = seen.params_at == last.params_at and seen.sizes == last.sizes and seen.factors == last.factors
        if not same or not all(map(_Tensor.is_same_shape, seen.params, self._shapes)):
            return None
        asked = _paddle.weight_decay_fun(optimizer) is not None
        if asked and list(map(optimizer.has_weight_decay, seen.params)) != self._decayed:
            return None
        if optimizer._ratios_now(self.every, seen.frozen) != self._ratios:
            return None
        return seen if all(unit.batch is None or unit.batch.holds() for unit in self.units) else None

    def take(self, optimizer: Any, seen: Seen) -> None:
        """Take the step again with other gradients."""
        grads, clip = seen.grads, _paddle.grad_clip(optimizer)
        if clip is not None:
            clipped = {param.name: grad for param, grad in clip(list(zip(seen.params, grads)))}
            grads = [clipped[param.name] for param in seen.params]
        _paddle.create_rate(optimizer)()
        rate = _paddle.global_rate(optimizer)().reshape([])
        decayed = optimizer.fused_options()
        plain = {**decayed, "weight_decay": 0.0} if "weight_decay" in decayed else decayed
        for batch, task, rows, factor, ratio in self.units:
            lr = rate
            for scale in (factor, ratio):
                lr = lr if isinstance(scale, float) and scale == 1.0 else lr * scale
            options = decayed if self._decayed[rows[0]] else plain
            if batch is None:
                lr = lr.astype(compute_dtype(task.param))
                optimizer._update_alone(task._replace(grad=grads[rows[0]], lr=lr, options=options))
            else:
                batch.update([grads[row] for row in rows], lr.astype(batch.dtype), options)
