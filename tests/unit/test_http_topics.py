"""Topics and subscriptions through the real server: publish, receive, acknowledge, give back, seek."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tarry.doors.http.settings import HttpSettings
from tarry.engine.topics.entries import NewEntry
from tests.serving import Serving, serving
from tests.waiting import until

TOPIC = "/v1/topics/public/default/orders"
SUB = TOPIC + "/subscriptions/s"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        await subscribe(server)
        yield server


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/JSONL; charset=utf-8"])
@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (f"{TOPIC}/messages", ['{"payload":"a"}', '{"payload":"b"}']),
        ("/v1/messages/batch", ['{"destination":"orders","delay_ms":1}'] * 2),
        ("/v1/messages/batch/cancel", ['{"id":"nothing"}'] * 2),
    ],
)
async def test_lines_are_lines_under_each_of_their_names(
    served: Serving, path: str, lines: list[str], kind: str
) -> None:
    """Nobody has registered a type for them; every operation that takes lines takes the same ones."""
    answer = await served.client.post(path, content="\n".join(lines), headers={"content-type": kind})
    assert answer.status_code in (200, 201), answer.text
    told = answer.json()["entry_ids"] if answer.status_code == 201 else answer.text.splitlines()
    assert len(told) == 2


async def subscribe(served: Serving, path: str = SUB, **fields: Any) -> None:
    answer = await served.client.put(path, json={"start": "earliest", **fields})
    assert answer.status_code == 200, answer.text


async def publish(served: Serving, *payloads: str, **fields: Any) -> list[int]:
    ids: list[int] = []
    for payload in payloads:
        answer = await served.client.post(TOPIC + "/messages", json={"payload": payload, **fields})
        assert answer.status_code == 201, answer.text
        ids += answer.json()["entry_ids"]
    return ids


async def receive(served: Serving, path: str = SUB, **fields: Any) -> list[dict[str, Any]]:
    answer = await served.client.post(path + "/receive", json={"wait_ms": 0, **fields})
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def ack(served: Serving, path: str = SUB, **fields: Any) -> None:
    answer = await served.client.post(path + "/ack", json=fields)
    assert answer.status_code == 204, answer.text


async def consumers(served: Serving) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.client.get(SUB)).json()["consumers"]
    return found


async def nobody(served: Serving) -> bool:
    return not await consumers(served)


async def permits_are(served: Serving, count: int) -> bool:
    return bool(sum(one["permits"] for one in await consumers(served)) == count)


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [message["payload"] for message in messages]


async def test_topics_come_and_go(served: Serving) -> None:
    assert (await served.client.put("/v1/topics/acme/shop/new")).status_code == 204
    assert (await served.client.put("/v1/topics/acme/shop/new")).status_code == 204
    listed = (await served.client.get("/v1/topics")).json()["topics"]
    assert listed == ["persistent://acme/shop/new", "persistent://public/default/orders"]
    only = await served.client.get("/v1/topics", params={"namespace": "acme/shop"})
    assert only.json()["topics"] == ["persistent://acme/shop/new"]
    assert (await served.client.get("/v1/topics/acme/shop/new")).json()["next_entry"] == 0
    assert (await served.client.delete("/v1/topics/acme/shop/new")).status_code == 204
    assert (await served.client.get("/v1/topics/acme/shop/new")).status_code == 404
    assert (await served.client.delete("/v1/topics/acme/shop/new")).status_code == 404
    assert (await served.client.put("/v1/topics/a%20b/c/d")).json()["field"] == "topic"
    assert (await served.client.put("/v1/topics/a/c/%00")).json()["field"] == "topic"


async def test_a_topic_takes_its_policy_along(served: Serving) -> None:
    """One that is made again under its name begins with what its namespace says; a policy may be set before a topic is there."""
    policy, topic = "/v1/policies/topics/acme/shop/new", "/v1/topics/acme/shop/new"
    assert (await served.client.put(policy, json={"max_delay_ms": 1000})).status_code == 200
    assert (await served.client.put(topic)).status_code == 204
    assert (await served.client.get(policy)).json()["max_delay_ms"] == 1000
    assert (await served.client.delete(topic)).status_code == 204
    assert (await served.client.put(topic)).status_code == 204
    assert (await served.client.get(policy)).status_code == 404


async def test_what_is_published_is_received_and_acknowledged_for_good(served: Serving) -> None:
    ids = await publish(served, "a", "b", headers={"h": "v"}, key="k")
    got = await receive(served)
    assert [entry["entry_id"] for entry in got] == ids
    assert got[0]["payload"] == "a"
    assert (got[0]["headers"], got[0]["key"], got[0]["redelivery_count"]) == ({"h": "v"}, "k", 0)
    assert got[0]["due_at_ms"] is None
    assert await receive(served) == []
    await ack(served, entry_ids=[ids[0]])
    assert (await served.client.get(SUB)).json()["backlog"] == 1
    await ack(served, up_to=ids[1])
    assert (await served.client.get(SUB)).json()["backlog"] == 0


async def test_many_entries_are_published_together_or_not_at_all(served: Serving) -> None:
    headers = {"content-type": "application/x-ndjson"}
    body = b'{"payload":"1"}\n{"payload":"2"}\n{"payload_base64":"/w=="}'
    answer = await served.client.post(TOPIC + "/messages", content=body, headers=headers)
    assert answer.json() == {"entry_ids": [0, 1, 2]}
    assert (await receive(served))[2]["payload_base64"] == "/w=="
    for bad in (b'{"payload":"1"}\n{"payload":2}\n', b'{"payload":"1"}\n\n{"payload":"2"}', b"{}\n{"):
        refused = await served.client.post(TOPIC + "/messages", content=bad, headers=headers)
        assert refused.status_code == 400
        assert "line 2" in refused.json()["detail"]
    assert (await served.client.get(TOPIC)).json()["next_entry"] == 3


async def test_a_delayed_entry_waits_for_shared_subscriptions_only(served: Serving) -> None:
    exclusive = TOPIC + "/subscriptions/x"
    await subscribe(served, exclusive, type="exclusive")
    before_ms = served.engine.clock.now_ms()
    await publish(served, "later", delay_ms=300)
    await publish(served, "now")
    assert payloads(await receive(served, exclusive)) == ["later", "now"]
    assert payloads(await receive(served)) == ["now"]
    (late,) = await receive(served, wait_ms=10_000)
    assert late["payload"] == "later"
    assert served.engine.clock.now_ms() >= late["due_at_ms"] >= before_ms + 300


async def test_a_producer_s_repeated_sequence_is_published_once(served: Serving) -> None:
    assert await publish(served, "a", producer="p", producer_sequence=5) == [0]
    assert await publish(served, "a", producer="p", producer_sequence=5) == [-1]
    assert await publish(served, "b", producer="p", producer_sequence=6) == [1]
    alone = await served.client.post(TOPIC + "/messages", json={"producer": "p"})
    assert alone.json()["field"] == "producer_sequence"
    key = await served.client.post(TOPIC + "/messages", json={}, headers={"idempotency-key": "k"})
    assert key.json()["field"] == "Idempotency-Key"


async def test_a_long_poll_waits_and_is_woken(served: Serving) -> None:
    waiting = asyncio.create_task(receive(served, wait_ms=20_000))
    await until(lambda: consumers(served))
    await publish(served, "a")
    assert payloads(await asyncio.wait_for(waiting, 10)) == ["a"]


async def test_two_polls_of_one_consumer_share_what_comes(served: Serving) -> None:
    polls = [asyncio.create_task(receive(served, wait_ms=20_000, max=1)) for _ in range(2)]
    await until(lambda: permits_are(served, 2))
    await publish(served, "a", "b")
    got = await asyncio.wait_for(asyncio.gather(*polls), 10)
    assert sorted(payloads(got[0] + got[1])) == ["a", "b"]


async def test_a_poll_that_ends_leaves_nothing_behind(served: Serving) -> None:
    assert await receive(served, wait_ms=50) == []
    # Nobody waits, so nothing may be taken from the others.
    await publish(served, "a")
    (consumer,) = await consumers(served)
    assert (consumer["permits"], consumer["unacked"]) == (0, 0)
    assert payloads(await receive(served, consumer="other")) == ["a"]


async def test_a_client_that_leaves_its_poll_takes_nothing_with_it(served: Serving) -> None:
    async with served.connect() as (_, writer):
        writer.write(f"POST {SUB}/receive HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        await until(lambda: consumers(served))
    await until(lambda: permits_are(served, 0))
    await publish(served, "a")
    assert payloads(await receive(served, consumer="other")) == ["a"]


async def test_consumers_of_a_shared_subscription_get_different_entries(served: Serving) -> None:
    await publish(served, "a", "b", "c")
    one = await receive(served, consumer="one", max=2)
    two = await receive(served, consumer="two")
    assert payloads(one) + payloads(two) == ["a", "b", "c"]


async def test_what_is_given_back_comes_again(served: Serving) -> None:
    ids = await publish(served, "a", "b")
    await receive(served)
    assert (await served.client.post(SUB + "/nack", json={"entry_ids": [ids[1]]})).status_code == 204
    (again,) = await receive(served)
    assert (again["payload"], again["redelivery_count"]) == ("b", 1)
    assert (await served.client.post(SUB + "/nack")).status_code == 204
    assert payloads(await receive(served)) == ["a", "b"]


async def test_what_is_not_acknowledged_in_time_comes_again(served: Serving) -> None:
    (id_,) = await publish(served, "a")
    await receive(served, ack_timeout_ms=100)
    (again,) = await receive(served, wait_ms=10_000)
    assert (again["entry_id"], again["redelivery_count"]) == (id_, 1)
    # Acknowledged in time, it does not.
    await ack(served, entry_ids=[id_])
    assert await receive(served, wait_ms=600) == []


async def test_dead_letters(served: Serving) -> None:
    path = TOPIC + "/subscriptions/tries"
    await subscribe(served, path, max_redeliveries=1, dead_letter_topic="public/default/dead")
    await subscribe(served, "/v1/topics/public/default/dead/subscriptions/s")
    await publish(served, "bad")
    for _ in range(2):
        assert payloads(await receive(served, path)) == ["bad"]
        await served.client.post(path + "/nack", json={})
    dead = await receive(served, "/v1/topics/public/default/dead/subscriptions/s", wait_ms=10_000)
    assert payloads(dead) == ["bad"]
    missing = await served.client.put(path, json={"dead_letter_topic": "dead"})
    assert missing.json()["field"] == "max_redeliveries"


async def test_seek(served: Serving) -> None:
    # What everybody is done with is forgotten; this one has read nothing.
    await subscribe(served, TOPIC + "/subscriptions/keeps")
    ids = await publish(served, "a", "b")
    first = await receive(served)
    await ack(served, entry_ids=ids)
    assert (await served.client.post(SUB + "/seek", json={"entry_id": ids[1]})).status_code == 204
    assert payloads(await receive(served)) == ["b"]
    assert (
        await served.client.post(SUB + "/seek", json={"at_ms": first[0]["published_at_ms"]})
    ).status_code == 204
    assert payloads(await receive(served)) == ["a", "b"]
    for bad in ({}, {"entry_id": 0, "at_ms": 0}):
        assert (await served.client.post(SUB + "/seek", json=bad)).json()["field"] == "entry_id"


async def test_an_exclusive_subscription_has_one_consumer(served: Serving) -> None:
    path = TOPIC + "/subscriptions/x"
    await subscribe(served, path, type="exclusive")
    await publish(served, "a")
    assert payloads(await receive(served, path, consumer="one")) == ["a"]
    refused = await served.client.post(path + "/receive", json={"consumer": "two"})
    assert refused.status_code == 409


async def test_what_is_not_there_is_not_found(served: Serving) -> None:
    for method, path in [
        ("GET", ""), ("DELETE", ""), ("POST", "/receive"), ("GET", "/events"), ("POST", "/nack"),
    ]:  # fmt: skip
        missing = await served.client.request(method, f"{TOPIC}/subscriptions/missing{path}")
        assert missing.status_code == 404
    assert (
        await served.client.post(f"{TOPIC}/subscriptions/missing/ack", json={"up_to": 0})
    ).status_code == 404
    assert (await served.client.post(SUB + "/ack", json={})).json()["field"] == "entry_ids"
    assert (await served.client.post(SUB + "/receive", json={"max": 0})).json()["field"] == "max"
    assert (await served.client.post(SUB + "/receive", content=b"{}")).status_code == 415


async def test_a_removed_subscription_ends_its_polls(served: Serving) -> None:
    waiting = asyncio.create_task(served.client.post(SUB + "/receive", json={"wait_ms": 20_000}))
    await until(lambda: consumers(served))
    assert (await served.client.delete(SUB)).status_code == 204
    assert (await asyncio.wait_for(waiting, 10)).status_code == 404
    assert (await served.client.post(SUB + "/receive", json={})).status_code == 404


async def test_an_acknowledgement_counts_after_the_session_has_ended(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(session_idle_ms=100)) as served:
        await subscribe(served)
        ids = await publish(served, "a", "b")
        await receive(served, ack_timeout_ms=100)
        await until(lambda: nobody(served))
        await ack(served, entry_ids=[ids[0]])
        assert payloads(await receive(served)) == ["b"]
    # And after a restart of the server.
    async with serving(tmp_path / "data") as served:
        await ack(served, entry_ids=[ids[1]])
        assert await receive(served) == []


async def test_a_session_with_something_out_is_not_idle(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(session_idle_ms=50)) as served:
        await subscribe(served)
        await publish(served, "a")
        await receive(served, ack_timeout_ms=60_000)
        # Long enough for several sweeps to have closed it.
        await asyncio.sleep(0.8)
        assert await receive(served, consumer="other") == []
        assert (await served.client.get("/v1/status")).json()["sessions"] == 2


async def test_sessions_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(max_sessions=2)) as served:
        await subscribe(served)
        for name in ("one", "two", "two"):
            await receive(served, consumer=name)
        refused = await served.client.post(SUB + "/receive", json={"consumer": "three"})
        assert refused.status_code == 503
        assert (await served.client.get("/v1/status")).json()["sessions"] == 2


async def test_large_entries_come_a_few_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", ledger__segment_bytes=16 << 20) as served:
        await subscribe(served)
        for _ in range(12):
            await publish(served, "x" * 1_000_000)
        counts = []
        while got := await receive(served, max=1000):
            counts.append(len(got))
        assert sum(counts) == 12
        assert max(counts) < 12


@pytest.mark.parametrize("messages", [2, 1_000, (1 << 31) - 1])
async def test_an_entry_that_counts_as_many_messages_is_one_entry_here(
    served: Serving, messages: int
) -> None:
    """As a Pulsar client may say: a poll once looked for the permits that it had used up, and never ended."""
    topic = "persistent://public/default/orders"
    await served.engine.topics.publish(
        topic, [NewEntry(payload=b"%d" % n, messages=messages) for n in range(3)]
    )
    assert payloads(await asyncio.wait_for(receive(served, max=10), 20)) == ["0", "1", "2"]
    # Nor does whoever waits for the next owe anything.
    waiting = asyncio.create_task(receive(served, max=1, wait_ms=20_000))
    await until(lambda: permits_are(served, 1))
    await served.engine.topics.publish(topic, [NewEntry(payload=b"next", messages=messages)])
    assert payloads(await waiting) == ["next"]
    await publish(served, "last")
    assert payloads(await receive(served, max=1, wait_ms=20_000)) == ["last"]
