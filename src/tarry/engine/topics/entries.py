"""Entries of topics on their way in and out: as they are published, as their records, as consumers get them."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tarry.core import limits
from tarry.core.errors import Invalid, TooLarge
from tarry.core.messages.ids import Ids
from tarry.core.rules import admission
from tarry.engine.records.producer_numbers import SentNumbers, sent_by
from tarry.engine.topics.received import Received
from tarry.ledger.read_record import ReadEntry
from tarry.ledger.record import NO_PUT, Entry


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
        raise Invalid("deliver_at_ms", "is negative")
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
