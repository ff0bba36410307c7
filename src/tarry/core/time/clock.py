"""Time is always passed in: the engine reads it from a `Clock`, so that a simulation can own it.

Instants are whole milliseconds of the wall clock since 1970-01-01T00:00Z (`_at_ms`);
durations are milliseconds (`_ms`). There are no datetimes inside the core.

The wall clock can be set. `elapsed_ms` cannot, and so confirms or contradicts it (`tarry.core.time.clockwatch`).
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the wall-clock instant."""

    def now_ms(self) -> int:
        """The present instant, rounded down: an instant that has been reached is never early."""


class SteadyClock(Clock, Protocol):
    """Tells the wall-clock instant, and time that nobody can set."""

    def elapsed_ms(self) -> int:
        """Milliseconds since some fixed moment, such as the machine's start. It only goes forward, also while suspended."""


class SystemClock:
    """The operating system's wall clock."""

    def now_ms(self) -> int:
        """The present instant, rounded down to the millisecond."""
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        """Milliseconds since the machine started, time in suspension included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
