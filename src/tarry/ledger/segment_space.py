"""Space in segments is promised at append, not found at commit (R2).

A unit is taken only if it fits into what is already zero-filled: the rest of the active segment and
the spares. One whole spare is left for essential units, which may use it up.

Two views of the same thing are kept. The writer's is exact: `free_bytes` of the active segment and how
many spares it took (`rolls`). The engine's is a plan that counts every queued unit as a frame of its own;
merging units into fewer frames only makes them smaller, so the plan is never too hopeful. So that it does not
become too gloomy either, it is made anew from the writer's view and the queue before it takes another segment.
"""

from collections.abc import Iterable
from typing import Final

RESERVED_SPARES: Final = 1
"""Only essential units may use these."""


class SegmentSpace:
    """Counts bytes; does no I/O. `free_bytes` and `rolls` belong to whoever holds the writer's lock."""

    __slots__ = ("free_bytes", "plan_free_bytes", "plan_rolls", "rolls", "segment_bytes")

    def __init__(self, free_bytes: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        """Bytes that fit into a new segment."""
        self.free_bytes = free_bytes
        self.rolls = 0
        self.plan_free_bytes = free_bytes
        self.plan_rolls = 0

    def promise_here(self, need_bytes: int, prepared: int, essential: bool) -> bool:
        """Plan one more unit in the segment that the plan is in, if there is space.

        `prepared` counts all spares that ever were.
        """
        if need_bytes > self.plan_free_bytes:
            return False
        if prepared - self.plan_rolls < (0 if essential else RESERVED_SPARES):
            return False
        self.plan_free_bytes -= need_bytes
        return True

    def promise(self, need_bytes: int, prepared: int, essential: bool) -> bool:
        """Take space, from another segment if need be. The plan has just been made anew."""
        rolls, free_bytes = self._after(need_bytes)
        if prepared - rolls < (0 if essential else RESERVED_SPARES):
            return False
        self.plan_rolls, self.plan_free_bytes = rolls, free_bytes
        return True

    def fits(self, need_bytes: int, prepared: int) -> bool:
        """Whether a unit that is not essential could be promised its space."""
        return prepared - self._after(need_bytes)[0] >= RESERVED_SPARES

    def _after(self, need_bytes: int) -> tuple[int, int]:
        if need_bytes <= self.plan_free_bytes:
            return self.plan_rolls, self.plan_free_bytes - need_bytes
        return self.plan_rolls + 1, self.segment_bytes - need_bytes

    def plan_anew(self, queued: Iterable[int]) -> None:
        """Make the plan from the writer's view and what each queued unit needs. Under the writer's lock."""
        self.plan_rolls, self.plan_free_bytes = self.rolls, self.free_bytes
        for need_bytes in queued:
            self.plan_rolls, self.plan_free_bytes = self._after(need_bytes)

    def needs_roll(self, need_bytes: int) -> bool:
        """Whether the writer must begin a new segment for this frame; if so, it is counted as begun."""
        if need_bytes <= self.free_bytes:
            return False
        self.rolls += 1
        self.free_bytes = self.segment_bytes
        return True
