"""Links: TCP ports that pass connections on to another port, and can be cut, slowed down and healed.

A link that is cut loses nothing and says nothing, like a cable that was pulled: bytes wait on both sides, new connections get no
answer, and healed all of it goes on. `reset` breaks the connections that are there, as a firewall that forgot them does.
"""

import asyncio
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

CHUNK: Final = 1 << 18


class Relay(ABC):
    """A port whose connections are passed on."""

    delay_s = 0.0
    """How long each chunk of bytes is on its way."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        self._passing = asyncio.Event()
        self._passing.set()
        self._answering = asyncio.Event()
        self._answering.set()
        self._open: dict[asyncio.StreamWriter, int] = {}
        """Both sides of each connection, with the port that it was passed on to."""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        network.spawn(self._serve())

    @abstractmethod
    async def choose(self) -> int:
        """The port of 127.0.0.1 that the next connection is for."""

    def abort(self, target: int | None = None) -> None:
        """In the network's thread: break the connections, or those to one port."""
        for writer, to in self._open.items():
            if target in (None, to):
                _break(writer)

    def mute(self) -> None:
        """Let requests pass, and no answer."""
        self.network.call(self._answering.clear)

    def unmute(self) -> None:
        """Let answers pass again: also those that waited, unless their connection was broken."""
        self.network.call(self._answering.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket)
        async with server:
            try:
                await server.serve_forever()
            finally:
                self.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._open[writer] = 0
        try:
            await self._passing.wait()
            target = await self.choose()
            behind, onward = await asyncio.open_connection("127.0.0.1", target)
            ends.append(onward)
            self._open |= dict.fromkeys(ends, target)
            await asyncio.gather(
                self._pump(reader, onward, self._passing),
                self._pump(behind, writer, self._passing, self._answering),
            )
        except (OSError, asyncio.CancelledError):
            # Also cancelled it ends in peace: asyncio would tell of it with a traceback.
            for end in ends:
                _break(end)
        finally:
            for end in ends:
                self._open.pop(end, None)
                end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *gates: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            for gate in gates:
                await gate.wait()
            writer.write(data)
            await writer.drain()
        for gate in gates:
            await gate.wait()
        writer.write_eof()


def _break(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side hears that it broke, and not that it ended."""
    connection = writer.get_extra_info("socket")
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Link(Relay):
    """The way to one port, on which nobody need listen yet."""

    def __init__(self, network: "Network", target: int) -> None:
        self._target = target
        super().__init__(network)

    async def choose(self) -> int:
        """The port at its end."""
        return self._target

    def cut(self) -> None:
        """Let nothing pass."""
        self.network.call(self._passing.clear)

    def heal(self) -> None:
        """Let everything pass, at full speed."""
        self.delay_s = 0.0
        self.network.call(self._passing.set)

    def reset(self) -> None:
        """Break the connections that are there."""
        self.network.call(self.abort)


class Network:
    """The thread in which links pass their bytes on; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._tasks: list[asyncio.Task[None]] = []
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, and wait until it was."""

        async def called() -> None:
            function()

        self.run(called())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the thread, and wait until it is done."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done in the thread until the end."""
        self.call(lambda: self._tasks.append(self._loop.create_task(work)))

    def close(self) -> None:
        """End all links and their connections."""
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
