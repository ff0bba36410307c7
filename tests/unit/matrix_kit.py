"""Shared parts of the tests of the Matrix door: a tiny homeserver, and a whole server with the door in front of it.

The homeserver here does what a test tells it to: it records what it is sent, and fails when it should. What a real one makes of
it all is tested in `tests/conformance/matrix`.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from tarry.config import load
from tarry.engine.engine import Engine
from tarry.serve.composition import server as composition
from tarry.serve.datafolder import DataFolder
from tests.serving import plain_client
from tests.waiting import until

AS_TOKEN = "as-secret-token"
HS_TOKEN = "hs-secret-token"
ROOM = "!room:example.org"
SELDOM = 0.02
"""A rate at which one is allowed, and the next only when the test is long over."""
STABLE = "/_matrix/client/v1/delayed_events"
UNSTABLE = "/_matrix/client/unstable/org.matrix.msc4140/delayed_events"


class Sent:
    """A request that the homeserver got."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method = request.method
        self.raw_path = request.raw_path
        self.path = request.path
        self.query = request.query
        self.headers = request.headers
        self.body = body
        self.at = asyncio.get_running_loop().time()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class TinyHomeserver:
    """Knows a few tokens, takes what it is sent, and gives event ids."""

    def __init__(self) -> None:
        self.users = {
            "ann-token": ("@ann:example.org", "ANNSPHONE"),
            "bob-token": ("@bob:example.org", "BOB"),
        }
        self.guests = {"guest-token": ("@7:example.org", "GUEST")}
        self.masquerades: dict[str, set[str]] = {}
        """By the token of an application service: the users for whom it may speak."""
        self.deactivated: set[str] = set()
        self.got: list[Sent] = []
        self.whoami_asked = 0
        self.answers: list[Callable[[Sent], web.StreamResponse | None]] = []
        """Asked first, in this order: what a test wants to be answered instead."""
        self.serve: Callable[[web.Request], Awaitable[web.StreamResponse]] = self._serve
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def events(self) -> list[Sent]:
        """Events that the application service sent into rooms."""
        return [
            sent
            for sent in self.got
            if sent.method == "PUT" and sent.headers.get("Authorization") == f"Bearer {AS_TOKEN}"
        ]

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        assert site._server is not None
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        assert self._runner is not None
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def stop(self) -> None:
        """Not there any more; `start` brings it back at the same address."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await self.serve(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        sent = Sent(request, await request.read())
        if sent.path.endswith("/account/whoami"):
            self.whoami_asked += 1
            return self._whoami(sent)
        self.got.append(sent)
        for answer in self.answers:
            found = answer(sent)
            if found is not None:
                return found
        if sent.path == "/_matrix/client/versions":
            return web.json_response({"versions": ["v1.11"], "unstable_features": {"org.example": True}})
        if sent.path.endswith("/capabilities"):
            return web.json_response({"capabilities": {"m.change_password": {"enabled": True}}})
        if sent.path.endswith("/login"):
            user = sent.json["identifier"]["user"]
            if user in self.deactivated:
                return error(403, "M_USER_DEACTIVATED")
            return error(400, "M_INVALID_PARAM")
        return web.json_response({"event_id": f"$event{len(self.got)}"})

    def _whoami(self, sent: Sent) -> web.Response:
        token = sent.headers.get("Authorization", "").removeprefix("Bearer ")
        if token in self.masquerades and "user_id" in sent.query:
            named = sent.query["user_id"]
            if named not in self.masquerades[token]:
                return error(403, "M_FORBIDDEN")
            return web.json_response({"user_id": named, "is_guest": False})
        known = {**self.users, **self.guests}.get(token)
        if known is None:
            return web.json_response(
                {"errcode": "M_UNKNOWN_TOKEN", "error": "no such token", "soft_logout": False}, status=401
            )
        user, device = known
        return web.json_response({"user_id": user, "device_id": device, "is_guest": token in self.guests})


def error(status: int, errcode: str, **fields: Any) -> web.Response:
    return web.json_response({"errcode": errcode, "error": "it said no", **fields}, status=status)


class MatrixServing:
    """A server inside this loop with a Matrix door in front of a tiny homeserver."""

    def __init__(
        self, homeserver: TinyHomeserver, engine: Engine, client: httpx.AsyncClient, native: httpx.AsyncClient
    ) -> None:
        self.homeserver = homeserver
        self.engine = engine
        self.client = client
        """Speaks to the door."""
        self.native = native
        """Speaks to the native API."""

    async def schedule(
        self, txn: str = "t1", delay: int = 60_000, token: str = "ann-token", room: str = ROOM, **body: Any
    ) -> str:
        """Schedule a message in the seed's dialect; gives its delay id."""
        answer = await self.client.put(
            f"/_matrix/client/v3/rooms/{room}/delayed_event/m.room.message/{txn}",
            json={"delay": delay, "content": {"body": txn}, **body},
            headers=bearer(token),
        )
        assert answer.status_code == 200, answer.text
        delay_id: str = answer.json()["delay_id"]
        return delay_id

    async def act(self, delay_id: str, action: str, root: str = STABLE, **how: Any) -> httpx.Response:
        return await self.client.post(f"{root}/{delay_id}/{action}", **how)

    async def listed(self, token: str = "ann-token", root: str = STABLE, **query: Any) -> Any:
        answer = await self.client.get(root, params=query, headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def arrived(self, count: int = 1) -> list[Sent]:
        """Wait until so many events were sent to the homeserver."""
        await until(lambda: len(self.homeserver.events) >= count)
        return self.homeserver.events


async def until_state(serving: "MatrixServing", delay_id: str, state: str) -> None:
    """Wait until an event is in a state."""
    deadline = time.monotonic() + 20
    while (await serving.engine.get(delay_id)).state != state:
        assert time.monotonic() < deadline, f"it never was {state}"
        await asyncio.sleep(0.005)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextlib.asynccontextmanager
async def matrix_serving(folder: Path, **overrides: Any) -> AsyncIterator[MatrixServing]:
    """The whole server in this loop. `overrides` are settings of the door, or of others with `__` for the dot."""
    homeserver = TinyHomeserver()
    await homeserver.start()
    registration = folder.with_name(folder.name + "-registration.yaml")
    registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": HS_TOKEN}))
    given = {
        "data": str(folder),
        "http.port": 0,
        "ledger.segment_bytes": 1 << 20,
        "doors.matrix.enabled": True,
        "doors.matrix.port": 0,
        "doors.matrix.homeserver": homeserver.url,
        "doors.matrix.registration": str(registration),
    }
    for name, value in overrides.items():
        given[name.replace("__", ".") if "__" in name else f"doors.matrix.{name}"] = value
    config = load(environment={}, overrides=given).config
    with DataFolder.open(folder) as owned:
        server = composition.Server(config, owned)
        (door,) = server._doors
        addresses = door.bind()
        # The server would bind it too.
        door.bind = lambda: addresses  # type: ignore[method-assign]
        try:
            url = await server.start()
            assert server._engine is not None
            async with (
                plain_client(addresses[0]) as client,
                plain_client(url) as native,
            ):
                yield MatrixServing(homeserver, server._engine, client, native)
        finally:
            await server.stop()
            await homeserver.stop()
