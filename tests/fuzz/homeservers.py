"""The homeserver behind the Matrix door: a real Synapse where one can be installed, or a small one of ours."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
from msgspec import Struct

from tarry.homeserver import registration
from tests.conformance.matrix.people import Person
from tests.conformance.matrix.synapse import Synapse
from tests.processes import free_port
from tests.unit.matrix_kit import AS_TOKEN, HS_TOKEN, ROOM, TinyHomeserver

PEOPLE: Final = ("ann", "bob")


class Homeserver(Struct, frozen=True):
    """A homeserver, as a campaign knows it."""

    url: str
    door_port: int
    """Where it finds the door, and the campaign has to open it."""
    registration: Path
    hs_token: str
    tokens: tuple[str, ...]
    """Tokens of its users, who are all in the room."""
    room: str


@contextlib.asynccontextmanager
async def tiny(folder: Path) -> AsyncIterator[Homeserver]:
    """One that takes what it is sent."""
    homeserver = TinyHomeserver()
    await homeserver.start()
    place = folder / "registration.yaml"
    place.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": HS_TOKEN}))
    try:
        yield Homeserver(homeserver.url, free_port(), place, HS_TOKEN, tuple(homeserver.users), ROOM)
    finally:
        await homeserver.stop()


@contextlib.asynccontextmanager
async def synapse(folder: Path) -> AsyncIterator[Homeserver]:
    """A real one with two users in one room; raises pytest's `Skipped` where it cannot be installed."""
    port = free_port()
    server = Synapse(folder / "synapse", port)
    try:
        server.start()
        place = server.registrations[port]
        accounts = [server.register(name) for name in PEOPLE]
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
            first, *others = (Person(client, server.url, account) for account in accounts)
            room = await first.create_room()
            for other in others:
                await other.join(room)
        hs_token = str(registration.read(place)["hs_token"])
        tokens = tuple(account["access_token"] for account in accounts)
        yield Homeserver(server.url, port, place, hs_token, tokens, room)
    finally:
        server.kill()
