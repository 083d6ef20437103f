"""What all optimizers written as a pure update rule share: options, groups, casts, master weights, state, write-back.

A rule is a generator over tensors in float32 (float64 for float64 parameters), so that it reads like its paper:

    def rule(param, grad, state, lr, *, beta1, weight_decay):
        moment = beta1 * state["moment1"] + (1 - beta1) * grad
        (square,) = yield [(moment * moment).sum()]       # sums over the whole tensor, wherever its pieces are
        return param - lr * moment / square.sqrt(), {"moment1": moment}

It writes nothing. Each `yield [partial sums]` is answered with the sums over all pieces of the tensor (see `_pieces`).

In dygraph a step first collects what there is to do, as a list of `Task`, and then does it in `_update`: parameters
that a process has all of one after the other, those in pieces side by side. In a graph each is done when it is met.
"""

import math
import sys
from typing import Any, NamedTuple, Optional

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from ..._checks import checked_number, shown
from ..._paddle import flatten_groups
from ...layers.paddlenlp_hook import layerwise_lr_decay
from .._fused.step import FusedMixin, check_fused
from .._pieces.pieces import (
    MissingGradients,
    Piece,
    PieceFinder,
    answer_locally,
    answer_together,
    refuse_sharded_groups,
)
from .declaration import COLUMN, ELEMENT, ROW, SCALAR, STEP
from .groups import checked_parameters
from .layerwise import LayerwiseMixin
from .sharded_state import ShardedStateMixin

__all__ = [
    "STEP",
    "RuleOptimizer",
    "Task",
    "checked_decay",
    "checked_rate",
]

_INFIX = "_fp32_master_0_"  # the only spelling of state names that PaddleNLP's unified checkpoint splits generically


class Task(NamedTuple):
    """One update of one parameter, collected and not yet done."""

    param: Any  # the parameter, or the flat slice of it that `fleet` gives
    grad: Any  # its gradient, as it comes
    options: dict  # of its group; "weight_decay" is 0 where it is not to be decayed
    lr: Any  # Tensor of shape [] in the type that the rule computes in, the layer's ratio in it; tasks may share it
    piece: Optional[Piece] = None  # what of the parameter this process has; known once it is to be done


class RuleOptimizer(FusedMixin, ShardedStateMixin, LayerwiseMixin, Optimizer):
    """Base of the optimizers whose update is a pure function.

    A subclass has `options` (the names of what a parameter group may override), `state_kinds` and `rule`.

    Args:
        learning_rate (float|LRScheduler): rate of a layer whose ratio is 1.
        parameters (list[Tensor]|list[dict]|None): what to train; None in static graph mode.
        options (dict): default of each option of the rule, "weight_decay" among them.
        grad_clip (GradientClipBase, optional): gradient clipping before the step.
        apply_decay_param_fun (callable, optional): ``param.name`` -> whether the parameter is decayed.
        multi_precision (bool): keep float32 master weights of float16 and bfloat16 parameters.
        name (str, optional): prefix of the names of the state.
        fused (bool, optional): whether steps are done by the C library, as in `AdamWDL`.
        layerwise (dict): `layerwise_decay`, `n_layers`, `set_param_lr_fun`, `name_dict`, `layers`, as in `AdamWDL`.

    Raises:
        TypeError, ValueError: as in `AdamWDL`; a parameter group with an option that the rule does not have. Nothing is
            changed by then.
    """

    def __init__(
        self,
        learning_rate,
        parameters,
        options,
        *,
        grad_clip=None,
        apply_decay_param_fun=None,
        multi_precision=False,
        name=None,
        fused=None,
        layerwise=None,
    ):
        self._fused = check_fused(fused)
        layerwise = {**_NO_LAYERWISE, **(layerwise or {})}
        if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
            raise TypeError(
                "`apply_decay_param_fun` must be callable. "
                f"Received: apply_decay_param_fun={shown(apply_decay_param_fun)}"
            )
        parameters = checked_parameters(parameters, options)
        refuse_sharded_groups(parameters)
        for group in parameters or []:
            if isinstance(group, dict):
                if "lr" in options and group.get("lr") is not None and "learning_rate" in group:
                    raise ValueError(
                        "A parameter group has either 'lr', its absolute rate, or 'learning_rate', a multiplier of the "
                        "optimizer's: give one. "
                        f"Received: lr={shown(group['lr'])}, learning_rate={shown(group['learning_rate'])}"
                    )
                own = {key: group[key] for key in options if key in group}
                checked = self.check_options({**options, **own})
                group.update({key: checked[key] for key in own})
        self._init_layerwise(parameters, **layerwise, apply_decay_param_fun=apply_decay_param_fun)
        self._defaults = dict(options)
        self._finder = PieceFinder(flatten_groups(parameters or []))
        self._missing = MissingGradients(flatten_groups(parameters or []))
        self._collected: Optional[list] = None  # in dygraph, while a step is being collected: its tasks
        self._rates: dict = {}  # of what is being collected: what makes a rate -> its Tensor
        self._param_groups = None
        self._multi_precision = multi_precision
        self._apply_decay_param_fun = apply_decay_param_fun
        learning_rate = checked_rate(learning_rate)
        # weight_decay=None: Paddle would turn it into an L2 penalty on the gradient, beside our own
        super().__init__(learning_rate, parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    # ---- what a subclass says

    def state_kinds(self, param):
        """Return state name -> kind, for a parameter; `STEP` is always there, a `SCALAR`."""
        raise NotImplementedError

    def rule(self, param, grad, state, lr, options, piece=None):
        """Return the update rule's generator; it returns the new parameter and the new state.

        Args:
            param (Tensor): value of the parameter, or of the piece that the process has, float32 or float64.
            grad (Tensor): its gradient, in the same type.
            state (dict[str, Tensor]): its state; `STEP` counts this update already. What is of the `ROW` or `COLUMN`
                kind is the whole tensor's.
            lr (Tensor): its learning rate, shape [], with the layer's ratio in it.
            options (dict): the options of its group; "weight_decay" is 0 where it is not to be decayed.
            piece (Piece, optional): what the tensors are of the parameter. None: all of it.
        """
        raise NotImplementedError

    def state_dtype(self, state_name, dtype):
        """Return the dtype in which a state is stored, given the one that the rule computes in."""
        return dtype

    def own_rate(self, param):
        """Return the rate that the parameter's group has instead of the optimizer's, None if it has none."""
        return self.options_of(param).get("lr")

    def is_decayed(self, param):
        """Say whether `apply_decay_param_fun` lets the parameter be decayed."""
        return self._apply_decay_param_fun is None or bool(self._apply_decay_param_fun(param.name))

    def structured_name(self, param):
        """Return the parameter's name in the model, or ``param.name`` if it was not told."""
        return self._structured.get(param.name, param.name)

    def shown_rate(self, param, factor):
        """Return (rate of the next step, greatest rate ahead) of a parameter, each None if it is not known beforehand.

        A subclass whose rate does not come from `learning_rate` alone has one of its own; None leaves it to that.

        Args:
            param (Tensor): the parameter.
            factor (float): what its layer and group make of the optimizer's rate.
        """
        return None

    # ---- groups

    def check_options(self, options):
        """Return the options of a group, numbers as floats; raise if one is out of range. A subclass checks its own."""
        return options

    def _add_param_group(self, param_group):
        # hide the decay from Paddle, which would make an L2 penalty of it
        hidden = {key: param_group.pop(key) for key in ("weight_decay",) if key in param_group}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    def options_of(self, param):
        """Return the options of the group of `param`."""
        group = self.group_of(param)
        return {key: group.get(key, value) for key, value in self._defaults.items()}

    def _update_param_group(self, parameters):
        return parameters["params"]

    def _create_param_lr(self, param_and_grad):
        lr, own = super()._create_param_lr(param_and_grad), self.own_rate(param_and_grad[0])
        return lr if own is None else paddle.full_like(lr, own) * self.layerwise_ratio(param_and_grad[0])

    # ---- state

    def _known_names(self):
        return self._finder.params

    def whole_shape(self, param):
        """Return the shape of the whole tensor that a parameter is, or that it is a piece of."""
        return self._finder.shape(param)

    def state_shapes(self, param):
        """Return state name -> shape, for a parameter; rows and columns are the whole tensor's."""
        whole = self.whole_shape(param)
        shapes = {ELEMENT: list(param.shape), ROW: whole[:-1], COLUMN: whole[:-2] + whole[-1:], SCALAR: []}
        return {name: shapes[kind] for name, kind in self.state_kinds(param).items()}

    def state_layout(self, param):
        """Return state name -> (dtype, shape) in which a parameter's state is stored; [] as [1]."""
        dtype = _compute_dtype(param)
        # not []: PaddleNLP's unified checkpoints cannot be read with that
        shapes = {**self.state_shapes(param), STEP: []}
        return {name: (self.state_dtype(name, dtype), shape or [1]) for name, shape in shapes.items()}

    def _create_accumulators(self, block, parameters):
        if isinstance(parameters, dict):
            parameters = self._update_param_group(parameters)
        for param in parameters:
            self.check_type(param)
            if param.name in self._already_create_accumulator:
                continue
            self.check_shape(param)
            other = [name for name, kind in self.state_kinds(param).items() if kind != ELEMENT]
            if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
                raise ValueError(
                    "A static graph (`dist.to_static`) gives all state of a DistTensor its placements, which state of "
                    "another shape cannot have: train in dygraph, or use AdamWDL, AdamWeightDecay or Lamb. "
                    f"Received: {type(self).__name__} with state {', '.join(other)} of '{param.name}'"
                )
            owner = self._create_master_weight(param) if self._has_master(param) else param
            for state_name, (dtype, shape) in self.state_layout(param).items():
                kept = {"dtype": _accumulator_dtype(dtype), "shape": shape}
                self._add_accumulator(state_name, owner, fill_value=0.0, **kept)
            self._already_create_accumulator.add(param.name)

    def state_dict(self):
        """Return the state; named so that PaddleNLP's unified checkpoints can hold it.

        Raises:
            ValueError: sharding with `split_param` asks for it to place rows and columns as if they were elements.
        """
        asked_by = sys._getframe(1).f_code.co_name  # nothing else tells this use from others, which are right
        if asked_by == "sharded_state_dict" and self._finder.is_sliced(self._parameter_list):
            placed = {kind for param in self._finder.params.values() for kind in self.state_kinds(param).values()}
            if placed & {ROW, COLUMN}:
                raise ValueError(
                    "Paddle's `sharded_state_dict` for `split_param` takes all state for elements and would save rows "
                    "and columns in wrong places: use `paddle_ldopt.parallel.save_checkpoint`. "
                    f"Received: {type(self).__name__} with states {', '.join(sorted(self._state_names()))}"
                )
        # Paddle forgets what was loaded for parameters that have had no gradient since
        state = {**self._accumulators_holder, **super().state_dict()}
        prefix = f"{self._name}_" if self._name else ""
        names = {*self._accumulators, *(f"{prefix}{name}" for name in self._state_names())}
        return {_unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict):
        """Load what `state_dict` gave.

        Args:
            state_dict (dict): state by name, with "master_weights" and "LR_Scheduler" if there are any.
        """
        if not isinstance(state_dict, dict):
            return super().set_state_dict(state_dict)  # which says that it must be one
        weights = state_dict.get("master_weights")  # what is no dict is refused below
        masters = {getattr(weight, "name", None) for weight in weights.values()} if isinstance(weights, dict) else set()
        plain = {}
        for key, value in state_dict.items():
            owner, infix, rest = str(key).partition(_INFIX)
            own = infix and f"{owner}_fp32_master_0" not in masters
            if isinstance(value, paddle.Tensor) and not value.shape:
                value = value.reshape([1])
            plain[f"{owner}_{rest}" if own else key] = value
        super().set_state_dict(plain)

    load_state_dict = set_state_dict

    def _state_names(self):
        """Return the names of the states of all parameters."""
        return {STEP, *(name for param in self._finder.params.values() for name in self.state_kinds(param))}

    # ---- the step

    def _create_optimization_pass(self, params_grads, *args, **kwargs):
        if not paddle.in_dynamic_mode():
            return super()._create_optimization_pass(params_grads, *args, **kwargs)
        self._collected, self._rates = [], {}
        try:
            done = super()._create_optimization_pass(params_grads, *args, **kwargs)  # found_inf: collects nothing
            tasks, overflow = self._collected, bool(self._get_auxiliary_var("found_inf"))
        finally:
            self._collected, self._rates = None, {}
        if not overflow:
            self._update_or_wait(tasks)
        return done

    def _append_optimize_op(self, block, param_and_grad):
        if isinstance(param_and_grad, dict):
            param_and_grad = self._update_param_group(param_and_grad)
        param, grad = param_and_grad
        if self.layerwise_ratio(param) == 0.0 or math.prod(param.shape) == 0:
            return
        self.check_shape(param)
        task = Task(param, grad, self._options_now(param), self._rate(param, grad))
        if self._collected is None:
            self._update_whole([task._replace(piece=Piece(self.whole_shape(param)))])
        else:
            self._collected.append(task)

    def check_shape(self, param):
        """Raise if a parameter is not what the optimizer was built with."""
        if paddle.in_dynamic_mode() and self._finder.params:
            self._finder.check(param)

    def _options_now(self, param):
        options = self.options_of(param)
        return {**options, "weight_decay": options["weight_decay"] if self.is_decayed(param) else 0.0}

    def fused_options(self, param=None):
        """Return the options of a parameter's group as they are now, or those of a parameter without a group."""
        return dict(self._defaults) if param is None else self._options_now(param)

    def _rate(self, param, grad):
        """Return the rate of a parameter; parameters of one rate share it while a step is collected."""
        dtype, factor = _compute_dtype(param), getattr(param, "optimize_attr", None) or {}
        key = (dtype, factor.get("learning_rate"), self.layerwise_ratio(param), self.own_rate(param))
        if self._collected is None or key not in self._rates:
            self._rates[key] = self._create_param_lr((param, grad)).astype(dtype).reshape([])
        return self._rates[key]

    def _update(self, tasks):
        """Do what was collected.

        Args:
            tasks (list[Task]): in the order in which they were collected.
        """
        pieces = self._finder.find(self._parameter_list)
        tasks = [task._replace(piece=pieces[task.param.name]) for task in tasks if task.param.name in pieces]
        if self._fused and any(task.piece.groups or task.piece.slice_size is not None for task in tasks):
            raise ValueError(
                "`fused=True` does not go with parameters in pieces (tensor parallel, sharding version 2): use None or "
                "False. Received: fused=True"
            )
        self._update_whole([task for task in tasks if not task.piece.groups])
        self._update_pieces({task.param.name: task for task in tasks if task.piece.groups}, pieces)

    def _update_whole(self, tasks):
        """Update parameters of which this process has all, one after the other.

        Args:
            tasks (list[Task]): their updates.
        """
        whole = [task for task in tasks if task.piece.slice_size is None]
        sliced = [task for task in tasks if task.piece.slice_size is not None]
        for task in [*self.update_fused(whole), *sliced]:
            rule, write = self._start(task)
            write(*answer_locally(rule))

    def _update_pieces(self, tasks, pieces):
        """Update parameters that are in pieces side by side with the other processes that have pieces of them.

        Args:
            tasks (dict[str, Task]): parameter name -> its update, of those that this process has a piece of.
            pieces (dict[str, Piece]): of all parameters.
        """
        rules, writes = [], []
        for name, piece in pieces.items():
            param = self._finder.params[name]
            if not piece.groups or param.stop_gradient or name in self._missing.names:
                continue
            if self.layerwise_ratio(param) == 0.0:
                continue
            if name in tasks:
                rule, write = self._start(tasks[name])
            elif piece.span == (0, 0):  # the other processes wait for sums from all
                rule, write = self._start_empty(param, piece), None
            else:
                continue
            rules.append((piece, rule))
            writes.append(write)
        for write, result in zip(writes, answer_together(rules)):
            if write is not None:
                write(*result)

    def _start(self, task):
        """Return the rule of a task, to be run, and a function that writes what it returns."""
        param, piece = task.param, task.piece
        target = self._master_weights[param.name] if self._has_master(param) else param
        dtype, kinds = _compute_dtype(param), {**self.state_kinds(param), STEP: SCALAR}
        stored = {name: self._get_accumulator_master(name, param) for name in kinds}
        state = {name: value.astype(dtype) for name, value in stored.items()}
        for name, kind in kinds.items():
            if kind == SCALAR or not target.shape:  # stored as [1]
                state[name] = state[name].reshape([])
            elif kind == ELEMENT:
                state[name] = piece.view(state[name])
        state[STEP] = self._advance(param, state[STEP])
        grad = task.grad.astype(dtype)
        if list(grad.shape) != list(target.shape):  # ClipGradByGlobalNorm makes [1] of []
            grad = grad.reshape(target.shape)
        rule = self.rule(piece.view(target.astype(dtype)), piece.view(grad), state, task.lr, task.options, piece)

        def write(new_param, new_state):
            found_inf = None if paddle.in_dynamic_mode() else self._get_auxiliary_var("found_inf")
            for name, value in {**new_state, STEP: state[STEP]}.items():
                _write(value, stored[name], found_inf, piece if kinds[name] == ELEMENT else None)
            _write(new_param, target, found_inf, piece)
            if target is not param:
                _write(new_param, param, found_inf, piece)

        return rule, write

    def _start_empty(self, param, piece):
        """Return the rule of a parameter that this process has nothing of: its sums are zeros."""
        dtype, kinds, shapes = _compute_dtype(param), self.state_kinds(param), self.state_shapes(param)
        empty = paddle.zeros([0], dtype)
        state = {n: empty if kinds[n] == ELEMENT else paddle.zeros(shapes[n], dtype) for n in kinds}
        state[STEP] = paddle.ones([], dtype)
        return self.rule(empty, empty, state, paddle.zeros([], dtype), self._options_now(param), piece)

    def _advance(self, param, step):
        """Return the number of this update, from 1, of the parameter; a subclass may count in another way."""
        return step + 1.0


_NO_LAYERWISE = {
    "layerwise_decay": 1.0,
    "n_layers": 12,
    "set_param_lr_fun": layerwise_lr_decay,
    "name_dict": None,
    "layers": None,
}


def _write(value, target, found_inf=None, piece=None):
    if found_inf is not None:  # static AMP runs the update regardless; a CPU has no `where` of float16
        value = paddle.where(found_inf, target.astype(value.dtype), value.reshape(target.shape))
    value = value.astype(target.dtype)
    if piece is not None and piece.slice_size is not None:
        paddle._C_ops.assign_out_(value.flatten(), piece.stored(target))
        return
    if list(value.shape) != list(target.shape):  # [1] holds a state of shape []
        value = value.reshape(target.shape)
    if paddle.in_dynamic_mode():
        paddle._C_ops.assign_out_(value, target)  # what `paddle.assign` does after half a dozen checks
    else:
        frozen = target.stop_gradient
        paddle.assign(value, target)
        target.stop_gradient = frozen  # `assign` gives it the value's, and a later `minimize` would pass it over


def _unified_name(key, state_names):
    """Return the key that PaddleNLP's unified checkpoints have for one of `state_dict`."""
    if _INFIX in key:
        return key
    ending = next((f"_{name}_0" for name in state_names if key.endswith(f"_{name}_0")), None)
    return key if ending is None else key[: -len(ending)] + _INFIX + ending[1:]


def _compute_dtype(param):
    return paddle.float64 if param.dtype in (paddle.float64, paddle.base.core.DataType.FLOAT64) else paddle.float32


def _accumulator_dtype(dtype):
    """Return a dtype in the spelling that `_add_accumulator` takes in the mode that is on."""
    if paddle.framework.in_pir_mode():
        return paddle.pir.core.convert_np_dtype_to_dtype_(str(dtype).rpartition(".")[2])
    return dtype


def checked_rate(learning_rate):
    """Return an optimizer's learning rate as Paddle takes it, a float or a scheduler, raise if it is neither."""
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    return checked_number(learning_rate, "learning_rate")


def checked_decay(weight_decay, argument="weight_decay", high=math.inf, kind="a number"):
    """Return a weight decay as a float, 0 for None; raise if it is none, with advice for a regularizer of Paddle's."""
    if isinstance(weight_decay, WeightDecayRegularizer):
        penalty = type(weight_decay).__name__
        raise TypeError(
            f"`{argument}` must be a number such as 0.01, which decays the weights themselves. {penalty} adds a "
            "penalty to the gradient, which only Paddle's own optimizers offer. "
            f"Received: {argument}={penalty}({shown(weight_decay._coeff)})"
        )
    return 0.0 if weight_decay is None else checked_number(weight_decay, argument, 0.0, high, kind=kind)
