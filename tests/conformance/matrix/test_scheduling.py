"""MSC4140, «Scheduling a delayed event», over plain HTTP on a real Synapse."""

import asyncio
import json
import re
import time
from collections.abc import Callable

import pytest

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import Person, schedule_path, text


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_scheduling_a_message_sends_it_after_the_delay(alice: Person, room: str) -> None:
    before = now_ms()
    answer = await alice.done("PUT", schedule_path(room), {"delay": 2_500, "content": text("later")})
    # «omitting the event_id as it is not available»
    assert set(answer) == {"delay_id"}
    assert await alice.events(room) == []
    event = (await alice.arrived(room))[0]
    assert event["content"] == text("later")
    assert event["sender"] == alice.user_id
    assert "state_key" not in event
    assert event["origin_server_ts"] >= before + 2_500


async def test_scheduling_with_a_state_key_sends_a_state_event(alice: Person, room: str) -> None:
    for key in ("", "a/b ☎ %2F", alice.user_id):
        await alice.delay(room, {"key": key}, ms=50, type="org.example.state", state_key=key)
    events = await alice.arrived(room, 3, "org.example.state")
    assert {event["state_key"]: event["content"]["key"] for event in events} == {
        key: key for key in ("", "a/b ☎ %2F", alice.user_id)
    }


async def test_scheduling_twice_with_one_transaction_id_is_one_event(alice: Person, room: str) -> None:
    path = schedule_path(room)
    first = await alice.done("PUT", path, {"delay": 300, "content": text("once")})
    again = await asyncio.gather(
        *(alice.done("PUT", path, {"delay": 300, "content": text("once")}) for _ in range(5))
    )
    assert again == [first] * 5
    await alice.finalised(first["delay_id"])
    # Also after it was sent.
    assert await alice.done("PUT", path, {"delay": 300, "content": text("once")}) == first
    await alice.say(room, "the end")
    assert [event["content"]["body"] for event in await alice.arrived(room, 2)] == ["once", "the end"]


async def test_scheduling_transaction_ids_belong_to_a_device(
    alice: Person, bob: Person, room: str, door: Door
) -> None:
    path = schedule_path(room)
    mine = await alice.done("PUT", path, {"delay": 60_000, "content": text("mine")})
    theirs = await bob.done("PUT", path, {"delay": 60_000, "content": text("theirs")})
    name = alice.user_id[1:].partition(":")[0]
    login = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": name},
        "password": f"password of {name}",
    }
    account = await alice.done("POST", "/_matrix/client/v3/login", login, token=None)
    other = Person(alice._http, door.url, account)
    from_there = await other.done("PUT", path, {"delay": 60_000, "content": text("other")})
    assert len({mine["delay_id"], theirs["delay_id"], from_there["delay_id"]}) == 3


@pytest.mark.parametrize("delay", [0, -1, 1.5, "10", 2**63, None, True, [1], 1e400])
async def test_scheduling_needs_a_positive_number_of_milliseconds(
    alice: Person, room: str, delay: object
) -> None:
    # The one that is no number in Python either is written as it would come.
    body = f'{{"content": {{}}, "delay": {"1e400" if delay == 1e400 else json.dumps(delay)}}}'
    response = await alice.ask("PUT", schedule_path(room), content=body)
    assert response.status_code == 400, response.text
    assert response.json()["errcode"].startswith("M_")
    assert (await alice.listed())["scheduled"] == []


@pytest.mark.parametrize(
    ("body", "errcode"),
    [
        ({"content": {}}, "M_MISSING_PARAM"),
        ({"delay": 1000}, "M_MISSING_PARAM"),
        ({"delay": 1000, "content": "text"}, "M_BAD_JSON"),
        ({"delay": 1000, "content": {}, "state_key": 1}, "M_BAD_JSON"),
        ([], "M_BAD_JSON"),
    ],
)
async def test_scheduling_needs_its_required_fields(
    alice: Person, room: str, body: object, errcode: str
) -> None:
    response = await alice.ask("PUT", schedule_path(room), body)
    assert (response.status_code, response.json()["errcode"]) == (400, errcode), response.text


async def test_scheduling_gives_an_opaque_id_that_cannot_be_guessed(alice: Person, room: str) -> None:
    ids = [await alice.delay(room) for _ in range(20)]
    assert len(set(ids)) == len(ids)
    for delay_id in ids:
        # The grammar of opaque identifiers; and at least the 128 bits of an access token.
        assert re.fullmatch(r"[0-9A-Za-z._~-]{22,255}", delay_id), delay_id
    # One that was not given out is none, however near it is.
    known = ids[-1]
    for at in range(len(known)):
        guessed = known[:at] + ("A" if known[at] != "A" else "B") + known[at + 1 :]
        assert (await alice.manage(guessed, "cancel")).status_code == 404
    assert len((await alice.listed(delay_id=known))["scheduled"]) == 1


async def test_scheduling_beyond_the_maximum_delay_names_it(alice: Person, room: str) -> None:
    week_ms = 7 * 24 * 3600 * 1000
    response = await alice.ask("PUT", schedule_path(room), {"delay": week_ms + 1, "content": {}})
    assert response.status_code == 400
    answer = response.json()
    assert (answer["errcode"], answer["max_delay"]) == ("M_MAX_DELAY_EXCEEDED", week_ms)
    assert await alice.delay(room, ms=week_ms)


async def test_scheduling_more_than_may_be_outstanding_is_refused(alice: Person, room: str) -> None:
    ids = [await alice.delay(room) for _ in range(100)]
    refused = await alice.ask("PUT", schedule_path(room), {"delay": 1000, "content": {}})
    assert (refused.status_code, refused.json()["errcode"]) == (400, "M_MAX_DELAYED_EVENTS_EXCEEDED")
    assert (await alice.manage(ids[0], "cancel")).status_code == 200
    assert await alice.delay(room)


async def test_scheduling_is_rate_limited(switched_door: Door, someone: Callable[[str], Person]) -> None:
    person = someone(switched_door.url)
    room_id = await person.create_room()
    body = {"delay": 60_000, "content": {}}
    responses = await asyncio.gather(*(person.ask("PUT", schedule_path(room_id), body) for _ in range(40)))
    limited = [response for response in responses if response.status_code == 429]
    assert limited
    assert limited[0].json()["errcode"] == "M_LIMIT_EXCEEDED"
    assert limited[0].json()["retry_after_ms"] > 0
    # The others of this server are not concerned.
    other = someone(switched_door.url)
    assert (await other.ask("PUT", schedule_path(room_id), body)).status_code == 200
