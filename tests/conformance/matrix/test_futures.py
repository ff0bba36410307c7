"""The Futures draft, section by section: «Proposal», «Response», «Delegating futures», «Getting running futures»."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.futures import LONG_MS, V3, batch, future, is_gone, path, post, running, used
from tests.conformance.matrix.people import CLIENT, Person, fresh, text
from tests.waiting import until

KIND = "org.example.state"


async def bodies(person: Person, room: str) -> list[str]:
    return [event["content"]["body"] for event in await person.events(room)]


# Proposal


async def test_proposal_a_timeout_future_is_sent_after_its_timeout(alice: Person, room: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    await future(alice, room, {**text("on time"), "org.example": [1, None, {}]}, timeout=500)
    (event,) = await alice.arrived(room)
    assert event["content"] == {**text("on time"), "org.example": [1, None, {}]}
    assert event["sender"] == alice.user_id
    assert event["origin_server_ts"] >= before_ms + 500


async def test_proposal_a_state_future_is_sent_as_state(alice: Person, room: str) -> None:
    keys = ["", "a/b", alice.user_id, "☎"]
    for key in keys:
        await future(alice, room, {"left": True}, type=KIND, state_key=key, timeout=200)
    await alice.arrived(room, len(keys), KIND)
    for key in keys:
        assert await alice.state(room, KIND, key) == {"left": True}


async def test_proposal_an_action_future_is_sent_only_by_its_token(alice: Person, room: str) -> None:
    timed = await future(alice, room, text("timed"), timeout=LONG_MS)
    action = await future(alice, room, text("action"), group=timed["future_group_id"])
    await future(alice, room, text("shorter"), timeout=300)
    # What has a shorter time is there; the action is not.
    await alice.arrived(room)
    assert await bodies(alice, room) == ["shorter"]
    await used(alice, action["send_token"])
    await alice.arrived(room, 2)
    assert await bodies(alice, room) == ["shorter", "action"]


async def test_proposal_only_one_of_a_group_can_ever_reach_the_room(alice: Person, room: str) -> None:
    group = fresh("group")
    others = [
        await future(alice, room, text("later"), timeout=LONG_MS, group=group),
        await future(alice, room, text("action"), group=group),
    ]
    first = await future(alice, room, text("first"), timeout=200, group=group)
    assert first["future_group_id"] == group
    await alice.arrived(room)
    for tokens in (first, *others):
        assert await is_gone(alice, tokens["send_token"])
    assert await bodies(alice, room) == ["first"]
    # «ever»: the group has had its event.
    refused = await alice.ask("PUT", path(room, timeout=100, group=group), text("late"))
    assert (refused.status_code, refused.json()["errcode"]) == (409, "M_UNKNOWN")


async def test_proposal_a_group_id_is_generated_and_others_can_join_it(alice: Person, room: str) -> None:
    one = await future(alice, room, timeout=LONG_MS)
    other = await future(alice, room, timeout=LONG_MS)
    assert one["future_group_id"] != other["future_group_id"]
    joined = await future(alice, room, timeout=LONG_MS, group=one["future_group_id"])
    assert joined["future_group_id"] == one["future_group_id"]


async def test_proposal_a_group_id_can_only_be_used_by_one_user(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    group = fresh("group")
    tokens = await future(alice, room, timeout=LONG_MS, group=group)
    for query in ({"timeout": LONG_MS, "group": group}, {"group": group}):
        refused = await bob.ask("PUT", path(room, **query), text("not mine"))
        assert (refused.status_code, refused.json()["errcode"]) == (405, "M_FORBIDDEN")
    assert await running(bob) == []
    await used(alice, tokens["cancel_token"])
    # Nobody's again.
    await future(bob, room, timeout=LONG_MS, group=group)


async def test_proposal_one_of_the_parameters_has_to_be_present(alice: Person, room: str) -> None:
    for where in (path(room), path(room, KIND, state_key="")):
        refused = await alice.ask("PUT", where, text("never"))
        assert (refused.status_code, refused.json()["errcode"]) == (400, "M_MISSING_PARAM")
    assert await alice.events(room) == []


async def test_proposal_an_action_future_needs_a_timeout_future_in_its_group(
    alice: Person, room: str
) -> None:
    group = fresh("group")
    refused = await alice.ask("PUT", path(room, group=group), text("alone"))
    assert (refused.status_code, refused.json()["errcode"]) == (409, "M_UNKNOWN")
    await future(alice, room, timeout=LONG_MS, group=group)
    await future(alice, room, group=group)


async def test_proposal_a_timeout_has_a_maximum(alice: Person, room: str) -> None:
    week_ms = 7 * 24 * 3_600_000
    refused = await alice.ask("PUT", path(room, timeout=week_ms + 1), text("in a year"))
    assert refused.status_code == 400
    assert str(week_ms) in refused.json()["error"]
    await future(alice, room, timeout=week_ms)


async def test_proposal_a_timeout_is_a_number_of_milliseconds(alice: Person, room: str) -> None:
    for given in ("0", "-1", "1.5", '"10"', "", str(2**63), "9" * 40):
        refused = await alice.ask("PUT", path(room, timeout=given), text("never"))
        assert (refused.status_code, refused.json()["errcode"]) == (400, "M_INVALID_PARAM"), given


async def test_proposal_errors_are_those_of_the_normal_endpoints(alice: Person, room: str) -> None:
    where = path(room, timeout=LONG_MS)
    big = {"body": "x" * 70_000}
    for refused, status, code in (
        (await alice.ask("PUT", where, {}, token=None), 401, "M_MISSING_TOKEN"),
        (await alice.ask("PUT", where, {}, token="made_up"), 401, "M_UNKNOWN_TOKEN"),
        (await alice.ask("PUT", where, content=b"not json"), 400, "M_NOT_JSON"),
        (await alice.ask("PUT", where, []), 400, "M_BAD_JSON"),
        (await alice.ask("PUT", where, big), 413, "M_TOO_LARGE"),
        (await alice.ask("PUT", path(room, "x" * 300, timeout=LONG_MS), {}), 400, "M_INVALID_PARAM"),
        (await alice.ask("POST", where, {}), 405, "M_UNRECOGNIZED"),
        (await alice.ask("GET", f"{V3}/future/abc"), 405, "M_UNRECOGNIZED"),
    ):
        assert (refused.status_code, refused.json()["errcode"]) == (status, code)
        assert refused.headers["access-control-allow-origin"] == "*"
    preflight = await alice.ask("OPTIONS", where, token=None)
    assert preflight.headers["access-control-allow-methods"]
    assert await running(alice) == []


async def test_proposal_power_levels_are_evaluated_when_it_is_sent(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    levels = await alice.state(room, "m.room.power_levels")
    # Bob may say something now and not later; the topic is the other way round.
    said = await future(bob, room, text("muted"), timeout=LONG_MS)
    topic = await future(bob, room, {"topic": "Bob's"}, type="m.room.topic", state_key="", timeout=LONG_MS)
    changed = {**levels, "events_default": 50, "events": {**levels["events"], "m.room.topic": 0}}
    await alice.set_state(room, "m.room.power_levels", "", changed)
    # The bearer of a token hears that it was refused, and nothing of the room.
    refused = await bob.ask("POST", f"{CLIENT}/v3/future/{said['send_token']}", {}, token=None)
    assert (refused.status_code, refused.json()["errcode"]) == (409, "M_UNKNOWN")
    await used(bob, topic["send_token"])

    async def is_set() -> bool:
        return bool(await alice.state(room, "m.room.topic") == {"topic": "Bob's"})

    await until(is_set)
    assert await alice.events(room) == []
    assert await running(bob) == []


# Response


async def test_response_has_the_tokens_and_no_event_id(alice: Person, room: str) -> None:
    timed = await future(alice, room, timeout=LONG_MS)
    assert set(timed) == {"send_token", "cancel_token", "refresh_token", "future_group_id"}
    action = await future(alice, room, group=timed["future_group_id"])
    assert set(action) == {"send_token", "cancel_token", "future_group_id"}
    tokens = [value for one in (timed, action) for name, value in one.items() if name.endswith("_token")]
    assert len(set(tokens)) == 5
    # «of the same format»
    assert {(len(token), token.isalnum(), token.lower() == token) for token in tokens} == {(32, True, True)}


async def test_response_to_a_repeated_transaction_is_the_same(alice: Person, room: str) -> None:
    txn = fresh("future")
    first = await future(alice, room, timeout=LONG_MS, txn=txn)
    assert await future(alice, room, timeout=LONG_MS, txn=txn) == first
    assert await future(alice, room, text("another"), timeout=LONG_MS, group=fresh("group"), txn=txn) == first
    assert len(await running(alice)) == 1


# Delegating futures


async def test_delegating_a_refresh_restarts_the_timer(alice: Person, room: str) -> None:
    tokens = await future(alice, room, text("silence"), timeout=2_500)
    await asyncio.sleep(0.5)
    refreshed_ms = time.time_ns() // 1_000_000
    await used(alice, tokens["refresh_token"])
    (event,) = await alice.arrived(room)
    assert event["origin_server_ts"] >= refreshed_ms + 2_500


async def test_delegating_send_sends_at_once_and_deletes_the_group(alice: Person, room: str) -> None:
    timed = await future(alice, room, text("timed"), timeout=LONG_MS)
    action = await future(alice, room, text("action"), group=timed["future_group_id"])
    await used(alice, action["send_token"])
    await alice.arrived(room)
    assert await bodies(alice, room) == ["action"]
    assert await running(alice) == []
    for token in (*timed.values(), *action.values()):
        assert await is_gone(alice, token)
        # Those are tokens that were valid once; here they only must not make the next ones wait.
        await used(alice, (await future(alice, room, timeout=LONG_MS))["refresh_token"])


async def test_delegating_send_of_a_timeout_future_does_not_wait(alice: Person, room: str) -> None:
    tokens = await future(alice, room, text("now"), timeout=LONG_MS)
    await used(alice, tokens["send_token"])
    (event,) = await alice.arrived(room)
    assert event["content"]["body"] == "now"


async def test_delegating_of_two_sends_in_one_group_one_wins(alice: Person, room: str) -> None:
    timed = await future(alice, room, text("timed"), timeout=LONG_MS)
    actions = [await future(alice, room, text(str(n)), group=timed["future_group_id"]) for n in range(3)]
    answers = await asyncio.gather(*(post(alice, one["send_token"]) for one in actions))
    assert sorted(answer.status_code for answer in answers) == [200, 410, 410]
    (event,) = await alice.arrived(room)
    assert event["content"]["body"] == str([answer.status_code for answer in answers].index(200))


async def test_delegating_cancel_sends_nothing_and_may_delete_the_group(alice: Person, room: str) -> None:
    group = fresh("group")
    one = await future(alice, room, text("one"), timeout=LONG_MS, group=group)
    two = await future(alice, room, text("two"), timeout=LONG_MS, group=group)
    left, right = [await future(alice, room, text("action"), group=group) for _ in range(2)]
    await used(alice, left["cancel_token"])
    await used(alice, one["cancel_token"])
    # One future of each kind is left; the group goes with its last timeout future.
    assert sorted(len(entry["response"]) for entry in await running(alice)) == [3, 4]
    await used(alice, two["cancel_token"])
    assert await running(alice) == []
    assert await is_gone(alice, right["send_token"])
    assert await alice.events(room) == []


async def test_delegating_an_unknown_token_is_gone(alice: Person, room: str) -> None:
    tokens = await future(alice, room, timeout=LONG_MS)
    for made_up in ("0" * 32, "nonsense"):
        assert await is_gone(alice, made_up)
    await used(alice, tokens["cancel_token"])
    assert await is_gone(alice, tokens["cancel_token"])
    await used(alice, (await future(alice, room, timeout=LONG_MS))["refresh_token"])


async def test_delegating_a_new_state_event_invalidates_futures(
    alice: Person, bob: Person, room: str
) -> None:
    await bob.join(room)
    levels = await alice.state(room, "m.room.power_levels")
    await alice.set_state(room, "m.room.power_levels", "", {**levels, "state_default": 0})
    # An older event with the same key does not count, however late it is heard of.
    await alice.set_state(room, KIND, "key", {"n": 0})
    kept = await future(alice, room, {}, type=KIND, state_key="other key", timeout=LONG_MS)
    for number, sender in enumerate((alice, bob), 1):
        tokens = await future(alice, room, {"left": True}, type=KIND, state_key="key", timeout=LONG_MS)
        await asyncio.sleep(0.3)
        assert len(await running(alice)) == 2
        await sender.set_state(room, KIND, "key", {"n": number})

        async def is_alone() -> bool:
            return len(await running(alice)) == 1

        await until(is_alone)
        assert await is_gone(alice, tokens["send_token"])
    await used(alice, kept["refresh_token"])
    assert await alice.state(room, KIND, "key") == {"n": 2}


async def test_delegating_a_new_state_event_counts_also_if_it_is_sent_past_the_door(
    alice: Person, homeserver: Any, room: str
) -> None:
    await future(alice, room, {"left": True}, type=KIND, state_key="", timeout=LONG_MS)
    await alice.at(homeserver.url).set_state(room, KIND, "", {"new": True})

    async def is_over() -> bool:
        return await running(alice) == []

    await until(is_over)
    assert await alice.state(room, KIND, "") == {"new": True}


@pytest.fixture
async def stranger(door: Door) -> Any:
    """Somebody with an address of their own."""
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.9")
    async with httpx.AsyncClient(base_url=door.url, timeout=60, transport=transport) as client:
        yield client


async def test_delegating_rate_limiting_of_invalid_tokens(alice: Person, stranger: Any, room: str) -> None:
    tokens = await future(alice, room, timeout=LONG_MS)

    async def tried(token: str) -> httpx.Response:
        response: httpx.Response = await stranger.post(f"{V3}/future/{token}")
        return response

    assert [(await tried(f"{n:032x}")).status_code for n in range(4)] == [410] * 4
    assert (await tried(tokens["refresh_token"])).status_code == 200
    # «in a row»: the valid one began a new row.
    assert [(await tried(f"{n:032x}")).status_code for n in range(5)] == [410] * 5
    limited = await tried(tokens["refresh_token"])
    assert (limited.status_code, limited.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
    assert 0 < limited.json()["retry_after_ms"] <= 10_000
    assert 1 <= int(limited.headers["retry-after"]) <= 10
    # Nobody else is concerned. That the pause ends is a matter of ten seconds: see `test_futures_guesses`.
    await used(alice, tokens["refresh_token"])


async def test_delegating_everything_survives_a_crash(alice: Person, door: Door, room: str) -> None:
    group = fresh("group")
    elsewhere = await alice.create_room()
    txn = fresh("batch")
    self_destructing = {
        "timeout": LONG_MS,
        "send_now": {"type": "m.room.message", "content": text("my msg")},
        "send_on_timeout": {"type": "m.room.redaction", "content": {"redacts": "$m.send_now.event_id"}},
    }
    first = (await batch(alice, elsewhere, self_destructing, txn)).json()
    timed = await future(alice, room, text("timed"), timeout=LONG_MS, group=group)
    action = await future(alice, room, text("action"), group=group)
    before = await running(alice)
    await future(alice, room, {"left": True}, type=KIND, state_key="", timeout=1_000)
    door.server.kill()
    door.server.start()
    (left,) = await alice.arrived(room, 1, KIND)
    assert left["content"] == {"left": True}
    assert await running(alice) == before
    await used(alice, timed["refresh_token"])
    await used(alice, action["send_token"])
    await alice.arrived(room)
    assert await bodies(alice, room) == ["action"]
    assert await is_gone(alice, timed["send_token"])
    # The batch: asked for again it is the same one, and its redaction knows its event.
    assert (await batch(alice, elsewhere, self_destructing, txn)).json() == first
    await used(alice, first["send_on_timeout"]["send_token"])
    await alice.arrived(elsewhere, 1, "m.room.redaction")
    (event,) = await alice.events(elsewhere)
    assert (event["event_id"], event["content"]) == (first["send_now"]["eventId"], {})


# Getting running futures


async def test_getting_running_futures(alice: Person, bob: Person, room: str) -> None:
    assert await running(alice) == []
    where = path(room, timeout=LONG_MS)
    timed = await alice.done("PUT", where, text("timed"))
    group = timed["future_group_id"]
    elsewhere = path(room, KIND, state_key="a/b", group=group)
    action = await alice.done("PUT", elsewhere, {"action": True})
    first, second = await running(alice)
    assert first == {"url": where, "body": text("timed"), "response": timed}
    assert second == {"url": elsewhere, "body": {"action": True}, "response": action}
    assert await running(bob) == []
    refused = await alice.ask("GET", f"{V3}/future", token=None)
    assert (refused.status_code, refused.json()["errcode"]) == (401, "M_MISSING_TOKEN")
    # «And to acquire cancel_tokens».
    await used(alice, first["response"]["cancel_token"])
    assert await running(alice) == []


async def test_getting_running_futures_never_shows_an_access_token(alice: Person, room: str) -> None:
    where = f"{path(room, timeout=LONG_MS)}&access_token={alice.token}"
    response = await alice.ask("PUT", where, text("old client"), token=None)
    assert response.status_code == 200
    (entry,) = await running(alice)
    assert alice.token not in str(entry)
    assert f"future_timeout={LONG_MS}" in entry["url"]


async def test_getting_running_futures_are_no_delayed_events_of_the_other_draft(
    alice: Person, room: str
) -> None:
    await future(alice, room, timeout=LONG_MS)
    assert (await alice.listed())["scheduled"] == []
    await alice.delay(room)
    assert len(await running(alice)) == 1


# Usecase specific considerations


async def test_matrixrtc_with_a_client_that_dies(alice: Person, room: str) -> None:
    """Join, then a future that leaves, refreshed while the client lives."""
    await alice.set_state(room, KIND, alice.user_id, {"joined": True})
    tokens = await future(alice, room, {}, type=KIND, state_key=alice.user_id, timeout=2_500)
    for _ in range(3):
        await asyncio.sleep(0.9)
        await used(alice, tokens["refresh_token"])
    # Longer than the timeout has passed since it was set.
    assert await alice.state(room, KIND, alice.user_id) == {"joined": True}
    events = await alice.arrived(room, 2, KIND)
    assert [event["content"] for event in events] == [{"joined": True}, {}]


async def test_matrixrtc_delegated_to_an_sfu(alice: Person, room: str) -> None:
    """«it could even be a different action for both cases»."""
    await alice.set_state(room, KIND, alice.user_id, {"joined": True})
    timed = await future(alice, room, {"why": "timeout"}, type=KIND, state_key=alice.user_id, timeout=LONG_MS)
    group = timed["future_group_id"]
    hung_up = await future(alice, room, {"why": "hung up"}, type=KIND, state_key=alice.user_id, group=group)
    await future(alice, room, {"why": "lost"}, type=KIND, state_key=alice.user_id, group=group)
    await used(alice, timed["refresh_token"])
    await used(alice, hung_up["send_token"])
    events = await alice.arrived(room, 2, KIND)
    assert events[1]["content"] == {"why": "hung up"}
    assert await running(alice) == []


@pytest.mark.parametrize("version", ["10", "11"])
async def test_self_destructing_messages(alice: Person, version: str) -> None:
    room_id = await alice.create_room(version)
    event_id = await alice.say(room_id, "my msg")
    query = f"timeout=600000&future_group_id=XYZ{fresh()}"
    where = f"{V3}/rooms/{room_id}/send_future/m.room.redaction/{fresh()}?{query}"
    tokens = await alice.done("PUT", where, {"redacts": event_id})
    assert (await alice.events(room_id))[0]["content"]["body"] == "my msg"
    # Ten minutes are too long for a test.
    await used(alice, tokens["send_token"])
    await alice.arrived(room_id, 1, "m.room.redaction")
    assert (await alice.events(room_id))[0]["content"] == {}


# Alternatives: reusing the send and state endpoints


@pytest.mark.parametrize("version", ["v3", "r0"])
async def test_reusing_the_send_and_state_endpoints(alice: Person, room: str, version: str) -> None:
    base = f"{CLIENT}/{version}/rooms/{room}"
    timed = await alice.done(
        "PUT", f"{base}/send/m.room.message/{fresh()}?future_timeout={LONG_MS}", text("timed")
    )
    assert set(timed) == {"send_token", "cancel_token", "refresh_token", "future_group_id"}
    group = timed["future_group_id"]
    action = await alice.done("PUT", f"{base}/state/{KIND}/key?future_group_id={group}", {"action": True})
    assert set(action) == {"send_token", "cancel_token", "future_group_id"}
    assert await alice.events(room) == []
    assert await alice.state(room, KIND, "key") is None
    await used(alice, action["send_token"])
    assert [event["content"] for event in await alice.arrived(room, 1, KIND)] == [{"action": True}]
    assert await running(alice) == []


async def test_reusing_is_never_sending_at_once(alice: Person, room: str) -> None:
    event_id = await alice.say(room, "stays")
    base = f"{V3}/rooms/{room}"
    for method, where, body in (
        ("PUT", f"{base}/send/m.room.message/{fresh()}?future_timeout=nonsense", text("never")),
        ("PUT", f"{base}/send/m.room.message/{fresh()}?future_group_id={fresh('alone')}", text("never")),
        ("PUT", f"{base}/send/m.room.message/{fresh()}?future%5Ftimeout=0", text("never")),
        ("PUT", f"{base}/send/m.room.message/{fresh()}?io.element.msc3140.future_timeout=0", text("never")),
        ("PUT", f"{base}/send/m.room.message/{fresh()}?io.element.msc4140.future_timeout=0", text("never")),
        ("PUT", f"{base}/send/m.room.message/{fresh()}?delay=1000&future_timeout=1000", text("never")),
        ("PUT", f"{base}/state/{KIND}?future_timeout=-1", {}),
        ("PUT", f"{base}/redact/{event_id}/{fresh()}?future_timeout=", {}),
        ("PUT", f"{base}/redact/{event_id}/{fresh()}?future_group_id={fresh('alone')}", {}),
    ):
        assert (await alice.ask(method, where, body)).status_code in (400, 409), where
    assert await bodies(alice, room) == ["stays"]
    assert await alice.state(room, KIND) is None


# Unstable prefix


@pytest.mark.parametrize("prefix", ["io.element.msc3140", "io.element.msc4140", "org.matrix.msc4140"])
async def test_unstable_prefix(alice: Person, room: str, prefix: str) -> None:
    base = f"{CLIENT}/unstable/{prefix}"
    timed = await future(alice, room, text("unstable"), timeout=LONG_MS, base=base)
    group = timed["future_group_id"]
    await future(alice, room, {}, type=KIND, state_key="", group=group, base=base)
    assert len(await running(alice, base)) == 2
    assert (await post(alice, timed["refresh_token"], base)).json() == {}
    assert (await post(alice, timed["send_token"], base)).status_code == 200
    await alice.arrived(room)
    assert (await post(alice, timed["send_token"], base)).status_code == 410
