"""The ratio of each parameter's rate in a Paddle optimizer.

Paddle asks `_create_param_lr` for the rate of each parameter; `LayerwiseMixin` multiplies the result by the ratio.
Paddle's kernel scales decoupled weight decay by the same rate, and nothing is written into the parameters.
"""

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

import paddle
from paddle import Tensor
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ... import _paddle
from ..._checks import checked_int, one_of_two
from ..._messages import refusal
from ...layers.decay_ratios import LayerRatios
from ...layers.hook_ratios import HookRatios
from ...layers.layer import structured_names
from ...layers.optimizer_interface import LayerwiseInterface, Ratios, ratios_of
from ...layers.paddlenlp_hook import check_documented_hook, layerwise_lr_decay
from ...layers.ratio_checks import check_trained
from ...schedules.ahead import length_of
from ...schedules.metric import follows_metric
from .._shards import ShardFinder
from .._step.whole_step import scaled_lr
from .layerwise_arguments import check_parameters, ratios_of_hook, ratios_of_layers


class LayerwiseMixin(LayerwiseInterface, Optimizer):
    """Multiplies the rate of each parameter by a ratio. A class lists it before Paddle's optimizer.

    A subclass calls `_init_layerwise` before Paddle's constructor. All ratios of a step are computed and checked before
    the step changes anything. A ratio of 0 freezes: neither the parameter nor its state is updated.
    """

    _documented = False  # whether the ratios come from PaddleNLP's documented hook
    finder = ShardFinder([])  # has the parameters before any wrapper, if known
    _step_ratios: Optional[dict[str, Any]] = None  # the ratios of the running step, by parameter name
    _last_ratios: Any = (None, [], [], [])  # of `ratio_list`: function, parameters, which of them were frozen, ratios
    structured_names: Mapping[str, str] = {}  # param.name -> structured name, if given
    _groups: dict[str, dict[str, Any]] = {}  # param.name -> its group; filled on demand
    training_steps: Optional[int] = None  # for a moving decay, if neither it nor the schedule has them

    def _init_layerwise(
        self,
        parameters: Optional[list[Any]],
        layerwise_decay: Any,
        n_layers: Any,
        set_param_lr_fun: Any,
        name_dict: Any,
        layers: Any,
        lr_ratio: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], Any]] = None,
    ) -> None:
        """Check a constructor's layer-wise arguments and set the ratios; `parameters` is None in a static graph."""
        _paddle.run_untranslated()
        set_param_lr_fun = one_of_two("set_param_lr_fun", set_param_lr_fun, "lr_ratio", lr_ratio, layerwise_lr_decay)
        self.layerwise_decay, self.n_layers, self.set_param_lr_fun = layerwise_decay, n_layers, set_param_lr_fun
        params = None if parameters is None else _paddle.flatten_groups(parameters)
        self.structured_names = structured_names(name_dict, layers)
        check_parameters(params, self.structured_names, apply_decay_param_fun)
        self.finder = ShardFinder(params or [])
        self.n_layers = checked_int(n_layers, "n_layers")
        choose = ratios_of_hook if layers is None else functools.partial(ratios_of_layers, layers)
        self.ratio_of = choose(layerwise_decay, self.n_layers, set_param_lr_fun, name_dict)
        self._documented = layers is None and set_param_lr_fun is layerwise_lr_decay
        if params is not None and self.ratio_of is not None:
            self._check_ratios(self.ratio_of, [param for param in params if not param.stop_gradient])
            if isinstance(self.ratio_of, LayerRatios):
                check_trained(self.ratio_of, params)

    def _check_ratios(self, ratio_of: Any, params: list[Tensor]) -> None:
        for param in params:
            ratio_of(self.finder.original(param))
        if self._documented:
            check_documented_hook([self.structured_names[param.name] for param in params])

    def layerwise_ratio(self, param: Tensor) -> Any:
        """Return the current ratio of `param`'s learning rate to the optimizer's, without groups and ParamAttr."""
        if self.ratio_of is None:
            return 1.0
        for known in (self._step_ratios, self.ratio_of.last if isinstance(self.ratio_of, HookRatios) else None):
            if known and param.name in known:
                return known[param.name]
        return self.current_ratio_of()(self.finder.original(param))

    def ratio_list(self, params: list[Tensor], frozen: list[bool]) -> list[Any]:
        """Return the current ratios of parameters, computed and checked; 0 for frozen ones."""
        if self.ratio_of is None:
            return [1.0] * len(params)
        ratio_of, (known, of, were_frozen, ratios) = self.current_ratio_of(), self._last_ratios
        if known is not ratio_of or frozen != were_frozen or not (of is params or all(map(operator.is_, params, of))):
            ratios = [0.0 if idle else ratio_of(self.finder.original(param)) for param, idle in zip(params, frozen)]
            if ratio_of.is_constant:  # a LayerMap's
                self._last_ratios = ratio_of, params, frozen, ratios
        return ratios

    def _is_frozen(self, param: Tensor) -> bool:
        """Return whether the ratio of a parameter is the number 0; a static graph's ratio may be a variable."""
        ratio = self.layerwise_ratio(param)
        return isinstance(ratio, float) and ratio == 0.0

    def current_ratio_of(self) -> Any:
        """Return the current ratios, None if all are 1; raise if a decay moves and its steps are unknown."""
        ratios = self.ratio_of
        return ratios.at(self.progress_at()) if ratios and ratios.moves and not ratios.is_constant else ratios

    def progress_at(self, step: Optional[int] = None) -> Any:
        """Return the progress of a moving decay at a step of the schedule or now, from 0 to 1."""
        steps = self.steps_of_decay()
        now = max(_paddle.lr_or_scheduler(self).last_epoch if step is None else step, 0)
        return min(now / steps, 1.0) if paddle.in_dynamic_mode() else _progress_in_graph(now, steps)

    def steps_of_decay(self) -> int:
        """Return the number of steps in which a moving decay reaches its end; raise if it or the step is unknown."""
        schedule, decay = _paddle.lr_or_scheduler(self), ratios_of(self).decay
        if not isinstance(schedule, LRScheduler) or follows_metric(schedule):
            kind = type(schedule).__name__ if isinstance(schedule, LRScheduler) else schedule
            needs = "A decay with `end` moves with the steps of a schedule: give the optimizer one as `learning_rate`"
            raise refusal(ValueError, f"{needs}, not a schedule that follows a metric.", learning_rate=kind)
        steps = (decay and decay.steps) or length_of(schedule) or self.training_steps
        if steps is None:
            needs = "A decay with `end` needs the number of steps, which the schedule does not have"
            raise refusal(ValueError, f"{needs}: give LayerDecay(..., steps=...).", schedule=type(schedule).__name__)
        return max(steps, 1)

    def reading_copy(self, ratios: Ratios, params: list[Tensor]) -> "LayerwiseMixin":
        """Return a copy that shares the state, to read the rates of `params` with other ratios from it."""
        return _paddle.stand_in(self, params, ratio_of=ratios, _step_ratios=None)

    def _group_of(self, param: Tensor) -> dict[str, Any]:
        """Return the parameter group of `param`, {} without one."""
        if param.name not in self._groups:  # in a new group, or in a deep copy, whose parameters have other names
            self._groups = _paddle.groups_by_name(self)
        return self._groups.get(param.name, {})

    def _known_names(self) -> Iterable[str]:  # of all parameters; empty if any can be added
        return () if self.ratio_of is None else self.finder.params

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        known = self._known_names()
        new = [param.name for param in _paddle.flatten_groups([param_group]) if known and param.name not in known]
        if new:
            problem = "An optimizer takes no more parameters once it is built: build another optimizer for them."
            raise ValueError(f"{problem} Received: {len(new)} more parameters, such as '{new[0]}'")
        super()._add_param_group(param_group)

    @contextlib.contextmanager
    def _with_ratios(self, params: list[Tensor]) -> Iterator[None]:
        """Compute and check the ratios of a step, and keep them until it ends."""
        ratios = self.ratio_list(params, [param.stop_gradient for param in params])
        self._step_ratios = dict(zip([param.name for param in params], ratios))
        try:
            yield
        finally:
            self._step_ratios = None

    def check_in_step(self, params: list[Tensor]) -> None:
        """Raise for a static graph's parameters without a ratio, or if sharding v1 has disabled weight decay."""
        if self.ratio_of is not None and self._documented and not self.finder.params:
            self._check_ratios(self.ratio_of, params)
        known = _paddle.sharding_setting("tensor_fusion") and _paddle.sharding_setting("fuse_optimizer")
        if _paddle.weight_decay_fun_is_replaced(self) and not known:  # by a function of buffers
            setting = _paddle.sharding_setting("comm_overlap", "tensor_fusion")
            raise ValueError(
                f"With `{setting}` sharding replaces `apply_decay_param_fun`, and no parameter would be decayed: set "
                f"{setting}=False in the strategy's sharding_configs. Received: {setting}=True"
            )

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        lr = super()._create_param_lr(param_and_grad)
        ratio = self.layerwise_ratio(param_and_grad[0])
        return scaled_lr(lr, 1.0, ratio.astype(lr.dtype) if hasattr(ratio, "astype") else ratio)


def _progress_in_graph(now: int, steps: int) -> Any:
    """Return the progress in a static program, which counts its runs from `now` on."""
    start = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(float(now)), trainable=False)
    counter = paddle.create_parameter([1], "float64", attr=start)  # kept and saved with the program
    progress = (counter / float(steps)).clip(max=1.0)
    paddle.assign(counter + 1.0, counter)
    return progress
