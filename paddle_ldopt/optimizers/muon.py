"""Muon for the matrices of blocks, AdamW for all other parameters (after `torch.optim.Muon`).

Papers: Muon, Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; weight decay and scale of the update, Liu
et al., https://arxiv.org/abs/2502.16982 (2.2); AdamW, Loshchilov & Hutter, https://arxiv.org/abs/1711.05101.
"""

import collections
import math
from typing import Any, Callable, ClassVar, Optional

import paddle
from paddle import Tensor

from .._checks import Option, checked_bool, checked_callable, refusal
from .._compat import topology
from .options import ADAM, OWN_RATE, WEIGHT_DECAY, bool_option, decay_option, from_one, numbers, passed_on, register
from .rules import RuleOptimizer, ema_, ema_of_squares_, one_minus_power, sqrt
from .sharded import Shard
from .states import ELEMENT, STEP, State
from .step import Rows

_RANKS = (2, 4, 5)  # matrices and kernels of convolutions; [e, m, n] may be a stack of experts or a Conv1D


def muon_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Shard,
    use_muon: bool,
    momentum: float,
    nesterov: bool,
    ns_coefficients: tuple[float, float, float],
    ns_steps: int,
    ns_dtype: Optional[str],
    adjust_lr: str,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Any, dict[str, Any]]:
    if weight_decay:
        param = param.subtract_(param * (lr * weight_decay))
    if not use_muon:
        t = state[STEP]
        m, v = ema_(state["moment1"], grad, beta1), ema_of_squares_(state["moment2"], grad, beta2)
        root = sqrt(v / one_minus_power(beta2, t)).scale_(1.0, epsilon)
        return param.subtract_((m * (lr / one_minus_power(beta1, t))).divide_(root)), {"moment1": m, "moment2": v}
    m = ema_(state["momentum"], grad, momentum)
    u = grad * (1.0 - momentum) + m * momentum if nesterov else m
    shape, leading = shard.shape, param.shape[: param.ndim - len(shard.shape)]
    rows, columns = shape[0], math.prod(shape[1:])
    u = orthogonalized(u.reshape([*leading, rows, columns]), ns_coefficients, ns_steps, ns_dtype)
    if adjust_lr == "match_rms_adamw":
        scale = 0.2 * math.sqrt(max(rows, columns))
    else:  # a Linear has [in, out], a convolution [out, in, ...]
        scale = math.sqrt(max(1.0, columns / rows if len(shape) == 2 else rows / columns))
    return param.subtract_(u.reshape(param.shape) * (lr * scale)), {"momentum": m}


def orthogonalized(u: Any, coefficients: tuple[float, float, float], steps: int, dtype: Optional[str] = None) -> Any:
    r"""Approximate :math:`U V^\top` of :math:`U S V^\top`, [..., m, n], by Newton-Schulz iterations.

    .. math::
        X_0 = \frac{U}{\lVert U \rVert_F}, \qquad A = X X^\top, \qquad X \leftarrow a X + (b A + c A^2) X
    """
    a, b, c = coefficients
    given, is_high = u.dtype, u.shape[-2] > u.shape[-1]
    norm = (u * u).sum([-2, -1], keepdim=True).sqrt()
    x = u / norm.clip(min=1e-7)
    if given != paddle.float64:
        x = x.astype(dtype or ("float32" if x.place.is_cpu_place() else "bfloat16"))
    for _ in range(steps):
        gram = paddle.matmul(x, x, transpose_x=is_high, transpose_y=not is_high)
        poly = paddle.matmul(gram, gram).scale_(c).add_(gram.scale_(b))
        product = paddle.matmul(x, poly) if is_high else paddle.matmul(poly, x)
        x = x.scale_(a).add_(product)
    return x.astype(given)


@register(
    "momentum of a matrix made orthogonal; 4 bytes in matrices of blocks, 8 elsewhere",
    trainer=ADAM,
    instead_of_layers="use_muon",
)
class Muon(RuleOptimizer):
    r"""Muon for the matrices of blocks; AdamW for embeddings, head, vectors and scalars.

    With r the ratio of the parameter's layer, :math:`l = r \cdot learning\_rate`. For a matrix of a block:

    .. math::
        p &\leftarrow p - l \lambda p, \qquad m \leftarrow \mu m + (1 - \mu) g, \qquad
            u = \mu m + (1 - \mu) g \;\; (\text{nesterov}) \\
        p &\leftarrow p - l \, s \, \mathrm{NS}(u), \qquad
            s = 0.2 \sqrt{\max(m, n)} \;\text{ or }\; \sqrt{\max(1, out / in)}

    NS replaces the singular values of u by values near 1, in `ns_steps` Newton-Schulz iterations. All other parameters
    are updated as by `AdamWDL`. With ``adjust_lr="match_rms_adamw"``, updates have about AdamW's RMS, so one rate
    serves both parts.

    **Which parameters**: the matrices and kernels of convolutions (as [out, in * kh * kw]) in the blocks of `layers`.
    `use_muon` overrides this, and a group's "use_muon" both. By default, AdamW updates parameters with three
    dimensions: stacked experts look like a Conv1D.

    docs/options.md lists the options, `AdamWDL` the arguments of all optimizers.

    Args:
        ns_coefficients: three numbers a, b, c: an iteration maps a singular value x to
            :math:`a x + b x^3 + c x^5`.
        adjust_lr: "match_rms_adamw", or "original" for Jordan's scale.
        ns_dtype: type of the products in NS, "float32" or "bfloat16". None: bfloat16 on an accelerator, float32 on a
            CPU, where Paddle has no bfloat16 products. float64 parameters keep float64.
        use_muon: parameter -> whether Muon updates it.
        parameters (list[Tensor]|list[dict], optional): groups may have "lr" (their own rate) and "use_muon" (bool).

    Raises:
        TypeError, ValueError: as for `AdamWDL`; neither `layers`, `use_muon` nor a group's "use_muon"; no parameter for
            Muon; matrices split over processes (tensor parallel, sharding version 2, DistTensors). RuntimeError in a
            static graph.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import LayerMap, Muon
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 2)
        >>> layers = LayerMap.from_model(encoder, example=paddle.randn([1, 5, 8]))
        >>> opt = Muon(1e-3, layers=layers, layerwise_decay=0.8, parameters=encoder.parameters())
        >>> block = encoder.layers[0]
        >>> opt.uses_muon(block.linear1.weight), opt.uses_muon(block.linear1.bias)
        (True, False)

    Source: ``torch.optim.Muon``; ``optax.contrib.muon``.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "momentum": decay_option("decay rate of Muon's momentum"),
        "nesterov": bool_option("use Nesterov momentum"),
        "ns_coefficients": Option(
            doc="coefficients of the iteration", check=numbers("()", "()", "()", low=-math.inf), values="three numbers"
        ),
        "ns_steps": Option(doc="Newton-Schulz iterations", check=from_one, values="from 1"),
        "adjust_lr": Option(doc="scale of Muon's update", choices=("match_rms_adamw", "original")),
        "beta1": decay_option("decay rate of AdamW's first moment"),
        "beta2": decay_option("decay rate of AdamW's second moment"),
        "epsilon": Option(doc="added to the root of AdamW's second moment", group=True),
        "weight_decay": WEIGHT_DECAY,
        "ns_dtype": Option(doc="type of the products", choices=("float32", "bfloat16"), optional=True),
        "lr": OWN_RATE,
        "use_muon": Option(
            None, "whether Muon updates the group", check=checked_bool, optional=True, group=True, argument=False
        ),
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        chosen = len(shape) in _RANKS if options["use_muon"] is None else options["use_muon"]
        return dict.fromkeys(("momentum",) if chosen else ("moment1", "moment2"), State(ELEMENT))

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: Optional[float] = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Any = (3.4445, -4.775, 2.0315),
        ns_steps: int = 5,
        adjust_lr: str = "match_rms_adamw",
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        *,
        ns_dtype: Optional[str] = None,
        use_muon: Optional[Callable[[Tensor], bool]] = None,
        **common: Any,
    ) -> None:
        checked_callable(use_muon, "use_muon", "a function of a parameter, or None")
        if not paddle.in_dynamic_mode():
            raise refusal(RuntimeError, "Muon works in dygraph only.", "a static graph")
        arguments = passed_on(locals())
        del arguments["use_muon"]
        super().__init__(**arguments)
        self._groups = self._routed(use_muon)

    rule = staticmethod(muon_update)

    def _routed(self, use_muon: Optional[Callable[[Tensor], bool]]) -> dict[str, Any]:
        listed: Any = self._param_groups
        routed: dict[str, Any] = {}
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            sides = {chosen: collections.ChainMap({"use_muon": chosen}, group) for chosen in (True, False)}
            for param in group["params"]:
                chosen = group.get("use_muon")
                if chosen is None and use_muon is not None:
                    chosen = bool(use_muon(param))
                elif chosen is None:
                    if self.layers is None:
                        how = "give `layers`, or `use_muon`, a function of a parameter, or groups with 'use_muon'"
                        received = f"layers=None, use_muon=None, '{param.name}' of shape {list(param.shape)}"
                        raise refusal(ValueError, f"Muon must know the matrices of blocks: {how}.", received)
                    chosen = len(param.shape) in _RANKS and bool(self.layers.layer_of(param.name).is_block)
                if chosen and len(param.shape) < 2:
                    wrong = "Muon updates matrices: leave vectors and scalars to AdamW."
                    raise refusal(ValueError, wrong, f"use_muon=True for '{param.name}' of shape {list(param.shape)}")
                routed[param.name] = sides[chosen]
        if not any(group["use_muon"] for group in routed.values()):
            wrong = "No parameter is a matrix of a block, so Muon would be AdamW: use AdamWDL, or give `use_muon`."
            raise refusal(ValueError, wrong, layers=self.layers, parameters=len(routed))
        return routed

    def uses_muon(self, param: Tensor) -> bool:
        """Return whether Muon, not AdamW, updates a parameter."""
        return bool(self.group_of(param)["use_muon"])

    def prepared(self, rows: Rows) -> Callable[[Optional[float]], None]:
        if self._options["ns_dtype"] == "bfloat16" and any(param.place.is_cpu_place() for param in rows.params):
            wrong = "Paddle has no bfloat16 products on a CPU: leave `ns_dtype` out."
            raise refusal(ValueError, wrong, 'ns_dtype="bfloat16"')
        cut = [param for param in rows.params if param.is_dist() and self.uses_muon(param)]
        if topology() is not None:
            every = self.finder.params.values()  # the same in all processes, so that none waits for the others
            parts = [param for param in every if self.finder.is_part(param, self._parameter_list)]
            cut += filter(self.uses_muon, parts)
        if cut:
            wrong = "Muon needs whole matrices: use data parallel or sharding version 1, or AdamWDL."
            raise refusal(ValueError, wrong, f"{len(cut)} matrices split over processes, such as '{cut[0].name}'")
        return super().prepared(rows)
