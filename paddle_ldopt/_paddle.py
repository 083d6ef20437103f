"""The one door to what Paddle and PaddleNLP do not document: every private name that this package touches is here.

Each is declared with its owner and the feature that needs it. A Paddle in which one has moved can still be imported:
using the feature then raises `MovedError`, which names both. tests/test_paddle.py looks for every one of them. Seen in
Paddle 3.1, 3.2 and 3.3. Methods that a subclass of Paddle's classes overrides, and their `super()` calls, stand in the
subclass. The sections: declaring, optimizers, rates, tensors and modes, fleet, Trainer, wrappers.
"""

import contextlib
import functools
import importlib
import inspect
import math
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any, Callable

import paddle
from paddle.distributed import fleet

from ._messages import wrong_type

# ---- declaring

PRIVATE: list[tuple[str, str, str]] = []  # (owner, name, feature) of all that is declared below; name "" is the owner


class MovedError(RuntimeError):
    """A private part of Paddle is not where it was, so a feature is not available."""

    def __init__(self, owner: str, name: str, feature: str) -> None:
        super().__init__(
            f"{feature} is not available: Paddle {paddle.__version__} has moved a private part that it needs. Use "
            f"Paddle 3.1 to 3.3, or a newer paddle_ldopt. Received: no {owner}{'.' if name else ''}{name}"
        )


def _attribute(owner: str, name: str, feature: str) -> Callable[[Any], Any]:
    """Return a getter of an attribute that instances of `owner` have."""
    PRIVATE.append((owner, name, feature))

    def get(instance: Any) -> Any:
        try:
            return getattr(instance, name)
        except AttributeError:
            raise MovedError(owner, name, feature) from None

    return get


def _setting(owner: str, name: str, feature: str) -> Callable[[Any], Any]:
    """Return a getter of an attribute of `owner` that is None where another class has no such attribute."""
    PRIVATE.append((owner, name, feature))
    return lambda instance: getattr(instance, name, None)


def _part(owner: str, name: str, feature: str) -> Callable[..., Any]:
    """Return `owner.name`, such as a method to call with an instance; if there is none, what raises when called."""
    PRIVATE.append((owner, name, feature))
    try:
        return getattr(_object(owner), name)
    except (AttributeError, ImportError):

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise MovedError(owner, name, feature)

        return missing


def _lazy(path: str, feature: str) -> Callable[[], Any]:
    """Return a function that returns the class or module at a dotted path: it is imported at the first call."""
    PRIVATE.append((path, "", feature))

    @functools.lru_cache(None)
    def get() -> Any:
        try:
            return _object(path)
        except (AttributeError, ImportError):
            raise MovedError(path, "", feature) from None

    return get


def _object(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ImportError:
        if not module:
            raise
        return getattr(_object(module), name)


OPTIMIZER, TENSOR, NETWORK = "paddle.optimizer.Optimizer", "paddle.Tensor", "paddle.nn.Layer"
_ADAMW, _LAMB = "paddle.optimizer.AdamW", "paddle.optimizer.Lamb"
_FLEET = "paddle.distributed.fleet"
_META, _DYGRAPH = f"{_FLEET}.meta_parallel", f"{_FLEET}.meta_optimizers.dygraph_optimizer"
_SHARDING, _UTILS = f"{_META}.sharding", f"{_FLEET}.utils"
_EVERY, _FUSED = "Every optimizer", "The fused step (`fused=False` does without it)"
_STEP, _CHECKPOINT = "The pipeline training step", "Saving for another layout"

# ---- optimizers

accumulators = _attribute(OPTIMIZER, "_accumulators", _EVERY)  # state -> param.name -> Tensor
waiting_state = _attribute(OPTIMIZER, "_accumulators_holder", "Loading an optimizer")  # loaded, of no step yet
with_state = _attribute(OPTIMIZER, "_already_create_accumulator", _EVERY)  # names of parameters
masters = _attribute(OPTIMIZER, "_master_weights", _EVERY)  # param.name -> float32 Tensor
parameter_list = _attribute(OPTIMIZER, "_parameter_list", _EVERY)  # of this process; flat or groups
param_groups = _attribute(OPTIMIZER, "_param_groups", _EVERY)
grad_clip = _attribute(OPTIMIZER, "_grad_clip", "Gradient clipping")
state_prefix = _attribute(OPTIMIZER, "_name", _EVERY)  # None or the argument `name`
new_state = _attribute(OPTIMIZER, "_add_accumulator", _EVERY)  # (state name, param, fill_value=, ...)
new_master = _attribute(OPTIMIZER, "_create_master_weight", _EVERY)  # (param) -> Tensor
state_getter = _attribute(OPTIMIZER, "_get_accumulator_master", _EVERY)  # (state name, param) -> Tensor
is_low_precision = _attribute(OPTIMIZER, "_is_dtype_fp16_or_bf16", _EVERY)
weight_decay_fun = _attribute(_ADAMW, "_apply_decay_param_fun", _EVERY)
keeps_masters = _attribute(_ADAMW, "_multi_precision", _EVERY)
_auxiliary = _attribute(OPTIMIZER, "_get_auxiliary_var", _EVERY)
_create_accumulators = _attribute(OPTIMIZER, "_create_accumulators", _EVERY)
_layer_helper = _lazy("paddle.base.layer_helper.LayerHelper", _EVERY)


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


def create_state(optimizer: Any, params: list[Any]) -> None:
    """Create the state that the first step would create, so that there is something to load or to step into."""
    with paddle.no_grad():
        optimizer.helper = _layer_helper()(type(optimizer).__name__)
        _create_accumulators(optimizer)(paddle.static.default_main_program().global_block(), params)


@contextlib.contextmanager
def waiting_state_as(optimizer: Any, held: dict[str, Any]) -> Iterator[None]:
    """Let `held` be the state that was loaded for parameters without a step yet."""
    before, optimizer._accumulators_holder = optimizer._accumulators_holder, held
    try:
        yield
    finally:
        optimizer._accumulators_holder = before


def drop_waiting_state(optimizer: Any) -> None:
    """Forget the state that was loaded and not yet assigned to its parameters."""
    optimizer._accumulators_holder = {}


def flatten_groups(parameters: Any) -> list[Any]:
    """Return a plain list of the parameters in a list of Tensors or of parameter groups."""
    out: list[Any] = []
    for item in parameters:
        params = item["params"] if isinstance(item, dict) else item
        out.extend([params] if hasattr(params, "stop_gradient") else params)
    return out


def groups_by_name(optimizer: Any) -> dict[str, dict[str, Any]]:
    """Return, by the name of each of the optimizer's parameters, the group that it is in, {} if it is in none."""
    found: dict[str, dict[str, Any]] = {}
    for item in param_groups(optimizer) or []:
        grouped = isinstance(item, dict)
        found.update((param.name, item if grouped else {}) for param in (item["params"] if grouped else [item]))
    return found


def stand_in(optimizer: Any, **attributes: Any) -> Any:
    """Return one of the same class, without wrapper, that shares the state and has attributes of its own.

    A reader can ask it without a trace: attributes that the reader, or the code of the class, sets on it are its own.
    """
    other = object.__new__(type(optimizer))
    for name, value in dict(vars(optimizer)).items():  # a copy of the dict: another thread may add to it
        bound = isinstance(value, types.MethodType) and value.__self__ is optimizer
        vars(other)[name] = types.MethodType(value.__func__, other) if bound else value
    vars(other).update(attributes)
    return other


def is_called_by(name: str) -> bool:
    """Return whether the function that asks was called by one of this name.

    DygraphShardingOptimizerV2.sharded_state_dict gets its state from `state_dict` like everybody else, and places rows
    and columns wrongly: nothing but its name tells that it is the one who asks.
    """
    return sys._getframe(2).f_code.co_name == name


# ---- rates, schedules and decay of an optimizer

_READING = "Reading the rate of each parameter"
rate_source = _attribute(OPTIMIZER, "_learning_rate", _EVERY)  # a float or the LRScheduler
rate_factor = _attribute(OPTIMIZER, "_create_param_lr", _EVERY)  # ((param, grad)) -> the rate, a Tensor
global_rate = _attribute(OPTIMIZER, "_global_learning_rate", _EVERY)  # () -> Tensor
create_rate = _attribute(OPTIMIZER, "_create_global_learning_rate", _FUSED)
ratio_in_kernel = _attribute(_ADAMW, "_lr_ratio", "AdamWDL")  # None, or parameter -> ratio
PRIVATE.append((OPTIMIZER, "_learning_rate_map", "Reading a schedule ahead"))
PRIVATE.append((OPTIMIZER, "_append_optimize_multi_tensor_op", _READING))
PRIVATE.append(("paddle.optimizer.lr.LRScheduler", "_var_name", "Schedules that follow a metric"))

_DECAY = "The weight decay in layer tables"
_decayed_names = _setting(_ADAMW, "_apply_decay_param_fun", _DECAY)
_not_decayed = _setting(_LAMB, "_exclude_from_weight_decay_fn", _DECAY)
_adamw_decay = _setting(_ADAMW, "_weight_decay", _DECAY)
_lamb_decay = _setting(_LAMB, "_lamb_weight_decay", _DECAY)
_momentum_decay = _setting("paddle.optimizer.Momentum", "_regularization_coeff", _DECAY)
_coefficient = _setting("paddle.regularizer.L2Decay", "_coeff", _DECAY)


def set_rate_source(optimizer: Any, source: Any) -> None:
    """Give an optimizer another schedule, and no variable of the one before; no code of its class is called."""
    vars(optimizer).update(_learning_rate=source, _learning_rate_map={})


def start_without_step(schedule: Any) -> None:
    """Set what the constructor of Paddle's `LRScheduler` sets beside its documented attributes; it also steps."""
    schedule._var_name = None


def rate_parts(optimizer: Any, params: list[Any]) -> dict[str, tuple[float, float]]:
    """Return ``param.name`` -> (factor, own) of the rate factor * optimizer's + own that a step would use."""
    if not asks_for_rates(optimizer.__class__):  # its own rate for all, whatever groups say
        return {param.name: (1.0, 0.0) for param in params}
    other, rates = stand_in(optimizer, _lr_ratio=None), []  # AdamWDL has a ratio set during a step on a GPU
    for rate in (0.0, 1.0):  # a rate of its own (a Tensor in `optimize_attr`, "lr" of a group) shows at 0
        tensor = paddle.to_tensor(rate, "float64", paddle.CPUPlace())  # to read it waits for no device
        vars(other)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # the method of the class: a function set on the instance asks the live object
            rates.append([float(type(other)._create_param_lr(other, (param, None))) for param in params])
    return {param.name: (one - zero, zero) for param, zero, one in zip(params, *rates)}


@functools.lru_cache(maxsize=128)
def asks_for_rates(cls: Any) -> bool:
    """Return whether the step of an optimizer class asks `_create_param_lr` for the rate of each parameter.

    The names in the code that `step` can reach tell. An override hides the overridden method unless it calls it.
    """
    ahead, seen = [("step", 0)], set()
    while ahead:
        name, start = ahead.pop()
        owners = [i for i, base in enumerate(cls.__mro__) if i >= start and name in vars(base)]
        if not owners or (name, owners[0]) in seen or name == "_append_optimize_multi_tensor_op":
            continue  # only Adam and Momentum of Paddle take the last: the other way must ask too
        seen.add((name, owners[0]))
        held = vars(cls.__mro__[owners[0]])[name]
        mentioned = _names_in(getattr(held, "__func__", held))
        if mentioned & {"_create_param_lr", "rate_factor"}:  # ours has the door's name for it
            return True
        ahead += [(other, owners[0] + 1 if other == name else 0) for other in mentioned]
    return False


def _names_in(function: Any, seen: tuple[Any, ...] = ()) -> set[str]:
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


def decays_weights(optimizer: Any, param: Any, group: dict[str, Any]) -> bool:
    """Return whether an optimizer of Paddle decays the weights of `param`, in `group`, by any of its options for it."""
    chosen, excluded = _decayed_names(optimizer), _not_decayed(optimizer)
    if (chosen is not None and not chosen(param.name)) or (excluded is not None and excluded(param)):
        return False
    for decay in (_adamw_decay(optimizer), _lamb_decay(optimizer)):
        if isinstance(decay, (int, float)):
            return group.get("weight_decay", decay) != 0
    regularizer = param.regularizer or optimizer.regularization  # L1Decay or L2Decay, added to the gradient
    return bool(_coefficient(regularizer) or _momentum_decay(optimizer))


# ---- tensors, networks and modes

grad_of = _part(TENSOR, "_grad_ivar", _EVERY)  # None where there is no gradient
slice_of = _part(TENSOR, "_slice", "Sharding version 2")  # (tensor, begin, end), a view
is_allocated = _part(TENSOR, "_is_initialized", _EVERY)
local_shape = _attribute(TENSOR, "_local_shape", _CHECKPOINT)  # of a DistTensor
bytes_behind = _part(TENSOR, "_holder_size", _FUSED)  # of the allocation that a tensor is in
bytes_before = _part(TENSOR, "_offset", _FUSED)  # those of them before its first element
version_of = _part(TENSOR, "_inplace_version", _FUSED)  # how often it was changed in place; the public property is slow
bump_version = _part(TENSOR, "_bump_inplace_version", _FUSED)
SHARDS_ITSELF = "_need_shard_auto"  # in the `__dict__` of a parameter that Paddle's step shards
view_of = _part("paddle._C_ops", "view_shape", _FUSED)  # (tensor, shape), which `detach` would not keep
share_memory = _part(TENSOR, "_share_buffer_to", _EVERY)  # (tensor, other): other's memory is the tensor's from then on
# operations without the checks that Paddle does in Python, which take longer than a small tensor's arithmetic
stack = _part("paddle._C_ops", "stack", _EVERY)  # (tensors, axis)
unstack = _part("paddle._C_ops", "unbind", _EVERY)  # (tensor, axis)
sum_over = _part("paddle._C_ops", "sum", _EVERY)  # (tensor, axes, dtype, whether to keep the axes)
add_to = _part("paddle._C_ops", "add_", _EVERY)  # (tensor that becomes the sum, other), as the next two
multiply_by = _part("paddle._C_ops", "multiply_", _EVERY)
divide_by = _part("paddle._C_ops", "divide_", _EVERY)
assign_out = _part("paddle._C_ops", "assign_out_", _EVERY)  # `paddle.assign` without its checks
_squared_norm = _part("paddle._C_ops", "squared_l2_norm", _EVERY)

sublayers = _attribute(NETWORK, "_sub_layers", "Layer maps")  # name -> Layer or None, a shared one under each name
own_parameters = _attribute(NETWORK, "_parameters", "Layer maps")  # name -> Parameter or None, without sublayers'

in_to_static_mode = _part("paddle.base.dygraph.base", "in_to_static_mode", _FUSED)
flags = functools.lru_cache(None)(_part("paddle.base.core", "globals", _FUSED))  # `paddle.get_flags` takes 7 us
graph_value = _lazy("paddle.pir.Value", "Static graph mode")
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


def checked_model(model: Any, argument: str = "model") -> Any:
    """Return `model` if it is a `paddle.nn.Layer`, raise TypeError otherwise."""
    if not isinstance(model, paddle.nn.Layer):
        raise wrong_type(model, argument, "a paddle.nn.Layer")
    return model


def _run_untranslated() -> None:
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

# ---- fleet: its topology, engines, and sharding

_ENGINE, _HYBRID = f"{_META}.PipelineParallel", f"{_DYGRAPH}.HybridParallelOptimizer"
_ANY_ENGINE = f"{_META}.meta_parallel_base.MetaParallelBase"
pipeline_engine = _lazy(_ENGINE, _STEP)
pipeline_layer = _lazy(f"{_META}.PipelineLayer", _STEP)
sharding_engine = _lazy(f"{_META}.ShardingParallel", _STEP)
tensor_engine = _lazy(f"{_META}.TensorParallel", _STEP)
hybrid_optimizer = _lazy(_HYBRID, _STEP)
all_reduce_gradients = _lazy(f"{_UTILS}.hybrid_parallel_util.fused_allreduce_gradients_with_group", _STEP)
hybrid_parameters = _lazy(f"{_UTILS}.hybrid_parallel_util.obtain_optimizer_parameters_list", _STEP)

hybrid_group = _attribute(_ANY_ENGINE, "_hcg", _STEP)
engine_layers = _attribute(_ANY_ENGINE, "_layers", _STEP)
loss_functions = _attribute(f"{_META}.PipelineLayer", "_loss_fn", _STEP)
has_dynamic_shape = _attribute(_ENGINE, "_dynamic_shape", _STEP)
delays_scale = _attribute(_ENGINE, "_delay_scale_loss", _STEP)  # losses are not divided by the micro-batches' number
prepare_training = _attribute(_ENGINE, "_prepare_training", _STEP)
sharded_optimizer = _attribute(_HYBRID, "_inner_opt", _STEP)
reduced_step = _attribute(_HYBRID, "_step", _STEP)  # the step with gradients that are reduced already
_backward_step = _attribute(_ENGINE, "_backward_step", _STEP)
_found_overflow = _attribute("paddle.amp.AmpScaler", "_cache_found_inf", _STEP)
_number_of_stages = _attribute(f"{_META}.PipelineLayer", "_num_stages", "Layer-wise rates in a pipeline")

_V2 = f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"
_FUSION = f"{_UTILS}.tensor_fusion_helper"
_VIEW = f"{_FUSION}.ShardingGradView"
sharding_v1 = _lazy(f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizer", _CHECKPOINT)
sharding_v2 = _lazy(_V2, _CHECKPOINT)
slices = _attribute(_V2, "_slice_params", _CHECKPOINT)  # param.name -> the piece that is in this process
collect_buffers = _attribute(_V2, "_collect_comm_buffers", _CHECKPOINT)
assign_slice_gradients = _attribute(_V2, "_assign_slice_grad", _STEP)
_buffers = _attribute(_V2, "_comm_buffer_list", _CHECKPOINT)
_views = _attribute(f"{_FUSION}.FusedCommBuffer", "_sharding_param_grad_view", _CHECKPOINT)
_view_begin = _attribute(_VIEW, "_param_begin", _CHECKPOINT)  # both in the buffer, like the index of the parameter
_view_end = _attribute(_VIEW, "_param_end", _CHECKPOINT)
_view_index = _attribute(_VIEW, "_index", _CHECKPOINT)
_view_param = _attribute(_VIEW, "_param", _CHECKPOINT)


def topology() -> Any:
    """Return the communicate group of `fleet`, None if it was not started."""
    return getattr(fleet.fleet, "_hcg", None)


def sharding_setting(*names: str) -> Any:
    """Return the first of these settings that is on in the `sharding_configs` of `fleet`, None without sharding."""
    hcg = topology()
    if hcg is None or hcg.get_sharding_parallel_world_size() == 1:
        return None
    configs = fleet.fleet._user_defined_strategy.hybrid_configs["sharding_configs"]
    return next((name for name in names if getattr(configs, name)), None)


def weight_decay_fun_is_replaced(optimizer: Any) -> bool:
    """Return whether sharding version 1 has put a function for its buffers in place of `apply_decay_param_fun`."""
    module = getattr(_decayed_names(optimizer), "__module__", None)
    return topology() is not None and module == sharding_v1().__module__


def slice_ranges(optimizer: Any) -> dict[str, tuple[int, int]]:
    """Return ``param.name`` -> range of the flattened parameter here, and fill the slices as the first step would."""
    collect_buffers(optimizer)()
    ranges = {}
    for buffer in _buffers(optimizer):
        for name, view in _views(buffer).items():
            begin, end, index = _view_begin(view), _view_end(view), _view_index(view)
            if begin < end:
                view.fill_slice_param(slices(optimizer)[name])
                ranges[name] = (begin - index, min(end - index, math.prod(_view_param(view).shape)))
    return {name: (begin, end) for name, (begin, end) in ranges.items() if begin < end}


def overlaps(network: Any) -> list[str]:
    """Return the settings that are on by which an engine reduces gradients while it computes others."""
    names = ("dp_comm_overlap", "sharding_comm_overlap", "release_gradients")
    return [name for name in names if getattr(network, f"_{name}", False)]


def is_pipeline_engine(network: Any) -> bool:
    """Return whether `fleet` made an engine of a PipelineLayer: of stages or, since Paddle 3.3, for one process."""
    alone = any(cls.__name__ == "NoPipelineParallel" for cls in type(network).__mro__)
    return alone or isinstance(network, pipeline_engine())


def pipeline_of(model: Any) -> Any:
    """Return the `PipelineLayer` of several stages that a model is or wraps, None if it has none."""
    parts = [part for part in model.sublayers(include_self=True) if isinstance(part, pipeline_layer())]
    return next((part for part in parts if _number_of_stages(part) > 1), None)


def engine_with(engine: Any, loss: Any, forward: Any, guarded: Any) -> Any:
    """Return a pipeline engine that shares everything with `engine` but the loss function and the forward of its stage.

    `guarded` is given the backward step of a micro-batch and returns the one to call. The engine has hooks around its
    calls, and none that replaces a result. So that nothing is patched on the user's engine, the parts are replaced in
    subclasses whose instances share its attributes.
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

_reader_class = _lazy(
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterSingleProcess", "Raising the errors of a data set"
)
PRIVATE += [  # methods that ResumeMixin overrides
    ("paddlenlp.trainer.Trainer", name, "Resuming a Trainer")
    for name in ("_inner_training_loop", "_load_rng_state", "_maybe_log_save_evaluate", "_rotate_checkpoints")
    + ("_save_checkpoint", "_sorted_checkpoints")
]
PRIVATE.append(("paddlenlp.trainer.TrainingArguments", "should_load_sharding_stage1_model", "LdoptArgumentsMixin"))


def leave_out_frozen(optimizer: Any) -> None:
    """Leave an optimizer its trained parameters if sharding version 2 is on, which refuses to split frozen ones."""
    if sharding_setting("split_param") and not isinstance(param_groups(optimizer)[0], dict):  # it refuses groups itself
        trained = [param for param in parameter_list(optimizer) if not param.stop_gradient]
        # as Paddle does with the slices
        optimizer._parameter_list = optimizer._param_groups = trained


def telling(loader: Any) -> Any:
    """Return a DataLoader that raises the errors of its data set and collator; Paddle's own waits for ever instead.

    Without workers Paddle reads in a thread, and nothing tells who waits for a batch that this thread has ended by an
    error. A loader that iterates in its own way is returned as it is.
    """
    cls: Any = type(loader)
    if getattr(cls, "__iter__", None) is not paddle.io.DataLoader.__iter__ or loader.num_workers:
        return loader
    try:
        out = object.__new__(_telling_class(cls))
    except MovedError as error:
        warnings.warn(str(error), stacklevel=2)
        return loader
    vars(out).update(vars(loader))
    return out


@functools.lru_cache(None)
def _telling_class(cls: Any) -> Any:
    base: Any = _reader_class()

    class Reader(base):
        error = None

        def _thread_loop(self, *args: Any) -> None:
            try:
                super()._thread_loop(*args)
            except BaseException as error:
                self.error = error
                self._exit_thread_unexpectedly()  # wakes who waits, by a SystemError

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except SystemError as error:
                raise (self.error or error) from None

    return type(cls.__name__, (cls,), {"__iter__": lambda self: Reader(self)})


class NoticedArguments:
    """Arguments of a Trainer that notice its constructor, which calls `check_trainer` of theirs without knowing.

    A Trainer without our mixin would ignore our arguments without a word, and its constructor calls no method of its
    arguments. This property is what it reads in every version of PaddleNLP and PaddleFormers.
    """

    ldopt_served = False  # a Trainer with our mixin has taken them

    @property
    def should_load_sharding_stage1_model(self) -> Any:
        """The Trainer's own."""
        self.check_trainer()
        return super().should_load_sharding_stage1_model  # type: ignore[misc]

    def check_trainer(self) -> None:
        """Raise if the Trainer that is being made would ignore the arguments."""

    def print_config(self, *args: Any, **kwargs: Any) -> None:
        """Print as the Trainer's own, which reads every property as if it were a Trainer."""
        before, self.ldopt_served = self.ldopt_served, True
        try:
            super().print_config(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.ldopt_served = before

    def __getstate__(self) -> dict[str, Any]:  # a copy is for another Trainer
        return {key: value for key, value in vars(self).items() if key != "ldopt_served"}


# ---- wrappers of optimizers and networks

# attribute in which wrappers keep their optimizer -> one of these wrappers
_INNER = {
    "_inner_opt": f"{_FLEET}.meta_optimizers.HybridParallelOptimizer",  # and the others of `fleet` and `amp`
    "_optim": f"{_SHARDING}.group_sharded_optimizer_stage2.GroupShardedOptimizerStage2",
    "inner_optimizer": "paddle.incubate.LookAhead",
    "inner_opt": f"{_FLEET}.meta_optimizers.meta_optimizer_base.MetaOptimizerBase",  # static `fleet`
    "_optimizer": "paddle.incubate.asp.asp.OptimizerWithSparsityGuarantee",  # and static `amp`
}
# the same of networks
_INSIDE = {
    "_layers": "paddle.DataParallel",
    "_layer": f"{_SHARDING}.group_sharded_stage2.GroupShardedStage2",
}
# By name: not all are in every Paddle. MetaParallelBase is the base of tensor, pipeline, sharding and segment parallel.
_WRAPPERS = {"DataParallel", "MetaParallelBase", "MixPrecisionLayer"}
_WRAPPERS |= {"GroupShardedStage2", "GroupShardedStage3", "FullyShard"}
PRIVATE += [(owner, name, "Optimizers in wrappers") for name, owner in _INNER.items()]
PRIVATE += [(owner, name, "Networks in wrappers") for name, owner in _INSIDE.items()]


def wrappers(optimizer: Any) -> list[Any]:
    """Return an optimizer and the optimizers inside it, from the outermost wrapper to the optimizer itself."""
    found = [optimizer]
    while True:
        inner = [value for name in _INNER for value in [getattr(found[-1], name, None)] if value is not None]
        if not inner:
            return found
        found.append(inner[0])


def unwrap(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of `fleet` and `amp`, and inside LookAhead."""
    return wrappers(optimizer)[-1]


def may_have_cut(optimizer: Any) -> bool:
    """Return whether an optimizer is a wrapper of `fleet` or group sharding, which may have cut the parameters up."""
    return hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim")


def is_group_sharded(optimizer: Any) -> bool:
    """Return whether `group_sharded_parallel` (stages 2 and 3) has wrapped an optimizer."""
    return any(hasattr(wrapper, "_optim") for wrapper in wrappers(optimizer))


def check_wrapper_state(optimizer: Any) -> None:
    """Raise TypeError if checkpoints of the optimizer would lack the state that a wrapper of it keeps."""
    for wrapper in wrappers(optimizer)[:-1]:
        if not may_have_cut(wrapper):
            name = type(wrapper).__name__
            raise TypeError(
                f"{name} keeps state of its own, such as slow weights or masks, which a checkpoint of the optimizer "
                f"inside would lose: train without {name}, or save both states yourself. Received: optimizer={name}"
            )


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer in order, groups flattened; of a sharded one those of all ranks."""
    # within the wrapper for sharding are this rank's parameters only
    lists = [getattr(wrapper, "_parameter_list", None) or [] for wrapper in wrappers(optimizer)]
    return flatten_groups(max(lists, key=len))


def unwrap_model(model: Any) -> Any:
    """Return the network inside the wrappers of `fleet`, group sharding and `paddle.DataParallel`."""
    while any(cls.__name__ in _WRAPPERS and cls.__module__.startswith("paddle.") for cls in type(model).__mro__):
        inside = next((layer for key in _INSIDE for layer in [sublayers(model).get(key)] if layer), None)
        if inside is None:
            break
        model = inside
    return model
