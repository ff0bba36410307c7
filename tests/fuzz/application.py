"""A Dapr application that subscribes with rules of any shape, and answers whatever comes to its mind."""

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from tests.fuzz.values import Values

FIELDS: Final = ("event.data", "event.data.total", "event.data.name", 'event.data["list"]', "event.data.list[0]", "event.type",
                 "event.id", "event.nope", "event", "event.data_base64")  # fmt: skip
SIGNS: Final = ("||", "&&", "==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%")
PATTERNS: Final = (
    "(a+)+$",
    "(x+x+)+y",
    "^.*$",
    "[",
    "a{1000}",
    "(?:(?:a{40}){40}){40}",
    "\\\\pL+",
    "é*",
    "(" * 400,
)


class Application:
    """Subscribes to every topic of the campaign; it is asked again at each start of the server."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0, max_line_size=1 << 20, max_field_size=1 << 20
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be gone."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        values = self.values
        if request.path == "/dapr/config":
            return web.Response(body=values.document(), content_type="application/json")
        if request.path == "/dapr/subscribe":
            return web.json_response([self._subscription() for _ in range(values.one(1, 12, 40))])
        body = await request.read()
        entries = (
            [one.get("entryId") for one in json.loads(body).get("entries", ())]
            if b'"entries"' in body[:200]
            else []
        )
        if values.chance(0.05):
            await asyncio.sleep(0.2)
        said: Any = values.one(
            {}, {"status": values.one("SUCCESS", "DROP", "RETRY", "success", values.text(20))},
            {"statuses": [{"entryId": one, "status": values.one("SUCCESS", "RETRY", "DROP", "x")} for one in entries]},
        )  # fmt: skip
        content = values.document() if values.chance(0.2) else json.dumps(said).encode()
        status = values.one(200, 200, 200, 204, 404, 500, 302, 429)
        return web.Response(status=status, body=None if status == 204 else content)

    def _subscription(self) -> dict[str, Any]:
        values = self.values
        rules = [
            {"match": self.rule(), "path": values.one("/a", "/b", "http://x/", values.text(100))}
            for _ in range(values.one(0, 1, 5))
        ]
        return {
            "pubsubname": values.one("pubsub", "memory", "memory", "nope"),
            "topic": values.one(values.name(), values.name(), values.text(200)),
            "routes": {"rules": rules, "default": values.one("/in", "")},
            **values.some(
                deadLetterTopic=lambda: values.one("dead", values.name()),
                metadata=lambda: {"rawPayload": values.one("true", "false", values.text(5))},
                bulkSubscribe=lambda: {
                    "enabled": values.chance(0.7),
                    "maxMessagesCount": values.one(0, 1, 100, -1, (1 << 31) - 1),
                    "maxAwaitDurationMs": values.one(0, 1, 50, -1, (1 << 31) - 1),
                },
            ),
        }

    def rule(self) -> str:
        """A rule: read, refused, or one that says nothing."""
        values = self.values
        if values.chance(0.1):
            times = values.one(40, 3_000, 100_000)
            field = values.one(*FIELDS)
            return str(
                values.one(
                    "!" * times + "true", "-" * times + "1", "(" * times, "[" * times, f"{field}*" * times + "2",
                    "event" + ".data" * times, "event" + "[0]" * times, "true?" * times, f"{field}+" * times + field,
                    values.text(3_000), "size(" * times, f"{field}==" * times + "1", '"\\\\' * times,
                )
            )  # fmt: skip
        return self._expression(values.one(1, 2, 4))

    def _expression(self, depth: int) -> str:
        values = self.values
        if depth == 0:
            number = abs(values.integer())
            return str(
                values.one(
                    *FIELDS, *FIELDS, str(number), f"{number}.5", "1e308", "9e999", "0.0", "0xffffffffffffffff", "1u", "true", "null",
                    json.dumps(values.text(20)), "[]", '[1, "a"]', "[[]]", '"\\\\ud800"', '"\\\\U0010ffff"',
                )
            )  # fmt: skip
        left, right = self._expression(depth - 1), self._expression(depth - 1)
        return str(
            values.one(
                f"{left} {values.one(*SIGNS)} {right}", f"{left} {values.one(*SIGNS)} {right}", f"({left})", f"!({left})", f"-({left})",
                f"{left} ? {right} : {left}", f"{values.one('has', 'size', 'string', 'int', 'double')}({left})",
                f"({left}).{values.one('startsWith', 'endsWith', 'contains')}({right})", f"[{left}, {right}]", f"({left})[{right}]",
                f"({left}).matches({json.dumps(values.one(*PATTERNS))})",
            )
        )  # fmt: skip
