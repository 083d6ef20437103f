"""Updates by Paddle's operations, in batches of parameters of one shape, type and set of options."""

import collections
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import paddle
from paddle import Tensor

from ... import _paddle
from .batches import Batch, cast
from .memory import StateSnapshot, addresses, same_shapes, view
from .updates import Task, check_gradient_fits, in_shape, update
from .whole_step import StepInputs, all_parameters, create_missing_state, current_lr, scaled_lr, with_gradients

if TYPE_CHECKING:
    from .._base.rule_optimizer import RuleOptimizer


class Operations:
    """The updates of one optimizer with a rule by Paddle's operations: its batches, and its plan of a whole step."""

    takes_shards = False  # whether an update of a shard is that of a whole parameter

    def __init__(self) -> None:
        self._batches: dict[tuple[str, ...], Batch] = {}  # names of the parameters -> the batch
        self._plan: Optional[OperationsPlan] = None  # of the last whole step

    def __deepcopy__(self, memo: Any) -> "Operations":
        return type(self)()  # the copied optimizer has tensors of its own

    def supports_step(self, optimizer: "RuleOptimizer") -> bool:
        """Return whether the C library updates no parameter, and shards, if there are any, are supported.

        A clipping class of the user may drop gradients or change their types, as only Paddle's loop expects.
        """
        if not (self.takes_shards or optimizer.finder.is_whole(_paddle.parameter_list(optimizer))):
            return False
        if not all(map(_is_paddles, (group.get("grad_clip") for group in _groups(optimizer)))):
            return False
        params = [] if optimizer.fused is False else with_gradients(all_parameters(optimizer))
        return bool(optimizer.fused_step.leaves_all_to_paddle(optimizer, params))

    def take(self, optimizer: "RuleOptimizer", inputs: StepInputs) -> bool:
        """Take a whole step; return False, with nothing changed, if some state has no batch."""
        with paddle.no_grad():
            if self._plan is None or not self._plan.is_valid(optimizer, inputs):
                self._plan = self._planned(optimizer, inputs)
            if self._plan is None:
                return False
            self._plan.run(optimizer, inputs)
        return True

    def _planned(self, optimizer: "RuleOptimizer", inputs: StepInputs) -> "Optional[OperationsPlan]":
        """Return the plan of a step after the checks of Paddle's loop; None if some state has no batch."""
        for param, grad in zip(inputs.params, inputs.grads):
            check_gradient_fits(optimizer, param, grad)
            optimizer.check_shape(param)
        optimizer.check_in_step(inputs.params)
        create_missing_state(optimizer)
        rates = zip(inputs.factors, inputs.ratios.tolist())
        rows = zip(inputs.params, inputs.grads, rates)
        tasks = [Task(p, grad, optimizer.chosen_options(p), rate) for p, grad, rate in rows if rate[1] != 0.0]
        split = self._split(optimizer, tasks)
        batches = [batch for batch, _ in split if batch is not None]
        return OperationsPlan(optimizer, inputs, batches) if len(batches) == len(split) else None

    def update(self, optimizer: "RuleOptimizer", tasks: list[Task]) -> None:
        """Do collected tasks."""
        for batch, members in self._split(optimizer, tasks):
            if batch is None:
                update(optimizer, members[0])
            else:
                batch.update([task.grad for task in members], batch.lr_of(members), members[0].options)

    def _split(self, optimizer: "RuleOptimizer", tasks: list[Task]) -> list[tuple[Optional[Batch], list[Task]]]:
        """Return (batch, its tasks) for batches of at most `batch_bytes`, and (None, [task]) for other tasks."""
        if not paddle.in_dynamic_mode():
            return [(None, [task]) for task in tasks]
        units: list[tuple[Optional[Batch], list[Task]]] = []
        tasks_by_form: dict[Any, list[Task]] = {}
        sharing: collections.Counter[Any] = collections.Counter()  # parameters of the same memory take turns
        for task in tasks:
            param = task.param
            sharing[param.data_ptr()] += 1
            if param.is_dist() or (task.shard is not None and task.shard.slice_size is not None):
                units.append((None, [task]))
            else:
                turn = sharing[param.data_ptr()]
                key = turn, tuple(param.shape), param.dtype, task.grad.dtype, *task.options.values()
                tasks_by_form.setdefault(key, []).append(task)
        for alike in tasks_by_form.values():
            param = alike[0].param
            size = math.prod(param.shape) * (8 if _paddle.is_float64(param) else 4)
            most = 2**21 if param.place.is_cpu_place() else 2**26  # larger results get new memory pages on a CPU
            limit = max((most if optimizer.batch_bytes is None else optimizer.batch_bytes) // size, 1)
            for begin in range(0, len(alike), limit):
                together = alike[begin : begin + limit]
                batch = self._batch(optimizer, [task.param for task in together])
                units += [(None, [task]) for task in together] if batch is None else [(batch, together)]
        return units

    def _batch(self, optimizer: "RuleOptimizer", params: list[Tensor]) -> Optional[Batch]:
        """Return the batch of these parameters, reused while it is valid; None if their state is not contiguous."""
        names = tuple(param.name for param in params)
        batch = self._batches.get(names)
        if batch is not None and all(map(operator.is_, batch.params, params)) and batch.is_valid():
            return batch
        for old in [old for old in self._batches if not set(names).isdisjoint(old)]:
            self._batches.pop(old).release(set(old) - set(names))
        batch = Batch(optimizer, params)
        if not batch.is_contiguous():
            return None
        batch.build()
        self._batches[names] = batch
        return batch


class Unit(NamedTuple):
    """A batch, and the rates of its parameters."""

    batch: Batch
    rows: list[int]  # of its parameters in `StepInputs`
    factor: Any  # a number, or a Tensor with one element per parameter; 0 where the group has its own rate
    ratio: Any
    has_group_lr: bool  # whether a group has its own rate


class OperationsPlan:
    """The parameters that a whole step updates together, and all inputs on which this choice depends."""

    def __init__(self, optimizer: "RuleOptimizer", inputs: StepInputs, batches: list[Batch]) -> None:
        forms = {tuple(p.shape): view(p) for p in inputs.params}
        self._inputs = inputs.without_gradients([forms[tuple(p.shape)] for p in inputs.params])
        self._settings, self._state = _settings(optimizer), StateSnapshot(optimizer)
        self._state_at = addresses(self._state.tensors)
        self._has_weight_decay = list(map(optimizer.has_weight_decay, inputs.params))
        row = {param.name: row for row, param in enumerate(inputs.params)}
        clips = [(g.get("grad_clip"), [row[p.name] for p in g["params"] if p.name in row]) for g in _groups(optimizer)]
        self._clips = [(clip, rows) for clip, rows in clips if clip is not None and rows]
        dtype, self._units = current_lr(optimizer).dtype, []
        for batch in batches:
            rows = [row[param.name] for param in batch.params]
            with_group_lr = [optimizer.group_lr(param) is not None for param in batch.params]
            factor = batch.spread([0.0 if has else inputs.factors[row] for row, has in zip(rows, with_group_lr)], dtype)
            ratio = batch.spread([inputs.ratios[row] for row in rows], dtype)
            self._units.append(Unit(batch, rows, factor, ratio, any(with_group_lr)))

    def is_valid(self, optimizer: "RuleOptimizer", inputs: StepInputs) -> bool:
        """Return whether only the values of gradients, rates and counts have changed."""
        then, settings, asked = self._inputs, _settings(optimizer), _paddle.weight_decay_fun(optimizer) is not None
        return (
            len(settings) == len(self._settings)
            and all(map(operator.is_, settings, self._settings))
            and inputs.have_same_layout(then)
            and inputs.factors == then.factors
            and inputs.ratios.tobytes() == then.ratios.tobytes()
            and (not asked or list(map(optimizer.has_weight_decay, inputs.params)) == self._has_weight_decay)
            and self._state.is_unchanged()
            and addresses(self._state.tensors) == self._state_at
        )

    def run(self, optimizer: "RuleOptimizer", inputs: StepInputs) -> None:
        """Take a step."""
        params, grads, rate = inputs.params, list(inputs.grads), current_lr(optimizer).reshape([])
        for clip, rows in self._clips:
            clipped = {param.name: grad for param, grad in clip([(params[row], grads[row]) for row in rows])}
            for row in rows:
                grads[row] = clipped[params[row].name]
            if not same_shapes(grads, params):
                grads = list(map(in_shape, grads, params))
        for batch, rows, factor, ratio, has_group_lr in self._units:
            lr = scaled_lr(rate, factor, ratio)
            if has_group_lr:  # its factor is 0
                fixed = batch.spread([optimizer.group_lr(param) or 0.0 for param in batch.params], rate.dtype)
                lr = lr + scaled_lr(paddle.full_like(rate, fixed) if isinstance(fixed, float) else fixed, 1.0, ratio)
            options = optimizer.step_options(batch.params[0])
            batch.update([grads[row] for row in rows], cast(lr, batch.dtype), options)


def _groups(optimizer: "RuleOptimizer") -> list[dict[str, Any]]:
    """Return the parameter groups; without groups, one of all parameters."""
    params = _paddle.parameter_list(optimizer)
    if isinstance(params[0], dict):
        return list(_paddle.param_groups(optimizer))
    return [{"params": params, "grad_clip": _paddle.grad_clip(optimizer)}]


def _is_paddles(clip: Any) -> bool:
    return clip is None or type(clip).__module__.startswith("paddle.")


def _settings(optimizer: "RuleOptimizer") -> list[Any]:
    """Return the settings that decide which parameters are updated together, to be compared by identity."""
    batch_bytes = getattr(optimizer, "batch_bytes", None)  # AdamWDL has none
    settings = [_paddle.weight_decay_fun(optimizer), batch_bytes, *optimizer.chosen_options().values()]
    for group in _groups(optimizer):
        settings += [*group, *group.values()]
    return settings
