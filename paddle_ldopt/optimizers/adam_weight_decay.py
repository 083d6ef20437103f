"""Adam with weight decay by name patterns (a port of transformers 4.37's TensorFlow class `AdamWeightDecay`).

Papers: Adam, Kingma & Ba, https://arxiv.org/abs/1412.6980 (the form before section 2.1, with "epsilon hat"); decoupled
weight decay, Loshchilov & Hutter, https://arxiv.org/abs/1711.05101; AMSGrad, Reddi et al.,
https://arxiv.org/abs/1904.09237. Clipping and `decay` follow Keras 2 (`keras.optimizers.legacy`).
"""

import contextlib
import dataclasses
import re
import warnings
from typing import Any, ClassVar, Optional, Union

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from .._checks import Option, one_of_two, problem, refusal
from .._compat import flatten_groups, parameters_of
from ..layers.decay import LayerDecay
from .fused import FusedRule
from .layer_rates import LAYERWISE, layerwise_lr_decay
from .options import ADAM, COMMON, WEIGHT_DECAY, bool_option, decay_option, passed_on, register
from .rules import RuleOptimizer, ema_, ema_of_squares_, one_minus_power, sqrt
from .sharded import Shard, Update
from .states import ELEMENT, STEP, State, Values


def _compiled(value: Any, name: str) -> list[Any]:
    with contextlib.suppress(TypeError, re.error):
        if isinstance(value, (list, tuple)):
            return [re.compile(pattern) for pattern in value]
    raise refusal(ValueError, f"`{name}` must be a list of regular expressions or None.", **{name: value})


_PATTERNS = Option(optional=True, check=_compiled, values="regular expressions", in_rule=False)
_INCLUDED, _EXCLUDED = "that have weight decay even if excluded", "without weight decay"
PATTERNS = {
    "include_in_weight_decay": dataclasses.replace(_PATTERNS, doc=f"name patterns of parameters {_INCLUDED}"),
    "exclude_from_weight_decay": dataclasses.replace(_PATTERNS, doc=f"name patterns of parameters {_EXCLUDED}"),
}


def adam_weight_decay_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Shard,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    amsgrad: bool = False,
    decay: float = 0.0,
    clipvalue: Optional[float] = None,
    clipnorm: Optional[float] = None,
) -> Update:
    t = state[STEP]
    if decay:
        lr = lr / (1.0 + decay * (t - 1.0))  # Keras counts the iterations before this one
    if clipvalue is not None:
        grad = grad.clip(-clipvalue, clipvalue)
    if clipnorm is not None:
        (square,) = yield [shard.square_sum(grad)]
        norm = square.sqrt()
        grad = grad * (clipnorm / paddle.maximum(norm, paddle.full_like(norm, clipnorm)))
    if weight_decay:  # first, and not with the bias-corrected rate
        param = param.subtract_(param * (weight_decay * lr))
    m = ema_(state["moment1"], grad, beta_1)
    v = ema_of_squares_(state["moment2"], grad, beta_2)
    new_state = {"moment1": m, "moment2": v}
    if amsgrad:
        v = new_state["moment2_max"] = paddle.maximum(state["moment2_max"], v)
    # Adam before section 2.1: alpha_t has both corrections, and epsilon is added to the root of an uncorrected v
    alpha_t = lr * one_minus_power(beta_2, t).sqrt() / one_minus_power(beta_1, t)
    return param.subtract_((m * alpha_t).divide_(sqrt(v).scale_(1.0, epsilon))), new_state


@register("reproducing TensorFlow's BERT fine-tuning; 8 bytes", own_exclusion="exclude_from_weight_decay", trainer=ADAM)
class AdamWeightDecay(RuleOptimizer):
    r"""Adam with weight decay selected by regular expressions: the choice to reproduce TensorFlow fine-tuning.

    With r the ratio of the parameter's layer, :math:`l = r \cdot learning\_rate / (1 + decay \, (t - 1))`, and t the
    number of steps, which all parameters share:

    .. math::
        p &\leftarrow p - l \lambda p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow p - l \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}

    **Exclusion from weight decay.** Patterns are searched (`re.search`) in the structured name of a parameter with
    TensorFlow's suffix ":0", such as "encoder.layers.0.norm1.bias:0". Structured names come from `name_dict` or
    `layers`; without them ``param.name`` is searched. Names are excluded that match `exclude_from_weight_decay` but not
    `include_in_weight_decay`. TensorFlow's usual patterns miss Paddle's ``norm1.weight`` and ``ln_1``: use
    ``exclude_from_weight_decay=["(?i)norm", r"\bln_", "bias"]``, or, by the class of the layer,
    ``apply_decay_param_fun=decayed_parameter_names(model).__contains__``. If both are given, both must allow it. A
    pattern without a match gives a UserWarning.

    docs/options.md lists the options, `AdamWDL` the arguments of all optimizers. `learning_rate` is also called `lr`,
    `weight_decay_rate` also `weight_decay`. `grad_clip` comes before `clipvalue`, then `clipnorm`; `global_clipnorm` is
    ``grad_clip=ClipGradByGlobalNorm(...)``. `get_lr` does not include `decay`.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import AdamWeightDecay
        >>> model = paddle.nn.Sequential(("dense", paddle.nn.Linear(4, 4)), ("norm", paddle.nn.LayerNorm(4)))
        >>> names = {p.name: n for n, p in model.named_parameters()}
        >>> opt = AdamWeightDecay(
        ...     2e-5, weight_decay_rate=0.01, exclude_from_weight_decay=["(?i)norm", "bias"],
        ...     parameters=model.parameters(), name_dict=names,
        ... )
        >>> print([names[p.name] for p in model.parameters() if opt.has_weight_decay(p)])
        ['dense.weight']

    Source: ``transformers.AdamWeightDecay`` of ``optimization_tf.py``.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "beta_1": decay_option("decay rate of the first moment", setting="beta1"),
        "beta_2": decay_option("decay rate of the second moment", setting="beta2"),
        "epsilon": Option(doc="added to the root of the second moment", group=True),
        "weight_decay": dataclasses.replace(WEIGHT_DECAY, called="weight_decay_rate"),
        "clipnorm": Option(doc="scale each gradient down to this norm", ends="()", optional=True, group=True),
        "clipvalue": Option(doc="clip each element of the gradients", ends="()", optional=True, group=True),
        "amsgrad": bool_option("divide by the largest second moment so far"),
        "decay": Option(doc="decay of the rate over the steps: lr / (1 + decay (t - 1))"),
        "global_clipnorm": Option(doc="scale all gradients down to this norm", ends="()", optional=True, in_rule=False),
        **PATTERNS,
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        third = ["moment2_max"] if options["amsgrad"] else []
        return dict.fromkeys(("moment1", "moment2", *third), State(ELEMENT))

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-07,
        amsgrad: bool = False,
        weight_decay_rate: Optional[float] = 0.0,
        include_in_weight_decay: Union[list[str], tuple[str, ...], None] = None,
        exclude_from_weight_decay: Union[list[str], tuple[str, ...], None] = None,
        name: Optional[str] = "AdamWeightDecay",
        *,
        lr: Any = None,
        decay: float = 0.0,
        clipnorm: Optional[float] = None,
        clipvalue: Optional[float] = None,
        global_clipnorm: Optional[float] = None,
        parameters: Any = None,
        weight_decay: Optional[float] = None,
        grad_clip: Any = None,
        **common: Any,
    ) -> None:
        arguments = passed_on(locals())
        self._given = {"name": name, "grad_clip": grad_clip, **common}  # not options, for `get_config`
        self._decayed: dict[str, bool] = {}  # structured name -> whether patterns allow weight decay
        if global_clipnorm is not None:
            norm = self.OPTIONS["global_clipnorm"].checked(global_clipnorm, "global_clipnorm")
            arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(norm)
        arguments["learning_rate"] = one_of_two("learning_rate", learning_rate, "lr", arguments.pop("lr"), 0.001)
        decay_rate = arguments.pop("weight_decay_rate")
        arguments["weight_decay"] = one_of_two("weight_decay_rate", decay_rate, "weight_decay", weight_decay, 0.0)
        arguments["name"] = None if name == "AdamWeightDecay" else name
        super().__init__(**arguments)
        self._warn_of_idle_patterns(flatten_groups(self._parameter_list or []))

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        clips = {"grad_clip": self._given["grad_clip"], **{name: options[name] for name in ("clipnorm", "clipvalue")}}
        given = {argument: value for argument, value in clips.items() if value is not None}
        if given and options["global_clipnorm"] is not None and not group:
            wrong = "`global_clipnorm` cannot be combined with other gradient clipping."
            raise refusal(ValueError, wrong, global_clipnorm=options["global_clipnorm"], **given)

    rule = staticmethod(adam_weight_decay_update)

    fused_rule = FusedRule("adam_weight_decay", ("moment1", "moment2", "moment2_max"))

    def fused_values(self, options: Values) -> Values:
        values = {"beta1": options["beta_1"], "beta2": options["beta_2"], "decay_rate": options["decay"]}
        return {**values, "clip": options["clipnorm"] or 0.0, "clip_value": options["clipvalue"] or 0.0}

    def lr_divisor(self, ahead: int = 0) -> float:
        decay: float = self._options["decay"]
        return 1.0 + decay * (self.steps_taken() + ahead) if decay else 1.0

    counts_together = True  # as Keras' `iterations`

    def apply_gradients(self, params_grads: Any) -> Any:
        """Take a step with (parameter, gradient) or Keras' (gradient, parameter) pairs."""
        if not paddle.in_dynamic_mode():  # where gradients have no names: Paddle's order alone
            return super().apply_gradients(params_grads)
        names = {param.name for param in parameters_of(self)}
        pairs = [(a, b, [getattr(item, "name", None) in names for item in (a, b)]) for a, b in params_grads]
        return super().apply_gradients([(b, a) if known == [False, True] else (a, b) for a, b, known in pairs])

    def has_weight_decay(self, param: Tensor) -> bool:
        if not super().has_weight_decay(param):
            return False
        name = self.structured_name(param)
        if name not in self._decayed:
            found = [any(p.search(f"{name}:0") for p in self._options[option] or ()) for option in PATTERNS]
            self._decayed[name] = found[0] or not found[1]
        return self._decayed[name]

    def _warn_of_idle_patterns(self, params: list[Tensor]) -> None:
        names = [f"{self.structured_name(param)}:0" for param in params]
        idle = {
            option: [p.pattern for p in self._options[option] or () if not any(p.search(name) for name in names)]
            for option in PATTERNS
        }
        if names and any(idle.values()):
            found = ", ".join(f"{option}={patterns}" for option, patterns in idle.items() if patterns)
            where = f"They were searched in names like {', '.join(map(repr, names[:4]))}."
            remedy = "" if self.structured_names else " Give `name_dict` or `layers` to search structured names."
            warnings.warn(problem(f"Some patterns match no parameter. {where}{remedy}", found), stacklevel=3)

    def check_graph(self, params: list[Tensor]) -> None:
        super().check_graph(params)
        if self._parameter_list is None:
            self._warn_of_idle_patterns(params)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments and the current rate for JSON; "not_in_config" lists other arguments."""
        given = {"grad_clip": None, "apply_decay_param_fun": None, **LAYERWISE, **self._given}
        given.update(learning_rate=self._learning_rate, **dict.fromkeys(COMMON))
        if given["set_param_lr_fun"] is layerwise_lr_decay:
            given["set_param_lr_fun"] = None
        objects = {name: value for name, value in given.items() if value is not None}
        plain = {name: objects.pop(name, None) for name in ("name", "n_layers")}
        if not isinstance(objects["layerwise_decay"], LayerDecay):
            plain["layerwise_decay"] = float(objects.pop("layerwise_decay"))
        if not isinstance(self._learning_rate, LRScheduler):
            plain["learning_rate"] = objects.pop("learning_rate")
        patterns = {option: [p.pattern for p in self._options[option] or ()] or None for option in PATTERNS}
        declared = {**self._options, **patterns}
        options = {self.OPTIONS[name].called or name: value for name, value in declared.items()}
        own = {"multi_precision": self._multi_precision, "fused": self.fused, "batch_bytes": self.batch_bytes}
        return {**options, **own, **plain, **({"not_in_config": [*objects]} if objects else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any], **arguments: Any) -> Any:
        """Build an optimizer from `get_config`, also of transformers' class.

        `arguments` are the parameters, those in "not_in_config", and overrides.
        """
        config = dict(config)
        lacking = [argument for argument in config.pop("not_in_config", ()) if argument not in arguments]
        if lacking:
            wrong = f"`from_config` needs the arguments that the configuration cannot hold: {', '.join(lacking)}."
            raise refusal(ValueError, wrong, ", ".join(arguments) or "nothing")
        return cls(**{**config, **arguments})
