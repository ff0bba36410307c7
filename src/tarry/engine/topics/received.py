"""An entry as a consumer gets it."""

from collections.abc import Sequence

from msgspec import Struct

from tarry.core.messages.ids import Ids

Partial = Sequence[tuple[int, list[int]]]
"""Entries of which some messages are acknowledged, each with the bits of those that are left, 64 in a word."""


class Received(Struct, frozen=True, gc=False):
    """An entry as a consumer gets it.

    Made by `received_entries` out of records, and by an `EntryBatch` for whoever asks for its entries one by one. Read by
    subscriptions, which choose its consumer, and by the door of that one. Dies when its consumer was shown it and `RecentEntries` has
    let go of it; to come again it is made again.
    """

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
