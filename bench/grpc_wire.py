"""gRPC calls as bytes, built without a library, and the end of an answer recognised: see `wire.py`."""

from collections.abc import Iterator

from bench.wire import Refused
from tarry.grpc import frames
from tarry.grpc.frames import END_HEADERS, END_STREAM, frame
from tarry.grpc.hpack import written


def greeting() -> bytes:
    """The first bytes of a client; they let the server send as much as it likes."""
    windows = frames.settings((frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW_BYTES))
    more = frames.MAX_WINDOW_BYTES - frames.FIRST_WINDOW_BYTES
    return frames.PREFACE + windows + frames.number(frames.WINDOW_UPDATE, 0, more)


def calls(path: str, message: bytes) -> Iterator[bytes]:
    """Calls of a method, each with the next number: connections that share them see increasing ones."""
    block = written(
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"127.0.0.1"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    data = b"\0" + len(message).to_bytes(4, "big") + message
    for stream in range(1, 1 << 31, 2):
        yield frame(frames.HEADERS, END_HEADERS, stream, block) + frame(frames.DATA, END_STREAM, stream, data)


class GrpcReply:
    """Implements `Reply`: an answer ends with the fields that end its stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """See `Reply`."""
        data = self._rest + data
        at = 0
        ended = False
        while len(data) - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == frames.HEADERS and flags & END_STREAM:
                if b"\x0bgrpc-status\x010" not in data[at:stop]:
                    raise Refused(repr(data[at:stop]))
                ended = True
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise Refused(repr(data[at:stop]))
            at = stop
        self._rest = data[at:]
        return ended
