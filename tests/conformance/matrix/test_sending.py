"""MSC4140: «Homeserver implementation details», «Guest accounts», «Compatibility with Cryptographic Identities».

And two of its considerations: «Security considerations», and the alternative in which a newer state event cancels.
"""

import asyncio
import time
from collections.abc import Callable

import httpx

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import CLIENT, UNSTABLE, Person, fresh, schedule_path, text
from tests.waiting import until

SOON_MS = 2_500
"""Long enough for a busy machine to change something in the room before."""


async def test_power_levels_can_fail_an_event_when_its_time_has_come(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    levels = await alice.state(room, "m.room.power_levels")
    delay_id = await bob.delay(room, text("muted"), ms=SOON_MS)
    await alice.set_state(room, "m.room.power_levels", "", {**levels, "events_default": 50})
    entry = await bob.finalised(delay_id)
    assert (entry["outcome"], entry["reason"], entry["error"]["errcode"]) == (
        "cancel",
        "error",
        "M_FORBIDDEN",
    )
    assert await alice.events(room) == []


async def test_power_levels_do_not_matter_when_scheduling(alice: Person, bob: Person, room: str) -> None:
    await bob.join(room)
    levels = await alice.state(room, "m.room.power_levels")
    # Bob may not do this now; and neither is this a room of his, nor one that exists.
    delay_id = await bob.delay(room, {"topic": "Bob's"}, ms=SOON_MS, type="m.room.topic", state_key="")
    for elsewhere in (await alice.create_room(preset="private_chat"), "!nowhere:tarry.test"):
        assert await bob.delay(elsewhere)
    await alice.set_state(
        room, "m.room.power_levels", "", {**levels, "users": {**levels["users"], bob.user_id: 100}}
    )
    entry = await bob.finalised(delay_id)
    assert (entry["outcome"], entry["reason"]) == ("send", "delay")
    assert await alice.state(room, "m.room.topic") == {"topic": "Bob's"}


async def test_membership_is_judged_when_sending(alice: Person, bob: Person, room: str) -> None:
    """A user who left, or was banned, sends nothing any more; one who has joined in the meantime does."""
    early = await bob.delay(room, text("joined by then"), ms=SOON_MS)
    await bob.join(room)
    assert (await bob.finalised(early))["outcome"] == "send"
    late = await bob.delay(room, text("banned by then"), ms=SOON_MS)
    await alice.done("POST", f"{CLIENT}/v3/rooms/{room}/ban", {"user_id": bob.user_id})
    entry = await bob.finalised(late)
    assert (entry["outcome"], entry["error"]["errcode"]) == ("cancel", "M_FORBIDDEN")


async def test_rate_limiting_at_sending_means_later_and_never_lost(
    switched_door: Door, someone: Callable[[str], Person]
) -> None:
    person = someone(switched_door.url)
    room_id = await person.create_room()

    async def scheduled() -> bool:
        body = {"delay": 3_000, "content": text("x")}
        return (await person.ask("PUT", schedule_path(room_id), body)).status_code == 200

    for _ in range(8):
        await until(scheduled)
    events = await person.arrived(room_id, 8)
    stamps = [event["origin_server_ts"] for event in events]
    # They were due within moments of each other; the limit stretched them over time.
    assert len(events) == 8
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] >= 500


async def test_guest_accounts_may_use_every_endpoint(
    door: Door, alice: Person, http: httpx.AsyncClient
) -> None:
    room_id = await alice.create_room(
        initial_state=[
            {"type": "m.room.guest_access", "state_key": "", "content": {"guest_access": "can_join"}}
        ]
    )
    registered = await http.post(f"{door.url}{CLIENT}/v3/register?kind=guest", json={})
    assert registered.status_code == 200, registered.text
    guest = Person(http, door.url, registered.json())
    await guest.join(room_id)
    first, second, third = [await guest.delay(room_id, text(str(number))) for number in range(3)]
    assert {entry["delay_id"] for entry in (await guest.listed())["scheduled"]} == {first, second, third}
    for delay_id, action in ((first, "restart"), (first, "send"), (second, "cancel")):
        assert (await guest.manage(delay_id, action)).status_code == 200
    path = f"{UNSTABLE}/delayed_events"
    assert [entry["delay_id"] for entry in (await guest.done("GET", path))["scheduled"]] == [third]
    assert [event["content"]["body"] for event in await alice.arrived(room_id)] == ["0"]


async def test_cryptographic_identities_content_is_sent_as_it_was_given(alice: Person, room: str) -> None:
    content = {
        "z": 1,
        "a": {"ü": '☎ \u0000 \\ "', "empty": {}, "none": None, "deep": [[[-(2**53) + 1, True]]]},
        "sent_ts": 1,
        "body": "",
    }
    await alice.delay(room, content, ms=20, type="org.example.odd")
    assert (await alice.arrived(room, 1, "org.example.odd"))[0]["content"] == content


async def test_cryptographic_identities_the_timestamp_is_when_it_was_sent(alice: Person, room: str) -> None:
    delay_id = await alice.delay(room, ms=3_600_000)
    await asyncio.sleep(0.3)
    before = time.time_ns() // 1_000_000
    await alice.manage(delay_id, "send")
    after = time.time_ns() // 1_000_000
    event = (await alice.events(room))[0]
    assert before <= event["origin_server_ts"] <= after
    entry = await alice.finalised(delay_id)
    assert before <= entry["origin_server_ts"] <= after


async def test_security_limits_are_finite_and_told(alice: Person) -> None:
    """«Servers MUST impose limits on the number and timeout duration»; clients can find them out."""
    capabilities = (await alice.done("GET", f"{CLIENT}/v3/capabilities"))["capabilities"]
    told = {"max_delay_ms": 7 * 24 * 3600 * 1000, "max_scheduled": 100}
    assert capabilities["m.delayed_events"] == told
    assert capabilities["org.matrix.msc4140.delayed_events"] == told


async def test_state_updates_of_others_cancel_where_that_is_switched_on(
    switched_door: Door, someone: Callable[[str], Person]
) -> None:
    owner, other = someone(switched_door.url), someone(switched_door.url)
    room_id = await owner.create_room(power_level_content_override={"state_default": 0})
    await other.join(room_id)
    kind = "org.example.state"
    delay_id = await owner.delay(room_id, {"by": "owner"}, type=kind, state_key="k")
    elsewhere = await owner.delay(room_id, {"by": "owner"}, type=kind, state_key="other key")
    # The same user is in control of both, so nothing happens.
    await owner.set_state(room_id, kind, "k", {"by": "owner, at once"})
    await other.set_state(room_id, "org.example.else", "k", {})
    await other.set_state(room_id, kind, "k", {"by": "other"})
    entry = await owner.finalised(delay_id)
    assert (entry["outcome"], entry["reason"]) == ("cancel", "error")
    assert entry["error"]["errcode"] == "M_CANCELLED_BY_STATE_UPDATE"
    assert [one["delay_id"] for one in (await owner.listed())["scheduled"]] == [elsewhere]
    path = f"{UNSTABLE}/delayed_events"
    told = (await owner.done("GET", path, params={"status": "finalised"}))["finalised"][0]["error"]
    assert (told["errcode"], told["org.matrix.msc4140.errcode"]) == (
        "M_UNKNOWN",
        "M_CANCELLED_BY_STATE_UPDATE",
    )


async def test_state_updates_of_others_change_nothing_by_default(alice: Person, bob: Person) -> None:
    room_id = await alice.create_room(power_level_content_override={"state_default": 0})
    await bob.join(room_id)
    delay_id = await alice.delay(
        room_id, {"by": "alice"}, ms=SOON_MS, type="org.example.state", state_key="k"
    )
    await bob.set_state(room_id, "org.example.state", "k", {"by": "bob"})
    assert (await alice.finalised(delay_id))["outcome"] == "send"
    assert await bob.state(room_id, "org.example.state", "k") == {"by": "alice"}


async def test_events_of_deactivated_users_are_cancelled(alice: Person, bob: Person, room: str) -> None:
    """A homeserver would send for them: an application service is not asked whether its users are still there."""
    await bob.join(room)
    await bob.delay(room, text("from the beyond"), ms=SOON_MS)
    name = bob.user_id[1:].partition(":")[0]
    auth = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": name},
        "password": f"password of {name}",
    }
    await bob.done("POST", f"{CLIENT}/v3/account/deactivate", {"auth": auth, "erase": False})
    marker = await alice.delay(room, text("marker"), ms=SOON_MS + 500)
    await alice.finalised(marker)
    assert [event["content"]["body"] for event in await alice.events(room)] == ["marker"]


async def test_in_one_room_events_arrive_in_the_order_of_their_times(alice: Person, room: str) -> None:
    for number in range(10):
        await alice.delay(room, text(str(number)), ms=1_500)
    assert [event["content"]["body"] for event in await alice.arrived(room, 10)] == [
        str(n) for n in range(10)
    ]


async def test_sticky_duration_is_kept(alice: Person, room: str) -> None:
    """MSC4354, which MatrixRTC sends its memberships with: the duration is given to the homeserver at delivery."""
    path = f"{CLIENT}/v3/rooms/{room}/send/m.rtc.member/{fresh()}"
    query = {"org.matrix.msc4140.delay": "20", "org.matrix.msc4354.sticky_duration_ms": "60000"}
    await alice.done("PUT", path, {"left": True}, params=query)
    event = (await alice.arrived(room, 1, "m.rtc.member"))[0]
    assert event["content"] == {"left": True}
    assert event["msc4354_sticky"] == {"duration_ms": 60_000}
