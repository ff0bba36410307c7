"""Verdicts: what becomes of flights by the outcome of their attempts, and how that is written.

The ends of those that were sent together are written together. A temporary failure is tried again with backoff, from the
wheel; past `carry_after_ms` by a new version, with all that is in order behind it (`deferral`).
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from tarry.core.limits import MAX_DELAY_MS, MINUTE_MS
from tarry.core.messages.delivery import Delivered, Missing, Refused, Retry, Verdict
from tarry.core.messages.lifecycle import Event, State
from tarry.core.rules import admission
from tarry.core.telemetry.tracing import SendOutcome
from tarry.core.time.backoff import after_attempts, spread
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.postponed import Later
from tarry.engine.flights.deferral import flight_parts
from tarry.engine.flights.end_writer import EndWriter, Otherwise
from tarry.engine.flights.failures import Failures
from tarry.engine.flights.flight import Flight
from tarry.engine.flights.stranded import Stranded
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.records.versions import end_of, new_version, tried_again
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.led_groups import beginnings
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Put, Record

log = logging.getLogger(__name__)

TELL_RETRIES_MS: Final = MINUTE_MS
MAX_HOSTS_TOLD: Final = 1_000
"""The log is told of a host that cannot be sent to so often, for so many hosts at a time."""


class Watched:
    """An attempt whose verdict a command waits for."""

    __slots__ = ("verdict",)

    def __init__(self) -> None:
        self.verdict: Verdict | None = None


class Verdicts:
    """Takes the verdicts on attempts, and writes what follows from them."""

    def __init__(
        self,
        *,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        isolation: Isolation,
        settings: EngineSettings,
        end_writer: EndWriter,
        stranded: Stranded,
        failures: Failures,
        later: Later,
        sent: Callable[[Sequence[PutHead], int], None],
        land: Callable[[Flight], None],
        leave: Callable[[Flight], None],
        carry: Callable[[Flight, int], None],
        start: Callable[[int], None],
        seed: int,
    ) -> None:
        """`sent` hears of messages that were sent, and when.

        `land` gives back a flight's place, `leave` ends it, `carry` has it go on at an instant as a new version, and `start` has
        others leave.
        """
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._clock = clock
        self._isolation = isolation
        self._settings = settings
        self._end_writer = end_writer
        self._stranded = stranded
        self._failures = failures
        self._later = later
        self._sent = sent
        self._land = land
        self._leave = leave
        self._carry = carry
        self._start = start
        self._random = random.Random(seed)
        self._told_retries: dict[str, int] = {}
        """By host: when the log was told last that it cannot be sent to."""
        self._watched: dict[int, Watched] = {}
        """By seq: attempts whose verdict somebody waits for."""

    def take(self, verdicts: Iterable[tuple[Flight, Verdict]], now_ms: int) -> None:
        """Decide what becomes of flights whose attempts have these verdicts."""
        sent: list[Flight] = []
        for flight, verdict in verdicts:
            self._land(flight)
            if (watched := self._watched.get(flight.key.seq)) is not None:
                watched.verdict = verdict
            if flight.span is not None:
                flight.span.end(self._outcome(flight, verdict, now_ms))
                flight.span = None
            if isinstance(verdict, Delivered):
                flight.reference = verdict.reference
                sent.append(flight)
            else:
                try:
                    self._not_sent(flight, verdict, now_ms)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                    reason = self._isolation.reason(flight.key.seq, error, "was to be tried again")
                    if flight.state is State.SCHEDULED:
                        flight.becomes(Event.CLAIM)
                    self._fail(flight, reason, now_ms)
        if sent:
            self._end_sent(sent, now_ms)

    def _end_sent(self, flights: list[Flight], now_ms: int) -> None:
        """Write the ends of flights that were sent together; with the end of a leader, the messages whose delay begins with it."""
        led = self._state.groups.led_by
        leaders = [flight for flight in flights if led(flight.origin)]
        if leaders:
            flights = [flight for flight in flights if flight not in leaders]
        parts = [[leader] for leader in leaders]
        parts += flight_parts(flights, self._journal.unit_max_bytes)
        for part in parts:

            def make(part: list[Flight] = part) -> list[Record]:
                records: list[Record] = []
                for one in part:
                    ended = one.put or one.head
                    records.append(
                        end_of(
                            ended, one.key, "sent", now_ms, None, one.reference, one.attempts,
                            tried=one.tried_last,
                        )
                    )  # fmt: skip
                    records += beginnings(self._state, self._bodies, one.origin, one.reference, now_ms)
                return records

            def otherwise(reason: str, part: list[Flight] = part) -> list[Record]:
                records: list[Record] = []
                for one in part:
                    records.append(
                        end_of(one.head, one.key, "sent", now_ms, None, one.reference, one.attempts)
                    )
                    records += self._state.groups.ends_of_led(one.origin, now_ms, reason)
                return records

            self._finish(part, Event.DELIVERED, make, now_ms, otherwise)

    def _not_sent(self, flight: Flight, verdict: Refused | Retry | Missing, now_ms: int) -> None:
        match verdict:
            case Missing():
                flight.attempts -= 1
                self._stranded.warn(verdict.reason)
                make = partial(self._stranded.version, flight.key, flight.attempts)
                self._finish([flight], Event.NOT_DELIVERED, lambda: [make()], now_ms)
            case Refused() if flight.put is not None and _may_wait(flight.put, now_ms):
                self._wait_again(flight, flight.put, now_ms)
            case Refused():
                self._fail(flight, verdict.reason, now_ms, verdict.error)
            case Retry(counted=True) if flight.attempts >= self._settings.attempts:
                reason = f"{verdict.reason} (attempt {flight.attempts}, the last)"
                self._fail(flight, reason, now_ms, verdict.error)
            case Retry():
                self._state.counters["retried"] += 1
                flight.becomes(Event.NOT_DELIVERED)
                flight.uncertain |= verdict.uncertain
                wait_ms = self._backoff_ms(flight.attempts) if verdict.after_ms is None else verdict.after_ms
                # A receiver may wish for anything.
                at_ms = now_ms + min(max(1, wait_ms), MAX_DELAY_MS)
                flight.tried_last = tried_again(flight.tried_last, now_ms, verdict.reason, flight.attempts)
                flight.again_at_ms = at_ms
                self._tell_retry(flight, verdict.reason, now_ms)
                self._retry(flight, at_ms)

    def _outcome(self, flight: Flight, verdict: Verdict, now_ms: int) -> SendOutcome:
        """The outcome of an attempt, as it is told."""
        if isinstance(verdict, Delivered):
            return "sent"
        if isinstance(verdict, Missing):
            return "retried"
        if isinstance(verdict, Refused):
            again = flight.put is not None and _may_wait(flight.put, now_ms)
        else:
            again = not verdict.counted or flight.attempts < self._settings.attempts
        return "retried" if again else "failed"

    def _backoff_ms(self, attempts: int) -> int:
        """The wait before the next attempt, in milliseconds."""
        settings = self._settings
        wait_ms = after_attempts(attempts, settings.backoff_min_ms, settings.backoff_max_ms)
        return round(spread(wait_ms, self._random.random))

    def watch(self, seq: int, told: Callable[[Verdict | None], None]) -> None:
        """Tell the verdict on the next attempt to send a version; None if it is replaced or ended otherwise."""
        watched = self._watched.setdefault(seq, Watched())

        def settled() -> None:
            # Whoever is told may watch again.
            if self._watched.get(seq) is watched:
                del self._watched[seq]
            told(watched.verdict)

        self._end_writer.when_settled(seq, settled)

    def _wait_again(self, flight: Flight, put: Put, now_ms: int) -> None:
        """Put a message off that was tried before its instant, and refused: it waits for that instant."""
        fire_at_ms = admission.earliest(put.due_at_ms or now_ms, now_ms, self._state.floor_ms)
        version = new_version(put, flight.key, fire_at_ms, commanded="", attempts=0)
        self._finish([flight], Event.NOT_DELIVERED, lambda: [version], now_ms)

    def _fail(self, flight: Flight, reason: str, now_ms: int, error: str | None = None) -> None:
        def make() -> list[Record]:
            ended = flight.put or flight.head
            return self._failures.records(
                flight.key, ended, reason, now_ms, flight.attempts, error,
                uncertain=flight.uncertain, tried=flight.tried_last,
            )  # fmt: skip

        self._finish([flight], Event.REFUSED, make, now_ms)

    def _finish(
        self,
        flights: list[Flight],
        event: Event,
        make: Callable[[], list[Record]],
        now_ms: int,
        otherwise: Otherwise | None = None,
    ) -> None:
        def failed(reason: str) -> list[Record]:
            ends: list[Record] = []
            for one in flights:
                ends.append(end_of(one.head, one.key, "failed", now_ms, reason, None, one.attempts))
                ends += self._state.groups.ends_of_orphans(one.head, one.origin, now_ms)
            return ends

        def done() -> None:
            for flight in flights:
                flight.becomes(event)
                self._leave(flight)
            if event is Event.DELIVERED:
                self._sent([flight.head for flight in flights], now_ms)
            # The clock is read again: it may have been set back since the verdict.
            self._start(self._clock.now_ms())

        self._end_writer.write(make, [flight.key for flight in flights], done, otherwise or failed)

    def _retry(self, flight: Flight, at_ms: int) -> None:
        if at_ms - flight.key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(flight.key, flight.lane, at_ms)
            # Commands that waited for this verdict look again: the message is scheduled once more.
            self._end_writer.settled([flight.key.seq])
        else:
            self._carry(flight, at_ms)

    def _tell_retry(self, flight: Flight, reason: str, now_ms: int) -> None:
        """Log that a receiver cannot be sent to: at the first attempt that fails, and then once a minute for each host."""
        told_ms = self._told_retries.get(flight.host)
        if told_ms is not None and 0 <= now_ms - told_ms < TELL_RETRIES_MS:
            return
        if len(self._told_retries) >= MAX_HOSTS_TOLD:
            self._told_retries.clear()
        self._told_retries[flight.host] = now_ms
        log.warning("sending to %s failed and is tried again: %s", flight.host, reason)


def _may_wait(put: Put, now_ms: int) -> bool:
    """Whether a version that was refused was only tried, before its instant."""
    return put.commanded == "try" and put.due_at_ms is not None and put.due_at_ms > now_ms
