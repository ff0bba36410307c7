"""MSC4140, «Getting delayed events»."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import CLIENT, Person, text

LIST = f"{CLIENT}/v1/delayed_events"


async def test_getting_needs_a_token(alice: Person) -> None:
    for token, errcode in ((None, "M_MISSING_TOKEN"), ("nobody's", "M_UNKNOWN_TOKEN")):
        response = await alice.ask("GET", LIST, token=token)
        assert (response.status_code, response.json()["errcode"]) == (401, errcode)


async def test_getting_shows_scheduled_events_with_these_fields(alice: Person, room: str) -> None:
    before = time.time_ns() // 1_000_000
    message = await alice.delay(room, text("hello"), ms=90_000)
    state = await alice.delay(
        room, {"a": [1, {"b": None}]}, ms=80_000, type="org.example.state", state_key="k"
    )
    listed = (await alice.listed(status="scheduled"))["scheduled"]
    after = time.time_ns() // 1_000_000
    for entry in listed:
        assert before <= entry.pop("running_since") <= after
    assert listed == [
        # The one that times out soonest is first.
        {
            "delay_id": state,
            "room_id": room,
            "type": "org.example.state",
            "state_key": "k",
            "delay": 80_000,
            "content": {"a": [1, {"b": None}]},
        },
        {
            "delay_id": message,
            "room_id": room,
            "type": "m.room.message",
            "delay": 90_000,
            "content": text("hello"),
        },
    ]


async def test_getting_sorts_scheduled_events_by_when_they_time_out(alice: Person, room: str) -> None:
    slow, quick, middle = [await alice.delay(room, ms=ms) for ms in (90_000, 60_000, 75_000)]
    ids = [entry["delay_id"] for entry in (await alice.listed())["scheduled"]]
    assert ids == [quick, middle, slow]


async def test_getting_shows_only_ones_own(alice: Person, bob: Person, room: str) -> None:
    delay_id = await alice.delay(room)
    assert await bob.listed() == {"scheduled": [], "finalised": []}
    assert await bob.listed(delay_id=delay_id) == {"scheduled": [], "finalised": []}


async def test_getting_finalised_events_says_what_became_of_them_and_why(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    timed = await bob.delay(room, text("timed"), ms=20)
    await bob.finalised(timed)
    sent = await bob.delay(room, text("sent"))
    await bob.manage(sent, "send")
    cancelled = await bob.delay(room, text("cancelled"))
    await bob.manage(cancelled, "cancel")
    # Bob may not change the room's name.
    failed = await bob.delay(room, {"name": "mine"}, ms=20, type="m.room.name", state_key="")
    await bob.finalised(failed)
    entries = (await bob.listed(status="finalised"))["finalised"]
    said = {entry["delayed_event"]["delay_id"]: (entry["outcome"], entry["reason"]) for entry in entries}
    assert said == {
        timed: ("send", "delay"),
        sent: ("send", "action"),
        cancelled: ("cancel", "action"),
        failed: ("cancel", "error"),
    }
    # The latest is first.
    assert list(said) == [failed, cancelled, sent, timed]
    stamps = [entry["origin_server_ts"] for entry in entries]
    assert stamps == sorted(stamps, reverse=True)
    by_id: dict[str, dict[str, Any]] = {entry["delayed_event"]["delay_id"]: entry for entry in entries}
    assert by_id[failed]["error"]["errcode"] == "M_FORBIDDEN"
    assert by_id[failed]["error"]["error"]
    in_room = {event["content"]["body"]: event["event_id"] for event in await bob.events(room)}
    assert by_id[timed]["event_id"] == in_room["timed"]
    assert by_id[sent]["event_id"] == in_room["sent"]
    for delay_id in (cancelled, failed):
        assert "event_id" not in by_id[delay_id]
    for delay_id in (timed, sent, cancelled):
        assert "error" not in by_id[delay_id]
    described = by_id[sent]["delayed_event"]
    assert set(described) == {"delay_id", "room_id", "type", "delay", "running_since", "content"}
    assert (described["content"], described["delay"]) == (text("sent"), 60_000)


async def test_getting_filters_by_status(alice: Person, room: str) -> None:
    waiting, ended = await alice.delay(room), await alice.delay(room)
    await alice.manage(ended, "cancel")
    everything = await alice.listed()
    assert [entry["delay_id"] for entry in everything["scheduled"]] == [waiting]
    assert [entry["delayed_event"]["delay_id"] for entry in everything["finalised"]] == [ended]
    assert set(await alice.listed(status="scheduled")) == {"scheduled"}
    assert set(await alice.listed(status="finalised")) == {"finalised"}


@pytest.mark.parametrize("status", ["", "sent", "SCHEDULED", "scheduled,finalised", "cancelled"])
async def test_getting_an_unsupported_status_is_400_unknown(alice: Person, status: str) -> None:
    response = await alice.ask("GET", LIST, params={"status": status})
    assert (response.status_code, response.json()["errcode"]) == (400, "M_UNKNOWN")


async def test_getting_filters_by_ids_as_many_as_are_given(alice: Person, room: str) -> None:
    first, second, third = [await alice.delay(room, ms=60_000 + 1000 * at) for at in range(3)]
    await alice.manage(third, "cancel")
    listed = await alice.listed(delay_id=[first, third, "unknown"])
    assert [entry["delay_id"] for entry in listed["scheduled"]] == [first]
    assert [entry["delayed_event"]["delay_id"] for entry in listed["finalised"]] == [third]
    assert second not in str(listed)
    assert await alice.listed(delay_id="unknown") == {"scheduled": [], "finalised": []}


async def test_getting_page_by_page_gives_each_event_once(alice: Person, room: str) -> None:
    waiting = [await alice.delay(room, ms=100_000 + 1000 * at) for at in range(23)]
    ended = [await alice.delay(room, ms=100_000) for _ in range(13)]
    for delay_id in ended:
        await alice.manage(delay_id, "cancel")
    scheduled: list[str] = []
    finalised: list[str] = []
    query: dict[str, str] = {}
    for _ in range(10):
        page = await alice.listed(**query)
        assert len(page["scheduled"]) <= 10
        assert len(page["finalised"]) <= 10
        scheduled += [entry["delay_id"] for entry in page["scheduled"]]
        finalised += [entry["delayed_event"]["delay_id"] for entry in page["finalised"]]
        if "next_batch" not in page:
            break
        query = {"from": page["next_batch"]}
    assert scheduled == waiting
    assert finalised == ended[::-1]


async def test_getting_pages_stay_right_while_events_restart(alice: Person, room: str) -> None:
    waiting = [await alice.delay(room, ms=200_000 + 100 * at) for at in range(20)]
    page = await alice.listed(status="scheduled")
    # One that was seen moves behind the end, and one that was not seen yet does as well.
    for delay_id in (waiting[0], waiting[12]):
        await alice.manage(delay_id, "restart")
    rest: list[str] = []
    while "next_batch" in page:
        page = await alice.listed(**{"status": "scheduled", "from": page["next_batch"]})
        rest += [entry["delay_id"] for entry in page["scheduled"]]
    # What stayed where it was is there once; nothing that was not seen is missing.
    assert [delay_id for delay_id in rest if delay_id not in (waiting[0], waiting[12])] == [
        *waiting[10:12],
        *waiting[13:],
    ]
    assert waiting[12] in rest


@pytest.mark.parametrize("token", ["", "b12345", "AAAA", "☎", "-1", "9" * 300])
async def test_getting_from_a_token_that_was_made_up_is_400(alice: Person, token: str) -> None:
    response = await alice.ask("GET", LIST, params={"from": token})
    assert response.status_code == 400, response.text
    assert response.json()["errcode"].startswith("M_")


async def test_getting_is_rate_limited(switched_door: Door, someone: Callable[[str], Person]) -> None:
    person = someone(switched_door.url)
    answers = await asyncio.gather(*(person.ask("GET", LIST) for _ in range(40)))
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited
    assert limited[0].json()["errcode"] == "M_LIMIT_EXCEEDED"
    assert limited[0].json()["retry_after_ms"] > 0
