"""A delayed entry as a message for its topic: all in which it differs from other messages is said here (ADR 0021).

- It has its entry id, and so its place in publish order, from its publication on: a new version is the same entry in a new
  record. Exclusive and failover subscriptions read it at that place, and may have had it before it is cancelled or due.
- It is sent once shared and key-shared subscriptions may have it, which no record says (`TopicRecords.ready`). So the
  registry has a row for its end only if it has had one while it waited: if a command moved it, or it was carried forward.
- A cancelled one has no content any more, and every subscription is done with it.
- It has no group, is in no batch, and is not attempted; its topic's backlog quota bounds it, and not its owner's limit.
"""

from typing import Final

import msgspec

from tarry.core.messages.lifecycle import Event, State, next_state
from tarry.core.names import namespace_of
from tarry.ledger.record import Entry, Key, Put
from tarry.registry.registry import EndedRow

BY_COMMAND: Final = "cancelled by command"

FinalisedRow = tuple[tuple[int], tuple[str | None, int], EndedRow]
"""A row of finalised messages: its key, its searched columns and its value."""


def due_of(entry: Entry) -> int:
    """The due instant of a delayed entry."""
    return entry.fire_at_ms if entry.due_at_ms is None else entry.due_at_ms


def as_message(entry: Entry) -> Put:
    """A delayed entry as the version of a message for its topic."""
    due_at_ms = due_of(entry)
    since_ms = entry.since_ms or entry.published_at_ms
    return Put(
        entry.fire_at_ms, due_at_ms, entry.published_at_ms, namespace_of(entry.topic), entry.topic, entry.key, entry.owner,
        entry.door, None, entry.ttl_ms, entry.origin, 0, False, entry.payload, entry.headers, since_ms,
        max(0, due_at_ms - since_ms), entry.carries, trace=entry.trace, commanded=entry.commanded, by=entry.by,
    )  # fmt: skip


def as_entry(message: Put, entry: Entry) -> Entry:
    """A new version of such a message as a record of the entry that it was."""
    return msgspec.structs.replace(
        entry, fire_at_ms=message.fire_at_ms, due_at_ms=message.due_at_ms, origin=message.origin, carries=message.kills,
        since_ms=message.delayed_since_ms, by=message.by, commanded=message.commanded,
    )  # fmt: skip


def cancelled(entry: Entry, key: Key, now_ms: int) -> Entry:
    """The record that cancels the entry at a key."""
    return msgspec.structs.replace(
        entry, fire_at_ms=0, payload=b"", headers={}, carries=key, cancelled=True, origin=entry.origin or key,
        since_ms=now_ms,
    )  # fmt: skip


def ended_row(entry: Entry, event: Event, at_ms: int) -> FinalisedRow:
    """The registry's row of an entry that an event has ended."""
    outcome = next_state(State.SCHEDULED, event)
    origin = entry.origin or entry.carries
    assert origin is not None, "an untouched entry has no row"
    assert isinstance(outcome, State), "its end waits for nothing"
    ended = EndedRow(
        origin=origin,
        outcome=outcome.value,
        finalised_at_ms=at_ms,
        reason=BY_COMMAND if event is Event.CANCEL else None,
        reference=None,
        attempts=int(event is Event.READY),
        due_at_ms=entry.due_at_ms,
        accepted_at_ms=entry.published_at_ms,
        namespace=namespace_of(entry.topic),
        destination=entry.topic,
        key=entry.key,
        owner=entry.owner,
        door=entry.door,
        group=None,
    )
    return (origin.seq,), (None, at_ms), ended
