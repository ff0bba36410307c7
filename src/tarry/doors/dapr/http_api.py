"""Dapr's HTTP API as one ASGI application: publish, bulk publish, health, metadata; the rest is passed on or refused.

A scheduled publish that has come whole needs no task of its own (`quick`): it is answered when its record is durable.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from math import ceil
from typing import Any, Final
from urllib.parse import parse_qs, unquote, unquote_plus

import msgspec

from tarry.core.access import Access, Caller
from tarry.core.browser import check_browser
from tarry.core.errors import Forbidden, TarryError
from tarry.core.faults import told
from tarry.core.limits import SECOND_MS
from tarry.core.message import Scheduled
from tarry.core.rights import DAPR_HTTP, PASSED_ON, Right, right_of
from tarry.doors.dapr import errors
from tarry.doors.dapr.bulk_body import entries_of
from tarry.doors.dapr.cloudevents import Trace, trace_of
from tarry.doors.dapr.errors import Refusal, refusal_of, spend
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.passing import HttpPassing
from tarry.doors.dapr.publishing import Publishing
from tarry.engine.answer import Answer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Reply = Callable[[int, Headers, bytes], None]
Answered = tuple[int, Headers, bytes]
Endpoint = Callable[[str, Scope, Caller, Receive], Awaitable[Answered]]
"""Gets the rest of the path behind the fixed part of its template, the request, and its sender."""

MESSAGE_ID: Final = b"tarry-message-id"
MESSAGE_IDS: Final = b"tarry-message-ids"
MAX_SHOWN_IDS: Final = 200
"""A bulk's ids are given in one header, which clients bound; of more messages none is named."""

_PUBLISH: Final = "/v1.0/publish/"
_BULK: Final = ("/v1.0/publish/bulk/", "/v1.0-alpha1/publish/bulk/")
_PUBLISH_ONE: Final = right_of(DAPR_HTTP, f"POST {_PUBLISH}{{pubsub}}/{{topic}}")
_NAMELESS: Final = frozenset(one.removesuffix("/") for one in (_PUBLISH, *_BULK))
_WRITES: Final = ("POST", "PUT")
_OUTBOUND: Final = "/v1.0/healthz/outbound"
OPEN_PATHS: Final = frozenset(("/v1.0/healthz", _OUTBOUND))
_JSON: Final[Headers] = [(b"content-type", b"application/json")]
_log = logging.getLogger(__name__)


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


class _Route:
    """An operation by the fixed part of its path, with its row of the rights table."""

    def __init__(self, operation: str, endpoint: Endpoint) -> None:
        method, _, template = operation.partition(" ")
        self.method = method
        self.prefix = template.partition("{")[0]
        self.right = right_of(DAPR_HTTP, operation)
        self.endpoint = endpoint

    def serves(self, method: str, path: str) -> bool:
        """Whether a request is for it."""
        if method != self.method:
            return False
        return path.startswith(self.prefix) if self.prefix.endswith("/") else path == self.prefix


class HttpApi:
    """The application."""

    def __init__(
        self,
        publishing: Publishing,
        access: Access,
        metadata: Metadata,
        passing: HttpPassing | None,
        max_body_bytes: int,
    ) -> None:
        self._publishing = publishing
        self._access = access
        self._metadata = metadata
        self._passing = passing
        self._max_body_bytes = max_body_bytes
        # In the order in which they are looked for: a bulk's path begins like that of a publish.
        self.operations: dict[str, Endpoint] = {
            **{
                f"{method} {one}{{pubsub}}/{{topic}}": self._publish_bulk
                for one in _BULK
                for method in _WRITES
            },
            **{f"{method} {_PUBLISH}{{pubsub}}/{{topic}}": self._publish for method in _WRITES},
            "GET /v1.0/metadata": self._show_metadata,
            "PUT /v1.0/metadata/{key}": self._set_metadata,
        }
        self._routes = [_Route(operation, endpoint) for operation, endpoint in self.operations.items()]

    def quick(self, scope: Scope) -> Callable[[bytes, Any, Reply], bool] | None:
        """The function that answers scheduled publishes with this head that have come whole; None leaves them to a task."""
        if b"scheduledSendTime" not in scope["query_string"] or scope["method"] not in ("POST", "PUT"):
            return None
        path = unquote(scope["raw_path"].decode())
        if not path.startswith(_PUBLISH) or path.startswith(_BULK):
            return None
        pubsub, _, topic = path.removeprefix(_PUBLISH).partition("/")
        return partial(self._answer_quick, scope, pubsub, topic)

    def _answer_quick(
        self, scope: Scope, pubsub: str, topic: str, body: bytes, _client: Any, reply: Reply
    ) -> bool:
        if len(body) > self._max_body_bytes:
            return False
        try:
            get = dict(scope["headers"]).get
            caller = self._let_in(get, _PUBLISH_ONE)
            metadata = self._metadata_in(scope["query_string"], pubsub)
            planned = self._publishing.plan(
                pubsub, topic, body, _text(get(b"content-type")), metadata, _trace(get)
            )
            planned.mounted.require_reach(caller, planned.topic)
            if planned.due_at_ms is None or planned.mounted.definition.custody != "ledger":
                return False
            spend(caller)
        except Refusal as refusal:
            reply(*_refused(refusal))
            return True
        self._publishing.schedule(planned).then(partial(_reply_scheduled, reply, pubsub, topic))
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            answered = await self._answer(scope, receive)
        except Disconnected:
            return
        except Refusal as refusal:
            answered = _refused(refusal)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client is answered
            _log.error("a request failed with %s", told(error))
            answered = _refused(Refusal(errors.PUBLISH, "something went wrong inside; the log says what"))
        status, headers, body = answered
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answered:
        path: str = scope["path"]
        method: str = scope["method"]
        get = dict(scope["headers"]).get
        if path in OPEN_PATHS and method == "GET":
            return self._health(path, scope["query_string"])
        if path in _NAMELESS:
            path += "/"
        for route in self._routes:
            if route.serves(method, path):
                caller = self._let_in(get, route.right)
                spend(caller)
                return await route.endpoint(path.removeprefix(route.prefix), scope, caller, receive)
        spend(self._let_in(get, DAPR_HTTP[PASSED_ON]))
        if self._passing is not None and path.startswith("/v1.0"):
            return await self._passing.pass_on(scope, await self._body(receive))
        raise _not_served(method, path)

    async def _show_metadata(self, _: str, _scope: Scope, _caller: Caller, _receive: Receive) -> Answered:
        return 200, list(_JSON), msgspec.json.encode(self._metadata.show())

    async def _set_metadata(self, key: str, _scope: Scope, _caller: Caller, receive: Receive) -> Answered:
        body = await self._body(receive)
        self._metadata.extend(key, body.decode(errors="replace"))
        return 204, [], b""

    def _let_in(self, get: Callable[[bytes], bytes | None], right: Right) -> Caller:
        caller = self._access.known(get(b"dapr-api-token"))
        if caller is None:
            raise Refusal(errors.TOKEN, "invalid api token")
        try:
            right.check(caller)
            if self._access.is_open:
                check_browser(get(b"host"), get(b"origin"), get(b"sec-fetch-site"), frozenset())
        except Forbidden as error:
            raise Refusal(errors.TOKEN, f"invalid api token: {error}") from None
        return caller

    def _health(self, path: str, query: bytes) -> Answered:
        if path == _OUTBOUND:
            self._metadata.check_outbound()
        else:
            asked = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("appid")
            self._metadata.check_ready(asked[0] if asked else None)
        return 204, [], b""

    async def _publish(self, path: str, scope: Scope, caller: Caller, receive: Receive) -> Answered:
        pubsub, _, topic = path.partition("/")
        get = dict(scope["headers"]).get
        body = await self._body(receive)
        metadata = self._metadata_in(scope["query_string"], pubsub)
        planned = self._publishing.plan(
            pubsub, topic, body, _text(get(b"content-type")), metadata, _trace(get)
        )
        planned.mounted.require_reach(caller, planned.topic)
        id_ = await self._publishing.publish(planned)
        return 204, [] if id_ is None else [(MESSAGE_ID, id_.encode())], b""

    async def _publish_bulk(self, path: str, scope: Scope, caller: Caller, receive: Receive) -> Answered:
        pubsub, _, topic = path.partition("/")
        get = dict(scope["headers"]).get
        body = await self._body(receive)
        metadata = self._metadata_in(scope["query_string"], pubsub)
        # The names are looked at before the body, as in Dapr.
        self._publishing.find(pubsub, topic)
        entries = entries_of(body, pubsub, topic)
        plans = await self._publishing.plan_bulk(pubsub, topic, entries, metadata, _trace(get))
        for one in plans[:1]:
            one.mounted.require_reach(caller, one.topic)
        # They go together: what they are over the rate by, later operations wait for.
        caller.standing.charge(len(entries))
        result = await self._publishing.publish_bulk(entries, plans, metadata)
        if result.failed:
            failed = [{"entryId": entry_id, "error": reason} for entry_id, reason in result.failed.items()]
            answer = {"failedEntries": failed, "errorCode": errors.PUBLISH.code}
            return errors.PUBLISH.http, list(_JSON), msgspec.json.encode(answer)
        headers: Headers = []
        if 0 < len(result.ids) <= MAX_SHOWN_IDS:
            headers.append((MESSAGE_IDS, ",".join(result.ids).encode()))
        return 204, headers, b""

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

    async def _body(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise Disconnected
            piece = event.get("body", b"")
            size_bytes += len(piece)
            if size_bytes > self._max_body_bytes:
                raise Refusal(errors.TOO_LARGE, f"the request is larger than {self._max_body_bytes} bytes")
            pieces.append(piece)
            if not event.get("more_body"):
                return b"".join(pieces)


def _reply_scheduled(reply: Reply, pubsub: str, topic: str, answer: Answer[Scheduled]) -> None:
    error = answer.error()
    if error is None:
        reply(204, [(MESSAGE_ID, answer.value().id.encode())], b"")
        return
    if not isinstance(error, TarryError):
        raise error
    reply(*_refused(refusal_of(error, pubsub, topic)))


def _refused(refusal: Refusal) -> Answered:
    headers = list(_JSON)
    if refusal.retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(refusal.retry_after_ms / SECOND_MS))))
    return refusal.kind.http, headers, refusal.body()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")


def _trace(get: Callable[[bytes], bytes | None]) -> Trace | None:
    parent = get(b"traceparent")
    return None if parent is None else trace_of(_text(parent), _text(get(b"tracestate")))


def _not_served(method: str, path: str) -> Refusal:
    if path.startswith("/v1.0"):
        return Refusal(
            errors.NOT_SERVED,
            f"{method} {path} is not pub/sub; set doors.dapr.sidecar_http to have it passed on to a real sidecar",
        )
    return Refusal(errors.UNKNOWN_METHOD, f"there is nothing at {path}")
