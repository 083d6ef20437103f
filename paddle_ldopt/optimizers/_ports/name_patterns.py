"""Regular expressions that switch the weight decay of parameters on and off by name, as in TensorFlow's fine-tuning."""

import re
import warnings
from collections.abc import Iterable
from typing import Any

from ..._checks import Option
from ..._messages import refusal

__all__ = ["PATTERNS", "NamePatterns"]


def _compiled(value: Any, name: str) -> list[Any]:
    """Return the regular expressions of a list, raise if it is none."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(pattern, str) for pattern in value):
        raise refusal(TypeError, f"`{name}` must be a list of strings or None.", **{name: value})
    try:
        return [re.compile(pattern) for pattern in value]
    except re.error as error:
        raise refusal(ValueError, f"`{name}` must hold regular expressions: {error}.", **{name: value}) from None


def _option(doc: str) -> Option:
    return Option(None, doc, optional=True, check=_compiled, kind="regular expressions")


PATTERNS = {
    "include_in_weight_decay": _option("names that are decayed in any case"),
    "exclude_from_weight_decay": _option("names that are not decayed"),
}


class NamePatterns:
    """The compiled values of the options `PATTERNS`, searched in names with TensorFlow's ":0" behind them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._lists: dict[str, list[Any]] = {name: options[name] or [] for name in PATTERNS}

    def find(self, name: str) -> bool:
        """Return whether a name is decayed: the patterns that include it win over those that exclude it."""
        include, exclude = (any(p.search(f"{name}:0") for p in patterns) for patterns in self._lists.values())
        return include or not exclude

    def texts(self) -> dict[str, Any]:
        """Return option -> list of strings or None, as the constructor takes them."""
        return {option: [p.pattern for p in patterns] or None for option, patterns in self._lists.items()}

    def warn_of_idle(self, names: Iterable[str], remedy: str) -> None:
        """Warn of patterns that find none of the names."""
        searched = [f"{name}:0" for name in names]
        idle = {
            option: [p.pattern for p in patterns if not any(p.search(name) for name in searched)]
            for option, patterns in self._lists.items()
        }
        if searched and any(idle.values()):
            found = ", ".join(f"{option}={patterns}" for option, patterns in idle.items() if patterns)
            where = f"They are searched in names like {', '.join(map(repr, searched[:4]))}."
            warnings.warn(f"Patterns that find no parameter: {found}. {where}{remedy}", stacklevel=4)
