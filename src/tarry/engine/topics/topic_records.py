"""Topics as their records add up: every topic, its entries and its subscriptions.

A record is decided when it is enqueued or replayed (`decide`), and an entry is seen by consumers once it is durable
(`appended`). Nothing here writes: that is `tarry.engine.topics.topics`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Conflict
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event
from tarry.core.names import parse_topic
from tarry.core.sets.deadset import DeadSet
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.due_batch import Prepare
from tarry.engine.namespaces.policies import Policies
from tarry.engine.records.changes import NewEntries, sent_with
from tarry.engine.records.delayed_entry import due_of, ended_row
from tarry.engine.topics.entries import received_entries
from tarry.engine.topics.grace import Grace
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.sequences import Sequences
from tarry.engine.topics.subscription import Subscription, SubscriptionParts
from tarry.engine.topics.topic import NamedTopics, Topic, incarnation_of
from tarry.ledger.read_record import ReadEntry
from tarry.ledger.record import (
    Ack,
    Entry,
    Key,
    Record,
    Seek,
    Subscribe,
    TopicSet,
    Unsubscribe,
    decode_entry,
    decode_put,
    encode,
)
from tarry.registry.registry import LiveRow, Registry

SAVED_TOGETHER: Final = 200
"""Topics that a flush finds changed, at the most."""

LOOKED_AT_TOGETHER: Final = 200
"""Topics, and chunks of their entries, that are looked at in one step: some milliseconds."""


FULL: Final = "topics"
"""The state of a namespace that has all the topics it may have."""


class TopicRecords:
    """The topics of this server, as their records say."""

    def __init__(
        self,
        by_name: NamedTopics,
        registry: Registry,
        policies: Policies,
        dead: DeadSet,
        counters: "Counter[str]",
        bodies: Bodies,
        recent_entries: RecentEntries,
        ids: Ids,
        clock: Clock,
        parts: SubscriptionParts,
    ) -> None:
        self.by_name = by_name
        self.grace = Grace()
        self._touched: dict[Topic, None] = {}
        """Topics of which the registry does not know everything, in the order in which they changed."""
        self.delayed: dict[Topic, None] = {}
        """Topics in which delayed entries wait, or have waited."""
        self._registry = registry
        self._policies = policies
        self._dead = dead
        self._counters = counters
        self._bodies = bodies
        self._recent_entries = recent_entries
        self._ids = ids
        self._clock = clock
        self._parts = parts
        self._pumping = parts.pumping
        self.on_deleted: Callable[[Topic], None] | None = None
        """Told of each topic that is deleted, so that nothing goes on in its name."""

    def add(self, first_seq: int, new: NewEntries) -> Topic:
        """Take new entries into the state, of a unit that begins with a seq; gives their topic."""
        # Their topic is there, unless it is made by them or the record that made it is set aside.
        topic = self._named(new.topic, first_seq + int(new.places[0]), new.published_at_ms)
        if len(new.places) == 1:
            topic.place(new.first_id, first_seq + int(new.places[0]), int(new.sizes[0]))
        else:
            topic.place_many(new.first_id, new.seqs(first_seq), np.asarray(new.sizes, np.int64))
        if len(new.waiting):
            topic.waiting.add_many(np.asarray(new.waiting, np.int64))
            self.delayed[topic] = None
            self._counters["accepted"] += len(new.waiting)
        for producer, sent in new.sent:
            topic.heard_from(producer, sent)
        self._touch(topic)
        return topic

    def decide(self, seq: int, record: Record) -> Topic | None:
        """Take a record into the state, when it is enqueued or replayed; gives the topic of an entry that was there before.

        The effect of the record is for that topic and no other: by then another one may have its name.
        """
        match record:
            case Entry(cancelled=True):
                return self._decide_cancelled(record)
            case Entry():
                return self._decide_carried(seq, record)
            case TopicSet():
                self._decide_topic(seq, record)
            case _ if (topic_of := self.by_name.get(record.topic)) is not None:  # type: ignore[union-attr]
                self._decide_subscription(seq, topic_of, record)
        return None

    def _decide_carried(self, seq: int, record: Entry) -> Topic:
        topic = self._named(record.topic, seq, record.published_at_ms)
        # One that the topic has forgotten meanwhile does not come back: nobody needs it.
        known = record.entry_id >= topic.first
        if known:
            topic.place(record.entry_id, seq)
        if record.fire_at_ms:
            if known:
                topic.waiting.add(record.entry_id)
                self.delayed[topic] = None
            if record.origin is not None:
                row = LiveRow(Key(record.fire_at_ms, seq), record.origin)
                self._registry.live.put((record.origin.seq,), row, (None, due_of(record)))
        else:
            # It was ready when it was carried forward, which no record says.
            topic.waiting.discard(record.entry_id)
            if record.origin is not None and self._registry.live.get(record.origin.seq) is not None:
                # A start has not heard of its end, and what was the record of its row may be gone.
                self._end(record, Event.READY, self._clock.now_ms())
        for producer, sent in sent_with(record):
            topic.heard_from(producer, sent)
        self._touch(topic)
        return topic

    def _decide_cancelled(self, record: Entry) -> Topic | None:
        if record.origin is not None:
            # A dead letter whose message is retried is no message of its own.
            self._end(record, Event.CANCEL, record.since_ms or record.published_at_ms)
        topic = self.by_name.get(record.topic)
        if topic is not None:
            self._touch(topic)
            topic.waiting.discard(record.entry_id)
            # There is nothing to read: whoever subscribes later passes it over.
            topic.place(record.entry_id, 0)
            for sub in topic.subscriptions.values():
                sub.apply_ack([record.entry_id], 0)
        return topic

    def _end(self, entry: Entry, event: Event, at_ms: int) -> None:
        """A delayed entry that was commanded, or carried forward, has come to its end."""
        key, searched, ended = ended_row(entry, event, at_ms)
        self._registry.live.remove(*key)
        self._registry.finalised.put(key, ended, searched)
        self._counters["cancelled"] += event is Event.CANCEL

    def _decide_topic(self, seq: int, record: TopicSet) -> None:
        if not record.deleted:
            topic = self._named(record.name, seq, self._clock.now_ms())
            topic.partitions = max(topic.partitions, record.partitions)
            topic.epoch = max(topic.epoch, record.epoch)
            topic.touch()
            self._touch(topic)
            return
        gone = self.by_name.pop(record.name, None)
        if gone is not None:
            for sub in gone.subscriptions.values():
                sub.close_all()
            self._dead.add_many(gone.waiting_seqs())
            gone.erase(self._registry)
            self._touched.pop(gone, None)
            self.grace.forget(gone)
            if self.on_deleted is not None:
                self.on_deleted(gone)

    def _named(self, name: str, seq: int, at_ms: int) -> Topic:
        """The topic of a name; a new one is known by the seq of the record that makes it."""
        topic = self.by_name.get(name)
        if topic is None:
            topic = self.by_name[name] = Topic(name, at_ms, seq)
        return topic

    def _decide_subscription(self, seq: int, topic: Topic, record: Record) -> None:
        self._touch(topic)
        match record:
            case Subscribe():
                sub = topic.subscriptions.get(record.name)
                if sub is None or not sub.durable:
                    type_: Any = record.subscription_type
                    topic.subscriptions[record.name] = Subscription(
                        self._parts,
                        topic,
                        record.name,
                        type_,
                        record.start,
                        durable=True,
                        properties=record.properties,
                        incarnation=seq,
                    )
                else:
                    sub.become(record.subscription_type)  # type: ignore[arg-type]
                    sub.properties = record.properties
                    sub.changed = True
            case Unsubscribe():
                sub = topic.subscriptions.pop(record.name, None)
                if sub is not None:
                    sub.close_all()
                    sub.erase(self._registry)
            case Ack():
                sub = topic.subscriptions.get(record.subscription)
                if sub is not None:
                    sub.apply_ack(record.entries, record.below, record.partial)
                    if sub.waiting:
                        # A key may be free now for another consumer.
                        self._pumping.wake(sub)
            case Seek():
                sub = topic.subscriptions.get(record.name)
                if sub is not None:
                    sub.apply_seek(record.to)
                    self._pumping.wake(sub)

    def check_topic_limit(self, topic: str, more: int = 1) -> None:
        """Raise `Conflict` if so many new topics, of which this is one, are more than their namespace may have."""
        namespace = parse_topic(topic).namespace_name
        limit = self._policies.effective(None, namespace).max_topics
        if more and limit and self.by_name.count(namespace) + more > limit:
            level = self._policies.level_at(None, namespace)("max_topics")
            raise Conflict(
                f"namespace {namespace} has its limit of {limit} topics"
                + (f", set on {level}; delete some, or raise max_topics there" if level else "; delete some"),
                FULL,
            )

    def next_id(self, name: str) -> int:
        """The entry id that a topic gives next."""
        topic = self.by_name.get(name)
        return topic.next if topic else 0

    def prepares(self, name: str) -> set[Prepare]:
        """The doors that prepare the entries of a topic: those of its consumers that do."""
        topic = self.by_name.get(name)
        subscriptions = () if topic is None else topic.subscriptions.values()
        consumers = (consumer for sub in subscriptions for consumer in sub.consumers)
        return {consumer.prepare for consumer in consumers if consumer.prepare is not None}

    def appended(self, topic: Topic, entry_id: int) -> None:
        """An entry's record is durable: consumers of its topic may see it."""
        if entry_id >= topic.visible:
            topic.visible = entry_id + 1
            for sub in topic.subscriptions.values():
                self._pumping.wake(sub)

    def ready(self, seqs: Sequence[int], entries: Sequence[ReadEntry]) -> Counter[tuple[str, int]]:
        """Delayed entries are due, given with their seqs; gives how many of which door are how late."""
        by_topic: dict[str, list[int]] = {}
        for at, entry in enumerate(entries):
            by_topic.setdefault(entry.topic, []).append(at)
        late: Counter[tuple[str, int]] = Counter()
        for name, chosen in by_topic.items():
            topic = self.by_name.get(name)
            if topic is not None:
                late += self._ready_in(topic, [seqs[at] for at in chosen], [entries[at] for at in chosen])
        return late

    def _ready_in(self, topic: Topic, seqs: list[int], due: list[ReadEntry]) -> Counter[tuple[str, int]]:
        entry_ids = np.array([entry.entry_id for entry in due], np.int64)
        here = topic.waiting.contains_many(entry_ids) & (topic.seqs(entry_ids) == np.array(seqs))
        if not here.all():
            # Some were cancelled, or carried forward, in the meantime.
            seqs, due = list(compress(seqs, here)), list(compress(due, here))
            entry_ids = entry_ids[here]
        if not due:
            return Counter()
        now_ms = self._clock.now_ms()
        due_at_ms = [entry.fire_at_ms if entry.due_at_ms is None else entry.due_at_ms for entry in due]
        late_ms = np.maximum(now_ms - np.array(due_at_ms), 0).tolist()
        topic.last_late_ms = late_ms[-1]
        topic.max_late_ms = max(topic.max_late_ms, *late_ms)
        self._recent_entries.add(seqs, received_entries(due, self._ids))
        for seq in [seq for seq, entry in zip(seqs, due, strict=True) if entry.carries is not None]:
            # An untouched entry has no row, and an earlier version gave none to one that it moved.
            if (whole := decode_entry(self._bodies.one(seq))).origin is not None:
                self._end(whole, Event.READY, now_ms)
        self._counters["sent"] += len(due)
        self._ready(topic, entry_ids)
        return Counter(zip([entry.door for entry in due], late_ms, strict=True))

    def ready_unread(self, seq: int) -> bool:
        """Pass over an entry that cannot be read, so that nobody waits for it; whether there is one there."""
        for topic in self.by_name.values():
            if seq in (seqs := topic.waiting_seqs().tolist()):
                waiting = topic.waiting.between(topic.first, topic.next)
                self._ready(topic, waiting[[seqs.index(seq)]])
                return True
        return False

    def _ready(self, topic: Topic, entry_ids: NDArray[np.int64]) -> None:
        topic.waiting.discard_many(entry_ids)
        self._touch(topic)
        for sub in topic.subscriptions.values():
            sub.ready(entry_ids)
            self._pumping.wake(sub)

    # The registry

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's tables."""
        while self._touched:
            self._save(next(iter(self._touched)), registry)

    @property
    def changed(self) -> bool:
        """Whether anything here is newer than the registry."""
        return bool(self._touched)

    def _touch(self, topic: Topic) -> None:
        """Have a topic saved by the next flush.

        Of very many topics the first is saved at once, and again if it changes again: so no flush has many to save.
        """
        self._touched[topic] = None
        if len(self._touched) > SAVED_TOGETHER:
            self._save(next(iter(self._touched)), self._registry)

    def _save(self, topic: Topic, registry: Registry) -> None:
        del self._touched[topic]
        if not self._policies.retains(topic.name):
            self.grace.note(topic, self._clock.now_ms())
        topic.save(registry)
        for sub in topic.subscriptions.values():
            sub.save(registry)

    def trim(self, topic: Topic, to: int) -> None:
        """Let a topic forget its entries below one; of one that was deleted meanwhile there is nothing to be saved."""
        if self.by_name.get(topic.name) is not topic:
            return
        before = topic.first
        topic.trim(to)
        if topic.first > before:
            self._touch(topic)

    def let_go(self, now_ms: int) -> bool:
        """Forget entries that all subscriptions acknowledged a while ago; gives whether there may be more."""
        over = self.grace.over(now_ms)
        for mark in over:
            topic = mark.topic
            if not self._policies.retains(topic.name):
                # A subscription that went back needs them again.
                self.trim(topic, min(mark.below, topic.unneeded_below()))
        return bool(over)

    def load(self, registry: Registry) -> None:
        """Take everything back from the registry."""
        for (name,), row in registry.topics.rows():
            made_by = row.incarnation or incarnation_of(name)
            topic = self.by_name[name] = Topic(name, row.created_at_ms, made_by)
            topic.epoch = row.epoch
            topic.first, topic.next, topic.visible, topic.partitions = (
                row.first,
                row.next,
                row.next,
                row.partitions,
            )
        for (name, number), data in registry.chunks.rows():
            if name in self.by_name:
                self.by_name[name].load_chunk(number, data)
        for (name, number), data in registry.waiting.rows():
            if name in self.by_name:
                self.by_name[name].waiting.load(number, data)
                self.delayed[self.by_name[name]] = None
        for (name, sub_name), sub_row in registry.subscriptions.rows():
            topic = self.by_name[name]
            type_: Any = sub_row.type
            sub = Subscription(
                self._parts,
                topic,
                sub_name,
                type_,
                sub_row.below,
                durable=True,
                properties=sub_row.properties,
                incarnation=sub_row.incarnation,
            )
            sub.partial = sub_row.partial
            sub.changed = False
            topic.subscriptions[sub_name] = sub
        for (name, sub_name, number), data in registry.acks.rows():
            self.by_name[name].subscriptions[sub_name].acked.above.load(number, data)
        for (name, producer), sequence in registry.producers.rows():
            if name in self.by_name:
                self.by_name[name].producers[producer] = Sequences(sequence)
        for (name, producer), known in registry.sequences.rows():
            if name in self.by_name:
                self.by_name[name].producers[producer] = Sequences.of_row(known)

    def replayed(self) -> None:
        """The replay is over: everything that was placed is durable."""
        now_ms = self._clock.now_ms()
        for topic in self.by_name.values():
            topic.visible = topic.next
            if topic.subscriptions and not self._policies.retains(topic.name):
                self.grace.note(topic, now_ms)

    def waits(self, entry: Entry, seq: int) -> bool:
        """Whether an entry, whose record is at a seq, is a delayed one that is not due yet."""
        topic = self.by_name.get(entry.topic)
        return topic is not None and topic.seq(entry.entry_id) == seq and entry.entry_id in topic.waiting

    @property
    def waiting(self) -> int:
        """How many delayed entries are not due yet."""
        for topic in [
            one for one in self.delayed if not one.waiting or self.by_name.get(one.name) is not one
        ]:
            del self.delayed[topic]
        return sum(len(topic.waiting) for topic in self.delayed)

    def waiting_seqs(self) -> NDArray[np.int64]:
        """Where the delayed entries are that are not due yet."""
        return np.concatenate(
            [np.empty(0, np.int64), *(topic.waiting_seqs() for topic in self.by_name.values())]
        )

    def needed_upto(self, upto_seq: int) -> Iterator[NDArray[np.int64]]:
        """Seqs, up to one, of the entries that somebody still needs (R12), in steps: there may be very many topics."""
        found = [np.empty(0, np.int64)]
        looked = 0
        for topic in list(self.by_name.values()):
            looked += 1
            if topic.may_have_upto(upto_seq):
                for seqs in topic.needed_seqs(upto_seq, self._policies.retains(topic.name)):
                    found.append(seqs)
                    looked += 1
                    if looked >= LOOKED_AT_TOGETHER:
                        yield np.concatenate(found)
                        found, looked = found[:1], 0
            if looked >= LOOKED_AT_TOGETHER:
                yield np.concatenate(found)
                found, looked = found[:1], 0
        yield np.concatenate(found)

    def carried(self, entry: Entry, seq: int) -> Entry | None:
        """The entry as a new record, to be written at the head of the ledger (R12)."""
        topic = self.by_name.get(entry.topic)
        if topic is None or topic.seq(entry.entry_id) != seq:
            return None
        put = entry.put
        if entry.fired is not None:
            # The end of the message is told already; what stays is its body, and which message it was.
            version = decode_put(put)
            put = msgspec.Raw(
                encode(msgspec.structs.replace(version, origin=version.origin or entry.fired)).body
            )
        waits, key = entry.entry_id in topic.waiting, Key(entry.fire_at_ms, seq)
        return msgspec.structs.replace(
            entry,
            fired=None,
            put=put,
            fire_at_ms=entry.fire_at_ms if waits else 0,
            carries=key,
            origin=entry.origin or key if waits else entry.origin,
        )
