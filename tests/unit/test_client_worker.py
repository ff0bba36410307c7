"""A worker against a real server: entries are acknowledged, come again, and become dead letters."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tarry import AsyncClient, Backoff, Client, Delivery, NotFound, Policy, Received, Worker
from tests.processes import ServerProcess, environment, running, tarry
from tests.waiting import until, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("worker") / "data") as started:
        yield started


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as made:
        yield made


async def backlog(client: AsyncClient, topic: str, subscription: str = "worker") -> int | None:
    with contextlib.suppress(NotFound):
        stats = (await client.topic_stats(topic))["subscriptions"]
        if subscription in stats:
            return int(stats[subscription]["backlog"])
    return None


async def all_acknowledged(client: AsyncClient, topic: str) -> None:
    async def done() -> bool:
        return await backlog(client, topic) == 0

    await until(done)


async def has_backlog(client: AsyncClient, topic: str, count: int) -> bool:
    return await backlog(client, topic, "reader") == count


async def entries_of(client: AsyncClient, topic: str) -> list[Received]:
    await client.subscribe(topic, "reader", start="earliest")
    return await client.receive(topic, "reader", wait_ms=10_000)


@dataclass
class Reminder:
    user: int


async def test_functions_of_either_kind_handle_entries_and_acknowledge_them(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url)
    seen: list[Any] = []

    @worker.on("kinds-a")
    async def handle(reminder: Reminder) -> None:
        seen.append(reminder)

    @worker.on("kinds-b", concurrency=2)
    def block(text: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(text)

    await client.schedule("kinds-a", {"user": 5}, delay_ms=50)
    await client.schedule("kinds-b", "hello", delay_ms=0)
    async with worker.running():
        await until(lambda: len(seen) == 2)
        await all_acknowledged(client, "kinds-a")
        await all_acknowledged(client, "kinds-b")
    assert Reminder(5) in seen
    assert "hello" in seen


async def test_a_failed_entry_comes_again_until_it_is_a_dead_letter(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url)
    attempts: list[tuple[bytes, int, int]] = []

    @worker.on("failing", retries=2, backoff="50ms")
    async def handle(payload: bytes, delivery: Delivery) -> None:
        attempts.append((payload, delivery.attempt, delivery.attempts))
        if payload == b"never" or delivery.attempt < 2:
            raise ValueError(f"not yet: {payload!r}")

    for payload in ("never", "later"):
        await client.publish("failing", payload, headers={"h": "v"}, key="k")
    async with worker.running():
        (dead,) = await entries_of(client, "failing-worker-DLQ")
        await all_acknowledged(client, "failing")
        await all_acknowledged(client, "failing-worker-RETRY")
    never = [one[1:] for one in attempts if one[0] == b"never"]
    later = [one[1:] for one in attempts if one[0] == b"later"]
    assert (never, later) == ([(1, 3), (2, 3), (3, 3)], [(1, 3), (2, 3)])
    assert (dead.payload, dead.key) == (b"never", "k")
    assert dead.headers == {
        "h": "v",
        "tarry-attempt": "3",
        "tarry-topic": "persistent://public/default/failing",
        "tarry-error": "ValueError: not yet: b'never'",
    }


async def test_a_payload_that_cannot_be_read_is_a_dead_letter_at_once(
    server: ServerProcess, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(server.url)

    @worker.on("typed", dead_letter_topic="typed-dead")
    async def handle(reminder: Reminder) -> None:
        raise AssertionError

    await client.publish("typed", {"user": "x"})
    async with worker.running():
        (dead,) = await entries_of(client, "typed-dead")
    assert dead.headers["tarry-attempt"] == "1"
    assert dead.headers["tarry-error"].startswith("BadPayload: ")
    (told,) = [record for record in caplog.records if "a payload cannot be read" in record.getMessage()]
    assert told.exc_info is None


async def test_a_function_that_takes_too_long_has_failed(server: ServerProcess, client: AsyncClient) -> None:
    worker = Worker(server.url)
    proceed = threading.Event()
    blocked = []

    @worker.on("slow", retries=0, timeout="50ms")
    async def handle() -> None:
        await asyncio.sleep(3600)

    @worker.on("slow-threads", retries=0, timeout="50ms", concurrency=1)
    def block() -> None:
        blocked.append(time.monotonic())
        proceed.wait(60)

    await client.publish("slow")
    await client.publish("slow-threads", "1")
    await client.publish("slow-threads", "2")
    async with worker.running():
        (dead,) = await entries_of(client, "slow-worker-DLQ")
        assert dead.headers["tarry-error"] == "TimeoutError: it was not done in 0.05 s"
        (dead,) = await entries_of(client, "slow-threads-worker-DLQ")
        assert dead.headers["tarry-error"] == "TimeoutError: it was not done in 0.05 s"
        # The thread goes on, and has its place until it is done: while another entry runs out of its time, the second one
        # is neither begun nor given up.
        await client.publish("slow")
        await until(lambda: has_backlog(client, "slow-worker-DLQ", 2))
        assert len(blocked) == 1
        proceed.set()
        await until(lambda: len(blocked) == 2)
        await all_acknowledged(client, "slow-threads")
        assert await backlog(client, "slow-threads-worker-DLQ", "reader") == 1


async def test_an_entry_whose_next_attempt_is_refused_comes_again(
    server: ServerProcess, client: AsyncClient
) -> None:
    """An entry is acknowledged only once its next attempt is scheduled: a crash in between would lose it."""
    worker = Worker(server.url)
    attempts: list[int] = []

    @worker.on("refused", retries=1, backoff="50ms")
    async def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError

    await client.set_policy(Policy(max_delay_ms=1), topic="refused-worker-RETRY")
    await client.publish("refused")
    async with worker.running():
        await until(lambda: len(attempts) >= 2)
        await client.remove_policy(topic="refused-worker-RETRY")
        await until(lambda: 2 in attempts)
        await all_acknowledged(client, "refused")
    assert attempts.count(2) == 1


async def test_no_more_run_at_a_time_than_there_are_places(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url)
    at_a_time, most, done = 0, 0, 0

    @worker.on("places", concurrency=3)
    async def handle() -> None:
        nonlocal at_a_time, most, done
        at_a_time += 1
        most = max(most, at_a_time)
        await asyncio.sleep(0.01)
        at_a_time -= 1
        done += 1

    for _ in range(30):
        await client.publish("places")
    async with worker.running():
        await until(lambda: done == 30)
    assert most == 3


async def test_middleware_is_around_each_attempt(server: ServerProcess, client: AsyncClient) -> None:
    worker = Worker(server.url)
    seen: list[str] = []

    @worker.middleware
    async def outer(delivery: Delivery, call_next: Any) -> Any:
        seen.append(f"outer {delivery.attempt}")
        try:
            return await call_next(delivery)
        finally:
            seen.append("outer ends")

    @worker.middleware
    async def inner(delivery: Delivery, call_next: Any) -> Any:
        if delivery.attempt == 1:
            raise RuntimeError
        return await call_next(delivery)

    @worker.on("around", backoff="10ms")
    async def handle() -> None:
        seen.append("function")

    await client.publish("around")
    async with worker.running():
        await until(lambda: "function" in seen)
    assert seen == ["outer 1", "outer ends", "outer 2", "function", "outer ends"]


async def test_a_trace_goes_on_in_the_worker(
    server: ServerProcess, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("tarry.client.worker.telemetry.trace.get_tracer", provider.get_tracer)
    worker = Worker(server.url, tracing=True)

    @worker.on("traced", retries=1, backoff="10ms")
    async def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("a secret")

    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.publish("traced", headers={"traceparent": caller})
    async with worker.running():
        await until(lambda: len(exporter.get_finished_spans()) == 2)
    first, second = exporter.get_finished_spans()
    for span in (first, second):
        assert span.name == "process persistent://public/default/traced"
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == caller[3:35]
    assert first.attributes is not None
    assert first.attributes["error.type"] == "ValueError"
    assert "a secret" not in first.to_json()
    assert second.status.is_ok
    await asyncio.to_thread(provider.shutdown)


async def test_a_stop_waits_for_functions_and_gives_the_rest_to_others(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url)
    began, proceed, done = asyncio.Event(), asyncio.Event(), 0

    @worker.on("stopping", concurrency=1)
    async def handle() -> None:
        nonlocal done
        began.set()
        await proceed.wait()
        done += 1

    for _ in range(3):
        await client.publish("stopping")
    working = asyncio.create_task(worker.run_async())
    await began.wait()
    worker.stop()
    await asyncio.sleep(0.05)
    assert not working.done()
    proceed.set()
    await asyncio.wait_for(working, 60)
    assert done == 1
    rest = await client.receive("stopping", "worker", wait_ms=10_000)
    assert len(rest) == 2


async def test_a_stop_that_takes_too_long_cancels_and_the_entry_comes_again(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url, stop_timeout="100ms")
    began = asyncio.Event()

    @worker.on("hanging")
    async def handle() -> None:
        began.set()
        await asyncio.sleep(3600)

    await client.publish("hanging", "still here")
    working = asyncio.create_task(worker.run_async())
    await began.wait()
    worker.stop()
    await asyncio.wait_for(working, 60)
    (entry,) = await client.receive("hanging", "worker", wait_ms=10_000)
    assert entry.payload == b"still here"


async def test_a_worker_whose_subscription_is_removed_ends_with_the_reason(
    server: ServerProcess, client: AsyncClient
) -> None:
    worker = Worker(server.url)

    @worker.on("removed")
    async def handle() -> None: ...

    working = asyncio.create_task(worker.run_async())

    async def is_there() -> bool:
        return await backlog(client, "removed-worker-RETRY") is not None

    await until(is_there)
    await client.unsubscribe("removed", "worker")
    with pytest.raises(NotFound):
        await asyncio.wait_for(working, 60)


# As a command, killed


APP = """
import os, time
from tarry import Worker

worker = Worker()

@worker.on("killed", concurrency=4, retries=5, backoff="50ms")
def handle(number: int) -> None:
    time.sleep(0.005)
    if number % 10 == 0 and not os.path.exists(f"failed-{number}"):
        open(f"failed-{number}", "w").close()
        raise ValueError(number)
    with open("handled", "a") as file:
        file.write(f"{number}\\n")

@worker.on("asked-to-stop")
def slow(number: int) -> None:
    open("began", "w").close()
    time.sleep(1)
    open("ended", "w").close()
"""


def start(folder: Path, server: ServerProcess) -> "subprocess.Popen[bytes]":
    (folder / "app.py").write_text(APP)
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tarry", "worker", "app:worker"],
            cwd=folder, env=environment(TARRY_URL=server.url), stdout=log, stderr=log,
        )  # fmt: skip


@pytest.mark.crash
def test_a_worker_that_is_killed_again_and_again_loses_nothing(server: ServerProcess, tmp_path: Path) -> None:
    count, handled = 600, tmp_path / "handled"
    with Client(server.url) as client:
        for _ in client.schedule_many(
            {"destination": "killed", "payload": str(n), "delay_ms": 4 * n} for n in range(count)
        ):
            pass

        def left() -> int:
            waiting = 0
            for topic in ("killed", "killed-worker-RETRY"):
                # In the order in which an entry passes through them: one that moves on meanwhile is seen where it goes.
                waiting += len(client.list_page(destination=f"persistent://public/default/{topic}").messages)
                try:
                    waiting += int(client.topic_stats(topic)["subscriptions"]["worker"]["backlog"])
                except (NotFound, KeyError):
                    return count
            return waiting

        def lines() -> list[str]:
            return handled.read_text().splitlines() if handled.exists() else []

        kills = 0
        # A message that fires at the moment of the look is in neither; one that is lost is missing after the last worker, too.
        while left() or (len(set(lines())) < count and kills < 40):
            process = start(tmp_path, server)
            try:
                # Killed in the middle of its work: once it has handled some more.
                target = len(lines()) + 60
                wait_until(lambda: len(lines()) >= target or not left())  # noqa: B023 - it is called in this turn
            finally:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            kills += 1
        assert kills >= 5
        numbers = [int(line) for line in lines()]
        assert sorted(set(numbers)) == list(range(count))
        # Each kill costs those that were being handled, four at a time, and no more.
        assert len(numbers) - count <= kills * 8


@pytest.mark.crash
def test_sigterm_lets_functions_finish(server: ServerProcess, tmp_path: Path) -> None:
    with Client(server.url) as client:
        client.publish("asked-to-stop", "1")
        process = start(tmp_path, server)
        try:
            wait_until((tmp_path / "began").exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert (tmp_path / "ended").exists()
        (stopped,) = [line for line in (tmp_path / "log").read_text().splitlines() if "SIGTERM" in line]
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info ", stopped)
        stats = client.topic_stats("asked-to-stop")["subscriptions"]["worker"]
        assert stats["backlog"] == 0


def test_the_command_says_what_is_wrong_with_its_argument(tmp_path: Path) -> None:
    for argument, said in (
        ("app", "is not MODULE:WORKER"),
        ("no_such_module:worker", "there is no module no_such_module"),
        ("json:worker", "worker in json is no tarry.Worker"),
    ):
        done = tarry("worker", argument)
        assert done.returncode == 2
        assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_module_that_the_workers_own_lacks_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import a_library_of_mine")
    done = subprocess.run(
        [sys.executable, "-m", "tarry", "worker", "app:worker"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "No module named 'a_library_of_mine'" in done.stderr
    assert "needs tarry[" not in done.stderr


def test_backoff_is_a_value() -> None:
    assert Backoff() == Backoff("1s", "5m")
