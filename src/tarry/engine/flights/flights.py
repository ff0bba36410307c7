"""Flights: messages on their way to other systems, from the moment they are due until they are handed out.

Those that are due together for one destination leave together, if their outlet takes several in one call. `boarding` says
who leaves when; flights with one order key go out one after another. What becomes of a flight by the verdict on its attempt
is in `verdicts`.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

from tarry.core.errors import Damage, Unavailable
from tarry.core.messages.delivery import BulkOutlet, Delivery, Outlet, Refused, Verdict
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies, Body, version_of
from tarry.engine.bodies.body_sizes import SMALL_BYTES
from tarry.engine.due.postponed import Later
from tarry.engine.flights.boarding import Boarding
from tarry.engine.flights.deferral import Deferral
from tarry.engine.flights.end_writer import SPACE_RETRY_MS, EndWriter
from tarry.engine.flights.failures import Failures
from tarry.engine.flights.flight import Departure, Flight
from tarry.engine.flights.fresh_mark import FreshMark
from tarry.engine.flights.holding import DueMessage, Holding
from tarry.engine.flights.stranded import Stranded
from tarry.engine.flights.verdicts import Verdicts
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.records.versions import has_expired
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.engine.tracing import Tracing
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import Claim, Key, Put, Record, decode_put

log = logging.getLogger(__name__)

OnVerdicts = Callable[[Sequence[tuple[str, Verdict]]], None]
"""Told of verdicts on deliveries, by their ids."""

Launch = Callable[[Outlet, Sequence[Delivery], OnVerdicts], None]
"""Begin to send: call the outlet and give the verdict on each delivery back on the engine's thread, once.

Those that come together are told together. Several deliveries are given to a `BulkOutlet` only.
"""


class Flights:
    """All flights."""

    def __init__(
        self,
        *,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        ids: Ids,
        isolation: Isolation,
        outlets: Mapping[str, Outlet],
        settings: EngineSettings,
        launch: Launch,
        end_writer: EndWriter,
        stranded: Stranded,
        holding: Holding,
        failures: Failures,
        later: Later,
        sent: Callable[[Sequence[PutHead], int], None],
        seed: int,
        tracing: Tracing | None,
        fresh: FreshMark | None,
        shares: NamespaceShares,
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
        self._tracing = tracing
        self._fresh = fresh
        self._unrecorded: list[Departure] = []
        """Departures of this turn that leave once a record of it is durable."""
        self._outlets = outlets
        self._together = {
            scheme: outlet.together if isinstance(outlet, BulkOutlet) else 1
            for scheme, outlet in outlets.items()
        }
        self._launch = launch
        self._end_writer = end_writer
        self._stranded = stranded
        self._holding = holding
        self._later = later
        self._failures = failures
        self._boarding = Boarding(settings.concurrency, settings.concurrency_per_host, shares.allow)
        self._deferral = Deferral(journal, state, bodies, clock, end_writer, later)
        self.verdicts = Verdicts(
            journal=journal,
            state=state,
            bodies=bodies,
            clock=clock,
            isolation=isolation,
            settings=settings,
            end_writer=end_writer,
            stranded=stranded,
            failures=failures,
            later=later,
            sent=sent,
            land=self._boarding.land,
            leave=self.leave,
            carry=self._carry,
            start=self.start,
            seed=seed,
        )
        self._chains: dict[str, deque[Flight]] = {}
        """Flights in order behind one another; the first is under way."""
        self._keys: list[Key] = []
        """A heap of the keys of flights; those that are over are dropped late."""
        self._at_hand: dict[int, ReadPut | Put] = {}
        """Decoded bodies of messages that became due this turn, kept until it is known which flights have a place, so that they are not decoded twice."""
        self._away: dict[str, Flight] = {}
        """By the id of its delivery: who is under way."""

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
            self._failures.expire(flight.key, flight.head, now_ms, flight)
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
            self.verdicts.take([(first, Refused(reason))], now_ms)
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
            self.verdicts.take(unread, self._clock.now_ms())
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

    # Landing

    def landed(self, verdicts: Sequence[tuple[str, Verdict]]) -> None:
        """Take the verdicts on a departure."""
        now_ms = self._clock.now_ms()
        self.verdicts.take([(self._away.pop(id_), verdict) for id_, verdict in verdicts], now_ms)
        self.start(now_ms)

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

    def _carry(self, flight: Flight, at_ms: int) -> None:
        """Carry a flight to an instant by a new version, and with it all that is in order behind it (R9)."""
        chain = [flight] if flight.order is None else list(self._chains.pop(flight.order))
        for one in chain:
            self.by_seq.pop(one.key.seq, None)
        self._deferral.carry(chain, at_ms)

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
