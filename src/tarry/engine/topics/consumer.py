"""A consumer of a subscription, and what it is given."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tarry.core.ids import Ids
from tarry.core.sets.lazy_id_map import LazyIdMap
from tarry.engine.answer import Answer
from tarry.engine.due.decoded_batch import DecodedBatch

if TYPE_CHECKING:
    from tarry.engine.topics.subscription import Subscription

Ranges = Sequence[tuple[int, int]]
"""Hash slots, from one to another, both included."""

Partial = Sequence[tuple[int, list[int]]]
"""Entries of which some messages are acknowledged, each with the bits of those that are left, 64 in a word."""

Prepare = Callable[[DecodedBatch], int]
"""Has a door write down what it will show of the entries that a batch becomes, in a cache of its own; gives the bytes of that, which
are held as long as the batch lives."""


class Received(Struct, frozen=True, gc=False):
    """An entry as a consumer gets it."""

    entry_id: int
    redelivery_count: int
    payload: bytes
    headers: dict[str, str]
    key: str | None
    published_at_ms: int
    due_at_ms: int | None
    origin: tuple[int, int] | None = None
    """The origin of the scheduled message that it was, if it was one: its fire instant and seq."""
    ids: Ids | None = None
    door: str = ""
    """The door through which it was published, for a payload that only that door understands."""
    messages: int = 1
    """How many messages of a client's it is."""
    left: Sequence[int] = ()
    """Which of its messages are left where some are acknowledged: bits, 64 in a word. Nothing says all."""
    ttl_ms: int | None = None
    """Its own time to live, from when on it could be had."""

    def has_expired(self, now_ms: int, policy_ttl_ms: int) -> bool:
        """Whether its time to live is over, its own or the policy's: both count from when it could be had."""
        ttl_ms = policy_ttl_ms
        if self.ttl_ms is not None and (not ttl_ms or self.ttl_ms < ttl_ms):
            ttl_ms = self.ttl_ms
        return ttl_ms > 0 and now_ms > self.available_at_ms + ttl_ms

    @property
    def available_at_ms(self) -> int:
        """From when on it could be had: its due instant, or its publication if that was later."""
        return max(self.published_at_ms, self.due_at_ms or 0)

    @property
    def message_id(self) -> str | None:
        """The id of the scheduled message that it was. Made when it is asked for: most consumers do not."""
        if self.origin is None or self.ids is None:
            return None
        fire_at_ms, seq = self.origin
        return self.ids.make(seq, fire_at_ms)


class Consumer:
    """One attached consumer."""

    def __init__(
        self,
        subscription: "Subscription",
        name: str,
        deliver: Callable[[Sequence[Received]], None],
        priority: int,
        ranges: Ranges | None = None,
        max_unacked: int | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.subscription = subscription
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
        return self in self.subscription.eligible()

    def flow(self, permits: int) -> None:
        """Allow so many more messages."""
        self.permits += permits
        if not self.closed:
            self.subscription.flowed(self)

    def ack(self, entry_ids: Sequence[int]) -> Answer[None]:
        """Be done with entries; the answer comes when that is durable."""
        return self.subscription.ack(list(entry_ids))

    def nack(self, entry_ids: Sequence[int] | None = None) -> None:
        """Give entries back to come again; None gives back all."""
        self.subscription.give_back(self, self.held if entry_ids is None else entry_ids, counted=True)

    def close(self) -> None:
        """Detach. What it holds goes to others."""
        self.subscription.detach(self)
