"""Entries of topics on their way in and out: as they are published, as their records, as consumers get them."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tarry.core import limits
from tarry.core.errors import Invalid, TooLarge
from tarry.core.messages.ids import Ids
from tarry.core.rules import admission
from tarry.engine.records.changes import SentNumbers, sent_by
from tarry.ledger.read_record import ReadEntry
from tarry.ledger.record import NO_PUT, Entry

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


class NewEntry(Struct, frozen=True, kw_only=True):
    """An entry to publish."""

    payload: bytes
    headers: dict[str, str] = {}
    key: str | None = None
    deliver_at_ms: int | None = None
    """Shared and key-shared subscriptions get it then; exclusive and failover at its place."""
    producer: str | None = None
    """The producer, where a message that is sent again is to be taken once."""
    producer_sequence: int = -1
    """Its number among what that producer sends; of a batch the last one."""
    producer_first: int = -1
    """The first number of a batch that states two."""
    owner: str = ""
    door: str = "http"
    ttl_ms: int | None = None
    delayed_since_ms: int | None = None
    """From when a policy's longest delay is counted; None is the instant of its publication here."""
    messages: int = 1
    """How many messages of a client's it is."""
    callers: Sequence[str] = ()
    """The traces that it belongs to, as in `traceparent`, where that is not in its headers."""

    @property
    def sent(self) -> SentNumbers:
        """The numbers by which its producer knows it."""
        return sent_by(self.producer_first, self.producer_sequence, self.messages)


def received_entries(entries: Iterable[ReadEntry], ids: Ids) -> list[Received]:
    """Entries that were read, as a consumer gets them the first time."""
    return [
        Received(
            entry.entry_id, 0, entry.payload, entry.headers, entry.key, entry.published_at_ms, entry.due_at_ms,
            None, None, entry.door, entry.messages, (), entry.ttl_ms,
        )
        if (put := entry.put) is None
        else Received(
            entry.entry_id, 0, put.payload, put.headers, put.key, entry.published_at_ms, put.due_at_ms,
            put.origin or entry.fired, ids,
        )
        for entry in entries
    ]  # fmt: skip


def published_entry(entry: NewEntry, entry_id: int, now_ms: int) -> Received:
    """An entry that was just published, as a consumer gets it the first time."""
    return Received(
        entry_id, 0, entry.payload, entry.headers, entry.key, now_ms, entry.deliver_at_ms,
        None, None, entry.door, entry.messages, (), entry.ttl_ms,
    )  # fmt: skip


def entry_record(entry: NewEntry, topic: str, fire_at_ms: int, now_ms: int, entry_id: int) -> Entry:
    """The record of an entry that is published."""
    # By position, in the order of the record's fields: this is done for every message, and names cost half a microsecond.
    return Entry(
        topic, fire_at_ms, now_ms, entry_id, None, NO_PUT, entry.payload, entry.headers, entry.key, entry.producer,
        entry.producer_sequence, entry.deliver_at_ms, entry.owner, entry.door, entry.ttl_ms, None, entry.messages,
        False, None, entry.producer_first,
    )  # fmt: skip


def check_entry(entry: NewEntry) -> None:
    """Raise `Invalid` or `TooLarge` if this can never be an entry. Knows no policy."""
    if entry.deliver_at_ms is not None and entry.deliver_at_ms < 0:
        raise Invalid("deliver_at_ms", "is negative; give 0 or more")
    if entry.producer is not None and not 0 < len(entry.producer.encode()) <= limits.MAX_PRODUCER_BYTES:
        raise Invalid("producer", f"a name is 1 to {limits.MAX_PRODUCER_BYTES} bytes")
    if len(entry.payload) > limits.MAX_ENTRY_BYTES:
        raise TooLarge("payload", limits.MAX_ENTRY_BYTES)
    if entry.headers:
        admission.check_headers(entry.headers)
    if entry.key is not None:
        admission.KEY_SIZE.check(admission.utf8_bytes("key", entry.key))
    if entry.owner:
        admission.check_owner(entry.owner)
    if entry.ttl_ms is not None:
        admission.TTL.check(entry.ttl_ms)
