"""Concurrent calls share requests, and each has its own answer."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tarry import (
    AsyncClient,
    Client,
    Conflict,
    Invalid,
    MessageView,
    NotFound,
    Scheduled,
    TarryError,
    Unreachable,
)
from tarry.client import operations
from tarry.client.call import ServerAnswer
from tarry.client.gathering import MAX_BYTES, MAX_LINES, MIN_LINES, Gathered, Queue
from tests.processes import ServerProcess, running
from tests.waiting import until


class Waiter(Gathered[Scheduled]):
    """Somebody who waits, in a test."""

    def __init__(self, payload: str = "p", wanted: bool = True) -> None:
        call = operations.schedule("d", payload, delay_ms=1)
        assert call.line is not None
        super().__init__(call, call.line)
        self.wanted = wanted
        self.outcomes: list[Scheduled | TarryError] = []

    @property
    def is_wanted(self) -> bool:
        return self.wanted

    def settle(self, outcome: Scheduled | TarryError) -> None:
        self.outcomes.append(outcome)


def queue_of(*waiters: Waiter) -> Queue:
    queue = Queue()
    for waiter in waiters:
        queue.add(waiter)
    return queue


def sizes(queue: Queue) -> list[int]:
    found = []
    while (shared := queue.take()) is not None:
        found.append(len(shared.gathered))
        queue.under_way -= 1
    return found


def test_calls_are_spread_over_the_requests_that_may_be_under_way() -> None:
    queue = queue_of(*(Waiter() for _ in range(100)))
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert (len(first.gathered), len(second.gathered)) == (50, 50)
    queue.add(Waiter())
    assert queue.take() is None
    queue.under_way -= 1
    third = queue.take()
    assert third is not None
    assert len(third.gathered) == 1
    few = queue_of(*(Waiter() for _ in range(MIN_LINES)))
    assert sizes(few) == [MIN_LINES]


def test_a_request_is_bounded_in_lines_and_bytes() -> None:
    assert max(sizes(queue_of(*(Waiter() for _ in range(5 * MAX_LINES))))) == MAX_LINES
    large = "x" * (MAX_BYTES // 2)
    assert sizes(queue_of(*(Waiter(large) for _ in range(3)))) == [1, 1, 1]


def test_a_call_that_was_given_up_is_not_sent() -> None:
    assert sizes(queue_of(Waiter(wanted=False), Waiter(), Waiter(wanted=False))) == [1]
    assert sizes(queue_of(Waiter(wanted=False))) == []


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_each_line_of_an_answer_goes_to_its_call(size: int) -> None:
    waiters = [Waiter() for _ in range(3)]
    shared = queue_of(*waiters).take()
    assert shared is not None
    answer = (
        b'{"id":"a"}\n{"error":{"code":"invalid","field":"key","detail":"key: bad"},"line":2}\n{"id":"c"}\n'
    )
    for at in range(0, len(answer), size):
        shared.feed(ServerAnswer(200, {}, answer[at : at + size]))
    shared.finish()
    assert waiters[0].outcomes == [Scheduled(id="a")]
    assert isinstance(waiters[1].outcomes[0], Invalid)
    assert waiters[2].outcomes == [Scheduled(id="c")]


def test_an_answer_that_breaks_off_leaves_the_others_uncertain() -> None:
    waiters = [Waiter() for _ in range(3)]
    shared = queue_of(*waiters).take()
    assert shared is not None
    shared.feed(ServerAnswer(200, {}, b'{"id":"a"}\n{"id":'))
    shared.finish()
    assert waiters[0].outcomes == [Scheduled(id="a")]
    for waiter in waiters[1:]:
        (outcome,) = waiter.outcomes
        assert isinstance(outcome, Unreachable)
        assert "may or may not" in str(outcome)


def test_an_answer_that_comes_again_is_given_once() -> None:
    waiters = [Waiter() for _ in range(2)]
    shared = queue_of(*waiters).take()
    assert shared is not None
    shared.feed(ServerAnswer(200, {}, b'{"id":"a"}\n'))
    shared.read(ServerAnswer(200, {}, b'{"id":"a","repeated":true}\n{"id":"b"}\n'))
    assert [waiter.outcomes for waiter in waiters] == [[Scheduled(id="a")], [Scheduled(id="b")]]


def test_keys_are_for_clients_that_repeat() -> None:
    shared = queue_of(Waiter(), Waiter()).take()
    assert shared is not None
    keyed, plain = shared.request(keyed=True), shared.request(keyed=False)
    assert keyed.repeatable
    assert len(keyed.headers["idempotency-key"]) > 20
    assert not plain.repeatable
    assert not plain.headers
    assert operations.schedule("d", idempotency_key="own").line is None


# Against a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("gathering") / "data") as started:
        yield started


async def test_concurrent_calls_share_few_requests_and_have_their_own_answers(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        requests = 0
        pieces = client._pieces

        def counted(*args: Any) -> Any:
            nonlocal requests
            requests += 1
            return pieces(*args)

        client._pieces = counted  # type: ignore[method-assign,assignment]

        async def schedule(number: int) -> Scheduled | TarryError:
            try:
                delay_ms = -1 if number % 50 == 0 else 3_600_000
                return await client.schedule("many", str(number), delay_ms=delay_ms, owner=f"owner-{number}")
            except TarryError as error:
                return error

        outcomes = await asyncio.gather(*map(schedule, range(500)))
        assert 0 < requests <= 10
        for number, outcome in enumerate(outcomes):
            if number % 50 == 0:
                assert isinstance(outcome, Invalid)
                assert outcome.field == "delay_ms"
            else:
                assert isinstance(outcome, Scheduled)
                # It is there, and it is the caller's own.
                assert (await client.get(outcome.id)).owner == f"owner-{number}"


async def test_concurrent_cancels_share_few_requests_and_have_their_own_answers(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.url) as client:
        ids = [scheduled.id for scheduled in await asyncio.gather(*(
            client.schedule("ends", str(n), delay="1h", name=f"end-{n}" if n % 3 == 0 else None) for n in range(300)
        ))]  # fmt: skip
        requests = 0
        pieces = client._pieces

        def counted(*args: Any) -> Any:
            nonlocal requests
            requests += 1
            return pieces(*args)

        client._pieces = counted  # type: ignore[method-assign,assignment]

        async def cancel(n: int) -> MessageView | TarryError:
            try:
                if n % 3 == 0:
                    return await client.cancel(name=f"end-{n}")
                return await client.cancel("0" * 32 if n % 50 == 1 else ids[n])
            except TarryError as error:
                return error

        outcomes = await asyncio.gather(*map(cancel, range(300)))
        assert 0 < requests <= 10
        for n, outcome in enumerate(outcomes):
            if n % 3 and n % 50 == 1:
                assert isinstance(outcome, NotFound)
            else:
                assert isinstance(outcome, MessageView)
                assert (outcome.id, outcome.state) == (ids[n], "cancelled")
        again = await asyncio.gather(*map(cancel, range(300)))
        assert {type(outcome) for outcome in again} == {Conflict, NotFound}
        assert {outcome.state for outcome in again if isinstance(outcome, Conflict)} == {"cancelled"}


async def test_a_call_that_is_cancelled_holds_up_no_other(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        tasks = [
            asyncio.create_task(client.schedule("cancelled", str(n), delay="1h", owner="c"))
            for n in range(60)
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, Scheduled) for outcome in outcomes[1::2])
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
        assert isinstance(await client.schedule("cancelled", delay="1h"), Scheduled)


def test_threads_share_requests_too(server: ServerProcess) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(32) as pool:
        gathered = 0
        alone = client._alone

        def counted(call: Any) -> Any:
            nonlocal gathered
            gathered += call.path.endswith("/batch")
            return alone(call)

        client._alone = counted  # type: ignore[method-assign]
        begin = threading.Barrier(32)

        def schedule(number: int) -> str:
            begin.wait(30)
            found = client.schedule("threads", str(number), delay="1h", owner=f"thread-{number}")
            return found.id

        ids = list(pool.map(schedule, range(32)))
        assert [client.get(id_).owner for id_ in ids] == [f"thread-{n}" for n in range(32)]
        assert len(set(ids)) == 32
        assert gathered >= 1


# Against a server that misbehaves on purpose


Answering = Callable[[str, dict[str, str], bytes], bytes | None]


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[str]:
    """A server that answers as it is told; nothing breaks the connection."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers = {}
                while (header := (await reader.readline()).strip()) != b"":
                    name, _, value = header.decode().partition(": ")
                    headers[name] = value
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                said = answer(line.decode().split()[1], headers, body)
                if said is None:
                    return
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
        finally:
            writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_broken_request_is_repeated_under_its_key() -> None:
    bodies: dict[str, list[bytes]] = {}

    def answer(path: str, headers: dict[str, str], body: bytes) -> bytes | None:
        if path != "/v1/messages/batch":
            return b'{"id":"alone"}'
        bodies.setdefault(headers["idempotency-key"], []).append(body)
        if len(bodies[headers["idempotency-key"]]) < 3:
            return None
        return b"".join(b'{"id":"%b"}\n' % json.loads(line)["payload"].encode() for line in body.splitlines())

    async with answering(answer) as url, AsyncClient(url) as client:
        found = await asyncio.gather(*(client.schedule("d", str(n), delay_ms=1) for n in range(40)))
    assert [one.id for one in found[1:]] == [str(n) for n in range(1, 40)]
    for sent in bodies.values():
        assert len(sent) == 3
        assert len(set(sent)) == 1


async def test_a_client_that_does_not_repeat_says_what_is_uncertain() -> None:
    seen: list[dict[str, str]] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> bytes | None:
        if path != "/v1/messages/batch":
            return b'{"id":"alone"}'
        seen.append(headers)
        return None

    async with answering(answer) as url, AsyncClient(url, retry_for_s=0) as client:
        found = await asyncio.gather(
            *(client.schedule("d", str(n), delay_ms=1) for n in range(20)), return_exceptions=True
        )
    assert isinstance(found[0], Scheduled)
    assert all(isinstance(one, Unreachable) for one in found[1:])
    assert all("idempotency-key" not in headers for headers in seen)
    # Nothing hangs on it afterwards.
    assert client._queues["/v1/messages/batch"].is_idle


async def test_a_lone_call_goes_at_once_while_nothing_is_under_way() -> None:
    paths: list[str] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> bytes | None:
        paths.append(path)
        return b'{"id":"alone"}'

    async with answering(answer) as url, AsyncClient(url) as client:
        for _ in range(3):
            await client.schedule("d", delay_ms=1)
    assert paths == ["/v1/messages"] * 3
    await until(lambda: client._queues["/v1/messages/batch"].is_idle)
