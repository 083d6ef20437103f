"""Errors in a user's input: one sentence, and the values received.

raise error("The file has no rows.", source="a.csv")
refuse(error(f"`{name}` must be 1 or more.", **{name: value}) for name, value in wrong)   # all at once
"""

from pathlib import Path


def error(problem, /, **received):
    """Return a ValueError with the problem and the values received."""
    values = (f"{name}={str(value) if isinstance(value, Path) else value!r}" for name, value in received.items())
    return ValueError(f"{problem} Received: {', '.join(values)}.")


def refuse(errors):
    """Raise the only error, or one ValueError that lists all; return without errors."""
    found = list(errors)
    if len(found) == 1:
        raise found[0]
    if found:
        lines = "".join(f"\n  {i}. {problem}" for i, problem in enumerate(found, 1))
        raise ValueError(f"{len(found)} arguments are wrong:{lines}")


def check_least(options, **least):
    """Raise ValueError if an option is below the given minimum."""
    found = {name: getattr(options, name) for name in least}
    low = {name: value for name, value in found.items() if value is not None and value < least[name]}
    refuse(error(f"`{name}` must be {least[name]} or more.", **{name: value}) for name, value in low.items())
