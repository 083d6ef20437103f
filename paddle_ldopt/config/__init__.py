"""`LdoptConfig`: the settings of optimizer, layers and schedule, their checks and their files."""

from .decay_settings import DecaySettings, decay_from, decay_problems, option_of, settings_of
from .files import json_argument, json_object, read_yaml
from .problems import MANY_STEPS, build_schedule, option_problems, schedule_problems
from .settings import LdoptConfig
from .trainer_arguments import BUILT_IN, evaluation_metric, name_of, schedule_settings

__all__ = [
    "BUILT_IN",
    "DecaySettings",
    "LdoptConfig",
    "MANY_STEPS",
    "build_schedule",
    "decay_from",
    "decay_problems",
    "json_argument",
    "json_object",
    "option_of",
    "option_problems",
    "read_yaml",
    "evaluation_metric",
    "name_of",
    "schedule_problems",
    "schedule_settings",
    "settings_of",
]
