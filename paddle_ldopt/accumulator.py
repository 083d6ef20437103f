"""`GradientAccumulator`, a port of the TensorFlow class of transformers 4.37."""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

import paddle
import paddle.distributed as dist
from paddle import _C_ops
from paddle.optimizer import Optimizer

from ._checks import checked_choice, checked_number, first_few, problem, refusal, shown, wrong_type
from ._compat import check_own_gradients, dtype_name, parameters_of, sharding_setting, unwrap_model
from ._processes import gathered


class GradientAccumulator:
    r"""Sum gradients over micro-batches in float32, for batches that exceed the memory.

    With :math:`g_i` the gradient of micro-batch i (zero if it is None), the sums are over all micro-batches since the
    last `reset`, and after `synchronize` over all processes:

    .. math::
        \text{"sum"}: \sum_i g_i \qquad \text{"mean"}: \frac{1}{n} \sum_i g_i \qquad
        \text{"token"}: \frac{\sum_i w_i g_i}{\sum_i w_i}

    "mean" is the gradient of the large batch if all micro-batches have the same size, "token" if the loss of each is
    the mean over its :math:`w_i` tokens. Sums of float64 gradients are float64.

    **Called with a list** of gradients, as in TensorFlow, it keeps one slot per index. A None in the first call stays
    None; later gradients there are ignored, with a warning. **Called with a model**, it takes and clears the gradients
    of the trainable parameters, in the order of ``model.named_parameters()``. A parameter may get its first gradient
    later. The trainable parameters may only change between cycles.

    **In several processes**, each accumulates separately, with the plain model or `paddle.DataParallel` under
    ``no_sync()``, and calls `synchronize` before `apply`. A process may have no micro-batch in a cycle. Sharding stage
    1 works without `tensor_fusion` and `comm_overlap`.

    A wrong argument or call raises TypeError or ValueError and changes nothing. Checkpoints lack the sums: save between
    cycles.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import GradientAccumulator
        >>> accumulator = GradientAccumulator()
        >>> accumulator([paddle.to_tensor([1.0, 2.0]), None])
        >>> accumulator([paddle.to_tensor([-2.0, 1.0]), None])
        >>> print(accumulator.step, accumulator.gradients[0].tolist(), accumulator.gradients[1])
        2 [-1.0, 3.0] None

        >>> model = paddle.nn.Linear(2, 1)
        >>> optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        >>> accumulator = GradientAccumulator(reduction="token")
        >>> for batch in (paddle.rand([3, 2]), paddle.rand([5, 2])):
        ...     model(batch).mean().backward()
        ...     accumulator(model, weight=len(batch))
        >>> accumulator.apply(optimizer)  # as one step on the batch of 8

    Source: ``transformers.GradientAccumulator`` of ``optimization_tf.py``.
    """

    def __init__(self, reduction: str = "sum") -> None:
        self.reduction = checked_choice(reduction, "reduction", ("sum", "mean", "token"))
        self._names: Optional[list[str]] = None  # None for a list, or before the first call
        self._parameters: Optional[list[Any]] = None
        self._own_names: Optional[list[str]] = None  # their `param.name`, also in a process that saw no model
        self._sums: list[Any] = []  # None without a gradient so far
        self.reset()

    def reset(self) -> None:
        """Begin a new cycle: zero the sums and counts, keep the slots."""
        for total in self._sums:
            if total is not None:
                total.zero_()
        self._received = [False] * len(self._sums)  # in this cycle
        self._local: dict[int, tuple[int, float]] = {}  # expert -> this process's count and weight, once synchronized
        self._step = 0
        self._count = 0  # micro-batches in the sums; of all processes once synchronized
        self._weight = 0.0
        self._synchronized = False

    @property
    def step(self) -> int:
        """The number of calls in this process since the last reset."""
        return self._step

    @property
    def gradients(self) -> list[Any]:
        """The reduced gradients as new Tensors; None in a slot that never had a gradient, zeros after a `reset`."""
        if not self._sums:
            raise refusal(ValueError, "The accumulator should be called first to initialize the gradients.", step=0)
        return [None if total is None else _divided(total, d) for total, d in zip(self._sums, self._divisors())]

    def __call__(self, gradients: Any, weight: Optional[float] = None) -> None:
        """Add the gradients of a micro-batch: a list, or a model after `backward`.

        With "token", `weight` is the number of tokens in the loss; with 0, the gradients are ignored (they are NaN).
        """
        names, parameters, given = _gradients_of(gradients)
        if (weight is None) == (self.reduction == "token"):
            wrong = '`weight` must be given with reduction="token", and has no effect with another reduction.'
            raise refusal(ValueError, wrong, weight=weight, reduction=self.reduction)
        weight = 1.0 if weight is None else checked_number(weight, "weight")
        check_own_gradients("`apply`")
        if self._synchronized:
            raise refusal(ValueError, "The sums are synchronized: call `reset` or `apply` first.", step=self._step)
        same = all(total is None or total.shape == p.shape for total, p in zip(self._sums, parameters or []))
        known = bool(self._sums) and names == self._names and (same or self._step > 0)
        if known and len(given) != len(self._sums):
            raise ValueError(f"Expected {len(self._sums)} gradients, but got {len(given)}")
        if self._step and not known:
            wrong = "All calls between two resets must be for the same parameters (None is a list of gradients)."
            raise refusal(ValueError, wrong, parameters=names, before=self._names)
        sums: list[Any] = list(self._sums) if known else [None] * len(given)
        present = {place: gradient for place, gradient in enumerate(given) if gradient is not None}
        for place, gradient in present.items():
            _check_addable(gradient, sums[place], names[place] if names else place)

        ignored = [place for place in present if known and names is None and sums[place] is None]
        if not known:
            self._received = [False] * len(given)
        for place, gradient in present.items():
            if place in ignored:
                continue
            dtype = paddle.float64 if gradient.dtype == paddle.float64 else paddle.float32
            if sums[place] is None:
                sums[place] = paddle.zeros_like(gradient, dtype)  # on its device
            if weight:
                value = gradient.detach().astype(dtype)
                sums[place].add_(value * weight if self.reduction == "token" else value)
                self._received[place] = True
        _clear(parameters or [])
        self._names, self._parameters, self._sums = names, parameters, sums
        self._step += 1
        self._count += 1
        self._weight += weight
        if ignored:
            wrong = "Gradients that were None in the first call are ignored: give the model, or zeros for None."
            warnings.warn(problem(wrong, indexes=ignored), stacklevel=2)

    def _divisors(self) -> list[float]:
        """Return the sums' divisors; an expert has its process's."""
        divisors = []
        for place in range(len(self._sums)):
            count, weight = self._local.get(place, (self._count, self._weight))
            divisor = {"sum": 1.0, "mean": float(count), "token": weight}[self.reduction] if count else 1.0
            if divisor == 0:
                raise ValueError(f"At least one weight must be above 0. Received: weight=0 in all of {count} calls")
            divisors.append(divisor)
        return divisors

    def write_gradients(self, target: Any = None) -> None:
        """Write the reduced gradients into the parameters, in their types, for an optimizer or a scaler.

        A parameter without a gradient since the last `reset` keeps None, so no optimizer moves it. Under sharding with
        `split_param` it gets zeros, and weight decay may move it.

        `target` is the model (default: that of the last call), or the parameters in the order of `gradients`.
        """
        self._write(target, None)

    def apply(self, optimizer: Union[Optimizer, Sequence[Optimizer]], target: Any = None) -> None:
        """Take one step with the reduced gradients, then clear them and `reset`.

        All optimizers of a list step. `target` is as in `write_gradients`; for lists of gradients, by default the
        optimizer's trainable parameters.
        """
        optimizers: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        for one in optimizers:
            if not callable(getattr(one, "step", None)) or not hasattr(one, "clear_grad"):
                raise wrong_type(one, "optimizer", "a Paddle optimizer or a list of them")
        trained = [param for one in optimizers for param in parameters_of(one)]
        written = self._write(target, trained)
        for one in optimizers:
            one.step()
        if sharding_setting("split_param"):
            _clear(trained)
        else:
            for one in optimizers:
                one.clear_grad(set_to_zero=False)
        _clear(written)  # also parameters that only other optimizers train
        self.reset()

    def synchronize(self, group: Any = None) -> None:
        """Sum over all processes, once a cycle: each process then has the `gradients` of the global batch.

        Every process of the group (default: all) must call it. Processes may differ in calls and tokens; a difference
        in parameters, shapes, types or `reduction` raises in all. Gradients of experts (`no_sync`) stay local, as in
        Paddle.
        """
        if group is not None and not (hasattr(group, "is_member") and group.is_member()):
            raise refusal(TypeError, "`group` must be a paddle.distributed Group that holds this process.", group=group)
        several = dist.get_world_size(group) > 1
        if several and any(total is not None and total.is_dist() for total in self._sums):
            wrong = "Gradients of DistTensors are summed over all processes: call `apply` without `synchronize`."
            raise refusal(ValueError, wrong, gradients=len(self._sums))
        if self._synchronized:
            raise refusal(ValueError, "`synchronize` must be called once between two resets.", step=self._step)
        own_names = None if self._parameters is None else [param.name for param in self._parameters]
        slots = [None if total is None else (list(total.shape), dtype_name(total.dtype)) for total in self._sums]
        experts = {place for place, param in enumerate(self._parameters or []) if getattr(param, "no_sync", False)}
        part = _Part(self.reduction, self._names, own_names, slots, self._received, self._count, self._weight, experts)
        if self._count == 0:  # its names and sums are of an earlier cycle
            part = _Part(self.reduction, None, None, [], [], 0, self._weight, set())
        parts = gathered(part, group)
        _check_parts(parts)
        called = [part for part in parts if part.slots]
        sums = self._sums if part.slots else [None] * len(called[0].slots)
        received = self._received if part.slots else [False] * len(sums)
        if not part.slots and (self._names, own_names) != (called[0].names, called[0].own_names):
            self._parameters = None
        local = {place for part in called for place in part.experts}
        for place, column in enumerate(zip(*(part.slots for part in called))):
            slot = next(filter(None, column), None)  # None: no process has a gradient
            if slot is not None and sums[place] is None:
                sums[place] = paddle.zeros(*slot)
            if place in local:
                continue
            received[place] = any(part.received[place] for part in called)
            if slot is not None and several:
                dist.all_reduce(sums[place], op=dist.ReduceOp.SUM, group=group)
        self._sums, self._received = sums, received
        # a process whose weights are all 0 has sums of 0
        self._local = dict.fromkeys(experts, (self._count, self._weight or 1.0))
        self._names = called[0].names
        self._own_names = next((part.own_names for part in parts if part.own_names), None)
        self._count = sum(part.count for part in parts)
        self._weight = math.fsum(part.weight for part in parts)
        self._synchronized = True

    def _write(self, target: Any, trained: Optional[list[Any]]) -> list[Any]:
        """Return the written parameters: `target`, the last model's, or `trained`."""
        if not self._step and not self._synchronized:
            wrong = "There are no gradients: call the accumulator first, and `apply` with all optimizers at once."
            raise refusal(ValueError, wrong, step=self._step)
        if target is None:
            target = self._parameters
        if target is None and trained is not None:  # of a list, or of a model that only other processes have seen
            by_name = {param.name: param for param in trained}
            if self._names is None:
                target = [param for param in trained if not param.stop_gradient]
            elif self._own_names and by_name.keys() >= set(self._own_names):
                target = [by_name[name] for name in self._own_names]
        if isinstance(target, paddle.nn.Layer):
            target = _trainable(target)[1]
        if not isinstance(target, (list, tuple)) or not all(isinstance(param, paddle.Tensor) for param in target):
            raise wrong_type(target, "target", "a list of parameters or a paddle.nn.Layer")
        shapes = [None if total is None else list(total.shape) for total in self._sums]
        given = [list(param.shape) for param in target]
        if len(given) != len(shapes) or any(shape not in (None, own) for shape, own in zip(shapes, given)):
            raise refusal(ValueError, "`target` must fit the gradients.", target=given, gradients=shapes)
        written, trained = {param.name for param in target}, trained or []
        if trained and written.isdisjoint(param.name for param in trained):
            wrong = "`optimizer` must train the model that produced the gradients, or its step has no effect."
            raise refusal(ValueError, wrong, parameters=[param.name for param in target])
        outside = [param for param in trained if param.name not in written and not param.stop_gradient]
        others = [param.name for param in outside if param.grad is not None]
        if others and not sharding_setting("split_param"):
            wrong = "Parameters outside of the model have gradients of their own, unreduced: accumulate a Layer that"
            raise refusal(ValueError, f"{wrong} contains all that `optimizer` trains.", others=first_few(others))

        divisors = self._divisors()
        _clear(target)
        for param, total, flag, divisor in zip(target, self._sums, self._received, divisors):
            if flag and param.grad is None:
                param.grad = _divided(total, divisor).astype(param.dtype)
            elif flag:  # part of a buffer that sharding reduces
                paddle.assign(_divided(total, divisor).astype(param.dtype), param.grad)
        return list(target)


def _gradients_of(source: Any) -> tuple[Optional[list[str]], Optional[list[Any]], list[Any]]:
    if isinstance(source, (list, tuple)):
        return None, None, list(source)
    if not isinstance(source, paddle.nn.Layer):
        raise wrong_type(source, "gradients", "a list of Tensors and None, or a paddle.nn.Layer")
    names, parameters = _trainable(source)
    gradients = [param.grad for param in parameters]
    if all(gradient is None for gradient in gradients):
        received = f"{len(parameters)} trainable parameters, none with a gradient"
        raise ValueError(f"The model must have gradients: call `backward` first. Received: {received}")
    return names, parameters, gradients


def _trainable(model: paddle.nn.Layer) -> tuple[list[str], list[Any]]:
    inner = unwrap_model(model) if isinstance(model, paddle.DataParallel) else model
    named = {name: param for name, param in inner.named_parameters() if not param.stop_gradient}
    return list(named), list(named.values())


def _check_addable(gradient: Any, total: Any, place: Any) -> None:
    if not isinstance(gradient, paddle.Tensor):
        received = type(gradient).__name__
    elif gradient.is_selected_rows():
        received = "a sparse gradient (build the embedding with sparse=False)"
    else:
        received = "" if gradient.is_floating_point() else str(gradient.dtype)
    if received:
        raise TypeError(f"A gradient must be None or a dense floating-point Tensor. Received: {received} at {place}")
    if total is not None and gradient.shape != total.shape:
        wrong = f"A gradient must have the shape of its sum, {list(total.shape)}."
        raise ValueError(f"{wrong} Received: shape={list(gradient.shape)} at {place}")


def _divided(total: Any, divisor: float) -> Any:
    # dividing by a Python number would multiply by its rounded reciprocal
    return total / _C_ops.full([], divisor, total.dtype, total.place)


def _clear(parameters: Iterable[Any]) -> None:
    """Clear gradients, or zero them where sharding reduces a buffer of gradients."""
    in_buffers = sharding_setting("split_param")
    for param in parameters:
        if not in_buffers:
            param.clear_gradient(False)  # as a keyword, Paddle ignores the argument and leaves zeros
        elif param.grad is not None:
            with paddle.no_grad():
                param.grad.zero_()


@dataclasses.dataclass
class _Part:
    """A process's part of a cycle, without the sums; no slots before the first call."""

    reduction: str
    names: Optional[list[str]]  # structured names; None for a list of gradients
    own_names: Optional[list[str]]  # Paddle's names
    slots: list[Optional[tuple[list[int], str]]]  # shape and dtype, None without a gradient so far
    received: list[bool]
    count: int
    weight: float
    experts: set[int]  # places of parameters that differ in each process


def _check_parts(parts: list[_Part]) -> None:
    if not any(part.count and part.slots for part in parts):
        raise refusal(ValueError, "Call the accumulator first: no process called it since the last reset.", count=0)
    called = {rank: part for rank, part in enumerate(parts) if part.slots}
    first_rank, first = next(iter(called.items()))
    slots = first.slots
    for rank, part in called.items():
        fits = len(part.slots) == len(slots) and all(
            mine == other or (part.names is not None and None in (mine, other))  # of a model: not in every process
            for mine, other in zip(part.slots, slots)
        )
        if (part.reduction, part.names, fits) != (first.reduction, first.names, True):
            wrong = "All processes must accumulate the same gradients, with the same reduction, shapes and types."
            only = sorted(set(part.names or ()) ^ set(first.names or ()))  # such as frozen in one process
            both = [(one.reduction, *one.slots) for one in (first, part)]
            received = f"{only[0]!r} in one only" if only else shown(both)
            raise ValueError(f"{wrong} Received: {received} of processes {first_rank} and {rank}")
        slots = [mine or other for mine, other in zip(part.slots, slots)]
