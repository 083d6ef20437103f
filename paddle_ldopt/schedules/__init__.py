"""Learning-rate schedules: transformers' functions and more, on Paddle's `LRScheduler`.

`curves` has their shapes, step -> factor of the peak, `functions` builds schedules on these, and `metric` those that
follow a metric. `factory` has the table of all kinds, `options` the types of their arguments; `warmup` goes before any
other schedule, `ahead` reads the rates of a schedule in advance.
"""

from . import curve_schedule, factory, functions, metric, warmup
from .curve_schedule import *  # noqa: F403
from .factory import *  # noqa: F403
from .functions import *  # noqa: F403
from .metric import *  # noqa: F403
from .warmup import *  # noqa: F403

ON_METRIC = tuple(kind.name for kind in factory.SCHEDULES.values() if kind.on_metric)  # the kinds that follow a metric

__all__ = ["ON_METRIC"]
__all__ += curve_schedule.__all__
__all__ += factory.__all__
__all__ += functions.__all__
__all__ += metric.__all__
__all__ += warmup.__all__
