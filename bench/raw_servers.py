"""Servers that do nothing: an echo, and uvicorn with an application that only answers.

python -m bench.raw_servers echo|uvicorn PORT
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
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


if __name__ == "__main__":
    uvloop.run({"echo": echo, "uvicorn": bare_uvicorn}[sys.argv[1]](int(sys.argv[2])))
