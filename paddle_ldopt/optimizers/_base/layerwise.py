"""How a per-parameter ratio enters a Paddle optimizer: the documented rule, the hook contracts, the mixin.

A leaf of the import graph: optimizers and `decay` both build on it, and it knows neither of them.

Paddle asks `Optimizer._create_param_lr` for the rate of every parameter, in dygraph, under `to_static` and while it
builds a static Program. `LayerwiseMixin` multiplies what it returns by the ratio, so decoupled weight decay is scaled
with it, once, by Paddle's own kernel, and nothing is ever written into the parameters.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

import paddle
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
)

from ..._checks import checked_int, shown
from ..._paddle import flatten_groups, groups_by_name, parameters_of, sharding_setting
from ...layers.paddlenlp_hook import (
    N_LAYERS,
    adapt_hook,
    check_decay,
    check_documented_rule,
    layerwise_lr_decay,
)

_Base: Any = paddle.optimizer.Optimizer if TYPE_CHECKING else object


def ratio_fn(layers, layerwise_decay):
    """Return `layers.ratio_fn(layerwise_decay)`, raise if `layers` is no LayerMap."""
    if not hasattr(layers, "ratio_fn") or isinstance(layers, type):
        raise TypeError(f"`layers` must be a LayerMap. Received: layers={type(layers).__name__}")
    return layers.ratio_fn(layerwise_decay)


class LayerwiseMixin(_Base):
    """Multiply the rate of each parameter of the Paddle optimizer that follows in the bases by a ratio.

    A subclass calls `_init_layerwise` before it lets Paddle's constructor change anything. Every ratio of a step is
    asked for and checked before the step changes anything. A ratio of 0 freezes: neither the parameter nor its state is
    touched.
    """

    _ratio_of: Optional[Callable] = None  # function parameter -> ratio, or None: every ratio is 1
    _ratios_to_check: Optional[Callable] = None  # static graph: what to ask of the ratios once the parameters are known
    _built_with: Optional[list] = None  # the parameters, before anything wraps them; None where there is no `_ratio_of`
    _by_name: dict = {}
    _step_ratios: Optional[dict] = None  # the ratios of the running step, by parameter name
    _structured: Mapping = {}  # param.name -> structured name, where it was told
    _groups: dict = {}  # param.name -> its group, as far as they were asked for

    def _init_layerwise(
        self, parameters, layerwise_decay, n_layers, set_param_lr_fun, name_dict, layers, apply_decay_param_fun=None
    ):
        """Take the layer-wise arguments of an optimizer's constructor, check them against its parameters.

        Args:
            parameters (list[Tensor]|list[dict]|None): the optimizer's; None in static graph mode.
            layerwise_decay (float|LayerDecay): as documented in `AdamWDL`, like the rest.
            n_layers (int): the model's blocks.
            set_param_lr_fun (callable): the hook.
            name_dict (dict[str, str]): for the hook.
            layers (LayerMap): instead of the hook.
            apply_decay_param_fun (callable): ``param.name`` -> whether the parameter is decayed.
        """
        self.layerwise_decay, self.n_layers, self.set_param_lr_fun = layerwise_decay, n_layers, set_param_lr_fun
        params = None if parameters is None else flatten_groups(parameters)
        if params is not None and all(p.stop_gradient for p in params):
            received = f"{len(params)} parameters, all frozen" if params else "parameters=[]"
            raise ValueError(f"`parameters` holds no trainable parameter. Received: {received}")
        if name_dict is not None and not isinstance(name_dict, Mapping):
            raise TypeError(
                "`name_dict` must map each parameter's `name` to its structured name. "
                f"Received: name_dict of type {type(name_dict).__name__}"
            )
        self._structured = name_dict or getattr(layers, "name_dict", None) or {}
        _refuse_names_before_sharding(params or [], self._structured, apply_decay_param_fun)
        n_layers = self.n_layers = checked_int(n_layers, "n_layers")
        documented_rule = set_param_lr_fun is layerwise_lr_decay and layers is None
        if layers is not None:
            if set_param_lr_fun is not layerwise_lr_decay or name_dict is not None:
                raise ValueError(
                    "`layers` takes the place of `name_dict` and `set_param_lr_fun`: give one or the other. "
                    f"Received: name_dict={shown(name_dict)}, set_param_lr_fun={shown(set_param_lr_fun)}"
                )
            self._ratio_of = ratio_fn(layers, layerwise_decay)
            if n_layers != N_LAYERS:
                raise ValueError(
                    "`layers` knows the number of blocks, so `n_layers` would be ignored: leave it out. "
                    f"Received: n_layers={shown(n_layers)}, and layers with {layers.n_layers} blocks"
                )
        else:
            if hasattr(layerwise_decay, "layerwise_decay"):
                raise TypeError(
                    "A LayerDecay as `layerwise_decay` needs `layers` beside it. "
                    f"Received: layerwise_decay={shown(layerwise_decay)}, layers=None"
                )
            decay = check_decay(layerwise_decay)
            if set_param_lr_fun is None or (documented_rule and name_dict is None):
                if decay != 1.0:
                    raise ValueError(
                        "`layerwise_decay` has no effect without `layers` (LayerMap.from_model(model)), or `name_dict` "
                        f"and `set_param_lr_fun`. Received: layerwise_decay={shown(layerwise_decay)}, "
                        f"name_dict={shown(name_dict)}, set_param_lr_fun={shown(set_param_lr_fun)}"
                    )
                return
            if documented_rule and decay == 1.0:  # every ratio is 1; `name_dict` may be there for its names alone
                return
            self._ratio_of = adapt_hook(set_param_lr_fun, decay, name_dict, n_layers)
        ratio_of = self._ratio_of

        def check(params):
            ratios = {p.name: ratio_of(p) for p in params if not p.stop_gradient}
            if documented_rule and layerwise_decay != 1.0:
                check_documented_rule([name_dict[n] for n in ratios])

        if params is None:
            self._ratios_to_check = check
        else:
            check(params)
            self._built_with = params

    def layerwise_ratio(self, param):
        """Return the ratio of `param`'s learning rate to the optimizer's that holds now, groups and ParamAttr aside."""
        if self._ratio_of is None:
            return 1.0
        for known in (self._step_ratios, getattr(self._ratio_of, "last", None)):
            if known and param.name in known:
                return known[param.name]
        return self._ratio_of(self._original(param))

    def group_of(self, param):
        """Return the parameter group that `param` is in, {} if it is in none."""
        if param.name not in self._groups:  # a group was added; or a deep copy, whose parameters have other names
            self._groups = groups_by_name(self)
        return self._groups.get(param.name, {})

    def _original(self, param):
        """Return the parameter that a slice of it, made by sharding, has the name of; raise if there is none."""
        if self._built_with is None:
            return param
        if param.name not in self._by_name:
            self._by_name = {p.name: p for p in self._built_with}  # a deep copy has other names
        if param.name not in self._by_name:
            raise ValueError(
                f"The optimizer was not built with '{param.name}', so its layer is not known. If a wrapper has fused "
                "parameters into buffers or cut them up: set sharding_configs.tensor_fusion=False; instead of group "
                "sharding of level 'p_g_os' use 'os_g', or sharding of stage 1. "
                f"Received: '{param.name}' of shape {list(param.shape)}"
            )
        return self._by_name[param.name]

    def _known_names(self):
        """Return the names of the only parameters that there can be, none if any can be added."""
        return {param.name for param in self._built_with or ()}

    def _add_param_group(self, param_group):
        known, params = self._known_names(), flatten_groups([param_group])
        new = [param.name for param in params if known and param.name not in known]
        if new:
            raise ValueError(
                "The parameters of an optimizer are those it was built with: give others an optimizer of their own. "
                f"Received: {len(new)} more parameters, such as '{new[0]}'"
            )
        super()._add_param_group(param_group)

    def step(self):
        """Update all parameters once: Paddle's own step, after the ratios of all trainable parameters were checked."""
        if self._ratio_of is None or not paddle.in_dynamic_mode():
            return super().step()
        params = [p for p in parameters_of(self) if not p.stop_gradient]
        self._step_ratios = {p.name: self._ratio_of(self._original(p)) for p in params}
        try:
            return super().step()
        finally:
            self._step_ratios = None

    def _apply_optimize(self, loss, startup_program, params_grads, *args, **kwargs):
        # `minimize` and the sharding wrappers come here without passing `step`
        self._check_decay_fun()
        if self._ratio_of is None or self._step_ratios is not None:
            return super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
        params = [p for p, _ in (params_grads["params"] if isinstance(params_grads, dict) else params_grads)]
        if self._ratios_to_check is not None:
            self._ratios_to_check(params)
        self._step_ratios = {p.name: self._ratio_of(self._original(p)) for p in params}
        try:
            return super()._apply_optimize(loss, startup_program, params_grads, *args, **kwargs)
        finally:
            self._step_ratios = None

    def _check_decay_fun(self):
        """Raise if sharding v1 has replaced `apply_decay_param_fun` by one for buffers that it does not update."""
        replaced = getattr(getattr(self, "_apply_decay_param_fun", None), "__module__", None)
        if replaced != DygraphShardingOptimizer.__module__:
            return
        if not (sharding_setting("tensor_fusion") and sharding_setting("fuse_optimizer")):
            setting = sharding_setting("comm_overlap", "tensor_fusion")
            raise ValueError(
                f"With `{setting}` sharding replaces `apply_decay_param_fun`, and no parameter would be decayed: set "
                f"{setting}=False in the strategy's sharding_configs. Received: {setting}=True"
            )

    def _create_param_lr(self, param_and_grad):
        lr = super()._create_param_lr(param_and_grad)
        ratio = self.layerwise_ratio(param_and_grad[0])
        return lr if isinstance(ratio, float) and ratio == 1.0 else lr * ratio

    def _append_optimize_op(self, block, param_and_grad):
        pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        ratio = self.layerwise_ratio(pair[0])
        if isinstance(ratio, float) and ratio == 0.0:
            return None
        return super()._append_optimize_op(block, param_and_grad)


def _refuse_names_before_sharding(params, names, is_decayed):
    """Raise if names were collected before `dist.shard_tensor`, which adds ".dist" to them: all look-ups would miss."""

    def answer(name):
        try:
            return bool(is_decayed(name))
        except LookupError:
            return None

    for param in params:
        before = param.name.removesuffix(".dist")
        if before == param.name:
            continue
        stale = ["`name_dict` or `layers`"] if before in names and param.name not in names else []
        if is_decayed is not None and answer(param.name) == answer("no parameter's name") != answer(before):
            stale.append("`apply_decay_param_fun`")
        if stale:
            raise ValueError(
                f"{' and '.join(stale)} must know a parameter by its name after `dist.shard_tensor`, which adds "
                "'.dist': shard the model first, then collect the names. "
                f"Received: '{before}' is known, '{param.name}' is not"
            )
