"""The endpoints of Dapr's HTTP API: publish, bulk publish, health, metadata."""

from collections.abc import Awaitable
from typing import Final
from urllib.parse import parse_qs, unquote_plus

import msgspec

from tarry.doors.dapr import errors
from tarry.doors.dapr.bulk_body import entries_of
from tarry.doors.dapr.cloudevents import Trace, trace_of
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.publishing import Publishing
from tarry.engine.answer import Answer
from tarry.http.request import Request
from tarry.http.response import Response

MESSAGE_ID: Final = b"tarry-message-id"
MESSAGE_IDS: Final = b"tarry-message-ids"
MAX_SHOWN_IDS: Final = 200
"""A bulk's ids are given in one header, which clients bound; of more messages none is named."""

JSON_HEADERS: Final = ((b"content-type", b"application/json"),)


class HttpEndpoints:
    """Serve one application's operations."""

    def __init__(self, publishing: Publishing, metadata: Metadata) -> None:
        self._publishing = publishing
        self._metadata = metadata

    def ready(self, request: Request) -> Response:
        """GET /v1.0/healthz."""
        asked = parse_qs(request.query.decode("latin-1"), keep_blank_values=True).get("appid")
        self._metadata.check_ready(asked[0] if asked else None)
        return Response(204)

    def outbound(self, _: Request) -> Response:
        """GET /v1.0/healthz/outbound."""
        self._metadata.check_outbound()
        return Response(204)

    def show_metadata(self, _: Request) -> Response:
        """GET /v1.0/metadata."""
        return Response(200, JSON_HEADERS, msgspec.json.encode(self._metadata.show()))

    def set_metadata(self, request: Request) -> Response:
        """PUT /v1.0/metadata/{key}."""
        self._metadata.extend(request.params["key"], request.body.decode(errors="replace"))
        return Response(204)

    def publish(self, request: Request) -> Awaitable[Response]:
        """POST /v1.0/publish/{pubsub}/{topic}."""
        pubsub, topic = _names(request)
        content_type = _text(request.header(b"content-type"))
        metadata = self._metadata_in(request.query, pubsub)
        planned = self._publishing.plan(pubsub, topic, request.body, content_type, metadata, _trace(request))
        planned.mounted.require_reach(request.caller, planned.topic)
        outcome = self._publishing.publish(planned)
        return outcome.map(_published) if isinstance(outcome, Answer) else _once_published(outcome)

    async def publish_bulk(self, request: Request) -> Response:
        """POST /v1.0/publish/bulk/{pubsub}/{topic}."""
        pubsub, topic = _names(request)
        body, caller = request.body, request.caller
        metadata = self._metadata_in(request.query, pubsub)
        # The names are looked at before the body, as in Dapr.
        self._publishing.find(pubsub, topic)
        entries = entries_of(body, pubsub, topic)
        plans = await self._publishing.plan_bulk(pubsub, topic, entries, metadata, _trace(request))
        for one in plans[:1]:
            one.mounted.require_reach(caller, one.topic)
        # They go together: what they are over the rate by, later operations wait for.
        caller.standing.charge(len(entries))
        result = await self._publishing.publish_bulk(entries, plans, metadata)
        if result.failed:
            failed = [{"entryId": entry_id, "error": reason} for entry_id, reason in result.failed.items()]
            answer = {"failedEntries": failed, "errorCode": errors.PUBLISH.code}
            return Response(errors.PUBLISH.http, JSON_HEADERS, msgspec.json.encode(answer))
        shown = 0 < len(result.ids) <= MAX_SHOWN_IDS
        return Response(204, [(MESSAGE_IDS, ",".join(result.ids).encode())] if shown else ())

    def _metadata_in(self, query: bytes, pubsub: str) -> dict[str, str]:
        """The metadata in a query: the first value of each key that begins with `metadata.`; raises `Refusal`."""
        metadata: dict[str, str] = {}
        for part in query.decode("latin-1").split("&"):
            name, _, value = part.partition("=")
            if "%" in name or "+" in name:
                name = unquote_plus(name)
            if name.startswith("metadata."):
                metadata.setdefault(name[9:], unquote_plus(value) if "%" in value or "+" in value else value)
            elif name:
                # Without it, or with it in capitals, a time would not be seen, and the message go out at once.
                self._publishing.check_stray(pubsub, name)
        return metadata


async def _once_published(published: Awaitable[None]) -> Response:
    await published
    return Response(204)


def _published(id_: str) -> Response:
    return Response(204, [(MESSAGE_ID, id_.encode())])


def _names(request: Request) -> tuple[str, str]:
    """The component and the topic in the path; a missing one is empty, and refused as Dapr refuses it."""
    return request.params.get("pubsub", ""), request.params.get("topic", "")


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")


def _trace(request: Request) -> Trace | None:
    parent = request.header(b"traceparent")
    return None if parent is None else trace_of(_text(parent), _text(request.header(b"tracestate")))
