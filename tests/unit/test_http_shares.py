"""Batches and sessions by token: whoever takes as many as it can leaves some for the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tarry.core.errors import Unavailable
from tarry.core.messages.bulk_command import MAX_UNFINISHED
from tarry.core.tenants.access import Access, Caller, Token
from tarry.core.tenants.shares import Shares
from tarry.doors.http.settings import HttpSettings
from tests.serving import Serving, serving

TOKENS = [
    {"name": name, "token": f"{name}-token", "roles": ["admin"], "namespaces": ["public/default"]}
    for name in ("greedy", "modest")
]
LINE = b'{"destination":"t","delay_ms":3600000}\n'
SUB = "/v1/topics/public/default/t/subscriptions/s"
WITHIN_S = 60


def caller(name: str) -> Caller:
    return Caller(name, frozenset(), None)


def tokens(count: int) -> Access:
    return Access(Token.of(f"t{number}", f"{number}-long-enough", ["admin"]) for number in range(count))


def test_a_token_leaves_as_many_places_as_it_holds() -> None:
    places = Shares(8, "places", tokens(2))
    taken = []
    for name in "aaaaabbbcc":
        with contextlib.suppress(Unavailable):
            places.take(caller(name))
            taken.append(name)
    assert "".join(taken) == "aaaabbc"
    # One is left for whoever comes next, and then there is none.
    places.take(caller("d"))
    with pytest.raises(Unavailable, match="all 8 places are taken"):
        places.take(caller("e"))
    for name in [*taken, "d"]:
        places.give_back(caller(name))
    assert places.taken == 0
    places.take(caller("a"))


def test_a_single_token_has_all_places_for_itself() -> None:
    places = Shares(3, "places", tokens(1))
    for _ in range(3):
        places.take(caller("a"))
    with pytest.raises(Unavailable):
        places.take(caller("a"))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token"}


@contextlib.asynccontextmanager
async def slow_batch(served: Serving, name: str) -> AsyncIterator[int]:
    """A batch request that has sent one line and goes on; gives the status of its answer."""
    async with served.connect() as (reader, writer):
        head = (
            f"POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {name}-token\r\n"
            "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(head.encode() + b"%x\r\n%b\r\n" % (len(LINE), LINE))
        status = await reader.readuntil(b"\r\n")
        yield int(status.split()[1])


async def test_slow_batches_of_one_token_refuse_nobody_elses(tmp_path: Path) -> None:
    door = HttpSettings(max_batches=4)
    async with (
        asyncio.timeout(WITHIN_S),
        serving(tmp_path / "data", door=door, tokens=TOKENS) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        statuses = [await stack.enter_async_context(slow_batch(served, "greedy")) for _ in range(4)]
        assert statuses == [200, 200, 503, 503]
        assert await stack.enter_async_context(slow_batch(served, "modest")) == 200
        whole = await served.client.post(
            "/v1/messages/batch",
            content=LINE,
            headers={**bearer("greedy"), "content-type": "application/x-ndjson"},
        )
        assert "the token greedy has 2 batches under way" in whole.json()["detail"]


async def test_sessions_of_one_token_refuse_nobody_elses(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(max_sessions=4), tokens=TOKENS) as served:

        async def receive(name: str, consumer: str) -> int:
            asked: dict[str, Any] = {"consumer": consumer, "wait_ms": 0}
            return (await served.client.post(SUB + "/receive", json=asked, headers=bearer(name))).status_code

        await served.client.put(SUB, json={}, headers=bearer("greedy"))
        assert [await receive("greedy", f"c{n}") for n in range(4)] == [200, 200, 503, 503]
        # One that is open already goes on.
        assert await receive("greedy", "c1") == 200
        assert await receive("modest", "mine") == 200
        # A stream under the name of a poll takes its place, and no other.
        async with served.client.stream(
            "GET", SUB + "/events?consumer=c1", headers=bearer("greedy")
        ) as stream:
            assert stream.status_code == 200
            assert await receive("greedy", "c2") == 503


async def test_a_batch_has_its_time_however_its_client_keeps_it_going(tmp_path: Path) -> None:
    door = HttpSettings(batch_timeout_ms=1_500)
    async with serving(tmp_path / "data", door=door) as served, asyncio.timeout(WITHIN_S):
        async with served.connect() as (reader, writer):
            writer.write(
                b"POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            piece = b"%x\r\n%b\r\n" % (len(LINE), LINE)
            reading = asyncio.ensure_future(reader.readuntil(b"\r\n0\r\n\r\n"))
            sent = 0
            while not reading.done():
                # Never silent for long: no bound on a single piece ends this.
                with contextlib.suppress(OSError):
                    writer.write(piece)
                    await writer.drain()
                    sent += 1
                await asyncio.wait((reading,), timeout=0.1)
            answer = reading.result()
        assert b'"code":"timeout"' in answer
        assert b"took too long as a whole" in answer
        # The lines before that are taken, and said to be.
        assert 0 < served.engine.stats().pending <= sent
        assert answer.count(b'"id":') == served.engine.stats().pending


@contextlib.asynccontextmanager
async def slow_request(served: Serving, name: str) -> AsyncIterator[int | None]:
    """A request whose body does not come; gives the status of its answer, if there is one before that."""
    async with served.connect() as (reader, writer):
        head = (
            f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {name}-token\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        yield status if status != 100 else None


async def test_slow_requests_of_one_token_leave_connections_to_the_others(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(WITHIN_S),
        serving(tmp_path / "data", tokens=TOKENS, http__max_connections=6) as served,
        contextlib.AsyncExitStack() as stack,
    ):
        statuses = [await stack.enter_async_context(slow_request(served, "greedy")) for _ in range(4)]
        assert statuses == [None, None, None, 503]
        async with slow_request(served, "modest") as status:
            assert status is None
        # Its connection has ended without the request: whoever held the place gives it back.
        async with slow_request(served, "modest") as status:
            assert status is None
        # One that goes on with the next request has one place, and none in between.
        for _ in range(8):
            url = "/v1/topics?namespace=public/default"
            assert (await served.client.get(url, headers=bearer("modest"))).status_code == 200


@pytest.mark.parametrize("reach", [["acme/eu"], ["*"]])
async def test_commands_of_one_namespace_leave_some_to_the_others_where_there_are_tenants(
    tmp_path: Path, reach: list[str]
) -> None:
    """Security, class 4: the admin of one namespace held all commands by filter for an hour."""
    tokens = [{**TOKENS[0], "namespaces": reach}, {**TOKENS[1], "namespaces": ["*"]}]
    async with serving(tmp_path / "data", tokens=tokens) as served:

        async def asked(name: str, namespace: str) -> Any:
            body = {"action": "cancel", "filter": {"namespace": namespace}}
            return await served.client.post("/v1/commands", json=body, headers=bearer(name))

        answers = [await asked("greedy", "acme/eu") for _ in range(MAX_UNFINISHED)]
        taken = sum(answer.status_code < 300 for answer in answers)
        assert taken == (MAX_UNFINISHED if reach == ["*"] else MAX_UNFINISHED // 2)
        if reach != ["*"]:
            assert (answers[-1].status_code, answers[-1].json()["state"]) == (409, "full")
            assert (await asked("modest", "public/default")).status_code < 300
