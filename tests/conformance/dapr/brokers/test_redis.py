"""Redis: what lies in the streams is what Dapr's own component puts there and reads from there."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tarry.outlets.dapr.component import BulkEntry
from tarry.outlets.dapr.errors import BrokerUnreachable, Denied, Misconfigured, NeverTaken
from tests.conformance.dapr.brokers.kinds import Broker
from tests.conformance.dapr.brokers.servers import RedisServer, Server
from tests.processes import free_port, need
from tests.unit.broker_kit import Inbox, made
from tests.waiting import until


@pytest.fixture
async def raw(redis: Broker) -> AsyncIterator[Any]:
    """A client that knows nothing of Dapr."""
    client = Redis(port=redis.server.port, password=RedisServer.PASSWORD, protocol=2)
    yield client
    await client.aclose()


async def test_a_published_message_lies_in_the_stream_as_dapr_writes_it(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component = redis.component()
    await component.publish(topic, b'{"id":"1"}', {"traceparent": "00-1-2-01", "a": "ü"}, "application/json")
    await component.publish(topic, b"\x00raw", {})
    assert (
        await component.bulk_publish(topic, [BulkEntry(entry_id="x", data=b"bulk", metadata={"k": "v"})], {})
        == {}
    )
    fields = [entry for _, entry in await raw.xrange(topic)]
    assert fields == [
        {b"data": b'{"id":"1"}', b"metadata": '{"a":"ü","traceparent":"00-1-2-01"}'.encode()},
        {b"data": b"\x00raw", b"metadata": b"{}"},
        {b"data": b"bulk", b"metadata": b'{"k":"v"}'},
    ]
    many = [BulkEntry(entry_id=str(n), data=b"%d" % n, metadata={"n": str(n)}) for n in range(8)]
    assert await component.bulk_publish(topic, many, {}) == {}
    assert [entry for _, entry in await raw.xrange(topic)][3:] == [
        {b"data": b"%d" % n, b"metadata": b'{"n":"%d"}' % n} for n in range(8)
    ]
    await component.close()


@pytest.mark.parametrize(
    ("entry", "metadata"),
    [
        ({"data": b"one"}, {}),  # Dapr up to 1.13 wrote no metadata
        ({"data": b"one", "metadata": b'{"rawPayload":"true","x":"\\u003ca\\u0026b\\u003e"}'},
         {"rawPayload": "true", "x": "<a&b>"}),
        ({"data": b"one", "metadata": b"not json"}, {}),
        ({"data": b"one", "metadata": b"[1]"}, {}),
    ],
)  # fmt: skip
async def test_what_dapr_wrote_is_read(
    redis: Broker, raw: Any, entry: dict[Any, Any], metadata: dict[str, str]
) -> None:
    topic = await redis.topic()
    await raw.xadd(topic, entry)
    component, inbox = redis.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(1) == [b"one"]
    assert inbox.got[0].metadata == metadata
    await component.close()


async def test_the_group_and_its_consumer_are_named_as_dapr_names_them(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox(hold=asyncio.Event())
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    await inbox.expect(1)
    (group,) = await raw.xinfo_groups(topic)
    assert (group["name"], group["consumers"], group["pending"]) == (b"shop", 1, 1)
    (consumer,) = await raw.xinfo_consumers(topic, "shop")
    assert (consumer["name"], consumer["pending"]) == (b"shop", 1)
    await component.close()


async def test_another_sidecar_of_the_group_takes_over_what_was_left(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox()
    await raw.xgroup_create(topic, "shop", id="0", mkstream=True)
    await raw.xadd(topic, {"data": b"left"})
    await raw.xreadgroup("shop", "shop", {topic: ">"})  # and its sidecar died
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(1) == [b"left"]
    await until(lambda: _settled(raw, topic))
    await component.close()


async def _settled(raw: Any, topic: str) -> bool:
    summary = await raw.xpending(topic, "shop")
    return bool(summary["pending"] == 0)


async def test_an_acknowledged_entry_stays_in_the_stream_as_in_dapr(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    await inbox.expect(1)
    await until(lambda: _settled(raw, topic))
    assert await raw.xlen(topic) == 1
    await component.close()


async def test_streams_are_trimmed_as_configured_but_never_what_must_last(redis: Broker, raw: Any) -> None:
    short, lasting, old = await redis.topic(), await redis.topic(), await redis.topic()
    component = redis.component(maxLenApprox="100")
    await component.bulk_publish(short, [BulkEntry(entry_id=str(n), data=b"x") for n in range(1000)], {})
    await asyncio.gather(*(component.publish(lasting, b"x", {}, lasting=True) for _ in range(1000)))
    assert 100 <= await raw.xlen(short) < 300
    assert await raw.xlen(lasting) == 1000
    await component.close()
    by_age = redis.component(streamTTL="1h")
    for number in range(1, 300):
        await raw.xadd(old, {"data": b"x"}, id=f"{number}-0")
    await by_age.publish(old, b"new", {})
    assert await raw.xlen(old) < 300
    await by_age.close()


async def test_what_must_last_is_removed_once_it_is_acknowledged(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox()
    membership: Any = await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    member = membership.subscribed
    await component.publish(topic, b"one", {}, lasting=True)
    await inbox.expect(1)
    await until(lambda: _empty(raw, topic))
    await raw.xgroup_create(topic, "another", id="0")
    await component.publish(topic, b"two", {}, lasting=True)
    await inbox.expect(2)
    await until(lambda: not member._held)
    assert await raw.xlen(topic) == 1, "another group has not read it yet"
    await component.close()


async def _empty(raw: Any, topic: str) -> bool:
    return bool(await raw.xlen(topic) == 0)


async def test_an_entry_that_was_trimmed_while_pending_is_let_go_of(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox()
    await raw.xgroup_create(topic, "shop", id="0", mkstream=True)
    gone = await raw.xadd(topic, {"data": b"gone"})
    await raw.xadd(topic, {"data": b"here"})
    await raw.xreadgroup("shop", "shop", {topic: ">"})
    await raw.xdel(topic, gone)
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(1) == [b"here"]
    await until(lambda: _settled(raw, topic))
    await component.close()


async def test_a_group_that_was_removed_is_made_again(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(readTimeout="100ms"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    await raw.delete(topic)
    await component.publish(topic, b"one", {})
    assert await inbox.expect(1) == [b"one"]
    await component.close()


async def test_a_slow_receiver_is_ended_and_its_message_comes_again(redis: Broker) -> None:
    topic = await redis.topic()
    component, inbox = redis.component(), Inbox(hold=asyncio.Event())
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    assert await inbox.expect(2) == [b"one", b"one"]
    assert inbox.cancelled >= 1
    await component.close()


async def test_a_key_of_another_type_is_told(redis: Broker, raw: Any) -> None:
    topic = await redis.topic()
    await raw.set(topic, "no stream")
    component = redis.component()
    with pytest.raises(NeverTaken, match="is no stream"):
        await component.publish(topic, b"one", {})
    entries = [BulkEntry(entry_id=str(number), data=b"x") for number in range(10)]
    failed = await component.bulk_publish(topic, entries, {})
    assert {type(error) for error in failed.values()} == {NeverTaken}
    assert len(failed) == 10
    await component.close()
    with pytest.raises(BrokerUnreachable, match="closed"):
        await component.publish(topic, b"one", {})


async def test_a_user_who_may_not(redis: Broker, raw: Any) -> None:
    await raw.execute_command("ACL", "SETUSER", "reader", "on", ">hush", "~*", "+@read", "+ping")
    component = redis.component(redisUsername="reader", redisPassword="hush")
    await component.start()
    with pytest.raises(Denied, match=r"(?i)xadd"):
        await component.publish(await redis.topic(), b"one", {})
    await component.close()


async def test_a_user_who_may_not_run_scripts_is_served_all_the_same(redis: Broker, raw: Any) -> None:
    await raw.execute_command("ACL", "SETUSER", "plain", "on", ">hush", "~*", "+@all", "-@scripting")
    topic = await redis.topic()
    component = redis.component(redisUsername="plain", redisPassword="hush", maxLenApprox="5000")
    entries = [BulkEntry(entry_id=str(number), data=b"%d" % number) for number in range(1100)]
    assert await component.bulk_publish(topic, entries, {}) == {}
    assert [fields[b"data"] for _, fields in await raw.xrange(topic)] == [entry.data for entry in entries]
    await component.close()


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({}, "redisHost"),
        ({"redisHost": "nowhere:port"}, "redisHost"),
        ({"redisHost": ":6379"}, "redisHost"),
        ({"redisHost": "a:1", "redisType": "ring"}, "redisType"),
        ({"redisHost": "a:1", "failover": "true"}, "sentinelMasterName"),
        ({"redisHost": "a:1", "processingTimeout": "soon"}, "processingTimeout"),
        ({"redisHost": "a:1", "redeliverInterval": "-1"}, "redeliverInterval"),
        ({"redisHost": "a:1", "queueDepth": "0"}, "queueDepth"),
        ({"redisHost": "a:1", "concurrency": "many"}, "concurrency"),
        ({"redisHost": "a:1", "maxLenApprox": "-5"}, "maxLenApprox"),
        ({"redisHost": "a:1", "redisDB": "x"}, "redisDB"),
        ({"redisHost": "a:1", "enableTLS": "maybe"}, "enableTLS"),
        ({"redisHost": "a:1", "enableTLS": "true", "clientCert": "x"}, "clientCert"),
    ],
)
def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.redis", properties)
    assert refused.value.field == field


class ClusterNode(Server):
    """A cluster of one."""

    def command(self) -> list[str]:
        return [
            need("redis-server", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--dir", str(self.folder),
        ]  # fmt: skip


class SentinelNode(Server):
    """Knows a master by its name."""

    def __init__(self, folder: Path, master: int) -> None:
        super().__init__(folder)
        self._master = master

    def command(self) -> list[str]:
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor tarry 127.0.0.1 {self._master} 1\n"
            f'sentinel auth-pass tarry "{RedisServer.PASSWORD}"\n'
        )
        return [need("redis-server", "redis-server"), str(config), "--sentinel"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[int]:
    server = ClusterNode(tmp_path / "cluster")
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"CLUSTER ADDSLOTSRANGE 0 16383\r\n")
        assert connection.recv(100) == b"+OK\r\n"
    yield server.port
    server.stop()


async def test_a_cluster(cluster: int) -> None:
    component = made("pubsub.redis", {"redisHost": f"127.0.0.1:{cluster}", "redisType": "cluster"})

    async def ready() -> bool:
        try:
            await component.start()
            await component.publish("orders", b"one", {})
        except BrokerUnreachable:
            return False
        return True

    await until(ready)
    inbox = Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    assert (await inbox.expect(1))[0] == b"one"
    await component.close()


async def test_the_master_that_sentinels_name(redis: Broker, tmp_path: Path) -> None:
    sentinel = SentinelNode(tmp_path / "sentinel", redis.server.port)
    await asyncio.to_thread(sentinel.start)
    try:
        topic = await redis.topic()
        component = redis.component(
            redisHost=f"127.0.0.1:{sentinel.port}", failover="true", sentinelMasterName="tarry"
        )

        async def ready() -> bool:
            try:
                await component.start()
            except BrokerUnreachable:
                return False
            return True

        await until(ready)
        inbox = Inbox()
        await component.subscribe(topic, "shop", inbox, {})
        await component.publish(topic, b"one", {})
        assert await inbox.expect(1) == [b"one"]
        await component.close()
    finally:
        await asyncio.to_thread(sentinel.stop)
