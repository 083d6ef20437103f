"""LAMB with a learning rate of its own for each layer (a port of `mindspore.nn.Lamb`).

Paper: Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, You et al.,
https://arxiv.org/abs/1904.00962 (Algorithm 2, with the identity as its scaling function).
"""

import contextlib
import math
import re

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler

from .._checks import Option, checked_bool, checked_number, shown
from ..layers.paddlenlp_hook import layerwise_lr_decay
from ._base.arithmetic import over_, plus_, root_, times_
from ._base.declaration import ELEMENT, SCALAR, State, register
from ._base.factored import square_sum
from ._base.mindspore import Schedule, as_list, decay_or_schedule, is_convolution, rate_or_schedule, read_groups
from ._base.rule_optimizer import STEP, RuleOptimizer
from ._fused.plan import FusedRule
from ._pieces.pieces import Piece

__all__ = ["Lamb", "lamb_update"]

# The optimizer's own count of steps, kept with every parameter: `STEP` counts those of one parameter alone, which is
# another number where a parameter had no gradient. There only if something is scheduled by it.
GLOBAL_STEP = "global_step"
_GLOBAL_STEP_KEY = re.compile(rf"_{GLOBAL_STEP}_\d+$")


def lamb_update(param, grad, state, lr, *, beta1, beta2, eps, weight_decay, grad_centralization=False, piece=None):
    """Algorithm 2 of arXiv 1904.00962.

    Args:
        param (Tensor): x, or a piece of it.
        grad (Tensor): g, of the same shape.
        state (dict[str, Tensor]): `moment1` and `moment2` of that shape, and the number t of this update.
        lr (Tensor): the rate, shape [].
        beta1 (float): decay of the first moment.
        beta2 (float): decay of the second moment.
        eps (float): added to the root of the second moment.
        weight_decay (float): lambda.
        grad_centralization (bool): subtract from each output channel's gradient its mean, if x is a convolution's.
        piece (Piece, optional): what the tensors are of x. None: all of it.

    Yields:
        list[Tensor]: sums over the piece, to be answered with those over the whole tensor.

    Returns:
        tuple[Tensor, dict[str, Tensor]]: the new x and the new moments.
    """
    t, piece = state[STEP], piece or Piece(param.shape)
    if grad_centralization and is_convolution(piece.shape):
        (sums,) = yield [piece.channel_sums(grad)]
        grad = grad - piece.spread_channels(sums / math.prod(piece.shape[1:]))  # arXiv 2004.01461, eq. 1
    m = plus_(beta1 * state["moment1"], (1.0 - beta1) * grad)
    v = plus_(beta2 * state["moment2"], times_((1.0 - beta2) * grad, grad))
    m_hat = m / one_minus_power(beta1, t)
    v_hat = v / one_minus_power(beta2, t)
    r = over_(m_hat, plus_(root_(v_hat), eps))
    u = plus_(r, weight_decay * param)
    x_square, u_square = yield [square_sum(param), square_sum(u)]
    x_norm, u_norm = x_square.sqrt(), u_square.sqrt()
    one = paddle.ones_like(x_norm)
    adapted = paddle.logical_and(x_norm > 0, u_norm > 0)
    ratio = paddle.where(adapted, x_norm / paddle.where(adapted, u_norm, one), one)
    return plus_(times_(u, -lr * ratio), param), {"moment1": m, "moment2": v}


def one_minus_power(beta, t):
    """Return 1 - beta^t without the cancellation that would cost float32 a relative 1e-5 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta))


@register("batches of thousands; 8 bytes", trainer={"beta1": "adam_beta1", "beta2": "adam_beta2"})
class Lamb(RuleOptimizer):
    r"""Adam whose step is as long, in each parameter, as its weights: the choice for very large batches.

    With l the rate times the ratio of the parameter's layer, t the updates the parameter has had, this one included:

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        r &= \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
            \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t} \\
        w &\leftarrow w - l \, \frac{\|w\|}{\|r + \lambda w\|} \, (r + \lambda w)

    where the quotient of the norms is 1 if either of them is 0. Every parameter is adapted, those that are not decayed
    too. State: two float32 a parameter, and a counter each.

    Schedules: a `learning_rate` that is a 1-D Tensor, an iterable or a callable advances by itself with the optimizer's
    steps; a Paddle `LRScheduler` is stepped by the caller, as ever. The count of steps is part of the state: a resumed
    run goes on exactly where it was. A step that is skipped because of an overflow, or in which no parameter has a
    gradient, does not count. `get_lr` gives the rate of the next step.

    Args:
        learning_rate (float|int|Tensor|Iterable|LRScheduler|callable): rate of a layer whose ratio is 1, at least 0.
            A number or a 0-D Tensor stays. Of a 1-D Tensor or a (finite) iterable step i takes element i, from 0; the
            step after the last raises. A callable is given the number of steps taken so far, an int, 0 in the first
            step, and returns the rate.
        beta1 (float, optional): decay of the first moment, in (0, 1).
        beta2 (float, optional): decay of the second moment, in (0, 1).
        eps (float, optional): above 0, added to the root of the second moment.
        weight_decay (float|int|callable, optional): :math:`\lambda`, at least 0; or a callable of the number of steps
            taken so far that returns it, a `paddle.nn.Layer` included.
        parameters (list[Tensor]|list[dict], optional): what to train; required in dygraph. Dicts are groups with
            "params" and any of "lr" (the group's absolute rate: all that `learning_rate` may be; an `LRScheduler` here
            is stepped and saved by the caller), "learning_rate" (Paddle's multiplier of the optimizer's rate, instead
            of "lr"), "weight_decay", "grad_centralization" (bool: subtract from the gradient its mean over all axes but
            the first, the output channels; for convolutions, weights of rank 4 or 5, and without effect on others),
            "beta1", "beta2", "eps", "grad_clip". One more dict ``{"order_params": [...]}`` lists the parameters of all
            groups in the order in which they are to be updated.
        grad_clip (GradientClipBase, optional): gradient clipping before the step.
        apply_decay_param_fun (callable, optional): ``param.name`` -> whether the parameter is decayed. None: without
            groups all but those with "beta" or "gamma" in their tensor name, or in their structured name if `name_dict`
            or `layers` tells it; with groups all. Paddle calls the weights of its norms otherwise: leave out norms and
            biases with ``apply_decay_param_fun=ldopt.decayed_parameter_names(model).__contains__``.
        multi_precision (bool, optional): keep float32 master weights of float16 and bfloat16 parameters.
        name (str, optional): prefix of the names of the optimizer's state.
        layerwise_decay (float|LayerDecay, optional): as in `AdamWDL`, and so the next four.
        n_layers (int, optional): blocks of the model, for `set_param_lr_fun`.
        set_param_lr_fun (callable, optional): ratio of each parameter's rate.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name.
        layers (LayerMap, optional): the layers of the model, instead of the last three.
        fused (bool, optional): see `AdamWDL`.
        params (list[Tensor]|list[dict], optional): another name for `parameters`, as in MindSpore.

    Raises:
        TypeError: `learning_rate` is none of the above; `beta1`, `beta2` or `eps` is no number; `weight_decay` is
            neither a number nor a function of the step, such as a regularizer of Paddle's; an element of `parameters`
            is neither a parameter nor, in all of them, a dict; a schedule gives something that is not a number.
        ValueError: `beta1` or `beta2` not in (0, 1), `eps` not above 0, a rate or a decay below 0 or not finite; a
            Tensor of more than one dimension or an empty schedule; a schedule that has run out; a group with both "lr"
            and "learning_rate", or with an unknown key; an `order_params` that does not list all parameters of the
            groups once; a schedule that advances with the steps in a static graph. Further as in `AdamWDL`. Nothing is
            changed by then.

    Differs from the paper: the bounds on the norm of the weights are left out, as in all implementations. From
    `mindspore.nn.Lamb`: t counts the updates of the parameter, not of the optimizer, and gradients are centralized for
    every convolution and nothing else (there for weights with a multiple of 16 input channels). From
    `paddle.optimizer.Lamb`: parameters that are not decayed are adapted too (there with `always_adapt` only).

    Examples:
        .. code-block:: python

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

    Source: ``mindspore.nn.Lamb``, of whose formula :math:`|r + \lambda w|` is the denominator that was meant.
    """

    OPTIONS = {
        "beta1": Option(0.9, "decay of the first moment", high=1.0, ends="()", group=True),
        "beta2": Option(0.999, "decay of the second moment", high=1.0, ends="()", group=True),
        "eps": Option(1e-6, "added to the root of the second moment", ends="()", group=True),
        "weight_decay": Option(
            0.0, "decoupled decay", check=decay_or_schedule, group=True, kind="[0, inf) or a function of the step"
        ),
        "lr": Option(
            None,
            "the group's own rate",
            optional=True,
            group=True,
            check=rate_or_schedule,
            kind="[0, inf) or a schedule",
            argument=False,
        ),
        "grad_centralization": Option(
            False, "centralize a convolution's gradient", group=True, check=checked_bool, argument=False
        ),
    }

    @staticmethod
    def states(options, shape):
        """Return state name -> its kind and type; what is scheduled by its own steps needs `GLOBAL_STEP` too."""
        return dict.fromkeys(("moment1", "moment2"), State(ELEMENT))

    @staticmethod
    def sums(options, shape):
        """Return the rounds of sums: the two norms."""
        return [[SCALAR, SCALAR]]

    def __init__(
        self,
        learning_rate,
        beta1=0.9,
        beta2=0.999,
        eps=1e-6,
        weight_decay=0.0,
        parameters=None,
        grad_clip=None,
        apply_decay_param_fun=None,
        multi_precision=False,
        name=None,
        *,
        layerwise_decay=1.0,
        n_layers=12,
        set_param_lr_fun=layerwise_lr_decay,
        name_dict=None,
        layers=None,
        fused=None,
        params=None,
    ):
        if params is not None:
            if parameters is not None:
                raise ValueError("`params` is another name for `parameters`: give one of them. Received: both")
            parameters = params
        rate = rate_or_schedule(learning_rate, "learning_rate")
        options = {
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": decay_or_schedule(weight_decay),
            "lr": None,
            "grad_centralization": False,
        }
        options = self.check_options(options)
        parameters, order = read_groups(parameters)
        groups = [g for g in parameters if isinstance(g, dict)] if isinstance(parameters, list) else []
        self._grouped = bool(groups)
        self._order = order  # parameters in the order of their updates, or None
        self._schedule = rate if isinstance(rate, Schedule) else None
        found = (rate, options["weight_decay"], *(g.get(key) for g in groups for key in ("lr", "weight_decay")))
        self._schedules = [value for value in found if isinstance(value, Schedule)]
        self._counts_steps = bool(self._schedules)
        self._scheduled: dict = {}  # in a running step: schedule -> its value, GLOBAL_STEP -> the step's number
        self._refuse_schedules_in_a_graph()
        values = {schedule: schedule(0) for schedule in self._schedules}
        super().__init__(
            rate if self._schedule is None else values[rate],
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
        self._group_rates = {p.name: g["lr"] for g in groups if g.get("lr") is not None for p in as_list(g["params"])}

    # ---- the rule

    def state_kinds(self, param):
        """Return the two moments' kinds, and that of the optimizer's count of steps if a schedule needs it."""
        kinds = {"moment1": ELEMENT, "moment2": ELEMENT}
        return {**kinds, GLOBAL_STEP: SCALAR} if self._counts_steps else kinds

    def state_dtype(self, state_name, dtype):
        """Return float32 for the optimizer's count of steps, so that all parameters' can be compared."""
        return paddle.float32 if state_name == GLOBAL_STEP else dtype

    def rule(self, param, grad, state, lr, options, piece=None):
        """Return `lamb_update`, and the optimizer's count of steps beside it if a schedule needs it."""
        options = {**options, "weight_decay": self._now(options["weight_decay"])}
        del options["lr"]
        counted = {GLOBAL_STEP: paddle.full([], self._scheduled[GLOBAL_STEP])} if self._counts_steps else {}

        def update():
            new_param, new_state = yield from lamb_update(param, grad, state, lr, piece=piece, **options)
            return new_param, {**new_state, **counted}

        return update()

    def fused_rule(self, options):
        """Return the rule as the C library knows it."""
        count = self._scheduled[GLOBAL_STEP] if self._counts_steps else 0.0
        fields = {"beta1": options["beta1"], "beta2": options["beta2"], "eps": (options["eps"], 0, 0), "count": count}
        return FusedRule("lamb", ("moment1", "moment2"), fields, aux=GLOBAL_STEP)

    def fused_flags(self, shape, options):
        """Return the flag that depends on a parameter's shape."""
        return ("centralize",) if options["grad_centralization"] and is_convolution(shape) else ()

    def decay_now(self, options):
        """Return the decay of this step."""
        return self._now(options["weight_decay"])

    def is_decayed(self, param):
        """Say whether the parameter is decayed: see `apply_decay_param_fun`."""
        if self._grouped or self._apply_decay_param_fun is not None:
            return super().is_decayed(param)
        names = (param.name, self.structured_name(param))
        return not any(part in known for known in names for part in ("beta", "gamma"))

    # ---- options

    def check_options(self, options):
        """Return the options, numbers as floats; raise if one is out of range. Rates and decays were read before."""
        checked_bool(options["grad_centralization"], "grad_centralization")
        ranges = (("beta1", 1.0), ("beta2", 1.0), ("eps", math.inf))
        numbers = {name: checked_number(options[name], name, 0.0, high, "()") for name, high in ranges}
        return {**options, **numbers}

    # ---- schedules

    def get_lr(self):
        """Return the rate of the next step, for a layer whose ratio is 1; of a schedule that has run out, its last."""
        if self._schedule is None:
            return super().get_lr()
        if self._scheduled:
            return self._scheduled[self._schedule]
        return self._schedule.reported(self._steps_taken())

    def set_lr(self, value):
        """Set the rate; not where it is a schedule.

        Args:
            value (float): the new rate.
        """
        if self._schedule is not None:
            raise RuntimeError(
                "The rate follows the schedule given as `learning_rate`; build the optimizer with a number to set it. "
                f"Received: value={shown(value)}"
            )
        super().set_lr(value)

    def set_lr_scheduler(self, scheduler):
        """Take the rate from a Paddle scheduler from now on.

        Args:
            scheduler (LRScheduler): stepped by the caller.
        """
        super().set_lr_scheduler(scheduler)
        self._schedules = [schedule for schedule in self._schedules if schedule is not self._schedule]
        self._schedule = None

    def set_state_dict(self, state_dict):
        """Load what `state_dict` gave, that of a run without schedules included.

        Args:
            state_dict (dict): state by name, with "master_weights" and "LR_Scheduler" if there are any.
        """
        if not isinstance(state_dict, dict):
            return super().set_state_dict(state_dict)  # which says that it must be one
        own = {key: _largest([state_dict[key]]) for key in state_dict if str(key).endswith(f"_{STEP}_0")}
        counts = {}
        for key in own if self._counts_steps else ():
            count = f"{key[: -len(f'{STEP}_0')]}{GLOBAL_STEP}_0"
            known = _largest([state_dict[count]] if count in state_dict else [])
            # always a copy: what was given may belong to an optimizer that goes on
            counts[count] = paddle.full([], max(known, *own.values()), "float32")
        super().set_state_dict({**state_dict, **counts})

    load_state_dict = set_state_dict

    def _now(self, value):
        """Return the number that an option stands for in this step."""
        if isinstance(value, LRScheduler):
            return value()
        if not isinstance(value, Schedule):
            return value
        return self._scheduled[value] if self._scheduled else value.reported(self._steps_taken())

    def _largest_count(self):
        """Return how many steps the optimizer has taken, those before a resume included."""
        prefix = f"{self._name}_" if self._name else ""
        counts = list(self._accumulators.get(prefix + GLOBAL_STEP, {}).values())
        loaded = [value for key, value in self._accumulators_holder.items() if _GLOBAL_STEP_KEY.search(key)]
        return int(max(_largest(loaded), _largest([paddle.stack(counts)] if counts else [])))

    def _refuse_schedules_in_a_graph(self):
        if self._schedules and not paddle.in_dynamic_mode():
            raise ValueError(
                f"`{self._schedules[0].argument}` advances with the optimizer's steps, which a static graph does not "
                "see. Give a number, or as the rate a scheduler that is stepped after each run, such as "
                "paddle.optimizer.lr.LambdaDecay(1.0, function). "
                f"Received: {self._schedules[0].argument}={shown(self._schedules[0])}"
            )

    @contextlib.contextmanager
    def _on_schedule(self):
        """Hold all scheduled values of one step, asked for and checked before the step changes anything."""
        self._refuse_schedules_in_a_graph()
        if self._scheduled or not self._counts_steps:
            yield
            return
        taken = self._steps_taken()
        self._scheduled = {GLOBAL_STEP: taken + 1.0, **{schedule: schedule(taken) for schedule in self._schedules}}
        try:
            if self._schedule is not None:
                super().set_lr(self._scheduled[self._schedule])
            yield
        finally:
            self._scheduled = {}

    # ---- the step

    def step(self):
        """Update all parameters once, after all schedules were asked for their values."""
        with self._on_schedule():
            return super().step()

    def _apply_optimize(self, *args, **kwargs):
        with self._on_schedule():
            return super()._apply_optimize(*args, **kwargs)

    def _update(self, tasks):
        place = {param.name: i for i, param in enumerate(self._order or [])}
        super()._update(sorted(tasks, key=lambda task: place.get(task.param.name, 0)))

    def shown_rate(self, param, factor):
        """Return the rate of a schedule now and at its peak; of a callable the peak is not known."""
        own = self._group_rates.get(param.name)
        rate = self._schedule if own is None else own
        factor = factor if own is None else self.layerwise_ratio(param)
        if isinstance(rate, LRScheduler) or not isinstance(rate, Schedule):
            return None
        now = factor * rate.reported(self._steps_taken())
        return now, None if callable(rate.source) else factor * max(rate.source)

    def own_rate(self, param):
        """Return the rate of the parameter's group in this step, None if it has none of its own."""
        rate = self._group_rates.get(param.name)
        return None if rate is None else self._now(rate)


def _largest(values):
    """Return the largest number in what of some values is a Tensor or an array, 0 if there are none."""
    numbers = (np.asarray(value) for value in values if isinstance(value, (paddle.Tensor, np.ndarray)))
    return max((float(np.max(value, initial=0.0)) for value in numbers), default=0.0)
