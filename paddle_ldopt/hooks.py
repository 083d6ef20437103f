"""How a per-parameter ratio enters a Paddle optimizer: the documented rule, the hook contracts, the mixin.

A leaf of the import graph: optimizers and `decay` both build on it, and it knows neither of them.

Paddle asks `Optimizer._create_param_lr` for the rate of every parameter, in dygraph, under `to_static` and while it
builds a static Program. `LayerwiseMixin` multiplies what it returns by the ratio, so decoupled weight decay is scaled
with it, once, by Paddle's own kernel, and nothing is ever written into the parameters.
"""

import copy
import functools
import inspect
import math
import numbers
import os
import re
import types
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
)
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

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
            call, so ratios never compound. Every step calls the hook anew. Between steps, readers of an optimizer get
            the last result of a hook that writes, because reading must write nothing.
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
        written = not (isinstance(before, (int, float)) and before == 1.0)
        if written:
            attr["learning_rate"] = 1.0
        try:
            ratio = call(param)
            if ratio is None:
                ratio = attr.get("learning_rate", 1.0)
        finally:
            written = written or attr.get("learning_rate", 1.0) is not before
            if written:
                attr["learning_rate"] = before
        ratio = check_ratio(ratio, param.name)
        if written and isinstance(ratio, float):
            last[param.name] = ratio
        return ratio

    last = ratio_of.last = {}  # type: ignore[attr-defined]  # answers that took a write: readers use them
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


# Where wrappers keep their optimizer: `fleet`, `amp`; group sharding; LookAhead; static `fleet`; ASP and static `amp`
_INNER = ("_inner_opt", "_optim", "inner_optimizer", "inner_opt", "_optimizer")


def wrappers(optimizer):
    """Return an optimizer and the optimizers inside it, from the outermost wrapper to the optimizer itself."""
    found = [optimizer]
    while True:
        inner = [getattr(found[-1], name, None) for name in _INNER]
        if not any(value is not None for value in inner):
            return found
        found.append(next(value for value in inner if value is not None))


def unwrap(optimizer):
    """Return the optimizer inside the wrappers of `fleet` and `amp`, and inside LookAhead."""
    return wrappers(optimizer)[-1]


def check_wrapper_state(optimizer):
    """Raise TypeError if checkpoints of the optimizer would lack the state that a wrapper of it keeps."""
    for wrapper in wrappers(optimizer)[:-1]:
        if not hasattr(wrapper, "_inner_opt") and not hasattr(wrapper, "_optim"):
            name = type(wrapper).__name__
            raise TypeError(
                f"{name} keeps state of its own, such as slow weights or masks, which a checkpoint of the optimizer "
                f"inside would lose: train without {name}, or save both states yourself. Received: optimizer={name}"
            )


def stand_in(optimizer, **attributes):
    """Return an optimizer of the same class that shares the state, so that a reader can ask it without a trace.

    Attributes that the reader, or the code of the class, sets on it are its own.

    Args:
        optimizer (Optimizer): not wrapped.
        **attributes: set on the stand-in.
    """
    other = object.__new__(type(optimizer))
    for name, value in dict(vars(optimizer)).items():  # a copy of the dict: another thread may add to it
        bound = isinstance(value, types.MethodType) and value.__self__ is optimizer
        vars(other)[name] = types.MethodType(value.__func__, other) if bound else value
    vars(other).update(attributes)
    return other


def copy_schedule(schedule):
    """Return a copy of a schedule that can be stepped without a trace; it prints nothing.

    Schedules and containers in it are copied, optimizers replaced by a `stand_in`, networks shared. Of other objects,
    such as the one whose method the schedule calls, a shallow copy is made, with the schedules and optimizers in it
    copied too.

    Raises:
        Exception: the schedule holds an object that cannot be copied, such as a generator or an open file.
    """
    return _copied(schedule, {})


def _copied(value, memo):
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, LRScheduler):
        other = memo[id(value)] = object.__new__(type(value))
        vars(other).update({name: _copied(held, memo) for name, held in dict(vars(value)).items()}, verbose=False)
    elif isinstance(value, Optimizer):
        other = memo[id(value)] = stand_in(value, _learning_rate_map={})
        vars(other)["_learning_rate"] = _copied(value._learning_rate, memo)
    elif type(value) in (list, tuple, set):
        other = type(value)([_copied(item, memo) for item in value])
    elif type(value) is dict:
        other = {key: _copied(item, memo) for key, item in value.items()}
    elif isinstance(value, types.MethodType):
        other = types.MethodType(value.__func__, _copied(value.__self__, memo))
    elif isinstance(value, functools.partial):
        func, args, keywords = (_copied(part, memo) for part in (value.func, value.args, value.keywords))
        other = functools.partial(func, *args, **keywords)
    elif isinstance(value, (paddle.nn.Layer, types.ModuleType)):
        other = value
    elif isinstance(value, paddle.Tensor):
        other = value.detach().clone()
    elif type(value).__module__.startswith("numpy.random"):  # its shallow copy draws from the same stream
        other = copy.deepcopy(value)
    else:
        other = memo[id(value)] = copy.copy(value)
        for name, held in list(getattr(other, "__dict__", {}).items()) if other is not value else ():
            if isinstance(held, (LRScheduler, Optimizer)):
                vars(other)[name] = _copied(held, memo)
    memo[id(value)] = other
    return other


@functools.lru_cache(maxsize=128)
def asks_for_rates(cls):
    """Return whether the step of an optimizer class asks `_create_param_lr` for the rate of each parameter.

    The names in the code that `step` can reach tell. An override hides the overridden method unless it calls it.
    """
    skipped = "_append_optimize_multi_tensor_op"  # only Adam and Momentum of Paddle take it: the other way must ask too
    ahead, seen = [("step", 0)], set()
    while ahead:
        name, start = ahead.pop()
        owners = [i for i, base in enumerate(cls.__mro__) if i >= start and name in vars(base)]
        if not owners or (name, owners[0]) in seen or name == skipped:
            continue
        seen.add((name, owners[0]))
        held = vars(cls.__mro__[owners[0]])[name]
        mentioned = _names_in(getattr(held, "__func__", held))
        if "_create_param_lr" in mentioned:
            return True
        ahead += [(other, owners[0] + 1 if other == name else 0) for other in mentioned]
    return False


def _names_in(function, seen=()):
    """Return the names that the code of a function mentions, with those of functions of its module that it calls."""
    function = inspect.unwrap(function) if callable(function) else None
    if not isinstance(function, types.FunctionType) or function in seen:
        return set()
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= {*code.co_names, *code.co_freevars}
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    for other in [function.__globals__.get(name) for name in names]:
        if getattr(other, "__module__", None) == function.__module__ and isinstance(other, types.FunctionType):
            names = names | _names_in(other, (*seen, function))
    return names


# By name: not all are in every Paddle. MetaParallelBase is the base of tensor, pipeline, sharding and segment parallel.
_WRAPPERS = {"DataParallel", "MetaParallelBase", "MixPrecisionLayer", "GroupShardedStage2", "GroupShardedStage3"}
_WRAPPERS |= {"FullyShard"}


def unwrap_model(model):
    """Return the network inside the wrappers of `fleet`, group sharding and `paddle.DataParallel`."""
    while any(cls.__name__ in _WRAPPERS and cls.__module__.startswith("paddle.") for cls in type(model).__mro__):
        inside = next((layer for key in ("_layers", "_layer") for layer in [model._sub_layers.get(key)] if layer), None)
        if inside is None:
            break
        model = inside
    return model


def parameters_of(optimizer):
    """Return the parameters of an optimizer in order, groups flattened; of a sharded one those of all ranks."""
    # within the wrapper for sharding are this rank's parameters only
    lists = [getattr(wrapper, "_parameter_list", None) or [] for wrapper in wrappers(optimizer)]
    return flatten_groups(max(lists, key=len))


def topology():
    """Return the communicate group of `fleet`, None if it was not started."""
    return getattr(fleet.fleet, "_hcg", None)


def sharding_setting(*names):
    """Return the first of these settings that is on in the `sharding_configs` of `fleet`, None without sharding."""
    hcg = topology()
    if hcg is None or hcg.get_sharding_parallel_world_size() == 1:
        return None
    configs = fleet.fleet._user_defined_strategy.hybrid_configs["sharding_configs"]
    return next((name for name in names if getattr(configs, name)), None)


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
        options (Iterable[str]): keys allowed in a group beside Paddle's "learning_rate" and "grad_clip". The labels
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
