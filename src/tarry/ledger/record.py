"""The one record type for all operations: what the ledger holds, and what every view is made from.

A record is a small fixed part (`FIXED` in `frame.py`) that can be read as columns without decoding (the wheel,
the tail and Spark need no more), and a body: a msgpack array of one of the structs below.
Records are self-contained (R4): none refers to another for what it says.

Changing the format. Fields are only ever added at the end of a struct and with a default, so that
an older body still decodes and an older program skips what it does not know. A new kind of record takes a
new tag. Anything else raises `FORMAT_VERSION` in `frame.py`. Golden files in `tests/compat` hold us to it.

Stored fields are all there is here; nothing in memory is kept on these structs.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

import google_crc32c
import msgspec
from msgspec import Struct

from tarry.core.names import namespace_of
from tarry.ledger.lanes import lane_of


class Kind(IntEnum):
    """The tag of a record, also readable in its fixed part."""

    PUT = 1
    FINALISE = 2
    ENTRY = 3
    CLAIM = 4
    ACK = 5
    SUBSCRIBE = 6
    UNSUBSCRIBE = 7
    SEEK = 8
    POLICY = 9
    MARK = 10
    TOPIC = 11
    ADOPT = 12
    CANCEL_BATCH = 13
    CATALOGUE = 14
    LOWER = 15


class Key(NamedTuple):
    """Where a version is in due time: what the wheel and the index are ordered by."""

    fire_at_ms: int
    seq: int


class Earlier(Struct, array_like=True, frozen=True):
    """An attempt to send a message before the last one that did not arrive."""

    number: int
    at_ms: int
    reason: str | None
    """None if it is that of the attempt after it."""


class Tried(Struct, array_like=True, frozen=True):
    """The last attempt to send a message that did not arrive, and some before it."""

    at_ms: int
    reason: str
    number: int = 0
    """Counted from 1; 0 in a record of a version that did not say so."""
    earlier: list[Earlier] = []
    """The attempts before it, the oldest first."""


class PutHead(Struct, tag=int(Kind.PUT), array_like=True, frozen=True, gc=False):
    """The beginning of a `Put`: all that deciding about it needs. Decoding as this skips the rest."""

    fire_at_ms: int
    """When it goes out: the due instant rounded up to the tick, never before the watermark."""
    due_at_ms: int | None
    """When it was asked to go out; None for a group member that goes out only by command."""
    accepted_at_ms: int
    """When this message was first accepted; a restart keeps it."""
    namespace: str
    destination: str
    key: str | None
    owner: str
    door: str
    group: str | None
    ttl_ms: int | None
    """Counted from the due instant."""
    origin: Key | None
    """The key of the first version, which the id encrypts; None if this is the first."""
    attempts: int
    """How many times sending it was tried before this version."""
    listed: bool
    """Whether the registry keeps a row, so that it can be listed by owner."""


class ReadPut(PutHead, tag=int(Kind.PUT), array_like=True, frozen=True, gc=False):
    """The beginning of a `Put`, up to the headers, for the receiver of the message. Decoding as this skips the rest."""

    payload: bytes
    headers: dict[str, str]


class Put(ReadPut, tag=int(Kind.PUT), array_like=True, frozen=True, gc=True):
    """A version: one complete schedule of a message."""

    delayed_since_ms: int
    """When the delay began: the acceptance, or the last restart."""
    delay_ms: int | None
    """The delay to begin again at a restart; None if there is none."""
    kills: Key | None = None
    """The version that this one replaces."""
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    """A digest of the request, to tell a repeated request from another one with the same key."""
    uncertain: bool = False
    """An attempt to send an earlier version may have arrived, although its verdict does not say so."""
    leads: str | None = None
    """The group that waits for this message to be sent."""
    commanded: str = ""
    """`send`: it goes out by command. `try`: that too, and if it is refused it waits for its due instant again."""
    subject: str | None = None
    """The message's subject, so that it can be ended together with others."""
    trace: bytes | None = None
    """The trace context that joins its delivery to its acceptance; None if it is not traced."""
    tried: Tried | None = None
    """The last attempt to send an earlier version, if there was one."""
    name: str | None = None
    """The name that its scheduler gave it, unique among the pending messages of its namespace."""
    by: int = 0
    """The number of the bulk command that made this version or an earlier one; 0 if none did."""


class Finalise(Struct, tag=int(Kind.FINALISE), array_like=True, frozen=True):
    """The end of a message that did not end in one of Tarry's own topics."""

    kills: Key
    origin: Key
    outcome: str
    """`sent`, `cancelled` or `failed`."""
    finalised_at_ms: int
    reason: str | None
    reference: str | None
    """The receiver's name for it, if it gave one."""
    attempts: int
    due_at_ms: int | None
    accepted_at_ms: int
    namespace: str
    destination: str
    key: str | None
    owner: str
    door: str
    group: str | None
    listed: bool
    error: str | None = None
    """Why it was not sent, in the words of whoever said so."""
    subject: str | None = None
    kept: "Kept | None" = None
    """The content of a listed message, and of a failed one of which there is no dead letter."""
    unsent: "Unsent | None" = None
    """The part of a failed message that a retry needs."""
    tried: Tried | None = None
    """The last attempt that did not arrive, and some before it; one that failed for good is told by the end itself."""


class Unsent(Struct, array_like=True, frozen=True):
    """The part of a failed message that a retry needs beside its end and its content."""

    ttl_ms: int | None
    delay_ms: int | None
    uncertain: bool
    """An attempt may have arrived, although no verdict says so."""
    listed: bool
    subject: str | None
    letter: tuple[str, int] | None
    """The topic and the entry id of its dead letter, which has its content."""


class Kept(Struct, array_like=True, frozen=True):
    """The content of a listed message that is remembered beside its end, so that it can be shown."""

    payload: bytes
    headers: dict[str, str]
    delayed_since_ms: int
    delay_ms: int | None
    commanded: bool


P = TypeVar("P")


class EntryStart(Struct, Generic[P], tag=int(Kind.ENTRY), array_like=True, frozen=True):
    """The beginning of an `Entry`: all that a consumer needs of it. Decoding as this skips the rest."""

    topic: str
    fire_at_ms: int
    published_at_ms: int
    entry_id: int
    fired: Key | None
    """The version that this entry ends."""
    put: P
    """The body of the version that was fired, else nil."""
    payload: bytes = b""
    headers: dict[str, str] = {}
    key: str | None = None
    producer: str | None = None
    producer_sequence: int = -1
    due_at_ms: int | None = None
    owner: str = ""
    door: str = ""
    ttl_ms: int | None = None
    carries: Key | None = None
    """The key of the older record of this same entry that this one replaces."""
    messages: int = 1
    """How many messages of a client's it is: a batch is one entry, and permits count its messages."""


class ReadEntry(EntryStart[ReadPut | None], tag=int(Kind.ENTRY), array_like=True, frozen=True, gc=False):
    """An `Entry` as a consumer reads it: the version that it fired is read with it."""


class Entry(EntryStart[msgspec.Raw], tag=int(Kind.ENTRY), array_like=True, frozen=True):
    """A message in one of Tarry's own topics, at its entry id.

    It is either published (`put` is nil and the fields after it count), or a due message fired into the
    topic: then `put` is the body of its version, and this one record is its publication, its end as
    sent, and its body (R5).

    With `fire_at_ms` above zero it is a delayed entry: exclusive and failover subscriptions read it at its
    place, shared and key-shared ones once it is due. An entry whose id is already taken is the same
    entry, carried forward so that an old segment can be reclaimed (R12), rescheduled or cancelled.
    """

    cancelled: bool = False
    """Nobody gets it any more: every subscription is done with it, and it has no content."""
    trace: bytes | None = None
    """The trace context of a delayed entry: see `Put.trace`."""
    producer_first: int = -1
    """The first sequence number of a batch whose producer states it beside the last; else -1."""
    origin: Key | None = None
    """The key of a delayed entry's first record, which its id encrypts; None if this is the first."""
    since_ms: int = 0
    """When a command began the delay of a delayed entry again, or cancelled it; 0 if none did."""
    by: int = 0
    """The number of the bulk command that made this record of a delayed entry or an earlier one: see `Put.by`."""
    commanded: str = ""
    """How a delayed entry was made due by command: see `Put.commanded`."""


class Claim(Struct, tag=int(Kind.CLAIM), array_like=True, frozen=True):
    """A grouped message is about to be handed to a foreign outlet; its siblings end with it (R11)."""

    seq: int
    group: str
    owner: str
    claimed_at_ms: int
    namespace: str = ""
    """The namespace of the group. Earlier versions did not say: then it is that of the version with this seq."""


class Ack(Struct, tag=int(Kind.ACK), array_like=True, frozen=True):
    """Entries that a subscription is done with: every one below `below`, and each of `entries`."""

    topic: str
    subscription: str
    below: int
    entries: list[int]
    partial: list[tuple[int, list[int]]] = []
    """Entries of which some messages are done with: bits of 64 in a word, set for what is left."""


class Subscribe(Struct, tag=int(Kind.SUBSCRIBE), array_like=True, frozen=True):
    """A durable subscription begins at an entry id."""

    topic: str
    name: str
    subscription_type: str
    start: int
    properties: dict[str, str]


class Unsubscribe(Struct, tag=int(Kind.UNSUBSCRIBE), array_like=True, frozen=True):
    """A subscription ends, and so do its acknowledgements."""

    topic: str
    name: str


class Seek(Struct, tag=int(Kind.SEEK), array_like=True, frozen=True):
    """A subscription goes to an entry id: below it all is acknowledged, from it on nothing."""

    topic: str
    name: str
    to: int


class PolicySet(Struct, tag=int(Kind.POLICY), array_like=True, frozen=True):
    """A policy of the broker, a namespace or a topic is set, or with None removed."""

    scope: str
    name: str
    policy: dict[str, int | float | bool | str | None] | None


class Mark(Struct, tag=int(Kind.MARK), array_like=True, frozen=True):
    """The watermark: every version below this key is dead (R9)."""

    watermark: Key
    marked_at_ms: int


class Lower(Struct, tag=int(Kind.LOWER), array_like=True, frozen=True):
    """The watermark is taken back, because the clock was ahead: later versions may be as low as this key.

    Older versions that it had passed stay dead (`tarry.ledger.watermark`). A program that does not know this record must not
    go on without it, since it would take the later versions for dead: hence a kind of its own.
    """

    watermark: Key
    lowered_at_ms: int
    batch_seq: int
    """The number that the next message of a batch would have had."""


class TopicSet(Struct, tag=int(Kind.TOPIC), array_like=True, frozen=True):
    """A topic is created, or deleted with all that it holds, or has a new exclusive producer."""

    name: str
    deleted: bool
    partitions: int
    epoch: int = -1
    """How many producers have had it for themselves before the present one; -1 if none ever has, or nothing changes."""


class StagedFile(Struct, array_like=True, frozen=True):
    """A file of a batch: synced in the index's folder, and in no version of the index yet.

    Its rows are in the order of their fire instants, and its column `seq` counts them from 0: so they stay in the
    order of their keys whatever the floor.
    """

    path: str
    """Relative to the index's folder."""
    size_bytes: int
    rows: int
    slot: str
    low_ms: int
    """The first of its fire instants, before the floor, and below the last."""
    high_ms: int


class Adopt(Struct, tag=int(Kind.ADOPT), array_like=True, frozen=True):
    """The acceptance of a batch: every message in its files, or none (R10).

    The rows of its files are numbered from `first_seq` on, file after file, beyond all seqs of the ledger
    (`FIRST_BATCH_SEQ`). A row fires at its instant or at the floor, whichever is later.
    """

    name: str
    first_seq: int
    count: int
    floor_ms: int
    adopted_at_ms: int
    files: list[StagedFile]
    owners: dict[str, int]
    """How many of its messages belong to each owner."""
    namespaces: list[str]
    fingerprint: str = ""
    """A digest of the request, to tell a repeated request from another one with the same name; empty: the name identifies it."""
    trace: bytes | None = None
    """The trace context of its acceptance, for all of its messages."""
    held: dict[str, dict[str, int]] = {}
    """How many of its messages belong to each owner, by namespace. Empty from earlier versions, which knew owners alone."""


class Spared(Struct, array_like=True, frozen=True):
    """A message of a batch that was being sent when the batch was cancelled."""

    key: Key
    owner: str
    namespace: str = ""


class CancelBatch(Struct, tag=int(Kind.CANCEL_BATCH), array_like=True, frozen=True):
    """Every message of a batch that has not ended, ends, except those that are spared.

    Messages with a version of their own in the ledger (restarted, carried forward) end by records of their own too.
    """

    name: str
    first_seq: int
    count: int
    high_ms: int
    """The last of its fire instants: once the watermark has passed it, nothing of the batch is left."""
    cancelled_at_ms: int
    spared: list[Spared] = []
    """Being sent at that moment: each ends by a record of its own, once its verdict is known (R11)."""


class Catalogued(Struct, tag=int(Kind.CATALOGUE), array_like=True, frozen=True):
    """Something that has a name and is no message is said to be there, or with None to be gone: a tenant, a schema."""

    sort: str
    """The sort of thing: `tenant`, `namespace`, `schema`."""
    name: str
    value: bytes | None
    """All there is to say of it, in JSON."""


Record = (
    Put
    | Finalise
    | Entry
    | Claim
    | Ack
    | Subscribe
    | Unsubscribe
    | Seek
    | PolicySet
    | Mark
    | Lower
    | TopicSet
    | Adopt
    | CancelBatch
    | Catalogued
)

FIRST_BATCH_SEQ: Final = 1 << 47
"""Messages of adopted batches are numbered from here; the ledger's own records stay far below."""

NO_KEY: Final = Key(0, 0)
_NIL: Final = b"\xc0"
NO_PUT: Final = msgspec.Raw(_NIL)
"""msgpack's nil: an entry that was published, not fired."""


class Encoded(NamedTuple):
    """A record as the ledger stores it: the fixed part, and the body as bytes."""

    kind: int
    lane: int
    crc: int
    """CRC-32C of the body, carried from the accept to the outlet (R3)."""
    fire_at_ms: int
    kills_seq: int
    kills_fire_at_ms: int
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_records_decoder = msgspec.msgpack.Decoder(list[Record | None])
_put_decoder = msgspec.msgpack.Decoder(Put)
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_crc = google_crc32c.value
encode_body: Callable[[Record], bytes] = _encoder.encode
"""The body of a record alone, for who lays out the fixed parts as columns."""
encode_value: Callable[[int | str], bytes] = _encoder.encode
"""One value of a body, for who lays out whole bodies as columns."""


def encode(record: Record) -> Encoded:
    """Turn a record into what the ledger stores."""
    body = _encoder.encode(record)
    crc = _crc(body)
    if type(record) is Put:
        killed = record.kills or NO_KEY
        lane = lane_of(record.namespace, record.owner, record.door)
        return Encoded(1, lane, crc, record.fire_at_ms, killed.seq, killed.fire_at_ms, body)
    if type(record) is Entry:
        killed = record.fired or record.carries or NO_KEY
        lane = lane_of(namespace_of(record.topic), record.owner, record.door)
        return Encoded(3, lane, crc, record.fire_at_ms, killed.seq, killed.fire_at_ms, body)
    if type(record) is Finalise:
        return Encoded(2, 0, crc, 0, record.kills.seq, record.kills.fire_at_ms, body)
    return Encoded(record.__struct_config__.tag, 0, crc, 0, 0, 0, body)  # type: ignore[arg-type]


def decode(body: bytes) -> Record:
    """Read a body back. The caller has checked its CRC."""
    record: Record = _decoder.decode(body)
    return record


def decode_many(bodies: Sequence[bytes | None]) -> list[Record | None]:
    """Read bodies back in one call; None stays in its place."""
    whole = (
        b"\xdd"
        + len(bodies).to_bytes(4, "big")
        + b"".join([_NIL if body is None else body for body in bodies])
    )
    records: list[Record | None] = _records_decoder.decode(whole)
    return records


def decode_put(body: bytes | msgspec.Raw) -> Put:
    """Read the body of a `Put`."""
    return _put_decoder.decode(body)


def decode_entry(body: bytes) -> Entry:
    """Read the body of an `Entry`."""
    return _entry_decoder.decode(body)
