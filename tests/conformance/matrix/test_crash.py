"""SIGKILL of Tarry, of the homeserver, and of both, in mid-delivery: each event is in the room exactly once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.matrix.conftest import UNLIMITED, config
from tests.conformance.matrix.people import Person, fresh, text, until
from tests.conformance.matrix.synapse import Synapse
from tests.crash.process import ServerProcess, free_port

ROOMS = 7
EVENTS = 48
KIND = "org.example.state"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Synapse]:
    """A homeserver of these tests' own: it dies."""
    made = Synapse(tmp_path_factory.mktemp("mortal") / "synapse", port)
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.mark.crash
@pytest.mark.parametrize("victims", ["tarry", "homeserver", "both"])
async def test_sigkill_in_mid_delivery_leaves_each_event_in_its_room_once(
    tmp_path: Path, mortal: Synapse, port: int, http: httpx.AsyncClient, victims: str
) -> None:
    with ServerProcess(tmp_path / "data", config(mortal, port, UNLIMITED)) as server:
        server.start()
        person = Person(http, f"http://127.0.0.1:{port}", mortal.register(fresh("mortal")))
        at_home = person.at(mortal.url)
        rooms = [await at_home.create_room() for _ in range(ROOMS)]
        ids = await asyncio.gather(
            *(
                person.delay(rooms[number % ROOMS], text(str(number)), ms=3_000)
                if number % 3
                else person.delay(
                    rooms[number % ROOMS], text(str(number)), ms=3_000, type=KIND, state_key=str(number)
                )
                for number in range(EVENTS)
            )
        )

        async def begun() -> bool:
            return any(await at_home.events(rooms[0]))

        await until(begun)
        if victims != "homeserver":
            server.kill()
        if victims != "tarry":
            mortal.kill()
            # The door is not the homeserver: what waits can still be managed, or was killed as well.
            mortal.start()
        if victims != "homeserver":
            server.start()

        async def ended() -> bool:
            return not (await person.listed(status="scheduled"))["scheduled"]

        await until(ended, 120)
        found = [
            int(event["content"]["body"])
            for room in rooms
            for kind in ("m.room.message", KIND)
            for event in await at_home.events(room, kind)
        ]
        assert sorted(found) == list(range(EVENTS))
        outcomes = [(await person.finalised(delay_id))["outcome"] for delay_id in ids[:: EVENTS // 8]]
        assert set(outcomes) == {"send"}
