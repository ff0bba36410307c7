"""The lives of two servers that share a ledger on a broker: the owner is killed, stopped or paused, and the other goes on.

Clients come through a load balancer that asks both whether they are ready. A paused owner wakes once the other owns the ledger, with
commands that wait for an answer, due messages and attempts under way; it ends by itself, and stands by in its next life.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp

from tests.cluster.balancer import Backend, Balancer
from tests.cluster.brokers import Brokers
from tests.cluster.links import Network
from tests.cluster.servers import ClusterServer
from tests.linearizability.checker import Operation
from tests.linearizability.doors import Doors
from tests.linearizability.life import Happened
from tests.linearizability.receivers import AS_TOKEN, Receivers
from tests.linearizability.recording import DOOR, ENGINE, Recorder
from tests.linearizability.server import Lives
from tests.processes import free_port
from tests.waiting import WITHIN_S, wait_until

SESSION_MS: Final = 3_000
AFTER_WAKING_S: Final = 0.3
"""So long a server that was paused has its way before anything is asked of it."""


class Takeovers(Lives):
    """Two servers of which one owns the ledger, and when it went."""

    def __init__(self, servers: list[ClusterServer], balancer: Balancer, seed: int) -> None:
        """The owner is the first of them."""
        super().__init__(servers[0])
        self._servers = servers
        self._numbers = {server.name: number for number, server in enumerate(servers)}
        self._balancer = balancer
        self._random = random.Random(seed)

    async def end(self, *, gently: bool) -> None:
        """End the owner, or pause it, and have the other take over; the owner of before stands by then."""
        owner, standby = self._servers
        how = signal.SIGTERM if gently else self._random.choice((signal.SIGKILL, signal.SIGSTOP))
        called = time.monotonic()
        self._up.clear()
        await asyncio.to_thread(self._take_over, owner, standby, how)
        self.crashes.append(Operation(what=Happened("crash"), called=called, returned=time.monotonic()))
        self._servers.reverse()
        self._up.set()
        await asyncio.to_thread(self._stand_by, owner, how)

    def _take_over(self, owner: ClusterServer, standby: ClusterServer, how: signal.Signals) -> None:
        owner.signal(how)
        if how is not signal.SIGSTOP:
            owner.reap()
        standby.wait_owner()
        ready = frozenset({self._numbers[standby.name]})
        wait_until(lambda: self._balancer.ready == ready, standby.said)

    def _stand_by(self, former: ClusterServer, how: signal.Signals) -> None:
        if how is signal.SIGSTOP:
            time.sleep(AFTER_WAKING_S)
            former.signal(signal.SIGCONT)
            # It finds the other's claim with its next record, and ends.
            wait_until(lambda: former.ended, former.said)
            former.reap()
        former.launch()
        former.wait_standby()


@contextlib.asynccontextmanager
async def recorder_of_two(folder: Path, seed: int, cluster: Brokers) -> AsyncIterator[Recorder]:
    """Two real servers with their receivers, and clients that record."""
    receivers = Receivers()
    await receivers.start()
    registration = folder / "registration.yaml"
    registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": "hs-secret-token"}))
    topic = cluster.make_topic(f"histories-{folder.name}-{seed}", min_insync_replicas="1")
    key = folder / "key"
    key.write_bytes(os.urandom(32))
    servers: list[ClusterServer] = []
    backends: list[Backend] = []
    for name in ("a", "b"):
        matrix = free_port()
        door = DOOR.format(port=matrix, homeserver=receivers.url, registration=registration)
        server = ClusterServer(
            folder / name, cluster.addresses, topic, key, SESSION_MS, f"[engine]\n{ENGINE}\n{door}"
        )
        servers.append(server)
        backends.append(Backend(server.port, {"native": server.port, "matrix": matrix}))
    network = Network()
    try:
        servers[0].launch()
        await asyncio.to_thread(servers[0].wait_owner)
        servers[1].launch()
        await asyncio.to_thread(servers[1].wait_standby)
        balancer = Balancer(network, backends)
        timeout = aiohttp.ClientTimeout(total=WITHIN_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            lives = Takeovers(servers, balancer, seed)
            native, at_matrix = (f"http://127.0.0.1:{balancer.port(name)}" for name in ("native", "matrix"))
            doors = Doors(session, native, at_matrix, receivers, lives)
            await doors.subscribe()
            yield Recorder(doors, receivers, lives, seed)
    finally:
        network.close()
        for server in servers:
            server.kill()
        await receivers.stop()
