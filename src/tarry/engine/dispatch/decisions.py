"""Decisions: what becomes of each due message, in the order in which they are due.

A message for one of Tarry's own topics joins the burst that is being gathered, one for another system becomes a flight, a
delayed entry is ready; or it is held because its place is paused, put off by a limit on sending, or ended. An error about
one message ends that message and no other.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Conflict
from tarry.core.names import TOPIC_SCHEME, namespace_of
from tarry.core.rules.policy import Effective
from tarry.core.tenants.rates import Rates
from tarry.core.tricks import TRICKS
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.dispatch.firing import Firing
from tarry.engine.dispatch.sent_report import SentReport
from tarry.engine.due.due_batch import DispatchClass, DueBatch, joined
from tarry.engine.due.postponed import Later, Postponed
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.failures import Failures
from tarry.engine.flights.flights import Flights
from tarry.engine.flights.holding import DueMessage
from tarry.engine.isolation import Isolation
from tarry.engine.records.versions import has_expired, new_version
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.lanes import lane_of
from tarry.ledger.read_record import PutHead, ReadEntry, ReadPut
from tarry.ledger.record import Key, Put, decode_put


class Decisions:
    """Decides about due messages, whose bodies are at hand, batch by batch."""

    def __init__(
        self,
        *,
        state: EngineState,
        readahead: Readahead,
        postponed: Postponed,
        rates: Rates,
        isolation: Isolation,
        settings: EngineSettings,
        end_writer: EndWriter,
        failures: Failures,
        flights: Flights,
        firing: Firing,
        sent: SentReport,
        later: Later,
    ) -> None:
        self._state = state
        self._readahead = readahead
        self._postponed = postponed
        self._rates = rates
        self._isolation = isolation
        self._settings = settings
        self._end_writer = end_writer
        self._failures = failures
        self._flights = flights
        self._firing = firing
        self._sent = sent
        self._later = later
        self._to_hold: list[DueMessage] = []
        """Messages of the batch at hand whose place is paused."""
        self._taken: dict[int, Key] = {}
        """Postponed messages of the batch at hand that came again: their keys, by seq."""
        self._seen_to: set[int] = set()
        """Seqs of the batch at hand that began to fly, are to be held or were put off."""

    def saw_to(self, seq: int) -> None:
        """A message of the batch at hand is put off."""
        self._seen_to.add(seq)

    def dispatch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        """Decide about due messages whose bodies are read together."""
        if not len(seqs):
            return
        self._taken.clear()
        self._seen_to.clear()
        try:
            self._dispatch_batch(fires, seqs, now_ms)
        except Exception as error:  # noqa: BLE001 - one message must not keep the others, nor end the process
            self._isolation.check(error)
            self._dispatch_apart(fires, seqs, now_ms)

    def _dispatch_apart(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        """Dispatch the messages of a batch that failed one by one, and end those that provoke an error."""
        for at, (fire_at_ms, seq) in enumerate(zip(fires.tolist(), seqs.tolist(), strict=True)):
            key = self._taken.get(seq) or self._postponed.key_of(fire_at_ms, seq)
            if seq in self._seen_to or seq in self._state.dead or self._end_writer.is_writing(key):
                continue
            if seq in self._taken:
                self._postponed.add_again(key)
            try:
                self._dispatch_batch(fires[at : at + 1], seqs[at : at + 1], now_ms)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                self._failures.end_failed(key, self._isolation.reason(seq, error), now_ms)

    def _dispatch_batch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        self._firing.begin(now_ms)
        self._to_hold = []
        parts = self._readahead.take(seqs)
        timely = not self._postponed.has_any(seqs)
        topic = self._one_topic(parts) if timely else None
        if topic is not None:
            at = 0
            for part in parts:
                stop = at + len(part)
                part.set_keys(fires[at:stop], seqs[at:stop])
                at = stop
            self._firing.take(topic, parts)
        else:
            reads = joined(parts)
            if timely and set(map(type, reads.read)) == {ReadEntry}:
                self._make_ready(seqs.tolist(), reads.read, reads.bodies, now_ms)  # type: ignore[arg-type]
            else:
                self._dispatch_each(reads, fires.tolist(), seqs.tolist(), now_ms)
        self._firing.fire()
        if self._to_hold:
            held, self._to_hold = self._to_hold, []
            self._flights.hold(held)

    def _one_topic(self, parts: Sequence[DueBatch]) -> str | None:
        """In the common case the topic of all messages: there is nothing about them to decide one by one."""
        first = next(iter(parts[0].kinds))
        if not TRICKS.one_topic or first is None or self._state.pauses or not self._is_simple(first):
            return None
        topic = first.destination
        for part in parts:
            for alike in part.kinds:
                if alike is None or not alike.plain or alike.destination != topic:
                    return None
        return topic

    def _is_simple(self, alike: DispatchClass) -> bool:
        if not alike.plain or self._lacks_room(alike.destination):
            return False
        if self._state.pauses.at(alike.namespace, alike.destination, alike.owner):
            return False
        return not self._state.policies.effective(alike.destination, alike.namespace).send_per_second

    def _lacks_room(self, topic: str) -> str | None:
        """Why a topic that is not there cannot be made: messages for more topics than a namespace may have were accepted."""
        topics = self._state.topics
        if topic in topics.by_name:
            return None
        try:
            topics.check_topic_limit(topic)
        except Conflict as full:
            return str(full)
        return None

    def _dispatch_each(self, reads: DueBatch, fires: list[int], seqs: list[int], now_ms: int) -> None:
        entries: list[tuple[int, ReadEntry, bytes]] = []
        batches: dict[DispatchClass, DueBatch | None] = {}
        for read, body, alike, fire_at_ms, seq in zip(
            reads.read, reads.bodies, reads.alike, fires, seqs, strict=True
        ):
            postponed = self._postponed.pop(seq)
            if postponed is not None:
                self._taken[seq] = postponed
            key = postponed or Key(fire_at_ms, seq)
            if isinstance(read, ReadPut):
                assert alike is not None
                if alike not in batches:
                    batches[alike] = (
                        self._firing.batch_for(alike.destination) if self._is_simple(alike) else None
                    )
                batch = batches[alike]
                if batch is not None:
                    batch.add(read, body, alike, key)
                else:
                    self._dispatch_one(key, read, body, alike, now_ms, charged=postponed is not None)
                    # It may have fired the burst, so that what follows belongs to another.
                    batches.clear()
            elif isinstance(read, ReadEntry):
                entries.append((seq, read, body))
            else:
                self._failures.end_damaged(key, read, now_ms)
        if entries:
            due_seqs, due, due_bodies = zip(*entries, strict=True)
            self._make_ready(due_seqs, due, due_bodies, now_ms)

    def _make_ready(
        self, seqs: Sequence[int], entries: Sequence[ReadEntry], bodies: Sequence[bytes], now_ms: int
    ) -> None:
        """Delayed entries of topics are due."""
        if self._state.pauses:
            held = [self._is_held(entry) for entry in entries]
            if any(held):
                keys = [Key(entry.fire_at_ms, seq) for seq, entry in zip(seqs, entries, strict=True)]
                self._to_hold += [DueMessage(key, None) for key in compress(keys, held)]
                free = [not one for one in held]
                seqs, entries, bodies = (list(compress(column, free)) for column in (seqs, entries, bodies))  # type: ignore[assignment]
        late = self._state.topics.ready(seqs, entries)
        self._end_writer.settled(seqs)
        self._sent.tell_ready(late, bodies, now_ms)

    def _is_held(self, entry: ReadEntry) -> bool:
        namespace = namespace_of(entry.topic)
        return self._state.pauses.at(namespace, entry.topic, entry.owner) is not None

    def _dispatch_one(
        self, key: Key, head: ReadPut, body: bytes, alike: DispatchClass, now_ms: int, *, charged: bool
    ) -> None:
        to_topic = head.destination.startswith(TOPIC_SCHEME)
        if self._state.pauses.at(head.namespace, head.destination, head.owner):
            self._to_hold.append(DueMessage(key, self._flights.by_seq.get(key.seq)))
            self._seen_to.add(key.seq)
            return
        if has_expired(key, head, now_ms):
            self._firing.fire()
            self._failures.expire(key, head, now_ms, self._flights.by_seq.get(key.seq))
            return
        if to_topic and (reason := self._lacks_room(head.destination)):
            self._firing.fire()
            self._failures.end_failed(key, reason, now_ms)
            return
        policy = self._state.policies.effective(head.destination if to_topic else None, head.namespace)
        if policy.send_per_second > 0 and not charged and not has_waited(head, policy):
            at_ms = self._rates.reserve((head.namespace, head.owner), policy.send_per_second, now_ms)
            if at_ms > now_ms:
                self._put_off(key, head, body, at_ms)
                return
        if not to_topic:
            self._flights.begin(key, head, body, now_ms)
            self._seen_to.add(key.seq)
        elif head.group is not None:
            self._firing.fire()
            # One of its group, in this same batch, may have ended it.
            if key.seq not in self._state.dead:
                self._firing.fire_grouped(key, head, body, now_ms)
        else:
            self._firing.batch_for(head.destination).add(head, body, alike, key)

    def _put_off(self, key: Key, head: PutHead, body: bytes, at_ms: int) -> None:
        """A limit says later: from the wheel, or past `carry_after_ms` by a new version (R9)."""
        if at_ms - key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(key, lane_of(head.namespace, head.owner, head.door), at_ms)
        else:
            put = decode_put(body)
            # The new version is not overdue, so that it has to say itself what its message went through (R11).
            uncertain = put.uncertain or self._state.may_have_been_sent(key, put)
            self._end_writer.end(key, lambda: [new_version(put, key, at_ms, uncertain=uncertain)])


def has_waited(head: PutHead | Put, policy: Effective) -> bool:
    """Whether this is a version that was put off already, by a limit or for another attempt."""
    asked_ms = max(policy.round_up(head.due_at_ms or 0), head.accepted_at_ms)
    return head.attempts > 0 or (head.due_at_ms is not None and head.fire_at_ms > asked_ms)
