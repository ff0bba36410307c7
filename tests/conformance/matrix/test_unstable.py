"""MSC4140, «Unstable prefix» and «Implementation differences»: what clients in the field send today."""

from typing import Any

import pytest

from tests.conformance.matrix.people import CLIENT, UNSTABLE, Person, fresh, text

WEEK_MS = 7 * 24 * 3600 * 1000
DELAY = "org.matrix.msc4140.delay"


async def by_query(person: Person, room: str, ms: object = 60_000, version: str = "v3", **query: str) -> Any:
    path = f"{CLIENT}/{version}/rooms/{room}/send/m.room.message/{fresh()}"
    return await person.ask("PUT", path, text("by query"), params={DELAY: str(ms), **query})


@pytest.mark.parametrize("version", ["v3", "r0"])
async def test_unstable_prefix_the_delay_is_a_query_parameter_of_send(
    alice: Person, room: str, version: str
) -> None:
    answer = (await by_query(alice, room, 2_500, version)).json()
    assert set(answer) == {"delay_id"}
    assert await alice.events(room) == []
    assert (await alice.arrived(room))[0]["content"] == text("by query")


@pytest.mark.parametrize("path", ["org.example.state/", "org.example.state"])
async def test_unstable_prefix_the_delay_is_a_query_parameter_of_state(
    alice: Person, room: str, path: str
) -> None:
    path = f"{CLIENT}/v3/rooms/{room}/state/{path}"
    await alice.done("PUT", path, {"empty": "key"}, params={DELAY: "20"})
    await alice.done(
        "PUT", f"{CLIENT}/v3/rooms/{room}/state/org.example.state/a%2Fb", {"n": 1}, params={DELAY: "20"}
    )
    events = await alice.arrived(room, 2, "org.example.state")
    assert {event["state_key"] for event in events} == {"", "a/b"}


async def test_unstable_prefix_transaction_ids_hold_there_too(alice: Person, room: str) -> None:
    path = f"{CLIENT}/v3/rooms/{room}/send/m.room.message/{fresh()}"
    answers = [await alice.done("PUT", path, text("once"), params={DELAY: "60000"}) for _ in range(2)]
    assert answers[0] == answers[1]
    assert len((await alice.listed())["scheduled"]) == 1


@pytest.mark.parametrize("action", ["send", "cancel", "restart", "refresh"])
@pytest.mark.parametrize("form", ["path", "body"])
@pytest.mark.parametrize("with_token", [True, False])
async def test_unstable_prefix_management_by_path_and_by_body(
    alice: Person, room: str, action: str, form: str, with_token: bool
) -> None:
    delay_id = (await by_query(alice, room)).json()["delay_id"]
    path = f"{UNSTABLE}/delayed_events/{delay_id}"
    token = "" if with_token else None
    if form == "path":
        # As matrix-js-sdk does it: without a body.
        response = await alice.ask("POST", f"{path}/{action}", token=token)
    else:
        response = await alice.ask("POST", path, {"action": action}, token=token)
    assert (response.status_code, response.json()) == (200, {})
    assert len(await alice.events(room)) == (1 if action == "send" else 0)
    assert len((await alice.listed())["scheduled"]) == (1 if action in ("restart", "refresh") else 0)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"action": "explode"}', b'{"action": 1}', b"nonsense"])
async def test_unstable_prefix_a_body_without_an_action_is_400(alice: Person, room: str, body: bytes) -> None:
    delay_id = (await by_query(alice, room)).json()["delay_id"]
    response = await alice.ask("POST", f"{UNSTABLE}/delayed_events/{delay_id}", content=body)
    assert response.status_code == 400, response.text
    assert response.json()["errcode"].startswith("M_")
    assert len((await alice.listed())["scheduled"]) == 1


async def test_unstable_prefix_never_answers_409(alice: Person, room: str) -> None:
    """matrix-js-sdk ends its call on a 409."""
    for body in ({"delay": 60_000, "content": text("a")}, {"delay_ms": 60_000, "content": text("b")}):
        path = f"{UNSTABLE}/rooms/{room}/delayed_event/m.room.message/{fresh()}"
        delay_id = (await alice.done("PUT", path, body))["delay_id"]
        await alice.done("POST", f"{UNSTABLE}/delayed_events/{delay_id}/send")
        for action in ("restart", "cancel"):
            response = await alice.ask("POST", f"{UNSTABLE}/delayed_events/{delay_id}/{action}")
            assert (response.status_code, response.json()["errcode"]) == (404, "M_NOT_FOUND")


async def test_unstable_prefix_the_list_also_has_synapses_key(alice: Person, room: str) -> None:
    delay_id = (await by_query(alice, room)).json()["delay_id"]
    listed = await alice.done("GET", f"{UNSTABLE}/delayed_events")
    assert [entry["delay_id"] for entry in listed["scheduled"]] == [delay_id]
    assert listed["delayed_events"] == listed["scheduled"]
    assert listed["finalised"] == []
    # And no such key where the proposal's own names hold.
    assert "delayed_events" not in await alice.listed()


async def test_unstable_prefix_a_delay_that_is_too_long(alice: Person, room: str) -> None:
    response = await by_query(alice, room, WEEK_MS + 1)
    answer = response.json()
    assert answer.pop("error")
    assert (response.status_code, answer) == (
        400,
        {
            "errcode": "M_UNKNOWN",
            "org.matrix.msc4140.errcode": "M_MAX_DELAY_EXCEEDED",
            "org.matrix.msc4140.max_delay": WEEK_MS,
        },
    )


async def test_unstable_prefix_too_many(alice: Person, room: str) -> None:
    for _ in range(100):
        assert (await by_query(alice, room)).status_code == 200
    response = await by_query(alice, room)
    answer = response.json()
    assert answer.pop("error")
    assert (response.status_code, answer) == (
        400,
        {"errcode": "M_UNKNOWN", "org.matrix.msc4140.errcode": "M_MAX_DELAYED_EVENTS_EXCEEDED"},
    )


async def test_unstable_prefix_the_feature_is_advertised(alice: Person) -> None:
    at_home = alice.at(alice.url)
    versions = await at_home.done("GET", f"{CLIENT}/versions", token=None)
    assert versions["unstable_features"]["org.matrix.msc4140"] is True
    assert versions["unstable_features"]["org.matrix.msc4140.stable"] is True
    # The rest is the homeserver's own.
    assert "v1.11" in versions["versions"]
    assert len(versions["unstable_features"]) > 10


@pytest.mark.parametrize("ms", ["0", "-1", "1.5", "", "ten", "1e3", str(2**63), " 10", "٣"])
async def test_unstable_prefix_a_delay_that_is_none_is_refused_and_nothing_is_sent(
    alice: Person, room: str, ms: str
) -> None:
    response = await by_query(alice, room, ms)
    assert response.status_code == 400, response.text
    assert await alice.events(room) == []
    assert (await alice.listed())["scheduled"] == []


@pytest.mark.parametrize(
    "query",
    [
        "delay=60000",
        "org.matrix.msc4140.delay=60000",
        "org%2Ematrix.msc4140.delay=60000",
        "delay=60000&delay=1",
        "delay",
        "future_timeout=60000",
        "future_group_id=a",
        "x=1&future_timeout=60000&future_group_id=a",
    ],
)
async def test_what_asks_to_wait_is_never_sent_at_once(alice: Person, room: str, query: str) -> None:
    event_id = await alice.say(room, "here")
    rooms = [f"{CLIENT}/{version}/rooms/{room}" for version in ("v3", "r0", "v1")]
    for path in rooms:
        for tail in (
            f"send/m.room.message/{fresh()}",
            "state/org.example.state/k",
            "state/org.example.state",
            f"redact/{event_id}/{fresh()}",
        ):
            response = await alice.ask("PUT", f"{path}/{tail}?{query}", text("at once?"))
            assert "event_id" not in response.text, f"{tail}: {response.text}"
        response = await alice.ask("POST", f"{path}/send/m.room.message?{query}", text("at once?"))
        assert "event_id" not in response.text
    assert [event["content"] for event in await alice.events(room)] == [text("here")]
    assert await alice.state(room, "org.example.state", "k") is None


async def test_implementation_differences_one_event_can_be_asked_for(alice: Person, room: str) -> None:
    delay_id = (await by_query(alice, room)).json()["delay_id"]
    found = await alice.done("GET", f"{UNSTABLE}/delayed_events/{delay_id}")
    assert found.pop("delayed_since_ts") > 0
    # What matrix-js-sdk expects to find.
    assert found == {
        "delay_id": delay_id,
        "room_id": room,
        "type": "m.room.message",
        "delay_ms": 60_000,
        "content": text("by query"),
    }


async def test_what_is_not_served_is_404(alice: Person) -> None:
    """Element Call probes this path to find out whether leaving can be delegated."""
    path = f"{CLIENT}/unstable/io.element.msc4195/rtc/livekit/delegate_delayed_leave"
    response = await alice.ask("POST", path, {})
    assert (response.status_code, response.json()["errcode"]) == (404, "M_UNRECOGNIZED")
