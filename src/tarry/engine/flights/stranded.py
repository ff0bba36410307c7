"""Stranded messages: due for a part that this start does not have, such as the outlet of a closed door.

A stranded message gets a new version (R4) at one instant behind all due instants, so that it holds back neither the
watermark nor anybody else, and is not counted as attempted. The first start that has an outlet for it gives it another
version, at its own due instant or at the watermark. Until all have returned, for a moment at the most, nothing else is
dispatched: what is due later may have to follow them in order.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tarry.core import admission
from tarry.core.clock import Clock
from tarry.core.delivery import Outlet
from tarry.core.errors import Damage, TarryError
from tarry.core.limits import STRANDED_MS
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.journal.journal import Journal
from tarry.engine.records.versions import end_unread, new_version, scheme_of
from tarry.engine.state.engine_state import EngineState
from tarry.index.index import NOTHING, LoadedRows
from tarry.ledger.record import Key, Put, Record

log = logging.getLogger(__name__)

STEP: Final = 1_000
"""Messages that return in one unit of the ledger, at the most."""

HOLDS_MS: Final = 2_000
"""How long everything else waits for those that return."""

AGAIN_MS: Final = 1_000
"""After trouble with the index: when it is tried again."""

WARN_EVERY_MS: Final = 60_000

_END: Final = Key(STRANDED_MS + 1, 0)


class Stranded:
    """Sets messages aside whose part is missing, and brings them back."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        clock: Clock,
        outlets: Mapping[str, Outlet],
        writing: EndWriter,
    ) -> None:
        self._journal = journal
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._clock = clock
        self._outlets = outlets
        self._end_writer = writing
        self._returning = False
        self._began_at_ms = 0
        self._at = Key(STRANDED_MS, 0)
        """All below this key have returned, or stay."""
        self._busy = False
        self._again_at_ms = 0
        self._warned_at_ms = -WARN_EVERY_MS

    # Stranding

    def strand(self, key: Key, reason: str) -> None:
        """Set a due message aside that no attempt was made for."""
        self.warn(reason)
        self._end_writer.end(key, lambda: [self.version(key)])

    def version(self, key: Key, attempts: int | None = None) -> Put:
        """The version as which a message waits for its part."""
        put = self._bodies.version(key.seq)
        uncertain = put.uncertain or self._state.may_have_been_sent(key, put)
        attempts = put.attempts if attempts is None else attempts
        return new_version(put, key, STRANDED_MS, attempts=attempts, uncertain=uncertain)

    def warn(self, reason: str) -> None:
        """Say, now and then, that messages wait for something that is not there."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._warned_at_ms) >= WARN_EVERY_MS:
            self._warned_at_ms = now_ms
            waiting = self._state.stranded.total() + 1
            log.warning("due messages wait for a start that can send them: %s; %d so far", reason, waiting)

    def warnings(self) -> list[str]:
        """How many messages wait for what, in words."""
        return [
            f"messages that wait for an outlet for {scheme}:, which this start does not have: {count};"
            " they go out when a start has it again"
            if scheme not in self._outlets
            else f"messages for {scheme}: that wait for a part which this start does not have: {count}"
            for scheme, count in sorted(self._state.stranded.items())
        ]

    # Returning

    def begin(self, now_ms: int) -> None:
        """The state of the ledger is known: say what waits, and begin to bring back what can go out."""
        for warning in self.warnings():
            log.warning("%s", warning)
        self._returning = any(scheme in self._outlets for scheme in self._state.stranded)
        self._began_at_ms = now_ms

    def holds(self, now_ms: int) -> bool:
        """Whether everything else waits for those that return."""
        return self._returning and 0 <= now_ms - self._began_at_ms < HOLDS_MS

    def turn(self, now_ms: int) -> None:
        """Take the next step of bringing messages back."""
        waits = 0 < self._again_at_ms - now_ms <= AGAIN_MS
        if self._returning and not self._busy and not waits and not self._horizon.blocked:
            self._busy = True
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """Find the next keys: in the tail, and in the index at this same moment."""
        horizon, low = self._horizon, self._at
        tail = horizon.tail.entries(low, STEP)
        here = tail.seqs[tail.fire_at_ms == STRANDED_MS].tolist()
        upto = _END if len(here) < STEP else Key(STRANDED_MS, here[-1] + 1)
        if not horizon.view.may_hold(low, upto):
            self._found(here, upto, now_ms)
            return
        view, read = horizon.view, [LoadedRows(NOTHING, upto)]

        def done(error: Exception | None) -> None:
            if isinstance(error, TarryError | OSError):
                log.error("stranded messages cannot be read from the index, and are tried again: %s", error)
                self._busy, self._again_at_ms = False, self._clock.now_ms() + AGAIN_MS
            elif error is not None:
                raise error
            else:
                self._found([*here, *read[0].due.seqs.tolist()], min(upto, read[0].upto), now_ms)

        def load() -> None:
            read[0] = view.load(low, upto, STEP)

        self._horizon.read(load, done)

    def _found(self, seqs: Sequence[int], upto: Key, now_ms: int) -> None:
        below = np.array(sorted(seq for seq in seqs if Key(STRANDED_MS, seq) < upto), np.int64)
        alive = below[~self._state.dead.contains_many(below)]
        absent = alive[self._bodies.absent(alive)]
        keys = [Key(STRANDED_MS, seq) for seq in alive.tolist()]
        self._at = upto

        def held() -> None:
            self._return(keys, now_ms)

        if len(absent):
            self._bodies.hold([Key(STRANDED_MS, seq) for seq in absent.tolist()], held)
        else:
            held()

    def _return(self, keys: list[Key], now_ms: int) -> None:
        """Give new versions to those that can go out now, as many in a unit as fit; then look on."""
        unit: list[tuple[Key, Record]] = []
        room = self._journal.unit_max_bytes // 2
        for key in keys:
            try:
                put = self._bodies.version(key.seq)
                if scheme_of(put.destination) not in self._outlets:
                    continue
                record: Record = self._returned(key, put)
                size_bytes = len(put.payload) + 4_096
            except Damage as damage:
                self._state.counters["damaged"] += 1
                record, size_bytes = end_unread(key, now_ms, str(damage)), 4_096
            if unit and size_bytes > room:
                self._write(unit)
                unit, room = [], self._journal.unit_max_bytes // 2
            unit.append((key, record))
            room -= size_bytes
        if unit:
            self._write(unit)
        self._journal.when_durable(self._journal.next_seq - 1, lambda _: self._went_on())

    def _write(self, unit: list[tuple[Key, Record]]) -> None:
        dead, keys = self._state.dead, [key for key, _ in unit]
        # If they cannot be written, they stay as they are.
        self._end_writer.write(
            lambda: [record for key, record in unit if key.seq not in dead], keys, None, lambda _: []
        )

    def _returned(self, key: Key, put: Put) -> Put:
        fire_at_ms = admission.earliest(put.due_at_ms or 0, put.accepted_at_ms, self._state.floor_ms)
        return new_version(put, key, fire_at_ms)

    def _went_on(self) -> None:
        self._busy = False
        self._returning = self._at < _END
        self._horizon.wake()
