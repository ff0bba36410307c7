"""Shared parts of the tests of the Dapr door: a server with the door open, and applications that receive."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
from aiohttp import web

from tarry.serve.composition import configuration
from tarry.serve.composition.dapr import DaprDoor
from tests.processes import free_port
from tests.serving import Serving, plain_client, serving
from tests.waiting import until

WITHIN_S = 30.0
TEXT = {"event": "text", "contentType": "text/plain"}
"""Fields that an entry of a bulk must have beside its id."""


class Doors:
    """A server whose Dapr door is open, and a client for the door's HTTP API."""

    def __init__(self, served: Serving, door: DaprDoor, urls: list[str], client: httpx.AsyncClient) -> None:
        self.served = served
        self.door = door
        self.urls = urls
        self.client = client

    @property
    def engine(self) -> Any:
        return self.served.engine

    @property
    def http_port(self) -> int:
        return httpx.URL(self.urls[0]).port or 0

    async def publish(
        self, topic: str, body: Any = None, *, pubsub: str = "pubsub", headers: Any = None, **metadata: str
    ) -> httpx.Response:
        """Publish JSON, or bytes as they are, with metadata."""
        query = {f"metadata.{name}": value for name, value in metadata.items()}
        given = {"content-type": "application/json"} | (headers or {})
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(
            f"/v1.0/publish/{pubsub}/{topic}", params=query, content=content, headers=given
        )


def component(name: str, kind: str, *, scopes: list[str] | None = None, **metadata: Any) -> dict[str, Any]:
    """A component as its file says it."""
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": name},
        "spec": {
            "type": kind,
            "version": "v1",
            "metadata": [{"name": key, "value": value} for key, value in metadata.items()],
        },
        "scopes": scopes or [],
    }


def resources(folder: Path, *documents: dict[str, Any]) -> Path:
    """A folder with resources: components by their fields, other documents as they are."""
    place = folder / "resources"
    place.mkdir()
    whole = [one if "apiVersion" in one else component(**one) for one in documents]
    (place / "all.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in whole))
    return place


@contextlib.asynccontextmanager
async def dapr(folder: Path, **overrides: Any) -> AsyncIterator[Doors]:
    """A server with the door open on free ports; `overrides` are settings of `doors.dapr`."""
    given = {"enabled": True, "port": 0, "grpc_port": 0, "retry_min_ms": 20, "retry_max_ms": 100} | overrides
    # A name that ends in two underscores is one outside of the door's table.
    settings = {
        (name.removesuffix("__") if name.endswith("__") else f"doors__dapr__{name}"): value
        for name, value in given.items()
    }
    made: list[Any] = []
    original = configuration.doors_of

    def doors_of(config: Any, access: Any, budget: Any, clock: Any) -> Any:
        made.extend(original(config, access, budget, clock))
        return made

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, configuration, "doors_of", original)
        configuration.doors_of = doors_of
        async with serving(folder, **settings) as served:
            door = next(one for one in made if isinstance(one, DaprDoor))
            async with plain_client(door.urls[0]) as client:
                yield Doors(served, door, door.urls, client)


class App:
    """An application that receives over HTTP: what it was given, and what it answers."""

    def __init__(self, subscriptions: list[dict[str, Any]], port: int | None = None) -> None:
        self.subscriptions = subscriptions
        self.asked = asyncio.Event()
        """Set once it was asked what it subscribes to; it answers at once, or when `held` is set."""
        self.held: asyncio.Event | None = None
        self.config: Any = {}
        self.healthy = True
        self.bad_answers = 0
        """How many health checks are answered badly although it is healthy."""
        self.health_paths: list[str] = []
        self.got: list[tuple[str, dict[str, Any]]] = []
        """Paths and bodies, as they came."""
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[str, dict[str, Any]], tuple[int, Any]] = lambda _path, _event: (200, None)
        self.in_pieces = False
        """Whether its answers come byte by byte."""
        self.pause_s = 0.0
        """How long it takes over each message."""
        self.most_at_once = 0
        self._at_work = 0
        self.port = free_port() if port is None else port
        self._arrived = asyncio.Condition()

    @property
    def data(self) -> list[Any]:
        """The data of the events, as they came."""
        return [event.get("data", event.get("data_base64")) for _, event in self.got]

    async def count(self, number: int) -> None:
        """Wait until it has been given so many messages."""
        async with asyncio.timeout(WITHIN_S), self._arrived:
            await self._arrived.wait_for(lambda: len(self.got) >= number)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/dapr/subscribe":
            self.asked.set()
            if self.held is not None:
                await self.held.wait()
            return web.json_response(self.subscriptions)
        if request.path == "/dapr/config":
            return web.json_response(self.config)
        if request.method == "GET":
            self.health_paths.append(request.path)
            bad = self.bad_answers > 0 or not self.healthy
            self.bad_answers = max(0, self.bad_answers - 1)
            return web.Response(status=503 if bad else 200)
        event = await request.json()
        self._at_work += 1
        self.most_at_once = max(self.most_at_once, self._at_work)
        await asyncio.sleep(self.pause_s)
        self._at_work -= 1
        async with self._arrived:
            self.got.append((request.path, event))
            self.headers.append(dict(request.headers))
            self._arrived.notify_all()
        status, body = self.answer(request.path, event)
        headers = {"location": "/elsewhere"} if 300 <= status < 400 else {}
        if body is None:
            return web.Response(status=status, headers=headers)
        return (
            await self._piecemeal(request, status, body)
            if self.in_pieces
            else web.json_response(body, status=status)
        )

    async def _piecemeal(self, request: web.Request, status: int, body: Any) -> web.StreamResponse:
        answer = web.StreamResponse(status=status, headers={"content-type": "application/json"})
        await answer.prepare(request)
        for byte in msgspec.json.encode(body):
            await answer.write(bytes((byte,)))
            # So that each is a read of its own at the other end.
            await asyncio.sleep(0.002)
        return answer


@contextlib.asynccontextmanager
async def app(*subscriptions: dict[str, Any], port: int | None = None) -> AsyncIterator[App]:
    """An application that subscribes so."""
    one = App(list(subscriptions), port)
    web_app = web.Application()
    web_app.router.add_route("*", "/{path:.*}", one.serve)
    runner = web.AppRunner(web_app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", one.port).start()
    try:
        yield one
    finally:
        await runner.cleanup()


async def ready(doors: Doors) -> None:
    """Wait until the door says that the application's subscriptions are made."""

    async def healthy() -> bool:
        return (await doors.client.get("/v1.0/healthz")).status_code == 204

    await until(healthy)


async def acknowledged(doors: Doors, topic: str, group: str = "app") -> None:
    """Wait until the application owes no answer for a topic."""

    async def done() -> bool:
        return bool(doors.engine.topics.subscription(topic, group).backlog == 0)

    await ready(doors)
    await until(done)


def to(topic: str, route: str = "/in", pubsub: str = "pubsub", **more: Any) -> dict[str, Any]:
    """A subscription as `/dapr/subscribe` says it."""
    return {"pubsubname": pubsub, "topic": topic, "route": route, **more}


def in_s(seconds: float) -> str:
    """An instant so many seconds from now, as an SDK writes it."""
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC).isoformat()
