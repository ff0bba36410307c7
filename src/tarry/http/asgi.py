"""Serves an ASGI application with the kit, for doors that are not written for it yet."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from tarry.http.application import Endpoint, Given
from tarry.http.errors import Gone
from tarry.http.request import Request
from tarry.http.response import Response, Sender, Streamed

Message = MutableMapping[str, Any]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class AsgiApplication:
    """Implements `Application`."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    def open(self, request: Request) -> Endpoint:
        """Every request goes to the application as a stream."""
        return Endpoint(self._serve, streams=True)

    def refuse(self, request: Request, error: Exception) -> Response:
        """The application was to answer, and did not."""
        return Response(500)

    async def _serve(self, request: Request) -> Given:
        exchange = _Exchange(request)
        running = asyncio.ensure_future(self._app(exchange.scope, exchange.receive, exchange.send))
        begun = asyncio.ensure_future(exchange.begun.wait())
        await asyncio.wait({running, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if not exchange.begun.is_set():
            running.result()
            raise Gone
        if exchange.ended:
            await running
            return Response(exchange.status, exchange.headers, exchange.first)

        async def run(sender: Sender) -> None:
            exchange.go_on(sender)
            await running

        return Streamed(exchange.status, exchange.headers, run)


class _Exchange:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._read = False
        self._left = asyncio.Event()
        request.on_gone = self._left.set
        self._sender: Sender | None = None
        self._ready = asyncio.Event()
        self.begun = asyncio.Event()
        self.headers: list[tuple[bytes, bytes]] = []
        self.status, self.first, self.ended = 500, b"", False
        self.scope = {
            "type": "http", "method": request.method, "path": unquote(request.path.decode()), "raw_path": request.path,
            "query_string": request.query, "headers": request.headers, "client": (request.peer, 0) if request.peer else None,
            "scheme": request.scheme, "http_version": "1.1", "server": None, "root_path": "",
        }  # fmt: skip

    async def receive(self) -> Message:
        if not self._read:
            try:
                piece = await self._request.stream.read()
            except Gone:
                return {"type": "http.disconnect"}
            self._read = self._request.stream.ended and not self._request.stream._held
            return {"type": "http.request", "body": piece, "more_body": not self._read}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
            self._start = True
            self._handle = asyncio.get_running_loop().call_soon(self.begun.set)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self.begun.is_set() and not more and self._sender is None:
            self.first, self.ended = body, True
            self.headers = [(name, value) for name, value in self.headers if name != b"content-length"]
            self.begun.set()
            return
        self.begun.set()
        await self._ready.wait()
        if self._request.gone:
            return
        assert self._sender is not None
        try:
            await self._sender.write(body)
        except Gone:
            return

    def go_on(self, sender: Sender) -> None:
        self._sender = sender
        self._ready.set()
