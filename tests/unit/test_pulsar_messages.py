"""Messages looked at and counted by their place, over Pulsar's administration."""

import asyncio

import httpx
import pytest

from tarry.doors.pulsar.ids import ledger_of
from tests.unit.listener_kit import AppTransport
from tests.unit.pulsar_admin_kit import ORDERS, Admin


@pytest.fixture
def admin() -> Admin:
    """Three messages, a second apart, for one subscription."""
    admin = Admin()
    admin.bench.subscribe("orders", "sub", "shared")
    for payload in (b"a" * 100, b"b" * 100, b"c" * 100):
        admin.bench.publish("orders", payload)
        admin.bench.leap(1_000)
    return admin


def ledger(admin: Admin) -> int:
    return ledger_of(admin.engine.topics.find("orders").incarnation)


async def test_a_message_by_its_id(admin: Admin) -> None:
    path = f"{ORDERS}/ledger/{ledger(admin)}/entry"
    found = await admin.request("GET", path + "/1")
    assert (found.status_code, found.content) == (200, b"b" * 100)
    assert found.headers["x-pulsar-message-id"] == f"{ledger(admin)}:1"
    assert (await admin.refused("GET", path + "/3"))[0] == 404
    assert (await admin.refused("GET", f"{ORDERS}/ledger/{ledger(admin) + 1}/entry/1"))[0] == 404
    assert (await admin.refused("GET", path + "/x"))[0] == 412


@pytest.mark.parametrize(
    ("query", "payload"),
    [
        ({}, b"c"),
        ({"initialPosition": "latest", "messagePosition": "3"}, b"a"),
        ({"initialPosition": "earliest"}, b"a"),
        ({"initialPosition": "earliest", "messagePosition": "2"}, b"b"),
    ],
)
async def test_a_message_by_its_place(admin: Admin, query: dict[str, str], payload: bytes) -> None:
    found = await admin.request("GET", ORDERS + "/examinemessage", **query)
    assert (found.status_code, found.content) == (200, payload * 100)


async def test_places_that_are_none(admin: Admin) -> None:
    path = ORDERS + "/examinemessage"
    assert (await admin.refused("GET", path, messagePosition="4"))[0] == 404
    assert (await admin.refused("GET", path, messagePosition="0"))[0] == 412
    assert (await admin.refused("GET", path, initialPosition="middle"))[0] == 412


async def test_an_id_by_its_time(admin: Admin) -> None:
    now_ms = admin.bench.now_ms
    for back_ms, entry_id in ((10_000, 0), (2_500, 1), (1_500, 2), (500, 3)):
        found = await admin.get(f"{ORDERS}/messageid/{now_ms - back_ms}")
        assert found == {"ledgerId": ledger(admin), "entryId": entry_id, "partitionIndex": -1}


async def test_the_size_from_a_message_on(admin: Admin) -> None:
    whole = (await admin.request("PUT", ORDERS + "/backlogSize")).json()
    from_last = {"ledgerId": ledger(admin), "entryId": 2}
    last = (await admin.request("PUT", ORDERS + "/backlogSize", from_last)).json()
    assert 300 <= whole == pytest.approx(3 * last, abs=3)
    behind = {"ledgerId": ledger(admin), "entryId": 99}
    assert (await admin.request("PUT", ORDERS + "/backlogSize", behind)).json() == 0


async def test_a_backlog_is_counted(admin: Admin) -> None:
    path = ORDERS + "/subscription/sub/analyzeBacklog"
    shown = (await admin.request("POST", path)).json()
    assert (shown["entries"], shown["messages"], shown["filterAcceptedEntries"]) == (3, 3, 3)
    assert (shown["firstMessageId"], shown["lastMessageId"]) == (f"{ledger(admin)}:0", f"{ledger(admin)}:2")
    assert (await admin.refused("POST", ORDERS + "/subscription/none/analyzeBacklog"))[0] == 404


async def test_a_partitioned_topic_is_asked_by_partition(admin: Admin) -> None:
    parts = ORDERS.replace("orders", "parts")
    await admin.do("PUT", parts + "/partitions", 2)
    assert (await admin.refused("GET", parts + "/messageid/0"))[0] == 405
    assert (await admin.get(parts + "-partition-1/messageid/0"))["partitionIndex"] == 1


async def test_a_topic_is_made_with_a_body_of_null(admin: Admin) -> None:
    """Go's tests send it where they mean none."""
    transport = AppTransport(admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        asked = asyncio.create_task(client.put(ORDERS.replace("orders", "bills"), content=b"null"))
        while not asked.done():
            await asyncio.sleep(0)
            admin.bench.rest()
    assert asked.result().status_code == 204
