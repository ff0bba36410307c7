"""Listeners under test: applications that echo, connections to them, requests as bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tarry.config.settings import Http
from tarry.serve.transport.listener import Listener


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body += event["body"]
        if not event["more_body"]:
            break
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening(app: Any = echo, **settings: Any) -> AsyncIterator[int]:
    listener = Listener(Http(**{"port": 0, **settings}))
    url = listener.bind()
    await listener.start(app)
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await listener.stop()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


class Quick:
    """An application that answers what has come whole without a task, and says which way each request took."""

    def __init__(self, refuse: bytes = b"") -> None:
        self.heads: list[str] = []
        self.scopes: list[Any] = []
        self.clients: list[Any] = []
        self.ways: list[str] = []
        self.replies: list[Any] = []
        self.held = False
        self._refuse = refuse

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.ways.append("task")
        await echo(scope, receive, send)

    def quick(self, scope: Any) -> Any:
        self.heads.append(scope["raw_path"].decode())
        self.scopes.append(scope)
        return self._answer

    def _answer(self, body: bytes, client: Any, reply: Any) -> bool:
        if self._refuse and body.startswith(self._refuse):
            return False
        self.ways.append("quick")
        self.clients.append(client)
        self.replies.append(lambda: reply(200, [(b"x-way", b"quick")], body))
        if not self.held:
            self.replies.pop()()
        return True


def request(body: bytes, *headers: bytes, line: bytes = b"POST / HTTP/1.1") -> bytes:
    lines = [line, b"host: x", b"content-length: %d" % len(body), *headers, b"", body]
    return b"\r\n".join(lines)


async def answer_of(reader: asyncio.StreamReader, body: bytes) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    assert b"content-length: %d\r\n" % len(body) in head
    assert await reader.readexactly(len(body)) == body
    return head
