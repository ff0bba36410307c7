"""The JSON of the door, as types: what is taken and what is answered.

The one source for decoding, encoding and the OpenAPI document. Every field that is not known is refused, an
integer takes no float, and of two fields with one name in an object the last one counts (RFC 8259
leaves that open; telling would mean to parse twice).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from tarry.core.limits import HOUR_MS, MAX_NAME_BYTES, MINUTE_MS
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import MessageQuery, OnConflict
from tarry.core.messages.shapes import EntryFacts, MessageFacts, ScheduledFacts
from tarry.doors.http.problems import Problem

MAX_EXACT_INT = 2**53 - 1
"""The largest integer that every JSON parser keeps exact."""
DEFAULT_CONSUMER = "http"
MAX_RECEIVE = 10_000
MAX_WAIT_MS = MINUTE_MS
MAX_PAGE = 1_000
MAX_ACKS = 10_000

Milliseconds = Annotated[int, Meta(ge=0, le=MAX_EXACT_INT)]
EntryId = Annotated[int, Meta(ge=0, le=MAX_EXACT_INT)]
Instant = Annotated[
    str, Meta(max_length=64, description="RFC 3339 with a zone", examples=["2031-05-04T09:30:00Z"])
]
Duration = Annotated[str, Meta(max_length=100, description="Units w d h m s ms", examples=["1h30m"])]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
MessageName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        description="A name of one's own, unique among the pending messages of its namespace; no slashes",
        examples=["trial-42"],
    ),
]
Text = Annotated[str, Meta(description="Text, sent as UTF-8")]
Json = Annotated[Raw, Meta(description="Any JSON value; sent as it is written here")]


class Taken(Struct, kw_only=True, forbid_unknown_fields=True):
    """A shape that a client sends."""


class Times(Taken, kw_only=True):
    """When: at most one of these."""

    due_at_ms: Milliseconds | None = None
    due_at: Instant | None = None
    delay_ms: Milliseconds | None = None
    delay: Duration | None = None


class Content(Times, kw_only=True):
    """The content of a message and its times. At most one of the three forms of the payload."""

    payload: Text | None = None
    payload_base64: bytes | None = None
    payload_json: Json | UnsetType = UNSET
    headers: dict[str, str] | None = None
    key: str | None = None
    owner: str | None = None
    ttl_ms: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None


class BatchLine(Content, kw_only=True, gc=False):
    """One line of a batch request; absent fields take the defaults of the request. There are thousands at once, and none is in a circle."""

    destination: str | None = None
    namespace: str | None = None
    group: str | None = None
    name: MessageName | None = None
    on_conflict: (
        Annotated[
            OnConflict,
            Meta(description="If a message of this name waits: refuse, keep that one, or replace it"),
        ]
        | None
    ) = None


class ScheduleRequest(BatchLine, kw_only=True):
    """A message: to a topic (`persistent://tenant/namespace/topic`) or another outlet's address."""

    destination: str


class BatchDefaults(Taken, kw_only=True):
    """Query parameters of a batch: what its lines do not say."""

    destination: str | None = None
    namespace: str | None = None
    owner: str | None = None
    due_at_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None
    ttl_ms: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None


class RestartRequest(Times, kw_only=True):
    """When it is due now; empty for its original delay once more."""


class RetryRequest(Times, kw_only=True):
    """When it is due; empty for now."""


class ListQuery(MessageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query that chooses the messages of a list; absent fields do not filter."""

    due_from_ms: Milliseconds | None = None
    due_to_ms: Milliseconds | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    page: Annotated[str, Meta(description="The next_page of the page before")] | None = None


class BatchesQuery(Taken, kw_only=True):
    """Which adopted batches to list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    page: (
        Annotated[int, Meta(ge=1, le=MAX_EXACT_INT, description="The next_page of the page before")] | None
    ) = None


class TopicsQuery(Taken, kw_only=True):
    """Which topics to list."""

    namespace: str | None = None


class PolicyQuery(Taken, kw_only=True):
    """The place whose policies are shown."""

    effective: bool = False
    or_empty: bool = False
    """Answer with an empty policy, and not with 404, where none is set."""


class PublishRequest(Content, kw_only=True):
    """An entry for a topic; with a time it is a delayed one."""

    producer: Name | None = None
    producer_sequence: EntryId | None = None


class SubscribeRequest(Taken, kw_only=True):
    """How to subscribe. `start` counts only when the subscription is new."""

    type: Literal["exclusive", "shared", "failover", "key_shared"] = "shared"
    start: Literal["earliest", "latest"] | EntryId = "latest"
    durable: bool = True
    """Whether the subscription outlives its consumers; one that is not durable lives in memory, while a consumer is attached."""
    dead_letter_topic: str | None = None
    max_redeliveries: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class ReceiveRequest(Taken, kw_only=True):
    """A long poll: up to `max` entries, waiting at most `wait_ms` for the first one."""

    consumer: Name = DEFAULT_CONSUMER
    max: Annotated[int, Meta(ge=1, le=MAX_RECEIVE)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 10_000
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=12 * HOUR_MS)] | None = None


class EventsQuery(Taken, kw_only=True):
    """An event stream: at most `window` entries are unacknowledged at any time."""

    consumer: Name = DEFAULT_CONSUMER
    window: Annotated[int, Meta(ge=1, le=MAX_RECEIVE)] = 100
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=12 * HOUR_MS)] | None = None


class AckRequest(Taken, kw_only=True):
    """Entries one by one, or all up to and including one."""

    consumer: Name = DEFAULT_CONSUMER
    entry_ids: Annotated[list[EntryId], Meta(max_length=MAX_ACKS)] | None = None
    up_to: EntryId | None = None


class NackRequest(Taken, kw_only=True):
    """Entries to be delivered again now; without `entry_ids` all that the consumer holds."""

    consumer: Name = DEFAULT_CONSUMER
    entry_ids: Annotated[list[EntryId], Meta(max_length=MAX_ACKS)] | None = None


class SeekRequest(Taken, kw_only=True):
    """The entry at which to go on reading, or the first one published at or after an instant."""

    entry_id: EntryId | None = None
    at_ms: Milliseconds | None = None


class ScheduledAnswer(ScheduledFacts, frozen=True, kw_only=True):
    """The id is a credential: who has it can read, cancel, send and restart the message."""

    due_at: str | None
    name: str | UnsetType = UNSET
    kept: bool | UnsetType = UNSET
    """Only of a named message: one of this name waits already, and this is its answer."""
    replaced: bool | UnsetType = UNSET
    """Only of a named message: one of this name waited, and was cancelled by the record that accepted this one."""


class BatchRefusal(Struct, kw_only=True):
    """The answer to one line that was refused; lines count from 1."""

    error: Problem
    line: int


class MessageAnswer(MessageFacts, frozen=True, kw_only=True):
    """A message: what was asked, and what has become of it. Once finalised, its body is not shown."""

    state: State
    due_at: str | None
    headers: dict[str, str] | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    """Instead of `payload` where that is not UTF-8."""


class CancelLine(Taken, kw_only=True):
    """One message of many to cancel: its id, or its name."""

    id: str | None = None
    name: str | None = None
    namespace: str | None = None
    """The name's; `public/default` if nothing is said."""


class CancelledLine(Struct, kw_only=True):
    """The answer to one line whose message is cancelled; lines count from 1."""

    line: int
    message: MessageAnswer


class MessagesAnswer(Struct, kw_only=True):
    """One page. It may be short or empty and still have a next page."""

    messages: list[MessageAnswer]
    next_page: str | None


class AdoptedAnswer(Struct, kw_only=True):
    """An adopted batch, and how many of its messages still wait."""

    name: str
    count: int
    remaining: int
    """Messages that have not ended."""
    cancelled: int
    """Messages that ended when the batch was cancelled."""
    adopted_at_ms: int
    adopted_at: str
    last_due_at_ms: int
    last_due_at: str
    namespaces: list[str]
    cancelled_at_ms: int | None


class AdoptedBatchesAnswer(Struct, kw_only=True):
    """One page, the newest first."""

    batches: list[AdoptedAnswer]
    next_page: int | None


class EntryAnswer(EntryFacts, frozen=True, gc=False):
    """An entry of a topic as a consumer gets it."""

    payload: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET


class ReceiveAnswer(Struct, kw_only=True):
    """The entries that came; none if there was none in time."""

    messages: list[EntryAnswer]


class PublishAnswer(Struct, kw_only=True):
    """The ids of the entries, in order; consumers see them by now, or when they are due."""

    entry_ids: list[int]


class TopicsAnswer(Struct, kw_only=True):
    """Full names of topics."""

    topics: list[str]


class StatusAnswer(Struct, kw_only=True):
    """Figures of the engine and of this door, for people."""

    ready: bool
    reasons: list[str]
    warnings: list[str]
    engine: dict[str, Any]
    sessions: int
    batches: int


class FramesQuery(Taken, kw_only=True):
    """Query parameters of a read of the ledger: by default from the first seq there is, to the end of its segment."""

    from_seq: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None
    upto_seq: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None


class SegmentAnswer(Struct):
    """A segment of the ledger."""

    number: int
    first_seq: int


class LedgerAnswer(Struct, kw_only=True):
    """The bounds of the ledger. The next seq to come is `durable_seq` + 1."""

    ledger_id: str
    first_seq: int
    durable_seq: int
    segments: list[SegmentAnswer]
    set_aside: list[int]
    """Seqs of records that the server goes on without, and its readers with it."""


class BackupRequest(Taken, kw_only=True):
    """How long a backup is waited for; it may say again and again that it goes on."""

    for_ms: Annotated[int, Meta(ge=1_000, le=HOUR_MS)] = 10 * MINUTE_MS


class BackupAnswer(Struct, kw_only=True):
    """A backup under way: until then nothing of the ledger is reclaimed."""

    name: str
    until_ms: int
    snapshot: str
    """The file in the registry's folder that is a snapshot of it."""
    ledger_id: str


class ReadyAnswer(Struct, kw_only=True, omit_defaults=True):
    """Whether messages are accepted and sent, and if not, why."""

    ready: bool
    reasons: list[str]
    warnings: list[str] = []
    """Facts that an operator should know although messages are accepted and sent."""
