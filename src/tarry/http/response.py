"""Responses: whole ones, and those that are sent piece by piece."""

import time
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

Headers = Sequence[tuple[bytes, bytes]]
HeaderList = list[tuple[bytes, bytes]]
"""Headers to which more are added."""
"""Names in lower case, and values."""

STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
"""Beginnings of heads, by status."""

BODILESS: Final = frozenset((204, 304))
"""Statuses whose responses have no body and say no length (RFC 9110, 8.6)."""


class Response:
    """A whole response. The connection adds the date and the length."""

    __slots__ = ("body", "close", "headers", "status")

    def __init__(self, status: int, headers: Headers = (), body: bytes = b"", *, close: bool = False) -> None:
        """`close`: the connection ends with this response."""
        self.status = status
        self.headers = headers
        self.body = body
        self.close = close


class Sender(Protocol):
    """The connection as a streamed response uses it. The head goes out with the first piece."""

    begun: bool
    """Whether the head is sent: an error that comes later can only end the connection."""

    async def write(self, piece: bytes) -> None:
        """Send a piece; returns when the client has taken enough of those before. Raises `Gone`."""


class Streamed:
    """A response that `run` sends piece by piece.

    What `run` raises before its first piece is refused like any other error. After that the connection ends, so that
    the client sees that the response is not whole.
    """

    __slots__ = ("headers", "run", "status")

    def __init__(self, status: int, headers: Headers, run: Callable[[Sender], Awaitable[None]]) -> None:
        self.status = status
        self.headers = headers
        self.run = run


def status_line(status: int) -> bytes:
    """The first line of a response; a status that nobody has registered has no phrase."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Dates:
    """The `date` field of responses, written once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._field = b""

    def field(self) -> bytes:
        """The field for a response that is sent now."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._field = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._field


date_field: Final = Dates().field
"""The `date` field of a response that is sent now."""
