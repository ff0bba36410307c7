"""Topics: list, make, look at, remove, publish to."""

import msgspec

from tarry.core.errors import Invalid, TarryError
from tarry.core.names import TopicName, parse_namespace, parse_topic
from tarry.core.tenants.access import Caller
from tarry.doors.http.bodies import check_json, decode, is_ndjson, payload_of, read_query, times_of
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.responses import json_response, nothing
from tarry.doors.http.shapes import PublishAnswer, PublishRequest, TopicsAnswer, TopicsQuery
from tarry.engine.api import NewEntry
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

_publish_decoder = msgspec.json.Decoder(PublishRequest)


def reach_topic(request: Request) -> TopicName:
    """The topic in the path, once it is clear that the caller's token reaches its namespace."""
    caller = request.caller
    parts = request.params
    name = parse_topic(f"{parts['tenant']}/{parts['namespace']}/{parts['topic']}")
    caller.require_namespace(name.namespace_name)
    return name


class TopicEndpoints:
    """The endpoints under `/v1/topics`, subscriptions apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """GET /v1/topics."""
        caller = request.caller
        namespace = read_query(request.query, TopicsQuery).namespace
        if namespace is not None:
            caller.require_namespace(parse_namespace(namespace))
        names = self._engine.topics.names(namespace)
        return json_response(TopicsAnswer(topics=[name for name in names if _covers(caller, name)]))

    async def create(self, request: Request) -> Response:
        """PUT /v1/topics/{tenant}/{namespace}/{topic}."""
        name = reach_topic(request)
        await self._engine.topics.create(name.full)
        return nothing()

    async def stats(self, request: Request) -> Response:
        """GET /v1/topics/{tenant}/{namespace}/{topic}."""
        name = reach_topic(request)
        return json_response(self._engine.topics.stats(name.full))

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/topics/{tenant}/{namespace}/{topic}."""
        name = reach_topic(request)
        await self._engine.topics.delete(name.full)
        return nothing()

    async def publish(self, request: Request) -> Response:
        """POST /v1/topics/{tenant}/{namespace}/{topic}/messages: one entry as JSON, or many as NDJSON.

        Many are published together or, if one of them is wrong, not at all.
        """
        name = reach_topic(request)
        _refuse_key(request)
        many = is_ndjson(request)
        if not many:
            check_json(request)
        body = request.body
        if many:
            lines = body.removesuffix(b"\n").split(b"\n") if body else []
            entries = [self._entry(line, number) for number, line in enumerate(lines, 1)]
            # All or none of them: what they are over the rate by, later operations wait for.
            request.caller.standing.charge(len(entries))
        else:
            entries = [self._entry(body, None)]
        return json_response(
            PublishAnswer(entry_ids=await self._engine.topics.publish(name.full, entries)), 201
        )

    def _entry(self, body: bytes, line: int | None) -> NewEntry:
        try:
            asked = decode(_publish_decoder, body)
            payload, headers = payload_of(asked)
            deliver_at_ms, delay_ms = times_of(asked)
            if (asked.producer is None) != (asked.producer_sequence is None):
                raise Invalid("producer_sequence", "give producer and producer_sequence together")
        except TarryError as error:
            raise error if line is None else _at_line(error, line) from None
        if delay_ms is not None:
            deliver_at_ms = self._engine.clock.now_ms() + delay_ms
        return NewEntry(
            payload=payload,
            headers=headers,
            key=asked.key,
            deliver_at_ms=deliver_at_ms,
            producer=asked.producer,
            producer_sequence=-1 if asked.producer_sequence is None else asked.producer_sequence,
            owner=asked.owner or "",
            ttl_ms=asked.ttl_ms,
        )


def _covers(caller: Caller, topic: str) -> bool:
    return caller.namespaces is None or caller.covers(parse_topic(topic).namespace_name)


def _at_line(error: TarryError, line: int) -> TarryError:
    if isinstance(error, Invalid):
        return Invalid(error.field, f"{error.reason} (line {line})")
    status = error.status if isinstance(error, HttpRefusal) else 400
    return HttpRefusal(status, error.code, f"line {line}: {error}")


def _refuse_key(request: Request) -> None:
    # Silence would be taken for a promise.
    if request.header(b"idempotency-key") is not None:
        raise Invalid("Idempotency-Key", "is not honoured here; use producer and producer_sequence")
