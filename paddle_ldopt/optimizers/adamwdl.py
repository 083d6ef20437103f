"""AdamW with one learning rate per layer (a port of `paddlenlp.ops.optimizer.AdamWDL`).

Papers: Decoupled Weight Decay Regularization, Loshchilov & Hutter, https://arxiv.org/abs/1711.05101 (Algorithm 2);
layer-wise decay: ULMFiT, https://arxiv.org/abs/1801.06146 (3.2) and ELECTRA, https://arxiv.org/abs/2003.10555 (3.2).
"""

import functools
from typing import Any, Callable, ClassVar, Optional

import numpy as np
import paddle
from paddle import Tensor, _C_ops
from paddle.optimizer import AdamW

from .._checks import Option, refusal
from .._compat import dtype_name, parameters_of
from .base import LayerwiseOptimizer
from .fused import FusedRule
from .layer_rates import N_LAYERS, layerwise_lr_decay
from .options import ADAM, WEIGHT_DECAY, bool_option, checked_lr, decay_option, passed_on, register
from .rules import sqrt
from .states import ELEMENT, HALF, SCALAR, State, Values
from .step import Rows, check_gradient


@functools.cache
def has_kernel(name: str, place: str, dtype: Any) -> bool:
    device = place.partition("(")[2].strip(")").partition(":")[0].lower()
    keys = [key.strip("()").split(", ") for key in paddle.base.core._get_registered_phi_kernels("all")[name]]
    return any(key[0].lower() == device and key[-1] == dtype_name(dtype) for key in keys)


def adamw_update(
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    lr: Any,
    *,
    shard: Any = None,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Any, dict[str, Any]]:
    """Algorithm 2, in the order of Paddle's kernel."""
    beta1_t, beta2_t = state["beta1_pow_acc"], state["beta2_pow_acc"]  # the powers of this step
    param = param * (1.0 - lr * weight_decay)
    m = beta1 * state["moment1"] + (1.0 - beta1) * grad
    v = beta2 * state["moment2"] + (1.0 - beta2) * grad * grad
    # m_hat / (sqrt(v_hat) + epsilon) with numerator and denominator multiplied by this root
    scale = (1.0 - beta2_t).sqrt()
    param = param - lr * scale / (1.0 - beta1_t) * m / (sqrt(v) + epsilon * scale)
    new_powers = {"beta1_pow_acc": beta1_t * beta1, "beta2_pow_acc": beta2_t * beta2}
    return param, {"moment1": m, "moment2": v, **new_powers}


@register("AdamW, layer by layer: the choice for fine-tuning; 8 bytes", trainer=ADAM)
class AdamWDL(LayerwiseOptimizer, AdamW):
    r"""AdamW with one learning rate per layer: the choice for fine-tuning a pretrained transformer.

    With r the ratio of the parameter's layer, :math:`l = r \cdot learning\_rate`:

    .. math::
        p &\leftarrow p - l \lambda p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow p - l \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
            \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t}

    Without layer-wise arguments this is `paddle.optimizer.AdamW`: bit for bit with ``fused=False``, otherwise up to
    float32 rounding. docs/options.md lists the options of all optimizers.

    **The arguments that all optimizers take**:

    Args:
        learning_rate (float|LRScheduler, optional): the rate for a ratio of 1, usually the head's.
        parameters (list[Tensor]|list[dict], optional): required in dygraph. Dicts are groups with "params" and any of
            "learning_rate" (multiplies the global rate), "grad_clip" and options of the class. The labels "group",
            "lr_scale" (with "learning_rate"), "name" and "dygraph_key_name" have no effect.
        grad_clip (GradientClipBase, optional): gradient clipping before the step.
        apply_decay_param_fun: ``param.name`` -> whether weight decay applies to the parameter. None: to all.
        multi_precision: keep float32 master weights of float16 and bfloat16 parameters.
        name: prefix of the state's names.
        layerwise_decay (float|LayerDecay, optional): ratio of the rates of neighbouring layers, in (0, 1]. A
            `LayerDecay` needs `layers`.
        layers (LayerMap, optional): the model's layer map, instead of the next three arguments.
        n_layers: number of blocks, for `set_param_lr_fun`; not below the model's.
        set_param_lr_fun: ``f(layerwise_decay, name_dict, n_layers, param)`` or ``f(param)``, called for every parameter
            in every step. It returns the ratio, or multiplies ``param.optimize_attr["learning_rate"]`` by it; 0
            freezes.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name, for `set_param_lr_fun`.
        lr_ratio: a one-argument `set_param_lr_fun`, as in `paddle.optimizer.AdamW`.
        fused: whether the C library takes the step. None: in dygraph on a CPU, except for float64 parameters. True: the
            same, or an error if impossible for any parameter. False: never. The library treats numbers below 1.2e-38 as
            0.

    Raises:
        TypeError, ValueError: a wrong argument; a decay without effect; a parameter missing in `name_dict`; an
            impossible `fused=True`, at the latest in the first step.

    Differs from `paddlenlp.ops.optimizer.AdamWDL`: weight decay is applied once, at the layer's rate.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import AdamWDL, LayerMap
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> layers = LayerMap.from_model(encoder)
        >>> opt = AdamWDL(1e-3, parameters=encoder.parameters(), layerwise_decay=0.5, layers=layers)
        >>> print([opt.layerwise_ratio(block.linear1.weight) for block in encoder.layers])
        [0.125, 0.25, 0.5]
        >>> encoder(paddle.rand([1, 4, 8])).mean().backward()
        >>> opt.step()
    """

    OPTIONS: ClassVar[dict[str, Option]] = {
        "weight_decay": WEIGHT_DECAY,
        "beta1": decay_option("decay rate of the first moment"),
        "beta2": decay_option("decay rate of the second moment"),
        "epsilon": Option(doc="added to the root of the second moment", group=True),
        "lazy_mode": bool_option("update only the rows in a sparse gradient (on a GPU)", group=True),
    }

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        powers = dict.fromkeys(("beta1_pow_acc", "beta2_pow_acc"), State(SCALAR))
        return {**dict.fromkeys(("moment1", "moment2"), State(ELEMENT)), **powers}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-08,
        parameters: Any = None,
        weight_decay: Any = 0.01,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        layerwise_decay: Any = 1.0,
        n_layers: int = N_LAYERS,
        set_param_lr_fun: Optional[Callable[..., Any]] = layerwise_lr_decay,
        name_dict: Optional[dict[str, str]] = None,
        name: Optional[str] = None,
        *,
        layers: Any = None,
        lr_ratio: Optional[Callable[[Any], Any]] = None,
        fused: Optional[bool] = None,
    ) -> None:
        arguments = passed_on(locals())
        for_paddle = {argument: arguments.pop(argument) for argument in ("learning_rate", "grad_clip", "name")}
        for_paddle.update(apply_decay_param_fun=apply_decay_param_fun, multi_precision=multi_precision)
        parameters = self._read_arguments(**arguments)
        for_paddle["learning_rate"] = checked_lr(learning_rate, "learning_rate")
        super().__init__(parameters=parameters, **for_paddle, **self._options)

    rule = staticmethod(adamw_update)
    counts_steps = False
    is_elementwise = True
    takes_sparse_on_gpu = True
    takes_new_parameters = True

    def prepared(self, rows: Rows) -> Callable[[Optional[float]], None]:
        """Paddle's AdamW kernel, or the rule if no kernel is exact."""
        inputs, rates, by_rule, update_by_rule = [], dict[Any, Any](), list[int](), None
        moment2_max = found_inf = None
        lr_ratio, with_decay, smallest_parallel, global_powers, amsgrad = 1.0, True, 1000, False, False  # as in Paddle
        tables = [self._accumulators.get(self.state_key(name), {}) for name in self.states({}, ())]
        for i, (param, grad, scale, variant) in enumerate(zip(*rows[:4])):
            name, double, master = param.name, False, None
            state = [table.get(name) for table in tables]
            # types are the same object; any other check takes as long as the kernel
            usual = param.dtype is grad.dtype is paddle.float32 and name not in self._master_weights
            usual = usual and not grad.is_selected_rows() and grad.is_same_shape(param)
            if not (usual and state[0] is not None and state[0].is_same_shape(param)):
                check_gradient(self, param, grad)
                self.check_param(param)
                low = param.dtype in HALF and not has_kernel("adamw", str(param.place), param.dtype)
                # the kernel rounds weight decay to float32
                if low or (param.dtype == paddle.float64 and (self.ratios or self.hook)):
                    by_rule.append(i)
                    continue
                if self.has_master(param):
                    master = self._master_weights[name]
                    state = [table[master.name] for table in tables]
                elif grad.dtype != param.dtype:
                    grad = grad.astype(param.dtype)  # the only type that the kernel takes
                double = param.dtype == paddle.float64
            options, key = rows.options[variant], (variant, scale, double)
            if key not in rates:
                number = np.float64 if double else np.float32
                rates[key] = paddle.full([], float(number(rows.rates[variant]) * number(scale)), number.__name__)
            tensors = param, grad, rates[key], *state[:2], moment2_max, *state[2:], master, found_inf
            numbers = options["beta1"], options["beta2"], options["epsilon"], lr_ratio, options["weight_decay"]
            flags = with_decay, options["lazy_mode"], smallest_parallel, master is not None, global_powers, amsgrad
            inputs.append((*tensors, *numbers, *flags))
        if by_rule:
            names = ("beta1", "beta2", "epsilon", "weight_decay")
            plain = [{name: chosen[name] for name in names} for chosen in rows.options]
            update_by_rule = super().prepared(rows.take(by_rule)._replace(options=plain))

        def update(count: Optional[float]) -> None:
            for row in inputs:
                _C_ops.adamw_(*row)  # looked up in each step: PaddleNLP replaces it to offload state
            if update_by_rule is not None:
                update_by_rule(count)

        return update

    _append_to_graph = AdamW._append_optimize_op

    fused_rule = FusedRule("adamw", ("moment1", "moment2"), aux="beta2_pow_acc")

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        if isinstance(parameters, dict):
            return super()._create_accumulators(block, parameters)
        for param in parameters:
            super().check_param(param)
            group = self.group_of(param)  # powers start with the group's betas
            super()._create_accumulators(block, {**group, "params": [param]} if group else [param])

    def check_param(self, param: Tensor) -> None:
        super().check_param(param)
        moment = self._get_accumulator_master("moment1", param)
        if not moment.is_same_shape(param):
            wrong = f"'{param.name}' had another shape when its state was made: build a new optimizer for it."
            raise refusal(ValueError, wrong, f"shape {list(param.shape)}, state of shape {list(moment.shape)}")

    def state_dict(self) -> Values:
        """Return the state, and the loaded state of parameters without a gradient so far."""
        idle = tuple(f"{p.name}_" for p in parameters_of(self) if p.name not in self._already_create_accumulator)
        loaded = {key: value for key, value in self._accumulators_holder.items() if key.startswith(idle)}
        return {**loaded, **super().state_dict()}
