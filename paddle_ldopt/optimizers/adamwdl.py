"""AdamW with a learning rate of its own for each layer (a port of `paddlenlp.ops.optimizer.AdamWDL`).

Papers: Decoupled Weight Decay Regularization, Loshchilov & Hutter, https://arxiv.org/abs/1711.05101 (Algorithm 2);
layer-wise decay: ULMFiT, https://arxiv.org/abs/1801.06146 (3.2) and ELECTRA, https://arxiv.org/abs/2003.10555 (3.2).
"""

import math
from typing import Optional

import paddle
from paddle.optimizer import AdamW

from .._checks import Option, checked_bool, checked_number, shown
from .._paddle import flatten_groups
from ..layers.paddlenlp_hook import layerwise_lr_decay
from ._base.arithmetic import root
from ._base.declaration import ELEMENT, SCALAR, State, plain_decay, register
from ._base.groups import checked_parameters
from ._base.layerwise import LayerwiseMixin
from ._base.rule_optimizer import Task, checked_decay, checked_rate
from ._base.sharded_state import ShardedStateMixin
from ._fused.plan import FusedRule
from ._fused.step import FusedMixin, check_fused, layer_rates
from ._pieces.pieces import MissingGradients, refuse_sharded_groups

__all__ = ["AdamWDL"]

_GROUP_OPTIONS = ("weight_decay", "beta1", "beta2", "epsilon", "lazy_mode")
_LOW_PRECISION = (paddle.float16, paddle.bfloat16)


@register(
    "AdamW, layer by layer: the choice for fine-tuning; 8 bytes",
    trainer={"beta1": "adam_beta1", "beta2": "adam_beta2", "epsilon": "adam_epsilon"},
)
class AdamWDL(FusedMixin, ShardedStateMixin, LayerwiseMixin, AdamW):
    r"""AdamW that gives each layer its own learning rate: the choice for fine-tuning a pretrained transformer.

    With r the ratio of the parameter's layer, :math:`l = r \cdot learning\_rate`:

    .. math::
        p &\leftarrow p - l \lambda p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow p - l \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
            \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t}

    Without layer-wise arguments this is `paddle.optimizer.AdamW`: bit for bit with ``fused=False``, where Paddle's own
    kernel does the arithmetic, otherwise to float32 rounding.

    Args:
        learning_rate (float|LRScheduler, optional): the rate of a layer whose ratio is 1, usually the head.
        beta1 (float|Tensor, optional): decay of the first moment, in [0, 1).
        beta2 (float|Tensor, optional): decay of the second moment, in [0, 1).
        epsilon (float|Tensor, optional): at least 0, added to the root of the second moment.
        parameters (list[Tensor]|list[dict], optional): what to train; required in dygraph. Dicts are groups with
            "params" and any of "learning_rate" (a multiplier of the global rate), "weight_decay", "beta1", "beta2",
            "epsilon", "lazy_mode", "grad_clip". The labels "group", "lr_scale", "name" and "dygraph_key_name" change
            nothing; an "lr_scale" other than 1 in a group without a rate of its own is an error.
        weight_decay (float|Tensor, optional): decoupled decay :math:`\lambda`, scaled by the layer's own rate. None is
            0; a regularizer of Paddle's (`L2Decay`) is an error.
        apply_decay_param_fun (callable, optional): ``param.name`` -> whether the parameter is decayed. None: all are.
        grad_clip (GradientClipBase, optional): gradient clipping before the step.
        lazy_mode (bool, optional): of a sparse gradient, which Paddle takes on a GPU only, update the rows that it has.
        multi_precision (bool, optional): keep float32 master weights of float16 and bfloat16 parameters.
        layerwise_decay (float|LayerDecay, optional): ratio of the rates of neighbouring layers, in (0, 1]. A
            `LayerDecay` (other conventions, a floor, freezing) goes with `layers`.
        n_layers (int, optional): blocks of the model, for `set_param_lr_fun`; at least as many as there are.
        set_param_lr_fun (callable, optional): ``f(layerwise_decay, name_dict, n_layers, param)`` or ``f(param)``,
            called for every parameter in every step. It returns the ratio, or multiplies
            ``param.optimize_attr["learning_rate"]`` by it. A ratio of 0 freezes the parameter. None: all ratios are 1.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name, for `set_param_lr_fun`.
        name (str, optional): prefix of the names of the optimizer's state.
        layers (LayerMap, optional): the layers of the model; takes the place of `name_dict`, `n_layers` and
            `set_param_lr_fun` and knows every architecture.
        lr_ratio (callable, optional): another name for a one-argument `set_param_lr_fun`, as in
            `paddle.optimizer.AdamW`; works on CPU too.
        fused (bool, optional): whether a step is one call of the package's C library, which is several times as fast.
            None: what it can do, which is all in dygraph on a CPU but float64; Paddle's operations do the rest. True:
            an error if it cannot do all. False: never. The state is the same, and numbers agree to float32 rounding;
            numbers below 1.2e-38 are taken as 0. It uses OMP_NUM_THREADS threads, and Paddle sets that to 1 unless it
            is set before Python starts.

    Raises:
        TypeError: an argument of the wrong type, a hook of another arity or with a result that is no number.
        ValueError: a value out of range; a decay that would change nothing; a `name_dict` that lacks a parameter;
            `n_layers` smaller than the model; a ratio that is negative, not finite or of more than one element; no
            trainable parameter; `fused=True` where it is not possible, at the first step if it is only known then.
            Nothing is changed by then.

    Differs from `paddlenlp.ops.optimizer.AdamWDL`: weights are decayed once, with the layer's rate (there twice, the
    first time with the base rate); hooks may return a ratio; parameter groups work; it runs on Paddle 3.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> from paddle_ldopt import AdamWDL, LayerMap
            >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
            >>> layers = LayerMap.from_model(encoder)
            >>> opt = AdamWDL(1e-3, parameters=encoder.parameters(), layerwise_decay=0.5, layers=layers)
            >>> print([opt.layerwise_ratio(block.linear1.weight) for block in encoder.layers])
            [0.125, 0.25, 0.5]
            >>> encoder(paddle.rand([1, 4, 8])).mean().backward()
            >>> opt.step()
            >>> opt.clear_grad()
    """

    _weight_decay: float

    OPTIONS = {
        "weight_decay": Option(0.01, "decoupled decay, scaled by the layer's rate", group=True, read=plain_decay),
        "beta1": Option(0.9, "decay of the first moment", high=1.0, ends="[)", group=True, tensor=True),
        "beta2": Option(0.999, "decay of the second moment", high=1.0, ends="[)", group=True, tensor=True),
        "epsilon": Option(1e-8, "added to the root of the second moment", group=True, tensor=True),
        "lazy_mode": Option(False, "update the rows of a sparse gradient alone", check=checked_bool, group=True),
    }

    @staticmethod
    def states(options, shape):
        """Return state name -> its kind and type."""
        moments = dict.fromkeys(("moment1", "moment2"), State(ELEMENT))
        return {**moments, **dict.fromkeys(("beta1_pow_acc", "beta2_pow_acc"), State(SCALAR))}

    @staticmethod
    def sums(options, shape):
        """Return nothing: the update is element by element."""
        return []

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-08,
        parameters=None,
        weight_decay=0.01,
        apply_decay_param_fun=None,
        grad_clip=None,
        lazy_mode=False,
        multi_precision=False,
        layerwise_decay=1.0,
        n_layers=12,
        set_param_lr_fun=layerwise_lr_decay,
        name_dict=None,
        name=None,
        *,
        layers=None,
        lr_ratio=None,
        fused=None,
    ):
        self._fused = check_fused(fused)
        if lr_ratio is not None:
            if set_param_lr_fun is not layerwise_lr_decay:
                raise ValueError(
                    "`lr_ratio` is another name for `set_param_lr_fun`: give one of them. "
                    f"Received: lr_ratio={shown(lr_ratio)}, set_param_lr_fun={shown(set_param_lr_fun)}"
                )
            set_param_lr_fun = lr_ratio
        if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
            raise TypeError(
                "`apply_decay_param_fun` must be callable. "
                f"Received: apply_decay_param_fun={shown(apply_decay_param_fun)}"
            )
        parameters = checked_parameters(parameters, _GROUP_OPTIONS)
        refuse_sharded_groups(parameters)
        learning_rate = checked_rate(learning_rate)
        options = {"weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        for group in [options, *(group for group in parameters or [] if isinstance(group, dict))]:
            group.update({key: value for key, value in _checked_options({**options, **group}).items() if key in group})
        self._init_layerwise(
            parameters, layerwise_decay, n_layers, set_param_lr_fun, name_dict, layers, apply_decay_param_fun
        )
        self._missing = MissingGradients(flatten_groups(parameters or []))
        super().__init__(
            learning_rate=learning_rate,
            parameters=parameters,
            **options,
            apply_decay_param_fun=apply_decay_param_fun,
            grad_clip=grad_clip,
            lazy_mode=lazy_mode,
            multi_precision=multi_precision,
            name=name,
        )

    _collected: Optional[list] = None  # while a dygraph step is collected: (task, what it came as) of each parameter

    def state_kinds(self, param):
        """Return state name -> how it follows from the parameter."""
        moments, powers = (
            (self._moment1_acc_str, self._moment2_acc_str),
            (self._beta1_pow_acc_str, self._beta2_pow_acc_str),
        )
        return {**dict.fromkeys(moments, "element"), **dict.fromkeys(powers, "scalar")}

    counts_steps = False

    def state_layout(self, param):
        """Return state name -> (dtype, shape) in which a parameter's state is stored."""
        dtype = paddle.float32 if param.dtype in _LOW_PRECISION else param.dtype
        shapes = {"element": list(param.shape), "scalar": [1]}
        return {name: (dtype, shapes[kind]) for name, kind in self.state_kinds(param).items()}

    def initial_state(self, param, name):
        """Return the number that a state is full of before the first update."""
        betas = {self._beta1_pow_acc_str: "beta1", self._beta2_pow_acc_str: "beta2"}
        return float(self.options_of(param)[betas[name]]) if name in betas else 0.0

    def options_of(self, param):
        """Return the options of the group of `param`."""
        group = self.group_of(param)
        return {name: group.get(name, self._default_dict[name]) for name in _GROUP_OPTIONS}

    # ---- the fused step

    _bumps_version = False  # as Paddle's kernel

    def fused_rule(self, options):
        """Return the rule as the C library knows it, or why it does not."""
        tensors = [name for name in ("beta1", "beta2", "epsilon") if isinstance(options[name], paddle.Tensor)]
        if tensors:
            return f"`{tensors[0]}` is a Tensor"
        fields = {"beta1": options["beta1"], "beta2": options["beta2"], "eps": (options["epsilon"], 0, 0)}
        states = (self._moment1_acc_str, self._moment2_acc_str)
        return FusedRule("adamw", states, fields, aux=self._beta2_pow_acc_str, counter=self._beta1_pow_acc_str)

    def fused_options(self, param=None):
        """Return the options of a parameter's group, or those of a parameter without a group."""
        if param is not None and self.group_of(param):
            options = self.options_of(param)
        else:
            options = {name: getattr(self, f"_{name}") for name in _GROUP_OPTIONS}
        decay = float(options["weight_decay"]) if param is None or self.is_decayed(param) else 0.0
        return {**options, "weight_decay": decay}

    def is_decayed(self, param):
        """Say whether `apply_decay_param_fun` lets the parameter be decayed."""
        return self._apply_decay_param_fun is None or bool(self._apply_decay_param_fun(param.name))

    def _create_accumulators(self, block, parameters):
        for param in parameters["params"] if isinstance(parameters, dict) else parameters:
            self.check_type(param)
        super()._create_accumulators(block, parameters)

    def check_shape(self, param):
        """Raise if a parameter is not what its state was made for."""
        moment = self._get_accumulator_master(self._moment1_acc_str, param)
        if list(moment.shape) != list(param.shape):
            raise ValueError(
                f"'{param.name}' had another shape when its state was made: build a new optimizer for it. "
                f"Received: shape {list(param.shape)}, state of shape {list(moment.shape)}"
            )

    def _takes_sparse(self, param):
        return not param.place.is_cpu_place()  # Paddle's kernel for them breaks off there

    def _create_optimization_pass(self, params_grads, *args, **kwargs):
        if not paddle.in_dynamic_mode() or self._fused is False:
            return super()._create_optimization_pass(params_grads, *args, **kwargs)
        self._collected = []
        try:
            done = super()._create_optimization_pass(params_grads, *args, **kwargs)  # found_inf: collects nothing
            collected = self._collected
        finally:
            self._collected = None
        self._update_or_wait(collected)
        return done

    def _update(self, collected):
        given = {task.param.name: arguments for task, arguments in collected}
        for task in self.update_fused([task for task, _ in collected]):
            self._update_by_paddle(*given[task.param.name])

    # ---- Paddle's operations

    def _create_param_lr(self, param_and_grad):
        if self._lr_ratio is not None:  # the kernel multiplies, which saves an operation a parameter
            return AdamW._create_param_lr(self, param_and_grad)
        lr, dtype = super()._create_param_lr(param_and_grad), param_and_grad[0].dtype
        if paddle.in_dynamic_mode() and paddle.float64 in (lr.dtype, dtype) and dtype not in _LOW_PRECISION:
            return lr.astype(dtype)  # it has the type of the first parameter, and Paddle's kernel needs this one's
        return lr

    def _append_optimize_op(self, block, param_and_grad):
        if self._collected is None:
            if self._fused and paddle.in_dynamic_mode():
                raise ValueError(
                    "`fused=True` is not possible inside `dist.shard_optimizer`, which calls Paddle's operations: use "
                    "None or False. Received: fused=True"
                )
            return self._update_by_paddle(block, param_and_grad)
        given = (block, param_and_grad)
        if isinstance(param_and_grad, dict):
            param_and_grad = self._update_param_group(param_and_grad)
        param, grad = param_and_grad
        ratio = self.layerwise_ratio(param)
        if ratio != 0.0 and math.prod(param.shape) != 0:
            own = (getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)
            if isinstance(own, paddle.Tensor):  # Paddle's way to give an absolute rate
                rate = layer_rates(own, 1.0, ratio)
            else:
                rate = layer_rates(self._global_learning_rate(), own, ratio)
            self._collected.append((Task(param, grad, self.fused_options(param), rate), given))

    def _update_by_paddle(self, block, param_and_grad):
        if isinstance(param_and_grad, dict):
            param_and_grad = self._update_param_group(param_and_grad)
        (param, grad), decay = param_and_grad, float(self._weight_decay)
        if paddle.in_dynamic_mode() and grad.dtype != param.dtype and param.dtype not in _LOW_PRECISION:
            param_and_grad = param, grad.astype(param.dtype)  # Paddle's kernel takes no other type
        decayed = self.is_decayed(param)
        if paddle.in_dynamic_mode() and param.dtype in _LOW_PRECISION and param.place.is_cpu_place():
            return self._low_precision_step(param, param_and_grad[1], decay if decayed else 0.0)
        if self._ratio_of is None or param.dtype != paddle.float64 or not decayed:
            on_gpu = paddle.in_dynamic_mode() and param.place.is_gpu_place()
            self._lr_ratio = self.layerwise_ratio if on_gpu and self._ratio_of is not None else None
            try:
                return super()._append_optimize_op(block, param_and_grad)
            finally:
                self._lr_ratio = None
        # Paddle's kernel takes the decay as a float32: too coarse next to float64 parameters, so decay them here
        if self.layerwise_ratio(param) != 0.0:
            paddle.assign(param * (1.0 - self._create_param_lr(param_and_grad) * decay), param)
        self._weight_decay = 0.0
        try:
            return super()._append_optimize_op(block, param_and_grad)
        finally:
            self._weight_decay = decay

    def _low_precision_step(self, param, grad, weight_decay):
        """Update a float16 or bfloat16 parameter on a CPU, for which Paddle's kernel does not exist."""
        if self.layerwise_ratio(param) == 0.0:
            return
        weight = self._master_weights[param.name] if self._multi_precision else param.astype("float32")
        names = (self._moment1_acc_str, self._moment2_acc_str, self._beta1_pow_acc_str, self._beta2_pow_acc_str)
        stored = [self._get_accumulator_master(name, param) for name in names]
        new_weight, *new_state = adamw_update(
            weight,
            grad.astype("float32"),
            *(state.astype("float32") for state in stored),
            lr=self._create_param_lr((param, grad)),
            beta1=float(self._beta1),
            beta2=float(self._beta2),
            epsilon=float(self._epsilon),
            weight_decay=weight_decay,
        )
        for new, old in zip(new_state, stored):
            paddle.assign(new.reshape(old.shape).astype(old.dtype), old)
        new_weight = new_weight.reshape(param.shape)  # the powers are of shape [1], the parameter may be of []
        if self._multi_precision:
            paddle.assign(new_weight, weight)
        paddle.assign(new_weight.astype(param.dtype), param)


def _checked_options(options):
    """Return the options of the optimizer or of a group, numbers as floats and Tensors as they are; raise if bad."""
    checked = {}
    for name, high in (("weight_decay", None), ("beta1", 1.0), ("beta2", 1.0), ("epsilon", math.inf)):
        value = checked[name] = options[name]
        if not paddle.in_dynamic_mode() and isinstance(value, (paddle.pir.Value, paddle.base.framework.Variable)):
            continue  # known when the graph runs
        number = checked_decay(value) if high is None else checked_number(value, name, 0.0, high, "[)")
        checked[name] = value if isinstance(value, paddle.Tensor) else number
    return checked


def adamw_update(param, grad, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon, weight_decay):
    """Return the new parameter, moments and powers of Algorithm 2 in Paddle's order: decay first, epsilon un-hatted."""
    param = param * (1.0 - lr * weight_decay)
    moment1 = beta1 * moment1 + (1.0 - beta1) * grad
    moment2 = beta2 * moment2 + (1.0 - beta2) * grad * grad
    scale = (1.0 - beta2_pow).sqrt()  # the powers are those of this step
    param = param - lr * scale / (1.0 - beta1_pow) * moment1 / (root(moment2) + epsilon * scale)
    return param, moment1, moment2, beta1_pow * beta1, beta2_pow * beta2
