"""Receivers that are silent, slow, broken or hostile."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tarry.core.messages.delivery import Delivered, Refused, Retry, Verdict
from tarry.outlets.webhook import outlet as outlet_module
from tests.serving import serving
from tests.unit.webhook_kit import misbehaving, receiving, sending, to
from tests.waiting import until


async def answered(response: bytes) -> Verdict:
    """The verdict on a server that reads the request and answers with these bytes."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(response)
        await writer.drain()

    async with misbehaving(behave) as port, sending() as outlet:
        return await outlet.send(to(f"http://127.0.0.1:{port}/"))


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "the connection was closed without a response (127.0.0.1)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the response is not valid HTTP (127.0.0.1)"),
        (b"\x00" * 1000, "the response is not valid HTTP (127.0.0.1)"),
        (b"HTTP/1.1 2xx OK\r\n\r\n", "the response is not valid HTTP (127.0.0.1)"),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", "the response is not valid HTTP (127.0.0.1)"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000, "the response is not valid HTTP (127.0.0.1)"),
        (b"HTTP/1.1 200 " + b"a" * 20_000, "the response is not valid HTTP (127.0.0.1)"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n",
            "the response is not valid HTTP (127.0.0.1)",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "the response is not valid HTTP (127.0.0.1)",
        ),
        (b"HTTP/1.1 200 OK\r\nX: 1\r\n", "the connection was closed without a response (127.0.0.1)"),
    ],
)
async def test_no_valid_response_is_tried_again(response: bytes, reason: str) -> None:
    assert await answered(response) == Retry(reason, uncertain=True)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\ncut short",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\x01;;;=\r\nContent-Length: 0\r\n\r\n".replace(b"\x01", b"x"),
    ],
)
async def test_the_body_does_not_change_the_verdict(response: bytes) -> None:
    assert await answered(response) == Delivered()


async def test_a_reset_is_tried_again() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    async with misbehaving(behave) as port, sending() as outlet:
        verdict = await outlet.send(to(f"http://127.0.0.1:{port}/"))
    assert isinstance(verdict, Retry)
    assert verdict.reason == "connection reset by peer (127.0.0.1)"


async def test_nobody_listening_is_tried_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with sending() as outlet:
            verdict = await outlet.send(to(f"http://127.0.0.1:{port}/"))
    assert verdict == Retry("connection refused (127.0.0.1)")


async def test_a_silent_server_times_out() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side gives up

    async with misbehaving(behave) as port, sending(total_timeout_ms=150) as outlet:
        started = time.monotonic()
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Retry(
            "timed out (127.0.0.1)", uncertain=True
        )
        assert 0.1 < time.monotonic() - started < 3


async def test_a_server_that_drips_its_head_times_out() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X: 1\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with misbehaving(behave) as port, sending(total_timeout_ms=300) as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Retry(
            "timed out (127.0.0.1)", uncertain=True
        )


async def test_endless_provisional_responses_time_out() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with misbehaving(behave) as port, sending(total_timeout_ms=200) as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Retry(
            "timed out (127.0.0.1)", uncertain=True
        )


async def test_a_server_that_does_not_read_times_out() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with misbehaving(behave) as port, sending(total_timeout_ms=200) as outlet:
        verdict = await outlet.send(to(f"http://127.0.0.1:{port}/", bytes(16 * 1024 * 1024)))
        assert verdict == Retry("timed out (127.0.0.1)", uncertain=True)


async def test_an_answer_before_the_end_of_the_request_counts() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async with misbehaving(behave) as port, sending() as outlet:
        verdict = await outlet.send(to(f"http://127.0.0.1:{port}/", bytes(16 * 1024 * 1024)))
        assert verdict == Refused("HTTP 413 from 127.0.0.1")


async def test_an_endless_body_is_cut_off() -> None:
    written = 0
    cut_off = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"hello")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        finally:
            cut_off.set()

    async with misbehaving(behave) as port, sending() as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()
        await asyncio.wait_for(cut_off.wait(), 5)
    assert written < 32 * 1024 * 1024  # what the kernel's buffers take; endless is more


async def test_a_body_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "_DRAIN_S", 0.05)
    gone = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await reader.read()
        gone.set()

    async with misbehaving(behave) as port, sending(total_timeout_ms=60_000) as outlet:
        verdict = await asyncio.wait_for(outlet.send(to(f"http://127.0.0.1:{port}/")), 5)
        assert verdict == Delivered()
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize(
    ("status", "cancelled", "state"),
    [(504, 409, "scheduled"), (502, 409, "scheduled"), (503, 200, "cancelled")],
)
async def test_what_a_gateway_may_have_passed_on_cannot_be_cancelled(
    tmp_path: Path, status: int, cancelled: int, state: str
) -> None:
    settings: dict[str, Any] = {"webhook.allow": ["127.0.0.1"], "engine.backoff_min_ms": 60_000}
    async with receiving() as (receiver, port), serving(tmp_path, **settings) as served:
        receiver.answer = lambda _: web.Response(status=status)
        asked = {"destination": f"http://127.0.0.1:{port}/", "payload": "x", "delay_ms": 1}
        id_ = (await served.client.post("/v1/messages", json=asked)).json()["id"]

        async def tried() -> bool:
            return bool((await served.client.get(f"/v1/messages/{id_}")).json().get("attempts"))

        await until(tried)
        assert (await served.client.post(f"/v1/messages/{id_}/cancel")).status_code == cancelled
        assert (await served.client.get(f"/v1/messages/{id_}")).json()["state"] == state
