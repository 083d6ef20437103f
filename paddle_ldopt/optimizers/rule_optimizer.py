"""The base of the optimizers whose update is a function of tensors."""

from typing import Any, Callable, Optional

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number, refusal
from .._compat import is_called_by, state_dtype
from .arithmetic import add_
from .base import LayerwiseOptimizer
from .batches import prepared_shards, update_one
from .options import COMMON
from .states import COLUMN, ELEMENT, ROW, STEP, Values, compute_dtype, largest, plain, unified_name
from .step import Rows, in_shape


class RuleOptimizer(LayerwiseOptimizer):
    """Base of the optimizers whose update is a function of tensors.

    A subclass declares

    - `OPTIONS`: name -> `Option`, with a default unless the constructor has it;
    - `states(options, shape)`: name -> `State`;
    - `rule(param, grad, state, lr, *, shard, **options)`, which returns (new parameter, new state). It may overwrite
      `param` and `state`, but not `grad`. Its tensors are float32 (float64 for float64 parameters). They may be stacks
      of parameters, of shape [k, *shape]; `lr` is then a number, or has the shape [k, 1, ...]. So the rule reads the
      shape of a parameter from `shard.shape` and sums with methods of `shard`: `grad.sum()` would mix parameters. It
      yields lists of sums over its part of the tensor and receives the sums over the whole tensor, across all
      processes (see `sharded`)::

        def rule(param, grad, state, lr, *, shard, beta1):
            moment = beta1 * state["moment1"] + (1 - beta1) * grad
            (square,) = yield [shard.square_sum(moment)]
            return param - lr * moment / square.sqrt(), {"moment1": moment}

    It may override `fused_rule` (the rule in the C library), `check_together` (options that exclude each other),
    `rule_clips`, and, if it sets its rate, `sets_own_lr`, `lr_now_and_peak`, `_checked_lr`, `_initial_lr`.

    It takes the arguments of all optimizers (see `AdamWDL`), the declared options, and `batch_bytes`.

    Args:
        batch_bytes: the size limit of a batch, a set of parameters of one shape, type and set of options that Paddle's
            operations update together. A step needs up to twelve times as much temporary memory. Larger parameters
            are updated one by one; with 0, all parameters are updated one by one. None: 64 MB on an accelerator; 2 MB
            on a CPU, where larger batches are slower.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        *,
        grad_clip: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        multi_precision: bool = False,
        name: Optional[str] = None,
        fused: Optional[bool] = None,
        batch_bytes: Optional[int] = None,
        **arguments: Any,
    ) -> None:
        rate = self._checked_lr(learning_rate)
        self.batch_bytes = COMMON["batch_bytes"].checked(batch_bytes, "batch_bytes")
        parameters = self._read_arguments(parameters, apply_decay_param_fun, multi_precision, fused, **arguments)
        self._param_groups, self._multi_precision = None, multi_precision
        self._apply_decay_param_fun = apply_decay_param_fun
        # no `weight_decay`: Paddle would add an L2 penalty to the gradient
        super().__init__(self._initial_lr(rate, parameters), parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    # ---- the rate

    def _checked_lr(self, learning_rate: Any) -> Any:
        return checked_lr(learning_rate, "learning_rate")

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        """Return the initial rate as Paddle takes it, a float or a scheduler; called when the options are known."""
        return rate

    def rate_now(self, group: Values) -> float:
        """Return the rate of a parameter group in this step: its own "lr", or the optimizer's."""
        own = group.get("lr")
        return super().rate_now(group) if own is None else float(own() if isinstance(own, LRScheduler) else own)

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        group = self.group_of(param_and_grad[0])
        if group.get("lr") is None:
            return super()._create_param_lr(param_and_grad)
        lr = paddle.full_like(self._global_learning_rate(), self.rate_now(group))
        return lr * self.layerwise_ratio(param_and_grad[0])

    # ---- groups

    def _add_param_group(self, param_group: Values) -> None:
        # hidden from Paddle, which would add an L2 penalty
        hidden = {"weight_decay": param_group.pop("weight_decay")} if "weight_decay" in param_group else {}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    # ---- the update

    def prepared(self, rows: Rows) -> Callable[[Optional[float]], None]:
        """Return the update of rows: whole parameters in batches, others with the processes that share them."""
        if self.finder.is_whole(self._parameter_list) and not any(map(Tensor.is_dist, rows.params)):
            return self.batches.prepared(self, rows)
        shards = self.finder.find(self._parameter_list)
        if self.fused and any(shard.groups or shard.slice_size is not None for shard in shards.values()):
            where = "parameters in shards (tensor parallel, sharding version 2)"
            raise refusal(ValueError, f"`fused=True` does not support {where}: use None or False.", fused=True)
        whole, pieces = [], []
        for i, param in enumerate(rows.params):
            self.check_shape(param)
            shard = shards.get(param.name)
            if shard is not None:
                in_pieces = shard.groups or shard.slice_size is not None or param.is_dist()
                (pieces if in_pieces else whole).append(i)
        names = {rows.params[i].name for i in whole}
        others = {name: shard for name, shard in shards.items() if name not in names}
        update_whole = self.batches.prepared(self, rows.take(whole))
        update_pieces = prepared_shards(self, rows.take(pieces), others)

        def update(count: Optional[float]) -> None:
            update_whole(count)
            update_pieces(count)

        return update

    def _append_to_graph(self, block: Any, param_and_grad: Any) -> None:
        param, grad = param_and_grad
        self.check_shape(param)
        options = self.step_options({})
        if not self.has_weight_decay(param):
            options["weight_decay"] = 0.0
        lr = self._create_param_lr(param_and_grad).astype(compute_dtype(param)).reshape([])
        update_one(self, param, in_shape(grad, param), options, lr)

    def check_shape(self, param: Tensor) -> None:
        """Raise if the optimizer was not built with this parameter, or its shape has changed."""
        if paddle.in_dynamic_mode() and self.finder.params:
            self.finder.check(param)

    # ---- counts

    _COUNT = STEP  # the state whose largest value of any parameter is the number of steps taken; a resume restores it

    def counted(self, state: Values, count: Optional[float]) -> Values:
        """Return the counters after this update, given the state before it."""
        return {STEP: add_(state[STEP], 1.0)}

    def steps_taken(self) -> float:
        """Return the number of steps taken; after loading, it reads the state once."""
        if self.taken is None:
            key = self.state_key(self._COUNT)
            live = {value.name: value for value in self._accumulators.get(key, {}).values()}
            loaded = {name: value for name, value in self._accumulators_holder.items() if f"_{key}_" in name}
            self.taken = largest([*{**loaded, **live}.values()])
        return self.taken

    # ---- state

    def _whole_shape(self, param: Tensor) -> list[int]:
        return list(self.finder.shape(param))

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state and step counter."""
        # PaddleNLP's unified checkpoints cannot be read with shape []
        layout = {name: (dtype, shape or [1]) for name, (dtype, shape) in super().state_layout(param).items()}
        return {**layout, STEP: (compute_dtype(param), [1])}

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for param in parameters["params"] if isinstance(parameters, dict) else parameters:
            self.check_type(param)
            if param.name in self._already_create_accumulator:
                continue
            self.check_shape(param)
            kinds = self.state_kinds(param)
            other = [name for name, kind in kinds.items() if kind != ELEMENT]
            if other and not paddle.in_dynamic_mode() and getattr(param, "is_dist", bool)():
                raise ValueError(
                    "A static graph (`dist.to_static`) places all state of a DistTensor as if it had its shape: train "
                    "in dygraph, or use AdamWDL, AdamWeightDecay or Lamb. "
                    f"Received: {type(self).__name__} with state {', '.join(other)} of '{param.name}'"
                )
            owner = self._create_master_weight(param) if self.has_master(param) else param
            for name, (dtype, shape) in self.state_layout(param).items():
                self._add_accumulator(name, owner, fill_value=0.0, dtype=state_dtype(dtype), shape=shape)
            self._already_create_accumulator.add(param.name)

    def state_dict(self) -> Values:
        """Return the state under names for PaddleNLP's unified checkpoints; raise if sharding would misread it."""
        self.taken = None  # the caller may change the state
        kinds = {name: kind for p in self.finder.params.values() for name, kind in self.state_kinds(p).items()}
        is_split = is_called_by("sharded_state_dict") and self.finder.is_sliced(self._parameter_list)
        if is_split and {ROW, COLUMN} & set(kinds.values()):
            raise ValueError(
                "Paddle's `sharded_state_dict` for `split_param` reads all state as elements and would save rows and "
                "columns at wrong offsets: use `paddle_ldopt.parallel.save_checkpoint`. "
                f"Received: {type(self).__name__} with states {', '.join(sorted({STEP, *kinds}))}"
            )
        # Paddle omits the loaded state of parameters that had no gradient yet
        state = {**self._accumulators_holder, **super().state_dict()}
        names = {*self._accumulators, *(self.state_key(name) for name in (STEP, *kinds))}
        return {unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict: Values) -> None:
        """Load the result of `state_dict`, including "master_weights" and "LR_Scheduler" if present."""
        super().set_state_dict(plain(state_dict))


def checked_lr(learning_rate: Any, argument: str) -> Any:
    """Return a learning rate as a float or a scheduler; raise if it is neither."""
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    return checked_number(
        learning_rate, argument, expected="a number or an LRScheduler; parameters go into `parameters=`"
    )
