"""The records that end a version or put another in its place (R4), the views of a version, and its attempts.

Of the attempts to send a message that did not arrive, its versions and its end remember the last one with all that a person wants
to know; of up to nineteen before it the number, the instant and the reason, which is written down only where it is another one than
that of the attempt after it.
"""

from operator import attrgetter
from typing import Any, Final

import msgspec

from tarry.core.messages.shapes import AttemptFacts
from tarry.core.names import parse_topic
from tarry.core.tenants.holder import Holder
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import NO_PUT, Earlier, Entry, Finalise, Kept, Key, Put, Record, Tried, Unsent
from tarry.registry.registry import EndedRow

MOST_EARLIER: Final = 19
"""Attempts before the last one that are remembered: with the default of `engine.attempts` all of them."""
MAX_REASON_CHARACTERS: Final = 200

_row_fields: Final = attrgetter(*EndedRow.__struct_fields__)


def end_of(
    put: Put | PutHead,
    key: Key,
    outcome: str,
    now_ms: int,
    reason: str | None,
    reference: str | None = None,
    attempts: int | None = None,
    error: str | None = None,
    tried: Tried | None = None,
) -> Finalise:
    """The record that ends a version. Of a listed message the whole version is wanted: it is remembered with its body."""
    whole = put if put.listed and isinstance(put, Put) else None
    return Finalise(
        kills=key,
        origin=put.origin or key,
        outcome=outcome,
        finalised_at_ms=now_ms,
        reason=reason,
        reference=reference,
        attempts=put.attempts if attempts is None else attempts,
        due_at_ms=put.due_at_ms,
        accepted_at_ms=put.accepted_at_ms,
        namespace=put.namespace,
        destination=put.destination,
        key=put.key,
        owner=put.owner,
        door=put.door,
        group=put.group,
        listed=put.listed,
        error=error,
        subject=None if whole is None else whole.subject,
        kept=None if whole is None else kept_of(whole),
        tried=tried or (put.tried if isinstance(put, Put) else None),
    )


def failure_of(
    put: Put,
    key: Key,
    now_ms: int,
    reason: str,
    attempts: int,
    error: str | None,
    uncertain: bool,
    letter: tuple[str, int] | None,
    tried: Tried | None,
) -> Finalise:
    """The record that ends a version as failed so that it can be retried: with its content, unless a dead letter has that."""
    end = end_of(put, key, "failed", now_ms, reason, None, attempts, error, tried)
    unsent = Unsent(put.ttl_ms, put.delay_ms, put.uncertain or uncertain, put.listed, put.subject, letter)
    return msgspec.structs.replace(end, kept=kept_of(put) if letter is None else None, unsent=unsent)


def kept_of(put: Put) -> Kept:
    """The part of a listed message that is remembered beside its end."""
    return Kept(put.payload, put.headers, put.delayed_since_ms, put.delay_ms, bool(put.commanded))


def has_expired(key: Key, head: PutHead, now_ms: int) -> bool:
    """Whether its time to live, which counts from the due instant, is over."""
    return head.ttl_ms is not None and now_ms > (head.due_at_ms or key.fire_at_ms) + head.ttl_ms


UNREADABLE: Final = "unreadable"
"""The destination of a message whose body is damaged, but whose owner is known from its group."""


def end_unread(key: Key, now_ms: int, reason: str) -> Finalise:
    """The record that ends a version of which nothing but its key can be read."""
    return Finalise(key, key, "failed", now_ms, reason, None, 0, None, 0, "", "", None, "", "", None, False)


def end_unread_member(
    key: Key, origin: Key, holder: Holder, group: str, outcome: str, now_ms: int, reason: str
) -> Finalise:
    """The records that end a member of a group whose version cannot be read: the group knows more."""
    return Finalise(
        key, origin, outcome, now_ms, reason, None, 0, None, 0, holder.namespace, UNREADABLE, None, holder.owner, "", group,
        False,
    )  # fmt: skip


def new_version(put: Put, key: Key, fire_at_ms: int, **changes: Any) -> Put:
    """A version of the message at another instant: a full version that kills the one at `key` (R4)."""
    return msgspec.structs.replace(
        put, fire_at_ms=fire_at_ms, origin=put.origin or key, kills=key, idempotency_key=None, **changes
    )


def wanted_at_ms(put: Put) -> int:
    """The instant from which a version is to go out: one that a command made due is due at any, whatever it was scheduled for."""
    return 0 if put.commanded else put.due_at_ms or 0


LETTER_HEADERS: Final = ("tarry-id", "tarry-destination", "tarry-reason", "tarry-attempts")
"""Headers that a dead letter has beside those of its message."""


def dead_letter(
    put: Put, id_: str, topic: str, entry_id: int, now_ms: int, reason: str, attempts: int
) -> Entry:
    """A copy of a message that could not be sent, for the dead-letter topic of its namespace."""
    said = (id_, put.destination, reason, str(attempts))
    headers = put.headers | dict(zip(LETTER_HEADERS, said, strict=True))
    return Entry(topic, 0, now_ms, entry_id, None, NO_PUT, put.payload, headers, put.key)


def withdrawn(letter: Entry, seq: int, now_ms: int) -> Entry:
    """The record that takes a dead letter out of its topic, because its message is retried."""
    return msgspec.structs.replace(
        letter, payload=b"", headers={}, carries=Key(0, seq), cancelled=True, since_ms=now_ms
    )


def scheme_of(destination: str) -> str:
    """The scheme of a destination, which chooses its outlet."""
    return destination.partition(":")[0]


def dead_letter_topic(namespace: str, name: str) -> str:
    """The full name of a namespace's dead-letter topic."""
    return parse_topic(f"{namespace}/{name}").full


def lateness_of(put: Put | PutHead, now_ms: int) -> int:
    """How late a message is at an instant. One without a due instant never is."""
    return 0 if put.due_at_ms is None else now_ms - max(put.due_at_ms, put.accepted_at_ms)


def is_commanded(record: Record) -> bool:
    """Whether it is a version of a message that is likely to be restarted, sent or cancelled by its id, and soon."""
    return type(record) is Put and (record.listed or record.origin is not None)


def past_due(put: Put) -> bool:
    """Whether the due instant had passed when the message was accepted."""
    return put.due_at_ms is not None and put.due_at_ms < put.accepted_at_ms


def row_of(record: Finalise) -> EndedRow:
    """The registry's row of a message that a record has ended: the fields that both have."""
    return EndedRow(*_row_fields(record))


def ended_row(head: PutHead, fired: Key, at_ms: int) -> tuple[tuple[int], tuple[str | None, int], EndedRow]:
    """The registry's row of a message that was sent into a topic: key, searched columns and value."""
    origin = head.origin or fired
    ended = EndedRow(
        origin=origin,
        outcome="sent",
        finalised_at_ms=at_ms,
        reason=None,
        reference=None,
        attempts=head.attempts + 1,
        due_at_ms=head.due_at_ms,
        accepted_at_ms=head.accepted_at_ms,
        namespace=head.namespace,
        destination=head.destination,
        key=head.key,
        owner=head.owner,
        door=head.door,
        group=head.group,
    )
    return (origin.seq,), (head.owner if head.listed else None, at_ms), ended


def tried_again(last: Tried | None, at_ms: int, reason: str, number: int) -> Tried:
    """One more attempt that did not arrive, after those before."""
    if last is None:
        return Tried(at_ms, reason, number)
    told = None if last.reason == reason else last.reason[:MAX_REASON_CHARACTERS]
    earlier = Earlier(last.number, last.at_ms, told)
    return Tried(at_ms, reason, number, [*last.earlier, earlier][-MOST_EARLIER:])


def attempts_of(tried: Tried | None) -> tuple[AttemptFacts, ...]:
    """The attempts as they are shown, the oldest first."""
    if tried is None:
        return ()
    shown = [AttemptFacts(tried.number, tried.at_ms, tried.reason)]
    for one in reversed(tried.earlier):
        shown.append(
            AttemptFacts(one.number, one.at_ms, shown[-1].error if one.reason is None else one.reason)
        )
    return tuple(reversed(shown))


def tries_bytes(tried: Tried | None) -> int:
    """About how many bytes attempts take in a record."""
    return 0 if tried is None else 64 + sum(16 + len(one.reason or "") * 4 for one in tried.earlier)
