"""A message as a door hands it to the engine, and as the engine shows it again.

`Message` is what is asked for; `MessageView` is what has become of it. Neither knows of any protocol.
"""

from typing import Final, Literal, Self

from msgspec import UNSET, Struct, UnsetType, structs

from tarry.core.errors import Invalid
from tarry.core.messages.lifecycle import State
from tarry.core.messages.shapes import MessageFacts, ScheduledFacts
from tarry.core.names import check_message_name
from tarry.core.rules import admission

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
    """The namespace whose policies apply if the destination is not a topic; None is `public/default`."""
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
    """The message's subject: all messages that wait about one subject can be ended together. Only for listed messages."""
    leads: str | None = None
    """The group of its owner that is scheduled together with it: the delays there begin when this is sent, and if
    it goes unsent the group is discarded."""
    follows: bool = False
    """Whether it takes the place of one of its owner's messages that is on its way out: the owner's limits have counted that one already."""

    def check(self) -> None:
        """Raise `Invalid` or `TooLarge` if this can never be a message, wherever it goes (`tarry.core.rules.admission`)."""
        admission.check_destination(self.destination)
        admission.PAYLOAD_SIZE.check(len(self.payload))
        if self.headers:
            admission.check_headers(self.headers)
        if self.key is not None:
            admission.KEY_SIZE.check(admission.utf8_bytes("key", self.key))
        if self.owner:
            admission.check_owner(self.owner)
        if self.ttl_ms is not None:
            admission.TTL.check(self.ttl_ms)
        self._check_times()
        if self.group is not None:
            self._check_group(self.group)
        if self.idempotency_key is not None:
            key_bytes = admission.utf8_bytes("idempotency_key", self.idempotency_key)
            admission.IDEMPOTENCY_KEY_SIZE.check(key_bytes)
        if self.subject is not None:
            admission.SUBJECT_SIZE.check(admission.utf8_bytes("subject", self.subject))
            if not self.listed:
                raise Invalid("subject", "is for messages that are listed")

    def _check_times(self) -> None:
        if self.due_at_ms is not None:
            if self.delay_ms is not None:
                raise admission.TWO_TIMES.error()
            admission.DUE.check(self.due_at_ms)
        elif self.delay_ms is not None:
            admission.DELAY.check(self.delay_ms)
        elif self.group is None:
            raise admission.NO_TIME.error()

    def _check_group(self, group: str) -> None:
        if not group:
            raise Invalid("group", "is empty; give a name or leave it out")
        admission.GROUP_SIZE.check(admission.utf8_bytes("group", group))
        if self.leads is not None:
            raise Invalid("leads", "a message leads a group or is in one, not both")


OnConflict = Literal["fail", "keep", "replace"]
"""How a request for a name that a pending message has is answered."""


class NamedMessage(Message, frozen=True, kw_only=True):
    """A message with a name of its own: in its namespace no other message that waits has this name (ADR 0024)."""

    name: str
    on_conflict: OnConflict = "fail"
    """If a message of this name waits: refuse this one, keep that one in its place, or replace that one by this."""

    @classmethod
    def of(cls, message: Message, name: str, on_conflict: OnConflict) -> Self:
        """A message, with a name."""
        return cls(**structs.asdict(message), name=name, on_conflict=on_conflict)

    def check(self) -> None:
        """Raise `Invalid` or `TooLarge` if this can never be a message with this name."""
        check_message_name(self.name)
        if self.group is not None and self.on_conflict == "replace":
            raise Invalid("on_conflict", "a message of a group replaces none; use fail or keep")
        super().check()


class Scheduled(ScheduledFacts, frozen=True):
    """The answer to a schedule, given once its record is durable."""

    repeated: bool = False
    """Whether the idempotency key was seen before; this is the first answer again."""


class NamedScheduled(Scheduled, frozen=True, kw_only=True):
    """The answer to a schedule with a name, given once all of it is durable."""

    name: str
    kept: bool = False
    """A message of this name waits already: this is the answer that it got, and no other was accepted."""
    replaced: bool = False
    """A message of this name waited, and was cancelled by the record that accepted this one."""


class MessageView(MessageFacts, frozen=True, kw_only=True):
    """A message as it can be shown: what was asked, and what has become of it."""

    state: State
    delayed_since_ms: int | None = None
    headers: dict[str, str] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    """Unset once the message is finalised, unless it was listed: else the body is not kept for showing."""
    error: str | None = None
    """Why it was not sent, in the words of whoever said so."""
    commanded: bool = False
    """Whether it goes out, or went out, by command and not by the clock."""


class MessageQuery(Struct, frozen=True, kw_only=True):
    """Which messages to list. Empty fields do not filter."""

    state: Literal["scheduled", "retrying", "finalised"] = "scheduled"
    """`retrying`: of those that are scheduled, the ones that wait for another attempt after one that failed."""
    outcome: Literal["sent", "cancelled", "failed"] | None = None
    """The outcome, of finalised messages."""
    owner: str | None = None
    destination: str | None = None
    namespace: str | None = None
    key: str | None = None
    key_prefix: str | None = None
    """The beginning of the order key."""
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
