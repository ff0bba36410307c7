"""Receivers that do to each attempt what its message was told to have done to it, and write down what they did.

One program is both: a homeserver, as much of one as the Matrix door needs, and a receiver of webhooks. It can go away and
come back at the same address.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from aiohttp import web

from tests.linearizability.checker import Operation
from tests.linearizability.life import Happened

Manner = Literal["accept", "slowly", "refuse", "later", "hang up", "lose"]

VERDICTS: Final[dict[Manner, str]] = {
    "accept": "accepted",
    "slowly": "accepted",
    "refuse": "refused",
    "later": "later",
    "hang up": "hung up",
    "lose": "lost",
}
SLOW_S: Final = 0.08
AS_TOKEN: Final = "as-secret-token"
USERS: Final = 50
NOBODY: Final = 0
"""The number of all messages that have no history: whoever sends them has asked for it by name."""


def wall_ms() -> int:
    """The clock on the wall, as the server has it."""
    return time.time_ns() // 1_000_000


class Subject:
    """A message as its receiver knows it: what to do to its attempts, and what was done."""

    def __init__(self, manners: list[Manner]) -> None:
        self._manners = manners
        self.attempts: list[Operation[Happened]] = []

    def manner(self) -> Manner:
        """The manner of treating the next attempt; after the last planned one, attempts are accepted."""
        return self._manners.pop(0) if self._manners else "accept"

    def note(self, got: float, got_ms: int, manner: Manner, answered: float) -> None:
        """Write an attempt down."""
        self.attempts += [
            Operation(what=Happened("claim", to_ms=got_ms), returned=got),
            Operation(what=Happened("verdict", VERDICTS[manner]), called=answered),
        ]


class Receivers:
    """The program."""

    def __init__(self) -> None:
        self.subjects = {NOBODY: Subject([])}
        self.url = ""
        self.absences = 0
        self._port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; again, at the same address as before."""
        app = web.Application()
        app.router.add_route("POST", "/hook/{number}", self._hook)
        app.router.add_route("GET", "/_matrix/client/v3/account/whoami", self._whoami)
        app.router.add_route("PUT", "/_matrix/client/v3/rooms/{rest:.*}", self._event)
        app.router.add_route("*", "/{rest:.*}", self._other)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Be away: nobody listens, and what is under way breaks off."""
        self.absences += 1
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _whoami(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return web.json_response({"user_id": f"@{token}:example.org", "device_id": token.upper()})

    async def _other(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _event(self, request: web.Request) -> web.StreamResponse:
        content = json.loads(await request.read())

        def answer(manner: Manner) -> web.Response:
            match manner:
                case "refuse":
                    return web.json_response({"errcode": "M_FORBIDDEN", "error": "no"}, status=403)
                case "later":
                    body = {"errcode": "M_LIMIT_EXCEEDED", "error": "later", "retry_after_ms": 50}
                    return web.json_response(body, status=429)
            return web.json_response({"event_id": f"$event{content['n']}"})

        return await self._take(request, self.subjects[content["n"]], answer)

    async def _hook(self, request: web.Request) -> web.StreamResponse:
        def answer(manner: Manner) -> web.Response:
            return web.Response(status={"refuse": 403, "later": 503}.get(manner, 200))

        return await self._take(request, self.subjects[int(request.match_info["number"])], answer)

    async def _take(
        self, request: web.Request, subject: Subject, answer: Callable[[Manner], web.Response]
    ) -> web.StreamResponse:
        got, got_ms, manner = time.monotonic(), wall_ms(), subject.manner()
        if manner == "slowly":
            try:
                await asyncio.sleep(SLOW_S)
            except asyncio.CancelledError:
                subject.note(got, got_ms, "hang up", time.monotonic())
                raise
        # Before the answer can be read: the verdict is not earlier.
        subject.note(got, got_ms, manner, time.monotonic())
        if manner in ("hang up", "lose"):
            assert request.transport is not None
            request.transport.abort()
        return answer(manner)


Going = Callable[[], Awaitable[None]]
