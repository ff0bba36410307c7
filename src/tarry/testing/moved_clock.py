"""The machine's clock, moved: it goes on by itself, and further whenever a test says so. For a real server under test.

`SimulatedClock` stands still until it is told to move; this one also passes by itself, so that programs that wait a second get
one. It can be stopped. It never goes back. No setting and no command gives a server such a clock: only the program of `tarry.pytest`
makes one.
"""

from typing import Final

from tarry.core.time.clock import SteadyClock, SystemClock
from tarry.engine.loop.alarm import Alarm

RESET_MS: Final = 1_000
"""While the clock stands, its alarm rings so often for nothing."""


class MovedClock:
    """A wall clock that shows an instant ahead of the machine's."""

    def __init__(self, machine: SteadyClock | None = None) -> None:
        self._machine = machine or SystemClock()
        self._began_ms = self._machine.now_ms()
        self._base_ms = self._began_ms
        """The instant that it showed when it was moved, stopped or started last."""
        self._since_ms: int | None = self._machine.elapsed_ms()
        """Elapsed time of the machine then; None while the clock stands."""

    @property
    def runs(self) -> bool:
        """Whether it goes on by itself."""
        return self._since_ms is not None

    def now_ms(self) -> int:
        """The present instant."""
        passed_ms = 0 if self._since_ms is None else self._machine.elapsed_ms() - self._since_ms
        return self._base_ms + passed_ms

    def elapsed_ms(self) -> int:
        """Time since it was made: what it was moved by has passed, too."""
        return self.now_ms() - self._began_ms

    def move_to(self, at_ms: int) -> None:
        """Let time pass until an instant; nothing happens if that is past."""
        self._set(max(at_ms, self.now_ms()), runs=self.runs)

    def stop(self) -> None:
        """Stand still at the present instant."""
        self._set(self.now_ms(), runs=False)

    def start(self) -> None:
        """Go on by itself from here."""
        self._set(self.now_ms(), runs=True)

    def _set(self, at_ms: int, *, runs: bool) -> None:
        self._base_ms = at_ms
        self._since_ms = self._machine.elapsed_ms() if runs else None


class MovedAlarm(Alarm):
    """Rings at an instant that a moved clock shows."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__()
        self._clock = clock

    def set(self, at_ms: int) -> None:
        """Ring at an instant of the moved clock, if nobody moves it before; the mover has to wake the driver."""
        wait_ms = max(0, at_ms - self._clock.now_ms()) if self._clock.runs else RESET_MS
        super().set(SystemClock().now_ms() + wait_ms)
