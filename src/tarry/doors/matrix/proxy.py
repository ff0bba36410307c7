"""The proxy: a request that is not Tarry's own goes to the homeserver, byte for byte and as it comes, and so does the answer.

Both directions stream, so that an upload or a long poll costs no memory; the path, the query and the `Host` stay as
they were sent, so that signatures of other servers hold. Dropped are the headers that are meant for one connection only,
and those in which a client could pretend to be another: the homeserver is told of addresses that our own proxies saw.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from posixpath import normpath
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import believed_way, is_trusted
from tarry.http.errors import Gone
from tarry.http.passing import end_to_end, relayed
from tarry.http.request import Request
from tarry.http.response import Streamed
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver

PREFIXES: Final = (b"/_matrix/", b"/_synapse/client/", b"/.well-known/matrix/")
"""Prefixes of paths that are passed on. The homeserver's administration is not: it is nobody's business on this port."""

_ADDRESSES: Final = frozenset({b"x-forwarded-for", b"x-real-ip", b"forwarded"})
"""Headers about the sender's address: only the first is passed on, and only as far as it is believed."""
_BY_PROXIES: Final = frozenset({b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port"})
"""Further fields of a reverse proxy about a request: believed if it is one of our own."""


class Proxy:
    """Passes requests on."""

    def __init__(self, homeserver: Homeserver, trusted: tuple[str, ...]) -> None:
        """`trusted` are the addresses of our own reverse proxies."""
        self._homeserver = homeserver
        self._trusted = trusted

    async def pass_on(self, request: Request, done: Callable[[], Awaitable[None]] | None = None) -> Streamed:
        """The homeserver's response, to be sent as it comes. `done` is called before that if the request succeeded."""
        task = asyncio.current_task()
        assert task is not None
        request.on_gone = task.cancel
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self._homeserver.stream(
                        request.method,
                        request.target,
                        request_headers(request, self._trusted),
                        _pieces(request) if request.has_body else None,
                    )
                )
            except FAILURES:
                raise MatrixError(502, "M_UNKNOWN", "The homeserver cannot be reached.") from None
            if done is not None and 200 <= response.status <= 299:
                await _to_its_end(request, done)
            exchange = stack.pop_all()
        return relayed(response.status, response.raw_headers, response.content.iter_any(), exchange, FAILURES)


async def _to_its_end(request: Request, done: Callable[[], Awaitable[None]]) -> None:
    """Do what follows from a request, whether its sender waits for the response or not."""
    leave, request.on_gone = request.on_gone, None
    await done()
    if request.gone:
        raise Gone
    request.on_gone = leave


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    while piece := await request.stream.read():
        yield piece


def request_headers(request: Request, trusted: tuple[str, ...]) -> list[tuple[str, str]]:
    """The headers for the homeserver."""
    peer, fields = request.peer, request.headers
    dropped = _ADDRESSES if is_trusted(peer, trusted) else _ADDRESSES | _BY_PROXIES
    kept = _as_text(end_to_end(fields, dropped))
    if peer:
        told = [value.decode("latin-1") for name, value in fields if name == b"x-forwarded-for"]
        kept.append(("x-forwarded-for", ", ".join(believed_way(peer, ",".join(told), trusted))))
    if all(name != "x-forwarded-proto" for name, _ in kept):
        kept.append(("x-forwarded-proto", request.scheme))
    return kept


def _as_text(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, Any]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]


def is_passed_on(raw_path: bytes) -> bool:
    """Whether a path is under the prefixes, also where a server resolves dots, quoted or not, or backslashes."""
    read = normpath(unquote_to_bytes(raw_path).replace(b"\\", b"/"))
    return raw_path.startswith(PREFIXES) and (read + b"/").startswith(PREFIXES)
