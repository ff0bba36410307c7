"""What waits, by due time: the wheel below the horizon, and the un-indexed tail at or above it (R8).

Versions that are in the index only, at or above the horizon, cost nothing here. The horizon advances ahead of
the clock and brings in what comes next, from the index and from the tail. Dispatch never passes it.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.seqset import SeqSet
from tarry.core.wheel import Due, Wheel
from tarry.index.index import Index
from tarry.ledger.record import Key

STEP: Final = 200_000
"""Entries brought in at once: a few milliseconds of work, however many are due in one instant."""


class Horizon:
    """The wheel, the tail, and the key between them."""

    def __init__(self, index: Index, dead: SeqSet, lead_ms: int) -> None:
        self.wheel = Wheel()
        self.tail = Wheel()
        self.at = Key(0, 0)
        self.index = index
        self.on_earlier: Callable[[int], None] | None = None
        """Called when something was added that is due before everything else."""
        self._dead = dead
        self._lead_ms = lead_ms
        self._behind = False
        """Whether the last step stopped short of the lead."""

    def add(self, fire_at_ms: int, seq: int, lane: int) -> None:
        """Add a durable version (R2): into the wheel if its key is below the horizon, else the tail."""
        if (fire_at_ms, seq) < self.at:
            self.wheel.add(fire_at_ms, seq, lane)
            if self.on_earlier is not None:
                self.on_earlier(fire_at_ms)
        else:
            self.tail.add(fire_at_ms, seq, lane)

    def add_many(
        self, fire_at_ms: NDArray[np.int64], seqs: NDArray[np.int64], lanes: NDArray[np.uint16]
    ) -> None:
        """Add many durable versions."""
        near = (fire_at_ms < self.at.fire_at_ms) | ((fire_at_ms == self.at.fire_at_ms) & (seqs < self.at.seq))
        if near.any():
            self.wheel.add_many(fire_at_ms[near], seqs[near], lanes[near])
            if self.on_earlier is not None:
                self.on_earlier(int(fire_at_ms[near].min()))
        far = ~near
        if far.any():
            self.tail.add_many(fire_at_ms[far], seqs[far], lanes[far])

    def advance(self, now_ms: int) -> None:
        """Bring in what is due within the lead, a bounded number at a time, cutting at a key."""
        # Half a lead at a time, so that the step is taken now and then, and not at each tick.
        if self.at.fire_at_ms - now_ms > self._lead_ms // 2 and not self._behind:
            return
        goal = Key(now_ms + self._lead_ms, 0)
        cut = self.tail.nth_key(STEP)
        self._behind = cut is not None and cut < goal
        if cut is not None:
            goal = min(goal, Key(*cut))
        if goal <= self.at:
            return
        loaded = self.index.keys(self.at, goal)
        if len(loaded.seqs):
            alive = ~self._dead.contains_many(loaded.seqs)
            self.wheel.add_many(loaded.fire_at_ms[alive], loaded.seqs[alive], loaded.lanes[alive])
        near = self.tail.take_below(*goal)
        if len(near.seqs):
            self.wheel.add_many(*near)
        self.at = goal

    def postpone(self, until_ms: int, seq: int, lane: int) -> None:
        """Try an entry of the wheel again later; its key and record stay as they are."""
        self.wheel.add(until_ms, seq, lane)
        if self.on_earlier is not None:
            self.on_earlier(until_ms)

    def pop_due(self, now_ms: int, limit: int) -> Due:
        """Take what is due, in the order of keys. Whatever is not below the horizon is not in the wheel."""
        return self.wheel.pop_due(now_ms, limit)

    def next_fire_at_ms(self) -> int | None:
        """When the next entry of the wheel is due."""
        return self.wheel.next_fire_at_ms()

    def entries(self, low: Key, limit: int) -> Due:
        """Entries from a key on, in order, without taking them: for listing."""
        parts = [part.entries(low, limit) for part in (self.wheel, self.tail)]
        fires, seqs, lanes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((seqs, fires))[:limit]
        return Due(fires[order], seqs[order], lanes[order])

    def sweep(self) -> Iterator[int]:
        """Give back the memory of dead entries, in steps of a few milliseconds; yields how many each dropped."""

        def alive(seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
            return ~self._dead.contains_many(seqs)

        # The tail first: entries move from it into the wheel, and never back.
        yield from self.tail.filter_stepwise(alive)
        yield from self.wheel.filter_stepwise(alive)

    def __len__(self) -> int:
        return len(self.wheel) + len(self.tail)
