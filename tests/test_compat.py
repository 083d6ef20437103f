"""Every private name of Paddle that the package uses is where it was; a new Paddle that moves one is told by name."""

import ast
import functools
import importlib
import inspect
import pathlib
import re

import paddle
import pytest

import paddle_ldopt

ROOT = pathlib.Path(paddle_ldopt.__file__).parent
FLEET = "paddle.distributed.fleet"
V2 = f"{FLEET}.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"
FUSION = f"{FLEET}.utils.tensor_fusion_helper"
# owner in Paddle or PaddleNLP -> the names that we read, call or override
PRIVATE = {
    "paddle.optimizer.Optimizer": "_accumulators _accumulators_holder _add_accumulator _add_param_group "
    "_already_create_accumulator _append_optimize_op _apply_optimize _create_accumulators _create_global_learning_rate "
    "_create_master_weight _create_param_lr _default_dict _get_accumulator_master _get_auxiliary_var "
    "_global_learning_rate _grad_clip _is_dtype_fp16_or_bf16 _learning_rate _master_weights _name _param_groups "
    "_parameter_list _set_auxiliary_var",
    "paddle.optimizer.AdamW": "_apply_decay_param_fun _multi_precision _weight_decay",
    "paddle.optimizer.Lamb": "_exclude_from_weight_decay_fn _lamb_weight_decay",
    "paddle.optimizer.Momentum": "_regularization_coeff",
    "paddle.regularizer.L2Decay": "_coeff",
    "paddle.optimizer.lr.LRScheduler": "_var_name",
    "paddle.Tensor": "_grad_ivar _is_initialized _local_shape _copy_to _share_buffer_to _slice",
    "paddle.nn.Layer": "_parameters _sub_layers",
    "paddle._C_ops": "adamw_ assign_out_ clip matmul mean minimum squared_l2_norm stack sum unbind where",
    "paddle.base.dygraph.base": "in_to_static_mode",
    "paddle.base.core": "globals _get_registered_phi_kernels",
    "paddle.base.core.Place": "_equals",
    "paddle.base.dygraph.tracer.Tracer": "_amp_level",
    "paddle.framework": "_dygraph_tracer",
    "paddle.base.framework": "EagerParamBase _dygraph_place_guard",
    "paddle.base.layer_helper": "LayerHelper",
    "paddle.pir": "Value",
    f"{FLEET}.Fleet": "_hcg _user_defined_strategy",
    f"{FLEET}.meta_parallel.meta_parallel_base.MetaParallelBase": "_hcg _layers",
    f"{FLEET}.meta_parallel.PipelineParallel": "_delay_scale_loss _dynamic_shape _prepare_training",
    f"{FLEET}.meta_parallel.PipelineLayer": "_loss_fn _num_stages",
    f"{FLEET}.meta_optimizers.dygraph_optimizer.HybridParallelOptimizer": "_inner_opt _step",
    f"{FLEET}.meta_parallel.sharding.group_sharded_optimizer_stage2.GroupShardedOptimizerStage2": "_optim",
    f"{FLEET}.meta_parallel.sharding.group_sharded_stage2.GroupShardedStage2": "_layer",
    f"{FLEET}.utils.hybrid_parallel_util": "fused_allreduce_gradients_with_group obtain_optimizer_parameters_list",
    V2: "_assign_slice_grad _collect_comm_buffers _comm_buffer_list _slice_params",
    f"{FUSION}.FusedCommBuffer": "_sharding_param_grad_view",
    f"{FUSION}.ShardingGradView": "_index _param _param_begin _param_end",
    "paddle.incubate.LookAhead": "inner_optimizer",
    "paddle.amp.AmpScaler": "_cache_found_inf",
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterSingleProcess": "_exit_thread_unexpectedly _thread_loop",
    "paddlenlp.trainer.Trainer": "_inner_training_loop _load_rng_state _maybe_log_save_evaluate _prepare_inputs "
    "_remove_unused_columns _rotate_checkpoints _save_checkpoint _sorted_checkpoints",
}
OF_PYTHON = {"_actions", "_replace", "_asdict", "_fields", "_getframe"}


def object_at(path):
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ImportError:
        return getattr(object_at(module), name)


@functools.cache
def source_of(cls):
    return "".join(inspect.getsource(base) for base in cls.__mro__[:-1] if base.__module__.startswith("paddle"))


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in PRIVATE.items() for name in names.split()]
)
def test_paddle_has_not_moved(owner, name):
    if owner.startswith("paddlenlp"):
        pytest.importorskip("paddlenlp")
    found = object_at(owner)
    if not hasattr(found, name):  # an attribute of instances: some method of the class sets it
        used = re.search(rf"\.{name}\b", source_of(found))
        assert used, f"Paddle {paddle.__version__} has moved {owner}.{name}"


def private_names(tree):
    """Return (the private names that a module reads, those that it defines)."""
    read, own = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            own.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.Attribute):
            read.add(node.attr)
    return {name for name in read if re.fullmatch(r"_[a-zA-Z]\w*", name)}, own


def test_every_private_name_is_listed():
    found = [private_names(ast.parse(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.py")]
    own = {name for _, names in found for name in names} | {path.stem for path in ROOT.rglob("*.py")}
    read = {name for names, _ in found for name in names}
    listed = {name for names in PRIVATE.values() for name in names.split()} | {"_C_ops"}
    assert read - own - OF_PYTHON <= listed
