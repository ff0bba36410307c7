"""MSC4140, «MatrixRTC» and «Self-destructing messages», over plain HTTP."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.conformance.matrix.people import CLIENT, Person, fresh, schedule_path

MEMBER = "m.rtc.member"
LATER_MS = 2_500


async def test_matrixrtc_a_heartbeat_keeps_the_membership_and_its_end_ends_it(
    alice: Person, room: str
) -> None:
    # A state key that began with another user's id would be refused by the room.
    key = f"_{alice.user_id}_DEVICE"
    joined: dict[str, str] = {"application": "m.call", "call_id": ""}
    left: dict[str, str] = {}
    # «Before sending the join event, it also schedules a delayed hangup state event».
    leave = await alice.delay(room, left, ms=4_000, type=MEMBER, state_key=key)
    await alice.set_state(room, MEMBER, key, joined)
    for _ in range(7):
        await asyncio.sleep(0.7)
        assert (await alice.manage(leave, "restart")).status_code == 200
    last_ms = time.time_ns() // 1_000_000
    # Longer than the delay has passed since the join.
    assert await alice.state(room, MEMBER, key) == joined
    events = await alice.arrived(room, 2, MEMBER)
    assert [event["content"] for event in events] == [joined, left]
    assert events[1]["origin_server_ts"] >= last_ms - 700 + 4_000


async def test_matrixrtc_leaving_in_good_order_sends_the_hangup_at_once(alice: Person, room: str) -> None:
    leave = await alice.delay(room, {"left": True}, ms=3_600_000, type=MEMBER, state_key=alice.user_id)
    await alice.set_state(room, MEMBER, alice.user_id, {"application": "m.call"})
    assert (await alice.manage(leave, "send")).status_code == 200
    assert await alice.state(room, MEMBER, alice.user_id) == {"left": True}


@pytest.mark.parametrize("version", ["10", "11"])
async def test_self_destructing_messages_are_redacted(alice: Person, version: str) -> None:
    await asyncio.gather(
        *(
            destructs(alice, version, ask)
            for ask in (by_the_proposals_endpoint, by_a_query_on_send, by_a_query_on_redact)
        )
    )


async def destructs(
    alice: Person, version: str, ask: Callable[[Person, str, str], Awaitable[object]]
) -> None:
    room_id = await alice.create_room(version)
    event_id = await alice.say(room_id, "this message will self-redact")
    await ask(alice, room_id, event_id)
    # It was not redacted at once.
    assert (await alice.events(room_id))[0]["content"]["body"] == "this message will self-redact"
    redaction = (await alice.arrived(room_id, 1, "m.room.redaction"))[0]
    assert redaction["content"]["reason"] == "time is up"
    redacted = (await alice.events(room_id))[0]
    assert redacted["content"] == {}
    assert redacted["unsigned"]["redacted_because"]["event_id"] == redaction["event_id"]


async def by_the_proposals_endpoint(alice: Person, room_id: str, event_id: str) -> None:
    content = {"redacts": event_id, "reason": "time is up"}
    path = schedule_path(room_id, "m.room.redaction")
    await alice.done("PUT", path, {"delay": LATER_MS, "content": content})


async def by_a_query_on_send(alice: Person, room_id: str, event_id: str) -> None:
    path = f"{CLIENT}/v3/rooms/{room_id}/send/m.room.redaction/{fresh()}?org.matrix.msc4140.delay={LATER_MS}"
    await alice.done("PUT", path, {"redacts": event_id, "reason": "time is up"})


async def by_a_query_on_redact(alice: Person, room_id: str, event_id: str) -> None:
    path = f"{CLIENT}/v3/rooms/{room_id}/redact/{event_id}/{fresh()}?org.matrix.msc4140.delay={LATER_MS}"
    await alice.done("PUT", path, {"reason": "time is up"})
