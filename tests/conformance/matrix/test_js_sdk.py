"""The client library of Element Call, unmodified, through Tarry to a homeserver that knows nothing of delayed events."""

import asyncio
import os
import time
from signal import Signals

import pytest

from tests.conformance.matrix.people import CLIENT, Person, fresh
from tests.conformance.matrix.sdk import WITH_RESOLVERS, modules, ran, sdk
from tests.conformance.matrix.synapse import Synapse
from tests.processes import ROOT
from tests.waiting import until

MEMBER = "org.matrix.msc3401.call.member"


async def test_js_sdk_makes_every_call_about_delayed_events(alice: Person, room: str) -> None:
    done = await ran("calls", alice, room)
    ids = {name: answer["delay_id"] for name, answer in done["ids"].items()}
    listed = {entry["delay_id"]: entry for entry in done["scheduled"]["scheduled"]}
    # The one of 100 ms may have gone before the list was asked for.
    assert set(listed) | {ids["timed"]} == set(ids.values())
    assert listed[ids["keyless"]]["state_key"] == ""
    actions = done["actions"]
    for name in ("restart", "send", "sendAgain", "cancel", "update"):
        assert actions[name] == {"value": {}}, name
    for name in ("cancelAgain", "unknown"):
        assert (actions[name]["status"], actions[name]["errcode"]) == (404, "M_NOT_FOUND")
    # What makes it shorten its delay.
    told = actions["tooLong"]["data"]
    assert told["org.matrix.msc4140.errcode"] == "M_MAX_DELAY_EXCEEDED"
    assert told["org.matrix.msc4140.max_delay"] == 7 * 24 * 3600 * 1000
    assert "value" in actions["one"]
    outcomes = {
        entry["delayed_event"]["delay_id"]: entry["outcome"] for entry in done["finalised"]["finalised"]
    }
    assert outcomes[ids["sent"]] == "send"
    assert outcomes[ids["cancelled"]] == "cancel"
    bodies = [event["content"]["body"] for event in await alice.arrived(room, 2)]
    assert bodies == ["sent", "restarted"]
    assert await alice.state(room, "org.example.state", "k") == {"n": 1}


@pytest.mark.parametrize("version", ["10", "11"])
async def test_js_sdk_self_destructing_message(alice: Person, version: str) -> None:
    room_id = await alice.create_room(version)
    done = await ran("redaction", alice, room_id, delay=2_500)
    assert done["delay_id"]
    await alice.arrived(room_id, 1, "m.room.redaction")
    (event,) = await alice.events(room_id)
    assert (event["event_id"], event["content"]) == (done["event_id"], {})


async def test_js_sdk_matrixrtc_a_client_that_dies_leaves_the_call(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    async with sdk("rtc", alice, room, delay=5_000, restart=1_000) as client:
        assert await client.said("joined") is True

        async def joined() -> object:
            members = await bob.events(room, MEMBER)
            return members and members[-1]["content"].get("application") == "m.call"

        await until(joined)
        while await client.said("status") != "Connected":
            pass
        (delayed,) = (await alice.listed())["scheduled"]
        # Its heartbeat moves the instant for longer than the delay, and nobody leaves.
        began_ms = delayed["running_since"]

        async def restarted() -> bool:
            now = (await alice.listed())["scheduled"]
            return bool(now) and now[0]["running_since"] > began_ms + 6_000

        await until(restarted)
        assert len(await bob.events(room, MEMBER)) == 1
        await client.kill()
        killed_ms = time.time_ns() // 1_000_000
    events = await bob.arrived(room, 2, MEMBER)
    assert events[1]["content"] == {}
    assert events[1]["state_key"] == events[0]["state_key"]
    (entry,) = (await alice.listed(status="finalised"))["finalised"]
    assert (entry["outcome"], entry["reason"]) == ("send", "delay")
    # Within the delay of its last sign of life; generous, for a busy machine.
    assert events[1]["origin_server_ts"] <= killed_ms + 5_000 + 15_000


async def test_js_sdk_matrixrtc_a_client_that_leaves_has_left_at_once(alice: Person, room: str) -> None:
    async with sdk("rtc", alice, room, delay=3_600_000, restart=1_000) as client:
        while await client.said("status") != "Connected":
            pass
        await client.leave()
        assert await client.said("left") is True
    members = await alice.events(room, MEMBER)
    assert members[-1]["content"] == {}
    assert (await alice.listed())["scheduled"] == []


async def test_js_sdk_matrixrtc_an_sfu_ends_the_membership_of_a_client_that_died(
    alice: Person, room: str
) -> None:
    """The delay is long, and who knows that the connection is gone has the delay id and no token."""
    async with sdk("rtc", alice, room, delay=3_600_000, restart=3_000_000) as client:
        while await client.said("status") != "Connected":
            pass
        (delayed,) = (await alice.listed())["scheduled"]
        await client.kill()
    # As lk-jwt-service does it: an empty object, and nothing that says who asks.
    path = f"{CLIENT}/v1/delayed_events/{delayed['delay_id']}"
    for action in ("restart", "send"):
        assert (await alice.ask("POST", f"{path}/{action}", {}, token=None)).status_code == 200
    assert (await alice.events(room, MEMBER))[-1]["content"] == {}
    # It asks again when it is not sure.
    assert (await alice.ask("POST", f"{path}/send", {}, token=None)).status_code == 200


async def test_js_sdk_matrixrtc_with_sticky_events(alice: Person, room: str) -> None:
    """The newer form of a membership: a sticky message, and a sticky delayed one that ends it."""
    async with sdk("rtc", alice, room, delay=3_600_000, restart=3_000_000, sticky=True) as client:
        while await client.said("status") != "Connected":
            pass
        (delayed,) = (await alice.listed())["scheduled"]
        await client.kill()
    assert (await alice.manage(delayed["delay_id"], "send")).status_code == 200
    joined, left = await alice.events(room, delayed["type"])
    assert joined["msc4354_sticky"] == left["msc4354_sticky"]
    assert left["content"] == delayed["content"]


async def test_js_sdk_needs_tarry_for_it(alice: Person, homeserver: Synapse) -> None:
    """The control: the homeserver behind does not offer delayed events by itself."""
    at_home = alice.at(homeserver.url)
    features = (await at_home.done("GET", f"{CLIENT}/versions", token=None))["unstable_features"]
    assert not features.get("org.matrix.msc4140")


async def test_js_sdk_example_who_is_gone_has_left(alice: Person, room: str) -> None:
    """The program of examples/element_call_leave, as its page says."""
    folder = await asyncio.to_thread(modules)
    program = folder / f"leave-{fresh()}.mjs"
    # The program finds the library beside itself.
    program.write_text((ROOT / "examples/element_call_leave/leave.mjs").read_text("utf-8"))
    given = {
        **os.environ, "HOMESERVER": alice.url, "USER_ID": alice.account["user_id"], "ROOM_ID": room,
        "ACCESS_TOKEN": alice.account["access_token"], "GONE_AFTER_MS": "3000",
    }  # fmt: skip
    try:
        for signal in ("SIGKILL", "SIGINT"):
            process = await asyncio.create_subprocess_exec(
                "node", "--import", WITH_RESOLVERS, program, env=given, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while b"joined" not in (line := await process.stdout.readline()):
                    assert line, "it ended without joining"
            process.send_signal(Signals[signal])
            await process.wait()
            count = 2 if signal == "SIGKILL" else 4
            events = await alice.arrived(room, count, MEMBER)
            assert [bool(event["content"]) for event in events] == [True, False] * (count // 2)
    finally:
        program.unlink()
