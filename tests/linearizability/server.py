"""The lives of one server: it is killed, or stopped, and started again, on the same ports."""

import asyncio
import time

from tests.linearizability.checker import Operation
from tests.linearizability.life import Happened
from tests.processes import ServerProcess


class Lives:
    """A server that comes back, and when it went."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._up = asyncio.Event()
        self._up.set()
        self.crashes: list[Operation[Happened]] = []
        """Each from the moment before the signal to the moment at which it is ready again."""

    @property
    def is_up(self) -> bool:
        """Whether it is there, as far as is known."""
        return self._up.is_set()

    async def back(self) -> None:
        """Wait until it is there. Whoever got no answer calls this; it is an error if nobody has ended the server."""
        assert self.crashes or not self.is_up, (
            f"no answer although it was not killed: {self._server.said()[-3_000:]}"
        )
        await self._up.wait()

    async def end(self, *, gently: bool) -> None:
        """Kill it, or stop it, and start it again."""
        called = time.monotonic()
        self._up.clear()
        await asyncio.to_thread(self._server.stop if gently else self._server.kill)
        await asyncio.to_thread(self._server.start)
        self.crashes.append(Operation(what=Happened("crash"), called=called, returned=time.monotonic()))
        self._up.set()
