"""What tests of schedules share: the rates of the next steps, and how long many steps may take."""

import math
import sys


def rates(schedule, steps, advance=lambda schedule: schedule.step()):
    """Return the rates of the next steps, the present one first."""
    out = []
    for _ in range(steps):
        out.append(schedule())
        advance(schedule)
    return out


def a_million_takes():
    """Return the seconds allowed; no limit while coverage traces each line, which takes longer than the step."""
    return 2.0 if sys.gettrace() is None else math.inf
