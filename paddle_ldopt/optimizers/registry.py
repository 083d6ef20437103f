"""The table of our optimizers: each registers itself in its own file."""

from .._messages import nearest, shown
from .declaration import REGISTRY, OptimizerInfo

__all__ = ["REGISTRY", "OptimizerInfo", "list_optimizers", "optimizer_class"]


def list_optimizers() -> list[str]:
    """Return the names that `create` and the Trainer's ``--optim`` know.

    Examples:
        >>> import paddle_ldopt as ldopt
        >>> "adamwdl" in ldopt.list_optimizers()
        True
    """
    return list(REGISTRY)


def optimizer_class(name: str) -> type:
    """Return the class of an optimizer by its name in `list_optimizers`; raise ValueError if none has it."""
    if not isinstance(name, str) or name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY)) + nearest(name, REGISTRY)
        raise ValueError(f"`name` must be one of {known}. Received: name={shown(name)}")
    return REGISTRY[name].cls
