"""The body of one request as it comes: where it ends, and whether it comes fast enough. Without I/O."""

from typing import Final

from tarry.http.chunks import ChunkReader
from tarry.http.head import Fields

BODY_SILENCE_MS: Final = 20_000
"""A request whose next bytes do not come within this is given up."""
BODY_PACE_BYTES: Final = 1024
"""A body has to come at so many bytes a second on average, beyond the time that it may be silent for."""


class IncomingBody:
    """A body that has not come to its end."""

    __slots__ = ("_chunks", "_heard_at_s", "_left", "came_bytes", "since_s")

    def __init__(self, fields: Fields, now_s: float) -> None:
        self._left = fields.length
        self._chunks = ChunkReader() if fields.chunked else None
        self.came_bytes = 0
        """Bytes that came, those of the chunked coding among them."""
        self.since_s = self._heard_at_s = now_s
        """Since when the client could have sent it."""

    @property
    def behind(self) -> bool:
        """Whether bytes that have come are yet to be read, by a `take` of nothing in a later turn."""
        return self._chunks is not None and self._chunks.behind

    def take(self, data: bytes, now_s: float) -> tuple[bytes, bytes | None]:
        """Take bytes: gives data of the body, and the bytes behind its end, or None if that has not come. Raises `BadChunk`."""
        if data:
            self._heard_at_s = now_s
            self.came_bytes += len(data)
        if self._chunks is not None:
            return self._chunks.feed(data)
        piece = data[: self._left]
        self._left -= len(piece)
        return piece, None if self._left else data[len(piece) :]

    def is_heard(self, now_s: float, *, paused: bool) -> bool:
        """Whether the client sends, and fast enough; while its bytes are not read (`paused`) it cannot."""
        if paused:
            # It is we who do not listen: its silence counts from when we do again.
            self.since_s += now_s - self._heard_at_s
            self._heard_at_s = now_s
        took_s = now_s - self.since_s - self.came_bytes / BODY_PACE_BYTES
        return max(now_s - self._heard_at_s, took_s) <= BODY_SILENCE_MS / 1000
