"""Tarry's own topics: publishing, subscribing, acknowledging.

Every change is a record first: what the records add up to is in `records`, and replaying them gives the same state.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tarry.core import admission, faults
from tarry.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    QuotaExceeded,
    TarryError,
    TooLarge,
    Unavailable,
)
from tarry.core.names import check_name, parse_topic
from tarry.core.policy import BacklogAction, Effective, Level
from tarry.core.tracing import TRACEPARENT
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.journal.steps import append_in_steps
from tarry.engine.topics.consumer import Partial, Received
from tarry.engine.topics.entries import NewEntry, check_entry
from tarry.engine.topics.entry_batch import EntryBatch
from tarry.engine.topics.publication import Publication
from tarry.engine.topics.subscription import SUBSCRIPTION_TYPES, Subscription, SubscriptionType
from tarry.engine.topics.topic import Topic
from tarry.engine.topics.topic_records import TopicRecords
from tarry.engine.tracing import accepted
from tarry.ledger.record import (
    NO_PUT,
    Ack,
    Entry,
    Record,
    Seek,
    Subscribe,
    TopicSet,
    Unsubscribe,
)

if TYPE_CHECKING:
    from tarry.engine.journal.journal import Journal

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10_000

LOOKED_AT_TOGETHER: Final = 500
"""Topics whose oldest entries are looked at in one turn."""

WORD_BITS: Final = 64
"""Messages of a batch in one word of an acknowledgement."""

FULL: Final = "topics"
"""The state of a namespace that has all the topics it may have."""

DUPLICATE = -1
"""The entry id that a producer is told for a message that is stored already."""


class Published(Struct, frozen=True):
    """The outcome of entries that were published together."""

    incarnation: int
    """Incarnation of the topic that has them; 0 if there is none."""
    ids: list[int | TarryError]
    """The entry id of each, or why it was not taken."""


class TopicStats(Struct, frozen=True):
    """Figures of one topic."""

    topic: str
    first_entry: int
    next_entry: int
    delayed: int
    subscriptions: dict[str, dict[str, Any]]
    incarnation: int


class Topics:
    """All topics of this server."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self.records = TopicRecords(journal, self)

    # Topics

    def names(self, namespace: str | None = None) -> list[str]:
        """The names of the topics, of one namespace or all."""
        by_name = self.records.by_name
        return sorted(by_name if namespace is None else by_name.by_namespace.get(namespace, ()))

    def find(self, topic: str) -> Topic:
        """A topic by its name; raises `NotFound`."""
        found = self.records.by_name.get(parse_topic(topic).full)
        if found is None:
            raise NotFound(f"there is no topic {topic}")
        return found

    def create(self, topic: str, partitions: int = 0) -> Answer[None]:
        """Make a topic; one that is there already stays. With partitions, or more of them, these are made too.

        A partitioned topic holds no entries itself: those are in its partitions, which are topics like others.
        """
        try:
            name = parse_topic(topic).full
            found = self.records.by_name.get(name)
            if found is not None and not partitions:
                return self.once_durable(None)
            if found is not None and not found.partitions:
                raise Conflict(f"{name} is there already and has no partitions", "unpartitioned")
            if not 0 <= partitions <= MAX_PARTITIONS:
                raise Invalid("partitions", f"is not between 0 and {MAX_PARTITIONS}")
            if found is not None and found.partitions > partitions:
                raise Conflict(f"{name} has {found.partitions} partitions already", "fewer")
            wanted = [name_of_partition(name, number) for number in range(partitions)]
            made = [TopicSet(one, False, 0) for one in wanted if one not in self.records.by_name]
            self.check_room(name, len(made) + (found is None))
            return append_in_steps(self._journal.append, [TopicSet(name, False, partitions), *made])
        except TarryError as error:
            return failed(error)

    def check_room(self, topic: str, more: int = 1) -> None:
        """Raise `Conflict` if so many new topics, of which this is one, are more than their namespace may have."""
        namespace = parse_topic(topic).namespace_name
        policies = self._journal.policies
        limit = policies.effective(None, namespace).max_topics
        if more and limit and self.records.by_name.count(namespace) + more > limit:
            level = policies.level_at(None, namespace)("max_topics")
            raise Conflict(
                f"namespace {namespace} has its limit of {limit} topics"
                + (f", set on {level}; delete some, or raise max_topics there" if level else "; delete some"),
                FULL,
            )

    def delete(self, topic: str) -> Answer[None]:
        """Remove a topic with its entries, subscriptions, policy, rules and schema; a partitioned one with its partitions.

        A partition that goes by itself leaves what was said of the whole topic.
        """
        try:
            found = self.find(topic)
            parts = [name_of_partition(found.name, number) for number in range(found.partitions)]
            # The topic goes last: until then its deletion can be asked for again.
            return append_in_steps(
                self._journal.append, self._journal.catalogue.ends_of([*parts, found.name])
            )
        except TarryError as error:
            return failed(error)

    def enter_epoch(self, topic: str, epoch: int) -> Answer[None]:
        """Say that a producer has the topic for itself, in this epoch; answered once nobody can forget it."""
        try:
            found = self.find(topic)
            if epoch <= found.epoch:
                return self.once_durable(None)
            return self._write([TopicSet(found.name, False, found.partitions, epoch)], None)
        except TarryError as error:
            return failed(error)

    def epoch(self, topic: str) -> int:
        """The epoch of the last producer that had a topic for itself; -1 if none has."""
        found = self.records.by_name.get(topic)
        return found.epoch if found else -1

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 for one that has none or is not there."""
        found = self.records.by_name.get(topic)
        return found.partitions if found else 0

    def over_quota(self, topic: str) -> BacklogAction | None:
        """Why a topic takes no more entries, if it does not."""
        found = self.records.by_name.get(topic)
        return found.full if found else None

    def last_sequence(self, topic: str, producer: str) -> int:
        """The highest sequence number of a producer that is stored, where sending again is told from sending; else -1."""
        found = self.records.by_name.get(topic)
        if found is None or not self._policy(found).deduplication:
            return -1
        known = found.producers.get(producer)
        return -1 if known is None else known.last

    def _policy(self, topic: Topic) -> Effective:
        return self._journal.policies.effective(topic.name, parse_topic(topic.name).namespace_name)

    def stats(self, topic: str) -> TopicStats:
        """Figures of one topic; raises `NotFound`."""
        found = self.find(topic)
        return TopicStats(
            found.name, found.first, found.visible, len(found.waiting),
            {name: sub.stats() for name, sub in found.subscriptions.items()}, found.incarnation,
        )  # fmt: skip

    # Publishing

    def publish(self, topic: str, entries: Sequence[NewEntry]) -> Answer[list[int]]:
        """Append entries to a topic, all or none; it is made on first use. The answer is their entry ids."""
        return self._publish(topic, entries, each=False)

    def publish_each(self, topic: str, entries: Sequence[NewEntry]) -> Answer[Published]:
        """Append entries to a topic, each by itself: what cannot be taken has its error in its place."""
        return self._publish(topic, entries, each=True)

    def _publish(self, topic: str, entries: Sequence[NewEntry], *, each: bool) -> Answer[Any]:
        tracer = self._journal.tracer
        if tracer is None or not entries:
            return self._append(topic, entries, each, None)
        named = [entry.headers[TRACEPARENT] for entry in entries if TRACEPARENT in entry.headers]
        callers = [*named, *(caller for entry in entries for caller in entry.callers)]
        take = partial(self._append, topic, entries, each)
        messages = sum(entry.messages for entry in entries)
        return accepted(tracer, "publish", entries[0].door, messages, callers, take)

    def _append(
        self, topic: str, entries: Sequence[NewEntry], each: bool, trace: bytes | None
    ) -> Answer[Any]:
        try:
            name = parse_topic(topic)
            found = self.records.by_name.get(name.full)
            if found is None:
                self.check_room(name.full)
            elif found.full is not None:
                raise QuotaExceeded(name.full, found.full)
            now_ms = self._journal.clock.now_ms()
            policy = self._journal.policies.effective(name.full, name.namespace_name)
            level = self._journal.policies.level_at(name.full, name.namespace_name)
            new = Publication(name.full, found.next if found else 0, now_ms, trace)
            ids: list[int | TarryError] = []
            for entry in entries:
                if entry.producer is not None and entry.producer_sequence >= 0:
                    if new.holds(entry) or (found is not None and found.holds(entry.producer, entry.sent)):
                        ids.append(DUPLICATE)
                        continue
                try:
                    check_entry(entry)
                    fire_at_ms = self._entry_fires_at(entry, policy, level, now_ms)
                except TarryError as error:
                    if not each:
                        raise
                    ids.append(error)
                    continue
                ids.append(new.add(entry, fire_at_ms))
            if not new:
                made_by = 0 if found is None else found.incarnation
                return self.once_durable(Published(made_by, ids) if each else ids)
            unit = new.written()
            if found is None:
                # A topic is not made for what it can never take.
                self._journal.ledger.check_size(unit.unit.content_bytes)
                self._journal.append([TopicSet(name.full, False, 0)], lambda _: None)
            answer: Answer[Any] = Answer()
            settle = answer.unless_error(lambda: value)

            def durable(error: TarryError | None) -> None:
                if error is None and home.has_consumers:
                    new.keep_recent(self._journal.recent_entries, first)
                settle(error)

            first = self._journal.append(unit, durable)
            home = self.records.by_name[name.full]
            value = Published(home.incarnation, ids) if each else ids
            return answer
        except TarryError as error:
            return failed(error)

    def _entry_fires_at(self, entry: NewEntry, policy: Effective, level: Level, now_ms: int) -> int:
        """When a delayed entry is ready; 0 for one that is at once. Raises `DelayTooLong`."""
        if entry.deliver_at_ms is None:
            return 0
        if not policy.delayed_delivery:
            self._journal.counters["delay_ignored"] += entry.deliver_at_ms > now_ms
            return 0
        since_ms = now_ms if entry.delayed_since_ms is None else entry.delayed_since_ms
        admission.check_delay(entry.deliver_at_ms - since_ms, policy, level)
        # By whatever clock the producer counts, what is kept has to be an instant that can be stored.
        admission.LONGEST_DELAY.check(entry.deliver_at_ms - now_ms)
        _, fire_at_ms = admission.instants(entry.deliver_at_ms, now_ms, self._journal.floor_ms, policy)
        return fire_at_ms if fire_at_ms > now_ms else 0

    # Subscribing

    def subscribe(
        self,
        topic: str,
        name: str,
        type: SubscriptionType = "shared",
        *,
        start: Literal["earliest", "latest"] | int = "latest",
        durable: bool = True,
        dead_letter_topic: str | None = None,
        max_redeliveries: int | None = None,
    ) -> Answer[Subscription]:
        """Make a subscription, or find the one that is there. Its type may change while nobody is attached."""
        try:
            topic = parse_topic(topic).full
            check_name(name, "subscription")
            if type not in SUBSCRIPTION_TYPES:
                raise Invalid("type", f"is not one of {', '.join(SUBSCRIPTION_TYPES)}")
            properties: dict[str, str] = {}
            if max_redeliveries:
                if max_redeliveries < 0:
                    raise Invalid("max_redeliveries", "is negative")
                dead = parse_topic(dead_letter_topic or f"{topic}-{name}-DLQ", "dead_letter_topic").full
                properties = {"max_redeliveries": str(max_redeliveries), "dead_letter_topic": dead}
            found = self.records.by_name.get(topic)
            sub = found.subscriptions.get(name) if found else None
            if sub is not None:
                if sub.durable != durable:
                    kind = "is kept for good" if sub.durable else "is a reader's, which lives in memory"
                    raise Conflict(f"subscription {name} of {topic} {kind}: take another name", "durable")
                return self._resubscribe(sub, type, properties)
            if found is None:
                self.check_room(topic)
            at = self._start(found, start)
            if not durable:
                return self._reader(topic, found, name, type, at)
            records: list[Record] = [] if found else [TopicSet(topic, False, 0)]
            records.append(Subscribe(topic, name, type, at, properties))
            answer: Answer[Subscription] = Answer()
            self._journal.append(records, answer.unless_error(lambda: made))
            made = self.subscription(topic, name)
            return answer
        except TarryError as error:
            return failed(error)

    def _resubscribe(
        self, sub: Subscription, type_: SubscriptionType, properties: dict[str, str]
    ) -> Answer[Subscription]:
        if sub.type == type_ and (not properties or properties == sub.properties):
            return self.once_durable(sub)
        if sub.type != type_ and sub.consumers:
            raise Conflict(f"subscription {sub.name} is {sub.type} and has consumers", sub.type)
        if not sub.durable:
            sub.become(type_)
            return settled(sub)
        record = Subscribe(sub.topic.name, sub.name, type_, -1, properties or sub.properties)
        return self._write([record], sub)

    def _reader(
        self, topic: str, found: Topic | None, name: str, type_: SubscriptionType, at: int
    ) -> Answer[Subscription]:
        """A subscription that lives in memory, for as long as somebody is attached."""
        answer: Answer[Subscription] = Answer()
        if found is None:
            self._journal.append([TopicSet(topic, False, 0)], answer.unless_error(lambda: sub))
        home = found or self.records.by_name[topic]
        sub = home.subscriptions[name] = Subscription(
            self, home, name, type_, at, durable=False, properties={}
        )
        if found is not None:
            answer.settle(sub)
        return answer

    def _start(self, found: Topic | None, start: Literal["earliest", "latest"] | int) -> int:
        if isinstance(start, int) and start < 0:
            raise Invalid("start", "is not earliest, latest or an entry id")
        if found is None or start == "earliest":
            return found.first if found else 0
        if start == "latest":
            return found.next
        return min(max(start, found.first), found.next)

    def subscription(self, topic: str, name: str) -> Subscription:
        """A subscription by name; raises `NotFound`."""
        sub = self.find(topic).subscriptions.get(name)
        if sub is None:
            raise NotFound(f"there is no subscription {name} of topic {topic}")
        return sub

    def unsubscribe(self, topic: str, name: str) -> Answer[None]:
        """End a subscription."""
        try:
            return self.end(self.subscription(topic, name))
        except TarryError as error:
            return failed(error)

    def end(self, sub: Subscription) -> Answer[None]:
        """End this very subscription."""
        try:
            sub.check_open()
            if not sub.durable:
                sub.close_all()
                self.forget(sub)
                return settled(None)
            return self._write([Unsubscribe(sub.topic.name, sub.name)], None)
        except TarryError as error:
            return failed(error)

    def seek(self, sub: Subscription, to: int | None, at_ms: int | None) -> Answer[None]:
        """Go to an entry, or to the first that was published at an instant or later."""
        try:
            sub.check_open()
            if (to is None) == (at_ms is None):
                raise Invalid("entry_id", "give an entry id or an instant")
            if to is None:
                to = self.first_published(sub.topic, at_ms or 0)
            to = min(max(to, sub.topic.first), sub.topic.next)
            if sub.durable:
                return self._write([Seek(sub.topic.name, sub.name, to)], None)
            sub.apply_seek(to)
            sub.pump()
            return settled(None)
        except TarryError as error:
            return failed(error)

    def expire(self, sub: Subscription, before_ms: int) -> bool:
        """Be done with the entries that could be had before an instant; whether there is more to look at."""
        return self._journal.retention.expire(sub, before_ms)

    def first_published(self, topic: Topic, at_ms: int) -> int:
        """The first entry of a topic that was published at an instant or later."""
        low, high = topic.first, topic.visible
        while low < high:
            middle = (low + high) // 2
            # What everybody has acknowledged may be gone: the next one that is there tells the time.
            at = topic.first_at(self._journal.ledger.first_seq, middle, high)
            while at < high and (published_at_ms := self._published_at_ms(topic, at)) is None:
                at = topic.first_at(self._journal.ledger.first_seq, at + 1, high)
            if at == high or (published_at_ms or 0) >= at_ms:
                high = middle
            else:
                low = at + 1
        return low

    def _published_at_ms(self, topic: Topic, entry_id: int) -> int | None:
        if topic.seq(entry_id) < self._journal.ledger.first_seq:
            return None
        entry = self.entry(topic, entry_id)
        return None if entry is None else entry.published_at_ms

    def forget_unread(self, before_ms: int) -> None:
        """Let topics to which nobody subscribes durably forget what was published before an instant."""
        # A hundred thousand topics are asked here again and again: an instant is compared, and seldom anything read.
        old = [topic for topic in self.records.by_name.values() if topic.oldest_ms < before_ms]
        for topic in old[:LOOKED_AT_TOGETHER]:
            if not any(sub.durable for sub in topic.subscriptions.values()):
                if not self._journal.retention.retains(topic):
                    self.records.trim(topic, self.first_published(topic, before_ms))
            first_ms = self._published_at_ms(topic, topic.first) if topic.first < topic.visible else None
            topic.oldest_ms = before_ms if first_ms is None else max(before_ms, first_ms)

    # What subscriptions need

    @property
    def stopped(self) -> bool:
        """Whether nothing more is given out: the disk has failed, and entries may have places that it does not have."""
        return self._journal.ledger.failed is not None

    def record_ack(
        self, sub: Subscription, entry_ids: list[int], below: int, partial: Partial = ()
    ) -> Answer[None]:
        """Write an acknowledgement; a reader's stays in memory.

        The record names the subscription, so that of one that is gone there must be none: its successor would have it.
        """
        if sub.closed:
            return failed(NotFound(f"subscription {sub.name} of topic {sub.topic.name} was deleted"))
        stop = sub.topic.next
        partial = [
            (one, self._of_its_messages(sub.topic, one, left)) for one, left in partial if 0 <= one < stop
        ]
        entry_ids, below = [entry_id for entry_id in entry_ids if 0 <= entry_id < stop], min(below, stop)
        if not sub.durable:
            sub.apply_ack(entry_ids, below, partial)
            sub.pump()
            return settled(None)
        try:
            record = Ack(sub.topic.name, sub.name, below, entry_ids, partial)
            return self._write([record], None, essential=True)
        except TarryError as error:
            return failed(error)

    def _of_its_messages(self, topic: Topic, entry_id: int, left: list[int]) -> list[int]:
        """The bits that are an entry's messages: a client may send more of them, and all would be kept."""
        if len(left) <= 1:
            return left
        entry = self.entry(topic, entry_id)
        return left[: 1 if entry is None else -(-entry.messages // WORD_BITS)]

    def dead_letter(self, sub: Subscription, entry_ids: list[int]) -> list[int]:
        """Entries that came too often: each into the dead-letter topic and acknowledged, in one unit.

        Gives back those for which there is no room now.
        """
        target = sub.properties.get("dead_letter_topic", f"{sub.topic.name}-{sub.name}-DLQ")
        now_ms = self._journal.clock.now_ms()
        left: list[int] = []
        spent = np.array(entry_ids, np.int64)
        entries, gone = self.read(sub, spent, sub.topic.seqs(spent))
        if gone:
            try:
                self._journal.append([Ack(sub.topic.name, sub.name, 0, gone)], lambda _: None, essential=True)
            except Unavailable:
                left += gone
        for received in entries:
            headers = {**received.headers, "tarry-origin-topic": sub.topic.name,
                       "tarry-origin-entry": str(received.entry_id)}  # fmt: skip
            home = self.records.by_name.get(target)
            records: list[Record] = [Ack(sub.topic.name, sub.name, 0, [received.entry_id])]
            if home is None:
                records.append(TopicSet(target, False, 0))
            next_id = home.next if home else 0
            entry = Entry(
                target, 0, now_ms, next_id, None, NO_PUT, received.payload, headers, received.key,
                door=received.door, messages=received.messages,
            )  # fmt: skip
            records.append(entry)
            try:
                self._journal.append(records, lambda _: None, essential=True)
            except Unavailable:
                left.append(received.entry_id)
            except TooLarge as error:
                # It comes once more instead: what cannot be kept elsewhere is not given up.
                log.error(
                    "entry %d of %s cannot be a dead letter: %s", received.entry_id, sub.topic.name, error
                )
                left.append(received.entry_id)
        return left

    def together(self, seqs: NDArray[np.int64]) -> int:
        """How many of the entries at these seqs can be read together."""
        return self._journal.sizes.together(seqs)

    def entry(self, topic: Topic, entry_id: int) -> Received | None:
        """One entry as a consumer gets it the first time; None if it is gone."""
        return self._journal.entries(topic.seqs(np.array([entry_id], np.int64)))[0]

    def read(
        self, sub: Subscription, entry_ids: NDArray[np.int64], seqs: NDArray[np.int64]
    ) -> tuple[Sequence[Received], list[int]]:
        """The entries that there are to give out, and the ids of those that are gone or whose time to live is over."""
        journal = self._journal
        now_ms = journal.clock.now_ms()
        ttl_ms = self._policy(sub.topic).message_ttl_ms
        counts, partial = sub.redeliveries, sub.partial
        entries: list[Received] = []
        gone: list[int] = []
        found = journal.entries(seqs)
        if not (ttl_ms or counts or partial):
            if isinstance(found, EntryBatch):
                return found, []
            there = [entry for entry in found if entry is not None and entry.ttl_ms is None]
            if len(there) == len(found):
                # The common case: there is nothing to decide about each.
                return there, []
        for entry_id, entry in zip(entry_ids.tolist(), found, strict=True):
            if entry is None or ((ttl_ms or entry.ttl_ms is not None) and entry.has_expired(now_ms, ttl_ms)):
                gone.append(entry_id)
            elif entry_id in counts or entry_id in partial:
                again, left = counts.get(entry_id, 0), partial.get(entry_id, ())
                entries.append(replace(entry, redelivery_count=again, left=left))
            else:
                entries.append(entry)
        return entries, gone

    def not_given(self, sub: Subscription, entries: Sequence[Received], error: Exception) -> None:
        """Entries could not be given to a consumer, which is detached; raises the error if it is a fault."""
        self._journal.isolation.check(error)
        log.error(
            "a consumer of %s on %s is detached: entries %d to %d could not be given to it: %s",
            sub.name, sub.topic.name, entries[0].entry_id, entries[-1].entry_id, faults.told(error),
        )  # fmt: skip

    def forget(self, sub: Subscription) -> None:
        """A reader is gone."""
        sub.closed = True
        if sub.topic.subscriptions.get(sub.name) is sub:
            del sub.topic.subscriptions[sub.name]

    # Records

    def _write(self, records: list[Record], value: Any, *, essential: bool = False) -> Answer[Any]:
        answer: Answer[Any] = Answer()
        self._journal.append(records, answer.unless_error(lambda: value), essential=essential)
        return answer

    def once_durable(self, value: T) -> Answer[T]:
        """An answer that says what is so already: it waits for the records that made it so (R2)."""
        answer: Answer[Any] = Answer()
        self._journal.when_durable(self._journal.ledger.next_seq - 1, answer.unless_error(lambda: value))
        return answer


def name_of_partition(topic: str, number: int) -> str:
    """The name of one partition of a topic, as Pulsar's clients make it."""
    return f"{topic}-partition-{number}"
