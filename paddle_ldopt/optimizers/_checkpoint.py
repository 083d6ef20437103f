"""An optimizer's state as Paddle's distributed checkpoints take it: every tensor with its place in the whole.

`paddle.distributed.save_state_dict` and `load_state_dict` move such a dict between any two layouts. The keys are
structured names, as in Paddle's own AdamW: "<parameter>.<state>_0", and "<parameter>.w_0" for its float32 master.
"""

import math
from typing import Any

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from ..arguments import shown
from ..hooks import parameters_of

__all__ = ["COUNTER", "ShardedStateMixin", "check_loadable", "create_state"]

_ANY = np.zeros(0)
COUNTER = "beta1_pow_acc"  # every optimizer has it: Adam's power, or the steps of `base.STEP`


def check_loadable(optimizer, state_dict):
    """Raise TypeError or ValueError if Paddle's `set_state_dict` would fail over a state, or break off within it."""
    if not isinstance(state_dict, dict) or not all(isinstance(key, str) for key in state_dict):
        raise TypeError(
            f"`state_dict` must be a dict with names as keys. Received: state_dict of type {type(state_dict).__name__}"
        )
    for key in ("master_weights", "LR_Scheduler"):
        if not isinstance(state_dict.get(key, {}), dict):
            raise TypeError(f"'{key}' of `state_dict` must be a dict. Received: {shown(state_dict[key])}")
    schedule, given = optimizer._learning_rate, state_dict.get("LR_Scheduler")
    if isinstance(schedule, LRScheduler) and (given or not isinstance(schedule, LambdaDecay)):
        schedule.state_keys()
        missing = [key for key in schedule.keys if key not in (given or {})]
        if missing:
            raise ValueError(
                f"`state_dict` must have the state of the optimizer's {type(schedule).__name__} as 'LR_Scheduler'. "
                f"Received: a state without {missing}"
            )
    prefix = f"{optimizer._name}_" if optimizer._name else ""
    for param in parameters_of(optimizer):
        for state_name in (*optimizer.state_kinds(param), COUNTER):
            key = f"{param.name}_{prefix}{state_name}_0"
            if not isinstance(state_dict.get(key, _ANY), (paddle.Tensor, np.ndarray)):
                raise TypeError(f"`state_dict` must hold Tensors. Received: {shown(state_dict[key])} as '{key}'")
    for values in optimizer._accumulators.values():
        for value in values.values() if paddle.in_dynamic_mode() else ():
            found = state_dict.get(value.name)
            if found is None:
                raise ValueError(f"`state_dict` lacks what the optimizer has. Received: no '{value.name}'")
            if _form(found) != _form(value):
                raise ValueError(
                    f"`state_dict` is of another optimizer or model: '{value.name}' must be {_form(value)}. "
                    f"Received: {_form(found)}"
                )


def _form(value):
    return f"{str(value.dtype).rpartition('.')[2]} of shape {list(value.shape)}"


class ShardedStateMixin:
    """What `paddle.distributed.save_state_dict` asks of an optimizer."""

    def sharded_state_dict(self, model_sharded_state_dict, pieces=None):
        """Return key -> ShardedWeight of all state and masters; what is not there yet is created, to be loaded into.

        `paddle_ldopt.parallel.save_checkpoint` and `load_checkpoint` do the rest, under every layout.

        Args:
            model_sharded_state_dict (dict[str, ShardedWeight]): what ``model.sharded_state_dict()`` gives.
            pieces (dict[str, tuple[int, int]], optional): ``param.name`` -> the range of the flattened parameter that
                is here, where a wrapper has cut it; what is not named has nothing here.

        Raises:
            ValueError: a parameter that the model's dict does not name, or that is here in pieces of unknown place.
        """
        return _sharded_state(self, model_sharded_state_dict, pieces)

    _parameter_list: Any
    counts_steps = True  # whether the state under `COUNTER` is a number of steps

    def state_layout(self, param):
        """Return state name -> (dtype, shape) in which a parameter's state is stored."""
        raise NotImplementedError

    def initial_state(self, param, name):
        """Return the number that a state is full of before the first update."""
        return 0.0

    def fixed_options(self):
        """Return the arguments that change the rule, or what it stores, and that no parameter group overrides."""
        return {}

    def state_kinds(self, param):
        """Return state name -> "element" (shaped like the parameter), "row", "column" (means of those) or "scalar"."""
        raise NotImplementedError


def _sharded_state(optimizer, model_sharded_state_dict, pieces):
    keys: dict = {}
    for key in sorted(model_sharded_state_dict):  # of tied parameters the first name, as Paddle's AdamW
        keys.setdefault(model_sharded_state_dict[key].local_tensor.name, key)
    params = [p for p in parameters_of(optimizer) if not p.stop_gradient and p._is_initialized()]
    unknown = [param.name for param in params if param.name not in keys]
    if unknown:
        raise ValueError(
            "`model_sharded_state_dict` must name every parameter of the optimizer: give that of its model. "
            f" Received: nothing for '{unknown[0]}' ({len(unknown)} of {len(params)})"
        )
    create_state(optimizer, [p for p in params if optimizer.layerwise_ratio(p) != 0.0])
    masters, prefix = optimizer._master_weights, f"{optimizer._name}_" if optimizer._name else ""
    out = {}
    for param in params:
        key = keys[param.name]
        weight, piece = model_sharded_state_dict[key], None if pieces is None else pieces.get(param.name)
        if pieces is not None and piece is None:
            continue  # padding alone
        owner = masters.get(param.name, param).name
        kinds = {**optimizer.state_kinds(param), COUNTER: "scalar"}
        held = {name: values[owner] for name, values in optimizer._accumulators.items() if owner in values}
        for name, value in held.items():
            state_name = name[len(prefix) :]
            out[f"{key}.{state_name}_0"] = _placed(f"{key}.{state_name}_0", value, kinds[state_name], weight, piece)
        if param.name in masters:
            out[f"{key}.w_0"] = _placed(f"{key}.w_0", masters[param.name], "element", weight, piece)
    return out


def create_state(optimizer, params):
    """Create the state that the first step would create, so that there is something to load into."""
    with paddle.no_grad():
        optimizer.helper = LayerHelper(type(optimizer).__name__)
        block = paddle.base.framework.default_main_program().global_block()
        optimizer._create_accumulators(block, params)


def _placed(key, value, kind, weight, piece):
    """Return the ShardedWeight of a state of the parameter that `weight` describes."""
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

    places = [tuple(place) for place in (weight.local_shape, weight.global_shape, weight.global_offset)]
    if kind == "scalar" or not places[0]:
        return ShardedWeight(key, value, tuple(value.shape), tuple(value.shape), (0,) * len(value.shape))
    if kind == "element" and piece is not None:
        begin, end = piece
        if value.shape[0] > end - begin:
            value = value._slice(0, end - begin)  # without the padding; it shares memory, to be loaded into
        _check_size(value, key, end - begin)
        return ShardedWeight(key, value, *places, is_flattened=True, flattened_range=slice(begin, end))
    if kind != "element":  # of the whole parameter, in every process
        shape = places[1][:-1] if kind == "row" else (*places[1][:-2], places[1][-1])
        places = [shape, shape, (0,) * len(shape)]
    _check_size(value, key, math.prod(places[0]))
    return ShardedWeight(key, value, *places)


def _check_size(value, key, size):
    if value.size != size:
        raise ValueError(
            f"The state '{key}' belongs to a piece of the parameter whose place is unknown here: save with "
            "`paddle_ldopt.parallel.save_checkpoint`, which asks the wrapper. "
            f"Received: {value.size} elements, not {size}"
        )
