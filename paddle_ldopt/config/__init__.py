"""All settings of optimizer, layers and schedule in one object; the problems of settings; files of settings."""

from .decay import DecaySettings, decay_from, decay_problems, option_of, settings_of, with_decay_settings
from .files import json_object, read_yaml
from .problems import option_problems
from .settings import BUILT_IN, LdoptConfig

__all__ = [
    "BUILT_IN",
    "DecaySettings",
    "LdoptConfig",
    "decay_from",
    "decay_problems",
    "json_object",
    "option_of",
    "option_problems",
    "read_yaml",
    "settings_of",
    "with_decay_settings",
]
