"""One campaign: feed every door, kill the server, start it, end all that waits, start it again.

It holds that the server is alive, that no error was isolated and no fault told, that no turn of its loop took much of
the processor, and that every message that it accepted has ended.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from tests.fuzz.native import Native
from tests.fuzz.others import Dapr, Matrix, Pulsar
from tests.fuzz.values import TENANTS, Values
from tests.processes import ServerProcess, free_port
from tests.serving import plain_client
from tests.unit.matrix_kit import AS_TOKEN, HS_TOKEN, TinyHomeserver

TURN_CPU_S: Final = 0.6
"""Generous: where a core is shared by ten others the caches are cold, and what is measured takes thrice as long."""

END_WITHIN_S: Final = 120
ENDED: Final = {"sent", "cancelled", "failed"}


class Campaign:
    """A seed, a server, and its doors."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._ports = {name: free_port() for name in ("pulsar", "dapr", "grpc", "matrix")}
        self._homeserver = TinyHomeserver()
        self._checked: list[str] = []
        self.longest_cpu_s = 0.0

    async def run(self, steps: int) -> None:
        """All of it; raises `AssertionError`."""
        await self._homeserver.start()
        try:
            with ServerProcess(self._folder / "data", self._config()) as server:
                await asyncio.to_thread(server.start)
                try:
                    await self._feed(server, steps)
                except httpx.HTTPError as error:
                    raise AssertionError(f"{error!r}; it said {server.said()[-5_000:]}") from error
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
                assert "Traceback" not in said, said[-5_000:]
                assert "a fault" not in said, said[-5_000:]
                assert "a request failed" not in said, said[said.index("a request failed") :][:3_000]
        finally:
            await self._homeserver.stop()

    def _config(self) -> str:
        registration = self._folder / "registration.yaml"
        registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": HS_TOKEN}))
        ports = self._ports
        return f"""
            [ledger]
            segment_bytes = 8388608
            [doors.pulsar]
            enabled = true
            port = {ports["pulsar"]}
            [doors.dapr]
            enabled = true
            port = {ports["dapr"]}
            grpc_port = {ports["grpc"]}
            [doors.matrix]
            enabled = true
            port = {ports["matrix"]}
            homeserver = "{self._homeserver.url}"
            registration = "{registration}"
        """

    async def _feed(self, server: ServerProcess, steps: int) -> None:
        urls = [server.url, *(f"http://127.0.0.1:{self._ports[name]}" for name in ("dapr", "matrix"))]
        async with (
            plain_client(urls[0]) as first,
            plain_client(urls[1]) as second,
            plain_client(urls[2]) as third,
        ):
            native = Native(first, Values(self._seed))
            others: Sequence[Any] = (
                Pulsar(self._ports["pulsar"], Values(self._seed + 1)),
                Dapr(second, Values(self._seed + 2)),
                Matrix(third, Values(self._seed + 3)),
            )

            async def feed(door: Any, count: int) -> None:
                for _ in range(count):
                    await door.step()

            await asyncio.gather(feed(native, steps), *(feed(door, steps // 4) for door in others))
            assert native.accepted, "nothing was accepted: there was nothing to test"
            self._checked = native.accepted[:: max(1, len(native.accepted) // 200)]

    async def _look_at(self, server: ServerProcess) -> None:
        """It is alive, and nothing took long or went wrong."""
        assert not server.ended, server.said()[-3_000:]
        async with plain_client(server.url) as client:
            assert (await client.get("/healthz")).status_code == 200
            ready = await client.get("/readyz")
            assert ready.status_code == 200, ready.text
            text = (await client.get("/metrics")).text
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tarry_"))
        assert float(figures["tarry_messages_isolated_total"]) == 0, server.said()[-5_000:]
        self.longest_cpu_s = max(self.longest_cpu_s, float(figures["tarry_loop_longest_turn_cpu_seconds"]))
        assert self.longest_cpu_s < TURN_CPU_S, server.said()[-5_000:]

    async def _end_all(self, server: ServerProcess) -> None:
        """Take the limits away, and cancel what is not due within the campaign, until nothing waits."""
        deadline = time.monotonic() + END_WITHIN_S
        async with plain_client(server.url) as client:
            places = ["broker", *(f"namespaces/{one}" for one in TENANTS)]
            places += [f"topics/{one}/n{n}" for one in TENANTS for n in range(6)]
            for place in places:
                await client.delete(f"/v1/policies/{place}")
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
