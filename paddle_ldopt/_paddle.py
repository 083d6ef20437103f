"""The one door to what Paddle and PaddleNLP do not document: every private name that this package touches is here.

Each is declared with its owner and the feature that needs it. A Paddle in which one has moved can still be imported:
using the feature then raises `MovedError`, which names both. tests/test_paddle.py looks for every one of them. Seen in
Paddle 3.1, 3.2 and 3.3. Methods that a subclass of Paddle's classes overrides, and their `super()` calls, stand in the
subclass.
"""

import functools
import importlib
import inspect
import os
import sys
import types
from typing import Any, Callable

import paddle
from paddle.distributed import fleet


class MovedError(RuntimeError):
    """A private part of Paddle is not where it was, so a feature is not available."""


OPTIMIZER, TENSOR = "paddle.optimizer.Optimizer", "paddle.Tensor"
PRIVATE: list[tuple[str, str, str]] = []  # (owner, name, feature) of all that is declared below; name "" is the owner


def _moved(owner: str, name: str, feature: str) -> MovedError:
    private = f"{owner}.{name}" if name else owner
    return MovedError(
        f"{feature} is not available: Paddle {paddle.__version__} has moved a private part that it needs. Use Paddle "
        f"3.1 to 3.3, or a newer paddle_ldopt. Received: no {private}"
    )


def _attribute(owner: str, name: str, feature: str) -> Callable[[Any], Any]:
    """Return a getter of an attribute that instances of `owner` have."""
    PRIVATE.append((owner, name, feature))

    def get(instance: Any) -> Any:
        try:
            return getattr(instance, name)
        except AttributeError:
            raise _moved(owner, name, feature) from None

    return get


def _part(owner: str, name: str, feature: str) -> Callable[..., Any]:
    """Return `owner.name`, such as a method to call with an instance; if there is none, what raises when called."""
    PRIVATE.append((owner, name, feature))
    try:
        return getattr(_object(owner), name)
    except (AttributeError, ImportError):

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise _moved(owner, name, feature)

        return missing


def _lazy(path: str, feature: str) -> Callable[[], Any]:
    """Return a function that returns the class or module at a dotted path: it is imported at the first call."""
    PRIVATE.append((path, "", feature))

    @functools.lru_cache(None)
    def get() -> Any:
        try:
            return _object(path)
        except (AttributeError, ImportError):
            raise _moved(path, "", feature) from None

    return get


def _object(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ImportError:
        if not module:
            raise
        return getattr(_object(module), name)


# ---- an optimizer's attributes

accumulators = _attribute(OPTIMIZER, "_accumulators", "Every optimizer")  # state -> param.name -> Tensor
waiting_state = _attribute(OPTIMIZER, "_accumulators_holder", "Loading an optimizer")  # loaded, of no step yet
with_state = _attribute(OPTIMIZER, "_already_create_accumulator", "Every optimizer")  # names of parameters
masters = _attribute(OPTIMIZER, "_master_weights", "Every optimizer")  # param.name -> float32 Tensor
parameter_list = _attribute(OPTIMIZER, "_parameter_list", "Every optimizer")  # of this process; flat or groups
param_groups = _attribute(OPTIMIZER, "_param_groups", "Every optimizer")
grad_clip = _attribute(OPTIMIZER, "_grad_clip", "Gradient clipping")
rate_source = _attribute(OPTIMIZER, "_learning_rate", "Every optimizer")  # a float or the LRScheduler
state_prefix = _attribute(OPTIMIZER, "_name", "Every optimizer")  # None or the argument `name`
rate_factor = _attribute(OPTIMIZER, "_create_param_lr", "Every optimizer")  # ((param, grad)) -> the rate, a Tensor
global_rate = _attribute(OPTIMIZER, "_global_learning_rate", "Every optimizer")  # () -> Tensor
new_state = _attribute(OPTIMIZER, "_add_accumulator", "Every optimizer")  # (state name, param, fill_value=, ...)
new_master = _attribute(OPTIMIZER, "_create_master_weight", "Every optimizer")  # (param) -> Tensor
state_getter = _attribute(OPTIMIZER, "_get_accumulator_master", "Every optimizer")  # (state name, param) -> Tensor
_auxiliary = _attribute(OPTIMIZER, "_get_auxiliary_var", "Every optimizer")
decay_fun = _attribute("paddle.optimizer.AdamW", "_apply_decay_param_fun", "Every optimizer")
keeps_masters = _attribute("paddle.optimizer.AdamW", "_multi_precision", "Every optimizer")
ratio_in_kernel = _attribute("paddle.optimizer.AdamW", "_lr_ratio", "AdamWDL")  # None, or parameter -> ratio


def found_inf(optimizer: Any) -> Any:
    """Return the flag by which a gradient scaler has the running step skipped, None if there is none."""
    return _auxiliary(optimizer)("found_inf")


def set_attributes(optimizer: Any, **values: Any) -> None:
    """Set what Paddle's code reads of an optimizer, and its own classes set in their constructors."""
    for name, value in values.items():
        setattr(optimizer, f"_{name}", value)


def prefixed(optimizer: Any, state: str = "") -> str:
    """Return the key in `accumulators` of a state: its name after the prefix that the optimizer may have."""
    return f"{state_prefix(optimizer)}_{state}" if state_prefix(optimizer) else state


def is_called_by(name: str) -> bool:
    """Return whether the function that asks was called by one of this name.

    DygraphShardingOptimizerV2.sharded_state_dict gets its state from `state_dict` like everybody else, and places rows
    and columns wrongly: nothing but its name tells that it is the one who asks.
    """
    return sys._getframe(2).f_code.co_name == name


# ---- tensors

grad_of = _part(TENSOR, "_grad_ivar", "Every optimizer")  # None where there is no gradient
slice_of = _part(TENSOR, "_slice", "Sharding version 2")  # (tensor, begin, end), a view
is_allocated = _part(TENSOR, "_is_initialized", "Every optimizer")


# ---- arithmetic, flags, modes

assign_out = _part("paddle._C_ops", "assign_out_", "Every optimizer")  # `paddle.assign` without its checks
_squared_norm = _part("paddle._C_ops", "squared_l2_norm", "Every optimizer")
_data_type = _lazy("paddle.base.core.DataType", "Static graphs")
_graph_dtype = _lazy("paddle.pir.core.convert_np_dtype_to_dtype_", "Static graphs")
_in_pir_mode = _lazy("paddle.framework.in_pir_mode", "Static graphs")


def square_sum(tensor: Any) -> Any:
    """Return the sum of the squares of a tensor, shape []; in dygraph without a tensor of squares."""
    return _squared_norm(tensor).reshape([]) if paddle.in_dynamic_mode() else (tensor * tensor).sum()


def is_float64(tensor: Any) -> bool:
    """Return whether a tensor, or a variable of a graph, is of type float64."""
    return bool(tensor.dtype == paddle.float64 or tensor.dtype == _data_type().FLOAT64)


def state_dtype(dtype: Any) -> Any:
    """Return a dtype in the spelling that `new_state` takes in the mode that is on."""
    return _graph_dtype()(str(dtype).rpartition(".")[2]) if _in_pir_mode()() else dtype


# ---- fleet and its engines


# ---- PaddleNLP's and PaddleFormers' Trainer


# ---- wrappers of optimizers and networks


def groups_by_name(optimizer):
    """Return, by the name of each of the optimizer's parameters, the group that it is in, {} if it is in none."""
    found: dict = {}
    for item in optimizer._param_groups or []:
        grouped = isinstance(item, dict)
        found.update((param.name, item if grouped else {}) for param in (item["params"] if grouped else [item]))
    return found


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
        if mentioned & {"_create_param_lr", "rate_factor"}:
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
_WRAPPERS = {
    "DataParallel",
    "MetaParallelBase",
    "MixPrecisionLayer",
    "GroupShardedStage2",
    "GroupShardedStage3",
    "FullyShard",
}


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
