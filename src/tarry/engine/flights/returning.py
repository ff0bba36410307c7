"""Returning: versions that wait at one instant behind all due instants come back, as many at a time as fit a unit.

They are found in the tail and in the index, in the order in which they were set aside. Until all have returned, for a
moment at the most, nothing else is dispatched: what is due later may have to follow them in order.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tarry.core.errors import Damage, TarryError
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.deferral import RECORD_BYTES
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.units import pieces_of
from tarry.engine.records.versions import end_unread
from tarry.engine.state.engine_state import EngineState
from tarry.index.index import NOTHING, IndexMoved, LoadedRows
from tarry.ledger.record import Entry, Key, Put, Record, decode

log = logging.getLogger(__name__)

STEP: Final = 250
"""Messages that return in one unit of the ledger, at the most: some milliseconds of a turn."""

HOLDS_MS: Final = 2_000
"""How long everything else waits for those that return."""

AGAIN_MS: Final = 1_000
"""After trouble with the index: when it is tried again."""

Again = Callable[[Key, Put | Entry], Record | None]
"""The next version of a message that is set aside; None if it stays there."""


class NextVersion(NamedTuple):
    """The record by which a version comes back, and about how many bytes it takes."""

    key: Key
    record: Record
    size_bytes: int


class Returning:
    """Brings back the versions at one instant."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        clock: Clock,
        writing: EndWriter,
        aside_at_ms: int,
        again: Again,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """`done` is told when all have returned that can."""
        self._journal = journal
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._clock = clock
        self._end_writer = writing
        self._aside_at_ms = aside_at_ms
        self._end = Key(aside_at_ms + 1, 0)
        self._again = again
        self._done = done
        self._under_way = False
        self._once_more = False
        self._began_at_ms = 0
        self._at = Key(aside_at_ms, 0)
        """All below this key have returned, or stay."""
        self._effective_seq = 0
        """The last seq whose record had taken effect when the last look was taken."""
        self._next_seq = 0
        """The seq that was the next one at that look."""
        self._is_still = False
        """Whether no record was on its way then, and none was made until what it found came back."""
        self._came_back = False
        """Whether that look found any that comes back."""
        self._quiet = False
        """Whether the look before it was at the end, and found none."""
        self._busy = False
        self._again_at_ms = 0

    def begin(self, now_ms: int) -> None:
        """Look at all messages that were set aside, from the first one on; once more if that is under way."""
        if self._under_way:
            self._once_more = True
            return
        self._under_way = self._busy = True
        self._quiet = False
        self._began_at_ms = now_ms
        self._at = Key(self._aside_at_ms, 0)
        # Versions that are being set aside just now are found once they are durable, and those that had no space then stay away.
        self._journal.when_durable(self._journal.next_seq - 1, lambda _: self._found_durable())

    def _found_durable(self) -> None:
        self._busy = False
        self._horizon.wake()

    def holds(self, now_ms: int) -> bool:
        """Whether all other due messages wait for those that return."""
        return self._under_way and 0 <= now_ms - self._began_at_ms < HOLDS_MS

    def turn(self, now_ms: int) -> None:
        """Take the next step."""
        waits = 0 < self._again_at_ms - now_ms <= AGAIN_MS
        if self._under_way and not self._busy and not waits and not self._horizon.blocked:
            self._busy = True
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """Find the next keys: in the tail, and in the index at this same moment."""
        horizon, low = self._horizon, self._at
        self._effective_seq, self._next_seq = self._journal.effective_seq, self._journal.next_seq
        tail = horizon.tail.entries(low, STEP)
        here = tail.seqs[tail.fire_at_ms == self._aside_at_ms].tolist()
        upto = self._end if len(here) < STEP else Key(self._aside_at_ms, here[-1] + 1)
        if not horizon.view.may_hold(low, upto):
            self._found(here, upto, now_ms)
            return
        view, read = horizon.view, [LoadedRows(NOTHING, upto)]

        def done(error: Exception | None) -> None:
            if error is None:
                self._found([*here, *read[0].due.seqs.tolist()], min(upto, read[0].upto), now_ms)
                return
            if isinstance(error, IndexMoved):
                horizon.follow_soon()
            elif isinstance(error, TarryError | OSError):
                log.error(
                    "messages that return cannot be read from the index, and are tried again: %s", error
                )
            else:
                raise error
            self._busy, self._again_at_ms = False, self._clock.now_ms() + AGAIN_MS

        def load() -> None:
            read[0] = view.load(low, upto, STEP)

        self._horizon.read(load, done)

    def _found(self, seqs: Sequence[int], upto: Key, now_ms: int) -> None:
        below = np.array(sorted(seq for seq in seqs if Key(self._aside_at_ms, seq) < upto), np.int64)
        alive = below[~self._state.dead.contains_many(below)]
        absent = alive[self._bodies.absent(alive)]
        keys = [Key(self._aside_at_ms, seq) for seq in alive.tolist()]
        self._at = upto

        def held() -> None:
            self._return(keys, now_ms)

        if len(absent):
            self._bodies.hold([Key(self._aside_at_ms, seq) for seq in absent.tolist()], held)
        else:
            held()

    def _return(self, keys: list[Key], now_ms: int) -> None:
        """Give new versions to those that can go out now, as many in a unit as fit; then look on."""
        self._is_still = (
            self._effective_seq == self._next_seq - 1 and self._next_seq == self._journal.next_seq
        )
        versions: list[NextVersion] = []
        for key in keys:
            if key.seq in self._state.dead:
                # It was carried forward or ended while its body was on the way.
                continue
            try:
                body = self._bodies.one(key.seq)
                waiting = decode(body)
                again = self._again(key, waiting) if isinstance(waiting, Put | Entry) else None
                if again is not None:
                    versions.append(NextVersion(key, again, len(body) + RECORD_BYTES))
            except Damage as damage:
                self._state.counters["damaged"] += 1
                versions.append(NextVersion(key, end_unread(key, now_ms, str(damage)), RECORD_BYTES))
        for unit in pieces_of(versions, lambda one: one.size_bytes, self._journal.unit_max_bytes // 2):
            self._write(unit)
        self._came_back = bool(versions)
        self._journal.when_durable(self._journal.next_seq - 1, lambda _: self._went_on())

    def _write(self, unit: list[NextVersion]) -> None:
        dead, keys = self._state.dead, [one.key for one in unit]
        # If they cannot be written, they stay as they are.
        self._end_writer.write(
            lambda: [one.record for one in unit if one.key.seq not in dead], keys, None, lambda _: []
        )

    def _went_on(self) -> None:
        """Look on, until all have returned.

        A version that is carried forward meanwhile has a later seq, and is in no tail while its record is on its way. So the last
        look is one with no record on its way, or the second in which none comes back.
        """
        self._busy = False
        if self._at >= self._end:
            if self._is_still or (self._quiet and not self._came_back):
                self._finish()
            else:
                self._quiet = not self._came_back
                self._at = Key(self._aside_at_ms, self._effective_seq + 1)
        self._horizon.wake()

    def _finish(self) -> None:
        self._under_way = False
        if self._once_more:
            self._once_more = False
            self.begin(self._clock.now_ms())
        else:
            self._done()
