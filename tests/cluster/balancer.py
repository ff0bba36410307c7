"""A load balancer as one has it before two servers: connections go to a server whose `/readyz` says that it is ready.

While none is ready they wait. A server that is not ready any more, or does not answer in time, loses the connections that it has.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tests.cluster.links import Network, Relay

LOOK_EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 2.0


class Backend(Struct, frozen=True):
    """A server behind it."""

    health: int
    """The port with `/readyz`."""
    doors: Mapping[str, int]
    """The port of each door."""


class Front(Relay):
    """The port of one door."""

    def __init__(self, network: Network, balancer: "Balancer", door: str) -> None:
        self._balancer = balancer
        self._door = door
        super().__init__(network)

    async def choose(self) -> int:
        """This door's port at a server that is ready."""
        return (await self._balancer.choose()).doors[self._door]

    def lose(self, backend: Backend) -> None:
        """Break the connections to a server."""
        self.abort(backend.doors[self._door])


class Balancer:
    """All doors of all servers."""

    def __init__(self, network: Network, backends: Sequence[Backend]) -> None:
        self._ready: set[int] = set()
        self._some = asyncio.Event()
        self._backends = backends
        self.fronts = {door: Front(network, self, door) for door in backends[0].doors}
        for number in range(len(backends)):
            network.spawn(self._watch(number))

    def port(self, door: str) -> int:
        """Where clients find a door."""
        return self.fronts[door].port

    @property
    def ready(self) -> frozenset[int]:
        """The numbers of the servers that are ready."""
        return frozenset(self._ready)

    async def choose(self) -> Backend:
        """A server that is ready; where there are two, either one."""
        while not self._ready:
            await self._some.wait()
        return self._backends[random.choice(sorted(self._ready))]

    async def _watch(self, number: int) -> None:
        backend = self._backends[number]
        while True:
            if await _is_ready(backend.health):
                self._ready.add(number)
                self._some.set()
            elif number in self._ready:
                self._ready.discard(number)
                if not self._ready:
                    self._some.clear()
                for front in self.fronts.values():
                    front.lose(backend)
            await asyncio.sleep(LOOK_EVERY_S)


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            finally:
                writer.close()
    except OSError:
        return False
