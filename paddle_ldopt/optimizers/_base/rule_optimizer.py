"""What all optimizers written as a pure update rule share: casts, master weights, state, write-back.

A rule is a function of tensors in float32 (float64 for float64 parameters), so that it reads like its paper:

    def rule(param, grad, state, lr, *, piece, beta1, weight_decay):
        moment = beta1 * state["moment1"] + (1 - beta1) * grad
        (square,) = yield [(moment * moment).sum()]       # sums over the whole tensor, wherever its pieces are
        return param - lr * moment / square.sqrt(), {"moment1": moment}

It writes nothing. Each `yield [partial sums]` is answered with the sums over all pieces of the tensor (see `_pieces`);
a rule that needs none has no `yield`.

In dygraph a step first collects its updates, as a list of `Task`, and then does them in `_update`: parameters that a
process has all of one after the other, those in pieces side by side. In a graph each is done when it is met.
"""

import math
from collections.abc import Generator
from typing import Any, Callable, ClassVar, Optional

import numpy as np
import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ... import _paddle
from ..._checks import checked_number, checked_state
from .._fused.step import FusedMixin
from .._pieces import Piece, PieceFinder, answer_locally, answer_together
from ..collecting import Task
from ..options import BATCHED
from ..states import COLUMN, ELEMENT, ROW, SCALAR, STEP
from .batches import Batches
from .declared import DeclaredMixin, compute_dtype, rule_shape
from .layerwise import LayerwiseMixin
from .repeated import RepeatedStep
from .sharded_state import ShardedStateMixin

__all__ = ["STEP", "RuleOptimizer", "Task", "Update", "Values", "checked_rate", "largest"]

_INFIX = "_fp32_master_0_"  # the only spelling of state names that PaddleNLP's unified checkpoint splits generically
Values = dict[str, Any]  # by name, of states or of options
Update = Generator[list[Any], list[Any], tuple[Any, Values]]  # a running rule; one without sums returns the result


class RuleOptimizer(DeclaredMixin, FusedMixin, ShardedStateMixin, LayerwiseMixin, Optimizer):
    """Base of the optimizers whose update is a pure function: a subclass declares itself and has a `rule`.

    It takes the arguments that all optimizers take (see `AdamWDL`), the options that the class declares, and

    Args:
        batch_bytes: parameters of one shape, type and set of options are updated together by Paddle's operations, at
            most so many bytes of them at once. Copies of them and of their gradients, and what the rule computes, need
            up to twelve times as much for a moment. A larger parameter is updated alone, as all are with 0. None: 64 MB
            on an accelerator, 2 MB on a CPU, which takes longer over larger stacks than over their parts.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        *,
        grad_clip: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        multi_precision: bool = False,
        name: Optional[str] = None,
        fused: Optional[bool] = None,
        batch_bytes: Optional[int] = None,
        **arguments: Any,
    ) -> None:
        rate = self._read_rate(learning_rate)
        self.batch_bytes = BATCHED["batch_bytes"].checked(batch_bytes, "batch_bytes")
        parameters = self._read_arguments(parameters, arguments, apply_decay_param_fun, multi_precision, fused)
        self._finder, self._batches = PieceFinder(_paddle.flatten_groups(parameters or [])), Batches()
        _paddle.set_attributes(self, param_groups=None, multi_precision=multi_precision)
        _paddle.set_attributes(self, apply_decay_param_fun=apply_decay_param_fun)
        # weight_decay=None: Paddle would turn it into an L2 penalty on the gradient, beside our own
        super().__init__(self._first_rate(rate, parameters), parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    # ---- what a subclass says

    rule: ClassVar[Callable[..., Update]]
    _last: Optional[RepeatedStep] = None  # if it was a step by operations

    def own_rate(self, param: Any) -> Optional[float]:
        """Return the rate that the parameter's group has instead of the optimizer's, None if it has none."""
        return self.group_of(param).get("lr")

    def shown_rate(self, param: Any, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return (rate of the next step, greatest rate ahead) of a parameter, each None if it is not known beforehand.

        None if the rate is `learning_rate` times `factor`, the parameter's layer and group.
        """
        return None

    @property
    def sets_own_rate(self) -> bool:
        """Whether the rate comes from the optimizer's own steps, so that a scheduler beside it has no effect."""
        return False

    def _read_rate(self, learning_rate: Any) -> Any:
        """Return the rate that the constructor was given, checked."""
        return checked_rate(learning_rate, "learning_rate")

    def _first_rate(self, rate: Any, parameters: Any) -> Any:
        """Return the rate as Paddle takes it, a float or a scheduler; the options are known by now."""
        return rate

    # ---- groups

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        # hide the decay from Paddle, which would make an L2 penalty of it
        hidden = {"weight_decay": param_group.pop("weight_decay")} if "weight_decay" in param_group else {}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    def _update_param_group(self, parameters: dict[str, Any]) -> Any:
        return parameters["params"]

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        lr, own = super()._create_param_lr(param_and_grad), self.own_rate(param_and_grad[0])
        return lr if own is None else paddle.full_like(lr, own) * self.layerwise_ratio(param_and_grad[0])

    # ---- state

    def _known_names(self) -> Any:
        return self._finder.params

    def whole_shape(self, param: Any) -> list[int]:
        """Return the shape of the whole tensor that a parameter is, or that it is a piece of."""
        return list(self._finder.shape(param))

    def state_layout(self, param: Any) -> dict[str, Any]:
        """Return state name -> (dtype, shape) in which a parameter's state is stored, the count of its updates too."""
        # not []: PaddleNLP's unified checkpoints cannot be read with that
        layout = {name: (dtype, shape or [1]) for name, (dtype, shape) in super().state_layout(param).items()}
        return {**layout, STEP: (compute_dtype(param), [1])}

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for param in parameters["params"] if isinstance(parameters, dict) else parameters:
            self.check_type(param)
            if param.name in _paddle.with_state(self):
                continue
            self.check_shape(param)
            other = [name for name, kind in self.state_kinds(param).items() if kind != ELEMENT]
            if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
                raise ValueError(
                    "A static graph (`dist.to_static`) places all state of a DistTensor as if it had its shape: train "
                    "in dygraph, or use AdamWDL, AdamWeightDecay or Lamb. "
                    f"Received: {type(self).__name__} with state {', '.join(other)} of '{param.name}'"
                )
            owner = _paddle.new_master(self)(param) if self.has_master(param) else param
            for name, (dtype, shape) in self.state_layout(param).items():
                _paddle.new_state(self)(name, owner, fill_value=0.0, dtype=_paddle.state_dtype(dtype), shape=shape)
            _paddle.with_state(self).add(param.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; named so that PaddleNLP's unified checkpoints can hold it.

        Raises:
            ValueError: sharding with `split_param` asks for it to place rows and columns as if they were elements.
        """
        if _paddle.is_called_by("sharded_state_dict") and self._finder.is_sliced(_paddle.parameter_list(self)):
            placed = {kind for param in self._finder.params.values() for kind in self.state_kinds(param).values()}
            if placed & {ROW, COLUMN}:
                raise ValueError(
                    "Paddle's `sharded_state_dict` for `split_param` takes all state for elements and would save rows "
                    "and columns in wrong places: use `paddle_ldopt.parallel.save_checkpoint`. "
                    f"Received: {type(self).__name__} with states {', '.join(sorted(self._state_names()))}"
                )
        # Paddle forgets what was loaded for parameters that have had no gradient since
        state = {**_paddle.waiting_state(self), **super().state_dict()}
        names = {*_paddle.accumulators(self), *(_paddle.prefixed(self, name) for name in self._state_names())}
        return {_unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, with "master_weights" and "LR_Scheduler" if there are any."""
        weights = checked_state(state_dict).get("master_weights")  # what is no dict is refused below
        names = {getattr(weight, "name", None) for weight in weights.values()} if isinstance(weights, dict) else set()
        plain = {}
        for key, value in state_dict.items():
            owner, infix, rest = str(key).partition(_INFIX)
            own = infix and f"{owner}_fp32_master_0" not in names
            if isinstance(value, paddle.Tensor) and not value.shape:
                value = value.reshape([1])
            plain[f"{owner}_{rest}" if own else key] = value
        super().set_state_dict(plain)

    load_state_dict = set_state_dict

    def _state_names(self) -> set[str]:
        """Return the names of the states of all parameters."""
        return {STEP, *(name for param in self._finder.params.values() for name in self.state_kinds(param))}

    def _held(self, state: str) -> dict[str, Any]:
        """Return name of the parameter or master -> Tensor of a state."""
        return _paddle.accumulators(self).get(_paddle.prefixed(self, state), {})

    def _loaded(self, state: str) -> list[Any]:
        """Return the values of a state that were loaded for parameters that had no gradient since."""
        waiting, part = _paddle.waiting_state(self), f"{_paddle.prefixed(self, state)}_"
        live = {value.name for value in self._held(state).values()} if waiting else ()  # most of a tiny step's time
        return [value for key, value in waiting.items() if part in key and key not in live]

    def _largest_of(self, state: str) -> Any:
        """Return the largest value of a state, a Tensor of shape []."""
        return largest([*self._held(state).values(), *self._loaded(state)])

    # ---- the step

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        param, grad = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        if self.is_frozen(param) or math.prod(param.shape) == 0:
            return
        self.check_shape(param)
        task = Task(param, grad, self.step_options(param), self._rate(param, grad))
        if self._collected is None:
            self._update_whole([task._replace(piece=Piece(self.whole_shape(param)))])
        else:
            self._collected.append(task)

    def check_shape(self, param: Any) -> None:
        """Raise if a parameter is not what the optimizer was built with."""
        if paddle.in_dynamic_mode() and self._finder.params:
            self._finder.check(param)

    def _rate(self, param: Any, grad: Any) -> Any:
        """Return the rate of a parameter; parameters of one rate share it while a step is collected."""
        dtype, factor = compute_dtype(param), getattr(param, "optimize_attr", None) or {}
        key = (dtype, factor.get("learning_rate"), self.layerwise_ratio(param), self.own_rate(param))
        if self._collected is None or key not in self._rates:
            self._rates[key] = _paddle.rate_factor(self)((param, grad)).astype(dtype).reshape([])
        return self._rates[key]

    def _update(self, tasks: list[Task]) -> None:
        """Do the updates that were collected, in their order."""
        pieces = self._finder.find(_paddle.parameter_list(self))
        tasks = [task._replace(piece=pieces[task.param.name]) for task in tasks if task.param.name in pieces]
        if self.fused and any(task.piece.groups or task.piece.slice_size is not None for task in tasks):
            where = "parameters in pieces (tensor parallel, sharding version 2)"
            raise ValueError(f"`fused=True` does not go with {where}: use None or False. Received: fused=True")
        self._update_whole([task for task in tasks if not task.piece.groups])
        self._update_pieces({task.param.name: task for task in tasks if task.piece.groups}, pieces)

    def _update_whole(self, tasks: list[Task]) -> None:
        """Update parameters of which this process has all: those of a kind together, the others one after the other."""
        whole = [task for task in tasks if task.piece.slice_size is None]
        alone = [task for task in tasks if task.piece.slice_size is not None]
        if whole and (self.fused or not paddle.in_dynamic_mode() or whole[0].param.place.is_cpu_place()):
            whole = self.update_fused(whole)
        units: list[tuple[Any, list[Task]]] = [(None, [task]) for task in whole]
        if paddle.in_dynamic_mode():
            units = self._batches.split(self, whole)
        for batch, some in units:
            if batch is None:
                self._update_alone(some[0])
            else:
                batch.update([task.grad for task in some], batch.rates(some), some[0].options)
        for task in alone:
            self._update_alone(task)
        if len(whole) == len(tasks) and self._collected is None and paddle.in_dynamic_mode():
            self._last = RepeatedStep.of(self, units)

    def _update_alone(self, task: Task) -> None:
        rule, write = self._start(task)
        write(*answer_locally(rule))

    def step(self) -> Any:
        """Update all parameters that have a gradient once."""
        if self._last is not None and self._may_be_repeated():
            with paddle.no_grad():
                seen = self._last.again(self)
                if seen is not None:
                    return self._last.take(self, seen)
        self._last = None
        return super().step()

    def _may_be_repeated(self) -> bool:
        """Return whether a step has to do nothing but to clip gradients and to update parameters."""
        return (
            paddle.in_dynamic_mode()
            and not _paddle.in_to_static_mode()
            and not paddle.distributed.is_initialized()
            and self.regularization is None
            and _paddle.found_inf(self) is None
        )

    def _update_pieces(self, tasks: dict[str, Task], pieces: dict[str, Piece]) -> None:
        """Update parameters that are in pieces side by side with the other processes that have pieces of them."""
        rules, writes = [], []
        for name, piece in pieces.items():
            param = self._finder.params[name]
            if not piece.groups or param.stop_gradient or name in self._missing.names:
                continue
            if self.layerwise_ratio(param) == 0.0:
                continue
            if name in tasks:
                rule, write = self._start(tasks[name])
            elif piece.span == (0, 0):  # the other processes wait for sums from all
                rule, write = self._start_empty(param, piece), None
            else:
                continue
            rules.append((piece, rule))
            writes.append(write)
        for write, result in zip(writes, answer_together(rules)):
            if write is not None:
                write(*result)

    def _start(self, task: Task) -> tuple[Update, Callable[..., None]]:
        """Return the rule of a task, to be run, and a function that writes its result."""
        param, piece = task.param, task.piece or Piece(self.whole_shape(task.param))
        target = _paddle.masters(self)[param.name] if self.has_master(param) else param
        dtype, kinds = compute_dtype(param), {**self.state_kinds(param), STEP: SCALAR}
        stored_as = _paddle.state_getter(self)
        stored = {name: stored_as(name, param) for name in kinds}
        state = {name: value.astype(dtype) for name, value in stored.items()}
        for name, kind in kinds.items():
            if kind == SCALAR or not target.shape:  # stored as [1]
                state[name] = state[name].reshape([])
            elif kind == ELEMENT:
                state[name] = piece.view(state[name])
            else:
                state[name] = state[name].reshape(rule_shape(kind, piece.shape))
        counted = self._counted(state)
        state.update(counted)
        grad = task.grad.astype(dtype)
        if list(grad.shape) != list(target.shape):  # ClipGradByGlobalNorm makes [1] of []
            grad = grad.reshape(target.shape)
        rule = self.rule(
            piece.view(target.astype(dtype)), piece.view(grad), state, task.lr, piece=piece, **task.options
        )

        def write(new_param: Any, new_state: dict[str, Any]) -> None:
            overflow = None if paddle.in_dynamic_mode() else _paddle.found_inf(self)
            for name, value in {**new_state, **counted}.items():
                _write(value, stored[name], overflow, piece if kinds[name] == ELEMENT else None)
            _write(new_param, target, overflow, piece)
            if target is not param:
                _write(new_param, param, overflow, piece)

        return rule, write

    def _start_empty(self, param: Any, piece: Piece) -> Update:
        """Return the rule of a parameter that this process has nothing of: its sums are zeros."""
        dtype, empty = compute_dtype(param), paddle.zeros([0], compute_dtype(param))
        state = {
            name: empty if kind == ELEMENT else paddle.zeros(rule_shape(kind, piece.shape), dtype)
            for name, kind in self.state_kinds(param).items()
        }
        state[STEP] = paddle.ones([], dtype)
        return self.rule(empty, empty, state, paddle.zeros([], dtype), piece=piece, **self.step_options(param))

    def _counted(self, state: Values) -> Values:
        """Return the counters after this update, given the state before it; a subclass may count in another way."""
        return {STEP: state[STEP] + 1.0}


def _write(value: Any, target: Any, overflow: Any = None, piece: Optional[Piece] = None) -> None:
    if overflow is not None:  # static AMP runs the update regardless; a CPU has no `where` of float16
        value = paddle.where(overflow, target.astype(value.dtype), value.reshape(target.shape))
    value = value.astype(target.dtype)
    if piece is not None and piece.slice_size is not None:
        _paddle.assign_out(value.flatten(), piece.stored(target))
        return
    if list(value.shape) != list(target.shape):  # [1] holds a state of shape []
        value = value.reshape(target.shape)
    if paddle.in_dynamic_mode():
        _paddle.assign_out(value, target)
    else:
        frozen = target.stop_gradient
        paddle.assign(value, target)
        target.stop_gradient = frozen  # `assign` gives it the value's, and a later `minimize` would pass it over


def _unified_name(key: str, state_names: set[str]) -> str:
    """Return the key that PaddleNLP's unified checkpoints have for one of `state_dict`."""
    if _INFIX in key:
        return key
    ending = next((f"_{name}_0" for name in state_names if key.endswith(f"_{name}_0")), None)
    return key if ending is None else key[: -len(ending)] + _INFIX + ending[1:]


def checked_rate(learning_rate: Any, argument: str) -> Any:
    """Return an optimizer's learning rate as Paddle takes it, a float or a scheduler, raise if it is neither."""
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    return checked_number(learning_rate, argument, kind="a number or an LRScheduler; parameters go into `parameters=`")


def largest(counts: list[Any]) -> Any:
    """Return the largest number in Tensors and arrays as a Tensor, 0 if there is none; the rest is passed over."""
    alike: dict[Any, list[Any]] = {}
    for count in counts:
        if isinstance(count, np.ndarray):
            count = paddle.to_tensor(count)
        if isinstance(count, paddle.Tensor) and 0 not in count.shape:
            alike.setdefault((count.dtype, tuple(count.shape)), []).append(count)
    most = [_paddle.stack(group, 0).max().astype("float32") for group in alike.values()]
    return paddle.stack(most).max() if most else paddle.zeros([])
