"""Traces as the engine sees them: the steps of a message's way, which it tells the tracer that it was given.

A message's way has two ends with a wait between them that may last for years and for many starts of the server. What joins
them is a context: made when a message is accepted, kept in its records, given back when it is sent. The engine
does not look into it. It is no header: no outlet and no consumer ever gets it.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

SendOutcome = Literal["sent", "retried", "failed"]

TRACEPARENT = "traceparent"
"""The header in which senders put the trace that a message belongs to (W3C Trace Context)."""


class AcceptSpan(Protocol):
    """One request that brings messages in, until it is answered."""

    @property
    def context(self) -> bytes | None:
        """The trace context kept with the messages; None if they are not traced."""

    def end(self, error: BaseException | None) -> None:
        """End the span: the operation is answered."""


class SendSpan(Protocol):
    """One attempt to send a message, until its verdict."""

    def end(self, outcome: SendOutcome) -> None:
        """End the span with the outcome of the attempt."""


class Tracer(Protocol):
    """Told of accepted and of sent messages. Quick, and never raises."""

    def accept(self, operation: str, door: str, messages: int, callers: Sequence[str]) -> AcceptSpan:
        """Messages come in, with the trace contexts that they carry themselves, as in `traceparent`."""

    def send(
        self, context: bytes, *, door: str, outlet: str, namespace: str, attempt: int, lateness_ms: int
    ) -> SendSpan:
        """A message that was accepted with this context is sent now. The outlet is the scheme of its destination."""
