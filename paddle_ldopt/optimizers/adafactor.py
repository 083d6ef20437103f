"""Adafactor and its scheduler, ported from `transformers/optimization.py` 4.37, itself from fairseq.

Paper: Shazeer & Stern, https://arxiv.org/abs/1804.04235 (Algorithm 4 for matrices, 5 for vectors; decay of the second
moment: 7.2; relative step size: 8).
"""

import math
from typing import Any, ClassVar, Optional

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from .._checks import Option, checked_number, one_of_two, wrong_type
from .._compat import parameters_of, unwrap
from .fused import FusedRule
from .options import (
    CLIP_THRESHOLD,
    OWN_RATE,
    RELATIVE_STEP,
    SCALE_PARAMETER,
    WEIGHT_DECAY,
    bool_option,
    decay_option,
    numbers,
    passed_on,
    register,
)
from .rules import FactoredOptimizer, clipped_, divided_by_root, ema_, factored_ema, factored_states, relative_step_lr
from .sharded import Shard, Update
from .states import ELEMENT, SCALAR, STEP, USED_LR, State, Values


def adafactor_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Shard,
    eps: tuple[float, float],
    clip_threshold: float,
    decay_rate: float,
    beta1: Optional[float],
    weight_decay: float,
    scale_parameter: bool,
    relative_step: bool,
    warmup_init: bool,
) -> Update:
    t = state[STEP]
    one_minus_beta2 = t ** paddle.full_like(t, decay_rate)  # (7.2), in the type of t
    v = yield from factored_ema("exp_avg_sq", (grad * grad).scale_(1.0, eps[0]), state, shard, one_minus_beta2)
    u = divided_by_root(grad, v, shard)
    u, rms_p = yield from clipped_(u, param, clip_threshold, scale_parameter, shard)
    alpha = lr * relative_step_lr(t, warmup_init) if relative_step else lr
    if scale_parameter:
        alpha = alpha * rms_p.clip(min=eps[1])
    new_state = {**v, USED_LR: alpha}
    u = u.scale_(alpha) if isinstance(alpha, float) else u.multiply_(alpha)
    if beta1 is not None:  # an average of steps, rates included
        u = new_state["exp_avg"] = ema_(state["exp_avg"], u, beta1)
    if weight_decay != 0.0:  # not in the paper
        param = param.subtract_(param * (weight_decay * alpha))
    return param.subtract_(u), new_state


@register(
    "T5 and similar models, almost without memory; below 0.02 bytes",
    external_rate={"relative_step": False, "scale_parameter": False},
)
class Adafactor(FactoredOptimizer):
    r"""Adam that stores only row and column means of the second moment: the choice if memory is short.

    Without `beta1` its state is about R + C numbers for a weight of R x C. With :math:`l` the product of `lr` (1 with
    `relative_step`), the layer's ratio and the group's multiplier, t the step of the parameter from 1, and
    :math:`\overline{x}` a mean over the row or column:

    .. math::
        \beta_{2} &= 1 - t^{decay\_rate} \\
        R &\leftarrow \beta_{2} R + (1 - \beta_{2}) \overline{(g^2 + \epsilon_1)}_{row}, \qquad
        C \leftarrow \beta_{2} C + (1 - \beta_{2}) \overline{(g^2 + \epsilon_1)}_{col} \\
        u &= g / \sqrt{R \, C / \overline{R}}, \qquad
        u \leftarrow u / \max(1, \mathrm{RMS}(u) / clip\_threshold) \\
        \alpha &= l \cdot \min(10^{-2}, t^{-1/2}) \cdot \max(\epsilon_2, \mathrm{RMS}(p)) \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) \alpha u \\
        p &\leftarrow p - \alpha \lambda p - m

    The second factor of :math:`\alpha` applies with `relative_step` (:math:`10^{-6} t` instead of :math:`10^{-2}` with
    `warmup_init`), the third with `scale_parameter`; without `beta1`, m is :math:`\alpha u`. The matrix is the last two
    dimensions; vectors keep the average of :math:`g^2 + \epsilon_1` itself.

    Usual for fine-tuning: ``lr=1e-3, scale_parameter=False, relative_step=False`` with a warm-up, or
    ``warmup_init=True`` alone (with an `AdafactorSchedule` if a scheduler is required).

    docs/options.md lists the options, `AdamWDL` the arguments of all optimizers. `lr`, also called `learning_rate`,
    must be None with `relative_step`, and only then. A group's "lr" is its own rate.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import Adafactor
        >>> linear = paddle.nn.Linear(4, 2)
        >>> opt = Adafactor(linear.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
        >>> linear(paddle.ones([1, 4])).mean().backward()
        >>> opt.step()
        >>> print({name: shape for name, (_, shape) in opt.state_layout(linear.weight).items()})
        {'used_lr': [1], 'exp_avg_sq_row': [4], 'exp_avg_sq_col': [2], 'beta1_pow_acc': [1]}

    Source: ``transformers.Adafactor``, 4.37.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "lr": OWN_RATE,
        "eps": Option(
            doc="added to squared gradients; smallest RMS of a parameter",
            check=numbers("()", "[)"),
            values="two numbers, in (0, inf) and [0, inf)",
            group=True,
            setting="epsilon",
        ),
        "clip_threshold": CLIP_THRESHOLD,
        "decay_rate": Option(
            doc="exponent of the second moment's decay rate", low=-math.inf, high=0.0, ends="(]", group=True
        ),
        "beta1": decay_option("decay rate of the momentum; None: no momentum", optional=True),
        "weight_decay": WEIGHT_DECAY,
        "scale_parameter": SCALE_PARAMETER,
        "relative_step": RELATIVE_STEP,
        "warmup_init": bool_option("with `relative_step`: a warm-up at rate 1e-6 t", group=True),
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        momentum = {} if options["beta1"] is None else {"exp_avg": State(ELEMENT)}
        return {USED_LR: State(SCALAR), **factored_states("exp_avg_sq", shape), **momentum}

    def __init__(
        self,
        parameters: Any = None,
        lr: Any = None,
        eps: Any = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: Optional[float] = None,
        weight_decay: Optional[float] = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        *,
        params: Any = None,
        learning_rate: Any = None,
        **common: Any,
    ) -> None:
        arguments = passed_on(locals())
        arguments["learning_rate"] = one_of_two("lr", arguments.pop("lr"), "learning_rate", learning_rate)
        super().__init__(**arguments)

    _lr_argument = "lr"

    @property
    def reports_lr(self) -> bool:  # type: ignore[override]
        return self.sets_own_lr or self.scales_lr

    rule = staticmethod(adafactor_update)

    _fused_states = (("exp_avg_sq_row", "exp_avg_sq"), "exp_avg_sq_col", "exp_avg")
    fused_rule = FusedRule("adafactor", _fused_states, aux=USED_LR, factored=True)

    def fused_values(self, options: Values) -> Values:
        values = {"momentum": options["beta1"] is not None, "beta1": options["beta1"] or 0.0}
        return {**values, "clip": options["clip_threshold"], "decay_rate": -options["decay_rate"]}

    def used_lr(self) -> dict[str, float]:
        r"""Return ``param.name`` -> the rate :math:`\alpha` of the last update."""
        rates = {param.name: self.used_lr_of(param) for param in parameters_of(self)}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def get_lr(self) -> float:
        """Return `lr`; with `relative_step` the rate of the first parameter's last update, 0.0 without one."""
        return self.first_used_lr(parameters_of(self), 0.0) if self.sets_own_lr else float(super().get_lr())

    def first_used_lr(self, params: list[Tensor], otherwise: float) -> float:
        """Return the first updated parameter's rate; reading the others' would wait for the device."""
        return next((rate for rate in map(self.used_lr_of, params) if rate is not None), otherwise)


class AdafactorSchedule(LRScheduler):
    """A scheduler that only reports `Adafactor`'s rates, for logs and a Trainer.

    Pass it to a Trainer with an optimizer that sets its own rate: ``optimizers=(opt, AdafactorSchedule(opt))``. Before
    a group's first update it reports `initial_lr`.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import Adafactor, AdafactorSchedule
        >>> linear = paddle.nn.Linear(4, 2)
        >>> opt = Adafactor(linear.parameters(), scale_parameter=False)
        >>> schedule = AdafactorSchedule(opt)
        >>> linear(paddle.ones([1, 4])).mean().backward()
        >>> opt.step()
        >>> schedule.step()
        >>> print([round(lr, 6) for lr in schedule.get_lr()])
        [0.01]
    """

    last_epoch: int

    def __init__(self, optimizer: Any, initial_lr: float = 0.0) -> None:
        self.optimizer = unwrap(optimizer)
        if not isinstance(self.optimizer, Adafactor):
            raise wrong_type(self.optimizer, "optimizer", "an Adafactor")
        super().__init__(checked_number(initial_lr, "initial_lr"))

    def get_lr(self) -> list[float]:
        """Return the rate of each group's first updated parameter."""
        groups = self.optimizer._param_groups or []
        groups = [g["params"] for g in groups] if groups and isinstance(groups[0], dict) else [groups]
        return [self.optimizer.first_used_lr(group, self.base_lr) for group in groups]

    def step(self, epoch: Optional[int] = None) -> None:
        """Record the rates of the optimizer's last step; `last_lr` is the first group's."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.last_lrs = self.get_lr()
        self.last_lr = self.last_lrs[0]

    def get_last_lr(self) -> list[float]:
        return self.last_lrs

    def state_keys(self) -> None:
        self.keys = ["last_epoch", "last_lr", "last_lrs"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.set_state_dict(state_dict)
