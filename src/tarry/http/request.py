"""A request as endpoints see it: the head, and the body, whole or as a stream."""

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from tarry.core.tenants.access import ANYBODY, Caller
from tarry.http.errors import BodyTooLarge, BodyTooSlow, Gone, PathNotText
from tarry.http.head import Fields, Head

MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a body that is too large which are read and thrown away: a client that is cut off while it
still sends seldom gets to see the answer that says why."""
MAX_HELD_BYTES: Final = 64 * 1024
"""Bytes of a streamed body that are read ahead of its endpoint, and one read of the socket."""


class Request:
    """One request. Its connection fills in the body before the endpoint is called, or the stream."""

    __slots__ = ("body", "caller", "fields", "gone", "method", "on_gone", "params", "path", "peer", "query", "scheme", "stream")  # fmt: skip

    def __init__(self, head: Head, peer: str = "", scheme: str = "http") -> None:
        self.method = head.method
        self.path = head.path
        """As it was sent, still quoted."""
        self.query = head.query
        self.fields: Fields = head.fields
        self.peer = peer
        """The address at the other end of the connection."""
        self.scheme = scheme
        self.body = b""
        """The whole body, for endpoints that take one."""
        self.stream: BodyStream = NO_STREAM
        self.params: Any = ()
        """The open parts of the path, by name, as the application's routes have found them."""
        self.caller: Caller = ANYBODY
        """The sender, once the application has let it in."""
        self.gone = False
        """Whether the client has left."""
        self.on_gone: Callable[[], object] | None = None
        """Called when the client leaves, where an endpoint waits for something else than the client."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All fields of the head, names in lower case."""
        return self.fields.headers

    def header(self, name: bytes) -> bytes | None:
        """The field of a name; the last, if there are several."""
        return self.fields.by_name.get(name)

    @property
    def media_type(self) -> bytes:
        """The type that the body is said to have, without its parameters; empty if nothing is said."""
        return self.fields.by_name.get(b"content-type", b"").partition(b";")[0].strip().lower()

    @property
    def bearer(self) -> bytes | None:
        """The bearer token of the sender, if it shows one."""
        return bearer_in(self.fields.by_name.get(b"authorization", b""))

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body, be it empty."""
        return self.fields.chunked or b"content-length" in self.fields.by_name

    @property
    def target(self) -> str:
        """The path and the query, as they were sent."""
        return (self.path + b"?" + self.query if self.query else self.path).decode("latin-1")

    def left(self) -> None:
        """The client has gone."""
        self.gone = True
        self.stream.fail(Gone())
        if self.on_gone is not None:
            self.on_gone()


class BodyStream:
    """A body that its endpoint reads piece by piece. Nothing is read from the client while enough is held."""

    __slots__ = ("_error", "_held", "_on_read", "_waiter", "announced", "ended", "waits_since_s")

    def __init__(self, on_read: Callable[[], object], announced: int = 0) -> None:
        """`on_read` is called when the endpoint wants more; `announced` is the length, where the head says one."""
        self.announced = announced
        self._on_read = on_read
        self._held = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.ended = False
        self.waits_since_s: float | None = None
        """Since when the endpoint waits for the client."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be read from the client for now."""
        return len(self._held) > MAX_HELD_BYTES

    def feed(self, piece: bytes) -> None:
        """A piece has come."""
        self._held += piece
        self._wake()

    def end(self) -> None:
        """The body has come to its end."""
        self.ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more will come."""
        self._error = error
        self._wake()

    def check_time(self, now_s: float, limit_s: float) -> None:
        """Have the endpoint told if it has waited for the client for too long."""
        if self.waits_since_s is not None and now_s - self.waits_since_s > limit_s:
            self.fail(BodyTooSlow())

    async def read(self, since_s: float | None = None) -> bytes:
        """The next piece; nothing at the end of the body. Raises `Gone`, and `BodyTooSlow`.

        `since_s`: when the time began in which it has to come, if that is not now.
        """
        while not self._held and not self.ended and self._error is None:
            self.waits_since_s = time.monotonic() if since_s is None else since_s
            self._waiter = asyncio.get_running_loop().create_future()
            self._on_read()
            try:
                await self._waiter
            finally:
                self._waiter = self.waits_since_s = None
        if self._error is not None:
            raise self._error
        piece = bytes(self._held)
        self._held.clear()
        self._on_read()
        return piece

    async def read_all(self, limit: int) -> list[bytes]:
        """All pieces up to the end, within the time of one; raises `BodyTooLarge` for more bytes than the limit."""
        began_s = time.monotonic()
        if self.announced > limit + MAX_DISCARDED_BYTES:
            raise BodyTooLarge(limit, cut_short=True)
        pieces: list[bytes] = []
        size = 0
        while piece := await self.read(began_s):
            size += len(piece)
            if size > limit:
                pieces.clear()
                if size > limit + MAX_DISCARDED_BYTES:
                    raise BodyTooLarge(limit, cut_short=True)
            else:
                pieces.append(piece)
        if size > limit:
            raise BodyTooLarge(limit)
        return pieces

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _NoStream(BodyStream):
    """The stream of a request whose endpoint takes the body whole, or none."""

    def fail(self, error: Exception) -> None:
        """There is no reader to tell."""


NO_STREAM: Final = _NoStream(lambda: None)


def bearer_in(authorization: bytes) -> bytes | None:
    """The token in an `Authorization` field (RFC 6750, 2.1); None for another scheme."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def unquoted(part: bytes) -> str:
    """A part of a path as text; raises `PathNotText`."""
    try:
        return _unquote(part) if b"%" in part else part.decode()
    except UnicodeDecodeError:
        raise PathNotText from None


@lru_cache(maxsize=8_192)
def _unquote(part: bytes) -> str:
    """Rooms come again and again, and always with percent signs."""
    return unquote_to_bytes(part).decode()
