"""Futures as a client of the draft asks for them."""

from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx

from tests.conformance.matrix.people import CLIENT, Person, fresh, text

V3: Final = f"{CLIENT}/v3"
LONG_MS: Final = 3_600_000
"""A timeout that no test waits for."""


def path(
    room_id: str,
    type: str = "m.room.message",
    *,
    state_key: str | None = None,
    timeout: Any = None,
    group: str | None = None,
    txn: str | None = None,
    base: str = V3,
) -> str:
    """Where a future is asked for."""
    room = f"{base}/rooms/{quote(room_id)}"
    given = {"future_timeout": timeout, "future_group_id": group}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    if state_key is None:
        place = f"{room}/send_future/{quote(type, safe='')}/{txn or fresh('future')}"
    else:
        place = f"{room}/state_future/{quote(type, safe='')}/{quote(state_key, safe='')}"
    return f"{place}?{query}" if query else place


async def future(person: Person, room_id: str, content: Any = None, **options: Any) -> dict[str, str]:
    """Send a future; gives its tokens."""
    body = text("later") if content is None else content
    tokens: dict[str, str] = await person.done("PUT", path(room_id, **options), body)
    return tokens


async def post(person: Person, token: str, base: str = V3) -> httpx.Response:
    """Use a token, as somebody who has nothing else."""
    return await person.ask("POST", f"{base}/future/{token}", token=None)


async def used(person: Person, token: str) -> None:
    """Use a token that is valid."""
    response = await post(person, token)
    assert (response.status_code, response.json()) == (200, {})


async def is_gone(person: Person, token: str) -> bool:
    """Whether a token is not valid any more. Asking uses it, if it is."""
    response = await post(person, token)
    if response.status_code == 410:
        assert response.json()["errcode"] == "M_NOT_FOUND"
    return response.status_code == 410


async def running(person: Person, base: str = V3) -> list[dict[str, Any]]:
    """The futures of a user that wait."""
    found: list[dict[str, Any]] = await person.done("GET", f"{base}/future")
    return found


async def batch(
    person: Person, room_id: str, body: Any, txn: str | None = None, base: str = V3
) -> httpx.Response:
    """Send a batch."""
    return await person.ask("PUT", f"{base}/rooms/{quote(room_id)}/send/future/{txn or fresh('batch')}", body)
