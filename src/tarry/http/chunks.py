"""The chunked coding of bodies (RFC 9112, 7.1), read strictly: a body that two readers could take for two lengths is refused."""

import re
from typing import Final

from tarry.http.errors import BadChunk

CHUNKS_AT_ONCE: Final = 2_000
"""Chunks that are read in one turn of the loop: they may be of one byte each."""
MAX_LINE_BYTES: Final = 1_024
"""Maximum bytes of the line before a chunk; its extensions are ignored."""
MAX_TRAILER_BYTES: Final = 8 * 1024
"""Maximum bytes of fields behind the last chunk; they are ignored."""

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_END: Final = b"\r\n"


class ChunkReader:
    """Reads one body, however it comes."""

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the present chunk that have not come."""
        self._closes = False
        """Whether the end of a chunk's line is due: its data has come."""
        self._trailer_bytes = -1
        """Bytes of the fields behind the last chunk; -1 before them."""
        self._kept = b""
        self.behind = False
        """Whether bytes that have come are yet to be read, by a `feed` of nothing in a later turn."""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Read on: gives data of the body, and the bytes behind its end, or None if that has not come. Raises `BadChunk`."""
        data, self._kept, self.behind = self._kept + data, b"", False
        found, at = bytearray(), 0
        for _ in range(CHUNKS_AT_ONCE):
            if self._left:
                piece = data[at : at + self._left]
                found += piece
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return bytes(found), None
                self._closes = True
            line_end = data.find(_END, at)
            if line_end < 0:
                self._keep(data[at:])
                return bytes(found), None
            line, at = data[at:line_end], line_end + 2
            if self._take_line(line):
                return bytes(found), data[at:]
        self._kept, self.behind = data[at:], True
        return bytes(found), None

    def _keep(self, part: bytes) -> None:
        """Keep the beginning of a line until its end comes."""
        most = 1 if self._closes else MAX_LINE_BYTES if self._trailer_bytes < 0 else MAX_TRAILER_BYTES
        if len(part) > most:
            raise BadChunk("a line of a chunked body is longer than its limit")
        self._kept = part

    def _take_line(self, line: bytes) -> bool:
        """Take the line that ends a chunk, begins one or is a field behind the last; whether the body has ended."""
        if self._closes:
            if line:
                raise BadChunk("a chunk ends after its size with CRLF (RFC 9112 §7.1)")
            self._closes = False
        elif self._trailer_bytes >= 0:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > MAX_TRAILER_BYTES or b"\n" in line or b"\r" in line:
                raise BadChunk(
                    "trailers are longer than their limit, or have bare line ends (RFC 9112 §7.1.2)"
                )
            return not line
        else:
            size = _SIZE.fullmatch(line) if len(line) <= MAX_LINE_BYTES else None
            if size is None:
                raise BadChunk("a chunk begins with its size (RFC 9112 §7.1)")
            self._left = int(size[1], 16)
            if not self._left:
                self._trailer_bytes = 0
        return False
