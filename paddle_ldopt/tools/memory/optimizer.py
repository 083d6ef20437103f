"""An optimizer with the options that decide the size of its state, which it declares itself."""

import dataclasses
from typing import Any, Optional

from ..._checks import Option, checked_bool, checked_choice
from ..._messages import refusal
from ...optimizers.options import REGISTRY, OptimizerInfo, optimizer_class

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True, init=False)
class OptimizerSpec:
    """One of our optimizers with the options that decide the size of its state.

    Args:
        name: one of `list_optimizers`.
        dtype: type of the parameters: "float32", "bfloat16" or "float16".
        grad_dtype: type of the gradients; by default `dtype`.
        multi_precision: keep float32 masters of the parameters; by default if `dtype` is not float32.
        **options: options of the optimizer that change its state, such as `beta1` and `compression` of Came or
            `amsgrad` of AdamWeightDecay. Any other option is a ValueError.

    Examples:
        >>> from paddle_ldopt.tools.memory import OptimizerSpec
        >>> print(OptimizerSpec("came", compression=True, dtype="float32"))
        came, compression
    """

    name: str
    options: dict[str, Any] = dataclasses.field(hash=False)
    dtype: str
    grad_dtype: str
    multi_precision: bool

    def __init__(
        self,
        name: str,
        *,
        dtype: str = "bfloat16",
        grad_dtype: Optional[str] = None,
        multi_precision: Optional[bool] = None,
        **options: Any,
    ) -> None:
        optimizer_class(name)  # raises for an unknown one
        checked_choice(dtype, "dtype", ITEMSIZE)
        masters = checked_bool(dtype != "float32" if multi_precision is None else multi_precision, "multi_precision")
        if masters and dtype == "float32":
            raise refusal(ValueError, "float32 parameters have no masters.", multi_precision=True, dtype="float32")
        fields = {
            "name": name,
            "options": _checked_options(name, options),
            "dtype": dtype,
            "grad_dtype": checked_choice(dtype if grad_dtype is None else grad_dtype, "grad_dtype", ITEMSIZE),
            "multi_precision": masters,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        words = [self.name]
        for name, value in self.options.items():
            number = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(name if value is True else f"{name} {number}")
        return ", ".join(words)

    def state(self, shape: tuple[int, ...]) -> dict[str, tuple[str, int]]:
        """Return state name -> (kind, bytes of a number), for a parameter of that shape.

        Not counted: the counter of a Lamb whose rate or weight decay follows its own steps.
        """
        declared = REGISTRY[self.name].states(self.options, shape)
        return {name: (state.kind, ITEMSIZE[state.dtype or "float32"]) for name, state in declared.items()}

    def sums(self, shape: tuple[int, ...]) -> list[list[str]]:
        """Return the kinds of the sums over a whole parameter that an update needs, round by round, each a float32."""
        return REGISTRY[self.name].sums(self.options, shape)


def _checked_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an optimizer; raise for one that does not change its state."""
    info = REGISTRY[name]
    for option, value in options.items():
        declared = info.options.get(option)
        others = {other: options[other] for other in options if other != option}
        if declared is None or not _sizes(info, others, option, declared.checked(value, option)):
            known = ", ".join(sizing_options(name)) or "none"
            message = f"`{option}` does not change the state of {name} here; options that do: {known}."
            raise refusal(ValueError, message, **options, name=name)
    return {option: info.options[option].checked(value, option) for option, value in options.items()}


def sizing_options(name: str) -> dict[str, Option]:
    """Return the options of an optimizer that change the size of its state, or its sums."""
    info = REGISTRY[name]
    return {option: info.options[option] for option in info.options if _sizes(info, {}, option)}


def _sizes(info: OptimizerInfo, others: dict[str, Any], name: str, *values: Any) -> bool:
    """Return whether state or sums depend on an option, by trying some of its values beside `others`."""
    option, found = info.options[name], []
    for value in (*values, option.default, None, False, True, 0.0, 0.5, 1.0):
        try:
            options = {**others, name: option.checked(value, name)}
        except (TypeError, ValueError):
            continue
        found.append([(info.states(options, shape), info.sums(options, shape)) for shape in ((2,), (2, 2))])
    return any(sizes != found[0] for sizes in found)
