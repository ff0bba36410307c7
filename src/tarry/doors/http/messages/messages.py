"""Messages one by one: schedule, get, list, cancel, send now, restart.

Scheduling is the hot path: it is plain ASGI, without routing, request objects or timers of its own, and a request that has
come whole does not even need a task (`quick`).
"""

from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tarry.core.access import Caller
from tarry.core.errors import Invalid, RateLimited, TarryError
from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES
from tarry.core.message import Message, MessageView, NamedScheduled, Scheduled
from tarry.core.names import check_message_name, parse_namespace
from tarry.core.rights import HTTP, right_of
from tarry.core.shapes import MessageFacts
from tarry.core.times import format_instant
from tarry.doors.http.asgi import (
    Answering,
    Disconnected,
    Receive,
    Reply,
    Scope,
    Send,
    json_response,
    refusal,
    refuse,
    respond,
)
from tarry.doors.http.bodies import (
    check_json,
    decode,
    header,
    message_of,
    read_body,
    read_query,
    text_or_bytes,
    times_of,
)
from tarry.doors.http.deadlines import Deadlines
from tarry.doors.http.gate import Gate, caller_of
from tarry.doors.http.problems import Headers, internal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import (
    ListQuery,
    MessageAnswer,
    MessagesAnswer,
    RestartRequest,
    ScheduledAnswer,
    ScheduleRequest,
)
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine

_schedule_decoder = msgspec.json.Decoder(ScheduleRequest)
_restart_decoder = msgspec.json.Decoder(RestartRequest)
_SCHEDULE = right_of(HTTP, "POST /v1/messages")
_encode = msgspec.json.Encoder().encode


class Messages:
    """The endpoints under `/v1/messages`, batches apart."""

    def __init__(self, engine: Engine, gate: Gate, settings: HttpSettings, deadlines: Deadlines) -> None:
        self._engine = engine
        self._gate = gate
        self._deadlines = deadlines
        self._max_body_bytes = settings.max_body_bytes

    async def schedule(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/messages."""
        try:
            caller, key = self._let_in(scope)
            caller.standing.spend()
            body = await read_body(scope, receive, self._max_body_bytes, self._deadlines)
            scheduled = await self._engine.schedule(_message(body, caller, key))
        except TarryError as error:
            await refuse(send, error)
            return
        except Disconnected:
            return
        await respond(send, *_answer(scheduled))

    def quick(self, scope: Scope) -> Answering | None:
        """The function that schedules for requests with this head that have come whole; None: `schedule` says what is wrong."""
        try:
            caller, key = self._let_in(scope)
        except TarryError:
            return None
        return partial(self._schedule_quick, caller, key)

    def _schedule_quick(
        self, caller: Caller, key: str | None, body: bytes, _client: Any, reply: Reply
    ) -> bool:
        try:
            if len(body) > self._max_body_bytes:
                return False
            message = _message(body, caller, key)
            # Now, and not with the head: one that goes the longer way is counted there, and this is kept for further heads.
            caller.standing.spend()
        except RateLimited as limited:
            reply(*refusal(limited))
            return True
        except TarryError:
            return False
        self._engine.schedule(message).then(partial(_reply, reply))
        return True

    def _let_in(self, scope: Scope) -> tuple[Caller, str | None]:
        """The caller and the idempotency key of a request."""
        caller, content_type, key = self._gate.know(scope)
        _SCHEDULE.check(caller)
        check_json(content_type)
        return caller, None if key is None else read_key(key)

    async def list(self, request: Request) -> Response:
        """GET /v1/messages."""
        caller = caller_of(request)
        query = read_query(request.scope, ListQuery)
        if query.namespace is not None:
            caller.require_namespace(parse_namespace(query.namespace))
        elif caller.namespaces is not None:
            raise Invalid("namespace", "name the namespace to list; the token does not reach all of them")
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
        body = await read_body(request.scope, request.receive, self._max_body_bytes, self._deadlines)
        due_at_ms = delay_ms = None
        if body:
            check_json(header(request.scope, b"content-type"))
            due_at_ms, delay_ms = times_of(decode(_restart_decoder, body))
        return json_response(show(await self._engine.restart(id_, delay_ms=delay_ms, due_at_ms=due_at_ms)))

    async def _reach(self, request: Request) -> str:
        """The id of the message that the path says, once it is clear that the caller may touch it."""
        if "message" in request.path_params:
            return self._id_of_name(request)
        if caller_of(request).namespaces is not None:
            await self._seen(request)
        return str(request.path_params["id"])

    async def _seen(self, request: Request) -> MessageView:
        caller: Caller = caller_of(request)
        if "message" in request.path_params:
            return await self._engine.get(self._id_of_name(request))
        view = await self._engine.get(str(request.path_params["id"]))
        caller.require_sight(view.namespace)
        return view

    def _id_of_name(self, request: Request) -> str:
        """The id of the message that has the name in the path. A name is no credential: the namespace must be the caller's."""
        path = request.path_params
        namespace = parse_namespace(f"{path['tenant']}/{path['namespace']}")
        caller_of(request).require_namespace(namespace)
        check_message_name(path["message"])
        return self._engine.id_of_name(namespace, path["message"])


def _message(body: bytes, caller: Caller, key: str | None) -> Message:
    message = message_of(decode(_schedule_decoder, body), idempotency_key=key)
    caller.require_destination(message.destination, message.namespace)
    return message


def _answer(scheduled: Scheduled) -> tuple[int, Headers, bytes]:
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
    return 200 if old else 201, headers, _encode(answer) + b"\n"


def _reply(reply: Reply, answer: Answer[Scheduled]) -> None:
    error = answer.error()
    if error is None:
        reply(*_answer(answer.value()))
    else:
        reply(*refusal(error if isinstance(error, TarryError) else internal()))


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
