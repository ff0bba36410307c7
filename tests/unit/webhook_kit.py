"""Servers and settings for the tests of the webhook outlet: everything is real and on loopback."""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from tarry.core.messages.delivery import Delivery
from tarry.outlets.webhook import WebhookOutlet, WebhookSettings

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
OTHER_KEY = b"fedcba9876543210fedcba9876543210"
OTHER_SECRET = "whsec_" + base64.b64encode(OTHER_KEY).decode()
NOW_MS = 1_700_000_000_999
LOOPBACK = ("127.0.0.0/8",)


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS


class ScriptedResolver(AbstractResolver):
    """Answers each question with the next of its answers, the last one for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not answer:
            raise OSError("no such name")
        return [
            ResolveResult(hostname=host, host=each, port=port, family=0, proto=0, flags=0) for each in answer
        ]

    async def close(self) -> None:
        self.closed = True


class Receiver:
    """A well-behaved server that remembers what it got."""

    def __init__(self) -> None:
        self.requests: list[tuple[web.Request, bytes]] = []
        self.peers: list[tuple[str, int]] = []
        self.answer: Callable[[web.Request], web.StreamResponse] = lambda _: web.Response(text="thanks")
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.running = 0
        self.most_running = 0

    async def receive(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            assert request.transport is not None
            self.peers.append(request.transport.get_extra_info("peername"))
            self.requests.append((request, await request.read()))
            self.arrived.set()
            if self.gate is not None:
                await self.gate.wait()
            return self.answer(request)
        finally:
            self.running -= 1


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Receiver, int]]:
    receiver = Receiver()
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{tail:.*}", receiver.receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield receiver, runner.addresses[0][1]
    finally:
        if receiver.gate is not None:
            receiver.gate.set()
        await runner.cleanup()


@asynccontextmanager
async def misbehaving(
    behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A bare socket server. Each connection is given to `behave` and closed afterwards."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writers.append(writer)
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # Whoever was let in a moment ago has its turn first, and is then closed like the others.
        for _ in range(5):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), 5)


@asynccontextmanager
async def sending(
    resolver: AbstractResolver | None = None, **settings: object
) -> AsyncIterator[WebhookOutlet]:
    chosen = {"allow": LOOPBACK, "total_timeout_ms": 5_000, **settings}
    outlet = WebhookOutlet(WebhookSettings(**chosen), FixedClock(), resolver)  # type: ignore[arg-type]
    try:
        yield outlet
    finally:
        await outlet.close()


def to(destination: str, payload: bytes = b"hello", **changes: object) -> Delivery:
    fields: dict[str, object] = {
        "id": "m1",
        "destination": destination,
        "payload": payload,
        "headers": {},
        "key": None,
        "owner": "o",
        "due_at_ms": NOW_MS - 5,
        "scheduled_at_ms": NOW_MS - 1000,
        "attempt": 1,
    }
    return Delivery(**(fields | changes))  # type: ignore[arg-type]


class Delay(asyncio.Event):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def wait(self) -> bool:  # type: ignore[override]
        await asyncio.sleep(self._seconds)
        return True
