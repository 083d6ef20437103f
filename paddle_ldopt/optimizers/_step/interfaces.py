"""All that `_step` reads from an optimizer, apart from attributes of Paddle's optimizers (`_paddle`)."""

import abc
from typing import Any, Callable, ClassVar, NamedTuple, Optional, Union

from paddle import Tensor

from ...layers.optimizer_interface import LayerwiseInterface
from .._shards import MissingGradients, ShardFinder


class FusedRule(NamedTuple):
    """An update rule for the C library; see `struct tensor` in kernels/csrc/step.h."""

    name: str  # in `kernels.RULES`
    states: tuple[Any, ...]  # names in their order there; a tuple of names that exclude each other
    fields: dict[str, Any]  # field of the struct -> number
    flags: dict[str, Any] = {}  # name in `kernels.RULE_FLAGS` -> whether it is set
    aux: Optional[str] = None  # name of another state of one number


class StepInterface(LayerwiseInterface, abc.ABC):
    """All that a fused step reads; `LayerwiseOptimizer` defines the abstract methods."""

    fused: Optional[bool]  # the argument
    missing: MissingGradients
    regularization: Any  # Paddle's: an L2 penalty
    fused_bumps_version = True  # whether a fused update counts in `Tensor.inplace_version`, as by Paddle's operations

    @abc.abstractmethod
    def ratio_list(self, params: list[Tensor], frozen: list[bool]) -> list[Any]:
        """Return the current ratios of parameters; 0 for frozen ones."""

    @abc.abstractmethod
    def step_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return the options of a parameter, or of the optimizer, with their values in this step."""

    @abc.abstractmethod
    def has_weight_decay(self, param: Tensor) -> bool:
        """Return whether weight decay applies to a parameter."""

    @abc.abstractmethod
    def has_master(self, param: Tensor) -> bool:
        """Return whether a parameter has a float32 master."""

    @abc.abstractmethod
    def state_kinds(self, param: Tensor) -> dict[str, str]:
        """Return state name -> kind of a parameter, without its step counter."""

    @abc.abstractmethod
    def check_shape(self, param: Tensor) -> None:
        """Raise if the shape of a parameter has changed since the optimizer or its state was made."""

    def takes_sparse(self, param: Tensor) -> bool:
        """Return whether sparse gradients of a parameter are supported."""
        return False

    def fused_rule(self, options: dict[str, Any]) -> Union[FusedRule, str]:
        """Return the rule for the C library with the options of a group, or the reason why there is none."""
        return f"the C library has no rule of {type(self).__name__}"

    def fused_flags(self, shape: list[int], options: dict[str, Any]) -> dict[str, bool]:
        """Return the flags of the C library that depend on a parameter's shape, as `FusedRule.flags`."""
        return {}

    def rule_clips(self) -> bool:
        """Return whether the rule itself clips a gradient, after `grad_clip`."""
        return False

    def count_planned(self, structs: Any) -> None:
        """Count a fused step by its structs, in optimizers with one count for all parameters."""


class RuleInterface(StepInterface):
    """All that a step by Paddle's operations reads; see `RuleOptimizer`."""

    batch_bytes: Optional[int]  # the argument
    finder: ShardFinder
    rule: ClassVar[Callable[..., Any]]

    @abc.abstractmethod
    def counted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the counters after this update, given the state before it."""

    @abc.abstractmethod
    def chosen_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return the options of a parameter, or of the optimizer, as they were given."""

    @abc.abstractmethod
    def group_lr(self, param: Tensor) -> Optional[float]:
        """Return the rate of a parameter's group in this step, None for the optimizer's rate."""

    @abc.abstractmethod
    def check_in_step(self, params: list[Tensor]) -> None:
        """Raise for parameters that can be checked only in a step."""
