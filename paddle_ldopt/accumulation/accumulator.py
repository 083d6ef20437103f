"""`GradientAccumulator`: the sums of a cycle of micro-batches."""

import math
import warnings
from typing import Any, Optional

import paddle

from .._checks import checked_choice, checked_number
from .._messages import refusal, wrong_type
from .._paddle import parameters_of, sharding_setting
from .._processes import gathered
from .processes import ProcessPart, agreed_slots, check_group, slot_of, summed
from .reading import check_gradient, clear, described, read, sum_dtype
from .state import check_state, own_tensor
from .writing import checked_target, divided, write


class GradientAccumulator:
    r"""Sum gradients over micro-batches in float32: for batches that do not fit, with a resume in mid-cycle.

    With :math:`g_i` the gradient of micro-batch i, over all micro-batches since the last `reset` (of all ranks, after
    `synchronize`), None counting as zero:

    .. math::
        \text{"sum"}: \sum_i g_i \qquad \text{"mean"}: \frac{1}{n} \sum_i g_i \qquad
        \text{"token"}: \frac{\sum_i w_i g_i}{\sum_i w_i}

    "mean" is the gradient of a large batch if all micro-batches have the same size. "token" is that gradient if the
    loss of each micro-batch is the mean over its own :math:`w_i` tokens. Sums of float64 gradients are float64.

    **Called with a list** of gradients, as in TensorFlow, it keeps a slot for each place in the list. A place that
    holds None in the first call stays None for good; a gradient that comes to it later is left out, with a warning.
    **Called with a model**, it takes the gradients of the trainable parameters, in the order of
    ``model.named_parameters()``, and clears them, because `backward` adds to what it finds. A parameter may get its
    first gradient in a later call. The set of trainable parameters may change between cycles, not within one.

    **On several processes** each accumulates on its own, with the plain model or `paddle.DataParallel` under
    ``no_sync()``, and calls `synchronize` before `apply`. A process may have no micro-batch in a cycle. Sharding of
    stage 1 works, with `split_param` too; `tensor_fusion` and `comm_overlap` are refused.

    Any method raises TypeError or ValueError for a wrong argument or a call out of order, before anything has changed.

    Differs from transformers: models, weights, "mean" and "token", data parallelism and a state that can be saved are
    added; `step` is an int; sums are float32 at least; it warns of gradients that it leaves out.

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
        self._names: Optional[list[str]] = None  # of a model's parameters; None: slots of a list, or none yet
        self._parameters: Optional[list[Any]] = None  # those of the last model that was seen
        self._own_names: Optional[list[str]] = None  # Paddle's names of them, for a process that has seen no model
        self._sums: list[Any] = []  # float32 or float64 Tensors, None where there was no gradient yet
        self._received: list[bool] = []  # whether a slot got a gradient in this cycle
        self._step = 0
        self._count = 0  # micro-batches in the sums: those of all ranks once synchronized
        self._weight = 0.0
        self._synchronized = False

    @property
    def step(self) -> int:
        """The number of calls since the last reset, of this process."""
        return self._step

    @property
    def gradients(self) -> list[Any]:
        """The reduced gradients, new Tensors; None where there was none. After a `reset` they are zeros."""
        if not self._sums:
            sentence = "The accumulator should be called first to initialize the gradients."
            raise refusal(ValueError, sentence, gradients=None)
        divisor = self._divisor()
        return [None if total is None else divided(total, divisor) for total in self._sums]

    def __call__(self, gradients: Any, weight: Optional[float] = None) -> None:
        """Add the gradients of a micro-batch: a list, or the model that has them after `backward`.

        With "token", `weight` is the number of its tokens that count, at least 0. With 0 its gradients are left out,
        whatever they are: a mean over no token is not a number.
        """
        weight = self._checked_weight(weight)
        self._check_call()
        names, parameters, gradients = read(gradients)
        sums, received, late = self._slots(names, gradients)
        for place, gradient in enumerate(gradients):
            if gradient is None or place in late:
                continue
            if sums[place] is None:
                sums[place] = paddle.zeros(gradient.shape, sum_dtype(gradient))
            if weight:
                value = gradient.detach().astype(sum_dtype(gradient))
                sums[place].add_(value * weight if self.reduction == "token" else value)
                received[place] = True
        clear(parameters or [])
        self._names, self._parameters, self._sums, self._received = names, parameters, sums, received
        self._step += 1
        self._count += 1
        self._weight += weight
        if late:
            what = f"Gradients at {late} of the list are left out, because the first ones there were None."
            advice = "Call the accumulator with the model, or with zeros instead of None, to have them."
            warnings.warn(f"{what} {advice}", stacklevel=2)

    def reset(self) -> None:
        """Begin a new cycle: zero the sums and the number of calls. The slots stay."""
        for total in self._sums:
            if total is not None:
                total.zero_()
        self._received = [False] * len(self._sums)
        self._step = self._count = 0
        self._weight = 0.0
        self._synchronized = False

    def _check_call(self) -> None:
        """Raise if no gradients can be added now, whichever they are."""
        fused = sharding_setting("tensor_fusion", "comm_overlap")
        if fused:
            advice = f"Each parameter must keep its gradient until `apply`: set {fused}=False in sharding_configs."
            raise refusal(ValueError, advice, **{fused: True})
        if self._synchronized:
            advice = "call `reset` or `apply` before the next micro-batch."
            raise refusal(ValueError, f"Sums of all processes are there already: {advice}", step=self._step)

    def _slots(self, names: Optional[list[str]], gradients: list[Any]) -> tuple[list[Any], list[bool], list[int]]:
        """Return copies of the sums and flags that a call adds to, and the places whose gradients come too late."""
        length, late = len(gradients), []
        if self._sums and names == self._names:
            if length != len(self._sums):
                raise ValueError(f"Expected {len(self._sums)} gradients, but got {length}")
            sums, received = list(self._sums), list(self._received)
            if names is None:
                late = [i for i, total in enumerate(sums) if total is None and gradients[i] is not None]
        elif self._step:
            given = f"{described(names, length)} after {described(self._names, len(self._sums))}"
            raise ValueError(f"All calls between two resets must be for the same parameters. Received: {given}")
        else:
            known = dict(zip(self._names or [], self._sums))
            sums = [known.get(name) for name in names] if names else [None] * length
            received = [False] * length
        for place, (gradient, total) in enumerate(zip(gradients, sums)):
            check_gradient(gradient, total, names[place] if names else place)
        return sums, received, late

    def _checked_weight(self, weight: Optional[float]) -> float:
        if self.reduction == "token":
            if weight is None:
                raise refusal(ValueError, '`weight` must be given with reduction="token".', weight=None)
            return checked_number(weight, "weight")
        if weight is not None:
            effect = '`weight` has an effect with reduction="token" only.'
            raise refusal(ValueError, effect, weight=weight, reduction=self.reduction)
        return 1.0

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

        A parameter that has had no gradient since the last `reset` is left without one, so that no optimizer moves it;
        under sharding with `split_param` it gets zeros, and weight decay may move it.

        `target` is the list of the parameters, in the order of `gradients`, or the model; by default those of the model
        that the accumulator was last called with.
        """
        if not self._step and not self._synchronized:
            raise refusal(ValueError, "There must be gradients to write.", step=self._step)
        parameters, divisor = self._target(target), self._divisor()
        pairs = zip(self._sums, self._received)
        write(parameters, (divided(total, divisor) if received else None for total, received in pairs))

    def apply(self, optimizer: Any, target: Any = None) -> None:
        """Take one step with the reduced gradients, then clear them and `reset`.

        `target` is as in `write_gradients`; where the accumulator is called with lists, by default the optimizer's
        parameters that are trainable, in its order.
        """
        if not callable(getattr(optimizer, "step", None)) or not hasattr(optimizer, "clear_grad"):
            raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
        held = parameters_of(optimizer)
        own = {param.name: param for param in held}
        if target is None and self._names is None:
            target = [param for param in held if not param.stop_gradient]
        elif target is None and self._parameters is None and self._own_names and own.keys() >= set(self._own_names):
            target = [own[name] for name in self._own_names]
        if self._step or self._synchronized:
            target = self._target(target)
            names = [param.name for param in target]
            if own and own.keys().isdisjoint(names):
                needed = "`optimizer` must be that of the model that the gradients are of, or its step would do nothing"
                received = f"optimizer with none of {len(names)} parameters, such as '{names[0]}'"
                raise ValueError(f"{needed}. Received: {received}")
        self.write_gradients(target)
        optimizer.step()
        if sharding_setting("split_param"):
            clear(held)
        else:
            optimizer.clear_grad(set_to_zero=False)
        self.reset()

    def _target(self, target: Any) -> list[Any]:
        """Return the checked parameters to write to, by default those of the last model."""
        target = self._parameters if target is None else target
        if target is None:
            since = "the accumulator was called with lists, or not with the model since it was made or loaded"
            raise refusal(ValueError, f"`target` must be given: {since}.", target=None)
        return checked_target(target, self._names, self._sums)

    def synchronize(self, group: Any = None) -> None:
        """Reduce over all processes, once a cycle: then `gradients` are those of the global batch, the same everywhere.

        Sums, numbers of calls and weights are each summed over the processes and divided after that, so the processes
        may differ in calls and in tokens. Every process of the group, by default all, must call it. If the processes
        accumulate other parameters, shapes or types, or with another `reduction`, all of them raise.
        """
        if self._synchronized:
            why = "a second time would add the sums of all processes again."
            raise refusal(ValueError, f"`synchronize` must be called once between two resets: {why}", step=self._step)
        check_group(group, self._sums)
        own_names = None if self._parameters is None else [param.name for param in self._parameters]
        slots = [slot_of(total) for total in self._sums]
        part = ProcessPart(self.reduction, self._names, own_names, slots, self._received, self._count, self._weight)
        parts = gathered(part, group)
        slots, self._names = agreed_slots(parts)
        self._own_names = next((part.own_names for part in parts if part.own_names), None)
        self._sums = summed(self._sums, slots, group)
        self._received = [any(flags) for flags in zip(*(part.received for part in parts if part.slots))]
        self._count = sum(part.count for part in parts)
        self._weight = math.fsum(part.weight for part in parts)
        self._synchronized = True

    def state_dict(self) -> dict[str, Any]:
        """Return this process's state, in the middle of a cycle or between two, for `paddle.save`.

        "gradients" is a dict place -> Tensor, unreduced; the other entries are counts and what the slots belong to.
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
        """Go on where `state_dict` was taken, bit for bit; raise, and change nothing, if it contradicts itself."""
        check_state(state_dict, self.reduction)
        saved = state_dict["gradients"]
        self._sums = [own_tensor(saved.get(str(place))) for place in range(state_dict["slots"])]
        self._names = None if state_dict["names"] is None else list(state_dict["names"])
        self._parameters = self._own_names = None
        self._received = [bool(flag) for flag in state_dict["received"]]
        self._step, self._count = int(state_dict["step"]), int(state_dict["count"])
        self._weight, self._synchronized = float(state_dict["weight"]), bool(state_dict["synchronized"])
