"""HTTP/1.1 at every listener that speaks it: the same bytes at each, whatever door is behind, and the same outcome.

What two readers could take for two different requests is refused, and its connection ends: nothing that stands behind it is ever
taken for a request (RFC 9112, 2.2, 3.2, 5.1, 5.2, 6.3, 7.1, 11.2).
"""

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.unit.limits_kit import BUSY_S, HTTP, TOKEN, Strangers, Stream, closed, strangers


class Target(NamedTuple):
    """Where a listener answers, and how."""

    open: bytes
    """For everybody."""
    answer: int
    write: bytes
    """With a body, for whoever has the token."""
    token: bytes
    body: bytes


TARGETS: Final = {
    "http": Target(
        b"GET /healthz", 200, b"POST /v1/messages", b"authorization: Bearer %b" % TOKEN.encode(),
        b'{"destination": "persistent://public/default/t", "payload": "x", "delay": "1h"}',
    ),
    "doors.matrix": Target(
        b"OPTIONS /_matrix/client/v1/delayed_events", 204, b"PUT /_matrix/app/v1/transactions/1",
        b"authorization: Bearer hs-secret-token", b'{"events": []}',
    ),
    "doors.dapr": Target(
        b"GET /v1.0/healthz", 204, b"POST /v1.0/publish/pubsub/t", b"dapr-api-token: %b" % TOKEN.encode(), b'{"a": 1}'
    ),
}  # fmt: skip
NEXT: Final = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"

HEADS: Final = {
    "two lengths": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\ncontent-length: 45\r\n\r\n",
    "one length twice": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
    "a list of lengths": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0, 0\r\n\r\n",
    "a length and chunks": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "a signed length": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: +0\r\n\r\n",
    "a length below nothing": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    "a length in hex": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0x0\r\n\r\n",
    "an empty length": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length:\r\n\r\n",
    "a length beyond all numbers": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    "another coding": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: identity\r\n\r\n",
    "a coding beside chunks": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks twice": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in quotes": b'%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunks behind a control": b"%b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks of an old client": b"%b HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded field": b"%b HTTP/1.1\r\nhost: localhost\r\nx: a\r\n b\r\n\r\n",
    "a folded length": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length:\r\n 0\r\n\r\n",
    "a fold before all fields": b"%b HTTP/1.1\r\n host: localhost\r\n\r\n",
    "a space before the colon": b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-length : 0\r\n\r\n",
    "a field without a name": b"%b HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
    "a field without a colon": b"%b HTTP/1.1\r\nhost: localhost\r\nx\r\n\r\n",
    "a name with a control": b"%b HTTP/1.1\r\nhost: localhost\r\nx\x01y: 1\r\n\r\n",
    "a zero in a value": b"%b HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
    "a return in a value": b"%b HTTP/1.1\r\nhost: localhost\r\nx: a\rtransfer-encoding: chunked\r\n\r\n",
    "lines that end early": b"%b HTTP/1.1\nhost: localhost\ncontent-length: 0\n\r\n\r\n",
    "one line that ends early": b"%b HTTP/1.1\r\nhost: localhost\ncontent-length: 0\r\n\r\n",
    "no host": b"%b HTTP/1.1\r\nx: y\r\n\r\n",
    "two hosts": b"%b HTTP/1.1\r\nhost: localhost\r\nhost: example.org\r\n\r\n",
    "an unknown version": b"%b HTTP/1.2\r\nhost: localhost\r\n\r\n",
    "a later version": b"%b HTTP/2.0\r\nhost: localhost\r\n\r\n",
    "no version": b"%b\r\nhost: localhost\r\n\r\n",
    "something behind the version": b"%b HTTP/1.1 x\r\nhost: localhost\r\n\r\n",
    "another protocol": b"%b ICY/1.1\r\nhost: localhost\r\n\r\n",
}  # fmt: skip
"""Heads, with a place for the method and the target."""

BODIES: Final = {
    "a chunk without a size": b"\r\nDATA\r\n0\r\n\r\n",
    "a signed size": b"+SIZE\r\nDATA\r\n0\r\n\r\n",
    "a size below nothing": b"-SIZE\r\nDATA\r\n0\r\n\r\n",
    "a size with a prefix": b"0xSIZE\r\nDATA\r\n0\r\n\r\n",
    "a size behind a space": b" SIZE\r\nDATA\r\n0\r\n\r\n",
    "a size beyond all numbers": b"1000000000000000SIZE\r\nDATA\r\n0\r\n\r\n",
    "a size's line that ends early": b"SIZE\nDATA\r\n0\r\n\r\n",
    "an end of data that ends early": b"SIZE\r\nDATA\n0\r\n\r\n",
    "data that go on": b"SIZE\r\nDATAmore\r\n0\r\n\r\n",
    "an extension with a line inside": b"SIZE;a\nb\r\nDATA\r\n0\r\n\r\n",
    "a trailer with a line inside": b"SIZE\r\nDATA\r\n0\r\nx: y\nz: 1\r\n\r\n",
}
"""Chunked bodies, with places for the size and the data."""


async def answers(stream: Stream) -> bytes:
    """Bytes that a connection is sent until it is closed; the last ones say so if it is not."""
    pieces = []
    try:
        async with asyncio.timeout(BUSY_S / 3):
            while piece := await stream[0].read(65_536):
                pieces.append(piece)
    except TimeoutError:
        pieces.append(b" and the connection is open")
    stream[1].close()
    return b"".join(pieces)


async def unlike_refusals(door: Strangers, sent: dict[str, tuple[str, bytes]]) -> list[str]:
    """Requests, by name and listener, that are answered otherwise than by one refusal and the end."""

    async def outcome(listener: str, data: bytes) -> bytes:
        stream = await door.connect(listener)
        stream[1].write(data + NEXT)
        return await answers(stream)

    got = await asyncio.gather(*(outcome(listener, data) for listener, data in sent.values()))
    return [
        f"{what}: {answer[:200]!r}"
        for what, answer in zip(sent, got, strict=True)
        if not answer.startswith(b"HTTP/1.1 400 ")
        or answer.count(b"HTTP/1.1 ") != 1
        or answer.endswith(b"open")
    ]


async def test_what_could_be_two_requests_is_refused_at_every_listener(tmp_path: Path) -> None:
    assert set(TARGETS) == set(HTTP)
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(2 * BUSY_S):
        for listener, target in TARGETS.items():
            sent = {f"{listener}: {what}": (listener, head % target.open) for what, head in HEADS.items()}
            assert await unlike_refusals(door, sent) == []
        await door.works()


async def test_chunks_that_could_be_two_bodies_end_the_connection_at_every_listener(tmp_path: Path) -> None:
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(2 * BUSY_S):
        for listener, target in TARGETS.items():
            head = _write(target, b"transfer-encoding: chunked")
            size, body = len(target.body), target.body
            sent = {
                f"{listener}: {what}": (
                    listener,
                    head + chunks.replace(b"SIZE", b"%x" % size).replace(b"DATA", body),
                )
                for what, chunks in BODIES.items()
            }
            assert await unlike_refusals(door, sent) == []
        await door.works()


def _write(target: Target, *fields: bytes) -> bytes:
    return b"\r\n".join(
        [target.write + b" HTTP/1.1", b"host: localhost", target.token, b"content-type: application/json", *fields, b"", b""]
    )  # fmt: skip


async def head_of(stream: Stream) -> bytes:
    """The head of the next response."""
    return await stream[0].readuntil(b"\r\n\r\n")


async def body_of(stream: Stream, head: bytes) -> bytes:
    """The body behind a head that says its length."""
    length = next(
        (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
    )
    return await stream[0].readexactly(int(length.partition(b":")[2]))


@pytest.mark.parametrize("listener", HTTP)
async def test_every_listener_speaks_the_protocol(tmp_path: Path, listener: str) -> None:
    target = TARGETS[listener]
    begins = b"HTTP/1.1 %d " % target.answer
    done = (b"HTTP/1.1 20",)
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(2 * BUSY_S):
        # Requests that come together are answered in order, on one connection that goes on.
        stream = await door.connect(listener)
        nowhere = target.open.partition(b" ")[0] + b" /nowhere"
        plain = b"%b HTTP/1.1\r\nhost: localhost\r\n\r\n"
        stream[1].write(plain % target.open + plain % nowhere + plain % target.open)
        for expected in (begins, b"HTTP/1.1 4", begins):
            head = await head_of(stream)
            assert head.startswith(expected), head
            await body_of(stream, head)
        # The absolute form, an offer of another protocol, empty lines before the request.
        method, _, path = target.open.partition(b" ")
        for request in (
            b"%b http://localhost%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % (method, path),
            b"%b HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n"
            % target.open,
            b"%b HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
            % target.open,
            b"\r\n\r\n" + plain % target.open,
        ):
            stream[1].write(request)
            head = await head_of(stream)
            assert head.startswith(begins), (request, head)
            await body_of(stream, head)
        # A body byte by byte, in chunks with an extension and a trailer.
        pieces = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in target.body) + b"0\r\nx-trailer: 1\r\n\r\n"
        for byte in _write(target, b"transfer-encoding: chunked") + pieces:
            stream[1].write(bytes([byte]))
        head = await head_of(stream)
        assert head.startswith(done), head
        await body_of(stream, head)
        # A client that waits for a word, gets it, and then sends; on the same connection the next request.
        stream[1].write(_write(target, b"content-length: %d" % len(target.body), b"expect: 100-continue"))
        assert await head_of(stream) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream[1].write(target.body + plain % target.open)
        head = await head_of(stream)
        assert head.startswith(done), head
        await body_of(stream, head)
        assert (await head_of(stream)).startswith(begins)
        stream[1].close()
        # A client that asks for the end gets it, and an old one that does not ask for more.
        for last in (b"%b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b"%b HTTP/1.0\r\n\r\n"):
            stream = await door.connect(listener)
            stream[1].write(last % target.open + NEXT)
            got = await answers(stream)
            assert got.startswith(begins), got
            assert got.count(b"HTTP/1.1 ") == 1
        # To a HEAD the same head as to a GET, and no body.
        stream = await door.connect(listener)
        heads = []
        for asked in (b"GET", b"HEAD"):
            stream[1].write(b"%b /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % asked)
            heads.append((await head_of(stream)).split(b"\r\ndate: ")[0])
            assert bool(await answers(stream)) is (asked == b"GET")
            stream = await door.connect(listener)
        assert heads[0] == heads[1]
        stream[1].close()
        await closed(stream)
