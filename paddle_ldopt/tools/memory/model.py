"""A model's parameters as each device has them, and how a model is spread over devices."""

import dataclasses
import math
from typing import Any, Optional

from ..._checks import checked_bool, checked_int, checked_number
from ..._messages import refusal
from ...optimizers.states import COLUMN, ELEMENT, ROW, SCALAR


@dataclasses.dataclass(frozen=True)
class Weight:
    """A parameter in one tensor-parallel rank: its local shape, and the axis `split` that is cut into `parts`.

    `split` is None if the parameter is whole.
    """

    name: str  # structured
    shape: tuple[int, ...]
    split: Optional[int] = None
    parts: int = 1

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def count(self, kind: str) -> int:
        """Return the number of elements of a state or a sum; rows and columns count over the whole parameter."""
        whole = tuple(n * self.parts if axis == self.split else n for axis, n in enumerate(self.shape))
        return math.prod({ELEMENT: self.shape, ROW: whole[:-1], COLUMN: (*whole[:-2], *whole[-1:]), SCALAR: ()}[kind])


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A decoder of LLaMA's form: untied embedding and head, three matrices in the feed-forward part, no biases.

    Args:
        hidden: width.
        layers: blocks.
        vocab: tokens.
        intermediate: width of the feed-forward part; 0: 8/3 of `hidden`, up to a multiple of 256.
        heads: attention heads, which divide `hidden`; 0: `hidden` / 128.
        kv_heads: heads of keys and values, which divide `heads`; 0: the same number.

    Examples:
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

    def __post_init__(self) -> None:
        _check_counts(self, "hidden", "layers", "vocab")
        _fill(self, intermediate=-(-self.hidden * 8 // 3 // 256) * 256, heads=max(1, self.hidden // 128))
        _fill(self, kv_heads=self.heads)
        _check_counts(self, "intermediate", "heads", "kv_heads")
        for name, number in (("heads", self.hidden), ("kv_heads", self.heads)):
            if number % getattr(self, name):
                raise refusal(ValueError, f"`{name}` must divide {number}.", **{name: getattr(self, name)})

    @classmethod
    def of_size(cls, params: float) -> "Transformer":
        """Return a typical model of about `params` parameters, at least 1e9.

        The width h is the multiple of 1024 nearest to the cube root of 128 `params` / 12, since a block has about
        :math:`12 h^2` parameters and a typical model h / 128 blocks. The number of blocks, a multiple of 8 (of 4
        below 32), is then chosen to come closest to `params`. The vocabulary is 32,000.
        """
        params = checked_number(params, "params", 1e9, 1e14)
        hidden = 1024 * round((params * 128 / 12) ** (1 / 3) / 1024)
        one, two = cls(hidden, 1).size, cls(hidden, 2).size
        layers = 1 + (params - one) / (two - one)
        step = 8 if layers >= 32 else 4
        return cls(hidden, max(step, step * round(layers / step)))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(weight.size for weight in self.weights())

    def weights(self, mp: int = 1, pp: int = 1, stage: int = 0) -> list[Weight]:
        """Return the parameters on a device of a pipeline stage.

        The blocks are spread evenly over `pp` stages. The embedding is in the first stage, 0; the last norm and the
        head are in the last stage. `mp` must divide the vocabulary, `intermediate` and both numbers of heads.
        """
        mp, pp, stage = checked_int(mp, "mp", 1), checked_int(pp, "pp", 1), checked_int(stage, "stage")
        if stage >= pp:
            raise refusal(ValueError, "`stage` must be from 0 to `pp` - 1.", stage=stage, pp=pp)
        for name in ("vocab", "intermediate", "heads", "kv_heads") if mp > 1 else ():
            if getattr(self, name) % mp:
                raise refusal(ValueError, f"`mp` must divide `{name}`.", mp=mp, **{name: getattr(self, name)})
        if self.layers % pp:
            raise refusal(ValueError, "`pp` must divide `layers`.", pp=pp, layers=self.layers)
        h, wide = self.hidden, self.intermediate
        kv = h * self.kv_heads // self.heads
        attention = {"q_proj": (h, h, 1), "k_proj": (h, kv, 1), "v_proj": (h, kv, 1), "o_proj": (h, h, 0)}
        block = {**attention, "gate_proj": (h, wide, 1), "up_proj": (h, wide, 1), "down_proj": (wide, h, 0)}
        out: list[Weight] = [_cut("embed_tokens", self.vocab, h, 0, mp)] if stage == 0 else []
        for i in range(stage * self.layers // pp, (stage + 1) * self.layers // pp):
            out += [_cut(f"layers.{i}.{name}", *shape_and_axis, mp) for name, shape_and_axis in block.items()]
            out += [Weight(f"layers.{i}.{name}", (h,)) for name in ("input_layernorm", "post_attention_layernorm")]
        if stage == pp - 1:
            out += [Weight("norm", (h,)), _cut("lm_head", h, self.vocab, 1, mp)]
        return out


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a model over devices, in fleet's terms.

    Args:
        dp: data-parallel replicas, at least 1 like all numbers here.
        sharding: devices that share the optimizer's state.
        stage: 1: the state is shared; 2: the gradients too; 3: the parameters too.
        split_param: with stage 1: parameters are split (fleet's sharding v2) instead of assigned whole (v1).
        mp: tensor-parallel devices.
        pp: pipeline stages.

    Raises:
        ValueError: a number below 1, a setting without effect, or a combination that Paddle does not have.

    Examples:
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

    def __post_init__(self) -> None:
        _check_counts(self, "dp", "sharding", "stage", "mp", "pp")
        checked_bool(self.split_param, "split_param")
        stage, split, message = self.stage, self.split_param, ""
        if stage > 3:
            message = "`stage` must be 1, 2 or 3."
        elif self.sharding == 1 and (stage != 1 or split):
            message = "`stage` and `split_param` have no effect without `sharding`."
        elif stage != 1 and split:
            message = "`split_param` needs stage 1."
        elif stage != 1 and self.pp > 1:
            message = "Pipeline stages need sharding stage 1."
        if message:
            raise refusal(ValueError, message, sharding=self.sharding, stage=stage, split_param=split, pp=self.pp)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.dp * self.sharding * self.mp * self.pp

    def __str__(self) -> str:
        version = {1: " v2" if self.split_param else " v1"}.get(self.stage, f" stage {self.stage}")
        parts = [f"dp {self.dp}", f"sharding {self.sharding}{version}", f"mp {self.mp}", f"pp {self.pp}"]
        sizes = (self.dp, self.sharding, self.mp, self.pp)
        return " x ".join(part for part, size in zip(parts, sizes) if size > 1) or "1 device"


def _cut(name: str, rows: int, columns: int, axis: int, mp: int) -> Weight:
    """Return a tensor-parallel rank's part of a matrix: Paddle's layers cut columns (axis 1) or rows (axis 0)."""
    if mp == 1:
        return Weight(name, (rows, columns))
    return Weight(name, (rows // mp, columns) if axis == 0 else (rows, columns // mp), axis, mp)


def _check_counts(instance: Any, *names: str) -> None:
    """Raise unless these fields of a frozen instance are integers of at least 1."""
    for name in names:
        object.__setattr__(instance, name, checked_int(getattr(instance, name), name, 1))


def _fill(instance: Any, **values: int) -> None:
    """Replace the fields of a frozen instance that are 0 (not False) by the given values."""
    for name, value in values.items():
        given = getattr(instance, name)
        if type(given) is int and given == 0:
            object.__setattr__(instance, name, value)
