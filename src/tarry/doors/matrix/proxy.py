"""What is not Tarry's own goes to the homeserver, byte for byte and as it comes, and so do the answers.

Both directions stream, so that an upload or a long poll costs no memory; the path, the query and the `Host` stay as
they were sent, so that signatures of other servers hold. Dropped are the headers that are meant for one connection only;
`X-Forwarded-For` gets the address of the client.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import refused
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIXES: Final = (b"/_matrix/", b"/_synapse/client/", b"/.well-known/matrix/")
"""What is passed on. The homeserver's administration is not: it is nobody's business on this port."""

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
_OWN_DATE: Final = b"date"
"""The listener dates every answer."""


class Gone(Exception):
    """The client has gone; there is nobody to answer."""


class Proxy:
    """Passes requests on."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Pass one request on; gives the status of the answer, or 0 if the client did not wait for it."""
        client = _Client(scope, receive, send)
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

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        self.target = target_of(scope)
        self.headers = request_headers(scope)
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


def request_headers(scope: Scope) -> list[tuple[str, str]]:
    """The headers for the homeserver."""
    dropped = ONE_HOP | _named_by_connection(scope["headers"]) | {b"x-forwarded-for"}
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in dropped
    ]
    hops = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    if scope.get("client") is not None:
        hops.append(str(scope["client"][0]))
    if hops:
        kept.append(("x-forwarded-for", ", ".join(hops)))
    if all(name != b"x-forwarded-proto" for name, _ in scope["headers"]):
        kept.append(("x-forwarded-proto", str(scope.get("scheme", "http"))))
    return kept


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
