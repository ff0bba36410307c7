"""Fields of messages, entries, repeats, commands and pauses that the engine's views, the API's answers and the client's types share.

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


class RepeatFacts(Struct, frozen=True, kw_only=True):
    """A repeat without its content: what was asked for, and how far it has come."""

    name: str
    namespace: str
    state: str
    """`active`, `paused`, or `over` after its last occurrence."""
    destination: str
    owner: str = ""
    door: str = ""
    key: str | None = None
    ttl_ms: int | None = None
    every_ms: int | None = None
    every_months: int | None = None
    """Months of an interval by the calendar, as the Dapr door takes them."""
    cron: str | None = None
    zone: str | None = None
    start_at_ms: int | None = None
    end_at_ms: int | None = None
    count: int | None = None
    jitter_ms: int = 0
    missed: str = "latest"
    next_due_at_ms: list[int] = []
    """The next five instants, in a list the next one; of a paused repeat, those if it were resumed now."""
    made: int = 0
    """Occurrences that were accepted as messages."""
    last_at_ms: int | None = None
    """The planned instant of the last of these."""
    paused_at_ms: int | None = None
    trouble: str | None = None
    """Why the next occurrence is not accepted, where it is not."""


class BulkCommandFacts(Struct, frozen=True, kw_only=True):
    """A command for all messages that a filter chooses, without the filter: by whom and when, and how far it has come."""

    id: str
    action: str
    phase: str
    """`counting`, `counted` until it is confirmed, `running`, then `done` or `stopped`."""
    counted: int = 0
    done: int = 0
    passed: int = 0
    """Messages that had ended by then, or whose state did not allow it."""
    due_at_ms: int | None = None
    delay_ms: int | None = None
    asked_by: str = ""
    asked_at_ms: int = 0
    confirmed_by: str | None = None
    confirmed_at_ms: int | None = None
    ended_by: str | None = None
    """The name of the token that stopped it."""
    ended_at_ms: int | None = None


class PauseFacts(Struct, frozen=True, kw_only=True):
    """A paused topic, owner or destination."""

    kind: str
    """`topic`, `owner` or `destination`."""
    namespace: str
    name: str
    """The address, the full name of the topic, or the owner."""
    since_ms: int
    resumed: bool = False
    """Whether the pause is over, and messages that it held are on their way back."""


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
    """An entry that waits for its due instant, without its payload; the answer to a cancel shows the cancelled entry."""

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
