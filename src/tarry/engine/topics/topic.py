"""One of Tarry's own topics, with its entries, subscriptions and producers; and all topics by name."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.limits import MAX_PRODUCERS
from tarry.core.names import namespace_of
from tarry.core.rules.policy import BacklogAction
from tarry.engine.records.changes import SentNumbers
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.sequences import Sequences
from tarry.engine.topics.subscription import Subscription
from tarry.ledger.record import FIRST_BATCH_SEQ
from tarry.registry.registry import Registry, TopicRow


class OverQuota(NamedTuple):
    """A quota that a topic's backlog is over, in the words of the error that says so."""

    action: BacklogAction
    quota: str
    field: str
    level: str


class Topic(EntryLog):
    """A topic: the log of its entries with its subscriptions and producers."""

    __slots__ = (
        "_heard", "created_at_ms", "epoch", "last_late_ms", "max_late_ms", "oldest_ms", "over", "partitions", "producers",
        "subscriptions",
    )  # fmt: skip

    def __init__(self, name: str, created_at_ms: int, incarnation: int = 0) -> None:
        super().__init__(name, incarnation)
        self.created_at_ms = created_at_ms
        self.oldest_ms = created_at_ms
        """No entry was published before this instant: a bound, not the instant of the first one."""
        self.partitions = 0
        self.epoch = -1
        """Rises with every producer that has the topic for itself, so that an earlier one is known as such."""
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: dict[str, Sequences] = {}
        self.over: OverQuota | None = None
        """The quota for which it takes no more entries."""
        self.last_late_ms = 0
        self.max_late_ms = 0
        """How long after its due instant a delayed entry was ready: the last one, and the worst since the start."""
        self._heard: set[str] | None = None
        """Producers of which the registry does not know everything, if there are any."""

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is there who may read entries that come now."""
        return any(sub.consumers for sub in self.subscriptions.values())

    def forget(self, sub: Subscription) -> None:
        """A reader is gone."""
        sub.closed = True
        if self.subscriptions.get(sub.name) is sub:
            del self.subscriptions[sub.name]

    def unneeded_below(self) -> int:
        """The first entry that some durable subscription has not acknowledged.

        A topic that nobody has subscribed to yet keeps what it has: a first subscriber may want it.
        """
        bounds = [sub.acked.below for sub in self.subscriptions.values() if sub.durable]
        return min(bounds) if bounds else self.first

    def is_settled(self, entry_id: int) -> bool:
        """Whether every durable subscription, of which there is at least one, is done with an entry."""
        durable = [sub for sub in self.subscriptions.values() if sub.durable]
        return bool(durable) and all(entry_id in sub.acked for sub in durable)

    def needed_seqs(self, upto_seq: int, retained: bool) -> Iterator[NDArray[np.int64]]:
        """Seqs, up to one, of the entries that somebody still needs, or that are to be kept: one chunk after another."""
        for ids, seqs in self.upto(upto_seq):
            durable = [] if retained else [sub for sub in self.subscriptions.values() if sub.durable]
            if durable and len(ids):
                done = np.ones(len(ids), np.bool_)
                for sub in durable:
                    done &= sub.acked.contains_many(ids)
                seqs = seqs[~done]
            yield seqs

    def holds(self, producer: str, sent: SentNumbers) -> bool:
        """Whether a message of a producer is proved to be stored."""
        known = self.producers.get(producer)
        return known is not None and sent in known

    def heard_from(self, producer: str, sent: SentNumbers) -> None:
        """Remember a stored message of a producer, for so many producers: the last one heard of is last in the order."""
        known = self.producers.pop(producer, None) or Sequences()
        known.add(sent)
        self.producers[producer] = known
        self._heard = self._heard or set()
        self._heard.add(producer)
        if len(self.producers) > MAX_PRODUCERS:
            silent = next(iter(self.producers))
            del self.producers[silent]
            self._heard.add(silent)

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's tables."""
        if not self.changed:
            return
        registry.topics.put(
            (self.name,),
            TopicRow(
                self.first, self.next, self.partitions, self.created_at_ms, self.epoch, self.incarnation
            ),
        )
        self.save_entries(registry)
        for producer in self._heard or ():
            known = self.producers.get(producer)
            registry.producers.remove(self.name, producer)
            if known is None:
                registry.sequences.remove(self.name, producer)
            else:
                registry.sequences.put((self.name, producer), known.row())
        self._heard = None

    def erase(self, registry: Registry) -> None:
        """Remove every row of this topic, and let go of the places of its entries: somebody may hold on to it."""
        registry.topics.remove(self.name)
        self.erase_entries(registry)
        for producer in {*self.producers, *(self._heard or ())}:
            registry.producers.remove(self.name, producer)
            registry.sequences.remove(self.name, producer)
        for sub in self.subscriptions.values():
            sub.erase(registry)
        self.producers.clear()


def incarnation_of(name: str) -> int:
    """The incarnation of a topic that an earlier version made, which kept none: beyond all seqs, by its name."""
    digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    return FIRST_BATCH_SEQ | digest % FIRST_BATCH_SEQ


class NamedTopics(dict[str, Topic]):
    """Topics by their full names and by namespace, so that asking whether a namespace holds any costs no walk over all.

    Set, `del` and `pop` are its only changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_namespace: dict[str, set[str]] = {}
        """By `tenant/namespace`: the names of its topics; a namespace without topics has no entry."""

    def count(self, namespace: str) -> int:
        """How many topics a namespace has."""
        return len(self.by_namespace.get(namespace, ()))

    def __setitem__(self, name: str, topic: Topic) -> None:
        self.by_namespace.setdefault(namespace_of(name), set()).add(name)
        super().__setitem__(name, topic)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        namespace = namespace_of(name)
        self.by_namespace[namespace].remove(name)
        if not self.by_namespace[namespace]:
            del self.by_namespace[namespace]

    def pop(self, name: str, default: Topic | None = None) -> Topic | None:  # type: ignore[override]
        """Remove a topic and give it back; the default if there is none of this name."""
        if name not in self:
            return default
        topic = self[name]
        del self[name]
        return topic
