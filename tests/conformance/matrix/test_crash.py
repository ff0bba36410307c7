"""SIGKILL of Tarry, of the homeserver, and of both, in mid-delivery: each event is in the room exactly once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.matrix.conftest import UNLIMITED, config
from tests.conformance.matrix.people import CLIENT, Person, fresh, text
from tests.conformance.matrix.synapse import Synapse
from tests.processes import ServerProcess, free_port
from tests.waiting import until

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
        stranger = Person(http, person.url, mortal.register(fresh("mortal")))
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

        kept, cancelled = [await person.delay(rooms[0], text("?"), ms=3_600_000) for _ in range(2)]

        async def begun() -> bool:
            return any(await at_home.events(rooms[0]))

        await until(begun)
        if victims != "homeserver":
            server.kill()
        if victims != "tarry":
            mortal.kill()
            if victims == "homeserver":
                await managed_while_it_is_down(person, stranger, kept, cancelled)
            mortal.start()
        if victims != "homeserver":
            server.start()

        async def ended() -> bool:
            waiting = {entry["delay_id"] for entry in (await person.listed(status="scheduled"))["scheduled"]}
            return waiting <= {kept, cancelled}

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


async def managed_while_it_is_down(person: Person, stranger: Person, kept: str, cancelled: str) -> None:
    """Events are managed and listed without the homeserver, by whoever Tarry has seen."""
    assert (await person.manage(kept, "restart")).status_code == 200
    assert (await person.manage(cancelled, "cancel")).status_code == 200
    assert (await person.manage(cancelled, "cancel")).status_code == 404
    waiting = (await person.listed(delay_id=[kept, cancelled]))["scheduled"]
    assert [entry["delay_id"] for entry in waiting] == [kept]
    # Whom Tarry has not seen has to wait for the homeserver.
    assert (await stranger.ask("GET", f"{CLIENT}/v1/delayed_events")).status_code in {502, 503}
    assert (await person.ask("GET", f"{CLIENT}/v3/sync")).status_code in {502, 503}
