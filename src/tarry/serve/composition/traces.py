"""Traces for a collector, by OpenTelemetry. Only imported where `[traces]` names one: the packages are an extra.

One request that is accepted is a span, and so is each attempt to send a message of it. A caller's trace goes on through
both: the accept is a child of the span that called (`traceparent` of the message, else of the request), and the delivery of a
message that came alone is a child of its accept. The deliveries of a batch are traces of their own, with a link to the accept, for
nobody wants to look at a million spans over a year in one.

Nothing that a client named is told but the namespace: no id, key, owner, address or payload, and of an error only its kind.
What is not sampled when it is accepted is not traced at all, and nothing is kept with it.
"""

import re
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from tarry import __version__
from tarry.config.settings import Traces
from tarry.core.telemetry.tracing import AcceptSpan, SendOutcome, SendSpan
from tarry.serve.transport.callers import caller

SEND_EVERY_MS: Final = 1_000
CLOSE_WITHIN_S: Final = 2.0
"""At a stop, spans that are left have this long to go out."""
MAX_LINKS: Final = 32
"""Callers that the span of one batch is linked to at most."""
ALONE: Final = b"\x01"
TOGETHER: Final = b"\x02"
"""The last byte of a kept context: whether its message came alone or in a batch. Before it are the ids of trace and span."""

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOBODY: Final = Context()
"""Without a span in it: what begins here is the first of its trace."""


class OtelTracer:
    """A `tarry.core.telemetry.tracing.Tracer` that sends spans to a collector, from a thread of its own."""

    def __init__(self, settings: Traces) -> None:
        exporter = OTLPSpanExporter(
            endpoint=settings.endpoint, headers=settings.headers, timeout=settings.timeout_ms / 1000
        )
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=SEND_EVERY_MS)
        self._resource = Resource.create({"service.name": settings.service, "service.version": __version__})
        self._accepts = self._tracer(ParentBased(TraceIdRatioBased(settings.ratio)))
        # Only what was accepted in a trace comes to be sent in one: there is nothing left to decide.
        self._sends = self._tracer(ALWAYS_ON)

    def _tracer(self, sampler: Sampler) -> Tracer:
        provider = TracerProvider(sampler, self._resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider.get_tracer("tarry")

    def accept(self, operation: str, door: str, messages: int, callers: Sequence[str]) -> AcceptSpan:
        """Begin the span of a request that brings messages in."""
        known = [one for text in dict.fromkeys(callers) if (one := parse(text)) is not None]
        parent = known.pop() if len(known) == 1 else parse(caller() or "")
        span = self._accepts.start_span(
            f"accept {operation}",
            _below(parent),
            SpanKind.SERVER,
            {
                "tarry.door": door,
                "messaging.system": "tarry",
                "messaging.operation.name": operation,
                "messaging.batch.message_count": messages,
            },
            [Link(one) for one in known[:MAX_LINKS]],
        )
        return _Accept(span, ALONE if messages == 1 else TOGETHER)

    def send(
        self, context: bytes, *, door: str, outlet: str, namespace: str, attempt: int, lateness_ms: int
    ) -> SendSpan:
        """Begin the span of an attempt."""
        accepted = SpanContext(
            int.from_bytes(context[:16]), int.from_bytes(context[16:24]), is_remote=True, trace_flags=_SAMPLED
        )
        alone = context[24:] == ALONE
        span = self._sends.start_span(
            "deliver",
            _below(accepted if alone else None),
            SpanKind.PRODUCER,
            {
                "tarry.door": door,
                "tarry.outlet": outlet,
                "tarry.namespace": namespace,
                "tarry.attempt": attempt,
                "tarry.lateness_ms": lateness_ms,
                "messaging.system": "tarry",
                "messaging.operation.name": "deliver",
            },
            () if alone else [Link(accepted)],
        )
        return _Send(span)

    def close(self) -> None:
        """Send the remaining spans, if the collector takes them in time."""
        # Whether it does is up to the network: a stop does not wait for that for long.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)


class _Accept:
    def __init__(self, span: Span, kind: bytes) -> None:
        self._span = span
        self.context: bytes | None = None
        if span.is_recording():
            found = span.get_span_context()
            self.context = found.trace_id.to_bytes(16) + found.span_id.to_bytes(8) + kind

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Send:
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, outcome: SendOutcome) -> None:
        self._span.set_attribute("tarry.outcome", outcome)
        if outcome != "sent":
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def parse(traceparent: str) -> SpanContext | None:
    """The span that a `traceparent` names; None for a malformed one, as the W3C recommends."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or (traceparent.startswith("00") and len(traceparent) != 55):
        return None
    context = SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16)))
    return context if context.is_valid else None


def _below(parent: SpanContext | None) -> Context:
    return _NOBODY if parent is None else set_span_in_context(NonRecordingSpan(parent), _NOBODY)
