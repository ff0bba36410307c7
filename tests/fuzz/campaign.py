"""One campaign: feed every door, kill the server, start it, end all that waits, start it again.

It holds that the server is alive, that no error was isolated and nothing failed inside, that no turn of its loop took much of
the processor, that every message that it accepted has ended, and that no entry of a topic is late.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
import httpx

from tests.fuzz.application import Application
from tests.fuzz.dapr import Dapr
from tests.fuzz.dapr_grpc import DaprGrpc
from tests.fuzz.feeder import Feeder
from tests.fuzz.homeservers import Homeserver
from tests.fuzz.matrix import Matrix
from tests.fuzz.native import Native
from tests.fuzz.operations import Operations
from tests.fuzz.operators import COMPONENT, Operators
from tests.fuzz.pulsar import Pulsar
from tests.fuzz.staging import Staging
from tests.fuzz.values import TENANTS, Values
from tests.processes import ServerProcess, free_port
from tests.serving import plain_client
from tests.unit.dapr_kit import component

TURN_CPU_S: Final = 0.6
"""Generous: beside the other workers of `make test` the caches are cold, and what is measured takes thrice as long."""
ALONE_TURN_CPU_S: Final = 0.3
"""For campaigns that run by themselves: the longest of three took 23, 33 and 145 ms at a load of nine on two cores."""

END_WITHIN_S: Final = 120
LATE_MS: Final = 10_000
ENDED: Final = {"sent", "cancelled", "failed"}
NEVER_SAID: Final = ("Traceback", "a fault", "failed with", "a receiver failed", "could not be settled")
"""In the log of a server: how errors that nobody expected are told."""

UNLIMITED: Final = "\n".join(
    f"{name} = 0"
    for name in ("schedule_per_second", "manage_per_second", "manage_per_second_per_event", "list_per_second", "send_per_second")
)  # fmt: skip


class Campaign:
    """A seed, a server, and its doors."""

    def __init__(
        self, folder: Path, seed: int, homeserver: Homeserver, turn_cpu_s: float = TURN_CPU_S
    ) -> None:
        self._seed = seed
        self._turn_cpu_s = turn_cpu_s
        self._folder = folder
        self._homeserver = homeserver
        self._ports = {name: free_port() for name in ("pulsar", "dapr", "grpc")}
        self._ports["matrix"] = homeserver.door_port
        self._application = Application(Values(seed))
        self._checked: list[str] = []
        self.longest_cpu_s = 0.0
        self.accepted: dict[str, int] = {}
        """By feeder: how many messages, or batches, were accepted whose ids it was told."""

    async def run(self, steps: int) -> None:
        """All of it; raises `AssertionError`."""
        await self._application.start()
        try:
            with ServerProcess(self._folder / "data", self._config()) as server:
                try:
                    await self._live(server, steps)
                except (httpx.HTTPError, OSError) as error:
                    raise AssertionError(f"{error!r}; it said {_end_of(server)}") from error
        finally:
            await self._application.stop()

    async def _live(self, server: ServerProcess, steps: int) -> None:
        """The three starts of the server."""
        await asyncio.to_thread(server.start)
        await self._feed(server, steps)
        await self._look_at(server)
        server.kill()
        await asyncio.to_thread(server.start)
        await self._end_all(server)
        await self._look_at(server)
        assert await asyncio.to_thread(server.stop) == 0
        await asyncio.to_thread(server.start)
        await self._all_ended(server)
        await self._look_at(server)
        said = server.said()
        for one in NEVER_SAID:
            assert one not in said, said[max(0, said.index(one) - 300) :][:3_000]

    def _config(self) -> str:
        resources = self._folder / "resources"
        resources.mkdir()
        components = [
            component("pubsub", "pubsub.tarry", enableDelayedMessaging=True),
            component("memory", "pubsub.in-memory", enableDelayedMessaging=True),
        ]
        (resources / "all.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in components))
        ports = self._ports
        # As it comes in one campaign, without limits on users in the next: there they get further.
        limits = UNLIMITED if self._seed % 2 else ""
        return f"""
            [ledger]
            segment_bytes = 8388608
            [[brokers.allow]]
            component = "{COMPONENT}"
            namespaces = ["{TENANTS[0]}"]
            [doors.pulsar]
            enabled = true
            port = {ports["pulsar"]}
            [doors.dapr]
            enabled = true
            port = {ports["dapr"]}
            grpc_port = {ports["grpc"]}
            app_port = {self._application.port}
            resources_path = ["{resources}"]
            retry_min_ms = 20
            retry_max_ms = 100
            [doors.matrix]
            enabled = true
            port = {ports["matrix"]}
            homeserver = "{self._homeserver.url}"
            registration = "{self._homeserver.registration}"
            {limits}
        """

    async def _feed(self, server: ServerProcess, steps: int) -> None:
        async with self._feeders(server) as feeders:

            async def feed(feeder: Feeder, count: int) -> None:
                for _ in range(count):
                    await feeder.step()

            async with asyncio.TaskGroup() as feeding:
                for feeder in feeders:
                    # The native door has most to be told, and answers fastest.
                    feeding.create_task(feed(feeder, steps if isinstance(feeder, Native) else steps // 3))
        self.accepted = {type(feeder).__name__: len(feeder.accepted) for feeder in feeders if feeder.accepted}
        assert self.accepted["Native"], "nothing was accepted: there was nothing to test"
        for feeder in (one for one in feeders if not isinstance(one, Staging)):
            self._checked += feeder.accepted[:: max(1, len(feeder.accepted) // 200)]

    @contextlib.asynccontextmanager
    async def _feeders(self, server: ServerProcess) -> AsyncIterator[list[Feeder]]:
        """Everybody who feeds a door."""
        address = f"127.0.0.1:{self._ports['grpc']}"
        urls = [server.url, *(f"http://127.0.0.1:{self._ports[name]}" for name in ("dapr", "matrix"))]
        async with (
            plain_client(urls[0]) as native,
            plain_client(urls[1]) as dapr,
            plain_client(urls[2]) as matrix,
            grpc.aio.insecure_channel(address) as channel,
        ):
            values = (Values(self._seed + n) for n in range(100))
            homeserver = self._homeserver
            yield [
                Native(native, next(values)),
                Pulsar(self._ports["pulsar"], next(values)),
                Dapr(dapr, next(values)),
                Matrix(matrix, next(values), homeserver.tokens, homeserver.room, homeserver.hs_token),
                DaprGrpc(channel, self._ports["grpc"], next(values)),
                Operations(native, next(values)),
                Operators(native, next(values)),
                Staging(native, next(values)),
            ]

    async def _look_at(self, server: ServerProcess) -> None:
        """Check that the server is alive, that no turn took long, and that no message was isolated."""
        assert not server.ended, _end_of(server)
        async with plain_client(server.url) as client:
            assert (await client.get("/healthz")).status_code == 200
            ready = await client.get("/readyz")
            assert ready.status_code == 200, ready.text
            text = (await client.get("/metrics")).text
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tarry_"))
        assert float(figures["tarry_messages_isolated_total"]) == 0, _end_of(server)
        self.longest_cpu_s = max(self.longest_cpu_s, float(figures["tarry_loop_longest_turn_cpu_seconds"]))
        assert self.longest_cpu_s < self._turn_cpu_s, (
            f"a turn took {self.longest_cpu_s * 1000:.0f} ms of the processor; {_end_of(server)}"
        )

    async def _end_all(self, server: ServerProcess) -> None:
        """Take limits, pauses and repeats away, and cancel what is not due within the campaign, until nothing waits."""
        deadline = time.monotonic() + END_WITHIN_S
        async with plain_client(server.url) as client:
            places = ["broker", *(f"namespaces/{one}" for one in TENANTS)]
            places += [f"topics/{one}/n{n}" for one in TENANTS for n in range(6)]
            for place in places:
                await client.delete(f"/v1/policies/{place}")
            await _remove_repeats(client)
            await _resume_places(client)
            while (await client.get("/v1/status")).json()["engine"]["pending"]:
                assert time.monotonic() < deadline, await _waiting(client)
                await _cancel_all(client)
                await asyncio.sleep(0.1)

    async def _all_ended(self, server: ServerProcess) -> None:
        async with plain_client(server.url) as client:
            for id_ in self._checked:
                answer = await client.get(f"/v1/messages/{id_}")
                assert answer.status_code == 200, answer.text
                assert answer.json()["state"] in ENDED, answer.text
            for topic in (await client.get("/v1/topics")).json()["topics"]:
                await _none_late(client, topic)


def _end_of(server: ServerProcess) -> str:
    """The end of what it said, without what every campaign makes it say by the thousand."""
    lines = [line for line in server.said().splitlines() if "is no CloudEvent" not in line]
    return "\n".join(lines)[-5_000:]


async def _none_late(client: httpx.AsyncClient, topic: str) -> None:
    """No entry of a topic waits although its instant has passed."""
    now_ms = time.time_ns() // 1_000_000
    tenant, namespace, name = topic.partition("://")[2].split("/", 2)
    answer = await client.get(f"/v1/topics/{tenant}/{namespace}/{quote(name, safe='')}/delayed")
    assert answer.status_code == 200, answer.text
    late = [one for one in answer.json()["entries"] if one["due_at_ms"] < now_ms - LATE_MS]
    assert not late, (topic, late[:5])


async def _remove_repeats(client: httpx.AsyncClient) -> None:
    while repeats := (await client.get("/v1/repeats")).json()["repeats"]:
        for one in repeats:
            answer = await client.delete(f"/v1/repeats/{one['namespace']}/{quote(one['name'], safe='')}")
            assert answer.status_code == 204, (one, answer.text)


async def _resume_places(client: httpx.AsyncClient) -> None:
    for one in (await client.get("/v1/pauses")).json()["pauses"]:
        place = {one["kind"]: one["name"]} | (
            {} if one["kind"] == "topic" else {"namespace": one["namespace"]}
        )
        answer = await client.post("/v1/pauses/resume", json=place)
        assert answer.status_code == 200, (one, answer.text)


async def _cancel_all(client: httpx.AsyncClient) -> None:
    page: str | None = ""
    while page is not None:
        query = {"limit": "1000"} | ({"page": page} if page else {})
        answer = (await client.get("/v1/messages", params=query)).json()
        for message in answer["messages"]:
            await client.delete(f"/v1/messages/{message['id']}")
        page = answer["next_page"]


async def _waiting(client: httpx.AsyncClient) -> str:
    return (await client.get("/v1/messages?limit=20")).text[:3_000]
