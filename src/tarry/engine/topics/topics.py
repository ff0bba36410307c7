"""Tarry's own topics: publishing, subscribing, acknowledging.

Every change is a record first: what the records add up to is in `records`, and replaying them gives the same state.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct

from tarry.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    QuotaExceeded,
    TarryError,
)
from tarry.core.names import check_name, parse_topic
from tarry.core.rules import admission
from tarry.core.rules.policy import Effective, Level
from tarry.core.telemetry.tracing import TRACEPARENT
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.units import append_in_steps
from tarry.engine.namespaces.catalogue import Catalogue
from tarry.engine.namespaces.policies import Policies
from tarry.engine.topics.entries import NewEntry, Received, check_entry
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.publication import Publication
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.retention import Retention
from tarry.engine.topics.subscription import (
    SUBSCRIPTION_TYPES,
    Subscription,
    SubscriptionParts,
    SubscriptionType,
)
from tarry.engine.topics.topic import Topic
from tarry.engine.topics.topic_records import TopicRecords
from tarry.engine.tracing import Tracing
from tarry.ledger.record import (
    Record,
    Subscribe,
    TopicSet,
    Unsubscribe,
)

T = TypeVar("T")

MAX_PARTITIONS = 10_000

LOOKED_AT_TOGETHER: Final = 500
"""Topics whose oldest entries are looked at in one turn."""

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

    def __init__(
        self,
        *,
        journal: Journal,
        records: TopicRecords,
        policies: Policies,
        catalogue: Catalogue,
        reader: EntryReader,
        retention: Retention,
        recent_entries: RecentEntries,
        clock: Clock,
        floor_ms: Callable[[], int],
        counters: "Counter[str]",
        parts: SubscriptionParts,
        tracing: Tracing | None,
    ) -> None:
        """`floor_ms` gives the first instant at which a new version may fire."""
        self.by_name = records.by_name
        """Every topic, by its full name."""
        self._journal = journal
        self._records = records
        self._policies = policies
        self._catalogue = catalogue
        self._reader = reader
        self._retention = retention
        self._recent_entries = recent_entries
        self._clock = clock
        self._floor_ms = floor_ms
        self._counters = counters
        self._parts = parts
        self._tracing = tracing

    def tell_of_deleted(self, deleted: Callable[[Topic], None]) -> None:
        """Have a function told of each topic that is deleted, so that nothing goes on in its name."""
        self._records.on_deleted = deleted

    # Topics

    def names(self, namespace: str | None = None) -> list[str]:
        """The names of the topics, of one namespace or all."""
        by_name = self.by_name
        return sorted(by_name if namespace is None else by_name.by_namespace.get(namespace, ()))

    def find(self, topic: str) -> Topic:
        """A topic by its name; raises `NotFound`."""
        found = self.by_name.get(parse_topic(topic).full)
        if found is None:
            raise NotFound(f"there is no topic {topic}")
        return found

    def create(self, topic: str, partitions: int = 0) -> Answer[None]:
        """Make a topic; one that is there already stays. With partitions, or more of them, these are made too.

        A partitioned topic holds no entries itself: those are in its partitions, which are topics like others.
        """
        try:
            name = parse_topic(topic).full
            found = self.by_name.get(name)
            if found is not None and not partitions:
                return self.once_durable(None)
            if found is not None and not found.partitions:
                raise Conflict(f"{name} is there already and has no partitions", "unpartitioned")
            if not 0 <= partitions <= MAX_PARTITIONS:
                raise Invalid("partitions", f"is not between 0 and {MAX_PARTITIONS}")
            if found is not None and found.partitions > partitions:
                raise Conflict(f"{name} has {found.partitions} partitions already", "fewer")
            wanted = [name_of_partition(name, number) for number in range(partitions)]
            made = [TopicSet(one, False, 0) for one in wanted if one not in self.by_name]
            self._records.check_topic_limit(name, len(made) + (found is None))
            return append_in_steps(self._journal.append, [TopicSet(name, False, partitions), *made])
        except TarryError as error:
            return failed(error)

    def delete(self, topic: str) -> Answer[None]:
        """Remove a topic with its entries, subscriptions, policy, rules and schema; a partitioned one with its partitions.

        A partition that goes by itself leaves what was said of the whole topic.
        """
        try:
            found = self.find(topic)
            parts = [name_of_partition(found.name, number) for number in range(found.partitions)]
            # The topic goes last: until then its deletion can be asked for again.
            return append_in_steps(self._journal.append, self._catalogue.ends_of([*parts, found.name]))
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
        found = self.by_name.get(topic)
        return found.epoch if found else -1

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 for one that has none or is not there."""
        found = self.by_name.get(topic)
        return found.partitions if found else 0

    def check_quota(self, topic: str) -> None:
        """Raise `QuotaExceeded` while a topic takes no more entries."""
        found = self.by_name.get(topic)
        if found is not None and found.over is not None:
            raise QuotaExceeded(topic, *found.over)

    def last_sequence(self, topic: str, producer: str) -> int:
        """The highest sequence number of a producer that is stored, where sending again is told from sending; else -1."""
        found = self.by_name.get(topic)
        if found is None or not self._policies.at_topic(found.name).deduplication:
            return -1
        known = found.producers.get(producer)
        return -1 if known is None else known.last

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
        if self._tracing is None or not entries:
            return self._append(topic, entries, each, None)
        named = [entry.headers[TRACEPARENT] for entry in entries if TRACEPARENT in entry.headers]
        callers = [*named, *(caller for entry in entries for caller in entry.callers)]
        take = partial(self._append, topic, entries, each)
        messages = sum(entry.messages for entry in entries)
        return self._tracing.accepted("publish", entries[0].door, messages, callers, take)

    def _append(
        self, topic: str, entries: Sequence[NewEntry], each: bool, trace: bytes | None
    ) -> Answer[Any]:
        try:
            name = parse_topic(topic)
            found = self.by_name.get(name.full)
            if found is None:
                self._records.check_topic_limit(name.full)
            self.check_quota(name.full)
            now_ms = self._clock.now_ms()
            policy = self._policies.effective(name.full, name.namespace_name)
            level = self._policies.level_at(name.full, name.namespace_name)
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
                self._journal.check_size(unit.unit.content_bytes)
                self._journal.append([TopicSet(name.full, False, 0)], lambda _: None)
            answer: Answer[Any] = Answer()
            settle = answer.completer(lambda: value)

            def durable(error: TarryError | None) -> None:
                if error is None and home.has_consumers:
                    new.keep_recent(self._recent_entries, first)
                settle(error)

            first = self._journal.append(unit, durable)
            home = self.by_name[name.full]
            value = Published(home.incarnation, ids) if each else ids
            return answer
        except TarryError as error:
            return failed(error)

    def _entry_fires_at(self, entry: NewEntry, policy: Effective, level: Level, now_ms: int) -> int:
        """When a delayed entry is ready; 0 for one that is at once. Raises `DelayTooLong`."""
        if entry.deliver_at_ms is None:
            return 0
        if not policy.delayed_delivery:
            self._counters["delay_ignored"] += entry.deliver_at_ms > now_ms
            return 0
        since_ms = now_ms if entry.delayed_since_ms is None else entry.delayed_since_ms
        admission.check_delay(entry.deliver_at_ms - since_ms, policy, level)
        # By whatever clock the producer counts, what is kept has to be an instant that can be stored.
        admission.LONGEST_DELAY.check(entry.deliver_at_ms - now_ms)
        _, fire_at_ms = admission.instants(entry.deliver_at_ms, now_ms, self._floor_ms(), policy)
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
                    raise Invalid("max_redeliveries", "is negative; give 0 or more")
                dead = parse_topic(dead_letter_topic or f"{topic}-{name}-DLQ", "dead_letter_topic").full
                properties = {"max_redeliveries": str(max_redeliveries), "dead_letter_topic": dead}
            found = self.by_name.get(topic)
            sub = found.subscriptions.get(name) if found else None
            if sub is not None:
                if sub.durable != durable:
                    kind = "is kept for good" if sub.durable else "is a reader's, which lives in memory"
                    raise Conflict(f"subscription {name} of {topic} {kind}: take another name", "durable")
                return self._resubscribe(sub, type, properties)
            if found is None:
                self._records.check_topic_limit(topic)
            at = self._start(found, start)
            if not durable:
                return self._memory_reader(topic, found, name, type, at)
            records: list[Record] = [] if found else [TopicSet(topic, False, 0)]
            records.append(Subscribe(topic, name, type, at, properties))
            answer = self._journal.write(records, lambda: made)
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

    def _memory_reader(
        self, topic: str, found: Topic | None, name: str, type_: SubscriptionType, at: int
    ) -> Answer[Subscription]:
        """A subscription that lives in memory, for as long as somebody is attached."""
        answer: Answer[Subscription] = Answer()
        if found is None:
            self._journal.append([TopicSet(topic, False, 0)], answer.completer(lambda: sub))
        home = found or self.by_name[topic]
        sub = home.subscriptions[name] = Subscription(
            self._parts, home, name, type_, at, durable=False, properties={}, forget=home.forget
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
                self.by_name[sub.topic.name].forget(sub)
                return settled(None)
            return self._write([Unsubscribe(sub.topic.name, sub.name)], None)
        except TarryError as error:
            return failed(error)

    def expire(self, sub: Subscription, before_ms: int) -> bool:
        """Be done with the entries that could be had before an instant; whether there is more to look at."""
        return self._retention.expire(sub, before_ms)

    def forget_unread(self, before_ms: int) -> None:
        """Let topics to which nobody subscribes durably forget entries published before an instant."""
        # A hundred thousand topics are asked here again and again: an instant is compared, and seldom anything read.
        old = [topic for topic in self.by_name.values() if topic.oldest_ms < before_ms]
        for topic in old[:LOOKED_AT_TOGETHER]:
            if not any(sub.durable for sub in topic.subscriptions.values()):
                if not self._policies.retains(topic.name):
                    self._records.trim(topic, self._reader.first_published(topic, before_ms))
            first_ms = (
                self._reader.published_at_ms(topic, topic.first) if topic.first < topic.visible else None
            )
            topic.oldest_ms = before_ms if first_ms is None else max(before_ms, first_ms)

    def first_published(self, topic: EntryLog, at_ms: int) -> int:
        """The first entry of a topic that was published at an instant or later."""
        return self._reader.first_published(topic, at_ms)

    def entry(self, topic: EntryLog, entry_id: int) -> Received | None:
        """One entry as a consumer gets it the first time; None if it is gone."""
        return self._reader.entry(topic, entry_id)

    # Records

    def _write(self, records: list[Record], value: Any, *, essential: bool = False) -> Answer[Any]:
        return self._journal.write(records, lambda: value, essential=essential)

    def once_durable(self, value: T) -> Answer[T]:
        """An answer about state that is decided already: it waits for the records that made it so (R2)."""
        return self._journal.once_durable(lambda: value)


def name_of_partition(topic: str, number: int) -> str:
    """The name of one partition of a topic, as Pulsar's clients make it."""
    return f"{topic}-partition-{number}"
