"""A client of HTTP/2 without any I/O: frames in, frames out, on the connection as a protocol object."""

from collections.abc import Callable
from typing import Any

from tarry.grpc import frames
from tarry.grpc.call import Call, Streaming, Unary, opening
from tarry.grpc.connection import GrpcConnection
from tarry.grpc.frames import END_HEADERS, END_STREAM, MAX_FRAME_BYTES, Http2Frame, frame
from tarry.grpc.hpack import BlockReader, written

CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test/Echo"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def message(data: bytes, compressed: bool = False) -> bytes:
    """A message as gRPC has it on a stream."""
    return bytes((compressed,)) + len(data).to_bytes(4, "big") + data


class Echo:
    """A service: what came goes back, unless it is held."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, bytes]] = []
        self.hold = False

    def admit(self, call: Call) -> None:
        """Everybody is let in."""

    def unary(self, path: str) -> Unary | None:
        return self._echo if path == "/test/Echo" else None

    def streaming(self, path: str) -> Streaming | None:
        return self._echo_all if path == "/test/EchoAll" else None

    def _echo(self, call: Call, data: bytes) -> None:
        self.calls.append((call, data))
        if not self.hold:
            call.answer(data, (("told", "yes"),))

    async def _echo_all(self, call: Call) -> None:
        while (data := await call.read()) is not None:
            await call.write(data)


class Client:
    """One connection, and what came back on it."""

    def __init__(self, service: Any = None, max_streams: int = 10, max_bytes: int = 1 << 20) -> None:
        self.service = service or Echo()
        self.closed = False
        self.got: list[Http2Frame] = []
        self._sent = b""
        self._soon: list[Callable[[], None]] = []
        self._fields = BlockReader(1 << 20)
        self.connection = GrpcConnection(self, opening(self.service, max_bytes), max_streams, 2 * max_bytes)

    # What the connection writes to

    def write(self, data: bytes) -> None:
        assert not self.closed
        self._sent += data
        while len(self._sent) >= 9 and len(self._sent) >= 9 + int.from_bytes(self._sent[:3], "big"):
            stop = 9 + int.from_bytes(self._sent[:3], "big")
            head, self._sent = self._sent[:stop], self._sent[stop:]
            self.got.append((head[3], head[4], int.from_bytes(head[5:9], "big"), head[9:]))

    def close(self) -> None:
        self.closed = True

    def soon(self, work: Callable[[], None]) -> None:
        self._soon.append(work)

    # What a client says

    def begin(self) -> "Client":
        self.tell(frames.PREFACE + frames.settings())
        return self

    def tell(self, data: bytes) -> None:
        """Send bytes, and let as many turns of the loop end as they take."""
        self.connection.receive(data)
        self.rest()
        while self.connection.behind:
            self.connection.receive(b"")
            self.rest()

    def rest(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def call(self, stream: int, data: bytes, fields: tuple[tuple[bytes, bytes], ...] = CALL) -> None:
        """Make a call with one message."""
        whole = message(data)
        self.tell(frame(frames.HEADERS, END_HEADERS, stream, written(*fields)))
        for at in range(0, len(whole), MAX_FRAME_BYTES):
            last = at + MAX_FRAME_BYTES >= len(whole)
            piece = whole[at : at + MAX_FRAME_BYTES]
            self.tell(frame(frames.DATA, END_STREAM if last else 0, stream, piece))

    # What came back

    def of(self, kind: int, stream: int | None = None) -> list[bytes]:
        """The payloads of all frames of one kind."""
        return [one[3] for one in self.got if one[0] == kind and stream in (None, one[2])]

    def data(self, stream: int) -> bytes:
        return b"".join(self.of(frames.DATA, stream))

    def fields(self, stream: int) -> dict[str, str]:
        """All fields that came on a stream."""
        blocks = b"".join(one[3] for one in self.got if one[0] in (1, 9) and one[2] == stream)
        return {name.decode(): value.decode() for name, value in self._fields.read(blocks)}

    def ended(self, stream: int) -> bool:
        return any(one[2] == stream and one[0] == frames.HEADERS and one[1] & END_STREAM for one in self.got)

    def goodbye(self) -> tuple[int, str] | None:
        """The code and reason with which the connection ended."""
        found = self.of(frames.GOAWAY)
        return (int.from_bytes(found[0][4:8], "big"), found[0][8:].decode()) if found else None
