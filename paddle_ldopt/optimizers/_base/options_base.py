"""The options of an optimizer: read from its constructor and its parameter groups, answered per parameter."""

from typing import Any, ClassVar, Optional

from paddle import Tensor

from ..._checks import Option
from ..._paddle import weight_decay_fun
from .layerwise_mixin import LayerwiseMixin


class OptionsBase(LayerwiseMixin):
    """Checks and keeps the options that the class declares in `OPTIONS`."""

    OPTIONS: ClassVar[dict[str, Option]] = {}
    _defaults: dict[str, Any]  # the optimizer's own value of each option that a group may override
    _fixed: dict[str, Any]  # the other options

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise ValueError if options exclude each other; `group` has the options that a group overrides."""

    def _read_options(self, arguments: dict[str, Any], groups: list[Any]) -> None:
        """Check the options in a constructor's arguments and in parameter groups, and keep them."""
        options = self._checked({**{name: option.default for name, option in self.OPTIONS.items()}, **arguments})
        self.check_together(options, {})
        for group in groups:
            if isinstance(group, dict):
                own = self._checked(group)
                self.check_together({**options, **own}, own)
                group.update(own)
        self._defaults = {name: value for name, value in options.items() if self.OPTIONS[name].group}
        self._fixed = {name: value for name, value in options.items() if not self.OPTIONS[name].group}

    def _checked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the given options, each checked."""
        return {name: option.checked(values[name], name) for name, option in self.OPTIONS.items() if name in values}

    def fixed_options(self) -> dict[str, Any]:
        """Return the options of the rule that no parameter group can override."""
        return dict(self._fixed)

    def options_of(self, param: Tensor) -> dict[str, Any]:
        """Return the options of a parameter's group that override the optimizer's, and the other defaults."""
        group, defaults = self._group_of(param), self._defaults
        return {name: group.get(name, default) for name, default in defaults.items()} if group else dict(defaults)

    def chosen_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return all options of a parameter, or of the optimizer; "weight_decay" is 0 if it does not apply."""
        options = {**self.fixed_options(), **(self._defaults if param is None else self.options_of(param))}
        if param is not None and options.get("weight_decay") and not self.has_weight_decay(param):
            options["weight_decay"] = 0.0
        options.pop("lr", None)  # `group_lr` has it
        return options

    def step_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return the options with their values in this step."""
        return self.chosen_options(param)

    def group_lr(self, param: Tensor) -> Optional[float]:
        """Return the rate of the parameter's group that overrides the optimizer's, or None."""
        return self._group_of(param).get("lr")

    def has_weight_decay(self, param: Tensor) -> bool:
        """Return whether weight decay applies to the parameter by `apply_decay_param_fun`."""
        chosen = weight_decay_fun(self)
        return chosen is None or bool(chosen(param.name))

    def structured_name(self, param: Tensor) -> str:
        """Return the parameter's name in the model, or ``param.name`` if it is unknown."""
        return self.structured_names.get(param.name, param.name)
