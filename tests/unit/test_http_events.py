"""Event streams through the real server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tarry.doors.http.settings import HttpSettings
from tests.serving import Serving, serving
from tests.waiting import until

TOPIC = "/v1/topics/public/default/orders"
SUB = TOPIC + "/subscriptions/s"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        await server.client.put(SUB, json={"start": "earliest"})
        yield server


class Events:
    """The client's end of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.comments: list[str] = []

    async def next(self) -> tuple[int, dict[str, Any]]:
        """The next event: its id and its data."""
        id_ = -1
        async with asyncio.timeout(15):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments.append(line)
                elif line.startswith("id: "):
                    id_ = int(line.removeprefix("id: "))
                elif line.startswith("data: "):
                    return id_, json.loads(line.removeprefix("data: "))
        raise EOFError

    async def comment(self, text: str) -> None:
        """Read on to a comment."""
        async with asyncio.timeout(15):
            async for line in self._lines:
                if line == text:
                    return
        raise EOFError

    async def payloads(self, count: int) -> list[str]:
        return [(await self.next())[1]["payload"] for _ in range(count)]


@contextlib.asynccontextmanager
async def stream(served: Serving, query: str = "") -> AsyncIterator[Events]:
    async with served.client.stream("GET", f"{SUB}/events{query}") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response.aiter_lines())


async def publish(served: Serving, *payloads: str) -> None:
    for payload in payloads:
        assert (await served.client.post(TOPIC + "/messages", json={"payload": payload})).status_code == 201


async def consumers(served: Serving) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.client.get(SUB)).json()["consumers"]
    return found


async def nobody(served: Serving) -> bool:
    return not await consumers(served)


async def test_entries_come_as_they_are_published(served: Serving) -> None:
    await publish(served, "before")
    async with stream(served) as events:
        id_, entry = await events.next()
        assert (id_, entry["entry_id"], entry["payload"]) == (0, 0, "before")
        await publish(served, "line\nbreak")
        id_, entry = await events.next()
        assert (id_, entry["payload"]) == (1, "line\nbreak")
        assert events.comments[0] == ": open"


async def test_the_window_bounds_what_is_out(served: Serving) -> None:
    await publish(served, *"abcde")
    async with stream(served, "?consumer=c&window=2") as events:
        assert await events.payloads(2) == ["a", "b"]
        (consumer,) = await consumers(served)
        assert consumer["unacked"] == 2
        await served.client.post(SUB + "/ack", json={"consumer": "c", "entry_ids": [0]})
        assert await events.payloads(1) == ["c"]
        await served.client.post(SUB + "/ack", json={"consumer": "c", "up_to": 2})
        assert await events.payloads(2) == ["d", "e"]
        (consumer,) = await consumers(served)
        assert consumer["unacked"] == 2


async def test_the_window_of_one(served: Serving) -> None:
    async with stream(served, "?window=1") as events:
        for n, payload in enumerate("abc"):
            await publish(served, payload)
            assert (await events.next())[1]["payload"] == payload
            await served.client.post(SUB + "/ack", json={"entry_ids": [n]})


async def test_closing_gives_back_what_was_not_acknowledged(served: Serving) -> None:
    await publish(served, "a", "b")
    async with stream(served, "?consumer=c") as events:
        await events.payloads(2)
        await served.client.post(SUB + "/ack", json={"consumer": "c", "entry_ids": [0]})
    await until(lambda: nobody(served))
    answer = await served.client.post(SUB + "/receive", json={"wait_ms": 0})
    assert [entry["payload"] for entry in answer.json()["messages"]] == ["b"]


async def test_what_is_given_back_or_late_comes_again_on_the_stream(served: Serving) -> None:
    await publish(served, "a")
    async with stream(served, "?window=1&ack_timeout_ms=200") as events:
        await events.next()
        await served.client.post(SUB + "/nack", json={})
        assert (await events.next())[1]["redelivery_count"] == 1
        assert (await events.next())[1]["redelivery_count"] == 2


async def test_a_stream_that_comes_back_takes_its_own_place(served: Serving) -> None:
    await publish(served, "a")
    async with stream(served, "?consumer=c") as old:
        await old.next()
        async with stream(served, "?consumer=c") as new:
            assert (await new.next())[1]["payload"] == "a"
            with pytest.raises(EOFError):
                await old.next()
            assert len(await consumers(served)) == 1
            # A poll cannot take the stream's place.
            refused = await served.client.post(SUB + "/receive", json={"consumer": "c"})
            assert refused.status_code == 409


async def test_a_quiet_stream_says_that_it_lives(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(keep_alive_ms=50)) as served:
        await served.client.put(SUB, json={})
        async with stream(served) as events:
            await events.comment(": keep-alive")
            await events.comment(": keep-alive")


async def test_a_removed_subscription_ends_its_streams(served: Serving) -> None:
    async with stream(served) as events:
        await served.client.delete(SUB)
        with pytest.raises(EOFError):
            await events.next()


async def test_a_stopping_server_ends_its_streams_at_once(tmp_path: Path) -> None:
    # Had a stream gone on, draining would outlast the timeout.
    async with (
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(9),
        serving(tmp_path / "data", http__drain_ms=8000) as served,
    ):
        await served.client.put(SUB, json={})
        for name in "abc":
            await stack.enter_async_context(stream(served, f"?consumer={name}"))


async def test_a_client_that_does_not_read_holds_up_itself_only(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", ledger__segment_bytes=16 << 20) as served:
        await served.client.put(SUB, json={"start": "earliest"})
        async with served.connect() as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(
                f"GET {SUB}/events?consumer=slow&window=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            )
            await until(lambda: consumers(served))
            for _ in range(40):
                await publish(served, "x" * 500_000)
            # It was given what the sockets hold and one answer's worth, not its whole window.
            (slow,) = await consumers(served)
            assert 0 < slow["unacked"] < 40
            got = await served.client.post(SUB + "/receive", json={"consumer": "quick", "wait_ms": 0})
            assert got.json()["messages"]


@pytest.mark.parametrize(
    "query", ["?window=0", "?window=10001", "?colour=red", "?consumer=", "?consumer=a%2Fb"]
)
async def test_bad_queries_open_no_stream(served: Serving, query: str) -> None:
    assert (await served.client.get(f"{SUB}/events{query}")).status_code == 400
    assert (await served.client.head(f"{SUB}/events")).status_code == 405
    assert await consumers(served) == []
