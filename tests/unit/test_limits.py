"""Costs before authentication: what a stranger can take of a whole server, listener by listener, plain and over TLS.

The numbers are in `docs/operations/limits.md`, which names these tests. Waits are shortened; everything else is as served.
"""

import asyncio
import contextlib
import re
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from tarry.config.settings import Http
from tarry.doors.pulsar.connection import FIRST_FRAME_BYTES
from tarry.grpc import calm, frames
from tarry.grpc import connection as http2_connection
from tarry.grpc import stream as http2_stream
from tarry.grpc.frames import END_HEADERS, END_STREAM, ErrorCode, frame
from tarry.grpc.hpack import written
from tarry.http import connection as http_connection
from tarry.http import incoming
from tarry.http.incoming import BODY_SILENCE_MS
from tarry.http.request import MAX_HELD_BYTES, Request
from tarry.http.response import Response, Sender, Streamed
from tarry.serve.composition import pulsar
from tarry.serve.composition.pulsar import CONNECT_WITHIN_S
from tarry.serve.transport import accepting, connection_budget
from tarry.serve.transport import listener as http_listener
from tarry.serve.transport.accepting import HANDSHAKE_S, TLS_FAREWELL_S, Accepting
from tarry.serve.transport.connection_budget import ARRIVING, UNREAD_MS, ConnectionBudget
from tarry.serve.transport.grpc_server import MAX_STREAMS
from tarry.serve.transport.listener import Listener, ListenError, begin, taken
from tests.unit.http2_kit import CALL
from tests.unit.limits_kit import BUSY_S, GRPC, HTTP, LISTENERS, PULSAR, Stream, closed, strangers
from tests.unit.listener_kit import Serves, connect, echo, echoed, listening
from tests.waiting import until

GREETING = frames.PREFACE + frames.settings()
EITHER = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds in place of those of minutes."""
    for module in (http_listener, pulsar):
        monkeypatch.setattr(module, "SWEEP_MS", 50)
    monkeypatch.setattr("tarry.serve.transport.grpc_server.SWEEP_MS", 50)
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(pulsar, "CONNECT_WITHIN_S", 0.5)
    monkeypatch.setattr(incoming, "BODY_SILENCE_MS", 500)
    monkeypatch.setattr(connection_budget, "UNREAD_MS", 500)
    monkeypatch.setattr(connection_budget, "UNREAD_GRACE_MS", 100)
    for module in (http2_connection, http2_stream):
        monkeypatch.setattr(module, "WITHIN_S", 0.5)


# Silence


async def test_a_silent_tls_handshake_is_cut_off(tmp_path: Path) -> None:
    async with strangers(tmp_path, tls=True) as door, asyncio.timeout(BUSY_S):
        silent = [await door.connect(name, tls=False) for name in LISTENERS]
        await until(lambda: all(door.part(name).arriving for name in LISTENERS))
        for stream in silent:
            await closed(stream)
        await until(lambda: not any(door.part(name).arriving for name in LISTENERS))
        await door.works()


async def test_silent_tls_handshakes_take_no_more_places_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 600)
    async with strangers(tmp_path, tls=True, settings="max_connections = 4") as door, asyncio.timeout(BUSY_S):
        for name in LISTENERS:
            silent = [await door.connect(name, tls=False) for _ in range(60)]
            part = door.part(name)
            # The oldest have made room for the newest.
            for stream in silent[: 60 - 4 - ARRIVING]:
                await closed(stream)
            assert len(part.arriving) + len(part.open) <= 4 + ARRIVING
            reader, writer = await door.connect(name)
            writer.write(GREETING if name == GRPC else b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert await reader.read(1) if name != PULSAR else True
        await door.works()


@EITHER
async def test_a_stranger_who_says_nothing_is_closed(tmp_path: Path, tls: bool) -> None:
    async with strangers(tmp_path, tls=tls, settings="idle_timeout_ms = 1000") as door:
        async with asyncio.timeout(BUSY_S):
            for stream in [await door.connect(name) for name in LISTENERS]:
                await closed(stream)
        await until(lambda: not any(door.part(name).open for name in LISTENERS), BUSY_S)


BEGUN = {
    GRPC: GREETING + frame(frames.HEADERS, 0, 1, written(*CALL)[:40]),
    PULSAR: b"\0\0\x10\0\0\0\x08\0",
}


@EITHER
async def test_a_request_that_dribbles_is_cut_off(tmp_path: Path, tls: bool) -> None:
    """Bytes that complete nothing do not keep a connection."""
    async with strangers(tmp_path, tls=tls, settings="idle_timeout_ms = 1000") as door:
        async with asyncio.timeout(BUSY_S):
            for name in LISTENERS:
                stream = await door.connect(name)
                stream[1].write(BEGUN.get(name, b"POST /v1/messages HTTP/1.1\r\nx: "))
                await dribbling(stream, frame(frames.CONTINUATION, 0, 1, b"x") if name == GRPC else b"x")


async def dribbling(stream: Stream, drop: bytes) -> None:
    """Send a little again and again, until the server has had enough."""
    end = asyncio.ensure_future(closed(stream))
    while not end.done():
        with contextlib.suppress(OSError):
            stream[1].write(drop)
        await asyncio.wait([end], timeout=0.05)


async def test_a_preface_that_dribbles_is_cut_off(tmp_path: Path) -> None:
    async with strangers(tmp_path, tls=False, settings="idle_timeout_ms = 1000") as door:
        stream = await door.connect(GRPC)
        end = asyncio.ensure_future(closed(stream))
        for byte in frames.PREFACE:
            stream[1].write(bytes((byte,)))
            await asyncio.wait([end], timeout=0.1)
        assert end.done()


# Size


@EITHER
async def test_the_head_of_a_request_is_bounded(tmp_path: Path, tls: bool) -> None:
    async with strangers(tmp_path, tls=tls) as door, asyncio.timeout(BUSY_S):
        for name in HTTP:
            reader, writer = await door.connect(name)
            writer.write(b"GET / HTTP/1.1\r\nx: " + b"x" * (http_connection.MAX_HEAD_BYTES + 1))
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 431"), name
        stream = await door.connect(GRPC)
        large = http2_connection.MAX_BLOCK_BYTES
        stream[1].write(
            GREETING + frame(frames.HEADERS, 0, 1, bytes(large)) + frame(frames.CONTINUATION, 0, 1, b"x")
        )
        assert await goodbye(stream) == ErrorCode.ENHANCE_YOUR_CALM
        reader, writer = await door.connect(PULSAR)
        writer.write((FIRST_FRAME_BYTES + 1).to_bytes(4, "big") + (8).to_bytes(4, "big"))
        assert b"the largest is 65536" in await reader.read()


async def goodbye(stream: Stream) -> int | None:
    """The code with which a connection over HTTP/2 ends."""
    data = b""
    with contextlib.suppress(OSError):
        while more := await stream[0].read(65_536):
            data += more
    while data:
        size = int.from_bytes(data[:3], "big")
        if data[3] == frames.GOAWAY:
            return int.from_bytes(data[13:17], "big")
        data = data[9 + size :]
    return None


@EITHER
async def test_the_body_of_a_stranger_is_not_read_before_the_answer(tmp_path: Path, tls: bool) -> None:
    """The paths are the doors' own. Bodies that the Matrix door passes on go through in pieces, and the homeserver decides."""
    event = b"/_matrix/client/v1/rooms/r/delayed_event/m.x/t"
    async with strangers(tmp_path, tls=tls, settings="idle_timeout_ms = 1000") as door:
        async with asyncio.timeout(BUSY_S):
            for name, target in (
                ("http", b"POST /v1/messages"),
                ("http", b"PUT /admin/v2/tenants/acme"),
                ("doors.dapr", b"POST /v1.0/publish/pubsub/t"),
                ("doors.matrix", b"PUT " + event),
                ("doors.matrix", b"PUT /_matrix/app/v1/transactions/1"),
            ):
                stream = await door.connect(name)
                head = b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % target
                stream[1].write(head + b"content-length: 8000000\r\n\r\n")
                status = await stream[0].readuntil(b"\r\n")
                assert status.startswith((b"HTTP/1.1 401", b"HTTP/1.1 403")), (target, status)
                # Nor does what it dribbles afterwards keep the connection.
                await dribbling(stream, b"x")


async def test_a_body_that_dribbles_is_cut_off() -> None:
    async with listening(echo) as port, asyncio.timeout(BUSY_S):
        stream = await connect(port)
        stream[1].write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        await dribbling(stream, b"x")
        stream[1].close()
        # One that keeps the pace takes as long as it needs.
        stream = await connect(port)
        stream[1].write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 40960\r\n\r\n")
        for _ in range(20):
            stream[1].write(bytes(2048))
            await asyncio.sleep(0.1)
        assert (await stream[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        stream[1].close()


async def test_requests_before_the_first_answer_are_bounded() -> None:
    """They wait as bytes, and beyond a bound the client cannot send any."""
    held = asyncio.Event()

    async def thinks(request: Request) -> Response:
        await held.wait()
        return echoed(request)

    ask, asked = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 600_000
    listener = Listener(Http(port=0))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(Serves(thinks))
    try:
        async with asyncio.timeout(BUSY_S):
            stream = await connect(port)
            stream[1].write(ask * asked)
            (client,) = await until(lambda: [one for one in listener._share.open if one._paused])
            await asyncio.sleep(0.1)
            assert len(client._rest) <= MAX_HELD_BYTES + (256 << 10)
            assert stream[1].transport.get_write_buffer_size() > 1 << 20
            held.set()
            for _ in range(1_000):
                assert (await stream[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            stream[1].transport.abort()
    finally:
        await listener.stop()


@EITHER
async def test_a_call_without_a_token_is_refused_at_its_fields_and_nothing_is_inflated(
    tmp_path: Path, tls: bool
) -> None:
    """Half a megabyte of gzip became 520 MiB before the token was asked for."""
    async with strangers(tmp_path, tls=tls) as door, asyncio.timeout(BUSY_S):
        reader, writer = await door.connect(GRPC)
        path = (b":path", b"/dapr.proto.runtime.v1.Dapr/PublishEvent")
        fields = (*CALL[:2], path, *CALL[3:], (b"grpc-encoding", b"gzip"))
        writer.write(GREETING + frame(frames.HEADERS, END_HEADERS, 1, written(*fields)))
        data = b""
        # Not a byte of the message was sent.
        while b"grpc-status" not in data:
            more = await reader.read(65_536)
            assert more
            data += more
        assert re.search(rb"grpc-status\x02(16|7)", data) or b"grpc-status\x017" in data
        assert b"invalid api token" in data
        (client,) = door.part(GRPC).open
        assert client._connection.held_bytes == 0
        assert not client._connection.streams


async def test_a_compressed_request_is_not_read(tmp_path: Path) -> None:
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(BUSY_S):
        reader, writer = await door.connect("http")
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer a-long-enough-token\r\ncontent-encoding: gzip\r\ncontent-length: 8000000\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 415")


# Slow readers


@EITHER
async def test_a_client_that_does_not_read_its_answers_is_cut_off(tmp_path: Path, tls: bool) -> None:
    async with strangers(tmp_path, tls=tls) as door:
        async with asyncio.timeout(2 * BUSY_S):
            for name in HTTP:
                _, writer = await door.connect(name, receive_bytes=4096)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                path = b"/openapi.json" if name == "http" else b"/nothing"
                # Few at a time: this is not about how many may wait for an answer.
                asked = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path * 50
                part = door.part(name)
                await until(part.open.__len__, BUSY_S)
                while not part.slow and part.open:
                    if not writer.transport.get_write_buffer_size():
                        writer.write(asked)
                    await asyncio.sleep(0.01)
                assert part.slow, name
                await until(lambda part=part: not part.open, BUSY_S)  # type: ignore[misc]
            await door.works()


async def test_an_answer_that_nobody_lets_in_ends_its_stream(tmp_path: Path) -> None:
    """Over HTTP/2 a client can read and yet not let an answer in: its window is closed."""
    async with strangers(tmp_path, tls=False, settings="idle_timeout_ms = 1000") as door:
        async with asyncio.timeout(BUSY_S):
            stream = await door.connect(GRPC)
            block = written((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"))
            stream[1].write(
                frames.PREFACE
                + frames.settings((frames.INITIAL_WINDOW_SIZE, 0))
                + frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, block)
            )
            assert await goodbye(stream) == ErrorCode.NO_ERROR


async def test_who_does_not_read_makes_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it has a request under way, and others are only idle."""

    def large(request: Request) -> Streamed:
        async def run(sender: Sender) -> None:
            for _ in range(64 if request.path == b"/large" else 0):
                await sender.write(bytes(1 << 20))
            await sender.write(b"done")

        return Streamed(200, (), run)

    async def ask(stream: Stream) -> None:
        stream[1].write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await stream[0].readuntil(b"done")

    listener = Listener(Http(port=0, max_connections=2))
    # The sweep is not to be what ends it.
    monkeypatch.setattr(connection_budget, "UNREAD_MS", 600_000)
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(Serves(large))
    try:
        async with asyncio.timeout(BUSY_S):
            slow, idle = await connect(port), await connect(port)
            slow[1].transport.pause_reading()  # type: ignore[attr-defined]
            slow[1].write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await ask(idle)
            await until(lambda: listener._share.slow, BUSY_S)
            new = await connect(port)
            await ask(new)
            await ask(idle)
            slow[1].transport.resume_reading()  # type: ignore[attr-defined]
            await closed(slow)
        for _, writer in (slow, idle, new):
            writer.close()
    finally:
        await listener.stop()


# Floods


@EITHER
@pytest.mark.parametrize(
    "nothing",
    [frames.settings((frames.INITIAL_WINDOW_SIZE, 0)), frame(frames.PING, 0, 0, bytes(8))],
    ids=["settings", "pings"],
)
async def test_a_flood_of_control_frames_is_cut_off(tmp_path: Path, tls: bool, nothing: bytes) -> None:
    async with strangers(tmp_path, tls=tls) as door, asyncio.timeout(BUSY_S):
        stream = await door.connect(GRPC)
        stream[1].write(GREETING + nothing * (30 * calm.MAX_STRAIN))
        began = time.thread_time()
        assert await goodbye(stream) == ErrorCode.ENHANCE_YOUR_CALM
        # Both ends of it: 256 KiB of settings once took 31 s.
        assert time.thread_time() - began < 5
        await door.works()


async def test_a_flood_before_connect_ends_the_connection(tmp_path: Path) -> None:
    ping = bytes.fromhex("0000000900000005" + "0812920100")
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(BUSY_S):
        reader, writer = await door.connect(PULSAR)
        writer.write(ping * 100_000)
        with contextlib.suppress(OSError):
            assert b"the first command is not CONNECT" in await reader.read(65_536)
        await closed((reader, writer))


# Processor time

TEN_TIMES = 10
"""How many times the figures on the page a busy machine may need."""


async def cost_s(work: Callable[[], None]) -> float:
    """The processor time of this thread, which is the server's, while another one works as its client."""
    began_s = time.thread_time()
    await asyncio.to_thread(work)
    return time.thread_time() - began_s


async def test_the_processor_time_of_strangers(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "tls").mkdir()
    asked = {
        "http": (b"/v1/messages", 0.0001),
        "doors.dapr": (b"/v1.0/publish/pubsub/t", 0.0001),
        "doors.matrix": (b"/_matrix/client/v3/rooms/r/send/m/1", 0.0005),
    }
    async with strangers(tmp_path / "plain", tls=False) as door, asyncio.timeout(2 * BUSY_S):
        for name in LISTENERS:
            port = door.ports[name]
            assert await cost_s(partial(come_and_go, port, 100)) < 100 * 0.0001 * TEN_TIMES, name
        for name, (path, each_s) in asked.items():
            port = door.ports[name]
            took_s = await cost_s(partial(ask, port, path, 100))
            assert took_s < 100 * each_s * TEN_TIMES, name
        calls = b"".join(
            frame(frames.HEADERS, END_HEADERS | END_STREAM, stream, written(*CALL))
            for stream in range(1, 20_000, 2)
        )
        assert await cost_s(lambda: shout(door.ports[GRPC], GREETING + calls)) < 500 * 0.00005 * TEN_TIMES
    async with strangers(tmp_path / "tls", tls=True) as door, asyncio.timeout(2 * BUSY_S):
        for name in LISTENERS:
            port = door.ports[name]
            took_s = await cost_s(partial(come_and_go, port, 20, door.client))
            assert took_s < 20 * 0.001 * TEN_TIMES, name


def come_and_go(port: int, times: int, context: ssl.SSLContext | None = None) -> None:
    """Connect, shake hands if there is a context, and go."""
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            if context is not None:
                context.wrap_socket(connection).close()


def ask(port: int, path: bytes, times: int) -> None:
    """Ask for something without a token, again and again on one connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(times):
            connection.sendall(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 2\r\n\r\n{}" % path
            )
            answer = b""
            while b"\r\n\r\n" not in answer:
                more = connection.recv(65_536)
                assert more, answer
                answer += more
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


def shout(port: int, data: bytes) -> None:
    """Send all of it, and read until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        while connection.recv(65_536):
            pass


# Descriptors


@contextlib.asynccontextmanager
async def no_descriptor() -> AsyncIterator[None]:
    """While this lasts, the process gets no further descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_connections_wait_and_the_ledger_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with strangers(tmp_path, tls=False) as door, asyncio.timeout(BUSY_S):
        reader, writer = await door.connect("http")
        with socket.socket() as waits:
            waits.setblocking(False)
            async with no_descriptor():
                await asyncio.get_running_loop().sock_connect(waits, ("127.0.0.1", door.ports["http"]))
                body = b'{"destination": "t", "payload": "x", "delay": "1h"}'
                writer.write(
                    b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                    b"authorization: Bearer a-long-enough-token\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 201")
                await until(lambda: "connections wait to be accepted" in caplog.text, BUSY_S)
                assert len(door.part("http").open) == 1
                # It rests, and does not ask again and again.
                assert caplog.text.count("connections wait to be accepted") < 10
            await asyncio.get_running_loop().sock_sendall(waits, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            got = await asyncio.get_running_loop().sock_recv(waits, 100)
            assert got.startswith(b"HTTP/1.1 ")


# Listening


def test_nobody_takes_an_address_that_is_bound_and_not_listened_on() -> None:
    """A server that stands by has its doors' addresses for days. Once another process could come between, and the port was its own."""
    with (
        taken(Http(port=0), "http") as found,
        socket.socket() as other,
        pytest.raises(OSError, match="Address already in use"),
    ):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(found.getsockname())


async def test_an_address_that_another_listens_on_all_the_same_is_told() -> None:
    with taken(Http(port=0), "http") as found, socket.socket() as other:
        # Which a kernel may allow that goes by what the first socket said when it was bound.
        for one in (found, other):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(found.getsockname())
        other.listen()
        accepting = Accepting(found, asyncio.Protocol, ConnectionBudget().share_of("http"), None)
        with pytest.raises(ListenError, match=r"stop what uses it, or set http\.host and http\.port"):
            begin(accepting, Http(port=0), "http")


# The page

ROWS = [
    line
    for line in (Path(__file__).parents[2] / "docs" / "operations" / "limits.md")
    .read_text("utf-8")
    .splitlines()
    if line.startswith("| ") and not line.startswith("| what ")
]


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_every_row_of_the_page_names_tests_that_exist(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(cells) == 4, row
    named = re.findall(r"`(test_\w+)::(test_\w+)`", cells[3])
    assert named, row
    for module, test in named:
        text = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), f"{module}::{test}"


def test_the_page_tells_the_numbers_that_are_served() -> None:
    text = " ".join(ROWS)
    for number, unit in (
        (HANDSHAKE_S, " s |"),
        (TLS_FAREWELL_S, " s |"),
        (BODY_SILENCE_MS // 1000, " s, and one second for each KiB"),
        (UNREAD_MS // 1000, " s without a byte of progress"),
        (CONNECT_WITHIN_S, " s |"),
        (Http().idle_timeout_ms // 1000, " s |"),
        (http_connection.MAX_HEAD_BYTES // 1024, " KiB, and one read"),
        (http2_connection.MAX_BLOCK_BYTES // 1024, " KiB, and one frame"),
        (FIRST_FRAME_BYTES // 1024, " KiB |"),
        (MAX_HELD_BYTES // 1024, " KiB, and one read"),
        (ARRIVING, " on their way in"),
    ):
        assert f"{number:.0f}{unit}" in text, f"{number:.0f}{unit}"
    assert f"{calm.MAX_STRAIN:,} frames" in text
    assert f"{calm.MAX_STRAIN // calm.REFUSED_STRAIN} a second" in text
    assert f"{MAX_STREAMS:,} |" in text
    assert http2_stream.PACE_BYTES == incoming.BODY_PACE_BYTES == 1024
