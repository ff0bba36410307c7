"""An administrator at the command line: what waits, by user and by room, and its end."""

import json
from typing import Any

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import CLIENT, Person, text
from tests.processes import tarry


def matrix(door: Door, *arguments: str) -> str:
    done = tarry("matrix", *arguments, "--url", door.server.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def events(door: Door, *filters: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in matrix(door, "events", "--json", *filters).splitlines()]


async def test_an_administrator_lists_and_cancels_by_user_and_by_room(
    door: Door, alice: Person, bob: Person, room: str
) -> None:
    other = await alice.create_room()
    here, there = await alice.delay(room, text("here")), await alice.delay(other, text("there"))
    bobs = await bob.delay(room, text("Bob's"))
    future = f"{CLIENT}/v3/rooms/{room}/send_future/m.room.message/f1?future_timeout=60000"
    await alice.done("PUT", future, text("a future"))
    assert {message["id"] for message in events(door, "--user", bob.user_id)} == {bobs}
    assert {here, there} < {message["id"] for message in events(door, "--user", alice.user_id)}
    assert len(events(door, "--user", alice.user_id)) == 3
    assert {message["id"] for message in events(door, "--room", other)} == {there}
    assert len(events(door, "--room", room)) == 3
    assert bob.user_id in matrix(door, "events", "--user", bob.user_id)
    assert matrix(door, "cancel", "--room", room, "--user", alice.user_id) == "2 cancelled\n"
    assert matrix(door, "cancel", "--room", room) == "1 cancelled\n"
    assert [entry["delay_id"] for entry in (await alice.listed())["scheduled"]] == [there]
    ended = await bob.finalised(bobs)
    assert (ended["outcome"], ended["reason"]) == ("cancel", "action")
