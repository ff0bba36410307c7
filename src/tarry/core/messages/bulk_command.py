"""Bulk commands: one command for all messages that a filter chooses, counted first and then confirmed. Pure (ADR 0031)."""

from typing import Final, Literal

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.messages.message import MessageQuery
from tarry.core.names import DEFAULT_NAMESPACE, parse_namespace
from tarry.core.rules import admission

Action = Literal["cancel", "move", "send", "retry"]
"""`move` gives each message another due instant; `retry` sends those once more that have failed."""

ChosenState = Literal["scheduled", "retrying", "failed"]
"""The states of messages that a bulk command can be for."""

Phase = Literal["counting", "counted", "running", "done", "stopped"]
"""How far a bulk command has come. One that is `counted` waits to be confirmed."""

FINISHED: Final[frozenset[Phase]] = frozenset({"done", "stopped"})

MAX_UNFINISHED: Final = 20
"""Maximum number of bulk commands that are counted, wait to be confirmed, or run."""
MAX_KEPT: Final = 1_000
"""Maximum number of bulk commands that are remembered; beyond it the first of the namespace that has the most are forgotten."""


class MessageFilter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which messages are meant. Fields that are left out do not filter."""

    state: ChosenState = "scheduled"
    namespace: str = DEFAULT_NAMESPACE
    owner: str | None = None
    key: str | None = None
    key_prefix: str | None = None
    destination: str | None = None
    door: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None

    def query(self, limit: int, page: str | None) -> MessageQuery:
        """The list of these messages, from a page on."""
        ended = self.state == "failed"
        return MessageQuery(
            state="finalised" if ended else self.state,  # type: ignore[arg-type]
            outcome="failed" if ended else None, namespace=self.namespace, owner=self.owner, key=self.key,
            key_prefix=self.key_prefix, destination=self.destination, door=self.door, due_from_ms=self.due_from_ms,
            due_to_ms=self.due_to_ms, limit=limit, page=page,
        )  # fmt: skip


class BulkCommand(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bulk command as its records say it."""

    number: int
    """Its id. Versions that it makes have it, so that after a crash it does nothing twice."""
    action: Action
    chosen: MessageFilter
    asked_by: str
    """The name of the token."""
    asked_at_ms: int
    phase: Phase = "counting"
    due_at_ms: int | None = None
    delay_ms: int | None = None
    """The delay from the moment at which each message is moved or retried."""
    counted: int = 0
    done: int = 0
    passed: int = 0
    """Messages that had ended by then, or whose state did not allow it."""
    page: str | None = None
    """Where it goes on."""
    confirmed_by: str | None = None
    confirmed_at_ms: int | None = None
    ended_by: str | None = None
    """The name of the token that stopped it."""
    ended_at_ms: int | None = None

    def check(self) -> None:
        """Raise `Invalid` for a command that cannot be."""
        parse_namespace(self.chosen.namespace)
        timed = self.due_at_ms is not None or self.delay_ms is not None
        if self.due_at_ms is not None and self.delay_ms is not None:
            raise admission.TWO_TIMES.error()
        if self.due_at_ms is not None:
            admission.DUE.check(self.due_at_ms)
        if self.delay_ms is not None:
            admission.DELAY.check(self.delay_ms)
        if self.action == "move" and not timed:
            raise Invalid("due_at", "say when the messages are due: due_at or delay")
        if self.action in ("cancel", "send") and timed:
            raise Invalid("due_at", f"is not for {self.action}")
        if (self.action == "retry") != (self.chosen.state == "failed"):
            raise Invalid("state", "retry is for messages that have failed, and nothing else is")
