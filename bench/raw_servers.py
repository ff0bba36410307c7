"""Servers that do next to nothing: an echo, uvicorn with an application that only answers, and a group commit behind a bare socket.

python -m bench.raw_servers echo|uvicorn PORT
python -m bench.raw_servers commit PORT FILE RECORD_BYTES
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, cast

import uvicorn
import uvloop

Message = MutableMapping[str, Any]
ANSWER = b'{"id":"0123456789012345678901","due_at_ms":1700000000000,"past_due":false}'


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to send."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._transport.write(data)


async def echo(port: int) -> None:
    """Serve until the end of the process."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Read a body and answer as if something had been scheduled."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def bare_uvicorn(port: int) -> None:
    """Serve until the end of the process, with the settings that Tarry uses."""
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    listening = socket.create_server(("127.0.0.1", port), backlog=1024)
    await uvicorn.Server(config).serve([listening])


class Committing(asyncio.Protocol):
    """Takes records of one size; answers each with a byte once it is on disk."""

    def __init__(self, record_bytes: int, queue: "asyncio.Queue[tuple[Committing, bytes]]") -> None:
        self._record_bytes = record_bytes
        self._queue = queue
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Have it written."""
        self._queue.put_nowait((self, data))

    def written(self, size: int) -> None:
        """Answer what is complete."""
        before, self._got = self._got, self._got + size
        self._transport.write(b"." * (self._got // self._record_bytes - before // self._record_bytes))


async def commit(port: int, path: str, record_bytes: str) -> None:
    """Write whatever has come, sync, answer; over and over in a file of zeros that exists."""
    queue: asyncio.Queue[tuple[Committing, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Committing(int(record_bytes), queue), "127.0.0.1", port)
    file = os.open(path, os.O_RDWR)
    size, at = os.fstat(file).st_size, 0

    def write(data: bytes, place: int) -> None:
        os.pwrite(file, data, place)
        os.fdatasync(file)

    while True:
        some = [await queue.get()]
        while not queue.empty():
            some.append(queue.get_nowait())
        data = b"".join(piece for _, piece in some)
        at = at if at + len(data) <= size else 0
        await loop.run_in_executor(None, write, data, at)
        at += len(data)
        for connection, piece in some:
            connection.written(len(piece))


if __name__ == "__main__":
    servers: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "echo": echo,
        "uvicorn": bare_uvicorn,
        "commit": commit,
    }
    uvloop.run(servers[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:]))
