"""A message as a door hands it to the engine, and as the engine shows it again.

`Message` is what is asked for; `MessageView` is what has become of it. Neither knows of any protocol.
"""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, TooLarge
from tarry.core.lifecycle import State

LED_BY: Final = "tarry-led-by"
"""Header of a message whose group was led: what the receiver called the one that led it."""


class Message(Struct, frozen=True, kw_only=True):
    """Bytes and headers bound for a destination, due at an instant or after a delay.

    Exactly one of `due_at_ms` and `delay_ms` is given, or neither for a group member that goes out only
    by command.
    """

    destination: str
    payload: bytes = b""
    headers: dict[str, str] = {}
    key: str | None = None
    owner: str = ""
    door: str = "http"
    namespace: str | None = None
    """Whose policies apply where the destination is not a topic; None is `public/default`."""
    due_at_ms: int | None = None
    delay_ms: int | None = None
    group: str | None = None
    ttl_ms: int | None = None
    """Counted from the due instant; a message that could not be sent by then fails as expired."""
    idempotency_key: str | None = None
    any_repeat: bool = False
    """The idempotency key alone decides: whatever else a repeated request asks for, it gets the first answer."""
    listed: bool = False
    """Keep a row for it, so that it can be listed by its owner at once, however many others wait. It is remembered with its
    body when it has ended."""
    subject: str | None = None
    """Maximum number of a topic's producers whose last sequence number is known: beyond it, the one silent for longest is forgotten."""
    leads: str | None = None
    """The group of its owner that is scheduled together with it: the delays there begin when this is sent, and if
    it goes unsent the group is discarded."""
    follows: bool = False
    """The message's subject: all messages that wait about one subject can be ended together. Only for listed messages."""

    def check(self) -> None:
        """Raise `Invalid` or `TooLarge` if this can never be a message. Knows no policy."""
        _check_size("destination", self.destination, limits.MAX_DESTINATION_BYTES)
        if not self.destination:
            raise Invalid("destination", "is missing")
        if len(self.payload) > limits.MAX_PAYLOAD_BYTES:
            raise TooLarge("payload", limits.MAX_PAYLOAD_BYTES)
        if self.headers:
            _check_headers(self.headers)
        if self.key is not None:
            _check_size("key", self.key, limits.MAX_KEY_BYTES)
        if self.owner:
            _check_size("owner", self.owner, limits.MAX_OWNER_BYTES)
        if self.group is not None:
            if not self.group:
                raise Invalid("group", "is empty")
            _check_size("group", self.group, limits.MAX_GROUP_BYTES)
        if self.leads is not None and self.group is not None:
            raise Invalid("leads", "a message leads a group or is in one, not both")
        if self.idempotency_key is not None:
            _check_size("idempotency_key", self.idempotency_key, limits.MAX_IDEMPOTENCY_KEY_BYTES)
        if self.subject is not None:
            _check_size("subject", self.subject, limits.MAX_GROUP_BYTES)
            if not self.listed:
                raise Invalid("subject", "is for messages that are listed")
        self._check_times()

    def _check_times(self) -> None:
        if self.due_at_ms is not None and self.delay_ms is not None:
            raise Invalid("delay_ms", "give a due instant or a delay, not both")
        if self.due_at_ms is None and self.delay_ms is None and self.group is None:
            raise Invalid("due_at_ms", "give a due instant or a delay")
        if self.due_at_ms is not None and self.due_at_ms < 0:
            raise Invalid("due_at_ms", "is before 1970")
        if self.delay_ms is not None and self.delay_ms < 0:
            raise Invalid("delay_ms", "is negative")
        if (self.due_at_ms or 0) > limits.NEVER_MS or (self.delay_ms or 0) > limits.MAX_DELAY_MS:
            # Also where a policy sends everything at once: what is kept of it has to be a number that can be stored.
            raise DelayTooLong(limits.MAX_DELAY_MS)
        if self.ttl_ms is not None and not 0 < self.ttl_ms <= limits.MAX_DELAY_MS:
            raise Invalid("ttl_ms", "is not between 1 ms and 100 years")


def _check_size(field: str, text: str, limit: int) -> None:
    # Characters first: no text of that many characters can be shorter in bytes.
    if len(text) > limit or (not text.isascii() and _utf8_length(field, text) > limit):
        raise TooLarge(field, limit)


def _utf8_length(field: str, text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(field, "is not valid Unicode") from None


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > limits.MAX_HEADERS:
        raise Invalid("headers", f"there are more than {limits.MAX_HEADERS}")
    total = 0
    for name, value in headers.items():
        if not name:
            raise Invalid("headers", "a name is empty")
        total += _utf8_length("headers", name) + _utf8_length("headers", value)
    if total > limits.MAX_HEADERS_BYTES:
        raise TooLarge("headers", limits.MAX_HEADERS_BYTES)


class Scheduled(Struct, frozen=True):
    """The answer to a schedule, given once its record is durable."""

    id: str
    due_at_ms: int | None
    """When it was asked to go out, rounded up to its policy's tick; None for a member without a time."""
    past_due: bool = False
    """The due instant had passed already: it is due now."""
    repeated: bool = False
    """Whether it takes the place of one of its owner's messages that is on its way out: the owner's limits have counted that one already."""


class MessageView(Struct, frozen=True, kw_only=True):
    """A message as it can be shown: what was asked, and what has become of it."""

    id: str
    state: State
    destination: str
    namespace: str
    owner: str
    door: str
    key: str | None
    group: str | None
    due_at_ms: int | None
    accepted_at_ms: int
    delayed_since_ms: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None
    attempts: int = 0
    headers: dict[str, str] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    """Unset once the message is finalised, unless it was listed: else the body is not kept for showing."""
    finalised_at_ms: int | None = None
    reason: str | None = None
    reference: str | None = None
    error: str | None = None
    """Why it was not sent, in the words of whoever said so."""
    last_error: str | None = None
    """Why the last attempt to send it did not arrive; None if there was none."""
    last_attempt_at_ms: int | None = None
    next_attempt_at_ms: int | None = None
    commanded: bool = False
    """Whether the idempotency key was seen before; this is the first answer again."""


class MessageQuery(Struct, frozen=True, kw_only=True):
    """Which messages to list. Empty fields do not filter."""

    state: Literal["scheduled", "finalised"] = "scheduled"
    outcome: Literal["sent", "cancelled", "failed"] | None = None
    """Whether it goes out, or went out, by command and not by the clock."""
    owner: str | None = None
    destination: str | None = None
    namespace: str | None = None
    key: str | None = None
    group: str | None = None
    door: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    limit: int = 100
    page: str | None = None
    """The `next_page` of the page before."""


class OwnedQuery(Struct, frozen=True, kw_only=True):
    """Which of an owner's listed messages to show; the next due, or the last finalised, come first."""

    owner: str
    state: Literal["scheduled", "finalised"] = "scheduled"
    namespace: str | None = None
    limit: int = 100
    page: str | None = None
    """The `next_page` of the page before."""


class MessagePage(Struct, frozen=True):
    """One page of a list. It may hold fewer than asked for, even none, and still have a next page."""

    messages: list[MessageView]
    next_page: str | None
