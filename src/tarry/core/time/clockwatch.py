"""A watch on the wall clock: time that cannot be set tells whether a step of the clock was the passing of time.

A clock that is an hour ahead for some seconds (a machine that was resumed, a real-time clock in local time, a bad time source)
looks like an hour that has passed. The engine must not take that for true at once, or everything that is accepted afterwards
would be late by an hour. So a step forward counts as unconfirmed until the clock is back, or has stayed there for long.
"""

from typing import Final, Literal

from tarry.core.limits import MINUTE_MS
from tarry.core.time.clock import SteadyClock

TRUSTED_AFTER_MS: Final = 10 * MINUTE_MS
"""A clock that has stayed ahead for so long is taken to be right: it was behind before."""

Step = Literal["ahead", "back", "trusted"]


class ClockWatch:
    """Compares the wall clock with elapsed time at every look."""

    def __init__(self, clock: SteadyClock, tolerance_ms: int) -> None:
        """Steps of up to `tolerance_ms` between two looks are adjustments that every clock makes."""
        self._clock = clock
        self._tolerance_ms = tolerance_ms
        self._offset_ms = clock.now_ms() - clock.elapsed_ms()
        """The wall clock less elapsed time, while the clock was right."""
        self._ahead_since_ms: int | None = None
        """Elapsed time at which the unconfirmed step came."""
        self.ahead_ms = 0
        """How far the clock is ahead of what elapsed time confirms; 0 while it is confirmed."""
        self.steps = {"ahead": 0, "back": 0}
        """How many steps there were in each direction."""

    def look(self, now_ms: int) -> Step | None:
        """Compare the clock, which shows this instant, with elapsed time; gives the change of its state, if there is one."""
        elapsed_ms = self._clock.elapsed_ms()
        step_ms = now_ms - elapsed_ms - self._offset_ms
        if step_ms > self._tolerance_ms:
            return self._is_ahead(step_ms, elapsed_ms)
        # Slewing is followed, and a clock that was set back is believed.
        was_ahead, self.ahead_ms, self._ahead_since_ms = self._ahead_since_ms is not None, 0, None
        self._offset_ms += step_ms
        if was_ahead or step_ms < -self._tolerance_ms:
            self.steps["back"] += 1
            return "back"
        return None

    def _is_ahead(self, step_ms: int, elapsed_ms: int) -> Step | None:
        if self._ahead_since_ms is None:
            self._ahead_since_ms = elapsed_ms
            self.ahead_ms = step_ms
            self.steps["ahead"] += 1
            return "ahead"
        self.ahead_ms = step_ms
        if elapsed_ms - self._ahead_since_ms < TRUSTED_AFTER_MS:
            return None
        self._offset_ms += step_ms
        self.ahead_ms, self._ahead_since_ms = 0, None
        return "trusted"

    def warnings(self) -> list[str]:
        """The doubt about the clock, in words for its operator; nothing while it is confirmed."""
        if not self.ahead_ms:
            return []
        doubt = (
            f"the clock was set forward by {self.ahead_ms / 1000:.0f} s, which elapsed time does not confirm"
        )
        return [f"{doubt}: due messages go out by it; set it right, or it is trusted after ten minutes"]

    def confirmed_ms(self, now_ms: int) -> int:
        """The instant that elapsed time confirms, where the clock shows this one."""
        return now_ms - self.ahead_ms
