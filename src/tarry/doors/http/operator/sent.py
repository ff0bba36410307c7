"""Sent messages and how late they were: since the process began for metrics, and of the last minutes for the dashboard.

It is told of every message sent, so it only counts, in plain lists.
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from msgspec import Struct

from tarry.core.time.clock import Clock

LATENESS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
"""The upper bounds of the buckets in which lateness is counted; what is above the last is counted too."""

STEP_MS: Final = 5_000
STEPS: Final = 60
"""The last five minutes, in steps of five seconds."""


class Lateness:
    """A histogram."""

    __slots__ = ("buckets", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENESS_MS) + 1)
        self.sum_ms = 0
        self.max_ms = 0

    def add(self, lateness_ms: int, count: int) -> None:
        """Count messages."""
        self.buckets[bisect_left(LATENESS_MS, lateness_ms)] += count
        self.sum_ms += lateness_ms * count
        self.max_ms = max(self.max_ms, lateness_ms)

    def merge(self, other: "Lateness") -> None:
        """Count what another one has."""
        self.buckets = [mine + more for mine, more in zip(self.buckets, other.buckets, strict=True)]
        self.sum_ms += other.sum_ms
        self.max_ms = max(self.max_ms, other.max_ms)

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(self.buckets)

    def within_ms(self, share: float) -> int:
        """The lateness that a share of the messages did not exceed: the bound of a bucket, or the largest if that is below it."""
        wanted = share * self.count
        total = 0
        for bound, count in zip((*LATENESS_MS, self.max_ms), self.buckets, strict=True):
            total += count
            if total >= wanted:
                return min(bound, self.max_ms)
        return self.max_ms


class RecentDoor(Struct):
    """How late the messages of one door were in the last minutes."""

    sent: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int


class RecentlySent(Struct):
    """Figures of the messages sent in the last minutes."""

    step_ms: int
    sent: list[int]
    """Messages sent in each step, the present one last."""
    doors: dict[str, RecentDoor]


class Sent:
    """Counts messages sent, by the door through which they came."""

    def __init__(self, clock: Clock) -> None:
        self.doors: dict[str, Lateness] = {}
        """Lateness by door, since the process began."""
        self._clock = clock
        self._steps: deque[tuple[int, dict[str, Lateness]]] = deque(maxlen=STEPS)
        """The steps in which anything was sent, by their numbers."""

    def observe(self, door: str, lateness_ms: int, count: int) -> None:
        """Count messages sent."""
        step = self._clock.now_ms() // STEP_MS
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, {}))
        for doors in (self.doors, self._steps[-1][1]):
            found = doors.get(door)
            if found is None:
                found = doors[door] = Lateness()
            found.add(lateness_ms, count)

    def recent(self) -> RecentlySent:
        """Figures of the messages sent in the last minutes."""
        last = self._clock.now_ms() // STEP_MS
        sent = [0] * STEPS
        doors: dict[str, Lateness] = {}
        for step, by_door in self._steps:
            # A clock that was set back leaves steps that are yet to come.
            if not 0 <= last - step < STEPS:
                continue
            for door, lateness in by_door.items():
                sent[STEPS - 1 - (last - step)] += lateness.count
                doors.setdefault(door, Lateness()).merge(lateness)
        figures = {
            door: RecentDoor(of.count, of.within_ms(0.5), of.within_ms(0.95), of.within_ms(0.99), of.max_ms)
            for door, of in sorted(doors.items())
        }
        return RecentlySent(STEP_MS, sent, figures)
