"""Listeners under test: applications that echo, connections to them, requests as bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tarry.config.settings import Http
from tarry.engine.answer import Answer
from tarry.http.application import Application, Endpoint
from tarry.http.errors import BodyTooLarge, BodyTooSlow
from tarry.http.head import Fields, Head
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.serve.transport.listener import Listener

ANY_SIZE = 1 << 30


class Serves:
    """An application with one endpoint for every request."""

    def __init__(
        self,
        run: Callable[[Request], Any],
        max_body_bytes: int | None = ANY_SIZE,
        *,
        streams: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        self._endpoint = Endpoint(run, max_body_bytes, streams=streams, timeout_ms=timeout_ms)
        self.errors: list[Exception] = []

    def open(self, request: Request) -> Endpoint:
        return self._endpoint

    def refuse(self, request: Request, error: Exception) -> Response:
        self.errors.append(error)
        if isinstance(error, BodyTooLarge):
            return Response(413, close=error.cut_short)
        return Response(408 if isinstance(error, BodyTooSlow) else 500)


def echoed(request: Request) -> Response:
    return Response(200, (), request.body)


echo = Serves(echoed)


@asynccontextmanager
async def listening(app: Application = echo, **settings: Any) -> AsyncIterator[int]:
    listener = Listener(Http(**{"port": 0, **settings}))
    url = listener.bind()
    await listener.start(app)
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await listener.stop()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


class Held(Serves):
    """An application whose answers settle when the test says so, if `held`; it remembers its requests."""

    def __init__(self, held: bool = False) -> None:
        super().__init__(self._serve)
        self.held = held
        self.requests: list[Request] = []
        self.tasks: list[object] = []
        """The tasks in which requests were served; None for none."""
        self._waiting: list[tuple[Answer[Response], Response]] = []

    @property
    def waiting(self) -> int:
        """Number of answers that are held."""
        return len(self._waiting)

    def _serve(self, request: Request) -> Answer[Response]:
        try:
            self.tasks.append(asyncio.current_task())
        except RuntimeError:
            self.tasks.append(None)
        self.requests.append(request)
        answer: Answer[Response] = Answer()
        self._waiting.append((answer, Response(200, [(b"x-way", b"held")], request.body)))
        if not self.held:
            self.release()
        return answer

    def release(self) -> None:
        """Settle the answers that wait."""
        waiting, self._waiting = self._waiting, []
        for answer, response in waiting:
            answer.settle(response)

    async def until(self, waiting: int) -> None:
        """Return when so many answers are held."""
        while self.waiting < waiting:  # noqa: ASYNC110 - the listener's turn, not an event of ours
            await asyncio.sleep(0.001)


def request(body: bytes, *headers: bytes, line: bytes = b"POST / HTTP/1.1") -> bytes:
    lines = [line, b"host: x", b"content-length: %d" % len(body), *headers, b"", body]
    return b"\r\n".join(lines)


async def answer_of(reader: asyncio.StreamReader, body: bytes) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    assert b"content-length: %d\r\n" % len(body) in head
    assert await reader.readexactly(len(body)) == body
    return head


class AppTransport(httpx.AsyncBaseTransport):
    """Lets a client call an application without a server between them."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        fields = Fields([(name.lower(), value) for name, value in request.headers.raw], True, False)
        path, _, query = request.url.raw_path.partition(b"?")
        asked = Request(Head(request.method, path, query, fields), "127.0.0.1")
        try:
            endpoint = self._app.open(asked)
            if endpoint.max_body_bytes is not None:
                if len(body) > endpoint.max_body_bytes:
                    raise BodyTooLarge(endpoint.max_body_bytes)
                asked.body = body
            given: Any = endpoint.run(asked)
            response = given if isinstance(given, Response) else await given
        except Exception as error:  # noqa: BLE001 - the application's table says it
            response = self._app.refuse(asked, error)
        return httpx.Response(response.status, headers=list(response.headers), content=response.body)
