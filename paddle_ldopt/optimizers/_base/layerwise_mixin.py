"""The ratio of each parameter's rate in a Paddle optimizer.

Paddle asks `_create_param_lr` for the rate of each parameter; `LayerwiseMixin` multiplies the result by the ratio.
Paddle's kernel scales decoupled weight decay by the same rate, and nothing is written into the parameters.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

from paddle import Tensor
from paddle.optimizer import Optimizer

from ... import _paddle
from ..._checks import checked_int, one_of_two
from ...layers.decay import as_decay
from ...layers.hook import check_documented_hook, layerwise_lr_decay
from ...layers.model_parameters import structured_names
from ...layers.rates import LayerwiseInterface
from .._shards import ShardFinder
from .._step.whole_step import scaled_lr
from .layerwise_arguments import check_layers_alone, check_parameters, hook_of


class LayerwiseMixin(LayerwiseInterface, Optimizer):
    """Multiplies the rate of each parameter by a ratio. A class lists it before Paddle's optimizer.

    A subclass calls `_init_layerwise` before Paddle's constructor. All ratios of a step are computed and checked before
    the step changes anything. A ratio of 0 freezes: neither the parameter nor its state is updated.
    """

    _documented = False  # whether the ratios come from PaddleNLP's documented hook
    finder = ShardFinder([])  # has the parameters before any wrapper, if known
    _step_ratios: Optional[dict[str, Any]] = None  # the ratios of the running step, by parameter name
    is_closed: Optional[Callable[[Tensor], bool]] = None  # of gradual unfreezing
    _ratios: Mapping[str, float] = {}  # structured name -> ratio of a LayerMap
    structured_names: Mapping[str, str] = {}  # param.name -> structured name, if given
    _groups: dict[str, dict[str, Any]] = {}  # param.name -> its group; filled on demand

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
        if layers is None:
            self.hook = hook_of(layerwise_decay, self.n_layers, set_param_lr_fun, name_dict)
        else:
            check_layers_alone(layers, self.n_layers, set_param_lr_fun, name_dict)
            self.set_layers(layers, layerwise_decay)
        self._documented = self.hook is not None and set_param_lr_fun is layerwise_lr_decay
        if params is not None and self.has_ratios:
            self._check_ratios([param for param in params if not param.stop_gradient])

    def set_layers(self, layers: Any, layerwise_decay: Any) -> None:
        """Take the ratios of a decay."""
        decay = as_decay(layerwise_decay)
        self._ratios = layers.ratios(decay)
        self.layers, self.decay = layers, decay

    @property
    def has_ratios(self) -> bool:
        """Whether ratios may differ from 1."""
        return self.layers is not None or self.hook is not None

    def _ratio(self, param: Tensor) -> Any:
        if not self.has_ratios:
            return 1.0
        param = self.finder.original(param)
        if self.is_closed is not None and self.is_closed(param):
            return 0.0
        if self.layers is not None:
            return self._ratios[self.layers.name_of(param.name)]
        return self.hook(param)

    def _check_ratios(self, params: list[Tensor]) -> None:
        for param in params:
            self._ratio(param)
        if self._documented:
            check_documented_hook([self.structured_names[param.name] for param in params])

    def layerwise_ratio(self, param: Tensor) -> Any:
        """Return the current ratio of `param`'s learning rate to the optimizer's, without groups and ParamAttr."""
        if self._step_ratios and param.name in self._step_ratios:
            return self._step_ratios[param.name]
        return self._ratio(param)

    def ratio_list(self, params: list[Tensor], frozen: list[bool]) -> list[Any]:
        """Return the current ratios of parameters, computed and checked; 0 for frozen ones."""
        if not self.has_ratios:
            return [1.0] * len(params)
        return [0.0 if idle else self._ratio(param) for param, idle in zip(params, frozen)]

    def _is_frozen(self, param: Tensor) -> bool:
        """Return whether the ratio of a parameter is the number 0; a static graph's ratio may be a variable."""
        ratio = self.layerwise_ratio(param)
        return isinstance(ratio, float) and ratio == 0.0

    def _group_of(self, param: Tensor) -> dict[str, Any]:
        """Return the parameter group of `param`, {} without one."""
        if param.name not in self._groups:  # in a new group, or in a deep copy, whose parameters have other names
            self._groups = _paddle.groups_by_name(self)
        return self._groups.get(param.name, {})

    def _known_names(self) -> Iterable[str]:  # of all parameters; empty if any can be added
        return () if not self.has_ratios else self.finder.params

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
        if self._documented and not self.finder.params:
            self._check_ratios(params)
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
