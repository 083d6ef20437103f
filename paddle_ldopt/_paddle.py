"""The one door to what Paddle and PaddleNLP do not document: every private name that this package touches is here.

Each is declared with its owner and the feature that needs it. A Paddle in which one has moved can still be imported:
using the feature then raises `MovedError`, which names both. tests/test_paddle.py looks for every one of them. Seen in
Paddle 3.1, 3.2 and 3.3. Methods that a subclass of Paddle's classes overrides, and their `super()` calls, stand in the
subclass.
"""

import functools
import importlib
import inspect
import math
import os
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


# ---- tensors

grad_of = _part(TENSOR, "_grad_ivar", "Every optimizer")  # None where there is no gradient
slice_of = _part(TENSOR, "_slice", "Sharding version 2")  # (tensor, begin, end), a view
is_allocated = _part(TENSOR, "_is_initialized", "Every optimizer")


# ---- arithmetic, flags, modes


# ---- fleet and its engines

_META, _DYGRAPH = "paddle.distributed.fleet.meta_parallel", "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
_FUSION, _UTILS = "paddle.distributed.fleet.utils.tensor_fusion_helper", "paddle.distributed.fleet.utils"
_STEP, _CHECKPOINT = "The pipeline training step", "Saving for another layout"
_ENGINE, _HYBRID = f"{_META}.PipelineParallel", f"{_DYGRAPH}.HybridParallelOptimizer"
_V2 = f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"

pipeline_engine = _lazy(_ENGINE, _STEP)
pipeline_layer = _lazy(f"{_META}.PipelineLayer", _STEP)
sharding_engine = _lazy(f"{_META}.ShardingParallel", _STEP)
tensor_engine = _lazy(f"{_META}.TensorParallel", _STEP)
hybrid_optimizer = _lazy(_HYBRID, _STEP)
sharding_v1 = _lazy(f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizer", _CHECKPOINT)
sharding_v2 = _lazy(_V2, _CHECKPOINT)
all_reduce_gradients = _lazy(f"{_UTILS}.hybrid_parallel_util.fused_allreduce_gradients_with_group", _STEP)
hybrid_parameters = _lazy(f"{_UTILS}.hybrid_parallel_util.obtain_optimizer_parameters_list", _STEP)

hybrid_group = _attribute(f"{_META}.meta_parallel_base.MetaParallelBase", "_hcg", _STEP)
engine_layers = _attribute(f"{_META}.meta_parallel_base.MetaParallelBase", "_layers", _STEP)
loss_functions = _attribute(f"{_META}.PipelineLayer", "_loss_fn", _STEP)
has_dynamic_shape = _attribute(_ENGINE, "_dynamic_shape", _STEP)
delays_scale = _attribute(_ENGINE, "_delay_scale_loss", _STEP)  # losses are not divided by the micro-batches' number
prepare_training = _attribute(_ENGINE, "_prepare_training", _STEP)
_backward_step = _attribute(_ENGINE, "_backward_step", _STEP)
sharded_optimizer = _attribute(_HYBRID, "_inner_opt", _STEP)
reduced_step = _attribute(_HYBRID, "_step", _STEP)  # the step with gradients that are reduced already
slices = _attribute(_V2, "_slice_params", _CHECKPOINT)  # param.name -> the piece that is in this process
collect_buffers = _attribute(_V2, "_collect_comm_buffers", _CHECKPOINT)
assign_slice_gradients = _attribute(_V2, "_assign_slice_grad", _STEP)
_buffers = _attribute(_V2, "_comm_buffer_list", _CHECKPOINT)
_views = _attribute(f"{_FUSION}.FusedCommBuffer", "_sharding_param_grad_view", _CHECKPOINT)
_VIEW = f"{_FUSION}.ShardingGradView"
_view_begin = _attribute(_VIEW, "_param_begin", _CHECKPOINT)  # both in the buffer, like the index of the parameter
_view_end = _attribute(_VIEW, "_param_end", _CHECKPOINT)
_view_index = _attribute(_VIEW, "_index", _CHECKPOINT)
_view_param = _attribute(_VIEW, "_param", _CHECKPOINT)
local_shape = _attribute(TENSOR, "_local_shape", _CHECKPOINT)  # of a DistTensor
_found_overflow = _attribute("paddle.amp.AmpScaler", "_cache_found_inf", _STEP)


def overlaps(network: Any) -> list[str]:
    """Return the settings that are on by which an engine reduces gradients while it computes others."""
    names = ("dp_comm_overlap", "sharding_comm_overlap", "release_gradients")
    return [name for name in names if getattr(network, f"_{name}", False)]


def is_pipeline_engine(network: Any) -> bool:
    """Return whether `fleet` made an engine of a PipelineLayer: of stages or, since Paddle 3.3, for one process."""
    alone = any(cls.__name__ == "NoPipelineParallel" for cls in type(network).__mro__)
    return alone or isinstance(network, pipeline_engine())


def engine_with(engine: Any, loss: Any, forward: Any, guarded: Any) -> Any:
    """Return an engine that shares everything with `engine`, with its own loss function and calls.

    The engine has hooks around its calls, and none that replaces a result. So that nothing is patched on the user's
    engine, the parts are replaced in subclasses whose instances share its attributes.

    Args:
        engine: a pipeline engine.
        loss: called with the output and the labels.
        forward: called for the forward of the stage.
        guarded: given the backward step of a micro-batch, returns the one to call.
    """
    layers = _sharing(engine_layers(engine), _loss_fn=[loss], forward=forward)
    return _sharing(engine, _layers=layers, _backward_step=guarded(_backward_step(engine)))


def _sharing(layer: Any, **own: Any) -> Any:
    """Return a Layer of a subclass that shares all attributes of `layer` except its own."""

    def fixed(value: Any) -> property:
        return property(lambda self: value)

    cls = type(type(layer).__name__, (type(layer),), {name: fixed(value) for name, value in own.items()})
    other: Any = object.__new__(cls)
    object.__setattr__(other, "__dict__", vars(layer))
    return other


def is_group_sharded(optimizer: Any) -> bool:
    """Return whether `group_sharded_parallel` (stages 2 and 3) has wrapped an optimizer."""
    return any(hasattr(wrapper, "_optim") for wrapper in wrappers(optimizer))


def slice_ranges(optimizer: Any) -> dict[str, tuple[int, int]]:
    """Return ``param.name`` -> range of the flattened parameter in this process, and fill the slices.

    Sharding version 2 would fill them in its first step.
    """
    collect_buffers(optimizer)()
    ranges = {}
    for buffer in _buffers(optimizer):
        for name, view in _views(buffer).items():
            begin, end, index = _view_begin(view), _view_end(view), _view_index(view)
            if begin < end:
                view.fill_slice_param(slices(optimizer)[name])
                ranges[name] = (begin - index, min(end - index, math.prod(_view_param(view).shape)))
    return {name: (begin, end) for name, (begin, end) in ranges.items() if begin < end}


def drop_waiting_state(optimizer: Any) -> None:
    """Forget the state that was loaded and not yet assigned to its parameters."""
    optimizer._accumulators_holder = {}


def report_overflow(scaler: Any, overflow: bool) -> None:
    """Tell Paddle's GradScaler of an overflow in any process: its `unscale_` looks for one in this process only."""
    _found_overflow(scaler)
    scaler._cache_found_inf = overflow


def inner_clip(clip: Any) -> Any:
    """Return the gradient clip inside the one of `fleet`."""
    return getattr(clip, "_clip", clip)


def forget_checkpoint(folder: str) -> None:
    """Have `paddle.distributed.load_state_dict` list the files of a folder anew: another checkpoint may be there."""
    module = importlib.import_module(paddle.distributed.load_state_dict.__module__)
    getattr(module, "PATH_TO_CHECKPOINT_FILES", {}).pop(folder, None)


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
