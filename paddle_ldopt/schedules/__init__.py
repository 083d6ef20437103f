"""Learning-rate schedules: transformers' functions and more, on Paddle's `LRScheduler`.

`functions` has one for each kind: those that are a function of the step alone are built of `curves`, step -> factor of
the peak, the others in `metric` follow a metric. `registry` has the table of all kinds, `options` the types of their
arguments, `factory` builds any by its name; `warmup` goes before any other schedule, `ahead` reads the rates of a
schedule in advance.
"""

from . import curve_schedule, factory, metric, registry, warmup
from .curve_schedule import *  # noqa: F403
from .factory import *  # noqa: F403
from .functions import *  # noqa: F403
from .metric import *  # noqa: F403
from .warmup import *  # noqa: F403

__all__ = [kind.function.__name__ for kind in registry.SCHEDULES.values()]
__all__ += curve_schedule.__all__
__all__ += factory.__all__
__all__ += metric.__all__
__all__ += warmup.__all__
