"""Shapes that the client takes and gives: messages to schedule, messages received, lists and states.

The fields are those of the native API. Payloads are bytes here, whatever way they travelled; instants
are milliseconds since 1970 (`_at_ms`), durations milliseconds (`_ms`).
"""

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.messages.shapes import (
    BulkCommandFacts,
    DelayedFacts,
    EntryFacts,
    MessageFacts,
    PauseFacts,
    RepeatFacts,
    ScheduledFacts,
)
from tarry.core.rules import policy

Payload = bytes | str | dict[str, Any] | list[Any]
"""Bytes and text go out as they are; a dict or a list goes out as JSON."""

SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]


OnConflict = Literal["fail", "keep", "replace"]

DEFAULT_NAMESPACE: Final = "public/default"
"""The namespace of topics with short names, and of names where no other is given."""


class Message(Struct, kw_only=True):
    """A message to schedule with `schedule_many`. One of the four times, unless it is in a group."""

    destination: str
    payload: Payload = b""
    headers: Mapping[str, str] | None = None
    key: str | None = None
    owner: str | None = None
    namespace: str | None = None
    delay: str | timedelta | None = None
    """Like `1h30m`, or a timedelta."""
    delay_ms: int | None = None
    due_at: datetime | None = None
    """With a time zone."""
    due_at_ms: int | None = None
    group: str | None = None
    ttl_ms: int | None = None
    """Counted from the due instant."""
    name: str | None = None
    """A name of one's own, of one pending message in its namespace."""
    on_conflict: OnConflict | None = None
    """If a pending message has the name: refuse this one (`fail`, as if nothing were said), `keep` that one, or `replace` it."""

    def body(self) -> dict[str, Any]:
        """The message as the API takes it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _AS_THEY_ARE}
        given |= time_fields(self.delay, self.delay_ms, self.due_at, self.due_at_ms)
        given |= payload_fields(self.payload)
        return {name: value for name, value in given.items() if value is not None}


_AS_THEY_ARE: Final = (
    "destination",
    "headers",
    "key",
    "owner",
    "namespace",
    "group",
    "ttl_ms",
    "name",
    "on_conflict",
)


def payload_fields(payload: Payload) -> dict[str, Any]:
    """The field that a payload travels in: the same bytes arrive, whatever they are."""
    if isinstance(payload, str):
        return {"payload": payload}
    if isinstance(payload, dict | list):
        return {"payload_json": payload}
    try:
        # Shorter, and read faster by the server.
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def time_fields(
    delay: str | timedelta | None, delay_ms: int | None, due_at: datetime | None, due_at_ms: int | None
) -> dict[str, Any]:
    """The field that a time travels in. Several are sent as they are: the server says what is wrong."""
    given: dict[str, Any] = {"delay_ms": delay_ms, "due_at_ms": due_at_ms}
    if isinstance(delay, timedelta):
        # Rounded up: never early.
        rounded_ms = -(-delay // timedelta(milliseconds=1))
        given["delay_ms"] = rounded_ms if delay_ms is None else delay_ms
    else:
        given["delay"] = delay
    if due_at is not None:
        if due_at.tzinfo is None:
            raise Invalid("due_at", "has no time zone; use datetime.now(UTC), or .astimezone()")
        given["due_at"] = due_at.isoformat()
    return {name: value for name, value in given.items() if value is not None}


class Scheduled(ScheduledFacts, frozen=True, kw_only=True):
    """The answer to a schedule: the message is on disk."""

    repeated: bool = False
    """Whether the idempotency key was seen before; this is the first answer again."""
    name: str | None = None
    kept: bool = False
    """Whether a message of this name waits already: this is its answer, and nothing was scheduled."""
    replaced: bool = False
    """Whether a message of this name waited, and was cancelled for this one."""


class _WithPayload:
    """The payload of an answer, which has text in one field and other bytes, in Base64, in another."""

    __slots__ = ()

    payload_text: str | None
    payload_base64: str | None

    @property
    def payload(self) -> bytes:
        """The payload; empty where the answer does not show it."""
        text, base64_ = self.payload_text, self.payload_base64
        return (text or "").encode() if base64_ is None else base64.b64decode(base64_)


class MessageView(MessageFacts, _WithPayload, frozen=True, kw_only=True):
    """A message: what was asked, and what has become of it."""

    headers: dict[str, str] | None = None
    payload_text: str | None = msgspec.field(default=None, name="payload")
    payload_base64: str | None = None

    @property
    def has_payload(self) -> bool:
        """Whether the answer showed the payload; it is not kept once a message is finalised."""
        return self.payload_base64 is not None or self.payload_text is not None


class MessagePage(Struct, frozen=True):
    """One page of a list; it may hold fewer than asked for, even none, and still have a next page."""

    messages: list[MessageView]
    next_page: str | None = None


class Repeat(RepeatFacts, _WithPayload, frozen=True, kw_only=True):
    """A repeat: what was asked for, and how far it has come. Lists leave its payload out."""

    headers: dict[str, str] = msgspec.field(default_factory=dict)
    payload_text: str | None = msgspec.field(default=None, name="payload")
    payload_base64: str | None = None


class RepeatPage(Struct, frozen=True):
    """One page of repeats."""

    repeats: list[Repeat]
    next_page: str | None = None


class BulkCommand(BulkCommandFacts, frozen=True, kw_only=True):
    """A command for all messages that a filter chooses, and how far it has come."""

    filter: dict[str, Any] = msgspec.field(default_factory=dict)


class BulkCommandList(Struct, frozen=True):
    """Commands by filter."""

    commands: list[BulkCommand]


class Pause(PauseFacts, frozen=True, kw_only=True):
    """A paused topic, owner or destination."""


class PauseList(Struct, frozen=True):
    """Paused places."""

    pauses: list[Pause]


class Received(EntryFacts, _WithPayload, frozen=True, kw_only=True):
    """An entry of a topic, given to a consumer; it comes again until it is acknowledged."""

    payload_text: str | None = msgspec.field(default=None, name="payload")
    payload_base64: str | None = None


class Receipt(Struct, frozen=True):
    """The answer to a receive."""

    messages: list[Received]


class Delayed(DelayedFacts, _WithPayload, frozen=True, kw_only=True):
    """An entry of a topic that waits for its due instant."""

    payload_text: str | None = msgspec.field(default=None, name="payload")
    payload_base64: str | None = None


class DelayedPage(Struct, frozen=True):
    """One page in publish order; it may hold fewer than asked for, even none, and still have a next page."""

    entries: list[Delayed]
    next: int | None = None


class ListFilters(TypedDict, total=False):
    """The filters of a list of messages; see `list_page`."""

    state: Literal["scheduled", "retrying", "finalised"]
    outcome: Literal["sent", "cancelled", "failed"] | None
    owner: str | None
    destination: str | None
    namespace: str | None
    key: str | None
    key_prefix: str | None
    group: str | None
    door: str | None
    due_from_ms: int | None
    due_to_ms: int | None
    limit: int | None


class LineDefaults(TypedDict, total=False):
    """Defaults of many messages, for the fields that a message leaves out."""

    destination: str | None
    owner: str | None
    namespace: str | None
    delay_ms: int | None
    due_at_ms: int | None
    ttl_ms: int | None


class Published(Struct, frozen=True):
    """The answer to a publish: the entries are on disk."""

    entry_ids: list[int]


class Policy(policy.Policy, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """A policy as the server describes it; fields that only a newer server knows are passed over."""
