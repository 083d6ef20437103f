"""`GradientAccumulator`: sums of gradients over a cycle of micro-batches."""

import math
import warnings
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer

from .._checks import checked_choice, checked_number
from .._messages import problem, refusal, wrong_type
from .._paddle import check_own_gradients, dtype_name, parameters_of, sharding_setting
from .._processes import gathered
from .accumulator_checks import (
    check_addable,
    check_group,
    check_parts,
    check_sums,
    checked_target,
    described,
    target_among,
)
from .gradients import ProcessPart, clear, divided, gradients_of, sum_dtype, summed, write


class GradientAccumulator:
    r"""Sum gradients over micro-batches in float32, for batches that exceed the memory.

    With :math:`g_i` the gradient of micro-batch i (zero if it is None), the sums are over all micro-batches since the
    last `reset`, and after `synchronize` over all processes:

    .. math::
        \text{"sum"}: \sum_i g_i \qquad \text{"mean"}: \frac{1}{n} \sum_i g_i \qquad
        \text{"token"}: \frac{\sum_i w_i g_i}{\sum_i w_i}

    "mean" is the gradient of a large batch if all micro-batches have the same size. "token" is that gradient if the
    loss of each micro-batch is the mean over its own :math:`w_i` tokens. Sums of float64 gradients are float64.

    **Called with a list** of gradients, as in TensorFlow, it keeps one slot for each index. An index with None in the
    first call stays None; a later gradient there is ignored, with a warning. **Called with a model**, it takes the
    gradients of the trainable parameters, in the order of ``model.named_parameters()``, and clears them, because
    `backward` adds to existing gradients. A parameter may get its first gradient in a later call. The set of trainable
    parameters may change between cycles, not within a cycle.

    **In several processes**, each accumulates separately, with the plain model or `paddle.DataParallel` under
    ``no_sync()``, and calls `synchronize` before `apply`. A process may have no micro-batch in a cycle. Sharding stage
    1 works, also with `split_param`, but not with `tensor_fusion` or `comm_overlap`.

    A bad argument or a call out of order raises TypeError or ValueError before anything changes. The state can be saved
    and resumed within a cycle.

    Differs from transformers: it also accepts a model, weights, the reductions "mean" and "token", and data
    parallelism, and can save its state; `step` is an int; sums are at least float32; ignored gradients give a warning.

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
        self._names: Optional[list[str]] = None  # the model's; None for a list, or before the first call
        self._parameters: Optional[list[Any]] = None  # parameters of the last model
        self._own_names: Optional[list[str]] = None  # their `param.name`, also in a process that saw no model
        self._sums: list[Any] = []  # float32 or float64 Tensors, None without a gradient so far
        self.reset()

    def reset(self) -> None:
        """Begin a new cycle: zero the sums and the number of calls, and keep the slots."""
        for total in self._sums:
            if total is not None:
                total.zero_()
        self._received = [False] * len(self._sums)  # whether a slot got a gradient in this cycle
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
        """The reduced gradients as new Tensors, None without a gradient; zeros after a `reset`."""
        if not self._sums:
            message = "The accumulator should be called first to initialize the gradients."
            raise refusal(ValueError, message, gradients=None)
        divisor = self._divisor()
        return [None if total is None else divided(total, divisor) for total in self._sums]

    def __call__(self, gradients: Any, weight: Optional[float] = None) -> None:
        """Add the gradients of a micro-batch: a list, or a model after `backward`.

        With "token", `weight` is the number of tokens in the loss, at least 0. With 0, the gradients are ignored,
        because a mean over no token is NaN.
        """
        names, parameters, gradients = gradients_of(gradients)
        self._check_call(names, gradients, weight)
        weight = 1.0 if weight is None else float(weight)
        sums = self._sums_of(names, len(gradients))
        if not self._step:
            self._received = [False] * len(sums)
        ignored = []
        if names is None and self._fits(names):
            ignored = [i for i, total in enumerate(sums) if total is None and gradients[i] is not None]
        for place, gradient in enumerate(gradients):
            if gradient is None or place in ignored:
                continue
            if sums[place] is None:
                sums[place] = paddle.zeros(gradient.shape, sum_dtype(gradient))
            if weight:
                value = gradient.detach().astype(sum_dtype(gradient))
                sums[place].add_(value * weight if self.reduction == "token" else value)
                self._received[place] = True
        clear(parameters or [])
        self._names, self._parameters, self._sums = names, parameters, sums
        self._step += 1
        self._count += 1
        self._weight += weight
        if ignored:
            advice = "To include them, call the accumulator with the model, or with zeros instead of None."
            message = f"Gradients that were None in the first call are ignored. {advice}"
            warnings.warn(problem(message, indexes=ignored), stacklevel=2)

    def _fits(self, names: Optional[list[str]]) -> bool:
        """Return whether gradients of these names go into the present slots."""
        return bool(self._sums) and names == self._names

    def _sums_of(self, names: Optional[list[str]], length: int) -> list[Any]:
        """Return a list with the sum of each gradient; None without a gradient so far."""
        if self._fits(names):
            return list(self._sums)
        sum_by_name = dict(zip(self._names or [], self._sums))
        return [sum_by_name.get(name) for name in names] if names else [None] * length

    def _divisor(self) -> float:
        """Return the divisor of the sums."""
        if self.reduction == "sum" or self._count == 0:
            return 1.0
        total = self._count if self.reduction == "mean" else self._weight
        if total == 0:
            raise ValueError(f"At least one weight must be above 0. Received: weight=0 in all of {self._count} calls")
        return float(total)

    def write_gradients(self, target: Any = None) -> None:
        """Write the reduced gradients into the parameters, in their types, for an optimizer or a scaler.

        A parameter that received no gradient since the last `reset` keeps None, so no optimizer moves it. Under
        sharding with `split_param` it gets zeros, and weight decay may move it.

        `target` is the model, or the list of parameters in the order of `gradients`; by default the model of the last
        call.
        """
        self._write(self._checked_target(target))

    def _write(self, parameters: list[paddle.Tensor]) -> None:
        divisor, pairs = self._divisor(), zip(self._sums, self._received)
        write(parameters, (divided(total, divisor) if received else None for total, received in pairs))

    def apply(self, optimizer: Optimizer, target: Any = None) -> None:
        """Take one step with the reduced gradients, then clear them and `reset`.

        `target` is as in `write_gradients`; for lists of gradients, by default the optimizer's trainable parameters.
        """
        if not callable(getattr(optimizer, "step", None)) or not hasattr(optimizer, "clear_grad"):
            raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
        trained = parameters_of(optimizer)
        self._write(self._checked_target(target, trained))
        optimizer.step()
        if sharding_setting("split_param"):
            clear(trained)
        else:
            optimizer.clear_grad(set_to_zero=False)
        self.reset()

    def synchronize(self, group: Any = None) -> None:
        """Sum over all processes, once a cycle: each process then has the `gradients` of the global batch.

        Sums, calls and weights are summed separately and divided afterwards, so processes may differ in calls and
        tokens. Every process of the group, by default all, must call it. If processes differ in parameters, shapes,
        types or `reduction`, all raise.
        """
        check_group(group, self._sums)
        if self._synchronized:
            why = "a second call would add the sums of all processes again."
            wrong = f"`synchronize` must be called only once between two resets: {why}"
            raise refusal(ValueError, wrong, step=self._step)
        own_names = None if self._parameters is None else [param.name for param in self._parameters]
        slots = [None if total is None else (list(total.shape), dtype_name(total.dtype)) for total in self._sums]
        part = ProcessPart(self.reduction, self._names, own_names, slots, self._received, self._count, self._weight)
        parts = gathered(part, group)
        check_parts(parts)
        self._names = next(part.names for part in parts if part.was_called)
        self._own_names = next((part.own_names for part in parts if part.own_names), None)
        self._sums = summed(self._sums, parts, group)
        self._received = [any(flags) for flags in zip(*(part.received for part in parts if part.slots))]
        self._count = sum(part.count for part in parts)
        self._weight = math.fsum(part.weight for part in parts)
        self._synchronized = True

    def state_dict(self) -> dict[str, Any]:
        """Return this process's state, within a cycle or between two, for `paddle.save`.

        "gradients" is index -> Tensor, unreduced; the other entries are counts and names.
        """
        return {
            "reduction": self.reduction,
            "names": self._names,
            "slots": len(self._sums),
            "received": list(self._received),
            "step": self._step,
            "count": self._count,
            "weight": self._weight,
            "synchronized": self._synchronized,
            "gradients": {str(i): total.clone() for i, total in enumerate(self._sums) if total is not None},
        }

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, to continue bit for bit; an inconsistent state raises and changes nothing."""
        check_sums(state_dict, self.reduction)
        saved = state_dict["gradients"]
        self._sums = [_own_tensor(saved.get(str(place))) for place in range(state_dict["slots"])]
        self._names = None if state_dict["names"] is None else list(state_dict["names"])
        self._parameters = self._own_names = None
        self._received = [bool(flag) for flag in state_dict["received"]]
        self._step, self._count = int(state_dict["step"]), int(state_dict["count"])
        self._weight, self._synchronized = float(state_dict["weight"]), bool(state_dict["synchronized"])

    # ---- checks, before anything changes

    def _check_call(self, names: Optional[list[str]], gradients: list[Any], weight: Any) -> None:
        """Raise unless these gradients can be added now."""
        if (weight is None) == (self.reduction == "token"):
            message = '`weight` must be given with reduction="token", and has no effect with another reduction.'
            raise refusal(ValueError, message, weight=weight, reduction=self.reduction)
        if weight is not None:
            checked_number(weight, "weight")
        check_own_gradients("`apply`")
        if self._synchronized:
            message = "The sums are already synchronized: call `reset` or `apply` before the next micro-batch."
            raise refusal(ValueError, message, step=self._step)
        if self._fits(names) and len(gradients) != len(self._sums):
            raise ValueError(f"Expected {len(self._sums)} gradients, but got {len(gradients)}")
        if self._step and not self._fits(names):
            received = f"{described(names, len(gradients))} after {described(self._names, len(self._sums))}"
            raise ValueError(f"All calls between two resets must be for the same parameters. Received: {received}")
        for place, total in enumerate(self._sums_of(names, len(gradients))):
            check_addable(gradients[place], total, names[place] if names else place)

    def _checked_target(self, target: Any, trained: Optional[list[Any]] = None) -> list[Any]:
        """Return the parameters to write to: `target`, the last model's, or an optimizer's trained parameters."""
        if not self._step and not self._synchronized:
            raise refusal(ValueError, "There are no gradients to write: call the accumulator first.", step=self._step)
        if target is None and self._parameters is None and trained is not None:
            target = target_among(trained, self._names, self._own_names)
        target = checked_target(self._parameters if target is None else target, self._names, self._sums)
        names = [param.name for param in target]
        if trained and {param.name for param in trained}.isdisjoint(names):
            message = "`optimizer` must train the model that produced the gradients, or its step has no effect"
            received = f"optimizer with none of {len(names)} parameters, such as '{names[0]}'"
            raise ValueError(f"{message}. Received: {received}")
        return target


def _own_tensor(value: Any) -> Any:
    """Return a copy of a Tensor or array as a Tensor, None for None: sums change in place."""
    return value.clone() if isinstance(value, paddle.Tensor) else value if value is None else paddle.to_tensor(value)
