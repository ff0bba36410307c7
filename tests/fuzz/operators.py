"""The native door's operations on many messages: pauses, retries, commands by filter; and messages for brokers."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx

from tests.fuzz.values import TENANTS, Values

COMPONENT = "memory"
"""A broker component that is open to the first of the tenants alone."""


class Operators:
    """Feeds the native door. `accepted` are the ids of messages that it has accepted."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []
        self._commands: list[dict[str, Any]] = []
        """As they were told last."""

    async def step(self) -> None:
        """Do one thing."""
        chosen: Callable[[], Awaitable[None]] = self.values.one(
            self._schedule, self._schedule, self._schedule, self._pause, self._pause_named, self._retry,
            self._pause_place, self._pause_place, self._ask_command, self._follow_command, self._follow_command,
        )  # fmt: skip
        await chosen()

    async def _ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        content = b"" if body is None else json.dumps(body).encode(errors="surrogatepass")
        told = (method, path[:300], content[:500])
        try:
            answer = await self.client.request(
                method, path, content=content, headers={"content-type": "application/json"} if content else {}
            )
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r} for {told}") from error
        assert answer.status_code != 500, (*told, answer.text)
        return answer

    def _destination(self) -> str:
        """Mostly a broker's topic: one that is there, one that is not, or no address at all."""
        values = self.values
        topic = values.one(values.name(), values.name(), quote(values.text(40)), values.text(1_100))
        component = values.one(COMPONENT, COMPONENT, COMPONENT, "nobody", quote(values.text(30)))
        return str(
            values.one(f"broker://{component}/{topic}", f"broker://{component}/{topic}", values.topic())
        )

    async def _schedule(self) -> None:
        values = self.values
        message = {
            "destination": self._destination(),
            "payload": values.payload(),
            "delay_ms": values.soon_ms(),
        }
        message |= values.some(
            key=lambda: values.text(300), headers=values.headers, owner=values.name,
            name=values.name, namespace=lambda: values.one(*TENANTS), ttl_ms=values.integer,
        )  # fmt: skip
        answer = await self._ask("POST", "/v1/messages", message)
        if answer.status_code == 201:
            self.accepted.append(answer.json()["id"])

    def _message(self) -> str:
        return quote(self.values.one(*self.accepted[-50:], self.values.text(90)) or "x", safe="")

    async def _pause(self) -> None:
        await self._ask(
            "POST", f"/v1/messages/{self._message()}/{self.values.one('pause', 'pause', 'resume')}"
        )

    async def _pause_named(self) -> None:
        what = self.values.one("pause", "resume", "retry")
        await self._ask("POST", f"/v1/names/{self.values.one(*TENANTS)}/{self.values.name()}/{what}")

    async def _retry(self) -> None:
        values = self.values
        times = values.one(None, {"delay_ms": values.delay_ms()}, {"due_at_ms": values.instant_ms()})
        await self._ask("POST", f"/v1/messages/{self._message()}/retry", times)

    async def _pause_place(self) -> None:
        values = self.values
        place = values.one(
            {"topic": values.topic()},
            {"owner": values.one(values.name(), values.text(260))},
            {"destination": values.one(f"broker://{COMPONENT}", f"broker://{COMPONENT}/{values.name()}", self._destination())},
            {"owner": values.name(), "namespace": values.one(*TENANTS)},
        )  # fmt: skip
        await self._ask("POST", values.one("/v1/pauses", "/v1/pauses/resume"), place)

    async def _ask_command(self) -> None:
        values = self.values
        action = values.one("cancel", "move", "send", "retry")
        times = (
            values.one({"delay_ms": values.delay_ms()}, {"due_at_ms": values.instant_ms()})
            if action == "move"
            else {}
        )
        chosen = values.some(
            namespace=lambda: values.one(*TENANTS), owner=values.name, key=lambda: values.text(300),
            key_prefix=lambda: values.text(3), destination=self._destination, door=lambda: values.one("http", "pulsar", "x"),
            due_from_ms=values.integer, due_to_ms=values.instant_ms,
        )  # fmt: skip
        if action == "retry" or values.chance(0.1):
            chosen["state"] = values.one("failed", "failed", "failed", "retrying", values.text(10))
        answer = await self._ask("POST", "/v1/commands", {"action": action, "filter": chosen, **times})
        if answer.status_code == 201:
            self._commands.append(answer.json())

    async def _follow_command(self) -> None:
        """Look at a command, and confirm what it counted, or stop it."""
        values = self.values
        if not self._commands:
            return
        command = values.one(*self._commands)
        path = f"/v1/commands/{command['id']}"
        match values.one("look", "look", "confirm", "confirm", "stop"):
            case "look":
                answer = await self._ask("GET", path)
                assert answer.status_code == 200, answer.text
                command.update(answer.json())
            case "confirm":
                counted = command["counted"] if values.chance(0.8) else abs(values.integer())
                await self._ask("POST", f"{path}/confirm", {"counted": counted})
            case _:
                answer = await self._ask("POST", f"{path}/stop")
                assert answer.status_code in (200, 409), answer.text
                self._commands.remove(command)
