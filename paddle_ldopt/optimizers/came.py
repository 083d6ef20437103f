"""Confidence-guided Adaptive Memory Efficient optimization (a port of `mindformers.core.optim.Came`).

Paper: Luo et al., https://arxiv.org/abs/2307.02047 (Algorithm 2). With `beta2=` it follows the authors' code,
https://github.com/yangluo7/CAME.
"""

from typing import Any, ClassVar, Optional

import paddle
from paddle import Tensor

from .._checks import Option, refusal
from .fused import FusedRule
from .options import (
    CLIP_THRESHOLD,
    OWN_SCHEDULE,
    RELATIVE_STEP,
    SCALE_PARAMETER,
    bool_option,
    decay_option,
    from_one,
    numbers,
    parameters_first,
    passed_on,
    plain_weight_decay,
    register,
)
from .rules import FactoredOptimizer, clipped_, divided_by_root, ema_, factored_ema, factored_states, relative_step_lr
from .sharded import Shard, Update
from .states import ELEMENT, GLOBAL_STEP, STEP, State, Values

_DECAY_RATE = 0.8
_FLOAT16_MAX = 65504.0


def came_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Shard,
    eps: tuple[float, float, float],
    clip_threshold: float,
    decay_rate: float,
    beta1: Optional[float],
    beta2: Optional[float],
    beta3: float,
    weight_decay: float,
    scale_parameter: bool = False,
    relative_step: bool = False,
    warmup_init: bool = False,
    compression: bool = False,
    loss_scale: int = 1,
) -> Update:
    t = state[STEP]
    if loss_scale != 1:
        grad = grad / loss_scale
    # t^-decay_rate in the type of t: Paddle rounds a float exponent to float32
    one_minus_beta2 = t ** paddle.full_like(t, -decay_rate) if beta2 is None else 1 - beta2
    v = yield from factored_ema("exp_avg_sq", (grad * grad).scale_(1.0, eps[0]), state, shard, one_minus_beta2)
    u = divided_by_root(grad, v, shard)  # g / sqrt(V)
    u, rms_p = yield from clipped_(u, param, clip_threshold, scale_parameter, shard)
    new_state = dict(v)
    if beta1:
        m = ema_(state["exp_avg"], u, beta1)
        new_state["exp_avg"] = m
        if compression:  # to float16: denormal numbers are rounded towards 0, or m would not decay
            fit = m.clip(-_FLOAT16_MAX, _FLOAT16_MAX)
            new_state["exp_avg"] = paddle.where(fit.abs() < 2.0**-14, (fit * 2.0**24).trunc() * 2.0**-24, fit)
        if len(shard.shape) >= 2:
            residual = u.subtract_(m)
            residual = residual.multiply_(residual).scale_(1.0, eps[2])
            s = yield from factored_ema("exp_avg_res", residual, state, shard, 1 - beta3)
            u = divided_by_root(m, s, shard)  # m / sqrt(S)
            new_state.update(s)
        else:
            u = m
    if weight_decay:
        u = (param * weight_decay).add_(u)
    if relative_step:
        lr = lr * relative_step_lr(t, warmup_init)
    if scale_parameter:
        lr = lr * rms_p.clip(min=eps[1])
    return param.subtract_(u * lr), new_state


@register("large language models in half of AdamW's memory; needs a warm-up; 4 bytes", trainer={"beta1": "adam_beta1"})
class Came(FactoredOptimizer):
    r"""Adafactor's low memory, with momentum and longer steps where updates are stable: the choice for large models.

    With :math:`\beta_{2,t} = 1 - t^{-decay\_rate}` and EMA the exponential moving average, for a parameter of rank 2 or
    more, whose averages of squares are means of rows and columns (of the last two dimensions):

    .. math::
        V &= \mathrm{EMA}(g^2 + \epsilon_1; \beta_{2,t}), \qquad
            u = \frac{g / \sqrt V}{\max(1, \mathrm{RMS}(g / \sqrt V) / clip\_threshold)} \\
        m &= \mathrm{EMA}(u; \beta_1), \qquad S = \mathrm{EMA}((u - m)^2 + \epsilon_3; \beta_3) \\
        p &\leftarrow p - l \lambda p - l \, m / \sqrt S

    A parameter of rank 0 or 1 keeps all of V, and its step is :math:`l \, m`. :math:`l` is the rate of the parameter's
    layer, times :math:`\max(\epsilon_2, \mathrm{RMS}(p))` with `scale_parameter`; with `relative_step` it is
    :math:`\min(10^{-2}, 1 / \sqrt t)` times the layer's ratio, or :math:`\min(10^{-6} t, 1 / \sqrt t)` with
    `warmup_init`. Without `beta1` there is no m and no S: the step is Adafactor's, :math:`l \, u`.

    **Use a warm-up**: S has no bias correction, so the first step of a matrix has an RMS of about
    :math:`0.11 / \sqrt{1 - \beta_3}` times the rate.

    docs/options.md lists the options. Not obvious are:

    - `learning_rate` and `parameters` are as in `Lamb`. The rate is None with `relative_step`, and only then.
    - A constant `beta2` replaces :math:`\beta_{2,t}` (authors: 0.999, and a `beta3` of 0.9999). A group's
      ``"beta2": None`` overrides the optimizer's `beta2`. `beta2` and `decay_rate` exclude each other.
    - `compression` stores m as float16; with the default `beta1`, its error is at most 0.5 % of its largest value.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import Came
        >>> model = paddle.nn.Linear(8, 2)
        >>> warmup = paddle.optimizer.lr.LinearWarmup(2e-4, warmup_steps=100, start_lr=0.0, end_lr=2e-4)
        >>> opt = Came(warmup, weight_decay=0.01, parameters=model.parameters())
        >>> model(paddle.rand([4, 8])).mean().backward()
        >>> opt.step()
        >>> warmup.step()

    Source: ``mindformers.core.optim.came.Came``; ``came_pytorch.CAME``.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "lr": OWN_SCHEDULE,
        "eps": Option(
            doc="added to squared gradients; smallest RMS of a parameter (`scale_parameter`); added to the instability",
            check=numbers("()", "()", "()"),
            values="three numbers in (0, inf)",
            group=True,
            setting="epsilon",
        ),
        "clip_threshold": CLIP_THRESHOLD,
        "decay_rate": Option(doc="exponent of the second moment's decay rate", high=1.0, group=True),
        "beta1": decay_option("decay rate of the momentum; 0 or None: no momentum", optional=True),
        "beta2": decay_option("constant decay rate of the second moment; None: from `decay_rate`", optional=True),
        "beta3": decay_option("decay rate of the instability"),
        "weight_decay": Option(doc="decoupled weight decay", high=1.0, group=True, read=plain_weight_decay),
        "scale_parameter": SCALE_PARAMETER,
        "relative_step": RELATIVE_STEP,
        "warmup_init": bool_option("with `relative_step`: a warm-up at rate 1e-6 t"),
        "compression": bool_option("store the momentum as float16"),
        "loss_scale": Option(doc="divides the gradients", values="an int from 1", check=from_one),
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        states = factored_states("exp_avg_sq", shape)
        if options["beta1"]:
            states["exp_avg"] = State(ELEMENT, "float16" if options["compression"] else None)
            states.update(factored_states("exp_avg_res", shape) if len(shape) >= 2 else {})
        return states

    @parameters_first
    def __init__(
        self,
        learning_rate: Any = None,
        eps: Any = (1e-30, 1e-3, 1e-16),
        clip_threshold: float = 1.0,
        decay_rate: float = _DECAY_RATE,
        beta1: Optional[float] = 0.9,
        beta3: float = 0.99,
        weight_decay: Optional[float] = 0.0,
        scale_parameter: bool = False,
        relative_step: bool = False,
        warmup_init: bool = False,
        compression: bool = False,
        loss_scale: int = 1,
        parameters: Any = None,
        *,
        params: Any = None,
        beta2: Optional[float] = None,
        **common: Any,
    ) -> None:
        super().__init__(**passed_on(locals()))

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        super().check_together(options, group)
        given = "decay_rate" in group if group else options["decay_rate"] != _DECAY_RATE
        if given and options["beta2"] is not None:
            wrong = "`beta2` overrides `decay_rate`: give one of them, or the group 'beta2': None."
            raise refusal(ValueError, wrong, **{name: options[name] for name in ("beta2", "decay_rate")})

    rule = staticmethod(came_update)

    _squares, _residuals = ("exp_avg_sq_row", "exp_avg_sq"), ("exp_avg_res_row", "exp_avg_res_col")
    fused_rule = FusedRule("came", (_squares, "exp_avg_sq_col", "exp_avg", *_residuals), GLOBAL_STEP, factored=True)

    def fused_values(self, options: Values) -> Values:
        values: Values = {"momentum": bool(options["beta1"]), "constant_beta2": options["beta2"] is not None}
        values.update(beta1=options["beta1"] or 0.0, beta2=options["beta2"] or 0.0, clip=options["clip_threshold"])
        return {**values, "grad_scale": 1.0 / options["loss_scale"]}

    def get_lr(self) -> float:
        """Return the rate of the next step for a ratio of 1, without the factor of `scale_parameter`."""
        if not self._options["relative_step"] or not paddle.in_dynamic_mode():
            return super().get_lr()
        return float(relative_step_lr(paddle.to_tensor(self.steps_taken() + 1.0), self._options["warmup_init"]))
