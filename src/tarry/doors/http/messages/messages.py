"""Messages one by one: schedule, get, list, cancel, send now, restart.

Scheduling is the hot path: it gives the engine's answer, and so needs no task.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES
from tarry.core.messages.message import MessageView, NamedScheduled, Scheduled
from tarry.core.messages.shapes import MessageFacts
from tarry.core.names import check_message_name, parse_namespace
from tarry.core.tenants.access import Caller
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import (
    check_json,
    decode,
    message_of,
    read_query,
    text_or_bytes,
    times_of,
)
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import (
    ListQuery,
    MessageAnswer,
    MessagesAnswer,
    RestartRequest,
    RetryRequest,
    ScheduledAnswer,
    ScheduleRequest,
)
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

_schedule_decoder = msgspec.json.Decoder(ScheduleRequest)
_restart_decoder = msgspec.json.Decoder(RestartRequest)
_retry_decoder = msgspec.json.Decoder(RetryRequest)
_encode = msgspec.json.Encoder().encode


class Messages:
    """The endpoints under `/v1/messages`, batches apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def schedule(self, request: Request) -> Answer[Response]:
        """POST /v1/messages."""
        check_json(request)
        key = request.header(b"idempotency-key")
        message = message_of(
            decode(_schedule_decoder, request.body), idempotency_key=None if key is None else read_key(key)
        )
        request.caller.require_destination(message.destination, message.namespace)
        return self._engine.schedule(message).map(_answer)

    async def list(self, request: Request) -> Response:
        """GET /v1/messages."""
        query = read_query(request.query, ListQuery)
        request.caller.require_listed(query.namespace)
        page = await self._engine.list_messages(query)
        answers = [show(view) for view in page.messages]
        return json_response(MessagesAnswer(messages=answers, next_page=page.next_page))

    async def get(self, request: Request) -> Response:
        """GET /v1/messages/{id}, and below `/v1/names` as the others."""
        return json_response(show(await self._seen(request)))

    async def cancel(self, request: Request) -> Response:
        """DELETE /v1/messages/{id} and POST /v1/messages/{id}/cancel."""
        id_ = await self._reach(request)
        return json_response(show(await self._engine.cancel(id_)))

    async def send(self, request: Request) -> Response:
        """POST /v1/messages/{id}/send."""
        id_ = await self._reach(request)
        return json_response(show(await self._engine.send(id_)))

    async def restart(self, request: Request) -> Response:
        """POST /v1/messages/{id}/restart."""
        id_ = await self._reach(request)
        due_at_ms, delay_ms = _times(request, _restart_decoder)
        return json_response(show(await self._engine.restart(id_, delay_ms=delay_ms, due_at_ms=due_at_ms)))

    async def retry(self, request: Request) -> Response:
        """POST /v1/messages/{id}/retry."""
        id_ = await self._reach(request)
        due_at_ms, delay_ms = _times(request, _retry_decoder)
        return json_response(show(await self._engine.retry(id_, delay_ms=delay_ms, due_at_ms=due_at_ms)))

    async def pause(self, request: Request) -> Response:
        """POST /v1/messages/{id}/pause."""
        id_ = await self._reach(request)
        return json_response(show(await self._engine.pausing.pause(id_)))

    async def resume(self, request: Request) -> Response:
        """POST /v1/messages/{id}/resume."""
        id_ = await self._reach(request)
        return json_response(show(await self._engine.pausing.resume(id_)))

    async def _reach(self, request: Request) -> str:
        """The id of the message that the path says, once it is clear that the caller may touch it."""
        if "message" in request.params:
            return self._id_of_name(request)
        if request.caller.namespaces is not None:
            await self._seen(request)
        return str(request.params["id"])

    async def _seen(self, request: Request) -> MessageView:
        caller: Caller = request.caller
        if "message" in request.params:
            return await self._engine.get(self._id_of_name(request))
        view = await self._engine.get(str(request.params["id"]))
        caller.require_sight(view.namespace)
        return view

    def _id_of_name(self, request: Request) -> str:
        """The id of the message that has the name in the path. A name is no credential: the namespace must be the caller's."""
        path = request.params
        namespace = parse_namespace(f"{path['tenant']}/{path['namespace']}")
        request.caller.require_namespace(namespace)
        check_message_name(path["message"])
        return self._engine.id_of_name(namespace, path["message"])


def _times(request: Request, decoder: Any) -> tuple[int | None, int | None]:
    """The due instant or the delay in a body that may be empty."""
    if not request.body:
        return None, None
    check_json(request)
    return times_of(decode(decoder, request.body))


def _answer(scheduled: Scheduled) -> Response:
    due_at_ms = scheduled.due_at_ms
    answer = ScheduledAnswer(
        id=scheduled.id,
        due_at_ms=due_at_ms,
        due_at=None if due_at_ms is None else format_instant(due_at_ms),
        past_due=scheduled.past_due,
    )
    old = scheduled.repeated
    if isinstance(scheduled, NamedScheduled):
        answer = msgspec.structs.replace(
            answer, name=scheduled.name, kept=scheduled.kept, replaced=scheduled.replaced
        )
        old |= scheduled.kept
    headers = [
        (b"content-type", b"application/json"),
        (b"location", b"/v1/messages/" + scheduled.id.encode()),
    ]
    return Response(200 if old else 201, headers, _encode(answer) + b"\n")


def read_key(value: bytes) -> str:
    """The Idempotency-Key header; raises a 400 for one that cannot be kept."""
    if (
        not 0 < len(value) <= MAX_IDEMPOTENCY_KEY_BYTES
        or not value.isascii()
        or not value.decode().isprintable()
    ):
        raise Invalid(
            "Idempotency-Key", f"is not 1 to {MAX_IDEMPOTENCY_KEY_BYTES} printable ASCII characters"
        )
    return value.decode()


def show(view: MessageView) -> MessageAnswer:
    """A message as JSON shows it."""
    facts: dict[str, Any] = {name: getattr(view, name) for name in MessageFacts.__struct_fields__}
    return MessageAnswer(
        **facts,
        due_at=None if view.due_at_ms is None else format_instant(view.due_at_ms),
        headers=view.headers,
        **({} if view.payload is UNSET else text_or_bytes(view.payload)),
    )
