"""Confidence-guided Adaptive Memory Efficient optimization (a port of `mindformers.core.optim.Came`).

Paper: CAME, Luo et al., https://arxiv.org/abs/2307.02047 (Algorithm 2). `beta2=` gives the arithmetic of the authors'
code, https://github.com/yangluo7/CAME.
"""

import math

import paddle
from paddle.optimizer.lr import LRScheduler

from .._checks import Option, checked_bool, checked_int, checked_number, shown
from ..layers.paddlenlp_hook import layerwise_lr_decay
from ._base.arithmetic import over_, plus_, square_, times_
from ._base.declaration import COLUMN, ELEMENT, ROW, SCALAR, State, numbers, register
from ._base.factored import (
    factored_kinds,
    inverse_sqrt_factored,
    is_factored,
    refuse_relative_step,
    relative_rate,
    rms,
    row_col_means,
    row_col_sums,
    square_sum,
)
from ._base.groups import is_listed
from ._base.mindspore import read_order
from ._base.rule_optimizer import STEP, RuleOptimizer, checked_decay
from ._fused.plan import FusedRule
from ._pieces.pieces import Piece

__all__ = ["Came", "came_update"]

_DECAY_RATE = 0.8  # the default
_FLOAT16_MAX = 65504.0


def came_update(
    param,
    grad,
    state,
    lr,
    *,
    piece,
    eps,
    clip_threshold,
    decay_rate,
    beta1,
    beta2,
    beta3,
    weight_decay,
    scale_parameter=False,
    relative_step=False,
    warmup_init=False,
    loss_scale=1,
):
    """Return (new parameter, new state): Algorithm 2 of the paper, as a rule of `RuleOptimizer`.

    `piece` is what the tensors are of the parameter; all other arguments are `Came`'s. State: "exp_avg" like the
    parameter; for rank 2 and above "exp_avg_sq_row", "exp_avg_res_row" [..., R] and "exp_avg_sq_col",
    "exp_avg_res_col" [..., C]; below that "exp_avg_sq" like the parameter. Without `beta1` there is neither "exp_avg"
    nor "exp_avg_res".
    """
    t, shape, new_state = state[STEP], piece.shape, {}

    def average(name, value, beta):  # the exponential moving average called `name`, with `value` in it
        new_state[name] = plus_(beta * state[name], (1 - beta) * value)
        return new_state[name]

    def factored_average(name, matrix, beta):  # 1 / sqrt of the average of `matrix`, kept as its row and column means
        row, col = row_col_means((yield row_col_sums(matrix, piece)), shape)
        return inverse_sqrt_factored(average(f"{name}_row", row, beta), average(f"{name}_col", col, beta), piece)

    if loss_scale != 1:
        grad = grad / loss_scale
    if relative_step:
        lr = lr * relative_rate(t, warmup_init)
    if scale_parameter:
        (total,) = yield [square_sum(param)]
        scale = rms(total, shape)
        lr = lr * paddle.maximum(scale, paddle.full_like(scale, eps[1]))
    if beta2 is None:
        beta2 = 1 - t ** paddle.full_like(t, -decay_rate)  # a number would be rounded to float32

    square = plus_(grad * grad, eps[0])
    if is_factored(shape):
        update = times_((yield from factored_average("exp_avg_sq", square, beta2)), grad)  # u = g / sqrt(V)
    else:
        update = times_(average("exp_avg_sq", square, beta2).rsqrt(), grad)
    (total,) = yield [square_sum(update)]
    excess = rms(total, shape) / clip_threshold
    update = over_(update, paddle.maximum(excess, paddle.ones_like(excess)))  # u / max(1, RMS(u) / d)

    step = update
    if beta1:
        step = average("exp_avg", update, beta1)  # m
        if is_factored(shape):
            instability = plus_(square_(update - step), eps[2])  # U = (u - m)^2: the less, the more confidence
            step = times_((yield from factored_average("exp_avg_res", instability, beta3)), step)  # m / sqrt(S)
    if weight_decay:
        step = plus_(weight_decay * param, step)
    return plus_(-lr * step, param), new_state


@register("large language models in half of AdamW's memory; needs a warm-up; 4 bytes", trainer={"beta1": "adam_beta1"})
class Came(RuleOptimizer):
    r"""CAME: Adafactor's memory with a momentum whose step is larger where the update is stable; for large models.

    With :math:`\beta_{2,t} = 1 - t^{-decay\_rate}` and EMA the exponential moving average, for a parameter of rank 2 or
    more, whose averages of squares are kept as the means of rows and columns (of the last two dimensions):

    .. math::
        V &= \mathrm{EMA}(g^2 + \epsilon_1; \beta_{2,t}), \qquad
            u = \frac{g / \sqrt V}{\max(1, \mathrm{RMS}(g / \sqrt V) / clip\_threshold)} \\
        m &= \mathrm{EMA}(u; \beta_1), \qquad S = \mathrm{EMA}((u - m)^2 + \epsilon_3; \beta_3) \\
        p &\leftarrow p - l \lambda p - l \, m / \sqrt S

    A parameter of rank 0 or 1 keeps all of V and steps by :math:`l \, m`. :math:`l` is the rate of the parameter's
    layer, times :math:`\max(\epsilon_2, \mathrm{RMS}(p))` with `scale_parameter`. State: 4 bytes a parameter (2 with
    `compression`) and 8 for each row and column.

    **Warm the rate up.** S starts at 0 and is not debiased: the first step of a matrix has an RMS of about
    :math:`0.11 / \sqrt{1 - \beta_3}` rates, 1.1 with the default, 11 with the authors' `beta3` 0.9999, and it falls to
    below 1 as S fills.

    Args:
        learning_rate (float|LRScheduler, optional): at least 0, the rate of a layer whose ratio is 1. None with
            `relative_step`, and only then.
        eps (tuple|list): three numbers above 0: :math:`\epsilon_1` is added to the squared gradient,
            :math:`\epsilon_2` is the least RMS of a parameter, used with `scale_parameter` only, and
            :math:`\epsilon_3` is added to the squared instability.
        clip_threshold (float): above 0, the largest RMS of the update u.
        decay_rate (float): in [0, 1], of :math:`\beta_{2,t}`; 0 averages nothing.
        beta1 (float, optional): decay of m, in [0, 1). With 0 or None there is no m to hold the update against: no
            confidence either, the step is :math:`l \, u` (Adafactor's), and V is the only state.
        beta3 (float): decay of S, in [0, 1).
        weight_decay (float|None): decoupled decay :math:`\lambda`, in [0, 1], scaled by the layer's own rate; None is
            0.
        scale_parameter (bool): scale the rate by the RMS of the parameter.
        relative_step (bool): the rate is :math:`\min(10^{-2}, 1 / \sqrt t)` times the layer's ratio and the group's
            multiplier, as in `Adafactor`; `get_lr` is then that of the next step.
        warmup_init (bool): with `relative_step`, :math:`10^{-6} t` instead of :math:`10^{-2}`.
        compression (bool): store m as float16. See below.
        loss_scale (int): above 0; gradients are divided by it (after `grad_clip`).
        parameters (list[Tensor]|list[dict], optional): what to train; required in dygraph. Dicts are groups with
            "params" and any of "lr" (its own rate, a float, instead of `learning_rate`), "learning_rate" (a multiplier
            of the global rate), "weight_decay", "eps", "clip_threshold", "decay_rate", "beta1", "beta2", "beta3",
            "scale_parameter", "grad_clip". A group's "beta2" takes the place of the optimizer's `decay_rate`; None that
            of its `beta2`. MindFormers' ``{"order_params": [...]}`` is checked, and changes nothing.
        grad_clip (GradientClipBase, optional): gradient clipping before the step.
        apply_decay_param_fun (callable, optional): ``param.name`` -> whether the parameter is decayed. None: all are.
        multi_precision (bool): keep float32 master weights of float16 and bfloat16 parameters.
        name (str, optional): prefix of the names of the optimizer's state.
        params (list, optional): another name for `parameters`.
        beta2 (float, optional): a constant decay of V, in [0, 1), instead of :math:`\beta_{2,t}`. The authors' code is
            ``beta2=0.999, beta3=0.9999``.
        layerwise_decay (float|LayerDecay): as in `AdamWDL`, like `n_layers`, `set_param_lr_fun`, `name_dict` and
            `layers`.
        n_layers (int): blocks of the model.
        set_param_lr_fun (callable, optional): parameter -> ratio.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name.
        layers (LayerMap, optional): the layers of the model, for every architecture.
        fused (bool, optional): see `AdamWDL`.

    Compression: an average of squares does not survive in float16. It underflows where gradients are below 2e-4, and
    once :math:`1 - \beta` is below 5e-4 rounding stops it altogether. These averages stay in float32; they are a small
    part of the memory. The error of m is at most :math:`(2^{-11} \max |m| + 2^{-25}) / (1 - \beta_1)`: 0.5% of its
    largest value with the default.

    Raises:
        TypeError: `learning_rate` is neither a number nor an LRScheduler (parameters given in its place included);
            `eps` is no list or tuple; `loss_scale` is no int; a flag is no bool; a number is none; `weight_decay` is a
            regularizer of Paddle's.
        ValueError: a value out of its range; not three `eps`; `learning_rate` or a group's "lr" with `relative_step`,
            or neither; `warmup_init` without `relative_step`; `parameters` and `params`, `beta2` and `decay_rate` (of a
            group too, whose "decay_rate" the optimizer's `beta2` would hide), or "lr" and "learning_rate" of a group,
            at once; an "order_params" that does not list all parameters once; and
            all of `AdamWDL`'s.

    Differs from MindFormers: `relative_step`, `warmup_init`, `compression`, `loss_scale`, the groups' own rate and
    decay, and `beta1=0` work; updates are counted for each parameter; 1 is no value for `beta1` (nothing would move)
    and `beta3` (S would be 0), nor 0 for `clip_threshold`. Differs from the paper: V's decay, unless `beta2` is given.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> from paddle_ldopt import Came
            >>> model = paddle.nn.Linear(8, 2)
            >>> warmup = paddle.optimizer.lr.LinearWarmup(2e-4, warmup_steps=100, start_lr=0.0, end_lr=2e-4)
            >>> opt = Came(warmup, weight_decay=0.01, parameters=model.parameters())
            >>> model(paddle.rand([4, 8])).mean().backward()
            >>> opt.step()
            >>> opt.clear_grad()
            >>> warmup.step()

    Source: ``mindformers.core.optim.came.Came``; ``came_pytorch.CAME``.
    """

    OPTIONS = {
        "lr": Option(None, "the group's own rate", optional=True, group=True, argument=False),
        "eps": Option(
            (1e-30, 1e-3, 1e-16),
            "for squares, RMS, instability",
            check=numbers("()", "()", "()"),
            group=True,
            kind="three of (0, inf)",
        ),
        "clip_threshold": Option(1.0, "the most that RMS(u) can be", ends="()", group=True),
        "decay_rate": Option(_DECAY_RATE, "exponent of the second moment's decay", high=1.0, group=True),
        "beta1": Option(0.9, "decay of the momentum; 0: none", high=1.0, ends="[)", optional=True, group=True),
        "beta2": Option(None, "a constant decay of V", high=1.0, ends="[)", optional=True, group=True),
        "beta3": Option(0.99, "decay of the instability", high=1.0, ends="[)", group=True),
        "weight_decay": Option(0.0, "decoupled decay of the weights", high=1.0, group=True),
        "scale_parameter": Option(False, "scale the rate by the parameter's RMS", check=checked_bool, group=True),
        "relative_step": Option(False, "set the rate from the step", check=checked_bool),
        "warmup_init": Option(False, "with `relative_step`: begin with 1e-6 t", check=checked_bool),
        "compression": Option(False, "store the momentum as float16", check=checked_bool),
        "loss_scale": Option(
            1, "gradients are divided by it", check=lambda v, name: checked_int(v, name, 1), kind="an int from 1"
        ),
    }

    @staticmethod
    def states(options, shape):
        """Return state name -> its kind and type."""
        factored, momentum = is_factored(shape), bool(options["beta1"])
        kinds = factored_kinds("exp_avg_sq") if factored else {"exp_avg_sq": ELEMENT}
        kinds.update({"exp_avg": ELEMENT} if momentum else {})
        kinds.update(factored_kinds("exp_avg_res") if momentum and factored else {})
        half = "float16" if options["compression"] else None
        return {name: State(kind, half if name == "exp_avg" else None) for name, kind in kinds.items()}

    @staticmethod
    def sums(options, shape):
        """Return the rounds of sums; `scale_parameter` needs one more number in a round of its own."""
        lines = [ROW, COLUMN] if is_factored(shape) else []
        rounds = [lines, [SCALAR], lines if options["beta1"] else []]
        return [kinds for kinds in rounds if kinds]

    def __init__(
        self,
        learning_rate=None,
        eps=(1e-30, 1e-3, 1e-16),
        clip_threshold=1.0,
        decay_rate=_DECAY_RATE,
        beta1=0.9,
        beta3=0.99,
        weight_decay=0.0,
        scale_parameter=False,
        relative_step=False,
        warmup_init=False,
        compression=False,
        loss_scale=1,
        parameters=None,
        grad_clip=None,
        apply_decay_param_fun=None,
        multi_precision=False,
        name=None,
        *,
        params=None,
        beta2=None,
        layerwise_decay=1.0,
        n_layers=12,
        set_param_lr_fun=layerwise_lr_decay,
        name_dict=None,
        layers=None,
        fused=None,
    ):
        if parameters is not None and params is not None:
            raise ValueError(
                "`params` is another name for `parameters`: give one of them. "
                f"Received: parameters of type {type(parameters).__name__}, params of type {type(params).__name__}"
            )
        if beta2 is not None and decay_rate != _DECAY_RATE:
            raise ValueError(
                "`beta2` takes the place of `decay_rate`: give one of them. "
                f"Received: beta2={shown(beta2)}, decay_rate={shown(decay_rate)}"
            )
        checked_bool(relative_step, "relative_step")
        checked_bool(warmup_init, "warmup_init")
        checked_bool(compression, "compression")
        learning_rate = _checked_learning_rate(learning_rate, relative_step)
        if warmup_init and not relative_step:
            raise ValueError("`warmup_init` requires `relative_step=True`. Received: warmup_init=True")
        loss_scale = checked_int(loss_scale, "loss_scale", 1)
        self._relative_step, self._warmup_init = relative_step, warmup_init
        self._compression, self._loss_scale = compression, loss_scale
        options = {
            "lr": None,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "beta2": beta2,
            "beta3": beta3,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        options = self.check_options(options)
        parameters = _without_order(params if parameters is None else parameters)
        _refuse_idle_decay_rates(parameters, beta2)
        super().__init__(
            1.0 if relative_step else learning_rate,
            parameters,
            options,
            grad_clip=grad_clip,
            apply_decay_param_fun=apply_decay_param_fun,
            multi_precision=multi_precision,
            name=name,
            fused=fused,
            layerwise={
                "layerwise_decay": layerwise_decay,
                "n_layers": n_layers,
                "set_param_lr_fun": set_param_lr_fun,
                "name_dict": name_dict,
                "layers": layers,
            },
        )

    def check_options(self, options):
        """Return the options, numbers as floats; raise for one that MindFormers or the arithmetic excludes."""
        eps, lr = options["eps"], options["lr"]
        if not isinstance(eps, (list, tuple)):
            raise TypeError(f"`eps` must be a list or a tuple. Received: eps={shown(eps)}")
        if len(eps) != 3:
            raise ValueError(f"`eps` must have 3 values: (eps1, eps2, eps3). Received: eps={shown(eps)}")
        numbers = {
            "eps": tuple(checked_number(value, f"eps[{i}]", ends="()") for i, value in enumerate(eps)),
            "clip_threshold": checked_number(options["clip_threshold"], "clip_threshold", ends="()"),
            "weight_decay": checked_decay(options["weight_decay"], high=1.0),
        }
        for name, ends in (("lr", "[]"), ("decay_rate", "[]"), ("beta1", "[)"), ("beta2", "[)"), ("beta3", "[)")):
            if options[name] is not None or name in ("decay_rate", "beta3"):
                high = math.inf if name == "lr" else 1.0
                numbers[name] = checked_number(options[name], name, 0.0, high, ends)
        checked_bool(options["scale_parameter"], "scale_parameter")
        if lr is not None and self._relative_step:
            raise ValueError(f"A group's 'lr' cannot be combined with `relative_step`. Received: lr={shown(lr)}")
        return {**options, **numbers}

    def state_kinds(self, param):
        """Return state name -> kind, for a parameter."""
        momentum = bool(self.options_of(param)["beta1"])
        if not is_factored(self.whole_shape(param)):
            return {"exp_avg_sq": ELEMENT, **({"exp_avg": ELEMENT} if momentum else {})}
        kinds = factored_kinds("exp_avg_sq")
        return {**kinds, "exp_avg": ELEMENT, **factored_kinds("exp_avg_res")} if momentum else kinds

    def state_dtype(self, state_name, dtype):
        """Return the dtype in which a state is stored."""
        return paddle.float16 if self._compression and state_name == "exp_avg" else dtype

    def fixed_options(self):
        """Return the arguments that change the rule, or what it stores, and that no parameter group overrides."""
        names = ("relative_step", "warmup_init", "compression", "loss_scale")
        return {name: getattr(self, f"_{name}") for name in names}

    def shown_rate(self, param, factor):
        """Return nothing known if the rate comes from the step and the parameter's size."""
        return (None, None) if self._relative_step else None

    def get_lr(self):
        """Return the rate of the next step for a layer whose ratio is 1, `scale_parameter` aside."""
        if not self._relative_step or not paddle.in_dynamic_mode():
            return super().get_lr()
        counter = (f"{self._name}_" if self._name else "") + STEP
        live = list(self._accumulators.get(counter, {}).values())
        loaded = [value for key, value in self._accumulators_holder.items() if counter in key]  # of no step yet
        taken = max((paddle.assign(count).item() for count in live or loaded), default=0.0)
        return float(relative_rate(paddle.full([], taken + 1.0), self._warmup_init))

    def set_lr(self, value):
        """Set the rate; not where the step sets it.

        Args:
            value (float): the new rate.
        """
        refuse_relative_step(self, value=value)
        super().set_lr(value)

    def set_lr_scheduler(self, scheduler):
        """Take the rate from a scheduler from now on; not where the step sets it.

        Args:
            scheduler (LRScheduler): stepped by the caller.
        """
        refuse_relative_step(self, scheduler=scheduler)
        super().set_lr_scheduler(scheduler)

    def fused_rule(self, options):
        """Return the rule as the C library knows it."""
        fields = {
            "beta1": options["beta1"] or 0.0,
            "beta2": options["beta2"] or 0.0,
            "beta3": options["beta3"],
            "eps": options["eps"],
            "clip": options["clip_threshold"],
            "decay_rate": options["decay_rate"],
            "grad_scale": 1.0 / self._loss_scale,
        }
        flags = {
            "momentum": bool(options["beta1"]),
            "constant_beta2": options["beta2"] is not None,
            "scale_parameter": options["scale_parameter"],
            "relative_step": self._relative_step,
            "warmup_init": self._warmup_init,
        }
        states = (("exp_avg_sq_row", "exp_avg_sq"), "exp_avg_sq_col", "exp_avg", "exp_avg_res_row", "exp_avg_res_col")
        return FusedRule("came", states, fields, tuple(flag for flag in flags if flags[flag]))

    def fused_flags(self, shape, options):
        """Return the flag that depends on a parameter's shape."""
        return ("factored",) if is_factored(shape) else ()

    def rule(self, param, grad, state, lr, options, piece=None):
        """Return the generator of a parameter's update."""
        options = {key: value for key, value in options.items() if key != "lr"}  # it is in the argument by now
        new_param, new_state = yield from came_update(
            param,
            grad,
            state,
            lr,
            piece=piece or Piece(param.shape),
            relative_step=self._relative_step,
            warmup_init=self._warmup_init,
            loss_scale=self._loss_scale,
            **options,
        )
        if self._compression and "exp_avg" in new_state:  # saturate: |m| may reach clip_threshold * sqrt(size)
            m = new_state["exp_avg"].clip(-_FLOAT16_MAX, _FLOAT16_MAX)
            # Denormal ones towards 0, or beta1 * m would be rounded to m and never come to rest. (And Paddle makes 2e-7
            # of some numbers that are far below the least float16.)
            denormal = (m * 2.0**24).trunc() * 2.0**-24
            new_state["exp_avg"] = paddle.where(m.abs() < 2.0**-14, denormal, m)
        return new_param, new_state


def _without_order(parameters):
    """Return the parameters or groups without "order_params", which is checked: the update is the same in any order."""
    if not is_listed(parameters):  # the base refuses the latter two
        return parameters
    groups: list = []
    orders: list = []
    for group in parameters:
        (orders if isinstance(group, dict) and "order_params" in group else groups).append(group)
    read_order(orders, groups)
    return groups


def _refuse_idle_decay_rates(groups, beta2):
    """Raise if a group has a "decay_rate" in the place of which there is a `beta2`, its own or the optimizer's."""
    for group in groups if is_listed(groups) else ():
        if isinstance(group, dict) and group.get("decay_rate") is not None and group.get("beta2", beta2) is not None:
            raise ValueError(
                "`beta2` takes the place of a group's 'decay_rate': leave that out, or give the group 'beta2': None. "
                f"Received: beta2={shown(group.get('beta2', beta2))}, decay_rate={shown(group['decay_rate'])}"
            )


def _checked_learning_rate(learning_rate, relative_step):
    """Return the rate as Paddle takes it, None with `relative_step`."""
    if learning_rate is None:
        if not relative_step:
            raise ValueError("`learning_rate` must be given unless `relative_step=True`. Received: learning_rate=None")
        return None
    if not isinstance(learning_rate, LRScheduler):
        kind = "a number or an LRScheduler; parameters go into `parameters=`"
        learning_rate = checked_number(learning_rate, "learning_rate", kind=kind)
    if relative_step:
        raise ValueError(
            "`learning_rate` must be None with `relative_step`, which computes the rate. "
            f"Received: learning_rate={shown(learning_rate)}, relative_step=True"
        )
    return learning_rate
