"""Paddle's private parts that code outside the optimizers needs, and differences between Paddle's versions.

`tests/test_compat.py` lists all private names of Paddle in this package.
"""

import contextlib
import ctypes
import functools
import importlib
import os
import random
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer import Optimizer

from ._checks import refusal, wrong_type

try:  # since Paddle 3.3
    from paddle.distributed.auto_parallel.auto_dp_utils import in_auto_dp_mode as in_auto_dp_mode
    from paddle.distributed.auto_parallel.fully_shard_fusion import get_fsdp_context as get_fsdp_context
except ImportError:
    in_auto_dp_mode = get_fsdp_context = bool

# ---- tensors and networks

_NORM = re.compile(r"Norm(\d[dD])?$")
flags = functools.cache(paddle.base.core.globals)  # `paddle.get_flags` takes 7 us


def dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def checked_model(model: Any, argument: str = "model") -> paddle.nn.Layer:
    if not isinstance(model, paddle.nn.Layer):
        raise wrong_type(model, argument, "a paddle.nn.Layer")
    return model


def is_norm(cls: type) -> bool:
    """Decide by the name of the class or a base, such as BatchNorm2D."""
    return any(_NORM.search(base.__name__) for base in cls.__mro__)


def name_dict_of(model: paddle.nn.Layer) -> dict[str, str]:
    """Return ``param.name`` -> structured name."""
    return {param.name: name for name, param in model.named_parameters()}


def structured_names(name_dict: Any, layers: Any) -> Mapping[str, str]:
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise wrong_type(name_dict, "name_dict", "a dict from each parameter's `name` to its structured name")
    return name_dict or getattr(layers, "name_dict", None) or {}


_WRITES: dict[int, int] = {}  # address -> writes that Paddle does not record


def count_writes() -> contextlib.ExitStack:
    """Count the writes that Paddle does not record, also through views, for `write_of`, until the result is closed."""
    ends, initializer = contextlib.ExitStack(), paddle.nn.initializer.Initializer
    writers: Any = (paddle.Tensor, "set_value", 0), (paddle.Tensor, "copy_", 0), (initializer, "__call__", 1)

    def restore(cls: Any, name: str, counted: Any) -> None:
        if getattr(cls, name) is counted:  # not patched again, perhaps for ever
            setattr(cls, name, counted.__wrapped__)

    for cls, name, place in writers:
        counted = _counted(getattr(cls, name), place)
        setattr(cls, name, counted)
        ends.callback(restore, cls, name, counted)
    return ends


count_writes_for_ever = functools.cache(count_writes)


def _counted(write: Any, place: int) -> Any:
    @functools.wraps(write)
    def counted(*args: Any, **kwargs: Any) -> Any:
        done, tensor = write(*args, **kwargs), [*args, *kwargs.values()][place]
        if isinstance(tensor, paddle.Tensor) and tensor._is_initialized():
            _WRITES[tensor.data_ptr()] = _WRITES.get(tensor.data_ptr(), 0) + 1
        return done

    return counted


def write_of(param: paddle.Tensor) -> tuple[int, int, int]:
    """The values change when a parameter is written (except by an optimizer's kernel) or gets other memory."""
    return param.data_ptr(), param.inplace_version, _WRITES.get(param.data_ptr(), 0)


def name_before_copy(name: str, is_known: Any) -> str:
    """Return the known name of a parameter that Paddle renamed in a copy."""
    original, is_copy = name, "_deepcopy_"
    while is_copy and not is_known(original):
        original, is_copy, _ = original.rpartition("_deepcopy_")
    return original or name


def asked_before_copy(ask: Any, name: str) -> Any:
    """Ask a function about the copied parameter; unlike a lambda, a partial of this can be pickled."""
    return ask(name_before_copy(name, ask))


def asked_of_original(ask: Any, originals: dict[str, str], name: str) -> Any:
    """As `asked_before_copy`, given a dict from names of copies to those of the originals."""
    return ask(originals.get(name, name))


@functools.cache
def run_untranslated() -> None:
    """Exclude this package from `paddle.jit.to_static`, as Paddle excludes its own code.

    The bytecode translator fails on `super()` of a `super()`. Its import is slow, so the first optimizer calls this.
    """
    try:
        from paddle.jit.sot.opcode_translator import skip_files
    except ImportError:  # this Paddle has no translator, or has moved it
        return
    package = os.path.dirname(os.path.abspath(__file__))
    skip_files.skip_file_names.add(package + os.sep)
    paddle.framework.core.eval_frame_skip_file_prefix(tuple(skip_files.skip_file_names))


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    cpu, of_device = paddle.base.core.default_cpu_generator(), paddle.get_rng_state()
    of_cpu = cpu.get_state()  # Paddle 3.1 cannot set the state of a device by its name
    states = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        paddle.set_rng_state(of_device)
        cpu.set_state(of_cpu)
        np.random.set_state(states[0])
        random.setstate(states[1])


@functools.cache
def _surplus() -> int:
    """How many references too many the getter of `grad_fn` takes (one on Paddle 3.3.1)."""
    leaf = paddle.ones([1])
    leaf.stop_gradient = False
    result = leaf * 2
    node = result.grad_fn
    before = sys.getrefcount(node)
    result.grad_fn  # noqa: B018
    return sys.getrefcount(node) - before


def grad_node(tensor: paddle.Tensor) -> Any:
    """Return `tensor.grad_fn` without the surplus references, which would keep the graph for ever."""
    node = None if tensor.stop_gradient else tensor.grad_fn
    for _ in range(_surplus() if node is not None else 0):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(node))
    return node


# ---- parameters and groups of an optimizer


def flatten_groups(parameters: Any) -> list[paddle.Tensor]:
    out: list[Any] = []
    for item in parameters:
        params = item["params"] if isinstance(item, dict) else item
        out.extend([params] if hasattr(params, "stop_gradient") else params)
    return out


def groups_by_name(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Return ``param.name`` -> its parameter group, or {}."""
    groups: dict[str, dict[str, Any]] = {}
    for item in optimizer._param_groups or []:
        grouped = isinstance(item, dict)
        groups.update((param.name, item if grouped else {}) for param in (item["params"] if grouped else [item]))
    return groups


# ---- state of an optimizer


def create_state(optimizer: Optimizer, params: list[paddle.Tensor]) -> None:
    """Create missing state as the first step would."""
    params = [param for param in params if param.name not in optimizer._already_create_accumulator]
    with paddle.no_grad():
        optimizer.helper = LayerHelper(type(optimizer).__name__)
        optimizer._create_accumulators(paddle.static.default_main_program().global_block(), params)


def stand_in(optimizer: Optimizer, params: Any = None, **attributes: Any) -> Any:
    """Return a copy that shares the state but not the attributes: reading rates leaves no trace."""
    other = object.__new__(type(optimizer))
    for name, value in dict(vars(optimizer)).items():  # a copy of the dict: another thread may add to it
        bound = isinstance(value, types.MethodType) and value.__self__ is optimizer
        vars(other)[name] = types.MethodType(value.__func__, other) if bound else value
    if params is not None:
        other._parameter_list = params
    vars(other).update(attributes)
    return other


def is_called_by(name: str) -> bool:
    """Return whether a method of this name called the calling method, apart from overrides."""
    frame: Any = sys._getframe(1)
    method = frame.f_code.co_name
    while frame.f_code.co_name == method:  # an override calls the method of its base
        frame = frame.f_back
    return bool(frame.f_code.co_name == name)


def is_wrapped_step() -> bool:
    """Return whether a wrapper of fleet takes the running step."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("paddle.distributed.fleet."):
        frame = frame.f_back
    return frame is not None


# ---- wrappers of `fleet`, `amp`, group sharding and LookAhead

# the inner optimizer of fleet and amp, group sharding, LookAhead, static `fleet`, asp
_INNER = ("_inner_opt", "_optim", "inner_optimizer", "inner_opt", "_optimizer")
_INSIDE = ("_layers", "_layer")  # of networks: DataParallel, GroupShardedStage2
# by name: no version of Paddle has all; MetaParallelBase: tensor, pipeline, sharding, segment parallel
_WRAPPERS = {"DataParallel", "MetaParallelBase", "MixPrecisionLayer"}
_WRAPPERS |= {"GroupShardedStage2", "GroupShardedStage3", "FullyShard"}


def wrappers(optimizer: Optimizer) -> list[Any]:
    """Return the wrappers, outermost first, then the optimizer."""
    chain: list[Any] = [optimizer]
    while True:
        inner = [value for name in _INNER for value in [getattr(chain[-1], name, None)] if value is not None]
        if not inner:
            return chain
        chain.append(inner[0])


def unwrap(optimizer: Optimizer) -> Any:
    return wrappers(optimizer)[-1]


def may_have_cut(optimizer: Optimizer) -> bool:
    """A wrapper may have split parameters."""
    return hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim")


def is_group_sharded(optimizer: Optimizer) -> bool:
    return any(hasattr(wrapper, "_optim") for wrapper in wrappers(optimizer))


def check_wrapper_state(optimizer: Optimizer) -> None:
    for wrapper in wrappers(optimizer)[:-1]:
        if not may_have_cut(wrapper):
            name = type(wrapper).__name__
            wrong = f"{name} keeps state of its own, such as slow weights or masks, which this checkpoint would lose:"
            raise TypeError(f"{wrong} train without {name}, or save both states yourself. Received: optimizer={name}")


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return them in order; under sharding, of all processes."""
    lists = [getattr(wrapper, "_parameter_list", None) or [] for wrapper in wrappers(optimizer)]
    found = max(lists, key=len)
    if found and isinstance(found[0], dict):  # the groups know of groups that were added later
        found = unwrap(optimizer)._param_groups
    return flatten_groups(found)


def unwrap_model(model: paddle.nn.Layer) -> paddle.nn.Layer:
    while any(cls.__name__ in _WRAPPERS and cls.__module__.startswith("paddle.") for cls in type(model).__mro__):
        inside = next((layer for key in _INSIDE for layer in [model._sub_layers.get(key)] if layer), None)
        if inside is None:
            break
        model = inside
    return model


# ---- several processes


def fleet_part(path: str) -> Any:
    module, _, name = f"paddle.distributed.fleet.{path}".rpartition(".")
    return getattr(importlib.import_module(module), name)


#: () -> the hybrid communicate group of `fleet`, None before `fleet.init`
topology = functools.partial(getattr, paddle.distributed.fleet.fleet, "_hcg", None)
#: () -> the classes of `fleet` for sharding versions 1 and 2
_SHARDING = "meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer.DygraphShardingOptimizer"
sharding_v1, sharding_v2 = functools.partial(fleet_part, _SHARDING), functools.partial(fleet_part, f"{_SHARDING}V2")


def is_sharded() -> bool:
    hcg = topology()
    return hcg is not None and hcg.get_sharding_parallel_world_size() > 1


def sharding_setting(*names: str) -> Any:
    """Return the first enabled one of these `sharding_configs` of `fleet`, None without sharding."""
    if not is_sharded():
        return None
    configs = paddle.distributed.fleet.fleet._user_defined_strategy.hybrid_configs["sharding_configs"]
    return next((name for name in names if getattr(configs, name)), None)


def check_own_gradients(until: str) -> None:
    setting = sharding_setting("tensor_fusion", "comm_overlap")
    if setting:
        todo = f"set {setting}=False in the strategy's sharding_configs."
        raise refusal(ValueError, f"Each parameter must keep its own gradient until {until}: {todo}", **{setting: True})


def check_weight_decay_in_step(optimizer: Optimizer) -> None:
    module = getattr(getattr(optimizer, "_apply_decay_param_fun", None), "__module__", None)
    replaced = topology() is not None and module == sharding_v1().__module__
    if replaced and not (sharding_setting("tensor_fusion") and sharding_setting("fuse_optimizer")):
        setting = sharding_setting("comm_overlap", "tensor_fusion")
        wrong = f"With `{setting}` sharding replaces `apply_decay_param_fun`, and no parameter would be decayed:"
        raise refusal(ValueError, f"{wrong} set {setting}=False in the strategy's sharding_configs.", **{setting: True})


def leave_out_frozen(optimizer: Any) -> None:
    """Remove frozen parameters from an optimizer: sharding version 2 cannot split them."""
    # sharding itself refuses parameter groups
    if sharding_setting("split_param") and not isinstance(optimizer._param_groups[0], dict):
        trained = [param for param in optimizer._parameter_list if not param.stop_gradient]
        optimizer._parameter_list = optimizer._param_groups = trained  # as Paddle replaces parameters by slices


def is_pipeline_engine(network: paddle.nn.Layer) -> bool:
    alone = any(cls.__name__ == "NoPipelineParallel" for cls in type(network).__mro__)
    return alone or isinstance(network, fleet_part("meta_parallel.PipelineParallel"))


def pipeline_of(model: paddle.nn.Layer) -> Any:
    layer = fleet_part("meta_parallel.PipelineLayer")
    parts = [part for part in model.sublayers(include_self=True) if isinstance(part, layer)]
    return next((part for part in parts if part._num_stages > 1), None)
