"""Regular expressions by which a user chooses parameters: their checks and their matches."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from .._messages import first_few, quoted, refusal


def checked_patterns(value: Any, argument: str, values: str) -> dict[str, Any]:
    """Return a dict from regular expressions to `values` (in words); raise for any other value or an empty dict."""
    if not isinstance(value, dict) or not value:
        problem = f"`{argument}` must be a non-empty dict from regular expressions to {values}."
        raise refusal(TypeError, problem, **{argument: value})
    for pattern in value:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            problem = f"The keys of `{argument}` must be regular expressions ({error})."
            raise refusal(ValueError, problem, pattern=pattern) from error
    return value


def matches_of(patterns: Iterable[str], names: list[str]) -> dict[str, list[str]]:
    """Return pattern -> the names that it matches."""
    return {pattern: [*filter(re.compile(pattern).search, names)] for pattern in patterns}


def check_matches(matches: dict[str, list[str]], names: list[str], argument: str) -> None:
    """Raise if a pattern matches none of the structured `names`; `matches` is the result of `matches_of`."""
    for pattern in (pattern for pattern, matched in matches.items() if not matched):
        near = _near(pattern, names)
        hint = f"similar names are {quoted(near)}" if near else f"the names are [{first_few(names, 8)}]"
        raise refusal(ValueError, f"A pattern of `{argument}` matches no parameter; {hint}.", pattern=pattern)


def _near(pattern: str, names: list[str]) -> list[str]:
    """Return up to three names with a part similar to a word of a pattern."""
    first = {part: name for name in reversed(names) for part in name.split(".")}
    words = re.findall(r"[^\W\d]\w+", re.sub(r"\\[a-zA-Z]", " ", pattern))
    near = [part for word in words for part in difflib.get_close_matches(word, first, 3, 0.6)]
    return list(dict.fromkeys(first[part] for part in near))[:3]
