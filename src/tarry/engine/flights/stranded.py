"""Stranded messages: due for a part that this start does not have, such as the outlet of a closed door.

A stranded message gets a new version (R4) at one instant behind all due instants, so that it holds back neither the
watermark nor anybody else, and is not counted as attempted. The first start that has an outlet for it gives it another
version, at its own due instant or at the watermark (`returning`).
"""

import logging
from collections.abc import Mapping
from typing import Final

from tarry.core.limits import STRANDED_MS
from tarry.core.messages.delivery import Outlet
from tarry.core.rules import admission
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.returning import Returning
from tarry.engine.journal.journal import Journal
from tarry.engine.records.versions import new_version, scheme_of, wanted_at_ms
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Entry, Key, Put

log = logging.getLogger(__name__)

WARN_EVERY_MS: Final = 60_000


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
        self._state = state
        self._bodies = bodies
        self._clock = clock
        self._outlets = outlets
        self._end_writer = writing
        self.returning = Returning(
            journal, state, horizon, bodies, clock, writing, STRANDED_MS, self._returned
        )
        """The way back of those that can go out now."""
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
        """Log, now and then, that messages wait for a part that is not there."""
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
        if any(scheme in self._outlets for scheme in self._state.stranded):
            self.returning.begin(now_ms)

    def _returned(self, key: Key, waiting: Put | Entry) -> Put | None:
        """The version as which a message goes out, at its own due instant; None if its part is still missing."""
        if not isinstance(waiting, Put) or scheme_of(waiting.destination) not in self._outlets:
            return None
        fire_at_ms = admission.earliest(wanted_at_ms(waiting), waiting.accepted_at_ms, self._state.floor_ms)
        return new_version(waiting, key, fire_at_ms)
