"""Time is always passed in: the engine reads it from a `Clock`, so that a simulation can own it.

Instants are whole milliseconds of the wall clock since 1970-01-01T00:00Z (`_at_ms`);
durations are milliseconds (`_ms`). There are no datetimes inside the core.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the wall-clock instant."""

    def now_ms(self) -> int:
        """The present instant, rounded down: an instant that has been reached is never early."""


class SystemClock:
    """The operating system's wall clock."""

    def now_ms(self) -> int:
        """The present instant, rounded down to the millisecond."""
        return time.time_ns() // 1_000_000
