"""MSC4140 as it was merged in September 2026, and MSC4486's list beside it."""

from typing import Any

import pytest

from tests.conformance.matrix.people import CLIENT, UNSTABLE, Person, fresh, schedule_path, text

WEEK_MS = 7 * 24 * 3600 * 1000


async def merged(person: Person, room: str, ms: int = 60_000, **more: Any) -> str:
    body = {"delay_ms": ms, "content": text("merged"), **more}
    return str((await person.done("PUT", schedule_path(room), body))["delay_id"])


async def one(person: Person, delay_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await person.done("GET", f"{CLIENT}/v1/delayed_events/{delay_id}")
    return found


async def test_merged_scheduling_takes_delay_ms(alice: Person, room: str) -> None:
    await merged(alice, room, 50)
    path = f"{UNSTABLE}/rooms/{room}/delayed_event/m.room.message/{fresh()}"
    await alice.done("PUT", path, {"delay_ms": 50, "content": text("merged")})
    assert len(await alice.arrived(room, 2)) == 2


async def test_merged_the_same_outcome_again_is_200_and_another_is_409(alice: Person, room: str) -> None:
    sent, cancelled = await merged(alice, room), await merged(alice, room)
    for _ in range(2):
        assert (await alice.manage(sent, "send")).status_code == 200
        assert (await alice.manage(cancelled, "cancel")).status_code == 200
    for delay_id, action in (
        (sent, "cancel"),
        (sent, "restart"),
        (cancelled, "send"),
        (cancelled, "restart"),
    ):
        response = await alice.manage(delay_id, action)
        assert response.status_code == 409, (action, response.text)
        assert response.json()["errcode"].startswith("M_")


async def test_merged_a_send_that_fails_leaves_it_scheduled(alice: Person, bob: Person, room: str) -> None:
    delay_id = await merged(bob, room)
    response = await bob.manage(delay_id, "send")
    assert (response.status_code, response.json()["errcode"]) == (403, "M_FORBIDDEN")
    assert "finalised" not in await one(bob, delay_id)
    await bob.join(room)
    assert (await bob.manage(delay_id, "send")).status_code == 200
    assert len(await alice.events(room)) == 1


async def test_merged_one_event_can_be_looked_at(alice: Person, bob: Person, room: str) -> None:
    delay_id = await merged(alice, room, 70_000)
    found = await one(alice, delay_id)
    own = {"delay_id", "room_id", "type", "content"}
    assert set(found) == {"delay_ms", "delayed_since_ts", *own}
    assert found["delay_ms"] == 70_000
    await alice.manage(delay_id, "send")
    ended = await one(alice, delay_id)
    assert set(ended) == {"delay_ms", "delayed_since_ts", "finalised", *own}
    assert set(ended["finalised"]) == {"finalised_ts", "event_id"}
    assert ended["finalised"]["event_id"] == (await alice.events(room))[0]["event_id"]
    failed = await merged(bob, room, 20)
    await bob.finalised(failed)
    assert (await one(bob, failed))["finalised"]["error"]["errcode"] == "M_FORBIDDEN"


async def test_merged_a_delay_that_is_too_long(alice: Person, room: str) -> None:
    response = await alice.ask("PUT", schedule_path(room), {"delay_ms": WEEK_MS + 1, "content": {}})
    assert (response.status_code, response.json()["errcode"]) == (400, "M_DELAY_TOO_LARGE")


async def test_merged_too_many_is_a_limit(alice: Person, room: str) -> None:
    for _ in range(100):
        await merged(alice, room)
    response = await alice.ask("PUT", schedule_path(room), {"delay_ms": 60_000, "content": {}})
    assert (response.status_code, response.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
    assert int(response.headers["retry-after"]) > 0


async def test_merged_and_seed_events_each_answer_in_their_own_words(alice: Person, room: str) -> None:
    seed, new = await alice.delay(room), await merged(alice, room)
    for delay_id in (seed, new):
        await alice.manage(delay_id, "cancel")
    assert (await alice.manage(seed, "cancel")).status_code == 404
    assert (await alice.manage(new, "cancel")).status_code == 200


async def test_msc4486_lists_by_time_room_type_and_status(alice: Person, room: str) -> None:
    other = await alice.create_room()
    mine = await merged(alice, room)
    theirs = await merged(alice, other)
    gone = await merged(alice, room)
    await alice.manage(gone, "cancel")
    path = f"{CLIENT}/v1/delayed_events"

    async def ids(**query: Any) -> list[str]:
        answer = await alice.done("GET", path, params=query)
        return [entry["delay_id"] for entry in answer["delayed_events"]]

    assert await ids(status=["scheduled"], room_id=room, dir="f") == [mine]
    assert set(await ids(status=["scheduled"], dir="f")) == {mine, theirs}
    assert await ids(status=["cancelled"], dir="f") == [gone]
    assert set(await ids(type="m.room.message", dir="b")) == {mine, theirs, gone}
    assert await ids(type="org.example.other", dir="b") == []
    assert await ids(from_ts=1, to_ts=2, dir="f") == []


@pytest.mark.parametrize("dir", ["f", "b"])
async def test_msc4486_pages(alice: Person, room: str, dir: str) -> None:
    ids = [await merged(alice, room, 100_000 + 1000 * at) for at in range(25)]
    found: list[str] = []
    query: dict[str, str] = {"dir": dir, "room_id": room}
    for _ in range(6):
        page = await alice.done("GET", f"{CLIENT}/v1/delayed_events", params=query)
        found += [entry["delay_id"] for entry in page["delayed_events"]]
        if "next_batch" not in page:
            break
        query["from"] = page["next_batch"]
    assert found == (ids if dir == "f" else ids[::-1])
