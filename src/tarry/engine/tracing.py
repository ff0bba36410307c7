"""Tells a tracer of accepted and sent messages. Without a tracer there is none of this.

An operation that accepts is one span, which ends with its answer; its context goes into the records. What is sent into Tarry's own
topics is told once that is durable, with the context from the records. Attempts of outlets are told by `flights`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tarry.core.names import TOPIC_SCHEME
from tarry.core.telemetry.tracing import SendSpan, Tracer
from tarry.engine.answer import Answer
from tarry.engine.records.versions import lateness_of
from tarry.ledger.record import Entry, Put, decode, decode_put

T = TypeVar("T")


class Tracing:
    """Tells a tracer of accepted and sent messages."""

    def __init__(self, tracer: Tracer, trace_of_batch: Callable[[int], bytes | None]) -> None:
        """`trace_of_batch` gives the trace of the acceptance of the batch of a message, by its first seq."""
        self._tracer = tracer
        self._trace_of_batch = trace_of_batch

    def accepted(
        self,
        operation: str,
        door: str,
        messages: int,
        callers: Sequence[str],
        take: Callable[[bytes | None], Answer[T]],
    ) -> Answer[T]:
        """Take messages in, with the context to keep with them."""
        accepting = self._tracer.accept(operation, door, messages, callers)
        answer = take(accepting.context)
        answer.then(lambda settled: accepting.end(settled.error()))
        return answer

    def attempt(self, seq: int, put: Put, attempt: int, now_ms: int) -> SendSpan | None:
        """An attempt to send a version begins; None if it is not traced."""
        origin_seq = seq if put.origin is None else put.origin.seq
        trace = self._trace_of_batch(origin_seq) if put.trace is None else put.trace
        if trace is None:
            return None
        return self._tracer.send(
            trace,
            door=put.door,
            outlet=put.destination.partition(":")[0],
            namespace=put.namespace,
            attempt=attempt,
            lateness_ms=lateness_of(put, now_ms),
        )

    def fired(self, seq: int, body: bytes, now_ms: int) -> None:
        """A version was fired into a topic."""
        put = decode_put(body)
        sending = self.attempt(seq, put, put.attempts + 1, now_ms)
        if sending is not None:
            sending.end("sent")

    def ready(self, body: bytes, now_ms: int) -> None:
        """A delayed entry of a topic can be had."""
        entry = decode(body)
        if isinstance(entry, Entry) and entry.trace is not None:
            namespace = "/".join(entry.topic.removeprefix(TOPIC_SCHEME).split("/")[:2])
            due_at_ms = entry.fire_at_ms if entry.due_at_ms is None else entry.due_at_ms
            sending = self._tracer.send(
                entry.trace,
                door=entry.door,
                outlet=entry.topic.partition(":")[0],
                namespace=namespace,
                attempt=1,
                lateness_ms=max(0, now_ms - due_at_ms),
            )
            sending.end("sent")
