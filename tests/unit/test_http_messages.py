"""Messages one by one, through the real server: every answer comes from the engine and its ledger."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarry.core.limits import MAX_DELAY_MS, MAX_HEADERS, MAX_PAYLOAD_BYTES
from tests.processes import running
from tests.serving import Serving, serving

HOUR = {"destination": "orders", "delay": "1h"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        yield server


async def schedule(served: Serving, **fields: Any) -> dict[str, Any]:
    answer = await served.client.post("/v1/messages", json={**HOUR, **fields})
    assert answer.status_code == 201, answer.text
    scheduled: dict[str, Any] = answer.json()
    return scheduled


async def test_a_scheduled_message_can_be_looked_at(served: Serving) -> None:
    before_ms = served.engine.clock.now_ms()
    answer = await served.client.post(
        "/v1/messages",
        json={
            "destination": "orders", "payload": "héllo", "headers": {"a": "b"}, "key": "k", "owner": "o",
            "delay_ms": 3_600_000, "ttl_ms": 5000,
        },
    )  # fmt: skip
    assert answer.status_code == 201
    scheduled = answer.json()
    assert answer.text.endswith("}\n"), "a terminal shows it on a line of its own"
    assert answer.headers["location"] == f"/v1/messages/{scheduled['id']}"
    assert scheduled["due_at_ms"] >= before_ms + 3_600_000
    assert scheduled["past_due"] is False
    shown = (await served.client.get(answer.headers["location"])).json()
    assert shown.pop("accepted_at_ms") >= before_ms
    assert shown == {
        "id": scheduled["id"], "state": "scheduled", "destination": "persistent://public/default/orders",
        "namespace": "public/default", "owner": "o", "door": "http", "key": "k", "group": None, "name": None,
        "due_at_ms": scheduled["due_at_ms"], "due_at": scheduled["due_at"], "delay_ms": 3_600_000, "ttl_ms": 5000,
        "attempts": 0, "last_error": None, "last_attempt_at_ms": None, "next_attempt_at_ms": None,
        "attempts_made": [], "headers": {"a": "b"}, "payload": "héllo", "finalised_at_ms": None, "reason": None,
        "reference": None, "paused": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "body", [b'{"destination":"orders","delay_ms":5000}', b'{"destination":"orders"}', b"{", b""]
)
async def test_a_request_in_pieces_is_answered_like_a_whole_one(served: Serving, body: bytes) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    answers = []
    for pieces in ([whole], [whole[:40], whole[40:]], [whole[: -len(body) or None], body]):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.client.base_url.port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.02)
        said, _, document = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        names = [line.partition(b":")[0] for line in said.split(b"\r\n")]
        answers.append((names[0], sorted(names[1:]), sorted(json.loads(document))))
    assert answers[0] == answers[1] == answers[2]


async def test_payloads_in_their_three_forms(served: Serving) -> None:
    binary = await schedule(served, payload_base64="AP8=")
    assert (await served.client.get(f"/v1/messages/{binary['id']}")).json()["payload_base64"] == "AP8="
    value = await schedule(served, payload_json={"a": [1, None]})
    shown = (await served.client.get(f"/v1/messages/{value['id']}")).json()
    assert shown["headers"] == {"content-type": "application/json"}
    assert shown["payload"].replace(" ", "") == '{"a":[1,null]}'
    empty = await schedule(served)
    assert (await served.client.get(f"/v1/messages/{empty['id']}")).json()["payload"] == ""


async def test_due_in_the_past_is_due_now_and_said_so(served: Serving) -> None:
    scheduled = await served.client.post(
        "/v1/messages", json={"destination": "t", "due_at": "2001-09-09T01:46:40Z"}
    )
    assert scheduled.status_code == 201
    assert scheduled.json()["past_due"] is True
    assert scheduled.json()["due_at_ms"] == 1_000_000_000_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"destination": "t"}, "due_at_ms"),
        ({"destination": "t", "delay_ms": 1, "due_at_ms": 1}, "delay_ms"),
        ({"destination": "t", "delay_ms": -1}, "delay_ms"),
        ({"destination": "t", "delay_ms": 1.5}, "delay_ms"),
        ({"destination": "t", "delay_ms": 1, "colour": "red"}, "colour"),
        ({"destination": "", "delay_ms": 1}, "destination"),
        ({"destination": "a/b", "delay_ms": 1}, "destination"),
        ({"destination": "gopher://x", "delay_ms": 1}, "destination"),
        ({"destination": "t", "delay_ms": 1, "headers": {str(n): "" for n in range(MAX_HEADERS + 1)}}, "headers"),
        ({"destination": "t", "delay_ms": 1, "headers": {"": "x"}}, "headers"),
        ({"destination": "t", "delay_ms": 1, "namespace": "x/y"}, "namespace"),
        ({"delay_ms": 1}, "destination"),
    ],
)  # fmt: skip
async def test_bad_input_is_refused_by_the_name_of_its_field(served: Serving, body: Any, field: str) -> None:
    refused = await served.client.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["field"] == field
    assert served.engine.stats().pending == 0


@pytest.mark.parametrize(
    "times", [{"delay_ms": MAX_DELAY_MS + 1}, {"due_at": "9999-12-31T23:59:59Z"}, {"delay": "6000w"}]
)
async def test_a_hundred_years_is_the_end(served: Serving, times: dict[str, Any]) -> None:
    refused = await served.client.post("/v1/messages", json={"destination": "t", **times})
    assert refused.status_code == 400
    assert refused.json()["code"] == "delay-too-long"
    assert refused.json()["max_delay_ms"] == MAX_DELAY_MS
    assert (
        await served.client.post("/v1/messages", json={"destination": "t", "delay_ms": MAX_DELAY_MS})
    ).is_success


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "bad-json"), (b"{", "bad-json"), (b"\xff", "bad-json"), (b'{"delay_ms":NaN}', "invalid")],
)
async def test_what_is_no_json_changes_nothing(served: Serving, body: bytes, code: str) -> None:
    refused = await served.client.post(
        "/v1/messages", content=body, headers={"content-type": "application/json"}
    )
    assert (refused.status_code, refused.json()["code"]) == (400, code)


async def test_the_largest_payload_is_taken_in_every_form(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", ledger__segment_bytes=16 << 20) as served:
        await schedule(served, payload="x" * MAX_PAYLOAD_BYTES)
        await schedule(served, payload_base64=base64.b64encode(b"\xff" * MAX_PAYLOAD_BYTES).decode())


async def test_sizes_have_limits(served: Serving) -> None:
    refused = await served.client.post(
        "/v1/messages", json={**HOUR, "payload": "x" * (MAX_PAYLOAD_BYTES + 1)}
    )
    assert (refused.status_code, refused.json()["field"]) == (413, "payload")
    refused = await served.client.post("/v1/messages", json={**HOUR, "headers": {"a": "x" * 20_000}})
    assert (refused.status_code, refused.json()["field"]) == (413, "headers")
    refused = await served.client.post("/v1/messages", json={**HOUR, "owner": "ö" * 200})
    assert (refused.status_code, refused.json()["field"]) == (413, "owner")


async def test_a_body_over_the_limit_is_refused_before_it_is_read(served: Serving) -> None:
    async with served.connect() as (reader, writer):
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x.localhost\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: 1000000000\r\n\r\n" + b"x" * 1000)
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head


async def test_a_body_of_unknown_length_is_refused_over_the_limit(served: Serving) -> None:
    async def long() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 65536

    answer = await served.client.post(
        "/v1/messages", content=long(), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["field"]) == (413, "body")
    assert served.engine.stats().pending == 0


async def test_a_truncated_body_schedules_nothing(served: Serving) -> None:
    body = b'{"destination":"t","delay_ms":3600000}'
    async with served.connect() as (_, writer):
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        # The body is whole JSON, but the client had announced more and leaves.
        writer.write(b"content-length: %d\r\n\r\n" % (len(body) + 5) + body)
        await writer.drain()
    await schedule(served)
    assert served.engine.stats().pending == 1


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_only_json_is_taken(served: Serving, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    refused = await served.client.post(
        "/v1/messages", content=b'{"destination":"t","delay_ms":1}', headers=headers
    )
    assert refused.status_code == 415
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert (await served.client.post("/v1/messages", content=b"x", headers=packed)).status_code == 415
    assert served.engine.stats().pending == 0
    taken = await served.client.post(
        "/v1/messages", content=b'{"destination":"t","delay":"1h"}',
        headers={"content-type": "Application/JSON; charset=utf-8"},
    )  # fmt: skip
    assert taken.status_code == 201


async def test_an_idempotency_key_makes_a_repetition_safe(served: Serving) -> None:
    headers = {"idempotency-key": "order-17"}
    body = {**HOUR, "due_at_ms": None}
    first = await served.client.post("/v1/messages", json=body, headers=headers)
    again = await served.client.post("/v1/messages", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    both = await asyncio.gather(
        *(served.client.post("/v1/messages", json=body, headers={"idempotency-key": "x"}) for _ in range(8))
    )
    assert sorted(answer.status_code for answer in both) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in both}) == 1
    assert served.engine.stats().pending == 2
    other = await served.client.post("/v1/messages", json={**HOUR, "payload": "other"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "ü"])
async def test_a_bad_idempotency_key_is_refused(served: Serving, key: str) -> None:
    refused = await served.client.post(
        "/v1/messages", json=HOUR, headers=[(b"idempotency-key", key.encode())]
    )
    assert (refused.status_code, refused.json()["field"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("way", ["DELETE", "POST"])
async def test_a_cancelled_message_is_shown_without_its_body(served: Serving, way: str) -> None:
    path = f"/v1/messages/{(await schedule(served, payload='x'))['id']}"
    cancelled = await served.client.request(way, path if way == "DELETE" else path + "/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] == "cancelled"
    shown = (await served.client.get(path)).json()
    assert shown["state"] == "cancelled"
    assert "payload" not in shown
    again = await served.client.delete(path)
    assert (again.status_code, again.json()["state"]) == (409, "cancelled")


async def test_send_now(served: Serving) -> None:
    await served.client.put("/v1/topics/public/default/orders/subscriptions/s", json={"start": "earliest"})
    path = f"/v1/messages/{(await schedule(served, payload='now'))['id']}"
    assert (await served.client.post(path + "/send")).status_code == 200
    received = await served.client.post("/v1/topics/public/default/orders/subscriptions/s/receive", json={})
    assert [entry["payload"] for entry in received.json()["messages"]] == ["now"]
    assert (await served.client.get(path)).json()["state"] == "sent"


async def test_restart_begins_again_or_anew(served: Serving) -> None:
    path = f"/v1/messages/{(await schedule(served))['id']}/restart"
    same = await served.client.post(path)
    assert same.json()["delay_ms"] == 3_600_000
    longer = await served.client.post(path, json={"delay": "2h"})
    assert longer.json()["delay_ms"] == 7_200_000
    fixed = await served.client.post(path, json={"due_at": "2040-01-01T00:00:00Z"})
    assert fixed.json()["due_at"] == "2040-01-01T00:00:00.000Z"
    empty = await served.client.post(path, json={})
    assert empty.status_code == 200
    both = await served.client.post(path, json={"delay": "2h", "due_at_ms": 5})
    assert (both.status_code, both.json()["field"]) == (400, "delay_ms")


@pytest.mark.parametrize("id_", ["x", "a" * 32, "a" * 31 + "-", "%00", "ü" * 32])
async def test_an_id_that_was_never_given_finds_nothing(served: Serving, id_: str) -> None:
    for method, path in [("GET", ""), ("POST", "/cancel"), ("POST", "/send"), ("POST", "/restart")]:
        answer = await served.client.request(method, f"/v1/messages/{id_}{path}")
        assert answer.status_code == 404


async def test_lists_have_filters_and_pages(served: Serving) -> None:
    ids = [
        (await schedule(served, owner="a" if n % 2 else "b", due_at_ms=2_000_000_000_000 + n, delay=None))[
            "id"
        ]
        for n in range(10)
    ]
    listed = (await served.client.get("/v1/messages", params={"owner": "a"})).json()["messages"]
    assert [message["id"] for message in listed] == ids[1::2]
    found: list[str] = []
    params: dict[str, Any] = {"limit": 3}
    for _ in range(20):
        page = (await served.client.get("/v1/messages", params=params)).json()
        found += [message["id"] for message in page["messages"]]
        if page["next_page"] is None:
            break
        params["page"] = page["next_page"]
    assert found == ids
    window = {"due_from_ms": 2_000_000_000_003, "due_to_ms": 2_000_000_000_005}
    listed = (await served.client.get("/v1/messages", params=window)).json()["messages"]
    assert {message["id"] for message in listed} <= set(ids[3:6])
    assert ids[4] in {message["id"] for message in listed}
    for bad in ({"limit": 0}, {"state": "lost"}, {"colour": "red"}, {"page": "nonsense"}):
        assert (await served.client.get("/v1/messages", params=bad)).status_code == 400


def test_ids_are_in_no_log_and_no_metric(tmp_path: Path) -> None:
    with running(tmp_path / "data", '[log]\nlevel = "debug"\n') as server:
        id_ = httpx.post(f"{server.url}/v1/messages", json=HOUR).json()["id"]
        for method, path in [
            ("GET", ""),
            ("POST", "/restart"),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("POST", "/nope"),
        ]:
            httpx.request(method, f"{server.url}/v1/messages/{id_}{path}")
        assert id_ not in httpx.get(f"{server.url}/metrics").text
        assert server.stop() == 0
        said = server.said()
    assert "stopped" in said
    assert id_ not in said


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("POST /v1/messages dealy", "dealy: is not known; did you mean delay?"),
        ("POST /v1/messages colour", "colour: is not known"),
        ("PUT /v1/repeats/public/default/r crn", "crn: is not known; did you mean cron?"),
        ("POST /v1/commands filter.ownr", "filter.ownr: is not known; did you mean owner?"),
        ("GET /v1/messages?stat=failed", "stat: is not known; did you mean state?"),
        ("GET /v1/messages?state=failed", "state: is none of finalised, retrying, scheduled"),
        ("GET /v1/messages?state=finalised&outcome=lost", "outcome: is none of cancelled, failed, sent"),
    ],
)
async def test_a_mistyped_field_is_told_what_may_have_been_meant(
    served: Serving, request_: str, reason: str
) -> None:
    method, path, *field = request_.split()
    body: Any = {"destination": "t", "delay": "1h", "every": "1h", "action": "cancel", "filter": {}}
    known = {"/v1/messages": ("destination", "delay"), "/v1/commands": ("action", "filter")}
    body = {name: body[name] for name in known.get(path, ("destination", "every"))}
    for name in field:
        inner, _, leaf = name.rpartition(".")
        (body[inner] if inner else body)[leaf] = "x"
    refused = await served.client.request(method, path, json=body if field else None)
    assert (refused.status_code, refused.json()["detail"]) == (400, reason)
