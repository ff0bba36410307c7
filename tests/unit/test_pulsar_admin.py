"""Pulsar's administration: tenants, namespaces, topics, subscriptions, figures, schemas, who may do what."""

import errno
import tracemalloc
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.core.tenants.access import Token
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.admin.stats import subscription_stats
from tarry.doors.pulsar.ids import ledger_of
from tarry.engine.topics.retention import due_entries
from tests.unit.pulsar_admin_kit import DEFAULT, NAMESPACES, ORDERS, PERSISTENT, TOPIC, Admin
from tests.unit.pulsar_kit import Desk

SUB = ORDERS + "/subscription/sub"


@pytest.fixture
def admin() -> Admin:
    return Admin()


def filled(admin: Admin, *payloads: bytes, **fields: Any) -> Admin:
    """With a shared subscription, and messages for it."""
    admin.bench.subscribe("orders", "sub", "shared")
    admin.bench.publish("orders", *payloads, **fields)
    return admin


# Tenants and namespaces


async def test_tenants(admin: Admin) -> None:
    path = "/admin/v2/tenants"
    assert await admin.get(path) == ["public"]
    info = {"adminRoles": ["ann"], "allowedClusters": ["standalone"]}
    await admin.do("PUT", path + "/acme", info)
    assert await admin.get(path) == ["acme", "public"]
    assert await admin.get(path + "/acme") == info
    assert await admin.refused("PUT", path + "/acme", info) == (409, "Tenant already exist")
    await admin.do("POST", path + "/acme", info | {"adminRoles": ["bob"]})
    admin.reopen()
    assert (await admin.get(path + "/acme"))["adminRoles"] == ["bob"]
    assert await admin.get(path + "/public") == {"adminRoles": [], "allowedClusters": ["standalone"]}
    await admin.do("PUT", NAMESPACES + "/acme/eu")
    assert await admin.refused("DELETE", path + "/acme") == (409, "The tenant still has active namespaces")
    await admin.do("DELETE", path + "/acme", force="true")
    for method in ("GET", "POST", "DELETE"):
        assert await admin.refused(method, path + "/acme", info) == (404, "Tenant does not exist")
    assert (await admin.refused("PUT", path + "/a b", info))[0] == 412
    assert (await admin.refused("PUT", path + "/c", "x"))[0] == 400


async def test_namespaces(admin: Admin) -> None:
    path = NAMESPACES + "/public/eu"
    assert await admin.refused("PUT", NAMESPACES + "/none/eu") == (404, "Tenant does not exist")
    await admin.do("PUT", path, {"bundles": {"numBundles": 4}})
    assert await admin.refused("PUT", path) == (409, "Namespace already exists")
    assert await admin.get(NAMESPACES + "/public") == ["public/default", "public/eu"]
    assert await admin.refused("GET", NAMESPACES + "/none") == (404, "Tenant does not exist")
    await admin.do("POST", path + "/messageTTL", 5)
    shown = await admin.get(path)
    assert (shown["message_ttl_in_seconds"], shown["replication_clusters"]) == (5, ["standalone"])
    await admin.do("PUT", PERSISTENT + "/public/eu/orders")
    assert await admin.refused("DELETE", path) == (409, "Cannot delete non empty namespace")
    await admin.do("DELETE", path, force="true")
    assert await admin.refused("GET", path) == (404, "Namespace does not exist")
    assert await admin.refused("DELETE", path) == (404, "Namespace does not exist")


async def test_all_topics_of_a_namespace_at_once(admin: Admin) -> None:
    for topic in ("a", "b"):
        for name in ("one", "two"):
            admin.bench.subscribe(topic, name)
        admin.bench.publish(topic, b"x")
    await admin.do("POST", DEFAULT + "/clearBacklog/one")
    topics = admin.engine.topics
    assert [topics.subscription(topic, "one").backlog for topic in "ab"] == [0, 0]
    assert [topics.subscription(topic, "two").backlog for topic in "ab"] == [1, 1]
    await admin.do("POST", DEFAULT + "/clearBacklog")
    assert topics.subscription("b", "two").backlog == 0
    admin.bench.reader(topics.subscription("b", "two"))
    assert (await admin.refused("POST", DEFAULT + "/unsubscribe/two"))[0] == 412
    await admin.do("POST", DEFAULT + "/unsubscribe/one")
    assert await admin.get(PERSISTENT + "/public/default/a/subscriptions") == ["two"]


# Topics


async def test_topics(admin: Admin) -> None:
    await admin.do("PUT", ORDERS)
    assert await admin.refused("PUT", ORDERS) == (409, "This topic already exists")
    await admin.do("PUT", PERSISTENT + "/public/default/parted/partitions", 2)
    parts = [f"persistent://public/default/parted-partition-{number}" for number in range(2)]
    assert await admin.get(PERSISTENT + "/public/default") == [TOPIC, *parts]
    assert await admin.get(DEFAULT + "/topics") == [TOPIC, *parts]
    assert await admin.get(DEFAULT + "/topics", mode="NON_PERSISTENT") == []
    assert await admin.get("/admin/v2/non-persistent/public/default") == []
    partitioned = await admin.get(PERSISTENT + "/public/default/partitioned")
    assert partitioned == ["persistent://public/default/parted"]
    await admin.do("DELETE", ORDERS)
    missing = (404, f"Topic {TOPIC} not found")
    assert await admin.refused("DELETE", ORDERS) == missing
    assert await admin.refused("GET", ORDERS + "/stats") == missing
    assert (await admin.refused("GET", PERSISTENT + "/public/none"))[0] == 404
    assert (await admin.refused("PUT", PERSISTENT + "/public/a b/c"))[0] == 412


async def test_bodies_are_read_as_pulsars_broker_reads_them(admin: Admin) -> None:
    """Go's admin client and `pulsar-admin -m` send the number of partitions in an object; numbers may be text."""
    metadata = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
    path = ORDERS + "/partitions"
    made = await admin.request("PUT", path, {"partitions": 3, "properties": {}}, headers=metadata)
    assert (made.status_code, (await admin.get(path))["partitions"]) == (204, 3)
    await admin.do("POST", path, {"partitions": "4", "properties": None})
    assert (await admin.get(path))["partitions"] == 4
    quota = {"limit": "10240", "limitTime": "-1", "policy": "producer_request_hold"}
    await admin.do("POST", DEFAULT + "/backlogQuota", quota)
    assert (await admin.get(DEFAULT + "/backlogQuotaMap"))["destination_storage"]["limit"] == 10240
    schema = {"type": "STRING", "schema": "", "properties": None}
    added = await admin.request("POST", "/admin/v2/schemas/public/default/orders/schema", schema)
    assert (added.status_code, added.json()) == (200, {"version": 0})


@pytest.mark.parametrize("body", [{}, {"partitions": None}, {"partitions": "many"}, [3], True, "x"])
async def test_bodies_that_name_no_number_of_partitions_are_refused(admin: Admin, body: Any) -> None:
    assert (await admin.refused("PUT", ORDERS + "/partitions", body))[0] == 400


@pytest.mark.parametrize("number", ["²", "-1", "x", "9" * 20, "1" * 5000, "1e3"])
async def test_parts_of_a_path_that_are_no_numbers_are_refused(admin: Admin, number: str) -> None:
    filled(admin, b"x")
    for path in (SUB + "/skip/", SUB + "/resetcursor/"):
        assert (await admin.refused("POST", path + number))[0] == 412
    schemas = "/admin/v2/schemas/public/default/orders/schema/"
    assert (await admin.refused("GET", schemas + number))[0] == 412


async def test_partitions(admin: Admin) -> None:
    path = ORDERS + "/partitions"
    # A client asks for these before it makes the topic; an operator wants to know whether it is there.
    assert await admin.get(path, checkAllowAutoCreation="true") == {"partitions": 0, "deleted": False}
    assert await admin.refused("GET", path) == (404, f"Topic {TOPIC} not found")
    await admin.do("PUT", path, 2)
    assert await admin.get(path) == {"partitions": 2, "deleted": False}
    assert await admin.refused("PUT", path, 3) == (409, "This topic already exists")
    await admin.do("POST", path, 3)
    assert (await admin.refused("POST", path, 2))[0] == 422
    assert (await admin.get(path))["partitions"] == 3
    assert (await admin.refused("DELETE", ORDERS))[0] == 409
    assert (await admin.refused("GET", ORDERS + "/stats"))[0] == 404
    await admin.do("POST", ORDERS + "/createMissedPartitions")
    admin.reopen()
    assert (await admin.get(path))["partitions"] == 3
    await admin.do("DELETE", path)
    assert await admin.get(PERSISTENT + "/public/default") == []
    for bad, status in ((0, 412), (-1, 412), (1 << 40, 412), ("x", 400)):
        assert (await admin.refused("PUT", path, bad))[0] == status
    odd = PERSISTENT + "/public/default/x-partition-0/partitions"
    assert await admin.refused("PUT", odd, 2) == (
        412,
        "Partitioned Topic Name should not contain '-partition-'",
    )
    await admin.do("PUT", ORDERS)
    assert (await admin.refused("POST", path, 2))[0] == 409
    assert (await admin.refused("DELETE", path))[0] == 404


async def test_a_topic_that_is_used_goes_only_by_force(admin: Admin) -> None:
    filled(admin, b"x")
    await admin.do("POST", ORDERS + "/messageTTL", messageTTL="9")
    assert await admin.refused("DELETE", ORDERS) == (412, "Topic has 1 subscriptions")
    await admin.do("DELETE", ORDERS, force="true")
    await admin.do("PUT", ORDERS)
    assert await admin.get(ORDERS + "/messageTTL") is None


async def test_figures(admin: Admin) -> None:
    filled(admin, b"x" * 100, b"y" * 100)
    due_at_ms = admin.bench.now_ms + HOUR_MS
    admin.bench.publish("orders", b"z" * 100, deliver_at_ms=due_at_ms)
    admin.bench.publish("orders", b"z" * 100, deliver_at_ms=due_at_ms + 5)
    admin.bench.subscribe("orders", "fifo", "failover")
    reader = admin.bench.reader(admin.engine.topics.subscription("orders", "sub"), "ann", permits=10)
    reader.ack(0)
    stats = await admin.get(ORDERS + "/stats")
    assert (stats["msgInCounter"], stats["msgDelayed"], stats["nextDeliverAtTime"]) == (4, 2, due_at_ms)
    assert stats["storageSize"] == pytest.approx(400, rel=0.2)
    shared, fifo = stats["subscriptions"]["sub"], stats["subscriptions"]["fifo"]
    assert (shared["type"], shared["msgBacklog"], shared["msgDelayed"]) == ("Shared", 3, 2)
    assert (shared["msgBacklogNoDelayed"], shared["unackedMessages"], shared["isDurable"]) == (1, 1, True)
    assert shared["consumers"][0]["consumerName"] == "ann"
    assert (fifo["type"], fifo["msgBacklog"], fifo["msgDelayed"]) == ("Failover", 4, 0)
    admin.bench.leap(HOUR_MS + 40)
    stats = await admin.get(ORDERS + "/stats")
    assert (stats["msgDelayed"], stats["nextDeliverAtTime"]) == (0, None)
    assert (stats["lastLatenessInMillis"], stats["maxLatenessInMillis"]) == (35, 40)
    internal = await admin.get(ORDERS + "/internalStats")
    ledger_id = ledger_of(admin.engine.topics.find(TOPIC).incarnation)
    assert internal["cursors"]["sub"]["markDeletePosition"] == f"{ledger_id}:0"
    last = await admin.get(ORDERS + "/lastMessageId")
    assert last == {"ledgerId": ledger_id, "entryId": 3, "partitionIndex": -1}


async def test_the_next_due_instant_of_one_topic_among_many_messages(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.engine.queries.delayed_entries.READ_AT_ONCE", 1)
    monkeypatch.setattr("tarry.engine.queries.delayed_entries.LOOK_AT", 4)
    due_at_ms = admin.bench.now_ms + HOUR_MS
    for number in range(6):
        admin.bench.publish("others", b"x", deliver_at_ms=due_at_ms - 100 + number)
        admin.bench.publish("orders", b"x", deliver_at_ms=due_at_ms - number)
    assert (await admin.get(ORDERS + "/stats"))["nextDeliverAtTime"] == due_at_ms - 5
    monkeypatch.setattr("tarry.engine.queries.delayed_entries.LOOKS", 1)
    assert (await admin.get(ORDERS + "/stats"))["nextDeliverAtTime"] is None


async def test_figures_of_a_partitioned_topic(admin: Admin) -> None:
    await admin.do("PUT", ORDERS + "/partitions", 2)
    for number in range(2):
        admin.bench.subscribe(f"orders-partition-{number}", "sub", "shared")
        due_at_ms = admin.bench.now_ms + MINUTE_MS + number
        admin.bench.publish(f"orders-partition-{number}", b"x", b"y", deliver_at_ms=due_at_ms)
    stats = await admin.get(ORDERS + "/partitioned-stats")
    assert (stats["msgInCounter"], stats["msgDelayed"]) == (4, 4)
    assert stats["nextDeliverAtTime"] == admin.bench.now_ms + MINUTE_MS
    assert stats["metadata"]["partitions"] == 2
    assert (stats["subscriptions"]["sub"]["msgBacklog"], stats["subscriptions"]["sub"]["msgDelayed"]) == (
        4,
        4,
    )
    part = stats["partitions"]["persistent://public/default/orders-partition-1"]
    assert (part["msgInCounter"], part["subscriptions"]["sub"]["msgBacklog"]) == (2, 2)
    assert (await admin.get(ORDERS + "/partitioned-stats", perPartition="false"))["partitions"] == {}
    assert (await admin.refused("GET", ORDERS + "-partition-0/partitioned-stats"))[0] == 404


async def test_figures_name_the_clients(admin: Admin) -> None:
    desk = Desk(bench=admin.bench)
    desk.broker = admin.broker
    client = desk.client("Pulsar Go 1.0")
    metadata = [wire.KeyValue(key="pod", value="a-7")]
    client.produce(topic=TOPIC, producer_name="ann", metadata=metadata)
    client.subscribe(topic=TOPIC, metadata=metadata)
    stats = await admin.get(ORDERS + "/stats")
    for shown in (stats["publishers"][0], stats["subscriptions"]["sub"]["consumers"][0]):
        assert (shown["clientVersion"], shown["address"]) == ("Pulsar Go 1.0", "127.0.0.1")
        assert shown["metadata"] == {"pod": "a-7"}
        assert datetime.fromisoformat(shown["connectedSince"]).timestamp() * 1000 <= admin.bench.now_ms
    without = await admin.get(ORDERS + "/stats", excludePublishers="true", excludeConsumers="true")
    assert (without["publishers"], without["subscriptions"]["sub"]["consumers"]) == ([], [])


async def test_a_publish_time_beyond_all_calendars_is_shown(admin: Admin) -> None:
    desk = Desk(bench=admin.bench)
    desk.broker = admin.broker
    client = desk.client()
    client.subscribe(topic=TOPIC, permits=0)
    client.produce(topic=TOPIC)
    client.send(0, b"x", publish_time=(1 << 64) - 1)
    peeked = await admin.request("GET", SUB + "/position/1")
    assert (peeked.status_code, peeked.content) == (200, b"x")
    assert peeked.headers["x-pulsar-publish-time"].startswith("9999-12-31")


# Subscriptions


async def test_a_subscription_is_made_at_a_message(admin: Admin) -> None:
    filled(admin, b"a", b"b", b"c")
    places = {
        "earliest": ({"ledgerId": -1, "entryId": -1}, 3),
        "second": ({"ledgerId": 1, "entryId": 1, "partitionIndex": -1}, 2),
        "latest": ({"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}, 0),
        "unsaid": (None, 0),
    }
    for name, (body, backlog) in places.items():
        await admin.do("PUT", f"{ORDERS}/subscription/{name}", body)
        assert admin.engine.topics.subscription("orders", name).backlog == backlog
    assert await admin.get(ORDERS + "/subscriptions") == sorted({"sub", *places})
    assert await admin.refused("PUT", SUB) == (409, "Subscription already exists for topic")
    # A consumer of another type may come: until then nobody has said which it is.
    assert admin.bench.subscribe("orders", "second", "shared").type == "shared"


async def test_a_subscription_ends(admin: Admin) -> None:
    filled(admin, b"a")
    reader = admin.bench.reader(admin.engine.topics.subscription("orders", "sub"))
    assert await admin.refused("DELETE", SUB) == (412, "Subscription has active connected consumers")
    reader.handle.close()
    await admin.do("DELETE", SUB)
    assert await admin.refused("DELETE", SUB) == (404, "Subscription sub not found")
    assert (await admin.refused("POST", SUB + "/skip_all"))[0] == 404
    filled(admin, b"a")
    admin.bench.reader(admin.engine.topics.subscription("orders", "sub"))
    await admin.do("DELETE", SUB, force="true")


async def test_skipping(admin: Admin) -> None:
    filled(admin, b"a", b"b", b"c", b"d")
    admin.bench.publish("orders", b"later", deliver_at_ms=admin.bench.now_ms + HOUR_MS)
    sub = admin.engine.topics.subscription("orders", "sub")
    admin.bench.reader(sub).ack(1)
    await admin.do("POST", SUB + "/skip/2")
    assert (sub.acked.below, sub.backlog) == (3, 2)
    await admin.do("POST", SUB + "/skip/0")
    assert sub.backlog == 2
    # What is delayed is skipped with the rest.
    await admin.do("POST", SUB + "/skip_all")
    assert sub.backlog == 0
    assert (await admin.get(ORDERS + "/stats"))["subscriptions"]["sub"]["msgDelayed"] == 0
    admin.bench.leap(2 * HOUR_MS)
    assert sub.backlog == 0
    for bad in ("x", "-1", str(1 << 70)):
        assert (await admin.refused("POST", f"{SUB}/skip/{bad}"))[0] == 412


async def test_expiring(admin: Admin) -> None:
    filled(admin, b"old")
    admin.bench.publish("orders", b"later", deliver_at_ms=admin.bench.now_ms + HOUR_MS)
    admin.bench.subscribe("orders", "other")
    admin.bench.wait(MINUTE_MS)
    admin.bench.publish("orders", b"young")
    await admin.do("POST", SUB + "/expireMessages/30")
    assert [admin.engine.topics.subscription("orders", name).backlog for name in ("sub", "other")] == [2, 3]
    await admin.do("POST", ORDERS + "/all_subscription/expireMessages/30")
    assert admin.engine.topics.subscription("orders", "other").backlog == 2


async def test_going_back(admin: Admin) -> None:
    filled(admin, b"a")
    admin.bench.wait(MINUTE_MS)
    at_ms = admin.bench.now_ms
    admin.bench.publish("orders", b"b", b"c")
    sub = admin.engine.topics.subscription("orders", "sub")
    admin.bench.reader(sub).ack(0)
    await admin.do("POST", f"{SUB}/resetcursor/{at_ms}")
    assert (sub.acked.below, sub.consumers) == (1, [])
    await admin.do("POST", SUB + "/resetcursor", {"ledgerId": 1, "entryId": 1, "isExcluded": True})
    assert sub.acked.below == 2
    await admin.do("POST", SUB + "/resetcursor", {"ledgerId": 1, "entryId": 1})
    assert sub.acked.below == 1
    await admin.do("POST", SUB + "/resetcursor", {"ledgerId": -1, "entryId": -1})
    assert sub.acked.below == 0
    latest = (1 << 63) - 1
    await admin.do("POST", SUB + "/resetcursor", {"ledgerId": latest, "entryId": latest})
    assert sub.acked.below == 3


async def test_peeking(admin: Admin) -> None:
    filled(admin, b"a", b"b", headers={"colour": "red"})
    sub = admin.engine.topics.subscription("orders", "sub")
    admin.bench.reader(sub).ack(0)
    response = await admin.request("GET", SUB + "/position/1")
    assert (response.content, response.headers["x-pulsar-message-id"]) == (
        b"b",
        f"{ledger_of(admin.engine.topics.find(TOPIC).incarnation)}:1",
    )
    assert response.headers["x-pulsar-property-colour"] == "red"
    for position in ("0", "2"):
        assert await admin.refused("GET", f"{SUB}/position/{position}") == (404, "Message not found")


async def test_subscriptions_of_a_partitioned_topic(admin: Admin) -> None:
    await admin.do("PUT", ORDERS + "/partitions", 2)
    await admin.do("PUT", SUB)
    assert await admin.get(ORDERS + "/subscriptions") == ["sub"]
    admin.bench.publish("orders-partition-1", b"x")
    await admin.do("POST", SUB + "/skip_all")
    assert admin.engine.topics.subscription("orders-partition-1", "sub").backlog == 0
    await admin.do("DELETE", SUB)
    assert await admin.get(ORDERS + "-partition-0/subscriptions") == []


# Schemas


async def test_schemas(admin: Admin) -> None:
    path = "/admin/v2/schemas/public/default/orders"
    assert await admin.refused("GET", path + "/schema") == (404, "Schema not found")
    first = {"type": "JSON", "schema": '{"type":"record"}', "properties": {"a": "b"}}
    second = first | {"schema": '{"type":"record","more":1}'}
    post = await admin.request("POST", path + "/schema", first)
    assert (post.status_code, post.json()) == (200, {"version": 0})
    assert (await admin.request("POST", path + "/schema", second)).json() == {"version": 1}
    assert (await admin.request("POST", path + "/schema", first)).json() == {"version": 0}
    admin.reopen()
    shown = await admin.get(path + "/schema")
    assert (shown["version"], shown["type"], shown["data"]) == (1, "JSON", second["schema"])
    assert (await admin.get(path + "/schema/0"))["properties"] == {"a": "b"}
    assert (await admin.refused("GET", path + "/schema/2"))[0] == 404
    assert len((await admin.get(path + "/schemas"))["getSchemaResponses"]) == 2
    other = {"type": "AVRO", "schema": "{}", "properties": {}}
    status, reason = await admin.refused("POST", path + "/schema", other)
    assert (status, "AVRO" in reason, "JSON" in reason) == (409, True, True)
    assert (await admin.request("POST", path + "/compatibility", other)).json()["compatibility"] is False
    assert (await admin.request("POST", path + "/compatibility", first)).json()["compatibility"] is True
    assert (await admin.request("POST", path + "/version", second)).json() == {"version": 1}
    assert (await admin.refused("POST", path + "/schema", first | {"type": "PAPYRUS"}))[0] == 422
    assert (await admin.request("DELETE", path + "/schema")).json() == {"version": 2}
    assert await admin.refused("GET", path + "/schema") == (404, "Schema not found")


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_topic_takes_its_schema_and_its_settings_along(admin: Admin, partitioned: bool) -> None:
    """As at Pulsar, where `deleteSchema` is always meant, and a topic's policies end with it."""
    make = ("PUT", ORDERS + "/partitions", 2) if partitioned else ("PUT", ORDERS)
    schema, ttl, limit = "/admin/v2/schemas/public/default/orders/schema", "/messageTTL", "/maxConsumers"
    for lives in range(2):
        await admin.do(*make)
        assert (await admin.refused("GET", schema))[0] == 404, lives
        assert [await admin.get(ORDERS + ttl), await admin.get(ORDERS + limit)] == [None, None]
        given = {"type": "JSON", "schema": "{}", "properties": {}}
        assert (await admin.request("POST", schema, given)).json() == {"version": 0}
        await admin.do("POST", ORDERS + ttl, messageTTL="7")
        await admin.do("POST", ORDERS + limit, 3)
        assert [await admin.get(ORDERS + ttl), await admin.get(ORDERS + limit)] == [7, 3]
        await admin.do("DELETE", ORDERS + "/partitions" if partitioned else ORDERS)
        admin.reopen()


# The cluster


async def test_where_things_are(admin: Admin) -> None:
    assert (await admin.request("GET", "/admin/v2/brokers/health")).text == "ok"
    assert (await admin.request("GET", "/admin/v2/brokers/version")).text.startswith("tarry-")
    assert await admin.get("/admin/v2/clusters") == ["standalone"]
    assert (await admin.get("/admin/v2/clusters/standalone"))["brokerServiceUrl"] == "pulsar://localhost:6650"
    assert (await admin.refused("GET", "/admin/v2/clusters/other"))[0] == 404
    told = await admin.get("/admin/v2/brokers/configuration/runtime")
    assert (told["clusterName"], told["delayedDeliveryEnabled"]) == ("standalone", "true")
    assert await admin.get("/admin/v2/brokers/standalone") == ["localhost:8080"]
    found = await admin.get("/lookup/v2/topic/persistent/public/default/orders")
    assert (found["brokerUrl"], found["httpUrl"]) == ("pulsar://localhost:6650", "http://localhost:8080")
    assert found["nativeUrl"] == found["brokerUrl"]


async def test_what_is_not_there(admin: Admin) -> None:
    assert (await admin.refused("GET", "/admin/v2/phase-of-the-moon"))[0] == 404
    assert (await admin.refused("PATCH", ORDERS))[0] == 405
    assert (await admin.refused("PUT", ORDERS + "/partitions", "x" * (1 << 20)))[0] == 413


async def test_a_server_that_is_not_ready(admin: Admin) -> None:
    admin.broker.stopping = True
    assert (await admin.refused("GET", "/admin/v2/brokers/health"))[0] == 503


async def test_health_names_no_file_to_everybody(admin: Admin) -> None:
    admin.bench.disk.fail_next("sync", errno.EIO)
    admin.engine.topics.create("orders").then(lambda _: None)
    admin.bench.rest()
    assert admin.engine.stats().failed is not None
    status, reason = await admin.refused("GET", "/admin/v2/brokers/health")
    assert (status, "the server's log" in reason) == (503, True)
    assert "ledger/" not in reason
    assert "Errno" not in reason


async def test_no_web_page_administers_through_somebodys_browser(admin: Admin) -> None:
    response = await admin.request("PUT", ORDERS, headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 403
    response = await admin.request("PUT", ORDERS, headers={"origin": "https://evil.example"})
    assert response.status_code == 403


# Who may do what

TOKENS = (
    Token.of("root", "root-secret", ["admin"]),
    Token.of("eu", "eu-secret-1", ["admin"], ["acme/eu"]),
    Token.of("app", "app-secret", ["produce", "consume"], ["public/default"]),
)


@pytest.fixture
def guarded() -> Admin:
    admin = Admin(*TOKENS)
    admin.bench.ask(admin.engine.topics.create("orders"))
    admin.bench.ask(admin.engine.topics.create("acme/eu/orders"))
    return admin


EU, EU_ORDERS = NAMESPACES + "/acme/eu", PERSISTENT + "/acme/eu/orders"


@pytest.mark.parametrize(
    ("token", "method", "path", "status"),
    [
        (None, "GET", "/admin/v2/brokers/health", 200),
        (None, "GET", "/admin/v2/clusters", 401),
        ("wrong-secret", "GET", DEFAULT, 401),
        ("root-secret", "GET", "/admin/v2/tenants", 200),
        ("eu-secret-1", "GET", "/admin/v2/tenants", 403),
        ("app-secret", "GET", "/admin/v2/clusters", 200),
        # The policy of delays of a namespace is a superuser's; that of a topic its admin's.
        ("root-secret", "DELETE", EU + "/delayedDelivery", 204),
        ("eu-secret-1", "GET", EU + "/delayedDelivery", 204),
        ("eu-secret-1", "DELETE", EU + "/delayedDelivery", 403),
        ("eu-secret-1", "DELETE", EU + "/messageTTL", 204),
        ("eu-secret-1", "DELETE", EU_ORDERS + "/delayedDelivery", 204),
        ("eu-secret-1", "DELETE", ORDERS + "/delayedDelivery", 403),
        ("app-secret", "GET", ORDERS + "/delayedDelivery", 403),
        ("app-secret", "GET", ORDERS + "/stats", 200),
        ("app-secret", "GET", ORDERS + "/partitions", 200),
        ("app-secret", "DELETE", ORDERS, 403),
        ("app-secret", "GET", EU_ORDERS + "/stats", 403),
        ("app-secret", "GET", "/lookup/v2/topic/persistent/public/default/orders", 200),
        ("app-secret", "GET", "/lookup/v2/topic/persistent/acme/eu/orders", 403),
    ],
)
async def test_roles(guarded: Admin, token: str | None, method: str, path: str, status: int) -> None:
    guarded.token = token
    response = await guarded.request(method, path)
    assert response.status_code == status, response.text
    if status == 401:
        assert response.json() == {"reason": "Authentication required"}


async def test_a_caller_sees_the_namespaces_that_it_governs(guarded: Admin) -> None:
    guarded.bench.ask(guarded.engine.topics.create("acme/us/orders"))
    guarded.token = "eu-secret-1"
    assert await guarded.get(NAMESPACES + "/acme") == ["acme/eu"]


def test_of_a_long_backlog_nothing_is_listed(admin: Admin) -> None:
    """Figures, `skip`, `peek` and evictions count its blocks: listing five million entries took up to half a second."""
    filled(admin, b"a", b"b", b"c")
    bench, count = admin.bench, 10_000_000
    sub = admin.engine.topics.subscription("orders", "sub")
    sub.become("shared")
    bench.ask(sub.ack([1]))
    # As if ten million entries were there: every third is acknowledged, and every fifth is delayed.
    sub.topic.next = sub.topic.visible = count
    sub.acked.above.add_many(np.arange(1, count, 3))
    sub.topic.waiting.add_many(np.arange(0, count, 5))
    left = sub.unacknowledged()
    tracemalloc.start()
    try:
        assert [left.nth(1), left.nth(2), left.nth(3), left.nth(count)] == [0, 2, 3, None]
        shown = subscription_stats(sub)
        assert (shown["msgBacklog"], shown["msgDelayed"]) == (6_666_667, 1_333_334)
        assert due_entries(sub).first(3).tolist() == [2, 3, 6]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
