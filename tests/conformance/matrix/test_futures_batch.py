"""The Futures draft: «Batch sending futures with custom endpoint» and «EventId template variable»."""

import asyncio
from typing import Any

import pytest

from tests.conformance.matrix.futures import LONG_MS, batch, is_gone, running, used
from tests.conformance.matrix.people import CLIENT, Person, fresh, text
from tests.waiting import until

KIND = "org.example.state"
MESSAGE = "m.room.message"


def message(body: str) -> dict[str, Any]:
    return {"type": MESSAGE, "content": text(body)}


def state(content: Any, key: str = "") -> dict[str, Any]:
    return {"type": KIND, "state_key": key, "content": content}


async def accepted(person: Person, room: str, body: Any, **options: Any) -> Any:
    response = await batch(person, room, body, **options)
    assert response.status_code == 200, response.text
    return response.json()


async def bodies(person: Person, room: str) -> list[str]:
    return [event["content"]["body"] for event in await person.events(room)]


@pytest.mark.parametrize("prefix", ["", "m."])
async def test_batch_the_response_has_the_fields_of_the_draft(alice: Person, room: str, prefix: str) -> None:
    body = {
        f"{prefix}timeout": LONG_MS,
        f"{prefix}send_on_timeout": message("timeout"),
        f"{prefix}send_on_action": {"one": message("one"), "two": message("two")},
        f"{prefix}send_now": message("now"),
    }
    response = await accepted(alice, room, body)
    (event,) = await alice.events(room)
    assert event["content"] == text("now")
    assert response == {
        "send_on_timeout": {
            "send_token": response["send_on_timeout"]["send_token"],
            "refresh_token": response["send_on_timeout"]["refresh_token"],
            "cancel_token": response["send_on_timeout"]["cancel_token"],
        },
        "send_on_action": {
            "one": {"send_token": response["send_on_action"]["one"]["send_token"]},
            "two": {"send_token": response["send_on_action"]["two"]["send_token"]},
        },
        "send_now": {"eventId": event["event_id"]},
    }
    # «uses the exact same endpoints»
    assert len(await running(alice)) == 3
    await used(alice, response["send_on_timeout"]["refresh_token"])
    await used(alice, response["send_on_action"]["two"]["send_token"])
    await alice.arrived(room, 2)
    assert await bodies(alice, room) == ["now", "two"]
    assert await running(alice) == []
    assert await is_gone(alice, response["send_on_timeout"]["send_token"])


async def test_batch_without_the_optional_parts(alice: Person, room: str) -> None:
    response = await accepted(alice, room, {"timeout": 300, "send_on_timeout": message("timeout")})
    assert set(response) == {"send_on_timeout"}
    await alice.arrived(room)
    assert await bodies(alice, room) == ["timeout"]


async def test_batch_a_state_that_resets_itself(alice: Person, room: str) -> None:
    """«set the state to A and after a timeout reset it to {}»: the event itself does not invalidate its own futures."""
    body = {"timeout": 1_000, "send_on_timeout": state({}), "send_now": state({"joined": True})}
    await accepted(alice, room, body)
    events = await alice.arrived(room, 2, KIND)
    assert [event["content"] for event in events] == [{"joined": True}, {}]
    assert events[1]["origin_server_ts"] - events[0]["origin_server_ts"] >= 1_000


async def test_batch_a_newer_state_event_invalidates_it_all_the_same(alice: Person, room: str) -> None:
    body = {
        "timeout": LONG_MS,
        "send_on_timeout": state({}),
        "send_now": state({"joined": True}),
        "send_on_action": {"leave": state({"left": True})},
    }
    await accepted(alice, room, body)
    await asyncio.sleep(0.3)
    assert len(await running(alice)) == 2
    await alice.set_state(room, KIND, "", {"newer": True})

    async def is_over() -> bool:
        return await running(alice) == []

    await until(is_over)


@pytest.mark.parametrize(("version", "prefix"), [("10", "m"), ("11", "io.element.msc3140")])
async def test_template_a_self_destructing_message_in_one_request(
    alice: Person, version: str, prefix: str
) -> None:
    room_id = await alice.create_room(version)
    body = {
        f"{prefix}.send_now": {"type": MESSAGE, "content": {**text("my msg"), "m.text": "my msg"}},
        f"{prefix}.timeout": LONG_MS,
        f"{prefix}.send_on_timeout": {
            "type": "m.room.redaction",
            "content": {"redacts": f"${prefix}.send_now.event_id"},
        },
    }
    response = await accepted(alice, room_id, body)
    (event,) = await alice.events(room_id)
    assert event["content"] == {**text("my msg"), "m.text": "my msg"}
    (entry,) = await running(alice)
    assert entry["body"] == {"redacts": response["send_now"]["eventId"]}
    await used(alice, response["send_on_timeout"]["send_token"])
    (redaction,) = await alice.arrived(room_id, 1, "m.room.redaction")
    (event,) = await alice.events(room_id)
    assert event["content"] == {}
    assert event["unsigned"]["redacted_because"]["event_id"] == redaction["event_id"]


async def test_template_in_an_action(alice: Person, room: str) -> None:
    edit = {
        "type": MESSAGE,
        "content": {
            **text("* ended"),
            "m.new_content": text("ended"),
            "m.relates_to": {"rel_type": "m.replace", "event_id": "$m.send_now.event_id"},
        },
    }
    body = {
        "timeout": LONG_MS,
        "send_now": message("running"),
        "send_on_timeout": message("too late"),
        "send_on_action": {"end": edit},
    }
    response = await accepted(alice, room, body)
    await used(alice, response["send_on_action"]["end"]["send_token"])
    first, second = await alice.arrived(room, 2)
    assert (
        second["content"]["m.relates_to"]["event_id"] == first["event_id"] == response["send_now"]["eventId"]
    )


async def test_batch_is_accepted_together_or_not_at_all(alice: Person, bob: Person, room: str) -> None:
    body = {"timeout": LONG_MS, "send_on_timeout": message("timeout"), "send_now": message("now")}
    bad: list[tuple[Any, str]] = [
        ({**body, "timeout": 8 * 24 * 3_600_000}, "M_INVALID_PARAM"),
        ({**body, "timeout": -1}, "M_INVALID_PARAM"),
        ({**body, "send_now": text("no type")}, "M_MISSING_PARAM"),
        ({**body, "send_on_action": {"one": {"type": "x" * 300, "content": {}}}}, "M_INVALID_PARAM"),
        ({**body, "send_on_action": {"one": {"type": MESSAGE, "content": []}}}, "M_BAD_JSON"),
        ({"send_now": message("now"), "timeout": LONG_MS}, "M_MISSING_PARAM"),
        ([], "M_BAD_JSON"),
    ]
    for given, code in bad:
        refused = await batch(alice, room, given)
        assert (refused.status_code, refused.json()["errcode"]) == (400, code), given
    # Bob is not in the room: the homeserver refuses the event, and so nothing of the batch is left.
    refused = await batch(bob, room, body)
    assert (refused.status_code, refused.json()["errcode"]) == (403, "M_FORBIDDEN")
    assert await running(bob) == []
    assert await running(alice) == []
    assert await alice.events(room) == []


async def test_batch_a_repeated_transaction_gets_the_same_response(
    alice: Person, bob: Person, room: str
) -> None:
    txn = fresh("batch")
    body = {
        "timeout": LONG_MS,
        "send_on_timeout": message("timeout"),
        "send_on_action": {"one": message("one")},
        "send_now": message("now"),
    }
    answers = await asyncio.gather(*(batch(alice, room, body, txn) for _ in range(3)))
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].status_code == 200
    assert await bodies(alice, room) == ["now"]
    assert len(await running(alice)) == 2
    # The error of the first time, too.
    for _ in range(2):
        refused = await batch(bob, room, body, txn)
        assert (refused.status_code, refused.json()["errcode"]) == (403, "M_FORBIDDEN")


@pytest.mark.parametrize("prefix", ["io.element.msc3140", "org.matrix.msc4140"])
async def test_unstable_prefix_of_the_batch(alice: Person, room: str, prefix: str) -> None:
    body = {f"{prefix}.timeout": 300, f"{prefix}.send_on_timeout": message("timeout")}
    await accepted(alice, room, body, base=f"{CLIENT}/unstable/{prefix}")
    (event,) = await alice.arrived(room)
    assert event["content"]["body"] == "timeout"
