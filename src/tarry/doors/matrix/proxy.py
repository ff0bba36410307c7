"""The proxy: a request that is not Tarry's own goes to the homeserver, byte for byte and as it comes, and so does the answer.

Both directions stream, so that an upload or a long poll costs no memory; the path, the query and the `Host` stay as
they were sent, so that signatures of other servers hold. Dropped are the headers that are meant for one connection only,
and those in which a client could pretend to be another: the homeserver is told of addresses that our own proxies saw.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from posixpath import normpath
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import believed_way, is_trusted, refused
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIXES: Final = (b"/_matrix/", b"/_synapse/client/", b"/.well-known/matrix/")
"""Prefixes of paths that are passed on. The homeserver's administration is not: it is nobody's business on this port."""

ONE_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
_ADDRESSES: Final = frozenset({b"x-forwarded-for", b"x-real-ip", b"forwarded"})
"""Headers about the sender's address: only the first is passed on, and only as far as it is believed."""
_BY_PROXIES: Final = frozenset({b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port"})
"""Further fields of a reverse proxy about a request: believed if it is one of our own."""
_OWN_DATE: Final = b"date"
"""The listener dates every answer."""


class Gone(Exception):
    """The client has gone; there is nobody to answer."""


class Proxy:
    """Passes requests on."""

    def __init__(self, homeserver: Homeserver, trusted: tuple[str, ...]) -> None:
        """`trusted` are the addresses of our own reverse proxies."""
        self._homeserver = homeserver
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Pass one request on; gives the status of the answer, or 0 if the client did not wait for it."""
        client = _Client(scope, receive, send, request_headers(scope, self._trusted))
        relaying = asyncio.create_task(self._relay(client))
        watching = asyncio.create_task(client.until_gone())
        try:
            await asyncio.wait({relaying, watching}, return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                return relaying.result()
            return 0
        finally:
            for task in (relaying, watching):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _relay(self, client: "_Client") -> int:
        try:
            async with self._homeserver.stream(
                client.method, client.target, client.headers, client.body() if client.has_body else None
            ) as response:
                await client.begin(response.status, response.raw_headers)
                async for piece in response.content.iter_any():
                    await client.more(piece)
                await client.end()
                return int(response.status)
        except Gone:
            return 0
        except FAILURES:
            if client.begun:
                # What has been sent cannot be taken back: an answer that ends too soon is seen to be broken.
                raise
            error = MatrixError(502, "M_UNKNOWN", "The homeserver cannot be reached.")
            await client.answer(*refused(error))
            return 502


class _Client:
    """The client's end of a request that is passed on."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, headers: list[tuple[str, str]]) -> None:
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        self.target = target_of(scope)
        self.headers = headers
        names = {name for name, _ in scope["headers"]}
        self.has_body = b"transfer-encoding" in names or b"content-length" in names
        self.begun = False
        self._taken = asyncio.Event()
        """The whole body was read: from here on the next thing that comes is the client's leaving."""
        if not self.has_body:
            self._taken.set()

    async def body(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Gone
            if piece := event.get("body", b""):
                yield piece
            if not event.get("more_body", False):
                self._taken.set()
                return

    async def until_gone(self) -> None:
        """Return when the client has gone."""
        await self._taken.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Any) -> None:
        """Send the beginning of the answer."""
        self.begun = True
        await self._send(
            {"type": "http.response.start", "status": status, "headers": response_headers(headers)}
        )

    async def more(self, piece: bytes) -> None:
        """Send a piece of the answer."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """The answer is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer instead of the homeserver."""
        headers.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def target_of(scope: Scope) -> str:
    """The path and the query, as they were sent."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return (path + b"?" + query if query else path).decode("latin-1")


def request_headers(scope: Scope, trusted: tuple[str, ...]) -> list[tuple[str, str]]:
    """The headers for the homeserver."""
    peer = "" if scope.get("client") is None else str(scope["client"][0])
    dropped = ONE_HOP | _named_by_connection(scope["headers"]) | _ADDRESSES
    if not is_trusted(peer, trusted):
        dropped |= _BY_PROXIES
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in dropped
    ]
    if peer:
        told = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        kept.append(("x-forwarded-for", ", ".join(believed_way(peer, ",".join(told), trusted))))
    if all(name != "x-forwarded-proto" for name, _ in kept):
        kept.append(("x-forwarded-proto", str(scope.get("scheme", "http"))))
    return kept


def is_passed_on(raw_path: bytes) -> bool:
    """Whether a path is under the prefixes, also for whoever resolves dots, quoted ones too, or takes backslashes for slashes."""
    read = normpath(unquote_to_bytes(raw_path).replace(b"\\", b"/"))
    return raw_path.startswith(PREFIXES) and (read + b"/").startswith(PREFIXES)


def response_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """The headers for the client."""
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = ONE_HOP | _named_by_connection(lowered) | {_OWN_DATE}
    return [(name, value) for name, value in lowered if name not in dropped]


def _named_by_connection(headers: Any) -> set[bytes]:
    """Further headers that are meant for this connection only."""
    return {
        one.strip().lower() for name, value in headers if name == b"connection" for one in value.split(b",")
    }
