"""HTTP/1.1 as the clients speak it, without I/O: requests as bytes, and the bytes of an answer read piece by piece.

Both clients are thin shells around this. A connection has one request under way at a time; a body has a
length, comes in chunks, or goes on to the end of the connection (RFC 9112 §6.3).
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from tarry.core.errors import Invalid

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_CHUNK_LINE_BYTES: Final = 4096
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;|$)")


class BadAnswer(Exception):
    """Bytes that are not an answer in HTTP/1.1."""


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent; raises `Invalid` for a value that would end its line."""
    lines = []
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise Invalid(name, "is not made of printable ASCII characters")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


def request(method: str, target: str, headers: bytes, body: bytes) -> bytes:
    """A whole request; `headers` are complete lines."""
    length = b"content-length: %d\r\n" % len(body) if body or method in ("POST", "PUT") else b""
    return b"%b %b HTTP/1.1\r\n%b%b\r\n%b" % (method.encode(), target.encode("ascii"), headers, length, body)


class _Part(Enum):
    HEAD = auto()
    COUNTED = auto()
    """A body of known length, or none."""
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    TO_THE_END = auto()
    """A body that ends with the connection."""
    DONE = auto()


class AnswerReader:
    """Reads one answer."""

    __slots__ = ("_buffer", "_left", "_part", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the head has come."""
        self.headers: dict[str, str] = {}
        """With names in lower case."""
        self.keep_alive = False
        """Whether the connection may be used again after this answer."""
        self._part = _Part.HEAD
        self._buffer = b""
        self._left = 0

    def is_done(self) -> bool:
        """Whether the answer is complete."""
        return self._part is _Part.DONE

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the connection; gives the part of the body that is in them. Raises `BadAnswer`."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._part is _Part.HEAD:
            end = data.find(b"\r\n\r\n")
            while end >= 0 and not self._read_head(data[:end]):
                # An interim answer, such as 100 (Continue).
                data = data[end + 4 :]
                end = data.find(b"\r\n\r\n")
            if end < 0:
                return self._keep(data, MAX_HEAD_BYTES)
            data = data[end + 4 :]
        if self._part is _Part.COUNTED:
            return self._read_counted(data)
        if self._part is _Part.TO_THE_END:
            return data
        return self._read_chunks(data)

    def end(self) -> None:
        """The connection has ended; raises `BadAnswer` if the answer has not."""
        if self._part is _Part.TO_THE_END:
            self._part = _Part.DONE
        elif self._part is not _Part.DONE:
            raise BadAnswer("the connection ended in the middle of an answer")

    def _read_head(self, head: bytes) -> bool:
        """Read a head; whether it is that of the final answer."""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isascii() or not code.isdigit():
            raise BadAnswer(f"not an answer in HTTP/1.1: {first[:100]!r}")
        if code < "200" and code != "101":
            return False
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise BadAnswer(f"not a header: {line[:100]!r}")
            headers[name.lower()] = value.strip()
        self.status, self.headers = int(code), headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
        coding = headers.get("transfer-encoding", "").lower()
        if self.status in (204, 304):
            self._part = _Part.DONE
        elif coding:
            if coding != "chunked":
                raise BadAnswer(f"a transfer-encoding that was not asked for: {coding[:100]!r}")
            self._part = _Part.CHUNK_LINE
        elif (length := headers.get("content-length")) is not None:
            if not length.isascii() or not length.isdigit():
                raise BadAnswer(f"not a content-length: {length[:100]!r}")
            self._left = int(length)
            self._part = _Part.COUNTED
        else:
            self.keep_alive = False
            self._part = _Part.TO_THE_END
        return True

    def _read_counted(self, data: bytes) -> bytes:
        body = data if len(data) <= self._left else data[: self._left]
        self._left -= len(body)
        if not self._left:
            self._finish(len(data) - len(body))
        return body

    def _read_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        at = 0
        while self._part is not _Part.DONE:
            if self._part is _Part.CHUNK:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return b"".join(body)
                self._part = _Part.CHUNK_END
            end = data.find(b"\r\n", at)
            if end < 0:
                self._keep(data[at:], MAX_CHUNK_LINE_BYTES)
                return b"".join(body)
            self._read_line(data[at:end])
            at = end + 2
        self._finish(len(data) - at)
        return b"".join(body)

    def _read_line(self, line: bytes) -> None:
        if self._part is _Part.CHUNK_END:
            if line:
                raise BadAnswer("a chunk is longer than it says")
            self._part = _Part.CHUNK_LINE
        elif self._part is _Part.TRAILER:
            if not line:
                self._part = _Part.DONE
        else:
            size = _CHUNK_SIZE.match(line)
            if size is None:
                raise BadAnswer(f"not the size of a chunk: {line[:100]!r}")
            self._left = int(size[1], 16)
            self._part = _Part.CHUNK if self._left else _Part.TRAILER

    def _finish(self, surplus: int) -> None:
        self._part = _Part.DONE
        if surplus:
            # Bytes that nobody asked for must not be taken for the next answer.
            self.keep_alive = False

    def _keep(self, data: bytes, limit: int) -> bytes:
        if len(data) > limit:
            raise BadAnswer("the head of an answer is too long")
        self._buffer = data
        return b""
