"""Temporary."""
from ._paddle import *  # noqa
from ._paddle.optimizers import *
from ._paddle import flags, is_float64, dtype_name, flatten_groups, is_sharded, parameters_of, square_sum, topology
from .layers.model_parameters import name_before_copy
