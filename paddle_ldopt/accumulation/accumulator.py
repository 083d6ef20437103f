"""`GradientAccumulator`: the sums, what adds to them, and how they become a step."""

import math
import warnings
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._checks import checked_choice, checked_number
from .._messages import refusal, wrong_type
from .._paddle import parameters_of, sharding_setting, unwrap_model
from .processes import Share, agreed_slots, gathered
from .state import check_state


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

    # ---- accumulating

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
        return [None if total is None else _divided(total, divisor) for total in self._sums]

    def __call__(self, gradients: Any, weight: Optional[float] = None) -> None:
        """Add the gradients of a micro-batch: a list, or the model that has them after `backward`.

        With "token", `weight` is the number of its tokens that count, at least 0. With 0 its gradients are left out,
        whatever they are: a mean over no token is not a number.
        """
        weight = self._checked_weight(weight)
        fused = sharding_setting("tensor_fusion", "comm_overlap")
        if fused:
            advice = f"Each parameter must keep its gradient until `apply`: set {fused}=False in sharding_configs."
            raise refusal(ValueError, advice, **{fused: True})
        if self._synchronized:
            advice = "call `reset` or `apply` before the next micro-batch."
            raise refusal(ValueError, f"Sums of all processes are there already: {advice}", step=self._step)
        names, parameters, gradients = _read(gradients)
        known = bool(self._sums) and names == self._names
        sums, received = self._slots(names, len(gradients), known)
        for place, (gradient, total) in enumerate(zip(gradients, sums)):
            _check_gradient(gradient, total, names[place] if names else place)

        left_out = []
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if sums[place] is None and names is None and known:
                left_out.append(place)
            elif weight != 0:
                value = gradient.detach().astype(_sum_dtype(gradient))
                value = value * weight if self.reduction == "token" else value
                # not in place for the first one: the gradient itself is the caller's
                sums[place] = value.clone() if sums[place] is None else sums[place].add_(value)
                received[place] = True
            elif sums[place] is None:
                sums[place] = paddle.zeros(gradient.shape, _sum_dtype(gradient))
        _clear(parameters or [])
        self._names, self._parameters, self._sums, self._received = names, parameters, sums, received
        self._step += 1
        self._count += 1
        self._weight += weight
        if left_out:
            what = f"Gradients at {left_out} of the list are left out, because the first ones there were None."
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

    def _slots(self, names: Optional[list[str]], length: int, known: bool) -> tuple[list[Any], list[bool]]:
        """Return copies of the lists of sums and flags that a call adds to; new ones if the slots are not known."""
        if known:
            if length != len(self._sums):
                raise ValueError(f"Expected {len(self._sums)} gradients, but got {length}")
            return list(self._sums), list(self._received)
        if self._step:
            received = f"{_described(names, length)} after {_described(self._names, len(self._sums))}"
            raise ValueError(f"All calls between two resets must be for the same parameters. Received: {received}")
        sums = dict(zip(self._names or [], self._sums))
        return [sums.get(name) for name in names] if names else [None] * length, [False] * length

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

    # ---- stepping

    def write_gradients(self, target: Any = None) -> None:
        """Write the reduced gradients into the parameters, in their types, for an optimizer or a scaler.

        A parameter that has had no gradient since the last `reset` is left without one, so that no optimizer moves it;
        under sharding with `split_param` it gets zeros, and weight decay may move it.

        `target` is the list of the parameters, in the order of `gradients`, or the model; by default those of the model
        that the accumulator was last called with.
        """
        if not self._step and not self._synchronized:
            raise refusal(ValueError, "There must be gradients to write.", step=self._step)
        parameters = self._checked_target(target)
        divisor = self._divisor()
        _clear(parameters)
        for param, total, received in zip(parameters, self._sums, self._received):
            if not received:
                continue
            gradient = _divided(total, divisor).astype(param.dtype)
            if param.grad is None:
                param.grad = gradient
            else:
                paddle.assign(gradient, param.grad)  # a part of the buffer that sharding reduces

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
            target = self._checked_target(target)
            names = [param.name for param in target]
            if own and own.keys().isdisjoint(names):
                needed = "`optimizer` must be that of the model that the gradients are of, or its step would do nothing"
                received = f"optimizer with none of {len(names)} parameters, such as '{names[0]}'"
                raise ValueError(f"{needed}. Received: {received}")
        self.write_gradients(target)
        optimizer.step()
        if sharding_setting("split_param"):
            _clear(held)
        else:
            optimizer.clear_grad(set_to_zero=False)
        self.reset()

    def _checked_target(self, target: Any) -> list[Any]:
        """Return the parameters to write to, raise if they are not those of the gradients."""
        if target is None and self._parameters is None:
            since = "the accumulator was called with lists, or not with the model since it was made or loaded"
            raise refusal(ValueError, f"`target` must be given: {since}.", target=None)
        if target is None:
            target = self._parameters
        elif isinstance(target, paddle.nn.Layer):
            names, target = _trainable(target)
            if self._names is not None and names != self._names:
                received = _described(names, len(target))
                expected = _described(self._names, len(self._sums))
                message = "`target` must be the model that the gradients are of."
                raise ValueError(f"{message} Received: {received}, for gradients of {expected}")
        listed = hasattr(target, "__iter__") and not isinstance(target, paddle.Tensor)
        parameters = list(target) if listed else []
        if not listed or not all(isinstance(param, paddle.Tensor) for param in parameters):
            raise wrong_type(target, "target", "a list of parameters or a paddle.nn.Layer")
        if len(parameters) != len(self._sums):
            raise ValueError(f"`target` must hold {len(self._sums)} parameters. Received: {len(parameters)}")
        for place, (param, total) in enumerate(zip(parameters, self._sums)):
            if total is not None and list(param.shape) != list(total.shape):
                received = f"shape={list(param.shape)} for a gradient of shape {list(total.shape)}, at {place}"
                message = "`target` must hold the parameters that the gradients are of."
                raise ValueError(f"{message} Received: {received}")
        return parameters

    # ---- data parallelism

    def synchronize(self, group: Any = None) -> None:
        """Reduce over all processes, once a cycle: then `gradients` are those of the global batch, the same everywhere.

        Sums, numbers of calls and weights are each summed over the processes and divided after that, so the processes
        may differ in calls and in tokens. Every process of the group, by default all, must call it. If the processes
        accumulate other parameters, shapes or types, or with another `reduction`, all of them raise.
        """
        if self._synchronized:
            why = "a second time would add the sums of all processes again."
            raise refusal(ValueError, f"`synchronize` must be called once between two resets: {why}", step=self._step)
        if group is not None and not hasattr(group, "is_member"):
            raise refusal(TypeError, "`group` must be a paddle.distributed Group.", group=group)
        if group is not None and not group.is_member():
            raise refusal(ValueError, "`group` must hold this process.", group=group)
        if dist.get_world_size(group) > 1 and any(total is not None and total.is_dist() for total in self._sums):
            what = "Gradients of DistTensors (`dist.shard_tensor`) are those of all processes already"
            received = f"{len(self._sums)} gradients, DistTensors among them"
            raise ValueError(f"{what}: call `apply` without `synchronize`. Received: {received}")
        own_names = None if self._parameters is None else [param.name for param in self._parameters]
        mine = [
            None if total is None else (list(total.shape), str(total.dtype).rpartition(".")[2]) for total in self._sums
        ]
        share = Share(self.reduction, self._names, own_names, mine, self._received, self._count, self._weight)
        shares = gathered(share, group)
        slots, self._names = agreed_slots(shares)
        self._own_names = next((share.own_names for share in shares if share.own_names), None)
        self._sums = self._sums or [None] * len(slots)
        for place, slot in enumerate(slots):
            if slot is None:
                continue
            if self._sums[place] is None:
                self._sums[place] = paddle.zeros(*slot)
            if len(shares) > 1:
                dist.all_reduce(self._sums[place], op=dist.ReduceOp.SUM, group=group)
        self._received = [any(flags) for flags in zip(*(share.received for share in shares if share.slots))]
        self._count = sum(share.count for share in shares)
        self._weight = math.fsum(share.weight for share in shares)
        self._synchronized = True

    # ---- state

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
        self._sums = [_own(saved.get(str(place))) for place in range(state_dict["slots"])]
        self._names = None if state_dict["names"] is None else list(state_dict["names"])
        self._parameters = self._own_names = None
        self._received = [bool(flag) for flag in state_dict["received"]]
        self._step, self._count = int(state_dict["step"]), int(state_dict["count"])
        self._weight, self._synchronized = float(state_dict["weight"]), bool(state_dict["synchronized"])


def _read(gradients: Any) -> tuple[Optional[list[str]], Optional[list[Any]], list[Any]]:
    """Return the names, parameters and gradients of a model, or None, None and the gradients of a list."""
    if isinstance(gradients, (list, tuple)):
        return None, None, list(gradients)
    if not isinstance(gradients, paddle.nn.Layer):
        raise wrong_type(gradients, "gradients", "a list of Tensors and None, or a paddle.nn.Layer")
    names, parameters = _trainable(gradients)
    found = [param.grad for param in parameters]
    if all(gradient is None for gradient in found):
        received = f"{len(parameters)} trainable parameters, none with a gradient"
        raise ValueError(f"The model must have gradients: call `backward` first. Received: {received}")
    return names, parameters, found


def _trainable(model: Any) -> tuple[list[str], list[Any]]:
    """Return the structured names of a model's trainable parameters, and the parameters."""
    inner = unwrap_model(model) if isinstance(model, paddle.DataParallel) else model
    named = [(name, param) for name, param in inner.named_parameters() if not param.stop_gradient]
    return [name for name, _ in named], [param for _, param in named]


def _clear(parameters: Any) -> None:
    """Leave parameters without gradients, or with zeros where sharding reduces the buffer that these are in."""
    in_buffers = sharding_setting("split_param")
    for param in parameters:
        if not in_buffers:
            param.clear_gradient(False)  # by its name, Paddle ignores the argument and leaves zeros
        elif param.grad is not None:
            with paddle.no_grad():
                param.grad.zero_()


def _check_gradient(gradient: Any, total: Any, place: Any) -> None:
    """Raise if a gradient cannot be added to its sum."""
    if gradient is None:
        return
    if not isinstance(gradient, paddle.Tensor):
        raise TypeError(f"A gradient must be a Tensor or None. Received: {type(gradient).__name__} at {place}")
    if gradient.is_selected_rows():
        advice = "build the embedding with sparse=False"
        raise TypeError(f"Gradients must be dense: {advice}. Received: a sparse gradient at {place}")
    if not gradient.is_floating_point():
        raise TypeError(f"A gradient must be of a floating-point type. Received: dtype={gradient.dtype} at {place}")
    shape = list(gradient.shape)
    if total is not None and shape != list(total.shape):
        needed = f"A gradient must have the shape of those before it, {list(total.shape)}."
        raise ValueError(f"{needed} Received: shape={shape} at {place}")


def _sum_dtype(gradient: Any) -> Any:
    return paddle.float64 if gradient.dtype == paddle.float64 else paddle.float32


def _divided(total: Any, divisor: float) -> Any:
    """Return a new Tensor: `/` with a number would multiply by its rounded reciprocal."""
    return total / paddle.full([], divisor, total.dtype)


def _own(value: Any) -> Any:
    """Return a Tensor of our own with the value of a Tensor or array, None for None: sums are added to in place."""
    return value.clone() if isinstance(value, paddle.Tensor) else value if value is None else paddle.to_tensor(value)


def _described(names: Optional[list[str]], length: int) -> str:
    """Describe the slots for a message."""
    if names is None:
        return f"a list of {length} gradients" if length else "nothing"
    return f"{length} parameters ({', '.join(names[:3])}{', ...' if length > 3 else ''})"
