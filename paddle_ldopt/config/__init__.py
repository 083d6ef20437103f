"""All settings of optimizer, layers and schedule in one object; the problems of settings; files of settings."""

from .._messages import tell_all, unknown
from ..build import OPTIMIZERS
from .files import json_object, read_yaml
from .problems import DECAY_FIELDS, decay_problems, option_problems
from .settings import BUILT_IN, LdoptConfig

__all__ = [
    "BUILT_IN",
    "OPTIMIZERS",
    "DECAY_FIELDS",
    "LdoptConfig",
    "json_object",
    "option_problems",
    "read_yaml",
    "decay_problems",
    "tell_all",
    "unknown",
]
