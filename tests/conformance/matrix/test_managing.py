"""MSC4140, «Managing delayed events» and «Delegating delayed events»."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import CLIENT, Person, fresh, text
from tests.waiting import until

HOURS_MS = 6 * 3600 * 1000


async def test_managing_send_sends_at_once(alice: Person, room: str) -> None:
    delay_id = await alice.delay(room, text("now"), ms=HOURS_MS)
    response = await alice.manage(delay_id, "send")
    assert (response.status_code, response.json()) == (200, {})
    # It is in the room when the answer is there.
    assert [event["content"]["body"] for event in await alice.events(room)] == ["now"]


async def test_managing_cancel_means_it_is_never_sent(alice: Person, room: str) -> None:
    delay_id = await alice.delay(room, text("never"), ms=2_500)
    response = await alice.manage(delay_id, "cancel")
    assert (response.status_code, response.json()) == (200, {})
    # Another one that is due later has arrived: the first would have been there.
    await alice.delay(room, text("later"), ms=2_600)
    assert [event["content"]["body"] for event in await alice.arrived(room)] == ["later"]


async def test_managing_restart_begins_the_delay_anew(alice: Person, room: str) -> None:
    delay_id = await alice.delay(room, text("leave"), ms=4_000)
    first = (await alice.listed())["scheduled"][0]["running_since"]
    restarted_ms = 0
    for _ in range(5):
        await asyncio.sleep(0.9)
        restarted_ms = time.time_ns() // 1_000_000
        response = await alice.manage(delay_id, "restart")
        assert (response.status_code, response.json()) == (200, {})
    listed = (await alice.listed())["scheduled"][0]
    assert listed["delay_id"] == delay_id
    assert listed["running_since"] >= restarted_ms > first
    assert listed["delay"] == 4_000
    event = (await alice.arrived(room))[0]
    assert event["origin_server_ts"] >= restarted_ms + 4_000
    assert len(await alice.events(room)) == 1


@pytest.mark.parametrize("action", ["send", "cancel", "restart", "refresh"])
async def test_managing_an_id_that_is_not_known_is_404(alice: Person, action: str) -> None:
    for delay_id in ("1234567890", "x" * 255, "..%2F", fresh("syd_")):
        response = await alice.ask("POST", f"{CLIENT}/v1/delayed_events/{delay_id}/{action}", {}, token=None)
        assert (response.status_code, response.json()["errcode"]) == (404, "M_NOT_FOUND")


@pytest.mark.parametrize("action", ["send", "cancel", "restart"])
async def test_managing_what_was_cancelled_is_404(alice: Person, room: str, action: str) -> None:
    delay_id = await alice.delay(room)
    assert (await alice.manage(delay_id, "cancel")).status_code == 200
    response = await alice.manage(delay_id, action)
    assert (response.status_code, response.json()["errcode"]) == (404, "M_NOT_FOUND")


async def test_managing_send_again_is_200(alice: Person, room: str) -> None:
    by_request = await alice.delay(room, text("by request"), ms=HOURS_MS)
    by_delay = await alice.delay(room, text("by delay"), ms=50)
    answers = await asyncio.gather(*(alice.manage(by_request, "send") for _ in range(5)))
    await alice.finalised(by_delay)
    answers += [await alice.manage(by_request, "send"), await alice.manage(by_delay, "send")]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {})] * 7
    assert sorted(event["content"]["body"] for event in await alice.arrived(room, 2)) == [
        "by delay",
        "by request",
    ]
    # What was sent can be neither cancelled nor restarted.
    for action in ("cancel", "restart"):
        assert (await alice.manage(by_delay, action)).status_code == 404


async def test_managing_a_send_that_fails_gives_its_error(alice: Person, bob: Person, room: str) -> None:
    # Bob is not in the room.
    delay_id = await bob.delay(room, text("no"), ms=HOURS_MS)
    first = await bob.manage(delay_id, "send")
    assert (first.status_code, first.json()["errcode"]) == (403, "M_FORBIDDEN")
    again = await bob.manage(delay_id, "send")
    assert (again.status_code, again.json()) == (403, first.json())


async def test_managing_what_failed_at_its_time_gives_that_error(
    alice: Person, bob: Person, room: str
) -> None:
    delay_id = await bob.delay(room, text("no"), ms=50)
    entry = await bob.finalised(delay_id)
    response = await bob.manage(delay_id, "send")
    assert (response.status_code, response.json()) == (403, entry["error"])


async def test_managing_needs_no_token_and_does_not_look_at_one(
    alice: Person, bob: Person, room: str
) -> None:
    delay_id = await alice.delay(room)
    path = f"{CLIENT}/v1/delayed_events/{delay_id}"
    for token in (None, bob.token, "none at all"):
        assert (await alice.ask("POST", f"{path}/restart", {}, token=token)).status_code == 200
    # Neither is a body or its type needed.
    assert (await alice.ask("POST", f"{path}/restart", token=None)).status_code == 200
    assert (await alice.ask("POST", f"{path}/cancel", token=None, content=b"not json")).status_code in {
        200,
        400,
    }


async def test_managing_may_demand_the_owners_token(
    switched_door: Door, someone: Callable[[str], Person]
) -> None:
    owner, other = someone(switched_door.url), someone(switched_door.url)
    delay_id = await owner.delay(await owner.create_room())
    path = f"{CLIENT}/v1/delayed_events/{delay_id}"
    for action in ("restart", "send", "cancel"):
        refused = await owner.ask("POST", f"{path}/{action}", {}, token=None)
        assert (refused.status_code, refused.json()["errcode"]) == (401, "M_MISSING_TOKEN")
        assert (await other.ask("POST", f"{path}/{action}", {})).status_code == 404
    assert (await owner.ask("POST", f"{path}/restart", {})).status_code == 200
    assert (await owner.ask("POST", f"{path}/cancel", {})).status_code == 200


async def test_managing_send_that_is_rate_limited_leaves_it_scheduled(
    switched_door: Door, someone: Callable[[str], Person]
) -> None:
    person = someone(switched_door.url)
    room_id = await person.create_room()
    ids = [await _patiently(person, room_id) for _ in range(10)]
    path = f"{CLIENT}/v1/delayed_events"
    answers = await asyncio.gather(*(person.ask("POST", f"{path}/{one}/send", {}) for one in ids))
    limited = [one for one, answer in zip(ids, answers, strict=True) if answer.status_code == 429]
    assert limited
    refusal = next(answer for answer in answers if answer.status_code == 429).json()
    assert refusal["errcode"] == "M_LIMIT_EXCEEDED"
    assert refusal["retry_after_ms"] > 0
    listed = (await person.listed(delay_id=limited))["scheduled"]
    assert {entry["delay_id"] for entry in listed} == set(limited)


async def _patiently(person: Person, room_id: str) -> str:
    """Schedule under a rate limit."""

    async def scheduled() -> str | None:
        path = f"{CLIENT}/v3/rooms/{room_id}/delayed_event/m.room.message/{fresh()}"
        response = await person.ask("PUT", path, {"delay": HOURS_MS, "content": text("x")})
        return str(response.json()["delay_id"]) if response.status_code == 200 else None

    return await until(scheduled) or ""


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_managing_by_another_method_is_405(alice: Person, room: str, method: str) -> None:
    delay_id = await alice.delay(room)
    response = await alice.ask(method, f"{CLIENT}/v1/delayed_events/{delay_id}/cancel")
    assert (response.status_code, response.json()["errcode"]) == (405, "M_UNRECOGNIZED")
    # «DELETE» on the event itself is an alternative that was rejected.
    response = await alice.ask("DELETE", f"{CLIENT}/v1/delayed_events/{delay_id}")
    assert (response.status_code, response.json()["errcode"]) == (405, "M_UNRECOGNIZED")
    assert len((await alice.listed())["scheduled"]) == 1


async def test_delegating_lets_a_service_control_one_event_and_nothing_else(alice: Person, room: str) -> None:
    """An SFU knows a delay id and no token: it restarts seldom, and sends when the client is gone."""
    delegated = await alice.delay(
        room, {"left": True}, ms=HOURS_MS, type="m.rtc.member", state_key=alice.user_id
    )
    kept = await alice.delay(room, text("mine"), ms=HOURS_MS)
    for action in ("refresh", "restart", "send"):
        assert (await alice.manage(delegated, action)).status_code == 200
    assert await alice.state(room, "m.rtc.member", alice.user_id) == {"left": True}
    # The id opens nothing but its own event.
    response = await alice.ask("GET", f"{CLIENT}/v1/delayed_events", token=delegated)
    assert (response.status_code, response.json()["errcode"]) == (401, "M_UNKNOWN_TOKEN")
    assert [entry["delay_id"] for entry in (await alice.listed())["scheduled"]] == [kept]
