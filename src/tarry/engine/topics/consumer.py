"""A consumer of a subscription."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tarry.core.sets.lazy_id_map import LazyIdMap
from tarry.engine.answer import Answer
from tarry.engine.due.due_batch import Prepare
from tarry.engine.topics.received import Received

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
