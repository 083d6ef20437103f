"""LAMB with one learning rate per layer (a port of `mindspore.nn.Lamb`).

Paper: Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, You et al.,
https://arxiv.org/abs/1904.00962 (Algorithm 2, with the identity as its scaling function).
"""

import math
from typing import Any, ClassVar

import paddle
from paddle import Tensor, _C_ops

from .._checks import Option
from .fused import CONVOLUTIONS, FusedRule
from .options import BETAS, OWN_SCHEDULE, bool_option, decay_or_function, parameters_first, passed_on, register
from .rules import RuleOptimizer, ema_, ema_of_squares_, one_minus_power, sqrt
from .sharded import Shard, Update
from .states import ELEMENT, GLOBAL_STEP, STEP, State

_DECAY = "[0, inf) or a function of the step"


def lamb_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Shard,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_centralization: bool = False,
) -> Update:
    t = state[STEP]
    if grad_centralization and len(shard.shape) in CONVOLUTIONS:
        (sums,) = yield [shard.leading_sums(grad, 1)]
        grad = grad - shard.spread_leading(sums / math.prod(shard.shape[1:]), 1)  # arXiv 2004.01461, eq. 1
    m = ema_(state["moment1"], grad, beta1)
    v = ema_of_squares_(state["moment2"], grad, beta2)
    m_hat = m / one_minus_power(beta1, t)
    v_hat = v / one_minus_power(beta2, t)
    r = m_hat.divide_(sqrt(v_hat).scale_(1.0, eps))
    u = r.add_(param * weight_decay)
    x_square, u_square = yield [shard.square_sum(param), shard.square_sum(u)]
    x_norm, u_norm = x_square.sqrt(), u_square.sqrt()
    # not in a function: while these small tensors live, the allocator keeps the pages of the large ones
    one, adapted = paddle.ones_like(x_norm), _C_ops.minimum(x_norm, u_norm) > 0  # type: ignore[no-untyped-call]
    trust_ratio = _C_ops.where(adapted, x_norm / _C_ops.where(adapted, u_norm, one), one)
    return param.subtract_(u.multiply_(lr * trust_ratio)), {"moment1": m, "moment2": v}


@register("batches of thousands of rows; 8 bytes", trainer=BETAS)
class Lamb(RuleOptimizer):
    r"""Adam with each parameter's step scaled to the norm of its weights: the choice for very large batches.

    With l the rate of the parameter's layer and t the number of the parameter's updates, this one included:

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        r &= \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
            \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t} \\
        w &\leftarrow w - l \, \frac{\|w\|}{\|r + \lambda w\|} \, (r + \lambda w)

    where the quotient of the norms is 1 if either is 0. Every parameter is adapted, also without weight decay.

    Args:
        learning_rate (float|int|Tensor|Iterable|LRScheduler|callable): a constant (number or Tensor of one element); a
            1-D Tensor or finite iterable whose element i, from 0, is the rate of step i (a later step raises); or a
            callable: number of steps taken -> rate. The state includes this number; steps without a gradient or skipped
            after an overflow do not count. The caller steps an `LRScheduler`.
        weight_decay (float|int|callable, optional): :math:`\lambda`, or a callable of the number of steps taken.
        parameters (list[Tensor]|list[dict], optional): also `params`, or the first argument. A group's "lr" is its
            absolute rate, of any kind of `learning_rate`; "grad_centralization" subtracts from the gradient of a
            convolution's weight, of rank 4 or 5, its mean over all axes except the first. ``{"order_params": [...]}``
            has no effect.
        apply_decay_param_fun: ``param.name`` -> whether weight decay applies to the parameter. None: with groups to
            all, else to all except names with "beta" or "gamma". Paddle's norms have other names: use
            ``ldopt.decayed_parameter_names(model).__contains__``.
        **common: further options (docs/options.md) and the arguments of `AdamWDL`.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import Lamb
        >>> linear = paddle.nn.Linear(4, 2)
        >>> opt = Lamb(lambda step: 0.01 / (step + 1), weight_decay=0.01, parameters=linear.parameters())
        >>> for _ in range(2):
        ...     print(opt.get_lr())
        ...     linear(paddle.rand([3, 4])).mean().backward()
        ...     opt.step()
        ...     opt.clear_grad()
        0.01
        0.005

    Source: ``mindspore.nn.Lamb``.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "beta1": Option(doc="decay rate of the first moment", high=1.0, ends="()", group=True),
        "beta2": Option(doc="decay rate of the second moment", high=1.0, ends="()", group=True),
        "eps": Option(doc="added to the root of the second moment", ends="()", group=True, setting="epsilon"),
        "weight_decay": Option(doc="decoupled weight decay", group=True, check=decay_or_function, values=_DECAY),
        "lr": OWN_SCHEDULE,
        "grad_centralization": bool_option(
            "centralize gradients of convolutions", default=False, group=True, argument=False
        ),
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        return dict.fromkeys(("moment1", "moment2"), State(ELEMENT))

    @parameters_first
    def __init__(
        self,
        learning_rate: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: Any = 0.0,
        parameters: Any = None,
        *,
        params: Any = None,
        **common: Any,
    ) -> None:
        super().__init__(**passed_on(locals()))

    rule = staticmethod(lamb_update)

    fused_rule = FusedRule("lamb", ("moment1", "moment2"), aux=GLOBAL_STEP)

    def has_weight_decay(self, param: Tensor) -> bool:
        has_groups = self._parameter_list and isinstance(self._parameter_list[0], dict)
        if has_groups or self._apply_decay_param_fun is not None:
            return super().has_weight_decay(param)
        names = (param.name, self.structured_name(param))
        return not any(part in known for known in names for part in ("beta", "gamma"))
