"""Tensors, networks, and execution modes."""

import functools
import os
from typing import Any

import paddle

from .._messages import wrong_type
from .private_names import EVERY, FUSED, SAVING, attribute, lazy, part

# fmt: off
__all__ = [
    "add_", "assign_out", "bump_version", "bytes_before", "bytes_behind", "checked_model", "clip", "divide_",
    "dtype_name", "flags", "grad_of", "graph_value", "in_to_static_mode", "is_allocated", "is_float64", "local_shape",
    "matmul", "mean_over", "minimum", "multiply_", "own_parameters", "run_untranslated", "scale", "scale_",
    "share_memory", "slice_of", "square_sum", "stack", "state_dtype", "sublayers", "subtract_", "sum_over", "unstack",
    "version_of", "view_of", "where",
]
# fmt: on

_TENSOR, _NETWORK = "paddle.Tensor", "paddle.nn.Layer"
_GRAPH = "Static graphs"

grad_of = part(_TENSOR, "_grad_ivar", EVERY)  # None without a gradient
slice_of = part(_TENSOR, "_slice", "Sharding version 2")  # (tensor, begin, end), a view
is_allocated = part(_TENSOR, "_is_initialized", EVERY)
local_shape = attribute(_TENSOR, "_local_shape", SAVING)  # the local shape of a DistTensor
bytes_behind = part(_TENSOR, "_holder_size", FUSED)  # size of a tensor's allocation
bytes_before = part(_TENSOR, "_offset", FUSED)  # in the allocation, before the first element
version_of = part(_TENSOR, "_inplace_version", FUSED)  # number of in-place changes; the public property is slow
bump_version = part(_TENSOR, "_bump_inplace_version", FUSED)
view_of = part("paddle._C_ops", "view_shape", FUSED)  # (tensor, shape), which `detach` would not keep
share_memory = part(_TENSOR, "_share_buffer_to", EVERY)  # (tensor, other): other shares the tensor's memory
# operations without Paddle's checks in Python, which are slower than a small tensor's arithmetic
stack = part("paddle._C_ops", "stack", EVERY)  # (tensors, axis)
unstack = part("paddle._C_ops", "unbind", EVERY)  # (tensor, axis)
matmul = part("paddle._C_ops", "matmul", EVERY)  # (matrices, others, whether to transpose the first, the others)
clip = part("paddle._C_ops", "clip", EVERY)  # (tensor, least, most)
minimum = part("paddle._C_ops", "minimum", EVERY)  # NaN if either is
where = part("paddle._C_ops", "where", EVERY)  # (condition, value if true, value if false)
mean_over = part("paddle._C_ops", "mean", EVERY)  # (tensor, axes, whether to keep the axes)
sum_over = part("paddle._C_ops", "sum", EVERY)  # (tensor, axes, dtype, whether to keep the axes)
add_ = part("paddle._C_ops", "add_", EVERY)  # (tensor that becomes the sum, other), as the next three
subtract_ = part("paddle._C_ops", "subtract_", EVERY)
multiply_ = part("paddle._C_ops", "multiply_", EVERY)
divide_ = part("paddle._C_ops", "divide_", EVERY)
scale_ = part("paddle._C_ops", "scale_", EVERY)  # (tensor that becomes x * factor + number, factor, number, True)
scale = part("paddle._C_ops", "scale", EVERY)
assign_out = part("paddle._C_ops", "assign_out_", EVERY)  # `paddle.assign` without its checks
_squared_norm = part("paddle._C_ops", "squared_l2_norm", EVERY)

sublayers = attribute(_NETWORK, "_sub_layers", "Layer maps")  # name -> Layer or None, a shared one under each name
own_parameters = attribute(_NETWORK, "_parameters", "Layer maps")  # name -> Parameter or None, without sublayers'

in_to_static_mode = part("paddle.base.dygraph.base", "in_to_static_mode", FUSED)
flags = functools.lru_cache(None)(part("paddle.base.core", "globals", FUSED))  # `paddle.get_flags` takes 7 us
graph_value = lazy("paddle.pir.Value", _GRAPH)
_data_type = lazy("paddle.base.core.DataType", _GRAPH)
_graph_dtype = lazy("paddle.pir.core.convert_np_dtype_to_dtype_", _GRAPH)
_in_pir_mode = lazy("paddle.framework.in_pir_mode", _GRAPH)


def square_sum(tensor: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of the squares of a tensor, shape []; in dygraph without a tensor of squares."""
    return view_of(_squared_norm(tensor), []) if paddle.in_dynamic_mode() else (tensor * tensor).sum()


def is_float64(tensor: paddle.Tensor) -> bool:
    """Return whether a tensor, or a variable of a graph, is of type float64."""
    dtype = tensor.dtype
    return dtype == paddle.float64 or bool(not paddle.in_dynamic_mode() and dtype == _data_type().FLOAT64)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of Paddle or NumPy, such as "float32"."""
    return str(dtype).rpartition(".")[2]


def state_dtype(dtype: Any) -> Any:
    """Return a dtype in the form that `new_state` takes in the present mode."""
    return _graph_dtype()(dtype_name(dtype)) if _in_pir_mode()() else dtype


def checked_model(model: Any, argument: str = "model") -> paddle.nn.Layer:
    """Return `model`; raise TypeError unless it is a `paddle.nn.Layer`."""
    if not isinstance(model, paddle.nn.Layer):
        raise wrong_type(model, argument, "a paddle.nn.Layer")
    return model


@functools.cache
def run_untranslated() -> None:
    """Exclude this package from `paddle.jit.to_static`, as Paddle excludes its own code.

    The bytecode translator would enter the optimizer and fail there, on `super()` of a `super()`. Its import takes a
    third of this package's, so the first optimizer calls this function.
    """
    try:
        from paddle.jit.sot.opcode_translator import skip_files
    except ImportError:  # this Paddle has no translator, or has moved it
        return
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    skip_files.skip_file_names.add(package + os.sep)
    paddle.framework.core.eval_frame_skip_file_prefix(tuple(skip_files.skip_file_names))
