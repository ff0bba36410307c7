"""Flights: messages on their way to other systems, from the moment they are due to their verdict.

Those that are due together for one destination leave together, if their outlet takes several in one call, and what came
of them is written together. `places` says who leaves when; flights with one order key go out one after another. A
temporary failure is tried again with backoff, from the wheel; past `carry_after_ms` by a new version, with all that
is in order behind it (`carrying`).
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

import numpy as np

from tarry.core import admission
from tarry.core.backoff import after_attempts, spread
from tarry.core.clock import Clock
from tarry.core.delivery import BulkOutlet, Delivered, Delivery, Missing, Outlet, Refused, Retry, Verdict
from tarry.core.errors import Damage, Unavailable
from tarry.core.ids import Ids
from tarry.core.lifecycle import Event, State
from tarry.core.limits import MAX_DELAY_MS, MINUTE_MS
from tarry.core.tracing import SendOutcome
from tarry.engine.bodies.bodies import Bodies, Body, version_of
from tarry.engine.bodies.body_sizes import SMALL_BYTES
from tarry.engine.due.postponed import Later
from tarry.engine.flights.boarding import Boarding
from tarry.engine.flights.deferral import Deferral, flight_parts
from tarry.engine.flights.end_writer import SPACE_RETRY_MS, EndWriter, Otherwise
from tarry.engine.flights.failures import Failures
from tarry.engine.flights.flight import Departure, Flight
from tarry.engine.flights.fresh_mark import FreshMark
from tarry.engine.flights.holding import DueMessage, Holding
from tarry.engine.flights.stranded import Stranded
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.records.tries import tried_again
from tarry.engine.records.versions import end_of, has_expired, new_version
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.led_groups import beginnings
from tarry.engine.tracing import Tracing
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import Claim, Key, Put, Record, decode_put

log = logging.getLogger(__name__)

TELL_RETRIES_MS: Final = MINUTE_MS
MAX_HOSTS_TOLD: Final = 1_000
"""The log is told of a host that cannot be sent to so often, for so many hosts at a time."""

Told = Callable[[Sequence[tuple[str, Verdict]]], None]
"""Told of verdicts on deliveries, by their ids."""

Launch = Callable[[Outlet, Sequence[Delivery], Told], None]
"""Begin to send: call the outlet and give the verdict on each delivery back on the engine's thread, once.

Those that come together are told together. Several deliveries are given to a `BulkOutlet` only.
"""


class Watched:
    """An attempt whose verdict a command waits for."""

    __slots__ = ("verdict",)

    def __init__(self) -> None:
        self.verdict: Verdict | None = None


class Flights:
    """All flights."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        ids: Ids,
        isolation: Isolation,
        outlets: Mapping[str, Outlet],
        settings: EngineSettings,
        launch: Launch,
        writing: EndWriter,
        stranded: Stranded,
        holding: Holding,
        failures: Failures,
        later: Later,
        sent: Callable[[Sequence[PutHead], int], None],
        seed: int,
        tracing: Tracing | None,
        fresh: FreshMark | None,
    ) -> None:
        """`sent` hears of messages that were sent, and when. With `fresh` departures are recorded before they leave (R15)."""
        self.by_seq: dict[int, Flight] = {}
        """Being sent, waiting for a place, or between two attempts."""
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._clock = clock
        self._ids = ids
        self._isolation = isolation
        self._sent = sent
        self._tracing = tracing
        self._fresh = fresh
        self._unrecorded: list[Departure] = []
        """Departures of this turn that leave once a record of it is durable."""
        self._outlets = outlets
        self._together = {
            scheme: outlet.together if isinstance(outlet, BulkOutlet) else 1
            for scheme, outlet in outlets.items()
        }
        self._settings = settings
        self._launch = launch
        self._end_writer = writing
        self._stranded = stranded
        self._holding = holding
        self._later = later
        self._failures = failures
        self._random = random.Random(seed)
        self._boarding = Boarding(settings.concurrency, settings.concurrency_per_host)
        self._deferral = Deferral(journal, state, bodies, clock, writing, later)
        self._chains: dict[str, deque[Flight]] = {}
        """Flights in order behind one another; the first is under way."""
        self._keys: list[Key] = []
        """A heap of the keys of flights; those that are over are dropped late."""
        self._at_hand: dict[int, ReadPut | Put] = {}
        """Decoded bodies of messages that became due this turn, kept until it is known which flights have a place, so that they are not decoded twice."""
        self._away: dict[str, Flight] = {}
        """By the id of its delivery: who is under way."""
        self._told_retries: dict[str, int] = {}
        """By host: when the log was told last that it cannot be sent to."""
        self._watched: dict[int, Watched] = {}
        """By seq: attempts whose verdict somebody waits for."""

    def begin(self, key: Key, head: ReadPut, body: bytes, now_ms: int) -> None:
        """A message is due: it goes out as soon as there is a place."""
        flight = self.by_seq.get(key.seq)
        if flight is None:
            scheme = head.destination.partition(":")[0]
            outlet = self._outlets.get(scheme)
            if outlet is None:
                self._stranded.strand(key, f"there is no outlet for {scheme}:")
                return
            flight = Flight(key, head, outlet, self._together[scheme], len(body))
            if head.attempts:
                flight.tried_last = decode_put(body).tried
            at_hand = self._what_to_keep(head, body)
            order = flight.order
            if order is not None and self._deferral.keeps_back(flight, order, now_ms):
                return
            self.by_seq[key.seq] = flight
            heappush(self._keys, key)
            if order is not None:
                chain = self._chains.setdefault(order, deque())
                chain.append(flight)
                if len(chain) > 1:
                    return
        else:
            at_hand = self._what_to_keep(head, body)
        if at_hand is not None:
            self._at_hand[key.seq] = at_hand
        self._boarding.wait(flight)

    def _what_to_keep(self, head: ReadPut, body: bytes) -> ReadPut | Put | None:
        """The version to send, if it is small enough to be kept in memory until there is a place for it."""
        if len(body) > SMALL_BYTES:
            return None
        wanted_whole = head.listed or self._tracing is not None
        return decode_put(body) if wanted_whole else head

    # Leaving

    def start(self, now_ms: int) -> None:
        """Start waiting flights while there are places."""
        if not self._journal.failed:
            while leaving := self._boarding.board(lambda flight: self._may_leave(flight, now_ms)):
                for departure in leaving:
                    self._depart(departure, now_ms)
            if self._unrecorded and self._fresh is not None:
                self._record_departures(self._fresh, now_ms)
        self._at_hand.clear()

    def _record_departures(self, fresh: FreshMark, now_ms: int) -> None:
        """Let the departures of this turn leave once a record that is enqueued now is durable (R15).

        Only then is it known that nobody else owned the ledger when their messages were taken from the timer queue.
        """
        departures, self._unrecorded = self._unrecorded, []
        seqs = [flight.key.seq for departure in departures for flight in departure.flights]
        at_hand = {seq: self._at_hand[seq] for seq in seqs if seq in self._at_hand}

        def durable() -> None:
            self._at_hand = at_hand
            durable_ms = self._clock.now_ms()
            for departure in departures:
                if any(durable_ms < flight.key.fire_at_ms for flight in departure.flights):
                    # The clock was set back while it waited for its record.
                    self._call_off(departure, durable_ms)
                else:
                    self._send(departure)
            # If some could not even be read, their places are free again.
            self.start(self._clock.now_ms())

        try:
            fresh.append(durable)
        except Unavailable:
            for departure in departures:
                self._call_off(departure, now_ms + SPACE_RETRY_MS)

    def _call_off(self, departure: Departure, again_ms: int) -> None:
        """Let a departure come again: none of its flights was sent."""
        for flight in departure.flights:
            flight.becomes(Event.NOT_DELIVERED)
            self._boarding.land(flight)
            self._later(flight.key, flight.lane, max(again_ms, flight.key.fire_at_ms))
            self._end_writer.settled([flight.key.seq])

    def _may_leave(self, flight: Flight, now_ms: int) -> bool:
        """Whether an attempt is still to be made, and now."""
        seq = flight.key.seq
        if self.by_seq.get(seq) is not flight:
            return False
        if now_ms < flight.key.fire_at_ms:
            # The clock was set back while it waited for a place.
            self._later(flight.key, flight.lane, flight.key.fire_at_ms)
            return False
        if seq in self._state.dead:
            # Another one of its group was sent.
            self.leave(flight)
            self._end_writer.settled([seq])
            return False
        head = flight.head
        if self._state.pauses.at(head.namespace, head.destination, head.owner):
            self.hold([DueMessage(flight.key, flight)])
            return False
        if has_expired(flight.key, flight.head, now_ms):
            self._failures.expire(flight.key, flight.head, flight.attempts, now_ms)
            return False
        return True

    def _depart(self, departure: Departure, now_ms: int) -> None:
        first = departure.flights[0]
        grouped = first.needs_claim
        if grouped and not self._may_leave(first, now_ms):
            # One of its group, in this same moment, has ended it.
            self._boarding.land(first)
            return
        try:
            claimed = not grouped or self._claim(departure, now_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
            reason = self._isolation.reason(first.key.seq, error, "was claimed")
            first.becomes(Event.CLAIM)
            self._judge([(first, Refused(reason))], now_ms)
            return
        if not claimed:
            self._boarding.land(first)
            self._later(first.key, first.lane, now_ms + SPACE_RETRY_MS)
            return
        for flight in departure.flights:
            flight.becomes(Event.CLAIM)
        if grouped:
            # It leaves with its claim, which is a record that was enqueued just now.
            return
        if self._fresh is None:
            self._send(departure)
        else:
            self._unrecorded.append(departure)

    def _claim(self, departure: Departure, now_ms: int) -> bool:
        """A grouped message needs a synced claim, which ends its siblings, before it goes out (R11).

        Answers whether there is space for it; it is sent once it is durable.
        """
        (flight,) = departure.flights
        head = flight.head
        assert head.group is not None
        records: list[Record] = [Claim(flight.key.seq, head.group, head.owner, now_ms, head.namespace)]
        records += self._state.groups.ends_of_siblings(head, flight.origin, now_ms)

        def synced(error: Exception | None) -> None:
            if error is None:
                self._send(departure)
                # If it could not even be read, its place is free again.
                self.start(self._clock.now_ms())

        try:
            self._journal.append(records, synced, essential=True)
        except Unavailable:
            return False
        return True

    def _send(self, departure: Departure) -> None:
        flights = departure.flights
        deliveries: list[Delivery] = []
        unread: list[tuple[Flight, Verdict]] = []
        ids = self._ids.make_all([flight.origin for flight in flights])
        for flight, id_, put in zip(flights, ids, self._puts(flights), strict=True):
            if put is None or isinstance(put, Damage):
                # It was sound when it became due, and is not any more (R3).
                self._state.counters["damaged"] += 1
                unread.append((flight, Refused(str(put or f"there is no record at seq {flight.key.seq}"))))
                continue
            try:
                deliveries.append(self._delivery(flight, id_, put))
                self._away[id_] = flight
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                reason = self._isolation.reason(flight.key.seq, error, "was to leave")
                unread.append((flight, Refused(reason)))
        if unread:
            self._judge(unread, self._clock.now_ms())
        if deliveries:
            self._launch(departure.outlet, deliveries, self.landed)

    def _delivery(self, flight: Flight, id_: str, put: ReadPut | Put) -> Delivery:
        """The next attempt to send a message."""
        flight.attempts += 1
        flight.put = put if isinstance(put, Put) and put.listed else None
        if self._tracing is not None and isinstance(put, Put):
            now_ms = self._clock.now_ms()
            flight.span = self._tracing.attempt(flight.key.seq, put, flight.attempts, now_ms)
        return Delivery(
            id_, put.destination, put.payload, put.headers, put.key, put.owner,
            put.due_at_ms or put.fire_at_ms, put.accepted_at_ms, flight.attempts, put.door, put.namespace,
        )  # fmt: skip

    def _puts(self, flights: list[Flight]) -> Sequence[ReadPut | Put | Damage | None]:
        """The versions to send: at hand, or read again."""
        found = [self._at_hand.get(flight.key.seq) for flight in flights]
        if None not in found:
            return found
        seqs = [flight.key.seq for flight in flights]
        bodies = self._bodies.many(np.array(seqs, np.int64))
        return [_version_or_damage(seq, body) for seq, body in zip(seqs, bodies, strict=True)]

    # Verdicts

    def landed(self, verdicts: Sequence[tuple[str, Verdict]]) -> None:
        """Take the verdicts on a departure."""
        now_ms = self._clock.now_ms()
        self._judge([(self._away.pop(id_), verdict) for id_, verdict in verdicts], now_ms)
        self.start(now_ms)

    def _judge(self, verdicts: Iterable[tuple[Flight, Verdict]], now_ms: int) -> None:
        sent: list[Flight] = []
        for flight, verdict in verdicts:
            self._boarding.land(flight)
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
                self.leave(flight)
            if event is Event.DELIVERED:
                self._sent([flight.head for flight in flights], now_ms)
            # The clock is read again: it may have been set back since the verdict.
            self.start(self._clock.now_ms())

        self._end_writer.write(make, [flight.key for flight in flights], done, otherwise or failed)

    def hold(self, due: Sequence[DueMessage]) -> None:
        """Set due messages aside whose place is paused: those among them that are flights end here."""

        def held() -> None:
            for _, flight in due:
                if flight is not None and self.by_seq.get(flight.key.seq) is flight:
                    self.leave(flight)
            self.start(self._clock.now_ms())

        self._holding.hold(due, held)

    def leave(self, flight: Flight) -> None:
        """A flight is over: the next of its chain may go."""
        if self.by_seq.pop(flight.key.seq, None) is None or flight.order is None:
            return
        chain = self._chains[flight.order]
        first = chain[0] is flight
        chain.remove(flight)
        if not chain:
            del self._chains[flight.order]
        elif first:
            self._boarding.wait(chain[0])

    def _retry(self, flight: Flight, at_ms: int) -> None:
        if at_ms - flight.key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(flight.key, flight.lane, at_ms)
            # Commands that waited for this verdict look again: the message is scheduled once more.
            self._end_writer.settled([flight.key.seq])
            return
        # Past that by a new version, and with it all that is in order behind it (R9).
        chain = [flight] if flight.order is None else list(self._chains.pop(flight.order))
        for one in chain:
            self.by_seq.pop(one.key.seq, None)
        self._deferral.carry(chain, at_ms)

    def _tell_retry(self, flight: Flight, reason: str, now_ms: int) -> None:
        """Log that a receiver cannot be sent to: at the first attempt that fails, and then once a minute for each host."""
        told_ms = self._told_retries.get(flight.host)
        if told_ms is not None and 0 <= now_ms - told_ms < TELL_RETRIES_MS:
            return
        if len(self._told_retries) >= MAX_HOSTS_TOLD:
            self._told_retries.clear()
        self._told_retries[flight.host] = now_ms
        log.warning("sending to %s failed and is tried again: %s", flight.host, reason)

    def lowest(self) -> Key | None:
        """The lowest key of a flight."""
        while self._keys and self._keys[0].seq not in self.by_seq:
            heappop(self._keys)
        return self._keys[0] if self._keys else None


def _version_or_damage(seq: int, body: Body) -> Put | Damage | None:
    if not isinstance(body, bytes):
        return body
    try:
        return version_of(seq, body)
    except Damage as damage:
        return damage


def _may_wait(put: Put, now_ms: int) -> bool:
    """Whether a version that was refused was only tried, before its instant."""
    return put.commanded == "try" and put.due_at_ms is not None and put.due_at_ms > now_ms
