"""A subscription: who gets which entry, and which entries come again.

Exclusive and failover read in publish order and ignore delays; shared and key-shared read in ready
order (R5). An entry is given to one consumer, and stays its own until it is acknowledged, given back
(`nack`), or the consumer goes. Permits count messages: an entry that is a batch may use up more than are left.

Nothing here does I/O: bodies come from a reader, acknowledgements go to a writer as records.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Conflict, Invalid, NotFound, TarryError
from tarry.core.names import partition_number
from tarry.core.sets.absent import Absent
from tarry.core.telemetry import faults
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.due.due_batch import Prepare
from tarry.engine.isolation import Isolation
from tarry.engine.topics.consumer import Consumer, Leases, Ranges
from tarry.engine.topics.cursor import AckSet, Cursor
from tarry.engine.topics.entries import Partial, Received
from tarry.engine.topics.entry_batch import ids_of, messages_in
from tarry.engine.topics.entry_log import EntryLog, save_set
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.key_shares import KeyShares
from tarry.engine.topics.pumping import Pumping
from tarry.engine.topics.subscription_writer import SubscriptionWriter
from tarry.registry.registry import Registry, SubscriptionRow

log = logging.getLogger(__name__)

SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]
SUBSCRIPTION_TYPES: Final[tuple[SubscriptionType, ...]] = ("exclusive", "shared", "failover", "key_shared")

PUMPED_TOGETHER: Final = 16_384
"""Entries given out in one turn, about: some milliseconds, however many permits and entries there are."""

BATCH: Final = 4096
"""Entries given out in one call: the bound on what one pump holds in memory."""


class SubscriptionParts(Struct, frozen=True):
    """The parts with which all subscriptions work."""

    reader: EntryReader
    writer: SubscriptionWriter
    pumping: Pumping
    isolation: Isolation


class Subscription:
    """The state of one subscription of a topic."""

    def __init__(
        self,
        parts: SubscriptionParts,
        topic: EntryLog,
        name: str,
        type_: SubscriptionType,
        start: int,
        *,
        durable: bool,
        properties: dict[str, str],
        incarnation: int = 0,
        forget: Callable[["Subscription"], None] | None = None,
    ) -> None:
        """`forget` is told when a reader, which is not durable, is gone."""
        self.topic = topic
        self.incarnation = incarnation
        """The seq of the record that made it, which the next one of this name does not have; 0 for a reader."""
        self.name = name
        self.type: SubscriptionType = type_
        self.durable = durable
        self.properties = properties
        self.acked = AckSet(start)
        self.consumers: list[Consumer] = []
        self.redeliveries: dict[int, int] = {}
        self.partial: dict[int, list[int]] = {}
        """Entries of which some messages are acknowledged -> which are left."""
        self.expired = 0
        """Entries that nobody took in time, since the start."""
        self.honours_delay = False
        """Whether delays count though it is exclusive or failover; see `honour_delay`."""
        self.changed = True
        self.closed = False
        """Whether it is deleted. There may be another of its name, which is none of its consumers' business."""
        self._parts = parts
        self._forget = forget
        self._cursor = Cursor(topic, start)
        self.leases = Leases()
        self._key_shares = KeyShares(self.consumers)
        self._pumping = False
        self._pumped = 0
        """Entries given out in this turn."""
        self._blocked = False
        """Whether somebody has permits and holds too much to be given more."""
        self._turn = 0
        self._partition = max(0, partition_number(topic.name))
        self._messages_per_entry = 1
        """As in what was read last: how many entries the permits may be good for."""

    # Unacknowledged entries, for people

    @property
    def backlog(self) -> int:
        """Entries not acknowledged yet, those that are not due included."""
        first = max(self.topic.first, 0)
        return max(0, self.topic.visible - first - self.acked.count(first))

    def unacknowledged(self) -> Absent:
        """The entries that are not acknowledged yet, those that are not due included."""
        return Absent((self.acked.above,), max(self.acked.below, self.topic.first), self.topic.visible)

    @property
    def ignores_delay(self) -> bool:
        """Exclusive and failover keep publish order, so delays do not count there (PIP-26), unless it was asked for."""
        return self.in_order and not self.honours_delay

    @property
    def in_order(self) -> bool:
        """Whether one consumer at a time gets everything."""
        return self.type in ("exclusive", "failover")

    # Consumers

    def attach(
        self,
        consumer_name: str,
        deliver: Callable[[Sequence[Received]], None],
        *,
        priority: int = 0,
        ranges: Ranges | None = None,
        max_unacked: int | None = None,
        prepare: Prepare | None = None,
    ) -> Consumer:
        """Add a consumer; raises `Conflict` where an exclusive one is there already.

        Of shared consumers those of the lowest priority number come first, as long as they have permits. Key-shared
        consumers share the hash slots evenly, or each says which it takes, and then none is taken twice. Who can
        `prepare` what it will show of entries is given them ahead, where there is time for it.
        """
        self.check_open()
        if self.type == "exclusive" and self.consumers:
            raise Conflict(f"subscription {self.name} is exclusive and has a consumer", "taken")
        if self.type == "key_shared":
            self._key_shares.check(ranges)
        before = self.eligible()
        consumer = Consumer(self, consumer_name, deliver, priority, ranges, max_unacked, prepare)
        self.consumers.append(consumer)
        if self.type == "failover":
            self.consumers.sort(key=lambda one: (one.priority, one.name))
        self._cursor.queue_all(self._key_shares.unpark_all())
        self._tell_active(before)
        return consumer

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer and give the entries that it held to others."""
        if consumer.closed:
            return
        before = self.eligible()
        consumer.closed = True
        self.consumers.remove(consumer)
        self.give_back(consumer, consumer.held, counted=False)
        self._cursor.queue_all(self._key_shares.unpark_all())
        self._tell_active(before)
        if not self.consumers and self._forget is not None:
            self._forget(self)
        self.pump()

    def disconnect(self) -> None:
        """Detach every consumer, which may come again: the subscription stays, a reader's too."""
        for consumer in list(self.consumers):
            consumer.closed = True
            self.consumers.remove(consumer)
            self.give_back(consumer, consumer.held, counted=False)
            if consumer.on_close:
                consumer.on_close()

    def eligible(self) -> list[Consumer]:
        """The consumers that are given entries.

        In order it is one. Failover consumers of the first priority share the partitions of a topic by their numbers, so
        that each of them gets as many, as in Pulsar.
        """
        if not self.in_order or len(self.consumers) < 2:
            return self.consumers
        first = self.consumers[0].priority
        sharing = [consumer for consumer in self.consumers if consumer.priority == first]
        return [sharing[self._partition % len(sharing)]]

    def _tell_active(self, before: list[Consumer]) -> None:
        if self.type != "failover":
            return
        now = self.eligible()
        for consumer in self.consumers:
            if consumer.on_active and (consumer in now) != (consumer in before):
                consumer.on_active(consumer in now)
        for old in before:
            if old not in now and not old.closed:
                self.give_back(old, old.held, counted=False)

    def close_all(self) -> None:
        """Detach every consumer: the topic or the subscription is going."""
        self.closed = True
        for consumer in list(self.consumers):
            consumer.closed = True
            self.consumers.remove(consumer)
            if consumer.on_close:
                consumer.on_close()

    def check_open(self) -> None:
        """Raise `NotFound` if the subscription is deleted, alone or with its topic."""
        if self.closed:
            raise NotFound(
                f"subscription {self.name} of topic {self.topic.name} was deleted; subscribe again"
            )

    # Acknowledging

    def ack(self, entry_ids: list[int], below: int = 0, partial: Partial = ()) -> Answer[None]:
        """Be done with entries, and with some messages of others."""
        if below and self.in_order and self.honours_delay:
            entry_ids, below = [*entry_ids, *self._given_below(below)], 0
        if self.closed:
            # The record names the subscription, so that of one that is gone there must be none: its successor would have it.
            return failed(NotFound(f"subscription {self.name} of topic {self.topic.name} was deleted"))
        stop, writer = self.topic.next, self._parts.writer
        partial = [(one, writer.bits_of(self.topic, one, left)) for one, left in partial if 0 <= one < stop]
        entry_ids, below = [entry_id for entry_id in entry_ids if 0 <= entry_id < stop], min(below, stop)
        if self.durable:
            return writer.ack(self.topic, self.name, entry_ids, below, partial)
        self.apply_ack(entry_ids, below, partial)
        self.pump()
        return settled(None)

    def apply_ack(self, entry_ids: list[int], below: int, partial: Partial = ()) -> None:
        """Take an acknowledgement into the state; its record is enqueued."""
        if partial:
            # Of what is acknowledged as a whole nothing is left.
            open_ = [(entry_id, left) for entry_id, left in partial if entry_id not in self.acked]
            entry_ids = [
                *entry_ids,
                *(entry_id for entry_id, left in open_ if self._none_left(entry_id, left)),
            ]
        self._release(entry_ids)
        before = self.acked.below
        if below > before:
            self._release_below(below)
            self.acked.add_below(below, self.topic.next)
            self._cursor.pass_below(self.acked.below)
        self.acked.add(entry_ids, self.topic.next)
        if self.partial:
            for entry_id in entry_ids:
                self.partial.pop(entry_id, None)
            _forget_between(self.partial, before, self.acked.below)
        self.changed = True

    def _given_below(self, below: int) -> list[int]:
        """The entries below an entry id that were given out; those that still wait, or come again, are not among them."""
        ids = np.arange(self.acked.below, max(self.acked.below, min(below, self._cursor.at)))
        ids = ids[~(self.acked.contains_many(ids) | self.topic.waiting.contains_many(ids))]
        return [entry_id for entry_id in ids.tolist() if entry_id not in self._cursor]

    def _none_left(self, entry_id: int, left: list[int]) -> bool:
        known = self.partial.get(entry_id, left)
        self.partial[entry_id] = [a & b for a, b in zip(known, left, strict=False)]
        return not any(self.partial[entry_id])

    @property
    def waiting(self) -> bool:
        """Whether a consumer may wait for an acknowledgement: for a key, or for space for more entries."""
        return self._cursor.has_again or self._blocked

    def honour_delay(self, honour: bool) -> None:
        """Say whether delays count though it is exclusive or failover. While nobody is attached; not kept for good."""
        if honour != self.honours_delay and not self.consumers:
            self.honours_delay = honour
            self._read_anew()

    def become(self, type_: SubscriptionType) -> None:
        """Change the type, while nobody is attached: entries that were read and not acknowledged are read anew."""
        if type_ != self.type:
            # Delays count for some types only, so that the next entries may be others.
            self.type = type_
            self._read_anew()

    def _read_anew(self) -> None:
        self._key_shares.clear_parked()
        self._cursor.move(self.acked.below)

    def seek(self, to: int | None = None, *, at_ms: int | None = None) -> Answer[None]:
        """Go to an entry, or to the first that was published at an instant or later."""
        try:
            self.check_open()
            if (to is None) == (at_ms is None):
                raise Invalid("entry_id", "give an entry id or an instant")
            if to is None:
                to = self._parts.reader.first_published(self.topic, at_ms or 0)
        except TarryError as error:
            return failed(error)
        to = min(max(to, self.topic.first), self.topic.next)
        if self.durable:
            return self._parts.writer.seek(self.topic, self.name, to)
        self.apply_seek(to)
        self.pump()
        return settled(None)

    def apply_seek(self, to: int) -> None:
        """Go to an entry: below it all is done with, from it on nothing."""
        self.leases.clear()
        self._key_shares.clear()
        self.redeliveries.clear()
        self.partial.clear()
        # The rows of the old blocks go at the next flush.
        stale = {*self.acked.above.numbers(), *self.acked.above.dirty}
        self.acked = AckSet(min(to, self.topic.next))
        self.acked.above.touch(stale)
        self._cursor.move(self.acked.below)
        self.changed = True

    def _release(self, entry_ids: Iterable[int]) -> None:
        released = self.leases.release(entry_ids)
        if self.type == "key_shared":
            for entry_id in released:
                self._cursor.queue_all(self._key_shares.release(entry_id))
        if self.redeliveries:
            for entry_id in entry_ids:
                self.redeliveries.pop(entry_id, None)

    def _release_below(self, below: int) -> None:
        if self.type == "key_shared":
            self._release(self.leases.below(below))
        self.leases.release_below(below)
        for entry_id in [one for one in self.redeliveries if one < below]:
            del self.redeliveries[entry_id]

    def give_back(self, consumer: Consumer, entry_ids: Sequence[int] | set[int], *, counted: bool) -> None:
        """Entries that a consumer does not keep: they come again, first those of the lowest id."""
        if self.closed:
            return
        spent: list[int] = []
        limit = int(self.properties.get("max_redeliveries", 0))
        for entry_id in list(entry_ids):
            if self.leases.holder(entry_id) is not consumer:
                continue
            self.leases.release([entry_id])
            if self.type == "key_shared":
                self._cursor.queue_all(self._key_shares.release(entry_id))
            self.redeliveries[entry_id] = self.redeliveries.get(entry_id, 0) + counted
            if limit and self.redeliveries[entry_id] > limit:
                spent.append(entry_id)
            else:
                self._cursor.queue(entry_id)
        for entry_id in self._dead_letters(spent) if spent else ():
            self._cursor.queue(entry_id)
        if counted:
            self.pump()

    def _dead_letters(self, spent: list[int]) -> list[int]:
        """Be done with entries that came too often; gives back those for which there is no space now."""
        ids = np.array(spent, np.int64)
        entries, gone = self._read(ids, self.topic.seqs(ids))
        return self._parts.writer.dead_letters(self.topic, self.name, self.properties, entries, gone)

    def _read(self, ids: NDArray[np.int64], seqs: NDArray[np.int64]) -> tuple[Sequence[Received], list[int]]:
        return self._parts.reader.for_subscription(self.topic, ids, seqs, self.redeliveries, self.partial)

    # Giving out

    def ready(self, entry_ids: NDArray[np.int64]) -> None:
        """Delayed entries are due now."""
        if not self.ignores_delay:
            wanted = entry_ids[(entry_ids < self._cursor.at) & ~self.acked.contains_many(entry_ids)]
            self._cursor.queue_all(one for one in wanted.tolist() if one not in self.leases)

    def flowed(self, consumer: Consumer) -> None:
        """A consumer can take more."""
        self._cursor.queue_all(self._key_shares.unpark_for(consumer))
        self.pump()

    def pump(self) -> None:
        """Give out entries until permits or entries run out."""
        if self._pumping:
            return
        if not self._parts.pumping.may_give_out():
            self._parts.pumping.wake(self)
            return
        self._pumping = True
        try:
            self._pumped = 0
            while self._pumped < PUMPED_TOGETHER:
                if not self._pump_once():
                    return
            self._parts.pumping.go_on(self)
        finally:
            self._pumping = False

    def _pump_once(self) -> bool:
        willing = [consumer for consumer in self.eligible() if consumer.permits > 0]
        takers = [consumer for consumer in willing if not consumer.blocked]
        if self._blocked and self.type == "key_shared":
            # What was parked because its consumer held too much, and no permit comes to ask for it.
            for consumer in takers:
                self._cursor.queue_all(self._key_shares.unpark_for(consumer))
        self._blocked = len(takers) < len(willing)
        if not takers or self.closed or self._parts.reader.stopped:
            return False
        if self.type == "shared":
            first = min(consumer.priority for consumer in takers)
            takers = [consumer for consumer in takers if consumer.priority == first]
        permits = sum(consumer.permits for consumer in takers)
        wanted = min(-(-permits // self._messages_per_entry), BATCH)
        ids = self._cursor.take(
            wanted,
            self.acked,
            self.leases,
            passes_waiting=not self.ignores_delay,
            again_only=self._key_shares.full,
        )
        self._pumped += len(ids) or BATCH
        if not len(ids):
            return not (self._cursor.at_end or self._key_shares.full)
        seqs = self.topic.seqs(ids)
        together = self._parts.reader.together(seqs)
        self._cursor.queue_all(ids[together:].tolist())
        entries, gone = self._read(ids[:together], seqs[:together])
        if gone:
            _ = self.ack(gone)
        if not entries:
            return True
        self._messages_per_entry = max(1, messages_in(entries) // len(entries))
        if self.type == "key_shared":
            for consumer, given in self._key_shares.share(entries, takers).items():
                if given:
                    self._give(consumer, given)
            # Entries that were parked are progress too: the next look is further on.
            return True
        return self._give_in_turn(entries, takers)

    def _give_in_turn(self, entries: Sequence[Received], takers: list[Consumer]) -> bool:
        at = 0
        while at < len(entries) and takers:
            consumer = takers[self._turn % len(takers)]
            self._turn += 1
            # Shares that are neither single entries nor everything to the first who asked.
            share = min(consumer.permits, max(1, -(-len(entries) // len(takers))), len(entries) - at)
            given = _within(entries[at : at + share], consumer.permits)
            self._give(consumer, given)
            at += len(given)
            takers = [one for one in takers if one.permits > 0 and not one.closed]
        for entry in entries[at:]:
            self._cursor.queue(entry.entry_id)
        return at > 0

    def _give(self, consumer: Consumer, entries: Sequence[Received]) -> None:
        consumer.permits -= messages_in(entries)
        self.leases.give(ids_of(entries), consumer)
        try:
            consumer.deliver(entries)
        except Exception as error:  # noqa: BLE001 - what one consumer cannot be given is no fault of the others
            self._parts.isolation.check(error)
            log.error(
                "a consumer of %s on %s is detached: entries %d to %d could not be given to it: %s",
                self.name, self.topic.name, entries[0].entry_id, entries[-1].entry_id, faults.told(error),
            )  # fmt: skip
            self.detach(consumer)
            if consumer.on_close:
                consumer.on_close()

    # The registry

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's tables."""
        if not self.durable or not self.changed:
            return
        registry.subscriptions.put(
            (self.topic.name, self.name),
            SubscriptionRow(
                self.type, self.acked.below, self.properties, dict(self.partial), self.incarnation
            ),
        )
        save_set(self.acked.above, registry.acks, self.topic.name, self.name)
        self.changed = False

    def erase(self, registry: Registry) -> None:
        """Remove every row of this subscription."""
        registry.subscriptions.remove(self.topic.name, self.name)
        for number in {*self.acked.above.numbers(), *self.acked.above.dirty}:
            registry.acks.remove(self.topic.name, self.name, number)

    def stats(self) -> dict[str, Any]:
        """Figures for people."""
        return {
            "type": self.type,
            "durable": self.durable,
            "backlog": self.backlog,
            "unacked": len(self.leases),
            "acknowledged_below": self.acked.below,
            "consumers": [
                {"name": one.name, "permits": one.permits, "unacked": one.unacked, "active": one.active}
                for one in self.consumers
            ],
        }


def _forget_between(of: dict[int, list[int]], start: int, stop: int) -> None:
    """Take the entries from one to another out of a mapping, which costs no more than there are of either."""
    gone = range(start, stop) if stop - start < len(of) else [one for one in of if start <= one < stop]
    for entry_id in gone:
        of.pop(entry_id, None)


def _within(entries: Sequence[Received], permits: int) -> Sequence[Received]:
    """The first of these, up to the one with which the permits are used up."""
    if messages_in(entries) <= permits:
        return entries
    for count, entry in enumerate(entries, 1):
        permits -= entry.messages
        if permits <= 0:
            return entries[:count]
    return entries
