"""Unmodified clients go on across a takeover: behind a load balancer, they notice no more than broken connections."""

# The SDK is only partly typed.
# mypy: disable-error-code="no-untyped-call"

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from dapr.clients import DaprClient

from tarry import AsyncClient, Scheduled, Worker
from tests.cluster.balancer import Balancer
from tests.cluster.brokers import Brokers
from tests.cluster.links import Network
from tests.cluster.servers import ClusterServer, two_servers
from tests.conformance.dapr.kit import Sidecar, point_sdk_at
from tests.waiting import until

COUNT: Final = 30
EVERY_MS: Final = 200
"""So the last ones are due some seconds after the owner was killed, and some while nobody owns the ledger."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Arrivals:
    """The instants at which messages came for the first time, by name."""

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        self.came: dict[str, int] = {}

    def add(self, name: str) -> None:
        self.came.setdefault(name, now_ms())

    def early(self) -> list[str]:
        return [name for name, at_ms in self.came.items() if at_ms < self.due[name]]


@pytest.fixture
def servers(
    one_broker: Brokers, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[ClusterServer]]:
    topic = one_broker.make_topic(f"ledger-of-{request.node.name}"[:200], min_insync_replicas="1")
    with two_servers(tmp_path, one_broker, topic) as started:
        yield started


async def test_a_worker_and_a_dapr_stream_go_on_at_the_server_that_takes_over(
    servers: list[ClusterServer], network: Network
) -> None:
    balancer = Balancer(network, [server.backend for server in servers])
    await until(lambda: balancer.ready == {0})
    url = f"http://127.0.0.1:{balancer.port('http')}"
    sidecar = Sidecar(balancer.port("dapr"), balancer.port("dapr_grpc"), url)
    tasks, events = Arrivals(), Arrivals()
    worker = Worker(url)

    @worker.on("tasks")
    async def handle(name: str) -> None:
        tasks.add(name)

    ending = threading.Event()
    with point_sdk_at(sidecar):
        streaming = threading.Thread(target=_stream, args=[sidecar, events, ending], daemon=True)
        streaming.start()
        async with worker.running(), AsyncClient(url) as client:
            first_ms = now_ms() + 1_000
            publisher = DaprClient(sidecar.address)
            for n in range(COUNT):
                tasks.due[f"t{n}"] = events.due[f"d{n}"] = first_ms + n * EVERY_MS
                await client.schedule("tasks", f"t{n}", due_at_ms=tasks.due[f"t{n}"])
                await asyncio.to_thread(_publish, publisher, f"d{n}", events.due[f"d{n}"])
            publisher.close()
            servers[0].kill()
            struck_ms = now_ms()
            await until(lambda: tasks.came.keys() == tasks.due.keys())
            await until(lambda: events.came.keys() == events.due.keys())
        ending.set()
    assert not tasks.early()
    assert not events.early()
    # Otherwise it was no takeover that they went through.
    assert max(tasks.came.values()) > struck_ms
    assert max(events.came.values()) > struck_ms
    assert servers[1].figure("tarry_cluster_epoch") == 2


async def test_calls_whose_answers_are_lost_are_repeated_at_the_next_owner_and_done_once(
    servers: list[ClusterServer], network: Network
) -> None:
    owner, standby = servers
    balancer = Balancer(network, [server.backend for server in servers])
    await until(lambda: balancer.ready == {0})
    url = f"http://127.0.0.1:{balancer.port('http')}"
    async with AsyncClient(url, retry_for_s=60) as client, AsyncClient(owner.url) as beside:

        def schedule(names: list[str]) -> list[asyncio.Task[Scheduled]]:
            return [asyncio.create_task(client.schedule("calls", name, delay="1d")) for name in names]

        async def listed(at: AsyncClient) -> list[str]:
            found = at.list(destination="persistent://public/default/calls")
            return sorted([message.payload_text or "" async for message in found])

        (kept,) = schedule(["kept"])
        await kept
        balancer.fronts["http"].mute()
        unanswered = [f"unanswered {n}" for n in range(COUNT)]
        calls = schedule(unanswered)
        # The owner has carried them out, and the client does not know.
        await until(lambda: _holds(listed(beside), sorted(["kept", *unanswered])))
        owner.kill()
        await until(lambda: not balancer.ready)
        balancer.fronts["http"].unmute()
        assert not any(call.done() for call in calls)
        # Nobody owns the ledger now.
        in_the_gap = [f"gap {n}" for n in range(COUNT)]
        calls += schedule(in_the_gap)
        cancelled = asyncio.create_task(client.cancel((await kept).id))
        answers = await asyncio.gather(*calls)
        await cancelled
        assert [answer.repeated for answer in answers] == [True] * COUNT + [False] * COUNT
        assert len({answer.id for answer in answers}) == 2 * COUNT
        assert await listed(client) == sorted(unanswered + in_the_gap)
    assert standby.figure("tarry_cluster_epoch") == 2


async def _holds(listed: Awaitable[list[str]], expected: list[str]) -> bool:
    return await listed == expected


def _publish(publisher: DaprClient, name: str, due_ms: int) -> None:
    at = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    publisher.publish_event("pubsub", "events", name, publish_metadata={"scheduledSendTime": at})


def _stream(sidecar: Sidecar, events: Arrivals, ending: threading.Event) -> None:
    """Take what comes by a streaming subscription; one that breaks is made anew, as an application does."""
    logging.getLogger("dapr").setLevel(logging.CRITICAL)
    while not ending.is_set():
        with suppress(Exception), DaprClient(sidecar.address) as client:
            subscription = client.subscribe("pubsub", "events")
            for message in subscription:
                events.add(str(message.data()))
                subscription.respond_success(message)
