"""Several processes: topology, engines and sharding of `fleet`."""

import contextlib
import importlib
import math
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.optimizer import Optimizer

from .._messages import refusal
from .optimizers import param_groups, parameter_list, weight_decay_fun
from .private_names import FLEET, SAVING, MovedError, attribute, lazy

# fmt: off
__all__ = [
    "all_reduce_gradients", "assign_slice_gradients", "check_own_gradients", "collect_buffers",
    "delays_scale", "engine_layers", "forget_checkpoint", "has_dynamic_shape", "hybrid_optimizer", "hybrid_parameters",
    "is_pipeline_engine", "is_sharded", "leave_out_frozen", "loss_functions", "other_loss_function",
    "overlaps",
    "pipeline_engine", "pipeline_layer", "pipeline_of", "prepare_training", "reduced_step", "report_overflow",
    "sharded_optimizer", "sharding_setting", "sharding_v1", "sharding_v2", "slice_ranges", "slices",
    "topology", "topology_of", "weight_decay_fun_is_replaced",
]
# fmt: on

_STEP = "The pipeline training step"
_META, _UTILS = f"{FLEET}.meta_parallel", f"{FLEET}.utils"
_DYGRAPH = f"{FLEET}.meta_optimizers.dygraph_optimizer"
_ENGINE, _HYBRID = f"{_META}.PipelineParallel", f"{_DYGRAPH}.HybridParallelOptimizer"
_ANY_ENGINE = f"{_META}.meta_parallel_base.MetaParallelBase"
pipeline_engine = lazy(_ENGINE, _STEP)
pipeline_layer = lazy(f"{_META}.PipelineLayer", _STEP)
_sharding_engine = lazy(f"{_META}.ShardingParallel", _STEP)
_tensor_engine = lazy(f"{_META}.TensorParallel", _STEP)
hybrid_optimizer = lazy(_HYBRID, _STEP)
all_reduce_gradients = lazy(f"{_UTILS}.hybrid_parallel_util.fused_allreduce_gradients_with_group", _STEP)
hybrid_parameters = lazy(f"{_UTILS}.hybrid_parallel_util.obtain_optimizer_parameters_list", _STEP)

_started_topology = attribute(f"{FLEET}.Fleet", "_hcg", _STEP, optional=True)  # set by `fleet.init`
_strategy = attribute(f"{FLEET}.Fleet", "_user_defined_strategy", _STEP)
_topology = attribute(_ANY_ENGINE, "_hcg", _STEP)
_overlaps = {
    "dp_comm_overlap": attribute(_ENGINE, "_dp_comm_overlap", _STEP, optional=True),
    "sharding_comm_overlap": attribute(_ENGINE, "_sharding_comm_overlap", _STEP, optional=True),
    "release_gradients": attribute(_ENGINE, "_release_gradients", _STEP, optional=True),
}
engine_layers = attribute(_ANY_ENGINE, "_layers", _STEP)
loss_functions = attribute(f"{_META}.PipelineLayer", "_loss_fn", _STEP)
has_dynamic_shape = attribute(_ENGINE, "_dynamic_shape", _STEP)
delays_scale = attribute(_ENGINE, "_delay_scale_loss", _STEP)  # losses are not divided by the number of micro-batches
prepare_training = attribute(_ENGINE, "_prepare_training", _STEP)
sharded_optimizer = attribute(_HYBRID, "_inner_opt", _STEP)
reduced_step = attribute(_HYBRID, "_step", _STEP)  # the step with reduced gradients
_found_overflow = attribute("paddle.amp.AmpScaler", "_cache_found_inf", _STEP)
_number_of_stages = attribute(f"{_META}.PipelineLayer", "_num_stages", "Layer-wise rates in a pipeline")

_V2 = f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"
_FUSION = f"{_UTILS}.tensor_fusion_helper"
_VIEW = f"{_FUSION}.ShardingGradView"
sharding_v1 = lazy(f"{_DYGRAPH}.dygraph_sharding_optimizer.DygraphShardingOptimizer", SAVING)
sharding_v2 = lazy(_V2, SAVING)
slices = attribute(_V2, "_slice_params", SAVING)  # param.name -> the shard in this process
collect_buffers = attribute(_V2, "_collect_comm_buffers", SAVING)
assign_slice_gradients = attribute(_V2, "_assign_slice_grad", _STEP)
_buffers = attribute(_V2, "_comm_buffer_list", SAVING)
_views = attribute(f"{_FUSION}.FusedCommBuffer", "_sharding_param_grad_view", SAVING)
_view_begin = attribute(_VIEW, "_param_begin", SAVING)  # both in the buffer, like the index of the parameter
_view_end = attribute(_VIEW, "_param_end", SAVING)
_view_index = attribute(_VIEW, "_index", SAVING)
_view_param = attribute(_VIEW, "_param", SAVING)


def topology() -> Any:
    """Return the hybrid communicate group of `fleet`, None before `fleet.init`."""
    return _started_topology(paddle.distributed.fleet.fleet)


def topology_of(network: paddle.nn.Layer) -> Any:
    """Return the hybrid communicate group of a network from `fleet`, None for another network."""
    engines = _sharding_engine(), _tensor_engine()
    return _topology(network) if is_pipeline_engine(network) or isinstance(network, engines) else None


def is_sharded() -> bool:
    """Return whether `fleet` was started with sharding."""
    hcg = topology()
    return hcg is not None and hcg.get_sharding_parallel_world_size() > 1


def sharding_setting(*names: str) -> Any:
    """Return the first enabled one of these settings in the `sharding_configs` of `fleet`, None without sharding."""
    if not is_sharded():
        return None
    configs = _strategy(paddle.distributed.fleet.fleet).hybrid_configs["sharding_configs"]
    return next((name for name in names if getattr(configs, name)), None)


def check_own_gradients(until: str) -> None:
    """Raise ValueError if the sharding of `fleet` fuses or reduces gradients earlier."""
    setting = sharding_setting("tensor_fusion", "comm_overlap")
    if setting:
        todo = f"set {setting}=False in the strategy's sharding_configs."
        raise refusal(ValueError, f"Each parameter must keep its own gradient until {until}: {todo}", **{setting: True})


def weight_decay_fun_is_replaced(optimizer: Optimizer) -> bool:
    """Return whether sharding version 1 has replaced `apply_decay_param_fun` by a function for its buffers."""
    module = getattr(weight_decay_fun(optimizer), "__module__", None)
    return topology() is not None and module == sharding_v1().__module__


def slice_ranges(optimizer: Optimizer) -> dict[str, tuple[int, int]]:
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


def overlaps(network: paddle.nn.Layer) -> list[str]:
    """Return the enabled settings that let an engine reduce gradients during backward."""
    return [name for name, is_enabled in _overlaps.items() if is_enabled(network)]


def is_pipeline_engine(network: paddle.nn.Layer) -> bool:
    """Return whether `fleet` made an engine of a PipelineLayer: of stages or, since Paddle 3.3, for one process."""
    alone = any(cls.__name__ == "NoPipelineParallel" for cls in type(network).__mro__)
    return alone or isinstance(network, pipeline_engine())


def pipeline_of(model: paddle.nn.Layer) -> Any:
    """Return the `PipelineLayer` of several stages in a model, None without one."""
    parts = [part for part in model.sublayers(include_self=True) if isinstance(part, pipeline_layer())]
    return next((part for part in parts if _number_of_stages(part) > 1), None)


@contextlib.contextmanager
def other_loss_function(layer: Any, loss: Any) -> Iterator[None]:
    """Replace the loss function of a PipelineLayer."""
    before, layer._loss_fn = loss_functions(layer), [loss]
    try:
        yield
    finally:
        layer._loss_fn = before


def report_overflow(scaler: Any, overflow: bool) -> None:
    """Tell Paddle's GradScaler of an overflow in any process; its `unscale_` only checks this process."""
    _found_overflow(scaler)
    scaler._cache_found_inf = overflow


def forget_checkpoint(folder: str) -> None:
    """Clear the list of files that `paddle.distributed.load_state_dict` keeps of a folder, which may have changed."""
    module = paddle.distributed.load_state_dict.__module__
    files = getattr(importlib.import_module(module), "PATH_TO_CHECKPOINT_FILES", None)
    if files is None:
        raise MovedError(module, "PATH_TO_CHECKPOINT_FILES", SAVING)
    files.pop(folder, None)


def leave_out_frozen(optimizer: Optimizer) -> None:
    """Remove frozen parameters from an optimizer under sharding version 2, which cannot split them."""
    # sharding itself refuses parameter groups
    if sharding_setting("split_param") and not isinstance(param_groups(optimizer)[0], dict):
        trained = [param for param in parameter_list(optimizer) if not param.stop_gradient]
        optimizer._parameter_list = optimizer._param_groups = trained  # as Paddle replaces parameters by slices
