"""The calculation: the bytes that the fullest device holds and sends in a step.

Volumes assume ring algorithms on n devices: an all-reduce of S bytes sends 2 S (n - 1) / n from each device. A
reduce-scatter, an all-gather, a reduce or a broadcast sends half as much, as the mean over the devices.
"""

import collections
import dataclasses
import functools
import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

from ..._checks import checked_int
from ..._messages import refusal, shown, wrong_type
from ...optimizers.states import ELEMENT
from .model import Layout, Transformer, Weight
from .optimizer import ITEMSIZE, OptimizerSpec

_ALIGNMENT = 256  # bytes to which sharding v2 pads a parameter in its buffers
_BUFFER = 256 * 2**20  # bytes at which a buffer of sharding v2 is full: Paddle's `comm_buffer_size_MB`
_WHOLE_UP_TO = 2**20  # elements up to which stage 3 does not cut a parameter: Paddle's `segment_size`


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """The bytes that the fullest device holds, and the mean bytes that a device of its stage sends in a step.

    Tensor parallel's traffic within the blocks is not counted.
    """

    optimizer: OptimizerSpec
    layout: Layout
    parameters: int
    gradients: int
    masters: int  #: float32 masters
    state: int  #: state of the optimizer
    sent_gradients: int  #: to sum gradients over replicas, and over the devices that share the state
    sent_parameters: int  #: to give every device the new parameters
    sent_sums: int  #: for the update's sums over parameters in shards
    sent_activations: Optional[int]  #: by the busiest pipeline stage to its neighbours; None: tokens are not known

    @property
    def total(self) -> int:
        """Bytes that stay in memory."""
        return self.parameters + self.gradients + self.masters + self.state

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict that JSON can hold."""
        return {**dataclasses.asdict(self), "devices": self.layout.devices, "total": self.total}


def estimate(
    model: Union[Transformer, dict[str, list[int]]],
    optimizer: OptimizerSpec,
    layout: Layout,
    tokens: Optional[int] = None,
) -> MemoryUse:
    """Return the `MemoryUse` of the device that takes the most memory.

    Args:
        model: a `Transformer`, or structured name -> shape of all parameters in the order of
            ``model.named_parameters()``. Shapes alone allow no `mp` or `pp`.
        optimizer: the optimizer and the types.
        layout: the numbers of devices.
        tokens: tokens of one pipeline in a step, at least 1, for the bytes that its stages send.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a layout that the model or the optimizer does not support.

    Examples:
        >>> from paddle_ldopt.tools.memory import Layout, OptimizerSpec, Transformer, estimate
        >>> answer = estimate(Transformer.of_size(7e9), OptimizerSpec("came"), Layout(sharding=8))
        >>> print(f"{answer.total / 2**30:.1f} GiB, including {answer.state / 2**30:.1f} GiB of state")
        31.4 GiB, including 3.2 GiB of state
    """
    if not isinstance(model, (Transformer, dict)):
        raise wrong_type(model, "model", "a Transformer or a dict")
    for name, value, cls in (("layout", layout, Layout), ("optimizer", optimizer, OptimizerSpec)):
        if not isinstance(value, cls):
            raise wrong_type(value, name, f"an instance of {cls.__name__}")
    if tokens is not None:
        tokens = checked_int(tokens, "tokens", 1)
    if layout.stage == 3 and optimizer.name != "adamwdl":
        message = f"Stage 3 gives an optimizer slices that {optimizer.name} does not support"
        advice = "use stage 1, with or without split_param, or adamwdl."
        raise refusal(ValueError, f"{message}: {advice}", stage=3, name=optimizer.name)
    if not isinstance(model, Transformer) and (layout.mp > 1 or layout.pp > 1):
        message = "Shapes alone do not tell how `mp` and `pp` cut a model: give hidden, layers and vocab."
        raise refusal(ValueError, message, mp=layout.mp, pp=layout.pp)
    if isinstance(model, Transformer):  # the stages in the middle are alike
        stages = [model.weights(layout.mp, layout.pp, i) for i in sorted({0, layout.pp // 2, layout.pp - 1})]
    else:
        stages = [[Weight(name, _checked_shape(name, shape)) for name, shape in model.items()]]
    most = max((_stage_use(weights, optimizer, layout) for weights in stages), key=lambda use: use.total)
    sent: Optional[int] = 0
    if layout.pp > 1:
        width, neighbours = getattr(model, "hidden", 0), 2 if layout.pp > 2 else 1
        sent = None if tokens is None else tokens * width * ITEMSIZE[optimizer.dtype] * neighbours
    return dataclasses.replace(most, sent_activations=sent)


def _checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (list, tuple)):
        raise TypeError(f"`model` must map names to shapes. Received: {shown(shape)} for {shown(name)}")
    return tuple(checked_int(n, f"model[{shown(name)}]") for n in shape)


def cells(plans: Sequence[MemoryUse]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, as text, of a table of several uses; a column's heading has several lines."""
    sizes = ("parameters", "gradients", "masters", "state", "total")
    sent = ("gradients", "parameters", "sums", "activations")
    rows = [["devices", *(str(use.layout.devices) for use in plans)]]
    rows += [[name, *(gib(getattr(use, name)) for use in plans)] for name in sizes]
    rows += [[f"sent: {name}", *(gib(getattr(use, f"sent_{name}")) for use in plans)] for name in sent]
    return ["GiB", *(f"{use.optimizer}\n{use.layout}".replace(" x ", "\n") for use in plans)], rows


def gib(size: Optional[float]) -> str:
    """Return a number of bytes as GiB in text; "-" for 0, "?" for None."""
    if not size:
        return "?" if size is None else "-"
    return f"{size / 2**30:.2f}" if size >= 0.995 * 2**30 else f"{size / 2**30:#.2g}"


class _Held(NamedTuple):
    """The part of a parameter that a device updates: its number of elements, with and without padding."""

    weight: Weight
    elements: int
    real: int


def _stage_use(weights: list[Weight], optimizer: OptimizerSpec, layout: Layout) -> MemoryUse:
    """Return the use of the fullest of the devices that share the parameters `weights`."""
    item, grad = ITEMSIZE[optimizer.dtype], ITEMSIZE[optimizer.grad_dtype]
    ranks = _owned(tuple(weights), layout, item)
    n, elements = layout.sharding, sum(weight.size for weight in weights)
    if layout.split_param:  # the buffers have padding
        elements = sum(held.elements for owned in ranks for held in owned)
    whole = sum(weight.size for weight in weights if weight.size <= _WHOLE_UP_TO) if layout.stage == 3 else 0
    mean_owned = sum(held.elements for owned in ranks for held in owned) / n
    part = (n - 1) / n
    if layout.stage == 3:
        gradients = 2 * part * elements + _all_reduced(elements, layout.dp)
        gathered = 2 * part * (elements - whole)
    else:
        gradients = part * elements + _all_reduced(mean_owned, layout.dp)
        gathered = part * elements
    an_element = 4 * optimizer.multi_precision + grad * (layout.stage > 1) + item * (layout.stage > 2)
    sizes = {weight.name: _state_size(optimizer, weight) for weight in weights}
    shares = []
    for owned in ranks:  # a device with a shard of a parameter keeps the state of all its rows and columns
        state = sum(sizes[held.weight.name][0] * held.elements + sizes[held.weight.name][1] for held in owned)
        shares.append((sum(held.elements for held in owned), state))
    count, state = max(shares, key=lambda share: share[0] * an_element + share[1])
    return MemoryUse(
        optimizer,
        layout,
        parameters=item * (count if layout.stage == 3 else elements),
        gradients=grad * (count if layout.stage > 1 else elements),
        masters=4 * count if optimizer.multi_precision else 0,
        state=state,
        sent_gradients=round(grad * gradients),
        sent_parameters=round(item * gathered),
        sent_sums=round(_sums_sent(weights, ranks, optimizer, layout)),
        sent_activations=None,
    )


def _state_size(optimizer: OptimizerSpec, weight: Weight) -> tuple[int, int]:
    """Return the bytes of state for each element of a parameter, and of its rows, columns and numbers together."""
    state = optimizer.state(weight.shape).values()
    an_element = sum(size for kind, size in state if kind == ELEMENT)
    return an_element, sum(size * weight.count(kind) for kind, size in state if kind != ELEMENT)


def _all_reduced(count: float, ranks: int) -> float:
    return 2 * (ranks - 1) / ranks * count


def _sums_sent(weights: list[Weight], ranks: list[list[_Held]], optimizer: OptimizerSpec, layout: Layout) -> float:
    """Return the mean bytes of the packed all-reduces between the holders of parameters that are in shards."""
    holders = collections.Counter(held.weight.name for owned in ranks for held in owned if held.real > 0)
    sent = 0.0
    for weight in weights:
        count = holders[weight.name]
        numbers = sum(weight.count(kind) for kinds in optimizer.sums(weight.shape) for kind in kinds)
        cut = layout.split_param and count > 1
        if cut:
            sent += _all_reduced(4 * numbers, layout.sharding)
        if weight.split is not None:  # if one device updates a parameter, only this device sends
            sent += _all_reduced(4 * numbers, layout.mp) * (1 if cut else count / layout.sharding)
    return sent


@functools.lru_cache(maxsize=32)  # the same for every optimizer
def _owned(weights: tuple[Weight, ...], layout: Layout, itemsize: int) -> list[list[_Held]]:
    """Return, for each device that shares the state, the parameters that it updates."""
    n = layout.sharding
    if n == 1:
        return [[_Held(weight, weight.size, weight.size) for weight in weights]]
    if layout.split_param:
        return _slices(weights, n, itemsize)
    if layout.stage == 3:
        unit = _ALIGNMENT // itemsize
        sizes = [w.size if w.size <= _WHOLE_UP_TO else -(-_padded(w, unit) // n) for w in weights]
        return [[_Held(weight, size, size) for weight, size in zip(weights, sizes)]] * n
    owned: list[list[_Held]] = [[] for _ in range(n)]
    least = [(0, rank) for rank in range(n)]
    for weight in sorted(weights, key=lambda weight: -weight.size) if layout.stage == 1 else weights:
        size, rank = heapq.heappop(least)  # each parameter goes to the device with the fewest elements
        owned[rank].append(_Held(weight, weight.size, weight.size))
        heapq.heappush(least, (size + weight.size, rank))
    return owned


def _slices(weights: Sequence[Weight], n: int, itemsize: int) -> list[list[_Held]]:
    """Return the slices of sharding v2: padded parameters in buffers, each buffer in n equal parts."""
    unit = _ALIGNMENT // itemsize * n
    owned: list[list[_Held]] = [[] for _ in range(n)]
    for buffer in _buffers(weights, itemsize):
        padded = [_padded(weight, unit) for weight in buffer]
        part, begin = sum(padded) // n, 0
        for weight, length in zip(buffer, padded):
            end = begin + length
            for rank in range(begin // part, (end - 1) // part + 1):
                first, last = max(begin, rank * part) - begin, min(end, (rank + 1) * part) - begin
                owned[rank].append(_Held(weight, last - first, max(0, min(last, weight.size) - first)))
            begin = end
    return owned


def _padded(weight: Weight, unit: int) -> int:
    return -(-weight.size // unit) * unit


def _buffers(weights: Sequence[Weight], itemsize: int) -> Iterator[list[Weight]]:
    buffer: list[Weight] = []
    for weight in weights:
        buffer.append(weight)
        if sum(w.size for w in buffer) * itemsize >= _BUFFER:
            yield buffer
            buffer = []
    if buffer:
        yield buffer
