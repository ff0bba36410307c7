"""Flights: messages on their way to other systems, from the moment they are due to their verdict.

Concurrency is bounded as a whole and for each host; lanes take turns for places, so that owners do not wait for one
another; flights with one order key go out one after another. A temporary failure is tried again with backoff,
from the wheel; past `carry_after_ms` by a new version, with all that is in order behind it (R9).
"""

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Final

from tarry.core.delivery import Delivered, Delivery, Outlet, Refused, Retry, Verdict
from tarry.core.errors import Damage, Unavailable
from tarry.core.lanes import lane_of
from tarry.core.lifecycle import Event, State, next_state
from tarry.engine.journal import Journal
from tarry.engine.leading import beginnings
from tarry.engine.settings import EngineSettings
from tarry.engine.versions import dead_letter, dead_letter_topic, end_of, has_expired, new_version
from tarry.engine.writing import ROOM_RETRY_MS, Writing
from tarry.ledger.record import Claim, Key, Put, PutHead, Record, decode_put

log = logging.getLogger(__name__)

MAX_HELD: Final = 10_000
"""Orders remembered whose chain waits for a later attempt; beyond it those whose instant has passed are let go of."""

Launch = Callable[[Outlet, Delivery, Callable[[Verdict], None]], None]
"""Begin to send: call the outlet and give its verdict back on the engine's thread, once."""


class Flight:
    """One message on its way."""

    __slots__ = ("attempts", "head", "key", "lane", "order", "outlet", "put", "state", "uncertain")

    def __init__(self, key: Key, head: PutHead, outlet: Outlet) -> None:
        self.key = key
        self.head = head
        self.outlet = outlet
        self.lane = lane_of(head.owner, head.door)
        self.order = outlet.order_key(head.destination, head.key)
        self.attempts = head.attempts
        self.state = State.SCHEDULED
        self.uncertain = False
        """An attempt may have arrived although its verdict does not say so."""
        self.put: Put | None = None
        """The whole version of a listed message, which is remembered when it ends."""

    @property
    def origin(self) -> Key:
        """The key of the first version."""
        return self.head.origin or self.key

    def becomes(self, event: Event) -> None:
        """Take the step that the table allows for an event of the dispatcher; it never has to wait."""
        after = next_state(self.state, event)
        assert isinstance(after, State)
        self.state = after


class Flights:
    """All flights."""

    def __init__(
        self,
        journal: Journal,
        outlets: Mapping[str, Outlet],
        settings: EngineSettings,
        launch: Launch,
        writing: Writing,
        later: Callable[[Key, int, int], None],
        expire: Callable[[Key, PutHead, int], None],
        seed: int,
    ) -> None:
        self.by_seq: dict[int, Flight] = {}
        """Being sent, waiting for a place, or between two attempts."""
        self.on_sent: Callable[[PutHead, int], None] | None = None
        self._journal = journal
        self._outlets = outlets
        self._settings = settings
        self._launch = launch
        self._writing = writing
        self._later = later
        self._expire = expire
        self._random = random.Random(seed)
        self._ready: dict[int, deque[Flight]] = {}
        """Flights that wait for a place, by lane."""
        self._crowds: dict[str, dict[int, deque[Flight]]] = {}
        """By host that is sent to as much as it may be: the flights that wait for a place there, by lane."""
        self._chains: dict[str, deque[Flight]] = {}
        """Flights in order behind one another; the first is under way."""
        self._held: dict[str, int] = {}
        """By order: the instant to which its chain was carried. What is due before then stays behind it."""
        self._carrying: Counter[str] = Counter()
        """By order: the units that carry its versions and are not durable yet."""
        self._keys: list[Key] = []
        """A heap of the keys of flights; those that are over are dropped late."""
        self._sending = 0
        self._sending_to: dict[str, int] = {}
        self._watched: dict[int, Verdict | None] = {}
        """By seq: what came of attempts that somebody waits for."""

    def begin(self, key: Key, head: PutHead, now_ms: int) -> None:
        """A message is due: it goes out as soon as there is a place."""
        flight = self.by_seq.get(key.seq)
        if flight is None:
            scheme = head.destination.partition(":")[0]
            outlet = self._outlets.get(scheme)
            if outlet is None:
                reason = f"there is no outlet for {scheme}:"
                self._writing.end(key, lambda: self._failure(key, head, reason, now_ms, head.attempts))
                return
            flight = Flight(key, head, outlet)
            if flight.order is not None and self._stays_behind(flight, now_ms):
                return
            self.by_seq[key.seq] = flight
            heappush(self._keys, key)
            if flight.order is not None:
                chain = self._chains.setdefault(flight.order, deque())
                chain.append(flight)
                if len(chain) > 1:
                    return
        self._wait(flight)

    def _stays_behind(self, flight: Flight, now_ms: int) -> bool:
        """Whether its chain was carried to a later instant: then it follows there, in order."""
        assert flight.order is not None
        if flight.order in self._carrying and flight.head.origin is None:
            # Those before it are in no wheel now: it comes again when they can be.
            self._later(flight.key, flight.lane, now_ms + 1)
            return True
        held_ms = self._held.get(flight.order)
        if held_ms is None:
            return False
        if flight.key.fire_at_ms >= held_ms:
            del self._held[flight.order]
            return False
        if flight.head.origin is not None:
            # It was moved by command, or is one of the carried itself.
            return False
        self._carry_part([flight], max(held_ms, now_ms))
        return True

    def _wait(self, flight: Flight) -> None:
        self._ready.setdefault(flight.lane, deque()).append(flight)

    def start(self, now_ms: int) -> None:
        """Start waiting flights, lane after lane, while there are places."""
        if self._journal.ledger.failed is not None:
            return
        while self._ready and self._sending < self._settings.concurrency:
            self._start(_next_in_turn(self._ready), now_ms)

    def _start(self, flight: Flight, now_ms: int) -> bool:
        """Begin an attempt, if it is still to be made and there is a place; whether it was begun."""
        seq = flight.key.seq
        if self.by_seq.get(seq) is not flight:
            return False
        if now_ms < flight.key.fire_at_ms:
            # The clock was set back while it waited for a place.
            self._later(flight.key, flight.lane, flight.key.fire_at_ms)
            return False
        if seq in self._journal.dead:
            # Another one of its group was sent.
            self.leave(flight)
            self._writing.settled([seq])
            return False
        if has_expired(flight.key, flight.head, now_ms):
            self._expire(flight.key, flight.head, now_ms)
            return False
        host = host_of(flight.head.destination)
        if self._sending_to.get(host, 0) >= self._settings.concurrency_per_host:
            self._crowds.setdefault(host, {}).setdefault(flight.lane, deque()).append(flight)
            return False
        grouped = flight.head.group is not None and flight.attempts == 0
        if grouped and not self._claim(flight, now_ms):
            self._later(flight.key, flight.lane, now_ms + ROOM_RETRY_MS)
            return False
        self._sending += 1
        self._sending_to[host] = self._sending_to.get(host, 0) + 1
        flight.becomes(Event.CLAIM)
        if not grouped:
            self._send(flight)
        return True

    def _landed(self, flight: Flight, now_ms: int) -> None:
        """Give its place back; whoever waits for one at that host has it, one lane after another."""
        host = host_of(flight.head.destination)
        self._sending -= 1
        self._sending_to[host] -= 1
        if not self._sending_to[host]:
            del self._sending_to[host]
        crowd = self._crowds.pop(host, None)
        if crowd is None or self._journal.ledger.failed is not None:
            return
        while crowd and not self._start(_next_in_turn(crowd), now_ms):
            pass
        if crowd:
            self._crowds[host] = crowd

    def _claim(self, flight: Flight, now_ms: int) -> bool:
        """A grouped message needs a synced claim, which ends its siblings, before it goes out (R11).

        Answers whether there is room for it; it is sent once it is durable.
        """
        head = flight.head
        assert head.group is not None
        records: list[Record] = [Claim(flight.key.seq, head.group, head.owner, now_ms)]
        records += self._journal.groups.ends_of_siblings(head.owner, head.group, flight.origin, now_ms)

        def synced(error: Exception | None) -> None:
            if error is None:
                self._send(flight)

        try:
            self._journal.append(records, synced, essential=True)
        except Unavailable:
            return False
        return True

    def _send(self, flight: Flight) -> None:
        try:
            put = decode_put(self._journal.bodies.one(flight.key.seq))
        except Damage as damage:
            # It was sound when it became due, and is not any more (R3).
            self._journal.counters["damaged"] += 1
            self._verdict(flight, Refused(str(damage)))
            return
        flight.attempts += 1
        flight.put = put if put.listed else None
        delivery = Delivery(
            self._journal.ids.make(flight.origin.seq, flight.origin.fire_at_ms), put.destination, put.payload,
            put.headers, put.key, put.owner, put.due_at_ms or put.fire_at_ms, put.accepted_at_ms, flight.attempts,
            put.door,
        )  # fmt: skip
        self._launch(flight.outlet, delivery, lambda verdict: self._verdict(flight, verdict))

    # What came of it

    def _verdict(self, flight: Flight, verdict: Verdict) -> None:
        now_ms = self._journal.clock.now_ms()
        self._landed(flight, now_ms)
        if flight.key.seq in self._watched:
            self._watched[flight.key.seq] = verdict
        match verdict:
            case Delivered():
                ended = flight.put or flight.head
                end = end_of(ended, flight.key, "sent", now_ms, None, verdict.reference, flight.attempts)
                self._finish(
                    flight,
                    Event.DELIVERED,
                    lambda: [end, *beginnings(self._journal, flight.origin, verdict.reference, now_ms)],
                    now_ms,
                )
            case Refused() if flight.put is not None and _may_wait(flight.put, now_ms):
                self._wait_again(flight, flight.put, now_ms)
            case Refused():
                self._fail(flight, verdict.reason, now_ms, verdict.error)
            case Retry(counted=True) if flight.attempts >= self._settings.attempts:
                reason = f"{verdict.reason} (attempt {flight.attempts}, the last)"
                self._fail(flight, reason, now_ms, verdict.error)
            case Retry():
                self._journal.counters["retried"] += 1
                flight.becomes(Event.NOT_DELIVERED)
                flight.uncertain |= verdict.uncertain
                wait_ms = self._backoff_ms(flight.attempts) if verdict.after_ms is None else verdict.after_ms
                self._retry(flight, now_ms + max(1, wait_ms))
        self.start(now_ms)

    def _backoff_ms(self, attempts: int) -> int:
        """Exponential, with jitter over its upper half, so that what failed together does not return together."""
        settings = self._settings
        ceiling = min(settings.backoff_max_ms, settings.backoff_min_ms << min(max(attempts - 1, 0), 40))
        return round(ceiling * (0.5 + self._random.random() / 2))

    def watch(self, seq: int, told: Callable[[Verdict | None], None]) -> None:
        """Tell what comes of the next attempt to send a version; None if it is replaced or ended otherwise."""
        self._watched.setdefault(seq, None)
        self._writing.when_settled(seq, lambda: told(self._watched.pop(seq, None)))

    def _wait_again(self, flight: Flight, put: Put, now_ms: int) -> None:
        """It was tried before its instant, and refused: it waits for that."""
        policy = self._journal.policies.effective(None, put.namespace)
        fire_at_ms = max(now_ms, policy.round_up(put.due_at_ms or now_ms))
        version = new_version(put, flight.key, fire_at_ms, commanded="", attempts=0)
        self._finish(flight, Event.NOT_DELIVERED, lambda: [version], now_ms)

    def _fail(self, flight: Flight, reason: str, now_ms: int, error: str | None = None) -> None:
        def make() -> list[Record]:
            ended = flight.put or flight.head
            return self._failure(flight.key, ended, reason, now_ms, flight.attempts, error)

        self._finish(flight, Event.REFUSED, make, now_ms)

    def _failure(
        self,
        key: Key,
        head: Put | PutHead,
        reason: str,
        now_ms: int,
        attempts: int,
        error: str | None = None,
    ) -> list[Record]:
        """The end of a message as failed, and in the same unit its copy in the dead-letter topic.

        A listed message needs no copy: it is remembered with its body, for its owner alone.
        """
        records: list[Record] = [end_of(head, key, "failed", now_ms, reason, None, attempts, error)]
        records += self._journal.groups.ends_of_orphans(head, head.origin or key, now_ms)
        if self._settings.dead_letter_topic and not head.listed:
            try:
                put = decode_put(self._journal.bodies.one(key.seq))
            except Damage as damage:
                log.error("a dead letter cannot be written: %s", damage)
                return records
            topic = dead_letter_topic(head.namespace, self._settings.dead_letter_topic)
            entry_id = self._journal.topics.records.next_id(topic)
            records.append(dead_letter(put, topic, entry_id, now_ms, reason, attempts))
        return records

    def _finish(self, flight: Flight, event: Event, make: Callable[[], list[Record]], now_ms: int) -> None:
        def done() -> None:
            flight.becomes(event)
            self.leave(flight)
            if event is Event.DELIVERED and self.on_sent is not None:
                self.on_sent(flight.head, now_ms)
            # The clock is read again: it may have been set back since the verdict.
            self.start(self._journal.clock.now_ms())

        self._writing.write(make, [flight.key], done)

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
            self._wait(chain[0])

    def _retry(self, flight: Flight, at_ms: int) -> None:
        if at_ms - flight.key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(flight.key, flight.lane, at_ms)
            # Commands that waited for this verdict look again: the message is scheduled once more.
            self._writing.settled([flight.key.seq])
        else:
            self._carry(flight, at_ms)

    def _carry(self, flight: Flight, at_ms: int) -> None:
        """Give a flight a new version at its next attempt, and with it all that is in order behind it (R9)."""
        chain = [flight]
        if flight.order is not None:
            chain = list(self._chains.pop(flight.order))
            self._hold(flight.order, at_ms)
        for one in chain:
            self.by_seq.pop(one.key.seq, None)
        for part in self._parts(chain):
            self._carry_part(part, at_ms)

    def _carry_part(self, part: list[Flight], at_ms: int) -> None:
        order = part[0].order
        if order is not None:
            self._carrying[order] += 1

        def written() -> None:
            if order is not None:
                self._carrying[order] -= 1
                if not self._carrying[order]:
                    del self._carrying[order]

        self._writing.write(partial(self._next_versions, part, at_ms), [one.key for one in part], written)

    def _parts(self, chain: list[Flight]) -> list[list[Flight]]:
        """A chain in pieces that each fit one unit of the ledger: nearly always one."""
        parts: list[list[Flight]] = []
        room = 0
        for flight in chain:
            size_bytes = self._size_bytes(flight)
            if not parts or size_bytes > room:
                parts.append([])
                room = self._journal.ledger.unit_max_bytes // 2
            parts[-1].append(flight)
            room -= size_bytes
        return parts

    def _size_bytes(self, flight: Flight) -> int:
        try:
            return len(self._journal.bodies.one(flight.key.seq))
        except Damage:
            return 0

    def _next_versions(self, flights: list[Flight], at_ms: int) -> list[Record]:
        dead = self._journal.dead
        return [self._next_version(one, at_ms) for one in flights if one.key.seq not in dead]

    def _hold(self, order: str, at_ms: int) -> None:
        if len(self._held) >= MAX_HELD:
            now_ms = self._journal.clock.now_ms()
            self._held = {one: at for one, at in self._held.items() if at > now_ms}
        self._held[order] = at_ms

    def _next_version(self, flight: Flight, at_ms: int) -> Record:
        try:
            put = decode_put(self._journal.bodies.one(flight.key.seq))
        except Damage as damage:
            self._journal.counters["damaged"] += 1
            now_ms = self._journal.clock.now_ms()
            return end_of(flight.head, flight.key, "failed", now_ms, str(damage), None, flight.attempts)
        uncertain = put.uncertain or flight.uncertain
        return new_version(put, flight.key, at_ms, attempts=flight.attempts, uncertain=uncertain)

    def lowest(self) -> Key | None:
        """The lowest key of a flight."""
        while self._keys and self._keys[0].seq not in self.by_seq:
            heappop(self._keys)
        return self._keys[0] if self._keys else None


def _next_in_turn(lanes: dict[int, deque[Flight]]) -> Flight:
    """The first flight of the first lane, which goes to the back."""
    lane = next(iter(lanes))
    queue = lanes.pop(lane)
    flight = queue.popleft()
    if queue:
        lanes[lane] = queue
    return flight


def _may_wait(put: Put, now_ms: int) -> bool:
    """Whether a version that was refused was only tried, before its instant."""
    return put.commanded == "try" and put.due_at_ms is not None and put.due_at_ms > now_ms


def host_of(destination: str) -> str:
    """The part of a destination that is one receiver: the host of an address."""
    parts = destination.split("/", 3)
    return parts[2] if len(parts) > 2 else parts[0]
