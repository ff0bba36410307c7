"""Streams of HTTP/2 frames that no decent client sends: each nearly right, or right at the wrong place."""

from typing import Final

from tarry.grpc import frames
from tarry.grpc.frames import frame
from tarry.grpc.hpack import written
from tests.fuzz.values import Values

MOST_BYTES: Final = frames.MAX_FRAME_BYTES
STREAMS: Final = (0, 1, 1, 1, 3, 5, 7, 2, (1 << 31) - 1)


def garbage(values: Values, path: str) -> bytes:
    """All that is said on one connection."""
    said = frames.PREFACE + frames.settings(*_settings(values))
    said += b"".join(_one(values, path) for _ in range(values.one(1, 3, 10, 100)))
    return values.mutated(said) if values.chance(0.3) else said


def _settings(values: Values) -> list[tuple[int, int]]:
    numbers = (0, 1, 100, (1 << 16) - 1, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
    count = values.one(0, 0, 1, 5, 300)
    return [(values.one(0, 1, 2, 3, 4, 4, 5, 6, 8, 99), values.one(*numbers)) for _ in range(count)]


def _one(values: Values, path: str) -> bytes:
    """One frame, or a few that belong together."""
    stream = values.one(*STREAMS, 2 * values.random.randrange(1_000) + 1)
    flags = values.one(0, 0, 1, 4, 5, 8, 0x20, 0xFF)
    match values.random.randrange(11):
        case 0 | 1 | 2:
            return _call(values, path, stream)
        case 3:
            return frame(frames.HEADERS, flags, stream, values.mutated(_block(values, path))[:MOST_BYTES])
        case 4:
            block = _block(values, path)
            pieces = [frame(frames.CONTINUATION, values.one(0, 0, 0, 4), stream, values.data(300)) for _ in range(values.one(1, 5, 300))]  # fmt: skip
            return frame(frames.HEADERS, 0, stream, block[:MOST_BYTES]) + b"".join(pieces)
        case 5:
            return frame(frames.DATA, flags, stream, values.data(MOST_BYTES))
        case 6:
            return frames.number(
                frames.WINDOW_UPDATE, stream, values.one(0, 1, 1 << 16, (1 << 31) - 1, (1 << 32) - 1)
            )
        case 7:
            return frames.number(frames.RST_STREAM, stream, values.one(0, 8, 99, (1 << 32) - 1))
        case 8:
            return frame(frames.SETTINGS, flags, values.one(0, 0, stream), values.data(60)) if values.chance(0.5) else frames.settings(*_settings(values))  # fmt: skip
        case 9:
            return frame(frames.PING, values.one(0, 1), values.one(0, 0, stream), values.one(b"12345678", b"", values.data(20)))  # fmt: skip
        case _:
            return frame(values.one(2, 5, 7, 10, 255), flags, stream, values.data(100))


def _call(values: Values, path: str, stream: int) -> bytes:
    """A call with a message: of another size than it says, compressed although it is not, or cut."""
    data = values.data(values.one(100, 40_000))
    size = values.one(len(data), len(data), 0, len(data) + 1, (1 << 32) - 1)
    whole = bytes((values.one(0, 0, 0, 1, 255),)) + size.to_bytes(4, "big") + data
    ends = values.one(0, frames.END_STREAM)
    said = frames.headers(values.one(0, 0, frames.END_STREAM), stream, _block(values, path))
    for at in range(0, len(whole), MOST_BYTES):
        said += frame(
            frames.DATA, ends if at + MOST_BYTES >= len(whole) else 0, stream, whole[at : at + MOST_BYTES]
        )
    return said


def _block(values: Values, path: str) -> bytes:
    """The fields of a call, with some that do not belong there."""
    fields = [
        (b":method", values.one(b"POST", b"POST", b"GET", b"")), (b":scheme", values.one(b"http", b"http", b"x")),
        (b":path", path.encode()), (b"content-type", values.one(b"application/grpc", b"application/grpc", b"text/plain")),
        (b"te", b"trailers"),
    ]  # fmt: skip
    if values.chance(0.3):
        fields.append(
            (b"grpc-timeout", values.one(b"1S", b"0n", b"99999999H", b"-1S", b"999999999999H", b"x", b"1m"))
        )
    if values.chance(0.2):
        fields.append((b"grpc-encoding", values.one(b"gzip", b"deflate", b"identity", b"snappy", b"")))
    if values.chance(0.2):
        fields.append((b"content-length", values.one(b"0", b"5", b"-1", b"99999999999999999999", b"x")))
    if values.chance(0.2):
        fields.append((values.one(b"X-Upper", b"", b":extra", b"connection", b"x-bin"), values.data(200)))
    if values.chance(0.1):
        fields += [(b"x-%d" % n, b"v" * 20) for n in range(values.one(5, 500))]
    if values.chance(0.1):
        values.random.shuffle(fields)
    return written(*fields)
