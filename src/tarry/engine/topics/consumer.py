"""A consumer of a subscription, and the leases: which entries are given out, and to whom."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tarry.core.sets.lazy_id_map import LazyIdMap
from tarry.engine.answer import Answer
from tarry.engine.due.due_batch import Prepare
from tarry.engine.topics.entries import Received

Ranges = Sequence[tuple[int, int]]
"""Hash slots, from one to another, both included."""


class Feed(Protocol):
    """The subscription of a consumer, as far as a consumer asks it for anything."""

    def eligible(self) -> list["Consumer"]:
        """The consumers that are given entries."""

    def flowed(self, consumer: "Consumer") -> None:
        """A consumer can take more."""

    def ack(self, entry_ids: list[int]) -> Answer[None]:
        """Be done with entries."""

    def give_back(self, consumer: "Consumer", entry_ids: Sequence[int] | set[int], *, counted: bool) -> None:
        """Entries that a consumer does not keep."""

    def detach(self, consumer: "Consumer") -> None:
        """Remove a consumer and give the entries that it held to others."""


class Consumer:
    """One attached consumer: its permits, and its way to its subscription."""

    def __init__(
        self,
        feed: Feed,
        name: str,
        deliver: Callable[[Sequence[Received]], None],
        priority: int,
        ranges: Ranges | None = None,
        max_unacked: int | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._feed = feed
        self.name = name
        self.deliver = deliver
        self.priority = priority
        self.ranges = ranges
        """The hash slots that it gets in a key-shared subscription, if it chose them itself."""
        self.max_unacked = max_unacked
        """Maximum number of entries that it holds before it is given more."""
        self.prepare = prepare
        self.permits = 0
        self.unacked = 0
        """How many entries it holds."""
        self.holds: LazyIdMap[None] = LazyIdMap()
        """Which; `Leases` sees to both."""
        self.closed = False
        self.about: Mapping[str, Any] = {}
        """Facts about its client, by its door, for figures."""
        self.on_active: Callable[[bool], None] | None = None
        self.on_close: Callable[[], None] | None = None

    @property
    def held(self) -> set[int]:
        """The entries that it holds, as they are now."""
        return set(self.holds.each())

    @property
    def blocked(self) -> bool:
        """Whether it holds so many entries that it is given no more."""
        return self.max_unacked is not None and self.unacked >= self.max_unacked

    @property
    def active(self) -> bool:
        """Whether it is given entries: in exclusive and failover subscriptions only one is."""
        return self in self._feed.eligible()

    def flow(self, permits: int) -> None:
        """Allow so many more messages."""
        self.permits += permits
        if not self.closed:
            self._feed.flowed(self)

    def ack(self, entry_ids: Sequence[int]) -> Answer[None]:
        """Be done with entries; the answer comes when that is durable."""
        return self._feed.ack(list(entry_ids))

    def nack(self, entry_ids: Sequence[int] | None = None) -> None:
        """Give entries back to come again; None gives back all."""
        self._feed.give_back(self, self.held if entry_ids is None else entry_ids, counted=True)

    def close(self) -> None:
        """Detach. What it holds goes to others."""
        self._feed.detach(self)


class Leases:
    """The holder of each entry that has one. A consumer knows what it holds itself, and how many."""

    def __init__(self) -> None:
        self._holders: LazyIdMap[Consumer] = LazyIdMap()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._holders.each()

    def give(self, entry_ids: Sequence[int], consumer: Consumer) -> None:
        """A consumer has these, in ascending order, which nobody had."""
        self._holders.add(entry_ids, consumer)
        consumer.holds.add(entry_ids, None)
        self._count_for(consumer, len(entry_ids))

    def holder(self, entry_id: int) -> Consumer | None:
        """The consumer that holds an entry."""
        return self._holders.each().get(entry_id)

    def below(self, entry_id: int) -> list[int]:
        """The held entries below an entry id."""
        return [held for held in self._holders.each() if held < entry_id]

    def release(self, entry_ids: Iterable[int]) -> list[int]:
        """Nobody has these any more. Answers which of them somebody had."""
        holders = self._holders.each()
        released: list[int] = []
        for entry_id in entry_ids:
            consumer = holders.pop(entry_id, None)
            if consumer is not None:
                del consumer.holds.each()[entry_id]
                self._count_for(consumer, -1)
                released.append(entry_id)
        return released

    def release_below(self, entry_id: int) -> None:
        """End the leases of all entries below one."""
        dropped = self._holders.drop_below(entry_id)
        for entry_ids, consumer in dropped:
            self._count_for(consumer, -len(entry_ids))
        for consumer in {consumer for _, consumer in dropped}:
            consumer.holds.drop_below(entry_id)

    def clear(self) -> None:
        """End all leases."""
        for consumer in {*self._holders.each().values()}:
            consumer.holds.clear()
            consumer.unacked = 0
        self._holders.clear()
        self._count = 0

    def _count_for(self, consumer: Consumer, more: int) -> None:
        consumer.unacked += more
        self._count += more
