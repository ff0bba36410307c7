"""Wall-clock schedules as instants, over days on which the clock is set forward or back (ADR 0025).

A zone is here a function that gives its offset from UTC at an instant. A schedule that names hours means the wall clock: a
time that is skipped comes at the end of the gap, and one that the clock shows twice comes the first time. A
schedule for every hour means hours that pass: nothing comes in a gap, and what the clock shows twice comes twice.
"""

from collections.abc import Callable
from typing import Final

from tarry.core.limits import HOUR_MS
from tarry.core.schedules.cron import Cron

Offset = Callable[[int], int]
"""How far the wall clock is ahead of UTC at an instant, in milliseconds."""

NEAR_MS: Final = 26 * HOUR_MS
"""No wall clock is further from UTC, or was ever set by more, than about a day. Two changes are further apart than this."""


def utc(_at_ms: int) -> int:
    """The offset of UTC itself."""
    return 0


class WallClock:
    """The wall clock of a zone."""

    def __init__(self, offset: Offset) -> None:
        self._offset = offset

    def change(self, low_ms: int, high_ms: int) -> int | None:
        """The instant of the change of the offset between two instants; None if they have the same one."""
        before = self._offset(low_ms)
        if self._offset(high_ms) == before:
            return None
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self._offset(middle_ms) == before:
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return high_ms

    def furthest(self, at_ms: int) -> int:
        """The latest time that the clock has shown up to an instant: after it was set back, that is not the present one."""
        now_ms = at_ms + self._offset(at_ms)
        change_ms = self.change(at_ms - NEAR_MS, at_ms)
        if change_ms is None:
            return now_ms
        return max(now_ms, change_ms - 1 + self._offset(change_ms - 1))

    def first_at(self, wall_ms: int) -> tuple[int, bool]:
        """The first instant at which the clock shows a time, or has passed it; and whether it ever shows that time."""
        change_ms = self.change(wall_ms - NEAR_MS, wall_ms + NEAR_MS)
        if change_ms is None:
            return wall_ms - self._offset(wall_ms), True
        at_ms = wall_ms - self._offset(change_ms - 1)
        if at_ms < change_ms:
            return at_ms, True
        at_ms = wall_ms - self._offset(change_ms)
        return max(at_ms, change_ms), at_ms >= change_ms

    def first_after(self, cron: Cron, at_ms: int) -> int | None:
        """The first instant of a schedule after another; None if there is none."""
        if not cron.every_hour:
            wall_ms = cron.after(self.furthest(at_ms))
            return None if wall_ms is None else self.first_at(wall_ms)[0]
        again_ms = self._second_time(cron, at_ms)
        wall_ms = self.furthest(at_ms)
        while (next_ms := cron.after(wall_ms)) is not None:
            found_ms, shown = self.first_at(next_ms)
            if shown:
                return found_ms if again_ms is None else min(found_ms, again_ms)
            # The last time that the clock skipped.
            wall_ms = found_ms + self._offset(found_ms) - 1
        return again_ms

    def _second_time(self, cron: Cron, at_ms: int) -> int | None:
        """The first instant after another at which the clock shows a time of the schedule for the second time."""
        change_ms = self.change(at_ms - NEAR_MS, at_ms + NEAR_MS)
        if change_ms is None:
            return None
        back_ms = self._offset(change_ms - 1) - self._offset(change_ms)
        wall_ms = cron.after(max(at_ms, change_ms - 1) + self._offset(change_ms))
        if wall_ms is None:
            return None
        found_ms = wall_ms - self._offset(change_ms)
        return found_ms if found_ms < change_ms + back_ms else None
