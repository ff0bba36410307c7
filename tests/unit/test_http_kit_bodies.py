"""Bodies of requests on a listener: whole and as streams, their bounds in bytes and in time."""

import asyncio
import contextlib
from typing import Any

import pytest

from tarry.core.errors import TarryError
from tarry.http import connection
from tarry.http import request as kit
from tarry.http.application import Endpoint
from tarry.http.errors import BodyTooLarge, BodyTooSlow, Gone
from tarry.http.request import Request
from tarry.http.response import Response, Sender, Streamed
from tarry.serve.transport import listener as listener_module
from tests.unit.listener_kit import Serves, answer_of, connect, echoed, listening, request
from tests.waiting import until

CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def whole(asked: Request) -> Response:
    return Response(200, (), b"".join(await asked.stream.read_all(10)))


BOTH = pytest.mark.parametrize(
    "app", [Serves(echoed, 10), Serves(whole, streams=True)], ids=["gathered", "stream"]
)


@BOTH
@pytest.mark.parametrize("pieces", [1, 3, 60])
async def test_a_body_is_read_whole_however_it_comes(app: Serves, pieces: int) -> None:
    chunked = CHUNKED + b"4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\ntrailer: z\r\n\r\n"
    empty = b"POST / HTTP/1.1\r\nhost: x\r\n\r\n"
    sent = ((request(b"0123456789"), b"0123456789"), (chunked, b"0123456789"), (empty, b""))
    async with listening(app) as port:
        reader, writer = await connect(port)
        for data, body in sent:
            size = -(-len(data) // pieces)
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await asyncio.sleep(0.001 if pieces > 1 else 0)
            await answer_of(reader, body)
        # And all of them together.
        writer.write(b"".join(data for data, _ in sent))
        for _, body in sent:
            await answer_of(reader, body)
        writer.close()


@BOTH
async def test_a_body_over_the_limit_is_read_to_its_end_and_refused(app: Serves) -> None:
    app.errors.clear()
    async with listening(app) as port:
        reader, writer = await connect(port)
        for data in (request(b"0123456789x"), CHUNKED + b"a\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n"):
            writer.write(data)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
            # The connection is good for another one.
            writer.write(request(b"again"))
            await answer_of(reader, b"again")
        large = request(bytes(3_000_000))
        writer.write(large[:-1])
        await asyncio.sleep(0.05)
        assert len(app.errors) == 2
        writer.write(large[-1:] + request(b"again"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
        await answer_of(reader, b"again")
        writer.close()
    assert [(type(error), error.limit) for error in app.errors] == [(BodyTooLarge, 10)] * 3  # type: ignore[attr-defined]


@BOTH
async def test_a_body_far_over_the_limit_is_cut_short(app: Serves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_DISCARDED_BYTES", 1 << 20)
    monkeypatch.setattr(kit, "MAX_DISCARDED_BYTES", 1 << 20)
    app.errors.clear()
    async with listening(app) as port:
        # One that says so is not read at all, and of one that does not, so much.
        announced = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n"
        for data in (announced, CHUNKED + b"ffffff\r\n" + bytes(2 << 20)):
            reader, writer = await connect(port)
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413")
            assert b"connection: close" in head
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
            writer.close()
    assert [error.cut_short for error in app.errors] == [True, True]  # type: ignore[attr-defined]


@BOTH
async def test_a_body_that_does_not_come_in_time_is_refused(
    app: Serves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_MS", 20)
    endpoint = app._endpoint
    timed = Serves(endpoint.run, endpoint.max_body_bytes, streams=endpoint.streams, timeout_ms=100)
    async with listening(timed) as port:
        reader, writer = await connect(port)
        # What comes does not help: it is the whole body that has to.
        writer.write(request(b"01234567")[:-8])
        answered = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        for _ in range(7):
            if not answered.done():
                writer.write(b"0")
            await asyncio.sleep(0.03)
        assert (await asyncio.wait_for(answered, 10)).startswith(b"HTTP/1.1 408")
        writer.close()
    assert [type(error) for error in timed.errors] == [BodyTooSlow]


async def test_a_stream_is_given_time_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_MS", 20)
    seen: list[Any] = []

    async def pieces(asked: Request) -> Response:
        with contextlib.suppress(BodyTooSlow):
            while piece := await asked.stream.read():
                seen.append(piece)
            return echoed(asked)
        seen.append("too slow")
        return Response(408, close=True)

    async with listening(Serves(pieces, streams=True, timeout_ms=300)) as port:
        reader, writer = await connect(port)
        data = request(b"0123456789")
        writer.write(data[:-10])
        for _ in range(9):
            writer.write(b"x")
            await asyncio.sleep(0.1)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 408")
        writer.close()
    assert b"".join(seen[:-1]) == b"x" * 9
    assert seen[-1] == "too slow"


async def test_a_client_that_leaves_in_the_middle_is_nobody_to_answer() -> None:
    told: list[Exception] = []

    async def reads(asked: Request) -> Response:
        try:
            await asked.stream.read_all(100)
        except Gone as error:
            told.append(error)
            raise
        raise AssertionError

    for app in (Serves(reads, streams=True), Serves(echoed)):
        async with listening(app) as port:
            _, writer = await connect(port)
            writer.write(request(b"hello")[:-1])
            await asyncio.sleep(0.02)
            writer.transport.abort()
            await asyncio.sleep(0.02)
        assert app.errors == []
    assert len(told) == 1


async def test_a_stream_is_not_read_faster_than_its_endpoint() -> None:
    go_on = asyncio.Event()
    held: list[int] = []

    async def reads(asked: Request) -> Response:
        await until(lambda: asked.stream.full or asked.stream.ended)
        await asyncio.sleep(0.1)
        held.append(len(asked.stream._held))
        await go_on.wait()
        return Response(200, (), b"%d" % sum(map(len, await asked.stream.read_all(1 << 30))))

    async with listening(Serves(reads, streams=True)) as port:
        reader, writer = await connect(port)
        writer.write(request(bytes(20_000_000)))
        await until(lambda: held)
        assert held[0] <= kit.MAX_HELD_BYTES + (256 << 10)
        assert writer.transport.get_write_buffer_size() > 5_000_000
        go_on.set()
        await answer_of(reader, b"20000000")
        # A body that ended while it was not read leaves the connection as it was.
        writer.write(request(b"x"))
        await answer_of(reader, b"1")
        writer.close()


async def test_what_an_endpoint_does_not_take_is_lost_and_the_next_request_is_read() -> None:
    async with listening(Serves(lambda _: Response(200, (), b"ok"), None)) as port:
        reader, writer = await connect(port)
        writer.write(request(bytes(300_000)) + CHUNKED + b"5\r\nworld\r\n0\r\n\r\n" + request(b"x"))
        for _ in range(3):
            await answer_of(reader, b"ok")
        writer.close()


async def test_a_chunk_that_is_none_ends_the_connection() -> None:
    for app in (Serves(echoed), Serves(whole, streams=True)):
        async with listening(app) as port:
            reader, writer = await connect(port)
            writer.write(CHUNKED + b"5\r\nhello\r\nx\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()


# Responses


async def test_what_a_stream_raises_before_its_first_piece_is_refused_and_after_it_breaks_off() -> None:
    async def early(_: Sender) -> None:
        raise TarryError("early")

    async def late(sender: Sender) -> None:
        await sender.write(b"some")
        raise TarryError("late")

    async def short(sender: Sender) -> None:
        await sender.write(b"some")

    for headers in ([], [(b"content-length", b"100")]):
        for run, whole_answer in ((early, True), (late, False), (short, not headers)):
            app = Serves(lambda _, run=run, headers=headers: Streamed(200, headers, run))  # type: ignore[misc]
            async with listening(app) as port:
                reader, writer = await connect(port)
                writer.write(request(b""))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 500" if run is early else b"HTTP/1.1 200")
                if whole_answer:
                    if run is short:
                        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nsome\r\n0\r\n\r\n"
                    writer.write(request(b""))
                    assert await reader.readuntil(b"\r\n\r\n") == head
                else:
                    data = b""
                    with contextlib.suppress(OSError):
                        data = await reader.read()
                    assert b"0\r\n\r\n" not in data
                    assert len(data) < 100
                writer.close()


async def test_a_head_request_gets_no_body() -> None:
    async def run(sender: Sender) -> None:
        await sender.write(b"some")

    for given in (Response(200, (), b"four"), Streamed(200, [(b"content-length", b"4")], run)):
        async with listening(Serves(lambda _, given=given: given)) as port:  # type: ignore[misc]
            reader, writer = await connect(port)
            for _ in range(2):
                writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"content-length: 4\r\n" in head
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(
                b"\r\n\r\n" + (b"four" if isinstance(given, Response) else b"some")
            )
            writer.close()


async def test_an_old_client_gets_a_stream_without_chunks() -> None:
    async def run(sender: Sender) -> None:
        await sender.write(b"one")
        await sender.write(b"two")

    async with listening(Serves(lambda _: Streamed(200, (), run))) as port:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.0\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        assert b"chunked" not in answer
        assert answer.endswith(b"\r\n\r\nonetwo")
        writer.close()


async def test_a_response_without_content_says_no_length() -> None:
    async with listening(Serves(lambda _: Response(204))) as port:
        reader, writer = await connect(port)
        writer.write(request(b"") * 2)
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 204 No Content\r\ndate: ")
            assert b"content-length" not in head
        writer.close()


async def test_who_is_refused_at_the_head_is_not_waited_for() -> None:
    class Refuses(Serves):
        def open(self, request: Request) -> Endpoint:
            if request.path == b"/no":
                raise TarryError("no")
            return super().open(request)

    app = Refuses(echoed)
    async with listening(app) as port:
        reader, writer = await connect(port)
        data = request(bytes(100_000), line=b"POST /no HTTP/1.1")
        writer.write(data[:200])
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 500")
        # Its body may come all the same, and is not taken for requests.
        writer.write(data[200:] + request(b"yes"))
        await answer_of(reader, b"yes")
        writer.close()
