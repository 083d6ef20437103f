"""`LdoptConfig`: the settings of optimizer, layers and schedule, their checks and their files."""

from .files import read_yaml
from .settings import LdoptConfig

__all__ = ["LdoptConfig", "read_yaml"]
