"""The two doors of a server as a client sees them: what each answer says, in the words of the model."""

import asyncio
import json
from typing import Any, Final

import aiohttp

from tests.linearizability.life import Dialect
from tests.linearizability.receivers import NOBODY, USERS, Receivers
from tests.linearizability.server import Lives

ROOMS: Final = 40
AGAIN_S: Final = 0.05
TOPIC: Final = "public/default/entries"
_DELAYED: Final = f"/v1/topics/{TOPIC}/delayed"
_GROUP: Final = f"/v1/topics/{TOPIC}/subscriptions/group"

Answered = tuple[int, Any]


NEVER_DUE_MS: Final = 86_400_000


def shown(answer: dict[str, Any], delay_ms: int) -> tuple[str, int | None]:
    """The state of a message by a look at it, and when its delay began."""
    if answer.get("paused"):
        return "paused", None
    return answer["state"], answer["due_at_ms"] - delay_ms


class NoAnswer(Exception):
    """The server went away before it answered: what was asked for has happened, or has not."""


class Doors:
    """Clients of a server."""

    def __init__(
        self, session: aiohttp.ClientSession, native: str, matrix: str, receivers: Receivers, lives: Lives
    ) -> None:
        self._session = session
        self._native = native
        self._matrix = f"{matrix}/_matrix/client"
        self._receivers = receivers
        self._lives = lives

    async def _ask(self, method: str, url: str, **more: Any) -> Answered:
        try:
            async with self._session.request(method, url, **more) as response:
                text = await response.text()
        except aiohttp.ClientConnectionError as error:
            raise NoAnswer(f"{method} {url}") from error
        except aiohttp.ClientPayloadError as error:
            raise NoAnswer(f"the answer to {method} {url} breaks off") from error
        if response.status == 503 and not self._lives.is_up:
            raise NoAnswer(f"the server is stopping: {method} {url}")
        return response.status, json.loads(text) if text else {}

    async def _ask_as_user(self, method: str, url: str, **more: Any) -> Answered:
        """Ask what needs to know whose token it is: again while the homeserver, which is away at times, cannot say."""
        while True:
            answered = await self._ask(method, url, **more)
            if answered[0] != 503:
                return answered
            await asyncio.sleep(AGAIN_S)

    async def schedule(self, number: int, dialect: Dialect, delay_ms: int) -> str:
        """Schedule a message, or do so again: the answer is the same. Gives its id."""
        if dialect == "native":
            body = {
                "destination": f"{self._receivers.url}/hook/{number}",
                "delay_ms": delay_ms,
                "name": f"m{number}",
            }
            headers = {"Idempotency-Key": f"k{number}"}
            status, answer = await self._ask(
                "POST", f"{self._native}/v1/messages", json=body, headers=headers
            )
            assert status in (200, 201), answer
            return str(answer["id"])
        token, room = f"user{number % USERS}", f"{self._matrix}/v3/rooms/!r{number % ROOMS}:example.org"
        headers = {"Authorization": f"Bearer {token}"}
        if dialect == "query":
            url = f"{room}/send/m.x/{number}?org.matrix.msc4140.delay={delay_ms}"
            status, answer = await self._ask_as_user("PUT", url, json={"n": number}, headers=headers)
        else:
            name = "delay" if dialect == "seed" else "delay_ms"
            asked = {name: delay_ms, "content": {"n": number}}
            url = f"{room}/delayed_event/m.x/{number}"
            status, answer = await self._ask_as_user("PUT", url, json=asked, headers=headers)
        assert status == 200, answer
        return str(answer["delay_id"])

    async def contest(self, number: int, id_: str, on_conflict: str) -> str:
        """Schedule another message under the name of one; gives what the answer says of that one."""
        body = {
            "destination": f"{self._receivers.url}/hook/{NOBODY}",
            "delay_ms": NEVER_DUE_MS,
            "name": f"m{number}",
            "on_conflict": on_conflict,
        }
        status, answer = await self._ask("POST", f"{self._native}/v1/messages", json=body)
        match status:
            case 201:
                return "replaced" if answer.get("replaced") else "unnamed"
            case 200:
                assert answer["kept"], answer
                assert answer["id"] == id_, answer
                return "named"
            case 409:
                return "named" if answer["state"] == "named" else "conflict"
        raise AssertionError(answer)

    async def by_name(self, number: int, id_: str, command: str) -> tuple[str, dict[str, Any]]:
        """Command or look at the message that has a name; "" if that is not this one."""
        url = f"{self._native}/v1/names/public/default/m{number}"
        if command == "look":
            status, answer = await self._ask("GET", url)
        else:
            status, answer = await self._ask("POST", f"{url}/{command}")
        assert status in (200, 409), answer
        if status == 409:
            return "conflict", answer
        return ("ok" if answer["id"] == id_ else ""), answer

    async def command(self, id_: str, dialect: Dialect, command: str) -> str:
        """Restart, cancel, send and the like; gives what the answer says, or "" for one that says nothing of the message."""
        if dialect == "native":
            status, answer = await self._ask("POST", f"{self._native}/v1/messages/{id_}/{command}")
            assert status in (200, 409), answer
            return "conflict" if status == 409 else "due" if command == "send" else "ok"
        status, _ = await self._ask("POST", f"{self._matrix}/v1/delayed_events/{id_}/{command}", json={})
        if status in (404, 409):
            return "conflict"
        if command == "send":
            # 429: the homeserver limits; 502: it is away; 503: the event was restarted meanwhile; 504: nothing was heard.
            told = {200: "sent", 403: "refused", 429: "due", 502: "due", 503: "due", 504: "late"}
            return told.get(status, "")
        return "ok" if status == 200 else ""

    async def look(self, id_: str, dialect: Dialect, number: int, delay_ms: int) -> tuple[str, int | None]:
        """The state of a message, and when its delay began."""
        if dialect == "native":
            status, answer = await self._ask("GET", f"{self._native}/v1/messages/{id_}")
            assert status == 200, answer
            return shown(answer, delay_ms)
        headers = {"Authorization": f"Bearer user{number % USERS}"}
        url = f"{self._matrix}/v1/delayed_events/{id_}"
        status, answer = await self._ask_as_user("GET", url, headers=headers)
        assert status == 200, answer
        ended = answer.get("finalised")
        if ended is None:
            return "waiting", answer["delayed_since_ts"]
        return "sent" if "event_id" in ended else "failed" if "error" in ended else "cancelled", None

    # Delayed entries of a topic

    async def subscribe(self) -> None:
        """Make the topic and its one subscription."""
        status, answer = await self._ask(
            "PUT", f"{self._native}{_GROUP}", json={"type": "shared", "start": "earliest"}
        )
        assert status in (200, 201), answer

    async def publish(self, number: int, delay_ms: int) -> int:
        """Publish a delayed entry; gives its id."""
        body = {"payload": f"{number}", "delay_ms": delay_ms}
        status, answer = await self._ask("POST", f"{self._native}/v1/topics/{TOPIC}/messages", json=body)
        assert status in (200, 201), answer
        return int(answer["entry_ids"][0])

    async def command_entry(self, entry_id: int, command: str, delay_ms: int) -> tuple[str, int | None]:
        """Cancel or reschedule an entry, or look at it; gives what the answer says, and when it is due."""
        url = f"{self._native}{_DELAYED}/{entry_id}"
        match command:
            case "cancel":
                status, answer = await self._ask("DELETE", url)
            case "restart":
                status, answer = await self._ask("POST", f"{url}/restart", json={"delay_ms": delay_ms})
            case _:
                status, answer = await self._ask("GET", url)
        assert status in (200, 404, 409), answer
        return ("ok", answer["due_at_ms"]) if status == 200 else ("conflict", None)

    async def receive(self) -> list[tuple[int, int]]:
        """Receive the subscription's entries, by number and entry id."""
        status, answer = await self._ask("POST", f"{self._native}{_GROUP}/receive", json={"wait_ms": 500})
        assert status == 200, answer
        return [(int(one["payload"]), int(one["entry_id"])) for one in answer["messages"]]

    async def acknowledge(self, entry_ids: list[int]) -> None:
        """Be done with entries."""
        await self._ask("POST", f"{self._native}{_GROUP}/ack", json={"entry_ids": entry_ids})
