"""Spans of handled entries for OpenTelemetry; the program's own provider says where they go.

Only imported where a worker is made with `tracing=True`; needs the package `opentelemetry-api`.
"""

from typing import Any

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode

from tarry.client.worker.handler import Delivery, Next


async def traced(delivery: Delivery, call_next: Next) -> Any:
    """Handle an entry in a span: a child of the `traceparent` among the entry's headers, if it has one."""
    tracer = trace.get_tracer("tarry.worker")
    attributes: dict[str, str | int] = {
        "messaging.system": "tarry",
        "messaging.operation.type": "process",
        "messaging.operation.name": "handle",
        "messaging.destination.name": delivery.topic,
        "messaging.destination.subscription.name": delivery.subscription,
        "tarry.attempt": delivery.attempt,
    }
    with tracer.start_as_current_span(
        f"process {delivery.topic}",
        context=extract(delivery.entry.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        # Its words may hold the payload.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            return await call_next(delivery)
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", type(error).__qualname__)
            raise
