"""Users as a Matrix client sees them: requests with a token, rooms, and what arrived in a room."""

import itertools
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx

from tests.waiting import until

CLIENT: Final = "/_matrix/client"
UNSTABLE: Final = f"{CLIENT}/unstable/org.matrix.msc4140"
"""How long something may take to arrive. Nothing is judged by it: a slow machine must not make a test fail."""

T = TypeVar("T")

_numbers = itertools.count(1)


def fresh(word: str = "t") -> str:
    """A name or transaction id that no test has used in this run."""
    return f"{word}{next(_numbers)}"


class Person:
    """A user with a device, connected to an address: the door, or the homeserver itself."""

    def __init__(self, http: httpx.AsyncClient, url: str, account: Mapping[str, Any]) -> None:
        self._http = http
        self.url = url
        self.account = account
        self.user_id: str = account["user_id"]
        self.token: str = account["access_token"]

    def at(self, url: str) -> "Person":
        """This user through another address."""
        return Person(self._http, url, self.account)

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = "", **more: Any
    ) -> httpx.Response:
        """One request. `token` is this user's unless another, or None for no token, is given."""
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {token or self.token}"
        if body is not None:
            more["json"] = body
        return await self._http.request(method, f"{self.url}{path}", headers=headers, **more)

    async def done(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """One request that succeeds; gives the answer's JSON."""
        response = await self.ask(method, path, body, **more)
        assert response.status_code == 200, f"{method} {path}: {response.status_code} {response.text}"
        return response.json()

    # Rooms

    async def create_room(self, version: str = "11", **options: Any) -> str:
        """A new public room; gives its id."""
        body = {"preset": "public_chat", "room_version": version, **options}
        return str((await self.done("POST", f"{CLIENT}/v3/createRoom", body))["room_id"])

    async def join(self, room_id: str) -> None:
        """Enter a public room."""
        await self.done("POST", f"{CLIENT}/v3/rooms/{quote(room_id)}/join", {})

    async def say(self, room_id: str, text: str) -> str:
        """A message at once; gives its event id."""
        path = f"{CLIENT}/v3/rooms/{quote(room_id)}/send/m.room.message/{fresh('say')}"
        return str((await self.done("PUT", path, {"msgtype": "m.text", "body": text}))["event_id"])

    async def set_state(self, room_id: str, type: str, key: str, content: Any) -> str:
        """A state event at once; gives its event id."""
        path = f"{CLIENT}/v3/rooms/{quote(room_id)}/state/{type}/{quote(key, safe='')}"
        return str((await self.done("PUT", path, content))["event_id"])

    async def state(self, room_id: str, type: str, key: str = "") -> Any:
        """The content of a state event; None if there is none."""
        path = f"{CLIENT}/v3/rooms/{quote(room_id)}/state/{quote(type)}/{quote(key, safe='')}"
        response = await self.ask("GET", path)
        return response.json() if response.status_code == 200 else None

    async def events(self, room_id: str, type: str = "m.room.message") -> list[dict[str, Any]]:
        """The events of a type in a room, oldest first."""
        path = f"{CLIENT}/v3/rooms/{quote(room_id)}/messages?dir=b&limit=500"
        chunk = (await self.done("GET", path))["chunk"]
        return [event for event in reversed(chunk) if event["type"] == type]

    async def arrived(
        self, room_id: str, count: int = 1, type: str = "m.room.message"
    ) -> list[dict[str, Any]]:
        """Wait until so many events of a type are in a room; gives them all."""

        async def enough() -> list[dict[str, Any]]:
            found = await self.events(room_id, type)
            return found if len(found) >= count else []

        arrived: list[dict[str, Any]] = await until(enough)
        return arrived

    # Delayed events, as seed 000 has them

    async def delay(
        self,
        room_id: str,
        content: Any = None,
        *,
        ms: int = 60_000,
        type: str = "m.room.message",
        **more: Any,
    ) -> str:
        """Schedule an event; gives its delay id."""
        body = {"delay": ms, "content": text("later") if content is None else content, **more}
        return str((await self.done("PUT", schedule_path(room_id, type), body))["delay_id"])

    async def manage(self, delay_id: str, action: str) -> httpx.Response:
        """`send`, `cancel` or `restart`, without a token."""
        path = f"{CLIENT}/v1/delayed_events/{quote(delay_id, safe='')}/{action}"
        return await self.ask("POST", path, {}, token=None)

    async def listed(self, **query: Any) -> Any:
        """The list of this user's delayed events."""
        return await self.done("GET", f"{CLIENT}/v1/delayed_events", params=query)

    async def finalised(self, delay_id: str) -> dict[str, Any]:
        """Wait until a delayed event has ended; gives its entry in the list."""

        async def ended() -> Any:
            found = (await self.listed(status="finalised", delay_id=delay_id))["finalised"]
            return found[0] if found else None

        entry: dict[str, Any] = await until(ended)
        return entry


def text(body: str) -> dict[str, str]:
    """The content of a text message."""
    return {"msgtype": "m.text", "body": body}


def schedule_path(room_id: str, type: str = "m.room.message", txn: str | None = None) -> str:
    """Where events are scheduled."""
    return f"{CLIENT}/v3/rooms/{quote(room_id)}/delayed_event/{quote(type, safe='')}/{txn or fresh('txn')}"
