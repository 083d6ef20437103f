"""Gradients of several micro-batches as one (a port of transformers 4.37's TensorFlow class `GradientAccumulator`)."""

import math
import warnings

import paddle
import paddle.distributed as dist

from ._checks import checked_bool, checked_number, checked_state, checked_steps, shown
from ._paddle import parameters_of, sharding_setting
from .optimizers._base.groups import is_listed

__all__ = ["GradientAccumulator"]

_REDUCTIONS = ("sum", "mean", "token")


class GradientAccumulator:
    r"""Sum gradients over micro-batches in float32: for batches that don't fit, with a resume in mid-cycle.

    With :math:`g_i` the gradient of micro-batch i, over all micro-batches since the last `reset` (of all ranks, after
    `synchronize`), None counting as zero:

    .. math::
        \text{"sum"}: \sum_i g_i \qquad \text{"mean"}: \frac{1}{n} \sum_i g_i \qquad
        \text{"token"}: \frac{\sum_i w_i g_i}{\sum_i w_i}

    "mean" is the gradient of a large batch if all micro-batches are of one size. "token" is it too where they differ in
    the number of tokens that count, :math:`w_i`, and the loss of each is the mean over its own.

    **Called with a list** of gradients, as in TensorFlow, it keeps a slot for each place in the list. A place that
    holds None in the very first call stays None for good, as there; a gradient that comes to it later is left out, with
    a warning. **Called with a model**, it takes the gradients of the trainable parameters, in the order of
    ``model.named_parameters()``, and clears them: `backward` adds to what it finds, so a gradient left in place would
    be counted twice. A parameter that has no gradient at first is none the worse for it. Between cycles the set of
    trainable parameters may change; within one it may not.

    Sums are float32 for float16, bfloat16 and float32 gradients, float64 for float64: 4 or 8 bytes an element.

    Args:
        reduction (str, optional): "sum", "mean" or "token".

    Raises:
        TypeError: neither a list of dense floating-point Tensors and None nor a Layer; a weight that is no number.
        ValueError: a list of another length, a gradient of another shape than before; a model without any gradient, or
            with other trainable parameters within a cycle; a weight that is negative, missing with "token" or given
            with anything else; a call between `synchronize` and `reset`; `gradients` before the first call. Nothing has
            changed by then.

    Warns:
        UserWarning: a gradient was left out because the first one in its place was None.

    Differs from transformers: models, weights, "mean" and "token", data parallelism and a state that can be saved are
    added; `step` is an int; sums are float32 at least; it warns of what it leaves out.

    Examples:
        .. code-block:: python

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
            >>> print(accumulator.step)
            0

    On several processes each accumulates on its own, and there is one reduction a cycle: use the plain model, or
    `paddle.DataParallel` under ``no_sync()``, and call `synchronize` before `apply`. A process may have no micro-batch
    in a cycle. Sharding of stage 1 works, with `split_param` too; `tensor_fusion` and `comm_overlap` are refused.

    Source: ``transformers.GradientAccumulator`` of ``optimization_tf.py``.
    """

    def __init__(self, reduction="sum"):
        if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
            raise ValueError(
                f"`reduction` must be one of {', '.join(map(repr, _REDUCTIONS))}. "
                f"Received: reduction={shown(reduction)}"
            )
        self.reduction = reduction
        self._names = None  # of a model's parameters; None: the slots are those of a list, or there are none yet
        self._parameters = None  # those of the last model that was seen
        self._own_names = None  # of the parameters of the processes, for one that has seen no model
        self._sums = []  # float32 or float64 Tensors, None where there was no gradient yet
        self._received = []  # whether a slot got a gradient in this cycle
        self._step = 0
        self._count = 0  # micro-batches in the sums: those of all ranks once synchronized
        self._weight = 0.0
        self._synchronized = False

    # ---- accumulating

    @property
    def step(self):
        """The number of calls since the last reset, of this process."""
        return self._step

    @property
    def gradients(self):
        """The reduced gradients, new Tensors; None where there was none. After a `reset` they are zeros."""
        if not self._sums:
            raise ValueError(
                "The accumulator should be called first to initialize the gradients. Received: no gradients so far"
            )
        divisor = self._divisor()
        return [None if total is None else _divided(total, divisor) for total in self._sums]

    def __call__(self, gradients, weight=None):
        """Add the gradients of a micro-batch.

        Args:
            gradients (list[Tensor|None]|Layer): the gradients, or the model that `backward` has given them to.
            weight (float, optional): with "token", the tokens of the micro-batch that count, at least 0. With 0 its
                gradients are left out, whatever they are: a mean over no token is not a number.
        """
        weight = self._checked_weight(weight)
        fused = sharding_setting("tensor_fusion", "comm_overlap")
        if fused:
            raise ValueError(
                "Each parameter must keep its own gradient until `apply`: "
                f"set {fused}=False in the strategy's sharding_configs. Received: {fused}=True"
            )
        if self._synchronized:
            raise ValueError(
                "Sums of all processes are there already: call `reset` or `apply` before the next micro-batch. "
                f"Received: a call after `synchronize`, step={self._step}"
            )
        names = parameters = None
        if isinstance(gradients, paddle.nn.Layer):
            names, parameters = _trainable(gradients)
            gradients = [param.grad for param in parameters]
            if all(gradient is None for gradient in gradients):
                raise ValueError(
                    "The model must have gradients: call `backward` first. "
                    f"Received: {len(parameters)} trainable parameters, none with a gradient"
                )
        elif not isinstance(gradients, (list, tuple)):
            raise TypeError(
                "`gradients` must be a list of Tensors and None, or a paddle.nn.Layer. "
                f"Received: gradients of type {type(gradients).__name__}"
            )
        sums, received = self._slots_for(names, len(gradients))
        first = self._names is None and not self._sums
        for place, (gradient, total) in enumerate(zip(gradients, sums)):
            _check_gradient(gradient, total, names[place] if names else place)

        left_out = []
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if sums[place] is None and names is None and not first:
                left_out.append(place)
                continue
            if weight != 0:
                value = _as_sum(gradient)
                value = value * weight if self.reduction == "token" else value
                # not in place for the first one: the gradient itself is the caller's
                sums[place] = value.clone() if sums[place] is None else sums[place].add_(value)
                received[place] = True
            elif sums[place] is None:
                sums[place] = paddle.zeros(gradient.shape, _sum_dtype(gradient))
        if parameters is not None:
            _clear(parameters)
        self._names, self._parameters, self._sums, self._received = names, parameters, sums, received
        self._step += 1
        self._count += 1
        self._weight += weight
        if left_out:
            warnings.warn(
                f"Gradients at {left_out} of the list are left out, because the first ones there were None. Call the "
                "accumulator with the model, or with zeros instead of None, to have them.",
                stacklevel=2,
            )

    def reset(self):
        """Begin a new cycle: zero the sums and the number of calls. The slots stay."""
        for total in self._sums:
            if total is not None:
                total.zero_()
        self._received = [False] * len(self._sums)
        self._step = self._count = 0
        self._weight = 0.0
        self._synchronized = False

    def _slots_for(self, names, length):
        """Return the sums and flags that a call adds to, copied lists of them, or raise if they are not the same."""
        if names is None:
            if self._names is None and self._sums and length != len(self._sums):
                raise ValueError(f"Expected {len(self._sums)} gradients, but got {length}")
            same = self._names is None and bool(self._sums)
        else:
            same = names == self._names
        if same:
            return list(self._sums), list(self._received)
        if self._step:
            raise ValueError(
                "All calls between two resets must be for the same parameters. Received: "
                f"{_described(names, length)} after {_described(self._names, len(self._sums))}"
            )
        known = dict(zip(self._names, self._sums)) if self._names and names else {}
        return [known.get(name) for name in names] if names else [None] * length, [False] * length

    def _checked_weight(self, weight):
        if self.reduction != "token":
            if weight is not None:
                raise ValueError(
                    '`weight` has an effect with reduction="token" only. '
                    f"Received: weight={shown(weight)}, reduction={shown(self.reduction)}"
                )
            return 1.0
        if weight is None:
            raise ValueError('`weight` must be given with reduction="token". Received: weight=None')
        return checked_number(weight, "weight")

    def _divisor(self):
        """Return what the sums are divided by."""
        if self.reduction == "sum" or self._count == 0:
            return 1.0
        total = self._count if self.reduction == "mean" else self._weight
        if total == 0:
            raise ValueError(f"At least one weight must be above 0. Received: weight=0 in all of {self._count} calls")
        return float(total)

    # ---- stepping

    def write_gradients(self, target=None):
        """Make the reduced gradients those of the parameters, in the parameters' types, for an optimizer or a scaler.

        A parameter that has had no gradient since the last `reset` is left without one, so that no optimizer moves it;
        under sharding with `split_param` it gets zeros, which weight decay may add to.

        Args:
            target (list[Tensor]|Layer, optional): the parameters, in the order of `gradients`, or the model. By default
                those of the model that the accumulator was last called with.

        Raises:
            ValueError: no call since the last `reset`; other parameters than those the gradients are of; no `target`,
                and no model to take its place.
        """
        if not self._step and not self._synchronized:
            raise ValueError(f"There must be gradients to write. Received: step={self._step}")
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

    def apply(self, optimizer, target=None):
        """Take one step with the reduced gradients, then clear and `reset`.

        Args:
            optimizer (Optimizer): what to step with.
            target (list[Tensor]|Layer, optional): as in `write_gradients`; where the accumulator is called with lists,
                the optimizer's parameters that are trainable, in its order, by default.

        Raises:
            TypeError: `optimizer` is none.
            ValueError: as in `write_gradients`; an optimizer that has none of the parameters. Nothing has changed by
                then.
        """
        if not callable(getattr(optimizer, "step", None)) or not hasattr(optimizer, "clear_grad"):
            raise TypeError(
                f"`optimizer` must be a Paddle optimizer. Received: optimizer of type {type(optimizer).__name__}"
            )
        if target is None and self._names is None:
            target = [param for param in parameters_of(optimizer) if not param.stop_gradient]
        elif target is None and self._parameters is None and self._own_names:
            own = {param.name: param for param in parameters_of(optimizer)}
            target = [own[name] for name in self._own_names] if own.keys() >= set(self._own_names) else None
        if (self._step or self._synchronized) and hasattr(optimizer, "_parameter_list"):
            held = {param.name for param in parameters_of(optimizer)}
            names = [param.name for param in self._checked_target(target)]
            if held.isdisjoint(names):
                raise ValueError(
                    "`optimizer` must be that of the model that the gradients are of, or its step would do nothing. "
                    f"Received: optimizer with none of {len(names)} parameters, such as '{names[0]}'"
                )
        self.write_gradients(target)
        optimizer.step()
        if sharding_setting("split_param"):
            _clear(parameters_of(optimizer))
        else:
            optimizer.clear_grad(set_to_zero=False)
        self.reset()

    def _checked_target(self, target):
        if target is None:
            target = self._parameters
            if target is None:
                raise ValueError(
                    "`target` must be given: the accumulator was called with lists, or not with the model since it was "
                    "made or its state was loaded. Received: target=None"
                )
        elif isinstance(target, paddle.nn.Layer):
            names, target = _trainable(target)
            if self._names is not None and names != self._names:
                raise ValueError(
                    "`target` must be the model that the gradients are of. Received: "
                    f"{_described(names, len(target))}, for gradients of {_described(self._names, len(self._sums))}"
                )
        if not is_listed(target) or not all(isinstance(param, paddle.Tensor) for param in target):
            raise TypeError(
                f"`target` must be a list of parameters or a paddle.nn.Layer. Received: {type(target).__name__}"
            )
        parameters = list(target)
        if len(parameters) != len(self._sums):
            raise ValueError(f"`target` must hold {len(self._sums)} parameters. Received: {len(parameters)}")
        for place, (param, total) in enumerate(zip(parameters, self._sums)):
            if total is not None and list(param.shape) != list(total.shape):
                raise ValueError(
                    f"`target` must hold the parameters that the gradients are of. Received: shape={list(param.shape)} "
                    f"for a gradient of shape {list(total.shape)}, at {place}"
                )
        return parameters

    # ---- data parallelism

    def synchronize(self, group=None):
        """Reduce over all processes, once a cycle: then `gradients` are those of the global batch, the same everywhere.

        Sums, numbers of calls and weights are each summed over the processes and divided after that, so the processes
        may differ in calls and in tokens. Every process of the group must call it. With one process there is nothing to
        add.

        Args:
            group (Group, optional): the processes; all by default.

        Raises:
            ValueError: a second time in a cycle, or before any process has made a call in it; DistTensors in several
                processes; processes that accumulate other parameters, shapes or types, or with another `reduction`.
                All processes raise, and nothing has changed by then.
        """
        if self._synchronized:
            raise ValueError(
                "`synchronize` must be called once between two resets: a second time would add the sums of all "
                f"processes again. Received: a second call, step={self._step}"
            )
        if group is not None and not hasattr(group, "is_member"):
            raise TypeError(f"`group` must be a paddle.distributed Group. Received: group={shown(group)}")
        if group is not None and not group.is_member():
            raise ValueError(f"`group` must hold this process. Received: group={group}")
        if dist.get_world_size(group) > 1 and any(total is not None and total.is_dist() for total in self._sums):
            raise ValueError(
                "Gradients of DistTensors (`dist.shard_tensor`) are those of all processes already: call `apply` "
                f"without `synchronize`. Received: {len(self._sums)} gradients, DistTensors among them"
            )
        # as objects, so that what differs is seen by all before any of them waits for a tensor that never comes
        mine = {
            "reduction": self.reduction,
            "names": self._names,
            "own_names": None if self._parameters is None else [param.name for param in self._parameters],
            "slots": [None if total is None else (list(total.shape), str(total.dtype)) for total in self._sums],
            "received": self._received,
            "count": self._count,
            "weight": self._weight,
        }
        everyone = _gathered(mine, group)
        slots, self._names = _agreed_slots(everyone)
        self._own_names = next((one["own_names"] for one in everyone if one["own_names"]), None)
        self._sums = self._sums or [None] * len(slots)
        for place, (shape, dtype) in enumerate(slots):
            if shape is None:
                continue
            if self._sums[place] is None:
                self._sums[place] = paddle.zeros(shape, dtype)
            if len(everyone) > 1:
                dist.all_reduce(self._sums[place], op=dist.ReduceOp.SUM, group=group)
        self._received = [any(flags) for flags in zip(*(one["received"] for one in everyone if one["slots"]))]
        self._count = sum(one["count"] for one in everyone)
        self._weight = math.fsum(one["weight"] for one in everyone)
        self._synchronized = True

    # ---- state

    def state_dict(self):
        """Return the state in the middle of a cycle or between two, for `paddle.save`; of this process alone.

        Returns:
            dict: "gradients" (a dict place -> Tensor, unreduced), the counts, and what the slots belong to.
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

    def set_state_dict(self, state_dict):
        """Go on where `state_dict` was taken, bit for bit.

        Args:
            state_dict (dict): the state.

        Raises:
            ValueError: a state that lacks something, contradicts itself, or is of another `reduction`. Nothing has
                changed by then.
        """
        checked_state(state_dict)
        missing = sorted(_STATE_KEYS - set(state_dict))
        if missing:
            raise ValueError(
                f"The state must be a GradientAccumulator's, and lacks {missing}. "
                f"Received: keys {shown(list(state_dict))}"
            )
        if state_dict["reduction"] != self.reduction:
            raise ValueError(
                "The state must be of an accumulator with the same `reduction`. Received: "
                f"reduction={shown(state_dict['reduction'])} for reduction={shown(self.reduction)}"
            )
        _check_state(state_dict)
        saved = state_dict["gradients"]
        self._sums = [_own(saved.get(str(place))) for place in range(state_dict["slots"])]
        self._names = None if state_dict["names"] is None else list(state_dict["names"])
        self._parameters = self._own_names = None
        self._received = [bool(flag) for flag in state_dict["received"]]
        self._step, self._count = int(state_dict["step"]), int(state_dict["count"])
        self._weight, self._synchronized = float(state_dict["weight"]), bool(state_dict["synchronized"])


_STATE_KEYS = {
    "reduction",
    "names",
    "slots",
    "received",
    "step",
    "count",
    "weight",
    "synchronized",
    "gradients",
}


def _check_state(state):
    """Raise unless the entries of a state have the right types and fit each other."""
    slots, step = checked_steps(state["slots"], "slots"), checked_steps(state["step"], "step")
    count = checked_steps(state["count"], "count", least=step)
    checked_number(state["weight"], "weight")
    synchronized = checked_bool(state["synchronized"], "synchronized")
    names, received, sums = state["names"], state["received"], state["gradients"]
    if count > step and not synchronized:
        raise ValueError(f"`count` must be `step` before `synchronize`. Received: count={count}, step={step}")
    for key, listed in (("received", received), ("names", received if names is None else names)):
        if not isinstance(listed, (list, tuple)) or len(listed) != slots:
            size = len(listed) if isinstance(listed, (list, tuple)) else type(listed).__name__
            raise ValueError(f"`{key}` must be a list with an entry for each slot. Received: {key} of {size}, {slots=}")
    if any(received) and not count:
        raise ValueError("`count` must be at least 1 where gradients were received. Received: count=0")
    places = {str(place): flag for place, flag in enumerate(received)}
    if not isinstance(sums, dict) or not {place for place, flag in places.items() if flag} <= set(sums) <= set(places):
        keys = sorted(map(str, sums))[:8] if isinstance(sums, dict) else type(sums).__name__
        raise ValueError(
            "`gradients` must be a dict with the sum of each slot that received a gradient, under the slot's number. "
            f"Received: gradients of {keys}, {slots=}"
        )
    for place, total in sums.items():
        if str(getattr(total, "dtype", None)).rpartition(".")[2] not in ("float32", "float64"):
            raise ValueError(
                "`gradients` must be Tensors or arrays of float32 or float64. "
                f"Received: {type(total).__name__} of dtype={getattr(total, 'dtype', None)} at {place}"
            )


def _trainable(model):
    """Return the structured names of a model's trainable parameters, and the parameters."""
    inner = model._layers if isinstance(model, paddle.DataParallel) else model
    named = [(name, param) for name, param in inner.named_parameters() if not param.stop_gradient]
    return [name for name, _ in named], [param for _, param in named]


def _clear(parameters):
    """Leave parameters without gradients, or with zeros where sharding reduces the buffer that these are in."""
    in_buffers = sharding_setting("split_param")
    for param in parameters:
        if not in_buffers:
            param.clear_gradient(False)  # by its name, Paddle ignores the argument and leaves zeros
        elif param.grad is not None:
            with paddle.no_grad():
                param.grad.zero_()


def _check_gradient(gradient, total, place):
    """Raise if a gradient cannot be added to its sum."""
    if gradient is None:
        return
    if not isinstance(gradient, paddle.Tensor):
        raise TypeError(f"A gradient must be a Tensor or None. Received: {type(gradient).__name__} at {place}")
    if gradient.is_selected_rows():
        raise TypeError(
            f"Gradients must be dense: build the embedding with sparse=False. Received: a sparse gradient at {place}"
        )
    if not gradient.is_floating_point():
        raise TypeError(f"A gradient must be of a floating-point type. Received: dtype={gradient.dtype} at {place}")
    if total is not None and list(gradient.shape) != list(total.shape):
        raise ValueError(
            f"A gradient must have the shape of those before it, {list(total.shape)}. "
            f"Received: shape={list(gradient.shape)} at {place}"
        )


def _sum_dtype(gradient):
    return paddle.float64 if gradient.dtype == paddle.float64 else paddle.float32


def _as_sum(gradient):
    """Return a gradient in the type of its sum, without its history; it may be the same memory."""
    return gradient.detach().astype(_sum_dtype(gradient))


def _divided(total, divisor):
    """Return a new Tensor: `/` with a number would multiply by its rounded reciprocal."""
    return total / paddle.full([], divisor, total.dtype)


def _own(value):
    """Return a Tensor of our own with the value of a Tensor or array, None for None: sums are added to in place."""
    return value.clone() if isinstance(value, paddle.Tensor) else value if value is None else paddle.to_tensor(value)


def _described(names, length):
    """Say what the slots are, for a message."""
    if names is None:
        return f"a list of {length} gradients" if length else "nothing"
    return f"{length} parameters ({', '.join(names[:3])}{', ...' if length > 3 else ''})"


def _gathered(mine, group):
    """Return the objects of all processes of a group."""
    if dist.get_world_size(group) == 1:
        return [mine]
    if not dist.is_initialized():
        raise ValueError(
            "Processes must be connected: call `paddle.distributed.init_parallel_env` first. "
            f"Received: {dist.get_world_size()} processes, not initialized"
        )
    everyone: list = []
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _agreed_slots(everyone):
    """Return (shape, dtype) of each slot, None where no process has one, and their names; raise if processes differ.

    A process that has not been called yet has no slots, and takes those of the others.
    """
    if not any(one["count"] for one in everyone):
        raise ValueError(
            "The accumulator should be called first. Received: no call since the last reset on any process"
        )
    called = [rank for rank, one in enumerate(everyone) if one["slots"] or one["count"]]
    first = everyone[called[0]]
    for rank, one in enumerate(everyone):
        if one["reduction"] != first["reduction"]:
            raise ValueError(
                f"All processes must have the same reduction. Received: {one['reduction']!r} of process {rank} of the "
                f"group, {first['reduction']!r} of process {called[0]}"
            )
        if rank not in called:
            continue
        if one["names"] != first["names"]:
            raise ValueError(
                "All processes must accumulate the same parameters: freeze a parameter in all of them or in none. "
                f"Received: {_difference(one['names'], rank, first['names'], called[0])} of the group"
            )
        if len(one["slots"]) != len(first["slots"]):
            raise ValueError(
                f"All processes must have as many gradients. Received: {len(one['slots'])} of process {rank} of the "
                f"group, {len(first['slots'])} of process {called[0]}"
            )
    agreed = []
    for place, slots in enumerate(zip(*(everyone[rank]["slots"] for rank in called))):
        kinds = [slot for slot in slots if slot is not None]
        if any(kind != kinds[0] for kind in kinds) or (first["names"] is None and kinds and len(kinds) < len(slots)):
            raise ValueError(
                f"All processes must have gradients of the same shape and type. Received: {list(slots)} at {place}"
            )
        shape, dtype = kinds[0] if kinds else (None, None)
        agreed.append((shape, dtype if dtype is None else dtype.rpartition(".")[2]))
    return agreed, first["names"]


def _difference(names, rank, others, other):
    """Say where the names of two processes differ; they are None if the gradients came as a list."""
    if names is None or others is None:
        return f"a list of gradients in process {rank if names is None else other}, a model in process " + str(
            other if names is None else rank
        )
    only = sorted(set(names) ^ set(others))
    if not only:
        return f"another order in process {rank} than in process {other}"
    has, lacks = (rank, other) if only[0] in names else (other, rank)
    return f"'{only[0]}' in process {has} and not in process {lacks}"
