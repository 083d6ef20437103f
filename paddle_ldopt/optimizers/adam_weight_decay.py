"""Adam with weight decay chosen by name (a port of transformers 4.37's TensorFlow class `AdamWeightDecay`).

Papers: Adam, Kingma & Ba, https://arxiv.org/abs/1412.6980 (the form before section 2.1, with "epsilon hat"); decoupled
weight decay, Loshchilov & Hutter, https://arxiv.org/abs/1711.05101; AMSGrad, Reddi et al.,
https://arxiv.org/abs/1904.09237. Clipping and `decay` are those of Keras 2 (`keras.optimizers.legacy`).
"""

import contextlib
import math
import numbers
import re
import warnings

import paddle
from paddle.optimizer.lr import LRScheduler

from .. import kernels
from .._checks import Option, checked_bool, checked_number, plain_number, shown
from .._paddle import flatten_groups
from ..layers.paddlenlp_hook import check_decay, layerwise_lr_decay
from ._base.arithmetic import over_, plus_, root, times_
from ._base.declaration import ELEMENT, SCALAR, State, register
from ._base.factored import square_sum
from ._base.groups import is_listed
from ._base.rule_optimizer import STEP, RuleOptimizer, checked_decay
from ._fused.plan import FusedRule

__all__ = ["AdamWeightDecay", "adam_weight_decay_update"]


def adam_weight_decay_update(
    param,
    grad,
    state,
    lr,
    *,
    beta_1,
    beta_2,
    epsilon,
    weight_decay,
    amsgrad=False,
    decay=0.0,
    clipvalue=None,
    clipnorm=None,
):
    """Return the generator of one update: it yields [sum of squares] if `clipnorm` is set, returns (param, state)."""
    t = state[STEP]
    if decay:
        lr = lr / (1.0 + decay * (t - 1.0))  # Keras counts the iterations before this one
    if clipvalue is not None:
        grad = grad.clip(-clipvalue, clipvalue)
    if clipnorm is not None:
        (square,) = yield [square_sum(grad)]
        norm = square.sqrt()
        grad = grad * (clipnorm / paddle.maximum(norm, paddle.full_like(norm, clipnorm)))
    if weight_decay:
        param = plus_(-lr * weight_decay * param, param)  # first, and not with the bias-corrected rate
    m = plus_(beta_1 * state["moment1"], (1.0 - beta_1) * grad)
    v = plus_(beta_2 * state["moment2"], times_((1.0 - beta_2) * grad, grad))
    new_state = {"moment1": m, "moment2": v}
    if amsgrad:
        v = new_state["moment2_max"] = paddle.maximum(state["moment2_max"], v)
    # Adam before section 2.1: both corrections are in the rate, so epsilon is next to the root of an uncorrected v
    step_size = lr * _one_minus_power(beta_2, t).sqrt() / _one_minus_power(beta_1, t)
    return plus_(over_(-step_size * m, plus_(root(v), epsilon)), param), new_state


def _one_minus_power(beta, t):
    """Return 1 - beta^t to the last digit: subtracted in float32, 1 - 0.999 is right to four of them."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)


@register(
    "numbers of TensorFlow's BERT fine-tuning; 8 bytes",
    weight_decay="weight_decay_rate",
    own_exclusion=("include_in_weight_decay", "exclude_from_weight_decay"),
    trainer={"beta_1": "adam_beta1", "beta_2": "adam_beta2", "epsilon": "adam_epsilon"},
)
class AdamWeightDecay(RuleOptimizer):
    r"""Adam whose weight decay is switched on and off by regular expressions: to reproduce TensorFlow fine-tuning.

    With r the ratio of the parameter's layer, :math:`l = r \cdot learning\_rate / (1 + decay \, (t - 1))`, and t the
    number of steps so far, which all parameters share:

    .. math::
        p &\leftarrow p - l \lambda p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow p - l \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}

    State: 8 bytes a parameter (12 with `amsgrad`), and 4 for each tensor.

    **What is decayed.** A pattern is looked for (`re.search`) in the structured name of the parameter with TensorFlow's
    ":0" behind it: "encoder.layers.0.norm1.bias:0". So "bias" finds a bias and "bias$" finds nothing ("bias:0$" does).
    Structured names come from `name_dict` or `layers`; without them, ``param.name`` is searched. A name that
    `include_in_weight_decay` finds is decayed, one that only `exclude_from_weight_decay` finds is not, all others are.
    TensorFlow's usual ``["LayerNorm", "layer_norm", "bias"]`` misses Paddle's ``norm1.weight``, ``input_layernorm`` and
    ``ln_1``. Short and safe are ``exclude_from_weight_decay=["(?i)norm", r"\bln_", "bias"]``, or, by the class of the
    layer, ``apply_decay_param_fun=decayed_parameter_names(model).__contains__`` of `paddle_ldopt`.

    Args:
        learning_rate (float|LRScheduler, optional): rate of a layer whose ratio is 1, at least 0.
        beta_1 (float, optional): decay of the first moment, in [0, 1).
        beta_2 (float, optional): decay of the second moment, in [0, 1).
        epsilon (float, optional): at least 0, added to the root of the uncorrected second moment.
        amsgrad (bool, optional): divide by the largest second moment so far.
        weight_decay_rate (float, optional): decoupled decay :math:`\lambda`, at least 0; 0 decays nothing.
        include_in_weight_decay (list[str], optional): patterns that win over `exclude_from_weight_decay`. It is no list
            of all that is decayed.
        exclude_from_weight_decay (list[str], optional): patterns of what is not decayed.
        name (str, optional): prefix of the names of the optimizer's state, if it is not the default.
        lr (float|LRScheduler, optional): another name for `learning_rate`.
        decay (float, optional): at least 0; divides the rate by 1 + decay * (steps before this one). `get_lr` does not
            show it.
        clipnorm (float, optional): above 0; scales each gradient down to this norm, after `clipvalue`.
        clipvalue (float, optional): above 0; clips each element of a gradient to [-clipvalue, clipvalue].
        global_clipnorm (float, optional): above 0; another way to write ``grad_clip=ClipGradByGlobalNorm(...)``.
        parameters (list[Tensor]|list[dict], optional): what to train; required in dygraph. Dicts are groups with
            "params" and any of "learning_rate" (a multiplier of the global rate), "weight_decay_rate" (or
            "weight_decay"), "beta_1", "beta_2", "epsilon", "clipnorm", "clipvalue", "grad_clip".
        weight_decay (float, optional): another name for `weight_decay_rate`, Paddle's.
        grad_clip (GradientClipBase, optional): gradient clipping before the step, and before `clipvalue`, `clipnorm`.
        apply_decay_param_fun (callable, optional): ``param.name`` -> whether the parameter is decayed, if the patterns
            let it be.
        multi_precision (bool, optional): keep float32 master weights of float16 and bfloat16 parameters.
        layerwise_decay (float|LayerDecay, optional): as in `AdamWDL`, like the rest.
        n_layers (int, optional): blocks of the model.
        set_param_lr_fun (callable, optional): the hook that gives the ratio.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name.
        layers (LayerMap, optional): the layers of the model, instead of the three above.
        fused (bool, optional): see `AdamWDL`.

    Raises:
        TypeError: an argument of the wrong type, or one that there is not.
        ValueError: a value out of range, a pattern that is no regular expression, two names for one thing, `clipnorm`
            or `clipvalue` with `global_clipnorm`; a group with an unknown option.

    Warns:
        UserWarning: a pattern finds no parameter.

    Differs from transformers 4.37: `get_config` keeps both lists and all else that JSON can hold; a pattern without
    effect warns; sparse gradients raise; the numbers that TensorFlow rounds to float32 are not rounded here.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> from paddle_ldopt import AdamWeightDecay
            >>> model = paddle.nn.Sequential(("dense", paddle.nn.Linear(4, 4)), ("norm", paddle.nn.LayerNorm(4)))
            >>> names = {p.name: n for n, p in model.named_parameters()}
            >>> opt = AdamWeightDecay(
            ...     2e-5, weight_decay_rate=0.01, exclude_from_weight_decay=["(?i)norm", "bias"],
            ...     parameters=model.parameters(), name_dict=names,
            ... )
            >>> print([names[p.name] for p in model.parameters() if opt.is_decayed(p)])
            ['dense.weight']
            >>> model(paddle.rand([2, 4])).square().mean().backward()
            >>> opt.step()
            >>> opt.clear_grad()
            >>> config = opt.get_config()
            >>> again = AdamWeightDecay.from_config(config, parameters=model.parameters(), name_dict=names)
            >>> print(again.get_config() == config)
            True

    Source: ``transformers.AdamWeightDecay`` of ``optimization_tf.py``.
    """

    OPTIONS = {
        "beta_1": Option(0.9, "decay of the first moment", high=1.0, ends="[)", group=True),
        "beta_2": Option(0.999, "decay of the second moment", high=1.0, ends="[)", group=True),
        "epsilon": Option(1e-7, "added to the root of the second moment", group=True),
        "weight_decay": Option(0.0, "decoupled decay; `weight_decay_rate` of the optimizer", group=True),
        "clipnorm": Option(None, "scale each gradient down to this norm", ends="()", optional=True, group=True),
        "clipvalue": Option(None, "cut each element of the gradients", ends="()", optional=True, group=True),
        "amsgrad": Option(False, "divide by the greatest second moment so far", check=checked_bool),
        "decay": Option(0.0, "of the rate by time: lr / (1 + decay t)", ends="[)"),
        "global_clipnorm": Option(None, "scale all gradients down to this norm together", ends="()", optional=True),
        "include_in_weight_decay": Option(
            None,
            "names that are decayed in any case",
            optional=True,
            check=lambda value, name: _compiled(value, name),
            kind="regular expressions",
        ),
        "exclude_from_weight_decay": Option(
            None,
            "names that are not decayed",
            optional=True,
            check=lambda value, name: _compiled(value, name),
            kind="regular expressions",
        ),
    }

    @staticmethod
    def states(options, shape):
        """Return state name -> its kind and type."""
        third = ["moment2_max"] if options["amsgrad"] else []
        return dict.fromkeys(("moment1", "moment2", *third), State(ELEMENT))

    @staticmethod
    def sums(options, shape):
        """Return nothing but the norm of `clipnorm`."""
        return [] if options["clipnorm"] is None else [[SCALAR]]

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-07,
        amsgrad=False,
        weight_decay_rate=0.0,
        include_in_weight_decay=None,
        exclude_from_weight_decay=None,
        name="AdamWeightDecay",
        *,
        lr=None,
        decay=0.0,
        clipnorm=None,
        clipvalue=None,
        global_clipnorm=None,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        apply_decay_param_fun=None,
        multi_precision=False,
        layerwise_decay=1.0,
        n_layers=12,
        set_param_lr_fun=layerwise_lr_decay,
        name_dict=None,
        layers=None,
        fused=None,
    ):
        learning_rate = _one_of("learning_rate", learning_rate, 0.001, "lr", lr)
        weight_decay_rate = _one_of("weight_decay_rate", weight_decay_rate, 0.0, "weight_decay", weight_decay)
        if not isinstance(learning_rate, LRScheduler):
            learning_rate = checked_number(learning_rate, "learning_rate", 0.0, ends="[)")
        if not hasattr(layerwise_decay, "layerwise_decay"):
            layerwise_decay = check_decay(layerwise_decay)
        checked_bool(amsgrad, "amsgrad")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be a string or None. Received: name={shown(name)}")
        options = {
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": epsilon,
            "weight_decay": weight_decay_rate,
            "clipnorm": clipnorm,
            "clipvalue": clipvalue,
        }
        options = self.check_options(options)
        self.amsgrad = amsgrad
        self.decay = checked_number(decay, "decay", 0.0, ends="[)")
        self.global_clipnorm = global_clipnorm
        self._patterns = {
            "include_in_weight_decay": _compiled(include_in_weight_decay, "include_in_weight_decay"),
            "exclude_from_weight_decay": _compiled(exclude_from_weight_decay, "exclude_from_weight_decay"),
        }
        self._number_of_this_step = None  # within a step, once it is known
        self._in_step = False
        objects = {  # what JSON cannot hold, or only one process understands: `from_config` is given it again
            "grad_clip": grad_clip,
            "apply_decay_param_fun": apply_decay_param_fun,
            "layerwise_decay": None if isinstance(layerwise_decay, float) else layerwise_decay,
            "set_param_lr_fun": None if set_param_lr_fun is layerwise_lr_decay else set_param_lr_fun,
            "name_dict": name_dict,
            "layers": layers,
        }
        self._config = {
            "name": name,
            "amsgrad": amsgrad,
            "include_in_weight_decay": _listed(include_in_weight_decay),
            "exclude_from_weight_decay": _listed(exclude_from_weight_decay),
            "decay": self.decay,
            "global_clipnorm": global_clipnorm,
            "multi_precision": multi_precision,
            "layerwise_decay": layerwise_decay,
            "n_layers": n_layers,
            "fused": fused,
            "not_in_config": [argument for argument, value in objects.items() if value is not None],
        }
        super().__init__(
            learning_rate,
            _paddles_groups(parameters),
            options,
            grad_clip=_global_clip(global_clipnorm, grad_clip, clipnorm, clipvalue),
            apply_decay_param_fun=apply_decay_param_fun,
            multi_precision=multi_precision,
            name=None if name == "AdamWeightDecay" else name,
            fused=fused,
            layerwise={
                "layerwise_decay": layerwise_decay,
                "n_layers": n_layers,
                "set_param_lr_fun": set_param_lr_fun,
                "name_dict": name_dict,
                "layers": layers,
            },
        )
        if self._parameter_list is not None:
            self._warn_of_idle_patterns(flatten_groups(self._parameter_list))

    def state_kinds(self, param):
        """Return the moments' names and kinds."""
        return dict.fromkeys(("moment1", "moment2", *(["moment2_max"] if self.amsgrad else [])), ELEMENT)

    def rule(self, param, grad, state, lr, options, piece=None):
        """Return the generator of one parameter's update; its only sum needs no `piece`."""
        return adam_weight_decay_update(param, grad, state, lr, amsgrad=self.amsgrad, decay=self.decay, **options)

    def fused_rule(self, options):
        """Return the rule as the C library knows it."""
        fields = {
            "beta1": options["beta_1"],
            "beta2": options["beta_2"],
            "eps": (options["epsilon"], 0, 0),
            "clip": options["clipnorm"] or 0.0,
            "clip_value": options["clipvalue"] or 0.0,
            "decay_rate": self.decay,
            "count": self._this_step(),
        }
        flags = {
            "amsgrad": self.amsgrad,
            "clip_norm": options["clipnorm"] is not None,
            "clip_value": options["clipvalue"] is not None,
        }
        states = ("moment1", "moment2", "moment2_max")
        return FusedRule("adam_weight_decay", states, fields, tuple(flag for flag in flags if flags[flag]))

    def _clips_values(self):
        return self._defaults["clipvalue"] is not None or self._defaults["clipnorm"] is not None

    def check_options(self, options):
        """Return the options, numbers as floats; raise if one is of the wrong type or out of range."""
        clips = {name: options[name] for name in ("clipnorm", "clipvalue") if options[name] is not None}
        return {
            **options,
            "beta_1": checked_number(options["beta_1"], "beta_1", 0.0, 1.0, "[)"),
            "beta_2": checked_number(options["beta_2"], "beta_2", 0.0, 1.0, "[)"),
            "epsilon": checked_number(options["epsilon"], "epsilon"),
            "weight_decay": checked_decay(options["weight_decay"], "weight_decay_rate"),
            **{name: checked_number(value, name, ends="()") for name, value in clips.items()},
        }

    # ---- what is decayed

    def is_decayed(self, param):
        """Say whether `apply_decay_param_fun` and the patterns let the parameter be decayed."""
        if not super().is_decayed(param):
            return False
        name = self._searched_name(param)
        include, exclude = self._patterns.values()
        return any(p.search(name) for p in include) or not any(p.search(name) for p in exclude)

    def _searched_name(self, param):
        return f"{self.structured_name(param)}:0"

    def _warn_of_idle_patterns(self, params):
        names = [self._searched_name(param) for param in params]
        idle = {
            argument: [p.pattern for p in patterns if not any(p.search(name) for name in names)]
            for argument, patterns in self._patterns.items()
        }
        if names and any(idle.values()):
            remedy = "" if self._structured else " Give `name_dict` or `layers` to have structured names searched."
            warnings.warn(
                "Patterns that find no parameter: "
                + ", ".join(f"{argument}={patterns}" for argument, patterns in idle.items() if patterns)
                + f". They are searched in names like {', '.join(map(repr, names[:4]))}.{remedy}",
                stacklevel=3,
            )

    # ---- the step count, one for all parameters as TensorFlow's `iterations`

    def step(self):
        """Update all parameters that have a gradient."""
        with self._one_step():
            return super().step()

    def _apply_optimize(self, loss, startup_program, params_grads, *args, **kwargs):
        # of a step: all parameters or a group of them; of `minimize` and the sharding wrappers: a whole step
        if self._parameter_list is None and not isinstance(params_grads, dict):
            self._warn_of_idle_patterns([param for param, _ in params_grads])
        with self._one_step():
            return super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)

    @contextlib.contextmanager
    def _one_step(self):
        outermost = not self._in_step
        self._in_step = True
        try:
            yield
        finally:
            if outermost:
                self._in_step, self._number_of_this_step = False, None

    def _advance(self, param, step):
        """Return 1 + the largest count of any parameter before this step."""
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters or none: they count alike
            return step + 1.0
        return paddle.full([], self._this_step(), step.dtype)

    def _count_steps(self, plan):
        if self._number_of_this_step is None and len(plan.records) == len(self._counters()):
            taken = max(kernels.largest_step(plan.records), _largest(self._loaded_counters()))
            self._number_of_this_step = self._with_elsewhere(taken) + 1.0

    def _this_step(self):
        """Return the number of the running step, from 1."""
        if self._number_of_this_step is None:
            self._number_of_this_step = self._steps_taken() + 1.0
        return self._number_of_this_step

    def fixed_options(self):
        """Return the arguments that change the rule and that no parameter group overrides."""
        return {"amsgrad": self.amsgrad, "decay": self.decay}

    def _largest_count(self):
        """Return the largest count of any parameter."""
        return _largest([*self._counters(), *self._loaded_counters()])

    def _counters(self):
        prefix = f"{self._name}_" if self._name else ""
        return self._accumulators.get(prefix + STEP, {}).values()

    def _loaded_counters(self):
        """Return the counters that were loaded for parameters that had no gradient since."""
        prefix, live = f"{self._name}_" if self._name else "", {counter.name for counter in self._counters()}
        return [value for key, value in self._accumulators_holder.items() if prefix + STEP in key and key not in live]

    def rate_divisor(self, ahead=0):
        """Return what `decay` divides the rate by.

        Args:
            ahead (int): steps between now and the step that is asked about; 0 is the next one.
        """
        return 1.0 + self.decay * (self._steps_taken() + ahead) if self.decay else 1.0

    # ---- configuration

    def get_config(self):
        """Return the arguments that JSON can hold, to be given to `from_config`.

        The rate is the present one. "not_in_config" names the arguments that JSON cannot hold, where there are any.

        Returns:
            dict: argument -> value.
        """
        options = dict(self._defaults)
        config = {**self._config, "weight_decay_rate": options.pop("weight_decay"), **options}
        missing = list(config.pop("not_in_config"))
        if isinstance(self._learning_rate, LRScheduler):
            missing.append("learning_rate")
        config["learning_rate"] = self._learning_rate
        config = {argument: value for argument, value in config.items() if argument not in missing}
        return {**config, "not_in_config": missing} if missing else config

    @classmethod
    def from_config(cls, config, **arguments):
        """Build an optimizer from what `get_config` gave.

        Args:
            config (dict): of `get_config`, or of transformers' class.
            **arguments: `parameters`, all that "not_in_config" names (None does without it), and whatever is to differ.

        Raises:
            ValueError: an argument that "not_in_config" names was not given.
        """
        config = dict(config)
        lacking = [argument for argument in config.pop("not_in_config", ()) if argument not in arguments]
        if lacking:
            raise ValueError(
                f"`from_config` must be given what the configuration cannot hold: {', '.join(lacking)}. "
                f"Received: {', '.join(arguments) or 'nothing'}"
            )
        return cls(**{**config, **arguments})


def _largest(counters):
    """Return the largest of counters of one element each, 0 if there are none."""
    counts = [paddle.assign(counter).astype("float32").reshape([1]) for counter in counters]
    return float(paddle.concat(counts).max()) if counts else 0.0


def _one_of(argument, value, default, alias, other):
    """Return the value of an argument that has two names."""
    if other is None:
        return value
    number = plain_number(value)
    if not (isinstance(number, numbers.Real) and number == default):
        raise ValueError(
            f"`{alias}` is another name for `{argument}`: give one of them. "
            f"Received: {argument}={shown(value)}, {alias}={shown(other)}"
        )
    return other


def _listed(patterns):
    return None if patterns is None else list(patterns)


def _compiled(patterns, argument):
    """Return the regular expressions of a list, raise if it is none."""
    if patterns is None:
        return []
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"`{argument}` must be a list of strings or None. Received: {argument}={shown(patterns)}")
    try:
        return [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise ValueError(
            f"`{argument}` must hold regular expressions: {error}. Received: {argument}={shown(patterns)}"
        ) from None


def _global_clip(global_clipnorm, grad_clip, clipnorm, clipvalue):
    """Return Paddle's gradient clipping for `global_clipnorm`, or `grad_clip` if there is none."""
    if global_clipnorm is None:
        return grad_clip
    clip_norm = checked_number(global_clipnorm, "global_clipnorm", 0.0, ends="()")
    others = {"grad_clip": grad_clip, "clipnorm": clipnorm, "clipvalue": clipvalue}
    given = [f"{argument}={shown(value)}" for argument, value in others.items() if value is not None]
    if given:
        raise ValueError(
            "`global_clipnorm` cannot be combined with other gradient clipping. "
            f"Received: global_clipnorm={shown(global_clipnorm)}, {', '.join(given)}"
        )
    return paddle.nn.ClipGradByGlobalNorm(clip_norm)


def _paddles_groups(parameters):
    """Return `parameters` with "weight_decay_rate" of a group under Paddle's name for it."""
    if not is_listed(parameters):
        return parameters
    groups = []
    for item in parameters:
        if isinstance(item, dict) and "weight_decay_rate" in item:
            item = dict(item)
            rate = item.pop("weight_decay_rate")
            item["weight_decay"] = _one_of("weight_decay_rate", rate, None, "weight_decay", item.get("weight_decay"))
        groups.append(item)
    return groups
