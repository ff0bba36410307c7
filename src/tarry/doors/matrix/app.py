"""The Matrix door as one ASGI application: Tarry's own paths, and the proxy for all others.

The requests that must be fast, a schedule from an account that is known, a restart, a cancel and a future's token, are answered
without a task of their own (`quick`). Whatever goes wrong on an own path is answered in the words of Matrix; what should not have
happened is logged by its place in the code only, because an error's text may hold an id.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from tarry.core.errors import TarryError
from tarry.core.faults import told
from tarry.doors.matrix.departures import Departures
from tarry.doors.matrix.errors import MatrixError, explain, internal, unrecognised
from tarry.doors.matrix.features import Features
from tarry.doors.matrix.futures import Futures
from tarry.doors.matrix.futures_batch import FutureBatches
from tarry.doors.matrix.lists import Lists
from tarry.doors.matrix.management import QUICK, Management
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.paths import FoundRoute, Paths, unquoted
from tarry.doors.matrix.proxy import Gone, Proxy, Receive, Scope, Send, is_passed_on
from tarry.doors.matrix.scheduling import AskedDelay, Scheduling, asks_to_delay, known_send, read_own
from tarry.doors.matrix.transactions import Transactions
from tarry.doors.matrix.wire import MAX_BODY_BYTES, Answered, MatrixRequest, preflight, refused

log = logging.getLogger(__name__)

Answering = Callable[[bytes, Any, Any], bool]
"""Gets the body of a request that has come whole, and who sends it; says whether it will reply. See `serve.transport.heads`."""

_Read = Callable[[bytes], AskedDelay]
"""Reads what is asked for from a body, knowing all the rest of the request."""

MAX_DISCARDED_BYTES: Final = 64 << 20
"""Maximum bytes of a body that is too large which are read and thrown away: only then does its sender see the answer."""


class MatrixApp:
    """The application."""

    def __init__(self, parts: Parts) -> None:
        futures = Futures(parts)
        self._parts = parts
        self._futures = futures
        self._scheduling = Scheduling(parts, futures)
        self._management = Management(parts)
        self._departures = Departures(parts)
        self._paths = Paths(
            [
                *FutureBatches(parts, futures).routes,
                *self._scheduling.routes,
                *self._management.routes,
                *Lists(parts, self._management).routes,
                *Features(parts).routes,
                *Transactions(parts, self._departures).routes,
                *futures.routes,
            ]
        )
        self._send_put = self._scheduling.reused[0]
        self._proxy = Proxy(parts.homeserver, parts.settings.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            found = self._paths.find(scope["raw_path"], scope["query_string"])
            if found is None:
                await self._pass_on(scope, receive, send)
                return
            answered = await self._own(found, scope, receive)
        except Gone:
            return
        except MatrixError as error:
            answered = refused(error)
        await _respond(send, answered)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_passed_on(scope["raw_path"]) or _would_be_sent_at_once(scope):
            await _respond(send, refused(unrecognised()))
            return
        afterwards = await self._departures.watch(_request(None, scope, b"", scope.get("client")))
        status = await self._proxy(scope, receive, send)
        if afterwards is not None and 200 <= status <= 299:
            await afterwards()

    async def _own(self, found: FoundRoute, scope: Scope, receive: Receive) -> Answered:
        method = scope["method"]
        if method == "OPTIONS":
            return preflight()
        endpoint = found.route.methods.get("GET" if method == "HEAD" else method)
        try:
            if endpoint is None:
                raise unrecognised(found.route.allowed)
            body = await _read_body(receive, found.route.max_body_bytes)
            return await endpoint(_request(found, scope, body, scope.get("client")))
        except MatrixError as error:
            return refused(error)
        except TarryError as error:
            return refused(explain(error))
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - the last resort; nothing may pass it
            log.error("a request failed with %s", told(error))
            return refused(internal())

    def quick(self, scope: Scope) -> Answering | None:
        """The function that answers requests with this head that have come whole, without a task; None if they go the longer way."""
        try:
            found = self._paths.walk(scope["raw_path"])
            answering = None if found is None else self._quick_way(found, scope)
        except MatrixError:
            return None
        return None if answering is None else partial(_answer_quick, answering)

    def _quick_way(self, found: FoundRoute, scope: Scope) -> Answering | None:
        route, method = found.route, scope["method"]
        if method == "POST" and route is self._management.action and found.params[1] in QUICK:
            action = QUICK[found.params[1]]
            return partial(self._manage_quick, unquoted(found.params[0]), action, found.unstable)
        if method == "POST" and route is self._futures.by_token:
            return partial(self._act_quick, found, scope)
        if method == "PUT" and route is self._scheduling.own:
            return partial(self._schedule_quick, partial(_read_own, found, scope), scope)
        if method == "PUT" and route is self._send_put:
            room_id, type_, txn = found.params
            known = known_send(room_id, type_, scope["query_string"])
            if known is not None:
                return partial(self._schedule_quick, partial(known.with_content, unquoted(txn)), scope)
        return None

    def _manage_quick(
        self, delay_id: str, action: str, unstable: bool, _body: bytes, _client: Any, reply: Any
    ) -> bool:
        return self._management.quick(delay_id, action, unstable, reply)

    def _act_quick(self, found: FoundRoute, scope: Scope, body: bytes, client: Any, reply: Any) -> bool:
        if len(body) > MAX_BODY_BYTES:
            return False
        return self._futures.act_quick(_request(found, scope, body, client), reply)

    def _schedule_quick(self, read: _Read, scope: Scope, body: bytes, _client: Any, reply: Any) -> bool:
        authorization = dict(scope["headers"]).get(b"authorization")
        account = self._parts.accounts.cached(authorization, scope["query_string"])
        if account is None or len(body) > MAX_BODY_BYTES or not self._scheduling.has_room(account):
            return False
        self._scheduling.quick(account, read(body), reply)
        return True


def _read_own(found: FoundRoute, scope: Scope, body: bytes) -> AskedDelay:
    return read_own(_request(found, scope, body, None))


def _answer_quick(answering: Answering, body: bytes, client: Any, reply: Any) -> bool:
    try:
        return answering(body, client, reply)
    except (MatrixError, TarryError):
        # The longer way says what is wrong.
        return False
    except Exception as error:  # noqa: BLE001 - the last resort; nothing may pass it
        log.error("a request failed with %s", told(error))
        reply(*refused(internal()))
        return True


def _would_be_sent_at_once(scope: Scope) -> bool:
    """Whether a request asks for a delay at a path that is not quite ours: who knows what a homeserver makes of it."""
    if scope["method"] not in ("PUT", "POST") or b"/rooms/" not in unquote_to_bytes(scope["raw_path"]):
        return False
    return asks_to_delay(scope["query_string"])


def _request(found: FoundRoute | None, scope: Scope, body: bytes, client: Any) -> MatrixRequest:
    return MatrixRequest(
        method=scope["method"],
        path=scope["raw_path"],
        params=() if found is None else tuple([unquoted(part) for part in found.params]),
        raw_query=scope["query_string"],
        headers=dict(scope["headers"]),
        body=body,
        peer="" if client is None else str(client[0]),
        unstable=found is not None and found.unstable,
    )


async def _read_body(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Gone
        piece = event.get("body", b"")
        size += len(piece)
        if size <= limit:
            pieces.append(piece)
        if not event.get("more_body", False) or size > limit + MAX_DISCARDED_BYTES:
            break
    if size > limit:
        raise MatrixError(413, "M_TOO_LARGE", f"The body has more than {limit} bytes.")
    return b"".join(pieces)


async def _respond(send: Send, answered: Answered) -> None:
    status, headers, body = answered
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
