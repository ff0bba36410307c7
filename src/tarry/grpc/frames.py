"""The frames of HTTP/2 (RFC 9113): cutting a stream of bytes into them, and building them. Pure."""

from collections.abc import Generator
from enum import IntEnum
from struct import Struct as Layout
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every client."""
MAX_FRAME_BYTES: Final = 16_384
"""The largest frame, for both ends: the size that holds if nothing is said."""
FIRST_WINDOW_BYTES: Final = 65_535
"""How much may be sent before the other end says more."""
MAX_WINDOW_BYTES: Final = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_HEAD: Final = Layout(">BHBBI")
_SETTING: Final = Layout(">HI")
Http2Frame = tuple[int, int, int, bytes]
"""Its kind, flags, stream and payload."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):
    """An error of the connection: it ends with this code and reason."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamBroken(Exception):
    """Frames of one stream that break the protocol: that stream ends with this code, and no other."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Http2Frames:
    """Cuts what a client sends into frames, however it comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> Generator[Http2Frame]:
        """Each whole frame; raises `Broken` at the first that is malformed. Frames that are not taken come with the next bytes."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        if not self._begun:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise Broken(
                    ErrorCode.PROTOCOL_ERROR, "a connection begins with the preface of HTTP/2 (RFC 9113 §3.4)"
                )
            if end < len(PREFACE):
                self._rest = data
                return
            self._begun = True
            at = len(PREFACE)
        try:
            while end - at >= 9:
                high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
                size = high << 16 | low
                if size > MAX_FRAME_BYTES:
                    raise Broken(
                        ErrorCode.FRAME_SIZE_ERROR,
                        f"a frame of {size} bytes; the largest is {MAX_FRAME_BYTES}",
                    )
                stop = at + 9 + size
                if stop > end:
                    break
                payload, at = data[at + 9 : stop], stop
                yield kind, flags, stream & MAX_WINDOW_BYTES, payload
        finally:
            self._rest = data[at:]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def headers(flags: int, stream: int, block: bytes) -> bytes:
    """A block of fields, in as many frames as it needs."""
    if len(block) <= MAX_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    return b"".join(
        (
            frame(HEADERS, flags, stream, pieces[0]),
            *(frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]),
            frame(CONTINUATION, END_HEADERS, stream, pieces[-1]),
        )
    )


def unpadded(flags: int, stream: int, payload: bytes) -> bytes:
    """The content of a DATA or HEADERS frame without its padding and its place among others; raises `Broken`."""
    start, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Broken(
                ErrorCode.FRAME_SIZE_ERROR,
                "a padded frame begins with the length of its padding (RFC 9113 §6.1)",
            )
        start, stop = 1, stop - payload[0]
    place = start
    if flags & PRIORITISED:
        start += 5
    if start > stop:
        raise Broken(ErrorCode.PROTOCOL_ERROR, "padding is shorter than its frame (RFC 9113 §6.1)")
    if flags & PRIORITISED:
        check_dependency(stream, payload[place:start])
    return payload[start:stop]


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


def number_of(payload: bytes) -> int:
    """The number that is all a WINDOW_UPDATE or RST_STREAM says; raises `Broken`."""
    if len(payload) != 4:
        raise Broken(
            ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE and RST_STREAM carry 4 bytes (RFC 9113 §6.4, §6.9)"
        )
    return int.from_bytes(payload, "big")


def check_dependency(stream: int, place: bytes) -> None:
    """Raise `Broken` where a stream is placed behind itself."""
    if int.from_bytes(place[:4], "big") & MAX_WINDOW_BYTES == stream:
        raise Broken(ErrorCode.PROTOCOL_ERROR, "a stream cannot depend on itself (RFC 7540 §5.3.1)")


def number(kind: int, stream: int, value: int) -> bytes:
    """A WINDOW_UPDATE or RST_STREAM frame."""
    return frame(kind, 0, stream, value.to_bytes(4, "big"))
