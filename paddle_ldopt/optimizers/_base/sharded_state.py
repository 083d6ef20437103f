"""An optimizer's state as Paddle's distributed checkpoints take it: every tensor with its place in the whole.

`paddle.distributed.save_state_dict` and `load_state_dict` move such a dict between any two layouts. The keys are
structured names, as in Paddle's own AdamW: "<parameter>.<state>_0", and "<parameter>.w_0" for its float32 master.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from ..._checks import shown
from ..._paddle import parameters_of

__all__ = ["COUNTER", "COUNTERS", "ShardedStateMixin", "create_state", "loadable"]

_Base: Any = paddle.optimizer.Optimizer if TYPE_CHECKING else object
COUNTER = "beta1_pow_acc"  # every optimizer has it: Adam's power, or the steps of `base.STEP`
COUNTERS = (COUNTER, "beta2_pow_acc", "global_step")  # what some have beside it is as little negative or NaN


def loadable(optimizer, state_dict):
    """Return a state under the names that Paddle's `set_state_dict` looks for.

    Raises:
        TypeError, ValueError: Paddle would fail over the state, or break off within it.
    """
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
    if not paddle.in_dynamic_mode():
        return state_dict
    prefix = f"{optimizer._name}_" if optimizer._name else ""
    masters, waiting = state_dict.get("master_weights", {}), []
    for param in parameters_of(optimizer):
        if param.name not in optimizer._already_create_accumulator:
            master = masters.get(param.name) if optimizer._has_master(param) else param
            owner = getattr(master, "name", f"{param.name}_fp32_master_0")
            layout = optimizer.state_layout(param).items()
            waiting.append((param, master, {f"{owner}_{prefix}{name}_0": (name, form) for name, form in layout}))
    state_dict = _renumbered(
        state_dict, {*_live_names(optimizer), *(key for _, _, layout in waiting for key in layout)}
    )
    _check_live(optimizer, state_dict, prefix)
    _check_waiting(optimizer, state_dict, waiting)
    return state_dict


def _live_names(optimizer):
    return {value.name for values in optimizer._accumulators.values() for value in values.values()}


def _renumbered(state_dict, names):
    """Return a state under `names`, which may end in other numbers: Paddle counts a process's optimizers of a model."""
    alike: dict = {}
    for key in state_dict.keys() - names:
        alike.setdefault(key.rstrip("0123456789"), []).append(key)
    found = {name: alike.get(name.rstrip("0123456789"), ()) for name in names - state_dict.keys()}
    new = {keys[0]: name for name, keys in found.items() if len(keys) == 1}
    return {new.get(key, key): value for key, value in state_dict.items()}


def _check_live(optimizer, state_dict, prefix):
    """Raise TypeError or ValueError if the state lacks a tensor that the optimizer has, or has another form of it."""
    for name, values in optimizer._accumulators.items():
        for value in values.values():
            if value.name not in state_dict:
                raise ValueError(f"`state_dict` lacks what the optimizer has. Received: no '{value.name}'")
            form = _form(value.dtype, value.shape)
            _check_state(value.name, state_dict[value.name], form, name[len(prefix) :] in COUNTERS)


def _check_waiting(optimizer, state_dict, waiting):
    """Raise if what waits for a parameter's first update is incomplete, malformed, or of other parameters."""
    left = set(state_dict) - {"master_weights", "LR_Scheduler"}
    known, missing = _live_names(optimizer), []
    for param, master, layout in waiting:
        given = layout.keys() & left
        for key in given:
            name, form = layout[key]
            _check_state(key, state_dict[key], _form(*form), name in COUNTERS)
        lacking = sorted(layout.keys() - given) + [f"master_weights of {param.name}"] * (master is None)
        if given and lacking:
            raise ValueError(
                "`state_dict` must have all state of a parameter or none: build the optimizer with the options of the "
                f"saved one. Received: no {lacking} beside '{min(given)}'"
            )
        if not given and not param.stop_gradient:
            missing.append(param.name)
        known |= given
    names = tuple(f"{name}_" for name in optimizer._structured)  # parameters of the model that are not trained here
    unknown = sorted(key for key in left - known if not (names and key.startswith(names)))
    if unknown and (missing or not left & known):
        raise ValueError(
            "`state_dict` is of other parameters: rebuild the model under `paddle.utils.unique_name.guard()`, which "
            "gives its parameters the saved names, and the optimizer with the same `name`; or take the entries of "
            f"parameters that are gone out of it. Received: {len(unknown)} unknown entries such as {unknown[:2]}, and "
            f"nothing for {len(missing)} trainable parameters such as {missing[:2]}"
        )


def _check_state(key, found, form, counts):
    """Raise TypeError or ValueError if a state has another form, or is a counter of less than no steps."""
    if not isinstance(found, (paddle.Tensor, np.ndarray)):
        raise TypeError(f"`state_dict` must hold Tensors. Received: {shown(found)} as '{key}'")
    if _form(found.dtype, found.shape) != form:
        raise ValueError(
            f"`state_dict` is of another optimizer or model: '{key}' must be {form}. "
            f"Received: {_form(found.dtype, found.shape)}"
        )
    count = np.asarray(found if counts else 0.0, "float64")
    if not np.all(np.isfinite(count) & (count >= 0.0)):
        raise ValueError(f"'{key}' of `state_dict` must be a finite number from 0 on. Received: {count.tolist()}")


def _form(dtype, shape):
    return f"{str(dtype).rpartition('.')[2]} of shape {list(shape)}"


class ShardedStateMixin(_Base):
    """What `paddle.distributed.save_state_dict` asks of an optimizer, and where a state that was loaded goes."""

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
    _accumulators_holder: dict
    counts_steps = True  # whether the state under `COUNTER` is a number of steps

    def _add_accumulator(self, name, param, *args, **kwargs):
        held = self._accumulators_holder
        if not held or not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{f'{self._name}_' if self._name else ''}{name}_0" not in held:
            self._accumulators_holder = {}  # it had no gradient before that was saved: it begins anew
        try:
            with paddle.utils.unique_name.guard():  # so that Paddle looks for the names that the first optimizer had
                return super()._add_accumulator(name, param, *args, **kwargs)
        finally:
            self._accumulators_holder = held

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
