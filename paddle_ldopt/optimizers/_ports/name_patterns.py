"""Regular expressions that include and exclude parameters from weight decay, as in TensorFlow's BERT fine-tuning."""

import re
import warnings
from collections.abc import Iterable
from typing import Any

from ..._checks import Option
from ..._messages import refusal

__all__ = ["PATTERNS", "NamePatterns"]


def _compiled(value: Any, name: str) -> list[Any]:
    """Return the compiled patterns of a list of strings."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(pattern, str) for pattern in value):
        raise refusal(TypeError, f"`{name}` must be a list of strings or None.", **{name: value})
    try:
        return [re.compile(pattern) for pattern in value]
    except re.error as error:
        raise refusal(ValueError, f"`{name}` must hold regular expressions: {error}.", **{name: value}) from None


def _option(doc: str) -> Option:
    return Option(doc=doc, optional=True, check=_compiled, values="regular expressions")


PATTERNS = {
    "include_in_weight_decay": _option("patterns of names that have weight decay even if excluded"),
    "exclude_from_weight_decay": _option("patterns of names without weight decay"),
}


class NamePatterns:
    """The compiled patterns, which are searched in names with TensorFlow's suffix ":0"."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._lists: dict[str, list[Any]] = {name: options[name] or [] for name in PATTERNS}

    def find(self, name: str) -> bool:
        """Return whether a name is decayed; a match of an including pattern overrides every excluding pattern."""
        include, exclude = (any(p.search(f"{name}:0") for p in patterns) for patterns in self._lists.values())
        return include or not exclude

    def texts(self) -> dict[str, Any]:
        """Return option -> list of strings or None, as in the constructor."""
        return {option: [p.pattern for p in patterns] or None for option, patterns in self._lists.items()}

    def warn_of_idle(self, names: Iterable[str], remedy: str) -> None:
        """Warn of patterns without a match."""
        searched = [f"{name}:0" for name in names]
        idle = {
            option: [p.pattern for p in patterns if not any(p.search(name) for name in searched)]
            for option, patterns in self._lists.items()
        }
        if searched and any(idle.values()):
            found = ", ".join(f"{option}={patterns}" for option, patterns in idle.items() if patterns)
            where = f"They were searched in names like {', '.join(map(repr, searched[:4]))}."
            warnings.warn(f"Patterns that match no parameter: {found}. {where}{remedy}", stacklevel=4)
