"""Fields of messages and entries that the engine's views, the API's answers and the client's types share.

A field that is added here is in all of them; each adds what only it has (the payload as bytes or as text, instants as text). A field
that came after the first release has a default, so that a client understands a server of before. No module is imported here that a
client would not have anyway.
"""

from msgspec import Struct


class ScheduledFacts(Struct, frozen=True):
    """The answer to a schedule. The id is a credential: who has it can read, cancel, send and restart the message."""

    id: str
    due_at_ms: int | None = None
    """When it was asked to go out, rounded up to its policy's tick; None for a member without a time."""
    past_due: bool = False
    """The due instant had passed already, so it is due now."""


class AttemptFacts(Struct, frozen=True):
    """An attempt to send a message that did not arrive."""

    number: int
    """Counted from 1; 0 where it is not known, of an attempt before 0.3.0."""
    at_ms: int
    error: str


class MessageFacts(Struct, frozen=True, kw_only=True):
    """A message without its content: what was asked, and what has become of it."""

    id: str
    state: str
    """`scheduled`, `sending`, `sent`, `cancelled` or `failed`."""
    destination: str
    namespace: str = ""
    owner: str = ""
    door: str = ""
    key: str | None = None
    group: str | None = None
    due_at_ms: int | None = None
    accepted_at_ms: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    attempts: int = 0
    last_error: str | None = None
    """Why the last attempt to send it failed, while it is tried again."""
    last_attempt_at_ms: int | None = None
    next_attempt_at_ms: int | None = None
    attempts_made: tuple[AttemptFacts, ...] = ()
    """The last twenty attempts that did not arrive, the oldest first; why a message failed for good is its `reason`."""
    paused: str | None = None
    """The reason why it does not go out, if it is paused: the `message` itself is, its `destination`, `topic` or `owner`."""
    finalised_at_ms: int | None = None
    reason: str | None = None
    reference: str | None = None
    """The receiver's name for it, if it gave one."""
    name: str | None = None
    """The name by which it is found; of one that has ended, unless another message has the name by now."""


class EntryFacts(Struct, frozen=True):
    """An entry of a topic without its payload, as a consumer gets it."""

    # What is known last comes first: the rest is written ahead (`doors/http/topics/entries.py`).
    entry_id: int
    published_at_ms: int = 0
    due_at_ms: int | None = None
    redelivery_count: int = 0
    headers: dict[str, str] = {}
    key: str | None = None


class DelayedFacts(Struct, frozen=True, kw_only=True):
    """An entry of a topic that waits for its due instant, without its payload; an answer to a cancel shows what it was."""

    entry_id: int
    id: str = ""
    """Its id as a message, for `get`, `cancel`, `send` and `restart`."""
    due_at_ms: int
    published_at_ms: int
    key: str | None = None
    producer: str | None = None
    door: str = ""
    messages: int = 1
    """How many messages it is: a Pulsar client's batch is one entry."""
    headers: dict[str, str] = {}
