"""The dispatcher: takes what is due and sees that it goes out, in (due, seq) order and fairly.

Messages for Tarry's own topics are fired in batches: one record each is publication and end (R5). The others
are flights: handed to an outlet with bounded concurrency, retried with backoff, ended with the verdict.
When more is due than one batch holds, owners take turns by their lanes, so that an owner with a million does
not delay another's one; within an owner the order stays. Nothing is sent before its instant: the clock is
read here, at dispatch.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Final

import msgspec
import numpy as np

from tarry.core.delivery import Delivered, Delivery, Outlet, Refused, Retry, Verdict
from tarry.core.errors import Damage, Unavailable
from tarry.core.lifecycle import Event, State, next_state
from tarry.core.names import TOPIC_SCHEME, parse_topic
from tarry.core.policy import Effective
from tarry.core.wheel import Due
from tarry.engine.journal import Journal
from tarry.engine.rates import Rates
from tarry.engine.settings import EngineSettings
from tarry.engine.topics import Topics
from tarry.ledger.record import (
    NO_PUT,
    Claim,
    Encoded,
    Entry,
    Finalise,
    FiredEntries,
    Key,
    Put,
    PutHead,
    Record,
    decode_head,
    decode_put,
    is_entry,
    lane_of,
)

Launch = Callable[[Outlet, Delivery, Callable[[Verdict], None]], None]
"""Begin to send: call the outlet and give its verdict back on the engine's thread, once."""

OnVerdict = Callable[[], None]

POP: Final = 1 << 20
"""Entries taken from the wheel at once, more than a batch, so that owners can take turns."""

ROOM_RETRY_MS: Final = 1_000
"""When the ledger has no room, how long until it is tried again."""

log = logging.getLogger(__name__)


class Flight:
    """A message on its way to another system, from the moment it is due to its verdict."""

    __slots__ = ("attempts", "head", "key", "lane", "order", "outlet", "state", "uncertain")

    def __init__(self, key: Key, head: PutHead, outlet: Outlet) -> None:
        self.key = key
        self.head = head
        self.outlet = outlet
        self.lane = lane_of(head.owner)
        self.order = outlet.order_key(head.destination, head.key)
        self.attempts = head.attempts
        self.state = State.SCHEDULED
        self.uncertain = False
        """An attempt may have arrived although its verdict does not say so."""

    @property
    def origin(self) -> Key:
        """The key of the first version."""
        return self.head.origin or self.key


class Burst:
    """Due messages that fire into topics, on their way into one unit of the ledger."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.unit: list[Encoded] = []
        self.fired: list[tuple[str, int, PutHead, Key]] = []
        self._encoders: dict[str, FiredEntries] = {}
        self._next_ids: dict[str, int] = {}

    def add(self, key: Key, head: PutHead, body: bytes, topics: Topics) -> None:
        """Give a message the next entry id of its topic."""
        topic = head.destination
        encoder = self._encoders.get(topic)
        if encoder is None:
            encoder = self._encoders[topic] = FiredEntries(topic, self.now_ms)
            self._next_ids[topic] = topics.next_id(topic)
        entry_id = self._next_ids[topic]
        self._next_ids[topic] = entry_id + 1
        self.unit.append(encoder.encode(entry_id, key.fire_at_ms, key.seq, body))
        self.fired.append((topic, entry_id, head, key))


class Dispatcher:
    """Takes what is due and sees it off."""

    def __init__(
        self, journal: Journal, outlets: Mapping[str, Outlet], settings: EngineSettings, launch: Launch, seed: int
    ) -> None:
        self._journal = journal
        self._outlets = outlets
        self._settings = settings
        self._launch = launch
        self._random = random.Random(seed)
        self._rates = Rates()
        self.flights: dict[int, Flight] = {}
        """By seq: being sent, waiting for a place, or between two attempts."""
        self.firing: set[int] = set()
        """Seqs of messages whose firing into a topic is enqueued and not durable yet."""
        self.on_sent: Callable[[str, int], None] | None = None
        """Told of every message sent: its door and its lateness in milliseconds."""
        self._burst = Burst(0)
        self._on_verdict: dict[int, list[OnVerdict]] = {}
        """By seq: commands that wait to hear what came of an attempt."""
        self._lanes: dict[int, deque[tuple[int, int]]] = {}
        """Overdue keys by lane, when there are more than fit one batch."""
        self._open: dict[int, Key] = {}
        """The lowest key of each unit that ends versions and is not durable yet."""
        self._units = 0
        self._postponed: dict[int, Key] = {}
        """By seq: entries of the wheel whose key is lower than the instant they wait for."""
        self._held: list[Key] = []
        """A heap of the keys of flights and postponed entries; those that are neither any more are dropped late."""
        self._queue: dict[int, deque[Flight]] = {}
        """Flights that wait for a place, by lane."""
        self._chains: dict[str, deque[Flight]] = {}
        """Flights in order behind one another; the first is under way."""
        self._sending = 0
        self._sending_to: dict[str, int] = {}
        self._unwritten: list[Callable[[], None]] = []
        """Records that found no room, to be written when there is."""
        self._dispatched_ms = 0

    # Taking what is due

    def turn(self, now_ms: int) -> bool:
        """One turn: a batch at most. Answers whether there is more to do at once."""
        if self._journal.ledger.failed is not None:
            return False
        if self._unwritten:
            # Nothing goes out unless its end has room in the ledger (R2).
            unwritten, self._unwritten = self._unwritten, []
            for write in unwritten:
                write()
            if self._unwritten:
                return False
        due = self._journal.horizon.pop_due(now_ms, POP)
        if not self._lanes and len(due.seqs) <= self._settings.batch:
            keys = list(zip(due.fire_at_ms.tolist(), due.seqs.tolist(), strict=True))
        else:
            self._share_out(due)
            keys = self._take_turns(self._settings.batch)
        if keys:
            self._dispatch(keys, now_ms)
        self._start_flights(now_ms)
        if not self._lanes:
            self._dispatched_ms = max(self._dispatched_ms, now_ms + 1)
        return bool(self._lanes)

    def _share_out(self, due: Due) -> None:
        order = np.argsort(due.lanes, kind="stable")
        cuts = np.flatnonzero(np.diff(due.lanes[order])) + 1
        for group in np.split(order, cuts):
            if len(group):
                lane = int(due.lanes[group[0]])
                pairs = zip(due.fire_at_ms[group].tolist(), due.seqs[group].tolist(), strict=True)
                self._lanes.setdefault(lane, deque()).extend(pairs)

    def _take_turns(self, batch: int) -> list[tuple[int, int]]:
        keys: list[tuple[int, int]] = []
        while self._lanes and len(keys) < batch:
            share = max(1, (batch - len(keys)) // len(self._lanes))
            for lane in list(self._lanes):
                queue = self._lanes[lane]
                for _ in range(min(share, len(queue))):
                    keys.append(queue.popleft())
                if not queue:
                    del self._lanes[lane]
                if len(keys) >= batch:
                    # Whoever was served goes to the back.
                    if queue:
                        self._lanes[lane] = self._lanes.pop(lane)
                    break
        keys.sort()
        return keys

    # Deciding what becomes of each

    def _dispatch(self, pairs: list[tuple[int, int]], now_ms: int) -> None:
        journal = self._journal
        seqs = np.array([seq for _, seq in pairs], np.int64)
        dead = journal.dead.contains_many(seqs)
        if dead.any():
            for at in np.flatnonzero(dead).tolist():
                self._postponed.pop(pairs[at][1], None)
            pairs = [pairs[at] for at in np.flatnonzero(~dead).tolist()]
            seqs = seqs[~dead]
        self._burst = Burst(now_ms)
        for (fire_at_ms, seq), body in zip(pairs, journal.bodies(seqs), strict=True):
            postponed = self._postponed.pop(seq, None) if self._postponed else None
            key = postponed or Key(fire_at_ms, seq)
            if not isinstance(body, bytes):
                self._end_unreadable(key, body, now_ms)
            elif is_entry(body):
                journal.topics.ready(body)
            else:
                self._dispatch_one(key, decode_head(body), body, now_ms, charged=postponed is not None)
        self._fire_burst()

    def _dispatch_one(self, key: Key, head: PutHead, body: bytes, now_ms: int, *, charged: bool) -> None:
        to_topic = head.destination.startswith(TOPIC_SCHEME)
        if head.ttl_ms is not None and now_ms > (head.due_at_ms or key.fire_at_ms) + head.ttl_ms:
            self._expire(key, head, now_ms)
            return
        policy = self._journal.policies.effective(head.destination if to_topic else None, head.namespace)
        if policy.send_per_second > 0 and not charged and not self._has_waited(head, policy):
            at_ms = self._rates.reserve((head.namespace, head.owner), policy.send_per_second, now_ms)
            if at_ms > now_ms:
                self._put_off(key, head, body, at_ms)
                return
        if not to_topic:
            self._begin_flight(key, head, now_ms)
        elif head.group is not None:
            self._fire_grouped(key, head, body, now_ms)
        else:
            self._burst.add(key, head, body, self._journal.topics)

    @staticmethod
    def _has_waited(head: PutHead, policy: Effective) -> bool:
        """Whether this is a version that was put off already, by a limit or for another attempt."""
        asked_ms = max(policy.round_up(head.due_at_ms or 0), head.accepted_at_ms)
        return head.attempts > 0 or (head.due_at_ms is not None and head.fire_at_ms > asked_ms)

    def _end_unreadable(self, key: Key, damage: Damage | None, now_ms: int) -> None:
        reason = str(damage) if damage is not None else f"there is no record at seq {key.seq}"
        self._journal.counters["damaged"] += 1
        log.error("a due message cannot be read and ends as failed: %s", reason)
        end = Finalise(key, key, "failed", now_ms, reason, None, 0, None, 0, "", "", None, "", "", None, False)
        self._write(lambda: [end], key)

    def _expire(self, key: Key, head: PutHead, now_ms: int) -> None:
        reason = "its time to live was over before it could be sent"
        self._write(lambda: [end_of(head, key, "failed", now_ms, reason)], key)
        self.killed(key.seq)

    # Own topics

    def _fire_burst(self) -> None:
        """Write what has gathered. Before anything else that takes entry ids."""
        burst, self._burst = self._burst, Burst(self._burst.now_ms)
        if not burst.unit:
            return
        number = self._open_unit(min(key for _, _, _, key in burst.fired))
        seqs = [key.seq for _, _, _, key in burst.fired]
        self.firing.update(seqs)

        def done(error: Exception | None) -> None:
            del self._open[number]
            self.firing.difference_update(seqs)
            if error is not None:
                return
            if self.on_sent is not None:
                for _, _, head, _ in burst.fired:
                    self._tell_sent(head, burst.now_ms)
            self._tell_verdicts(seqs)

        try:
            self._journal.append_fired(burst.unit, burst.fired, burst.now_ms, done)
        except Unavailable as error:
            done(error)
            for _, _, head, key in burst.fired:
                self._later(key, lane_of(head.owner), burst.now_ms + ROOM_RETRY_MS)

    def _fire_grouped(self, key: Key, head: PutHead, body: bytes, now_ms: int) -> None:
        """Fire a member of a group: the same unit ends its siblings (R11)."""
        self._fire_burst()
        entry_id = self._journal.topics.next_id(head.destination)
        records: list[Record] = [Entry(head.destination, 0, now_ms, entry_id, key, msgspec.Raw(body))]
        records += self.ends_of_siblings(head, head.origin or key, now_ms)
        number = self._open_unit(key)
        self.firing.add(key.seq)

        def done(error: Exception | None) -> None:
            del self._open[number]
            self.firing.discard(key.seq)
            if error is None:
                self._tell_sent(head, now_ms)
                self._tell_verdicts([key.seq])

        try:
            self._journal.append(records, done)
        except Unavailable as error:
            done(error)
            self._later(key, lane_of(head.owner), now_ms + ROOM_RETRY_MS)

    def ends_of_siblings(self, head: PutHead, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a group, because one of them is sent."""
        group = self._journal.registry.groups.get(head.owner, head.group)
        if group is None:
            return []
        records: list[Record] = []
        for member in group.members:
            if member.origin != origin and member.current.seq not in self._journal.dead:
                put = decode_put(self._journal.body(member.current.seq))
                records.append(end_of(put, member.current, "cancelled", now_ms, "another of its group was sent"))
        return records

    def _tell_sent(self, head: PutHead, now_ms: int) -> None:
        if self.on_sent is not None:
            self.on_sent(head.door, now_ms - max(head.due_at_ms or now_ms, head.accepted_at_ms))

    # Commands that wait

    def when_settled(self, seq: int, callback: OnVerdict) -> None:
        """Call back once the attempt under way, or about to be, has its verdict."""
        self._on_verdict.setdefault(seq, []).append(callback)

    def _tell_verdicts(self, seqs: list[int]) -> None:
        if self._on_verdict:
            for seq in seqs:
                for callback in self._on_verdict.pop(seq, ()):
                    callback()

    def killed(self, seq: int) -> None:
        """A version was ended or replaced by command: it makes room for what waits behind it."""
        self._postponed.pop(seq, None)
        flight = self.flights.get(seq)
        if flight is not None and flight.state is State.SCHEDULED:
            self._leave(flight)

    # Flights

    def _begin_flight(self, key: Key, head: PutHead, now_ms: int) -> None:
        flight = self.flights.get(key.seq)
        if flight is None:
            scheme = head.destination.partition(":")[0]
            outlet = self._outlets.get(scheme)
            if outlet is None:
                self._write(lambda: self._failure(key, head, f"there is no outlet for {scheme}:", now_ms, 0), key)
                return
            flight = self.flights[key.seq] = Flight(key, head, outlet)
            heappush(self._held, key)
            if flight.order is not None:
                chain = self._chains.setdefault(flight.order, deque())
                chain.append(flight)
                if len(chain) > 1:
                    return
        self._queue.setdefault(flight.lane, deque()).append(flight)

    def _start_flights(self, now_ms: int) -> None:
        """Start waiting flights, lane after lane, while there are places."""
        stuck = 0
        while self._queue and self._sending < self._settings.concurrency and stuck < len(self._queue):
            lane = next(iter(self._queue))
            queue = self._queue.pop(lane)
            flight = queue.popleft()
            if self._start(flight, now_ms):
                stuck = 0
            else:
                queue.appendleft(flight)
                stuck += 1
            if queue:
                self._queue[lane] = queue

    def _start(self, flight: Flight, now_ms: int) -> bool:
        if flight.key.seq not in self.flights:
            return True
        host = host_of(flight.head.destination)
        if self._sending_to.get(host, 0) >= self._settings.concurrency_per_host:
            return False
        flight.state = claimed(flight.state)
        self._sending += 1
        self._sending_to[host] = self._sending_to.get(host, 0) + 1
        if flight.head.group is not None and flight.attempts == 0:
            self._claim(flight, now_ms)
        else:
            self._send(flight)
        return True

    def _claim(self, flight: Flight, now_ms: int) -> None:
        """A grouped message needs a synced claim, which ends its siblings, before it goes out (R11)."""
        head = flight.head
        assert head.group is not None
        records: list[Record] = [Claim(flight.key.seq, head.group, head.owner, now_ms)]
        records += self.ends_of_siblings(head, flight.origin, now_ms)

        def synced(error: Exception | None) -> None:
            if error is None:
                self._send(flight)

        try:
            self._journal.append(records, synced, essential=True)
        except Unavailable as error:
            self._verdict(flight, Retry(str(error), ROOM_RETRY_MS))

    def _send(self, flight: Flight) -> None:
        put = decode_put(self._journal.body(flight.key.seq))
        flight.attempts += 1
        delivery = Delivery(
            self._journal.ids.make(flight.origin.seq, flight.origin.fire_at_ms), put.destination, put.payload,
            put.headers, put.key, put.owner, put.due_at_ms or put.fire_at_ms, put.accepted_at_ms, flight.attempts,
        )  # fmt: skip
        self._launch(flight.outlet, delivery, lambda verdict: self._verdict(flight, verdict))

    def _verdict(self, flight: Flight, verdict: Verdict) -> None:
        now_ms = self._journal.clock.now_ms()
        host = host_of(flight.head.destination)
        self._sending -= 1
        self._sending_to[host] -= 1
        if not self._sending_to[host]:
            del self._sending_to[host]
        head, key, attempts = flight.head, flight.key, flight.attempts
        match verdict:
            case Delivered():
                end = end_of(head, key, "sent", now_ms, None, verdict.reference, attempts)
                self._finish(flight, Event.DELIVERED, lambda: [end], now_ms)
            case Refused():
                self._finish(
                    flight, Event.REFUSED, lambda: self._failure(key, head, verdict.reason, now_ms, attempts), now_ms
                )
            case Retry() if attempts >= self._settings.attempts:
                reason = f"{verdict.reason} (attempt {attempts}, the last)"
                self._finish(
                    flight, Event.REFUSED, lambda: self._failure(key, head, reason, now_ms, attempts), now_ms
                )
            case Retry():
                self._journal.counters["retried"] += 1
                flight.state = settled_state(flight.state, Event.NOT_DELIVERED)
                flight.uncertain |= verdict.uncertain
                wait_ms = self._backoff_ms(attempts) if verdict.after_ms is None else verdict.after_ms
                self._retry(flight, now_ms + max(1, wait_ms))
        self._start_flights(now_ms)

    def _backoff_ms(self, attempts: int) -> int:
        """Exponential, with jitter over its upper half, so that what failed together does not return together."""
        settings = self._settings
        ceiling = min(settings.backoff_max_ms, settings.backoff_min_ms << min(max(attempts - 1, 0), 40))
        return round(ceiling * (0.5 + self._random.random() / 2))

    def _finish(self, flight: Flight, event: Event, make: Callable[[], list[Record]], now_ms: int) -> None:
        def done() -> None:
            flight.state = settled_state(flight.state, event)
            self._leave(flight)
            if event is Event.DELIVERED:
                self._tell_sent(flight.head, now_ms)
            self._tell_verdicts([flight.key.seq])
            self._start_flights(now_ms)

        self._write(make, flight.key, done)

    def _leave(self, flight: Flight) -> None:
        """A flight is over: the next of its chain may go."""
        if self.flights.pop(flight.key.seq, None) is None or flight.order is None:
            return
        chain = self._chains[flight.order]
        first = chain[0] is flight
        chain.remove(flight)
        if not chain:
            del self._chains[flight.order]
        elif first:
            self._queue.setdefault(chain[0].lane, deque()).append(chain[0])

    # Later, or never

    def _retry(self, flight: Flight, at_ms: int) -> None:
        if at_ms - flight.key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(flight.key, flight.lane, at_ms)
        else:
            self._carry(flight, at_ms)
        # Commands that waited for this verdict look again: the message is scheduled once more.
        self._tell_verdicts([flight.key.seq])

    def _carry(self, flight: Flight, at_ms: int) -> None:
        """Give a flight a new version at its next attempt, and with it all that is in order behind it (R9)."""
        chain = [flight] if flight.order is None else list(self._chains.pop(flight.order))
        for one in chain:
            self.flights.pop(one.key.seq, None)

        def versions() -> list[Record]:
            return [
                new_version(decode_put(self._journal.body(one.key.seq)), one.key, at_ms, attempts=one.attempts)
                for one in chain
                if one.key.seq not in self._journal.dead
            ]

        self._write(versions, min(one.key for one in chain))

    def _put_off(self, key: Key, head: PutHead, body: bytes, at_ms: int) -> None:
        if at_ms - key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(key, lane_of(head.owner), at_ms)
        else:
            self._write(lambda: [new_version(decode_put(body), key, at_ms)], key)

    def _later(self, key: Key, lane: int, at_ms: int) -> None:
        self._postponed[key.seq] = key
        heappush(self._held, key)
        self._journal.horizon.postpone(at_ms, key.seq, lane)

    def _failure(self, key: Key, head: PutHead, reason: str, now_ms: int, attempts: int) -> list[Record]:
        """The end of a message as failed, and in the same unit its copy in the dead-letter topic."""
        records: list[Record] = [end_of(head, key, "failed", now_ms, reason, None, attempts)]
        name = self._settings.dead_letter_topic
        if name:
            put = decode_put(self._journal.body(key.seq))
            topic = parse_topic(f"{head.namespace}/{name}").full
            headers = {
                **put.headers, "tarry-destination": put.destination, "tarry-reason": reason,
                "tarry-attempts": str(attempts),
            }  # fmt: skip
            entry_id = self._journal.topics.next_id(topic)
            records.append(Entry(topic, 0, now_ms, entry_id, None, NO_PUT, put.payload, headers, put.key))
        return records

    def _write(self, make: Callable[[], list[Record]], key: Key, done: Callable[[], None] | None = None) -> None:
        """Write records that end or replace versions, the lowest of which is at `key`; again if there is no room."""
        self._fire_burst()
        number = self._open_unit(key)

        def written(error: Exception | None) -> None:
            self._open.pop(number, None)
            if error is None and done is not None:
                done()

        def write() -> None:
            records = make()
            if not records:
                written(None)
                return
            try:
                self._journal.append(records, written, essential=True)
            except Unavailable:
                self._unwritten.append(write)

        write()

    def _open_unit(self, key: Key) -> int:
        self._units += 1
        self._open[self._units] = key
        return self._units

    # For the watermark

    def lowest_open(self, now_ms: int) -> Key:
        """The key below which nothing is on its way any more."""
        low = Key(min(self._dispatched_ms, now_ms), 0)
        for queue in self._lanes.values():
            low = min(low, Key(*queue[0]))
        if self._open:
            low = min(low, min(self._open.values()))
        held = self._held
        while held and held[0].seq not in self._postponed and held[0].seq not in self.flights:
            heappop(held)
        return min(low, held[0]) if held else low

    def open_between(self, first_seq: int, last_seq: int) -> list[int]:
        """Seqs in a range that are on their way and so cannot be moved."""
        return [seq for seq in (*self.flights, *self.firing) if first_seq <= seq <= last_seq]

    @property
    def backlogged(self) -> bool:
        """Whether more is due than could be taken."""
        return bool(self._lanes)

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._open or self.flights or self._lanes or self._unwritten)


def host_of(destination: str) -> str:
    """The part of a destination that is one receiver: the host of an address."""
    parts = destination.split("/", 3)
    return parts[2] if len(parts) > 2 else parts[0]


def claimed(state: State) -> State:
    """The state of a message that begins to be sent."""
    return settled_state(state, Event.CLAIM)


def settled_state(state: State, event: Event) -> State:
    """The state that an event of the dispatcher leads to; it never has to wait."""
    after = next_state(state, event)
    assert isinstance(after, State)
    return after


def end_of(
    put: Put | PutHead,
    key: Key,
    outcome: str,
    now_ms: int,
    reason: str | None,
    reference: str | None = None,
    attempts: int | None = None,
) -> Finalise:
    """The record that ends a version."""
    return Finalise(
        key, put.origin or key, outcome, now_ms, reason, reference, put.attempts if attempts is None else attempts,
        put.due_at_ms, put.accepted_at_ms, put.namespace, put.destination, put.key, put.owner, put.door, put.group,
        put.listed,
    )  # fmt: skip


def new_version(put: Put, key: Key, fire_at_ms: int, **changes: object) -> Put:
    """The same message at another instant: a full version that kills the one at `key` (R4)."""
    return msgspec.structs.replace(
        put, fire_at_ms=fire_at_ms, origin=put.origin or key, kills=key, idempotency_key=None, **changes
    )


