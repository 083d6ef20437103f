"""Repeats the last step by operations: only the inputs that may have changed are read again."""

import operator
from typing import Any, NamedTuple, Optional

import paddle

from ... import _paddle
from .._fused.step_inputs import StepInputs
from .batches import Batch, _cast
from .declared import compute_dtype
from .step import Task
from .step_functions import StepFunction
from .updates import update

_Tensor = paddle.Tensor


class Unit(NamedTuple):
    """A batch of parameters, or a single one."""

    batch: Optional[Batch]
    task: Task  # of the first parameter, without its gradient
    rows: list[int]  # of the parameters in `StepInputs`
    factor: Any  # of their rates: a number, or a Tensor with one for each; 0 where the group's rate overrides it
    ratio: Any
    own: Any  # rates of the groups times the ratios, a Tensor; None if no group has a rate


class RepeatedStep:
    """The updates of a step and every input that they depend on."""

    def __init__(self, optimizer: Any, units: list[tuple[Optional[Batch], list[Task]]], seen: StepInputs) -> None:
        self._list, self._groups = _paddle.parameter_list(optimizer), _settings(optimizer)
        self._every = _all_parameters(optimizer)
        self._seen = seen._replace(grads=[])  # which would keep them alive
        self._ratios = optimizer._ratio_list(self._every, seen.frozen)
        self._decayed, self._defaults = list(map(optimizer.has_weight_decay, seen.params)), dict(optimizer._defaults)
        alike = {tuple(param.shape): _paddle.view_of(param.detach(), list(param.shape)) for param in seen.params}
        self._shapes = [alike[tuple(param.shape)] for param in seen.params]
        row = {param.name: row for row, param in enumerate(seen.params)}
        dtype = _paddle.global_rate(optimizer)().dtype
        self.units = [
            self._unit(optimizer, batch, tasks, [row[task.param.name] for task in tasks], dtype)
            for batch, tasks in units
        ]
        self._clips = _clips(optimizer, row)

    def _unit(self, optimizer: Any, batch: Any, tasks: list[Task], rows: list[int], dtype: Any) -> Unit:
        seen, first = self._seen, tasks[0]._replace(grad=None)
        spread = (lambda values, dtype: values[0]) if batch is None else batch.spread
        ratios = [float(self._ratios[seen.live[i]]) for i in rows]
        rates = [optimizer.own_rate(task.param) for task in tasks]
        factors = [float(seen.factors[i]) if rate is None else 0.0 for i, rate in zip(rows, rates)]
        own = None
        if any(rate is not None for rate in rates):
            own = paddle.to_tensor([rate or 0.0 for rate in rates], dtype) * paddle.to_tensor(ratios, dtype)
            own = own.reshape([]) if len(tasks) == 1 else own.reshape([-1, *[1] * len(first.param.shape)])
        return Unit(batch, first, rows, spread(factors, dtype), spread(ratios, dtype), own)

    def __deepcopy__(self, memo: Any) -> None:
        """Return None: the copied optimizer has other parameters."""

    @classmethod
    def of(cls, optimizer: Any, units: list[tuple[Optional[Batch], list[Task]]]) -> "Optional[RepeatedStep]":
        """Return the step just taken, None if it depends on inputs that `again` does not check."""
        if not _paddle.parameter_list(optimizer) or not optimizer._may_be_repeated():
            return None
        every = _all_parameters(optimizer)
        if any(isinstance(value, StepFunction) for value in _settings(optimizer)):
            return None
        seen = StepInputs.of(every)
        moved = [task.param.name for _, tasks in units for task in tasks]
        if seen is None or not {param.name for param in seen.params}.issuperset(moved):
            return None
        step = cls(optimizer, units, seen)
        # a scheduled weight decay that is 0 now puts decayed and other parameters into one batch
        constant = isinstance(optimizer._defaults.get("weight_decay", 0.0), float)
        mixed = any(len({step._decayed[row] for row in unit.rows}) > 1 for unit in step.units)
        all_moved = len(moved) == sum(step._ratios[i] != 0.0 for i in seen.live)
        return step if all_moved and (constant or not (mixed or step._groups)) else None

    def again(self, optimizer: Any) -> Optional[StepInputs]:
        """Return the inputs of the next step if only the values of the gradients have changed, otherwise None."""
        if self._list is not _paddle.parameter_list(optimizer) or self._defaults != optimizer._defaults:
            return None
        groups = _settings(optimizer)
        if len(groups) != len(self._groups) or not all(map(operator.is_, groups, self._groups)):
            return None
        last, seen = self._seen, StepInputs.of(self._every)
        if seen is None or (seen.live, seen.frozen, seen.types) != (last.live, last.frozen, last.types):
            return None
        same = seen.params_at == last.params_at and seen.sizes == last.sizes and seen.factors == last.factors
        if not same or not all(map(_Tensor.is_same_shape, seen.params, self._shapes)):
            return None
        asked = _paddle.weight_decay_fun(optimizer) is not None
        if asked and list(map(optimizer.has_weight_decay, seen.params)) != self._decayed:
            return None
        if optimizer._ratio_list(self._every, seen.frozen) != self._ratios:
            return None
        return seen if all(unit.batch is None or unit.batch.holds() for unit in self.units) else None

    def repeat(self, optimizer: Any, seen: StepInputs) -> None:
        """Take the step again with new gradients."""
        grads = list(seen.grads)
        for clip, rows in self._clips if self._groups else [(_paddle.grad_clip(optimizer), range(len(grads)))]:
            if clip is not None and rows:
                clipped = {param.name: grad for param, grad in clip([(seen.params[i], grads[i]) for i in rows])}
                for i in rows:
                    grads[i] = clipped[seen.params[i].name]
        _paddle.create_rate(optimizer)()
        rate = _paddle.global_rate(optimizer)().reshape([])
        decayed = optimizer.step_options()
        plain = {**decayed, "weight_decay": 0.0} if "weight_decay" in decayed else decayed
        for batch, task, rows, factor, ratio, own in self.units:
            lr = rate
            for scale in (factor, ratio):
                lr = lr if isinstance(scale, float) and scale == 1.0 else lr * scale
            lr = lr if own is None else lr + own
            options = decayed if self._decayed[rows[0]] else plain
            if self._groups:
                options = optimizer.step_options(task.param)
            if batch is None:
                lr = lr.astype(compute_dtype(task.param))
                update(optimizer, task._replace(grad=grads[rows[0]], lr=lr, options=options))
            else:
                batch.update([grads[row] for row in rows], _cast(lr, batch.dtype), options)


def _all_parameters(optimizer: Any) -> list[Any]:
    every = _paddle.parameter_list(optimizer)
    return _paddle.flatten_groups(_paddle.param_groups(optimizer)) if isinstance(every[0], dict) else every


def _settings(optimizer: Any) -> list[Any]:
    """Return the parameters, keys and values of all parameter groups in one list, [] without groups."""
    groups, found = _paddle.param_groups(optimizer), []
    if isinstance(groups[0], dict):
        for group in groups:
            found += [*group, *(value for key, value in group.items() if key != "params"), *group["params"]]
    return found


def _clips(optimizer: Any, row: dict[str, int]) -> list[tuple[Any, list[int]]]:
    """Return (`grad_clip`, rows of the parameters) of each parameter group."""
    groups = _paddle.param_groups(optimizer)
    if not isinstance(groups[0], dict):
        return []
    return [
        (group.get("grad_clip"), [row[param.name] for param in group["params"] if param.name in row])
        for group in groups
    ]
