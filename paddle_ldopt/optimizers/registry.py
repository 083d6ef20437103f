"""The table of our optimizers: `register` adds a class with its options and states.

`create`, `LdoptConfig`, the Trainer, the command line, the memory calculator and the docs read it.
"""

import dataclasses
import inspect
from typing import Any, Callable, TypeVar

from .._checks import REQUIRED, Option
from .._messages import nearest, shown
from ._base.layerwise_arguments import LAYERWISE
from .shared_options import COMMON
from .states import SCALAR, STEP, State

_Class = TypeVar("_Class", bound=type)


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """A registered optimizer: its class, its options and its states."""

    cls: type[Any]
    summary: str  # when to choose it, and bytes of state per parameter
    # setting -> field of a Trainer's arguments that gives its value
    trainer: dict[str, str] = dataclasses.field(default_factory=dict)
    external_rate: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments that go with a learning rate
    own_exclusion: tuple[str, ...] = ()  # arguments that exclude parameters from weight decay
    options: dict[str, Option] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Option]:
        """Name in `create` and `LdoptConfig` -> option of the constructor, without the weight decay."""
        chosen = {name: option for name, option in self.options.items() if option.argument and name != "weight_decay"}
        return {option.setting or name: option for name, option in chosen.items()}

    def setting(self, name: str) -> str:
        """Return the key in `settings` of an option, given that key or the option's name in the class."""
        return (name in self.options and self.options[name].setting) or name

    @property
    def all_arguments(self) -> set[str]:
        """The names of all arguments of its constructor, including arguments that it passes on to a base."""
        return {*self.settings, *LAYERWISE, *_arguments(self.cls)} - {"self"}

    def states(self, options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, State]:
        """Return state name -> kind and type, for a parameter of this shape; `options` override the defaults."""
        return {**self.cls.states(self._all(options), shape), STEP: State(SCALAR)}

    def sums(self, options: dict[str, Any], shape: tuple[int, ...]) -> list[list[str]]:
        """Return the kinds of the sums over a whole parameter that an update asks for, round by round."""
        rounds: list[list[str]] = self.cls.sums(self._all(options), shape)
        return rounds

    def _all(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**{name: option.default for name, option in self.options.items()}, **options}


REGISTRY: dict[str, OptimizerInfo] = {}


def register(summary: str, **fields: Any) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class under its name in lower case.

    `fields` are fields of `OptimizerInfo`. An option without a default takes the default of the constructor's argument.
    """

    def add(cls: Any) -> Any:
        arguments = _arguments(cls)
        options = {**cls.OPTIONS, **{name: option for name, option in COMMON.items() if name in arguments}}
        for name, option in options.items():
            if option.default is REQUIRED:
                options[name] = dataclasses.replace(option, default=arguments[option.called or name])
        REGISTRY[cls.__name__.lower()] = OptimizerInfo(cls, summary, options=options, **fields)
        return cls

    return add


def _arguments(cls: type) -> dict[str, Any]:
    """Return argument -> default of a constructor, including arguments that it passes on to a base."""
    arguments: dict[str, Any] = {}
    for init in [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]:
        parameters = inspect.signature(init).parameters.values()
        arguments = {**{p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}, **arguments}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return arguments


def list_optimizers() -> list[str]:
    """Return the names of our optimizers; `create` and the Trainer's ``--optim`` also accept "adamw", Paddle's own.

    Examples:
        >>> import paddle_ldopt as ldopt
        >>> "adamwdl" in ldopt.list_optimizers()
        True
    """
    return list(REGISTRY)


def optimizer_class(name: str) -> type:
    """Return the class of an optimizer by its name in `list_optimizers`; raise ValueError for any other name."""
    if not isinstance(name, str) or name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY)) + nearest(name, REGISTRY)
        raise ValueError(f"`name` must be one of {known}. Received: name={shown(name)}")
    return REGISTRY[name].cls
