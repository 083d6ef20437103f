"""How a per-parameter ratio enters a Paddle optimizer: the documented rule, the hook contracts, the mixin.

A leaf of the import graph: optimizers and `decay` both build on it, and it knows neither of them.

Paddle asks `Optimizer._create_param_lr` for the rate of every parameter, in dygraph, under `to_static` and while it
builds a static Program. `LayerwiseMixin` multiplies what it returns by the ratio, so decoupled weight decay is scaled
with it, once, by Paddle's own kernel, and nothing is ever written into the parameters.
"""

import functools
import inspect
import math
import numbers
import os
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
import paddle
from paddle.distributed import fleet

from .arguments import checked_int, checked_number, plain_number, shown

_GROUP_KEYS = {"params", "learning_rate", "grad_clip"}
_LABELS = {"dygraph_key_name", "group", "lr_scale", "name"}  # ernie-m's, PaddleMIX's, timm's: they change nothing
_Base: Any = paddle.optimizer.Optimizer if TYPE_CHECKING else object

__all__ = ["LayerwiseMixin", "adapt_hook", "check_decay", "check_ratio", "layerwise_lr_decay"]

_N_LAYERS = 12  # the default of `n_layers`, as in PaddleNLP
_ENCODER_BLOCK = re.compile(r"encoder\.layers\.(\d+)")
_ANY_BLOCK = re.compile(r"[\w.]*\b(layers|layer|h|block|blocks|resblocks)\.\d+")


def layerwise_lr_decay(decay_rate, name_dict, n_layers, param):
    r"""Give the ratio of PaddleNLP's documented rule, for models whose blocks are called ``encoder.layers.<i>``.

    .. math::
        r = d^{n-i} \text{ (block } i\text{)}, \qquad d^{n+1} \text{ (embedding)}, \qquad 1 \text{ (all else)}

    Args:
        decay_rate (float): the decay d of one layer, in (0, 1].
        name_dict (dict[str, str]): ``param.name`` -> structured name, for every parameter.
        n_layers (int): blocks in the encoder; at least as many as the model has.
        param (Tensor): the parameter.

    Returns:
        float: the ratio of the parameter's learning rate to the optimizer's.

    Raises:
        ValueError: `name_dict` lacks the parameter, or the model has more blocks than `n_layers`.

    Examples:
        .. code-block:: python

            >>> from types import SimpleNamespace
            >>> from paddle_ldopt import layerwise_lr_decay
            >>> names = {"linear_0.w_0": "bert.encoder.layers.10.linear1.weight"}
            >>> print(layerwise_lr_decay(0.5, names, 12, SimpleNamespace(name="linear_0.w_0")))
            0.25

    Source: ``paddlenlp.ops.optimizer.layerwise_lr_decay``. Other architectures: ``LayerMap`` and ``layers=``.
    """
    decay_rate = check_decay(decay_rate, "decay_rate")
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise TypeError(f"`name_dict` must be a dict. Received: name_dict of type {type(name_dict).__name__}")
    if not isinstance(getattr(param, "name", None), str):
        raise TypeError(f"`param` must be a parameter. Received: param of type {type(param).__name__}")
    n_layers = checked_int(n_layers, "n_layers")
    name = (name_dict or {}).get(param.name)
    if name is None:
        raise ValueError(
            f"`name_dict` must map every parameter's `name` to its structured name, and lacks '{param.name}'. Build it "
            "after the model is complete: {p.name: n for n, p in model.named_parameters()}. "
            f"Received: name_dict={shown(name_dict)}"
        )
    block = _ENCODER_BLOCK.search(name)
    if block:
        i = int(block.group(1))
        if i >= n_layers:
            raise ValueError(
                f"`n_layers` must be at least the number of encoder blocks, or '{name}' would get a rate above the "
                f"head's. Received: n_layers={n_layers}"
            )
        return decay_rate ** (n_layers - i)
    return decay_rate ** (n_layers + 1) if "embedding" in name else 1.0


def check_decay(value, argument="layerwise_decay"):
    """Return `value` as a float if it is a decay in (0, 1], raise otherwise."""
    return checked_number(value, argument, 0.0, 1.0, "(]", kind="a number in (0, 1]; 1 is the same rate for all layers")


def check_ratio(ratio, name):
    """Return what a hook gave for parameter `name` as a float (a graph value stays one), raise if it is no ratio."""
    if isinstance(ratio, paddle.pir.Value):  # known at run time only: its shape is all that can be checked
        if math.prod(ratio.shape) != 1:
            raise ValueError(f"A learning-rate ratio must have one element. Received: shape={ratio.shape} for '{name}'")
        return ratio
    if isinstance(ratio, (paddle.Tensor, np.ndarray)) and ratio.size != 1:
        raise ValueError(
            f"A learning-rate ratio must have one element. Received: shape={list(ratio.shape)} for '{name}'"
        )
    try:
        return checked_number(ratio, "ratio")
    except TypeError:
        raise TypeError(
            "A learning-rate hook must return a number, or change `param.optimize_attr['learning_rate']` and return "
            f"None. Received: {shown(ratio)} for '{name}'"
        ) from None
    except ValueError:
        raise ValueError(
            f"A learning-rate ratio must be finite and not negative. Received: {shown(ratio)} for '{name}'"
        ) from None


def adapt_hook(hook, layerwise_decay=1.0, name_dict=None, n_layers=12):
    """Turn a hook of any contract found in the wild into a function parameter -> checked ratio.

    Args:
        hook (callable): ``f(layerwise_decay, name_dict, n_layers, param)`` or ``f(param)``, a `functools.partial` of
            the first included. It returns a ratio (a number or a one-element Tensor), or multiplies
            ``param.optimize_attr["learning_rate"]`` and returns None; either way the attribute is as before after the
            call, so ratios never compound.
        layerwise_decay (float): the first thing that a four-argument hook is given.
        name_dict (dict[str, str]): the second.
        n_layers (int): the third.

    Raises:
        TypeError: not callable, or callable with neither 1 nor 4 arguments.
    """
    call, _ = _bind(hook, (layerwise_decay, name_dict, n_layers))

    def ratio_of(param):
        attr = getattr(param, "optimize_attr", None)
        if attr is None:
            return check_ratio(call(param), param.name)
        before = attr.get("learning_rate", 1.0)
        attr["learning_rate"] = 1.0
        try:
            ratio = call(param)
            if ratio is None:
                ratio = attr["learning_rate"]
        finally:
            attr["learning_rate"] = before
        return check_ratio(ratio, param.name)

    return ratio_of


def _bind(hook, settings):
    """Return `hook` as a function of the parameter alone, and whether it is given the `settings`."""
    if not callable(hook):
        raise TypeError(f"`set_param_lr_fun` must be callable or None. Received: set_param_lr_fun={shown(hook)}")
    four = functools.partial(hook, *settings)
    try:
        signature = inspect.signature(hook)
    except ValueError:  # a builtin without a signature: the documented contract
        return four, True
    required = [
        p
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(required) == 1 and not (len(positional) == 4 and positional[-1] == "param"):
        only = required[0]
        if only.kind is only.KEYWORD_ONLY:  # partial(rule, decay_rate=..., name_dict=..., n_layers=...)
            return lambda param: hook(**{only.name: param}), False
        return hook, False
    try:
        signature.bind(*settings, None)
    except TypeError:
        raise TypeError(
            "`set_param_lr_fun` must take (layerwise_decay, name_dict, n_layers, param) or (param). "
            f"Received: {getattr(hook, '__name__', hook)}{signature}"
        ) from None
    return four, True


def _check_hook_sees(hook, decay):
    """Raise if a decay stands beside a hook of the parameter alone, which cannot see it."""
    if decay == 1.0 or _bind(hook, (decay, None, 0))[1]:
        return
    bound = [*getattr(hook, "args", ())[:1], *getattr(hook, "keywords", {}).values()]  # of a functools.partial
    if not any(isinstance(number, numbers.Real) and number == decay for number in map(plain_number, bound)):
        raise ValueError(
            "`set_param_lr_fun` takes the parameter alone and cannot see `layerwise_decay`: leave that out, or give a "
            "hook that takes (layerwise_decay, name_dict, n_layers, param). "
            f"Received: layerwise_decay={shown(decay)}, set_param_lr_fun={shown(hook)}"
        )


def ratio_fn(layers, layerwise_decay):
    """Return `layers.ratio_fn(layerwise_decay)`, raise if `layers` is no LayerMap."""
    if not hasattr(layers, "ratio_fn") or isinstance(layers, type):
        raise TypeError(f"`layers` must be a LayerMap. Received: layers={type(layers).__name__}")
    return layers.ratio_fn(layerwise_decay)


def groups_by_name(optimizer):
    """Return, by the name of each of the optimizer's parameters, the group that it is in, {} if it is in none."""
    found: dict = {}
    for item in optimizer._param_groups or []:
        grouped = isinstance(item, dict)
        found.update((param.name, item if grouped else {}) for param in (item["params"] if grouped else [item]))
    return found


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

    def _init_layerwise(self, parameters, layerwise_decay, n_layers, set_param_lr_fun, name_dict, layers):
        """Take the layer-wise arguments of an optimizer's constructor, check them against its parameters.

        Args:
            parameters (list[Tensor]|list[dict]|None): the optimizer's; None in static graph mode.
            layerwise_decay (float|LayerDecay): as documented in `AdamWDL`, like the rest.
            n_layers (int): the model's blocks.
            set_param_lr_fun (callable): the hook.
            name_dict (dict[str, str]): for the hook.
            layers (LayerMap): instead of the hook.
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
        n_layers = self.n_layers = checked_int(n_layers, "n_layers")
        documented_rule = set_param_lr_fun is layerwise_lr_decay and layers is None
        if layers is not None:
            if set_param_lr_fun is not layerwise_lr_decay or name_dict is not None:
                raise ValueError(
                    "`layers` takes the place of `name_dict` and `set_param_lr_fun`: give one or the other. "
                    f"Received: name_dict={shown(name_dict)}, set_param_lr_fun={shown(set_param_lr_fun)}"
                )
            self._ratio_of = ratio_fn(layers, layerwise_decay)
            if n_layers != _N_LAYERS:
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
            _check_hook_sees(set_param_lr_fun, decay)
            self._ratio_of = adapt_hook(set_param_lr_fun, decay, name_dict, n_layers)
        ratio_of = self._ratio_of

        def check(params):
            ratios = {p.name: ratio_of(p) for p in params if not p.stop_gradient}
            if documented_rule and layerwise_decay != 1.0:
                _check_documented_rule([name_dict[n] for n in ratios])

        if params is None:
            self._ratios_to_check = check
        else:
            check(params)
            self._built_with = params

    def layerwise_ratio(self, param):
        """Return the ratio of `param`'s learning rate to the optimizer's that holds now, groups and ParamAttr aside."""
        if self._ratio_of is None:
            return 1.0
        if self._step_ratios is not None and param.name in self._step_ratios:
            return self._step_ratios[param.name]
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


def _check_documented_rule(names):
    """Raise if PaddleNLP's rule finds no block among the structured `names`, warn if it passes numbered blocks over."""
    if not any(_ENCODER_BLOCK.search(n) for n in names):
        raise ValueError(
            "The default rule decays blocks called 'encoder.layers.<i>' and finds none, so `layerwise_decay` would do "
            "nothing to this model's blocks. Give layers=LayerMap.from_model(model), which knows every architecture. "
            f"Received: parameters {', '.join(map(repr, names[:4]))}{', ...' if len(names) > 4 else ''}"
        )
    passed_over = sorted(
        {m.group() for n in names if not _ENCODER_BLOCK.search(n) for m in [_ANY_BLOCK.search(n)] if m}
    )
    if passed_over:
        warnings.warn(
            "The default rule decays blocks called 'encoder.layers.<i>' only and leaves others at the full rate: "
            f"{', '.join(passed_over[:4])}{', ...' if len(passed_over) > 4 else ''}. layers=LayerMap.from_model(model) "
            "decays them too.",
            stacklevel=5,
        )


def unwrap(optimizer):
    """Return the optimizer inside the wrappers of `fleet` and `amp`."""
    while hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim"):  # the latter: group sharding
        optimizer = optimizer._inner_opt if hasattr(optimizer, "_inner_opt") else optimizer._optim
    return optimizer


def unwrap_model(model):
    """Return the network inside the wrappers of `fleet` and `paddle.DataParallel`."""
    while hasattr(model, "_layers") and isinstance(model._layers, paddle.nn.Layer):
        model = model._layers
    return model


def parameters_of(optimizer):
    """Return the parameters of an optimizer in order, groups flattened; of a sharded one those of all ranks."""
    lists = [optimizer._parameter_list or []]
    while hasattr(optimizer, "_inner_opt"):  # within the wrapper for sharding are this rank's parameters only
        optimizer = optimizer._inner_opt
        lists.append(optimizer._parameter_list or [])
    return flatten_groups(max(lists, key=len))


def topology():
    """Return the communicate group of `fleet`, None if it was not started."""
    return getattr(fleet.fleet, "_hcg", None)


def parameters_to_train(model):
    """Return a model's parameters: frozen ones too, which may be unfrozen in mid-run, but under sharding.

    Paddle's sharding of version 2 raises if it is given one.
    """
    hcg = topology()
    sharded = hcg is not None and hcg.get_sharding_parallel_world_size() > 1
    return [param for param in model.parameters() if not (sharded and param.stop_gradient)]


def is_listed(parameters):
    """Say whether `parameters` can be those of an optimizer: an iterable, but not a Tensor, an array or a dict."""
    return hasattr(parameters, "__iter__") and not isinstance(parameters, (paddle.Tensor, np.ndarray, dict, str))


def checked_parameters(parameters, options):
    """Return an optimizer's `parameters` as a list, the "params" of its groups too: an iterator is read only once.

    Args:
        parameters (Iterable|None): parameters, or dicts with "params"; None in a static graph.
        options (Iterable[str]): what a group may say beside Paddle's "learning_rate" and "grad_clip". The labels
            "group", "lr_scale", "name" and "dygraph_key_name" are accepted and change nothing.

    Raises:
        TypeError: no parameters or groups; both; a set, which has no order; a group's rate that is no number; None in
            dygraph.
        ValueError: a group without "params" or with an unknown key; a rate out of range; a group with an "lr_scale"
            other than 1 and no rate of its own; a parameter or a name twice.
    """
    if parameters is None and not paddle.in_dynamic_mode():
        return None
    if not is_listed(parameters):
        raise TypeError(
            "`parameters` must be a list of parameters or of parameter groups. "
            f"Received: parameters of type {type(parameters).__name__}"
        )
    items = list(parameters)
    groups = [_checked_group(item, options) for item in items if isinstance(item, dict)]
    if groups and len(groups) < len(items):
        raise TypeError("`parameters` must hold parameters or parameter groups. Received: both")
    known: dict = {}
    for param in flatten_groups(groups) if groups else items:
        if not hasattr(param, "stop_gradient"):
            raise TypeError(
                f"`parameters` must hold parameters. Received: {shown(param)} of type {type(param).__name__}"
            )
        if param.name in known:
            if known[param.name] is param:
                raise ValueError(f"A parameter is in `parameters` twice. Received: '{param.name}'")
            raise ValueError(
                "Two parameters have one name, by which Paddle keeps their state: build their models in one "
                f"`paddle.utils.unique_name.guard()`, or in none. Received: two parameters '{param.name}'"
            )
        known[param.name] = param
    return groups or items


def _checked_group(group, options):
    if "params" not in group:
        raise ValueError(f"A parameter group must have 'params'. Received: keys {shown(list(group))}")
    unknown = group.keys() - _GROUP_KEYS - _LABELS - set(options)
    if unknown:
        known = ", ".join(map(repr, sorted({*_GROUP_KEYS, *options})))
        received = ", ".join(sorted(str(key)[:50] for key in unknown)[:8])
        raise ValueError(f"A parameter group has one of the keys {known}. Received: {received}")
    params, rate = group["params"], group.get("learning_rate", 1.0)
    if isinstance(params, (set, str)):
        raise TypeError(f"A group's 'params' must be an ordered collection. Received: {type(params).__name__}")
    if not isinstance(rate, paddle.Tensor):  # a Tensor is Paddle's way to give an absolute rate
        rate = checked_number(rate, "learning_rate", kind="a number: in a group it is a multiplier of the rate")
    scaled = checked_number(group.get("lr_scale", 1.0), "lr_scale", kind="a number: it is a label of a group") != 1.0
    if scaled and "learning_rate" not in group and group.get("lr") is None:
        raise ValueError(
            "'lr_scale' is a label and has no effect: give the group its 'learning_rate', a multiplier of the "
            f"optimizer's. Received: lr_scale={shown(group['lr_scale'])}"
        )
    given = {"learning_rate": rate} if "learning_rate" in group else {}
    return {**group, **given, "params": params if hasattr(params, "stop_gradient") else list(params)}


def flatten_groups(parameters):
    """Return a plain list of the parameters in a list of Tensors or of parameter groups."""
    out: list = []
    for item in parameters:
        params = item["params"] if isinstance(item, dict) else item
        out.extend([params] if hasattr(params, "stop_gradient") else params)
    return out


def _run_untranslated():
    """Have `paddle.jit.to_static` run this package's code as it is, as it does Paddle's own.

    Its bytecode translator follows code outside Paddle into the optimizer and fails there, on `super()` of a `super()`.
    """
    try:
        from paddle.jit.sot.opcode_translator import skip_files
    except ImportError:  # a Paddle without the translator, or with it elsewhere
        return
    skip_files.skip_file_names.add(os.path.dirname(os.path.abspath(__file__)) + os.sep)
    paddle.framework.core.eval_frame_skip_file_prefix(tuple(skip_files.skip_file_names))


_run_untranslated()
