"""What training takes on each device before it is paid for: bytes that stay in memory, bytes that are sent each step.

Formulas alone, of what Paddle's engine and our optimizers allocate and send; Paddle is not imported. Activations, the
buffers of a running step and what the allocator loses are not counted. Volumes are those of ring algorithms on n
devices: an all-reduce of S bytes sends 2 S (n - 1) / n from each, a reduce-scatter, an all-gather, a reduce or a
broadcast half of that, as the mean over the devices.
"""

import dataclasses
import functools
import heapq
import math
from typing import NamedTuple, Optional

from .._checks import checked_bool, checked_int, checked_number, shown

__all__ = [
    "COLUMN",
    "ELEMENT",
    "ITEMSIZE",
    "ROW",
    "SCALAR",
    "Layout",
    "OptimizerSpec",
    "Plan",
    "Transformer",
    "Weight",
    "cells",
    "gib",
    "plan",
]

ELEMENT, ROW, COLUMN, SCALAR = "element", "row", "column", "scalar"  # how a state's size follows from its parameter's
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
NAMES = ("adamwdl", "came", "lamb", "adafactor", "adamweightdecay")
_ALIGNMENT = 256  # bytes, of a parameter in the buffers of sharding v2
_BUFFER = 256 * 2**20  # bytes at which a buffer of sharding v2 is full: Paddle's `comm_buffer_size_MB`
_WHOLE_UP_TO = 2**20  # elements up to which stage 3 does not cut a parameter: Paddle's `segment_size`


@dataclasses.dataclass(frozen=True)
class Weight:
    """A parameter as one tensor-parallel rank has it.

    Args:
        name (str): structured name.
        shape (tuple[int]): the local shape.
        split (int, optional): the axis along which tensor parallel cut it; None: it is whole.
        parts (int): into how many.
    """

    name: str
    shape: tuple
    split: Optional[int] = None
    parts: int = 1

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)

    def count(self, kind):
        """Return how many numbers a state or a sum has: rows and columns are those of the whole, wherever it is cut."""
        whole = tuple(n * self.parts if axis == self.split else n for axis, n in enumerate(self.shape))
        return math.prod({ELEMENT: self.shape, ROW: whole[:-1], COLUMN: (*whole[:-2], *whole[-1:]), SCALAR: ()}[kind])


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A decoder of LLaMA's form: untied embedding and head, three matrices in the feed-forward part, no biases.

    Args:
        hidden (int): width.
        layers (int): blocks.
        vocab (int): tokens.
        intermediate (int, optional): width of the feed-forward part; 0: 8/3 of `hidden`, up to a multiple of 256.
        heads (int, optional): attention heads; 0: `hidden` / 128.
        kv_heads (int, optional): heads of keys and values; 0: as many as `heads`.

    Raises:
        TypeError: a number that is not an integer.
        ValueError: a number below 1; heads that do not divide.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.tools.memory import Transformer
            >>> Transformer(4096, 32, 32000).size
            6738415616
    """

    hidden: int
    layers: int
    vocab: int = 32000
    intermediate: int = 0
    heads: int = 0
    kv_heads: int = 0

    def __post_init__(self):
        for name in ("hidden", "layers", "vocab"):
            _set_count(self, name)
        _fill(self, 0, intermediate=-(-self.hidden * 8 // 3 // 256) * 256, heads=max(1, self.hidden // 128))
        _fill(self, 0, kv_heads=self.heads)
        for name in ("intermediate", "heads", "kv_heads"):
            _set_count(self, name)
        for name, number in (("heads", self.hidden), ("kv_heads", self.heads)):
            if number % getattr(self, name):
                raise ValueError(f"`{name}` must divide {number}. Received: {name}={getattr(self, name)}")

    @classmethod
    def of_size(cls, params):
        """Return a plausible model of about `params` parameters, at least 1e9.

        With :math:`12 h^2` a block and h / 128 blocks: h is the cube root of 128 `params` / 12, as a multiple of 1024,
        and the number of blocks, a multiple of 8 (4 below 32), what comes nearest then. The vocabulary is 32,000.
        """
        params = checked_number(params, "params", 1e9, 1e14)
        hidden = 1024 * round((params * 128 / 12) ** (1 / 3) / 1024)
        one, two = cls(hidden, 1).size, cls(hidden, 2).size
        layers = 1 + (params - one) / (two - one)
        step = 8 if layers >= 32 else 4
        return cls(hidden, max(step, step * round(layers / step)))

    @property
    def size(self):
        """Number of parameters."""
        return sum(weight.size for weight in self.weights())

    def weights(self, mp=1, pp=1, stage=0):
        """Return the parameters that a device of a pipeline stage has.

        The blocks are spread evenly; the embedding is in the first stage, the last norm and the head in the last one.

        Args:
            mp (int): tensor-parallel devices; must divide all that they share.
            pp (int): pipeline stages; must divide `layers`.
            stage (int): which of them, from 0.
        """
        mp, pp, stage = checked_int(mp, "mp", 1), checked_int(pp, "pp", 1), checked_int(stage, "stage")
        if stage >= pp:
            raise ValueError(f"`stage` must be from 0 to `pp` - 1. Received: stage={stage}, pp={pp}")
        for name in ("vocab", "intermediate", "heads", "kv_heads") if mp > 1 else ():
            if getattr(self, name) % mp:
                raise ValueError(f"`mp` must divide `{name}`. Received: mp={mp}, {name}={getattr(self, name)}")
        if self.layers % pp:
            raise ValueError(f"`pp` must divide `layers`. Received: pp={pp}, layers={self.layers}")
        h, wide = self.hidden, self.intermediate
        kv = h * self.kv_heads // self.heads
        attention = {"q_proj": (h, h, 1), "k_proj": (h, kv, 1), "v_proj": (h, kv, 1), "o_proj": (h, h, 0)}
        block = {**attention, "gate_proj": (h, wide, 1), "up_proj": (h, wide, 1), "down_proj": (wide, h, 0)}
        out = [_cut("embed_tokens", self.vocab, h, 0, mp)] if stage == 0 else []
        for i in range(stage * self.layers // pp, (stage + 1) * self.layers // pp):
            out += [_cut(f"layers.{i}.{name}", *shape_and_axis, mp) for name, shape_and_axis in block.items()]
            out += [Weight(f"layers.{i}.{name}", (h,)) for name in ("input_layernorm", "post_attention_layernorm")]
        if stage == pp - 1:
            out += [Weight("norm", (h,)), _cut("lm_head", h, self.vocab, 1, mp)]
        return out


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a model is spread over devices, in fleet's words.

    Args:
        dp (int): data-parallel replicas.
        sharding (int): devices that share the optimizer's state.
        stage (int): 1: the state is shared; 2: the gradients too; 3: the parameters too.
        split_param (bool): with stage 1: parameters are cut (fleet's sharding v2) instead of dealt out whole (v1).
        mp (int): tensor-parallel devices.
        pp (int): pipeline stages.

    Raises:
        ValueError: a number below 1; a setting without effect; what Paddle does not combine.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.tools.memory import Layout
            >>> print(Layout(dp=2, sharding=8, split_param=True, pp=4))
            dp 2 x sharding 8 v2 x pp 4
            >>> Layout(dp=2, sharding=8).devices
            16
    """

    dp: int = 1
    sharding: int = 1
    stage: int = 1
    split_param: bool = False
    mp: int = 1
    pp: int = 1

    def __post_init__(self):
        for name in ("dp", "sharding", "mp", "pp"):
            _set_count(self, name)
        object.__setattr__(self, "stage", checked_int(self.stage, "stage", 1))
        if self.stage > 3:
            raise ValueError(f"`stage` must be 1, 2 or 3. Received: stage={self.stage}")
        checked_bool(self.split_param, "split_param")
        if self.sharding == 1 and (self.stage != 1 or self.split_param):
            raise ValueError(
                "`stage` and `split_param` have no effect without `sharding`. "
                f"Received: sharding=1, stage={self.stage}, split_param={self.split_param}"
            )
        if self.stage != 1 and self.split_param:
            raise ValueError(f"`split_param` belongs to stage 1. Received: stage={self.stage}, split_param=True")
        if self.stage != 1 and self.pp > 1:
            raise ValueError(
                f"Pipeline stages go with sharding stage 1 only. Received: stage={self.stage}, pp={self.pp}"
            )

    @property
    def devices(self):
        """Number of devices."""
        return self.dp * self.sharding * self.mp * self.pp

    def __str__(self):
        version = {1: " v2" if self.split_param else " v1"}.get(self.stage, f" stage {self.stage}")
        parts = [f"dp {self.dp}", f"sharding {self.sharding}{version}", f"mp {self.mp}", f"pp {self.pp}"]
        sizes = (self.dp, self.sharding, self.mp, self.pp)
        return " x ".join(part for part, size in zip(parts, sizes) if size > 1) or "1 device"


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
    """One of our optimizers with what decides the size of its state.

    Args:
        name (str): "adamwdl", "came", "lamb", "adafactor" or "adamweightdecay".
        beta1 (float, optional): of Came, where 0 does without a momentum, and of Adafactor, which has one only if it is
            given; None: the default of the class.
        compression (bool): of Came: a float16 momentum.
        amsgrad (bool): of AdamWeightDecay: a third moment.
        dtype (str): of the parameters: "float32", "bfloat16" or "float16".
        grad_dtype (str, optional): of the gradients; None: that of the parameters.
        multi_precision (bool, optional): float32 masters of low-precision parameters; None: if there are such.

    Raises:
        TypeError: a flag that is no bool.
        ValueError: an unknown name or dtype; a `beta1` out of range; an option that the optimizer does not have, or
            without effect.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.tools.memory import OptimizerSpec
            >>> print(OptimizerSpec("came", compression=True, dtype="float32"))
            came, compression
    """

    name: str
    beta1: Optional[float] = None
    compression: bool = False
    amsgrad: bool = False
    dtype: str = "bfloat16"
    grad_dtype: Optional[str] = None
    multi_precision: Optional[bool] = None

    def __post_init__(self):
        if not isinstance(self.name, str) or self.name not in NAMES:
            raise ValueError(f"`name` must be one of {', '.join(map(repr, NAMES))}. Received: name={shown(self.name)}")
        if self.beta1 is not None:
            object.__setattr__(self, "beta1", checked_number(self.beta1, "beta1", 0.0, 1.0, "[)"))
        checked_bool(self.compression, "compression")
        checked_bool(self.amsgrad, "amsgrad")
        owners = {"beta1": ("came", "adafactor"), "compression": ("came",), "amsgrad": ("adamweightdecay",)}
        for option, names in owners.items():
            if getattr(self, option) not in (None, False) and self.name not in names:
                raise ValueError(
                    f"`{option}` changes the state of {' and '.join(names)} only. "
                    f"Received: {option}={shown(getattr(self, option))}, name={shown(self.name)}"
                )
        _fill(self, None, grad_dtype=self.dtype, multi_precision=self.dtype != "float32")
        for field in ("dtype", "grad_dtype"):
            if not isinstance(getattr(self, field), str) or getattr(self, field) not in ITEMSIZE:
                raise ValueError(
                    f"`{field}` must be one of {', '.join(ITEMSIZE)}. Received: {field}={shown(getattr(self, field))}"
                )
        checked_bool(self.multi_precision, "multi_precision")
        if self.multi_precision and self.dtype == "float32":
            raise ValueError("float32 parameters have no masters. Received: multi_precision=True, dtype='float32'")
        if self.compression and not self.has_momentum:
            raise ValueError(f"Without a momentum there is nothing to compress. Received: beta1={shown(self.beta1)}")

    def __str__(self):
        beta1 = "" if self.beta1 is None else f", beta1 {self.beta1:g}"
        return f"{self.name}{beta1}{', compression' * self.compression}{', amsgrad' * self.amsgrad}"

    @property
    def has_momentum(self):
        """Whether there is a first moment."""
        if self.name == "came":  # 0 and None are its ways to do without; the default is 0.9
            return self.beta1 is None or self.beta1 != 0
        return self.name != "adafactor" or self.beta1 is not None

    def state(self, rank):
        """Return state name -> (kind, bytes of a number), for a parameter of that rank.

        Lamb with a rate or a decay that is scheduled by its own steps has one more counter.

        Args:
            rank (int): number of dimensions.
        """
        factored, step = rank >= 2, {"beta1_pow_acc": (SCALAR, 4)}
        if self.name in ("adamwdl", "lamb", "adamweightdecay"):
            third = {"moment2_max": (ELEMENT, 4)} if self.amsgrad else {}
            second_power = {"beta2_pow_acc": (SCALAR, 4)} if self.name == "adamwdl" else {}
            return {"moment1": (ELEMENT, 4), "moment2": (ELEMENT, 4), **third, **step, **second_power}
        state = _factored("exp_avg_sq") if factored else {"exp_avg_sq": (ELEMENT, 4)}
        if self.has_momentum:
            state["exp_avg"] = (ELEMENT, 2 if self.compression else 4)
        if self.name == "adafactor":
            return {**state, "used_lr": (SCALAR, 4), **step}
        return {**state, **(_factored("exp_avg_res") if factored and self.has_momentum else {}), **step}

    def sums(self, rank):
        """Return what an update needs of a whole parameter of that rank: rounds of kinds of sums, each a float32.

        Came's `scale_parameter` and AdamWeightDecay's `clipnorm` need one more number in a round of its own.
        """
        lines = [ROW, COLUMN] if rank >= 2 else []
        rounds = {
            "lamb": [[SCALAR, SCALAR]],
            "adafactor": [[SCALAR, *lines], [SCALAR]],
            "came": [lines, [SCALAR], lines if self.has_momentum else []],
        }
        return [kinds for kinds in rounds.get(self.name, []) if kinds]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one device takes: the one with the most. Bytes; what is sent is the mean of its pipeline stage, each step.

    Args:
        optimizer (OptimizerSpec): the optimizer.
        layout (Layout): the layout.
        parameters (int): bytes of parameters.
        gradients (int): bytes of gradients.
        masters (int): bytes of float32 masters.
        state (int): bytes of the optimizer's state.
        sent_gradients (int): bytes sent to sum gradients over replicas, and over the devices that share the state.
        sent_parameters (int): bytes sent to give every device the new parameters.
        sent_sums (int): bytes sent for the sums over parameters in pieces that the update needs.
        sent_activations (int|None): bytes that the busiest pipeline stage sends to its neighbours; None if the tokens
            of a step are not known. What tensor parallel sends within the blocks is not counted.
    """

    optimizer: OptimizerSpec
    layout: Layout
    parameters: int
    gradients: int
    masters: int
    state: int
    sent_gradients: int
    sent_parameters: int
    sent_sums: int
    sent_activations: Optional[int]

    @property
    def total(self):
        """Bytes that stay in memory."""
        return self.parameters + self.gradients + self.masters + self.state

    def to_dict(self):
        """Return all of it as a dict that JSON can hold."""
        return {**dataclasses.asdict(self), "devices": self.layout.devices, "total": self.total}


def plan(model, optimizer, layout, tokens=None):
    """Return the `Plan` of the device that takes the most memory.

    Args:
        model (Transformer|dict[str, list[int]]): a model, or structured name -> shape of all parameters in the order
            of ``model.named_parameters()``; the latter cannot be cut, by `mp` or `pp`.
        optimizer (OptimizerSpec): the optimizer.
        layout (Layout): the layout.
        tokens (int, optional): tokens that a pipeline works through in a step, for what its stages send.

    Raises:
        ValueError: a layout that the model cannot be cut by, or that the optimizer refuses.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.tools.memory import Layout, OptimizerSpec, Transformer, plan
            >>> answer = plan(Transformer.of_size(7e9), OptimizerSpec("came"), Layout(sharding=8))
            >>> print(f"{answer.total / 2**30:.1f} GiB, of it {answer.state / 2**30:.1f} of state")
            31.4 GiB, of it 3.2 of state
    """
    for name, value, kinds in (
        ("model", model, (Transformer, dict)),
        ("optimizer", optimizer, OptimizerSpec),
        ("layout", layout, Layout),
    ):
        if not isinstance(value, kinds):
            raise TypeError(f"`{name}` is of the wrong type. Received: {name} of type {type(value).__name__}")
    if tokens is not None:
        tokens = checked_int(tokens, "tokens", 1)
    if layout.stage == 3 and optimizer.name != "adamwdl":
        raise ValueError(
            f"Stage 3 hands an optimizer slices that {optimizer.name} cannot follow: use stage 1, with or without "
            f"split_param, or adamwdl. Received: stage=3, name={shown(optimizer.name)}"
        )
    if not isinstance(model, Transformer) and (layout.mp > 1 or layout.pp > 1):
        raise ValueError(
            "How the layers of a model known by its shapes alone are cut is unknown: give hidden, layers and vocab. "
            f"Received: mp={layout.mp}, pp={layout.pp}"
        )
    stages = []
    for stage in sorted({0, layout.pp // 2, layout.pp - 1}):  # those in the middle are alike
        if isinstance(model, Transformer):
            weights = model.weights(layout.mp, layout.pp, stage)
        else:
            weights = [Weight(name, _checked_shape(name, shape)) for name, shape in model.items()]
        stages.append(_stage_plan(weights, optimizer, layout))
    most = max(stages, key=lambda answer: answer.total)
    if tokens is None or layout.pp == 1:
        return most if layout.pp > 1 else dataclasses.replace(most, sent_activations=0)
    neighbours = 2 if layout.pp > 2 else 1
    return dataclasses.replace(most, sent_activations=tokens * model.hidden * ITEMSIZE[optimizer.dtype] * neighbours)


def _checked_shape(name, shape):
    if not isinstance(shape, (list, tuple)):
        raise TypeError(f"`model` must map names to shapes. Received: {shown(shape)} for {shown(name)}")
    return tuple(checked_int(n, f"model[{shown(name)}]") for n in shape)


def cells(plans):
    """Return header and rows, as text, of a table of plans side by side; a column's heading has several lines."""
    rows = {
        "devices": [str(answer.layout.devices) for answer in plans],
        "parameters": [gib(answer.parameters) for answer in plans],
        "gradients": [gib(answer.gradients) for answer in plans],
        "masters": [gib(answer.masters) for answer in plans],
        "state": [gib(answer.state) for answer in plans],
        "total": [gib(answer.total) for answer in plans],
        "sent: gradients": [gib(answer.sent_gradients) for answer in plans],
        "sent: parameters": [gib(answer.sent_parameters) for answer in plans],
        "sent: sums": [gib(answer.sent_sums) for answer in plans],
        "sent: activations": [gib(answer.sent_activations) for answer in plans],
    }
    heads = [f"{answer.optimizer}\n{answer.layout}".replace(" x ", "\n") for answer in plans]
    return ["GiB", *heads], [[name, *sizes] for name, sizes in rows.items()]


def gib(size):
    """Return a number of bytes as GiB in text; "-" for 0, "?" for None."""
    if not size:
        return "?" if size is None else "-"
    size /= 2**30
    return f"{size:.2f}" if size >= 0.995 else f"{size:#.2g}"


class _Held(NamedTuple):
    """What a device updates of a parameter: so many elements, of which so many are no padding."""

    weight: Weight
    elements: int
    real: int


def _cut(name, rows, columns, axis, mp):
    """Return a matrix as a tensor-parallel rank has it: Paddle's layers cut columns (axis 1) or rows (axis 0)."""
    if mp == 1:
        return Weight(name, (rows, columns))
    return Weight(name, (rows // mp, columns) if axis == 0 else (rows, columns // mp), axis, mp)


def _stage_plan(weights, optimizer, layout):
    """Return the plan of the device with the most of those that share the parameters `weights`."""
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
    shares = [_share(owned, sizes) for owned in ranks]
    count, state = max(shares, key=lambda share: share[0] * an_element + share[1])
    return Plan(
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


def _share(owned, sizes):
    """Return the elements that a device updates and the bytes of their state: all rows and columns of a piece too."""
    count, state = 0, 0
    for held in owned:
        an_element, lines = sizes[held.weight.name]
        count += held.elements
        state += an_element * held.elements + lines
    return count, state


def _state_size(optimizer, weight):
    """Return the bytes of state for each element of a parameter, and of its rows, columns and numbers together."""
    state = optimizer.state(len(weight.shape)).values()
    an_element = sum(size for kind, size in state if kind == ELEMENT)
    return an_element, sum(size * weight.count(kind) for kind, size in state if kind != ELEMENT)


def _all_reduced(count, ranks):
    return 2 * (ranks - 1) / ranks * count


def _sums_sent(weights, ranks, optimizer, layout):
    """Return the mean bytes of the packed all-reduces between the holders of parameters that are in pieces."""
    holders: dict = dict.fromkeys((weight.name for weight in weights), 0)
    for owned in ranks:
        for held in owned:
            holders[held.weight.name] += held.real > 0
    sent = 0.0
    for weight in weights:
        count = holders[weight.name]
        numbers = sum(weight.count(kind) for kinds in optimizer.sums(len(weight.shape)) for kind in kinds)
        cut = layout.split_param and count > 1
        if cut:
            sent += _all_reduced(4 * numbers, layout.sharding)
        if weight.split is not None:  # of a parameter that one device updates, it alone sends
            sent += _all_reduced(4 * numbers, layout.mp) * (1 if cut else count / layout.sharding)
    return sent


@functools.lru_cache(maxsize=32)  # the same for every optimizer
def _owned(weights, layout, itemsize):
    """Return, for each device that shares the state, the parameters it updates: (weight, number of elements)."""
    n = layout.sharding
    if n == 1:
        return [[_Held(weight, weight.size, weight.size) for weight in weights]]
    if layout.split_param:
        return _slices(weights, n, itemsize)
    if layout.stage == 3:
        unit = _ALIGNMENT // itemsize
        sizes = [w.size if w.size <= _WHOLE_UP_TO else -(-_padded(w, unit) // n) for w in weights]
        return [[_Held(weight, size, size) for weight, size in zip(weights, sizes)]] * n
    if layout.stage == 1:
        weights = sorted(weights, key=lambda weight: -weight.size)
    owned: list = [[] for _ in range(n)]
    least = [(0, rank) for rank in range(n)]
    for weight in weights:  # each to the device that has least
        size, rank = heapq.heappop(least)
        owned[rank].append(_Held(weight, weight.size, weight.size))
        heapq.heappush(least, (size + weight.size, rank))
    return owned


def _slices(weights, n, itemsize):
    """Return the slices of sharding v2: padded parameters in buffers, each buffer in n equal parts."""
    unit = _ALIGNMENT // itemsize * n
    owned: list = [[] for _ in range(n)]
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


def _padded(weight, unit):
    return -(-weight.size // unit) * unit


def _buffers(weights, itemsize):
    buffer: list = []
    for weight in weights:
        buffer.append(weight)
        if sum(w.size for w in buffer) * itemsize >= _BUFFER:
            yield buffer
            buffer = []
    if buffer:
        yield buffer


def _factored(name):
    return {f"{name}_row": (ROW, 4), f"{name}_col": (COLUMN, 4)}


def _fill(instance, empty, **defaults):
    """Give the fields of a frozen instance that are `empty` their values."""
    for name, value in defaults.items():
        given = getattr(instance, name)
        if type(given) is type(empty) and given == empty:
            object.__setattr__(instance, name, value)


def _set_count(instance, name):
    """Check a field of a frozen instance that is a number of at least 1."""
    object.__setattr__(instance, name, checked_int(getattr(instance, name), name, 1))
