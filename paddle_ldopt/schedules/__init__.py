"""Learning-rate schedules, all of transformers' and more, as Paddle `LRScheduler`s.

- `functions`: one function for each kind of schedule. Most build a `CurveSchedule` from one of the `curves`, the rest
  one of the schedules in `metric`.
- `registry`, `options`: the table of all kinds, and the types of their arguments.
- `factory`: builds a schedule by name.
- `warmup`: a warm-up before any other schedule.
- `ahead`: reads the future rates of a schedule.
"""

from . import curve_schedule, factory, metric, registry, warmup
from .curve_schedule import *  # noqa: F403
from .curve_schedule import RuleSchedule as RuleSchedule
from .factory import *  # noqa: F403
from .factory import ON_METRIC as ON_METRIC
from .functions import *  # noqa: F403
from .metric import *  # noqa: F403
from .warmup import *  # noqa: F403

__all__ = [kind.function.__name__ for kind in registry.SCHEDULES.values()]
__all__ += curve_schedule.__all__
__all__ += factory.__all__
__all__ += metric.__all__
__all__ += warmup.__all__
