"""Operations a second by token: one allowance for all doors, refused in the words of each and lost at none."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest
from dapr.proto.runtime.v1 import pubsub_pb2
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from msgspec import Struct

from tarry.config import ConfigError, load
from tarry.core.errors import Forbidden, RateLimited
from tarry.core.limits import HOUR_MS
from tarry.core.tenants.access import Access, Standing, Token
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import frame
from tarry.serve.composition import configuration
from tests.processes import free_port
from tests.unit.dapr_kit import Doors, dapr
from tests.unit.pulsar_kit import TOPIC, Desk, Type, message_of
from tests.unit.test_serve_pulsar import hear
from tests.waiting import until

WITHIN_S = 60
LATER = {"destination": "persistent://public/default/t", "payload": "x", "delay": "1h"}
LINE = json.dumps({"destination": "persistent://public/default/t", "delay_ms": HOUR_MS}).encode() + b"\n"
SLOW, OTHER = "the-slow-token", "the-other-token"
SLOW_HEADERS = {"authorization": f"Bearer {SLOW}"}
ROLES = ["admin", "produce", "consume"]
TOKENS: list[dict[str, Any]] = [
    {"name": "slow", "token": SLOW, "roles": ROLES, "operations_per_second": 2},
    {"name": "other", "token": OTHER, "roles": ROLES},
]


class Hand(Struct):
    """A clock that is moved by hand."""

    now_ms: int = 1_000_000

    def read(self) -> int:
        return self.now_ms


class World(Struct):
    """A server with every door that takes tokens, one of which may make two operations a second by a clock of its own."""

    doors: Doors
    clock: Hand
    pulsar: int

    @property
    def native(self) -> httpx.AsyncClient:
        return self.doors.served.client

    @property
    def engine(self) -> Any:
        return self.doors.engine

    async def schedule(self, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.native.post("/v1/messages", json=LATER, headers=headers or SLOW_HEADERS)

    async def use_up(self) -> None:
        """Two operations: more are refused until the clock moves on."""
        assert [(await self.schedule()).status_code for _ in range(2)] == [201, 201]


@contextlib.asynccontextmanager
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    clock, original, port = Hand(), configuration.tokens_of, free_port()

    def tokens_of(config: Any) -> list[Token]:
        tokens = original(config)
        for token in tokens:
            token.caller.standing._now_ms = clock.read
        return tokens

    monkeypatch.setattr(configuration, "tokens_of", tokens_of)
    pulsar = {"doors.pulsar.enabled__": True, "doors.pulsar.port__": port}
    async with asyncio.timeout(WITHIN_S), dapr(folder, tokens__=TOKENS, **pulsar) as doors:
        yield World(doors, clock, port)


async def test_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        await served.use_up()
        # The same head again and again: what is kept of it is asked too.
        for refused in [await served.schedule() for _ in range(3)]:
            assert refused.status_code == 429
        refused = await served.schedule()
        assert refused.headers["retry-after"] == "1"
        problem = refused.json()
        assert problem["code"] == "rate-limited"
        assert problem["retry_after_ms"] == 500
        assert "the token slow may make 2 operations a second" in problem["detail"]
        assert served.engine.stats().pending == 2
        for path in ("/v1/me", "/admin/v2/clusters", "/v1/topics/public/default/t"):
            answer = await served.native.get(path, headers=SLOW_HEADERS)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1"), path
        # Nobody else waits for it.
        assert (await served.schedule({"authorization": f"Bearer {OTHER}"})).status_code == 201
        served.clock.now_ms += 500
        assert (await served.schedule()).status_code == 201
        assert (await served.schedule()).status_code == 429
        figures = await served.native.get("/metrics", headers={"authorization": f"Bearer {OTHER}"})
        assert 'tarry_token_limited_total{token="slow"} 8.0' in figures.text


async def test_a_head_that_is_refused_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that is wrong goes the longer way, and is counted once."""
    async with world(tmp_path / "data", monkeypatch) as served:
        wrong = await served.native.post("/v1/messages", json={**LATER, "delay": "x"}, headers=SLOW_HEADERS)
        assert wrong.status_code == 400
        assert (await served.schedule()).status_code == 201
        assert (await served.schedule()).status_code == 429


async def test_a_batch_waits_for_its_turn_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        headers = {**SLOW_HEADERS, "content-type": "application/x-ndjson"}
        asked = asyncio.create_task(
            served.native.post("/v1/messages/batch", content=LINE * 20, headers=headers)
        )
        # The request is one operation, and with what is left it begins: two lines together.
        await until(lambda: served.engine.stats().pending >= 2)
        moves = 0

        def gone_on(before: int) -> bool:
            return asked.done() or served.engine.stats().pending > before

        while not asked.done():
            before = served.engine.stats().pending
            served.clock.now_ms += 1_000
            moves += 1
            await until(partial(gone_on, before))
        answer = await asked
        assert answer.text.count('"id"') == 20
        assert served.engine.stats().pending == 20
        assert moves >= 9


async def test_rows_of_arrow_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        sink = pa.BufferOutputStream()
        rows = pa.record_batch({"destination": [LATER["destination"]] * 9, "delay_ms": [HOUR_MS] * 9})
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        headers = {**SLOW_HEADERS, "content-type": "application/vnd.apache.arrow.stream"}
        body = sink.getvalue().to_pybytes()
        asked = asyncio.create_task(served.native.post("/v1/messages/batch", content=body, headers=headers))
        await until(lambda: served.engine.stats().pending == 2)
        served.clock.now_ms += 1_000
        await until(lambda: served.engine.stats().pending == 4)
        assert not asked.done()
        served.clock.now_ms += 60_000
        await until(lambda: served.engine.stats().pending == 6)
        served.clock.now_ms += 60_000
        await until(lambda: served.engine.stats().pending == 8)
        served.clock.now_ms += 60_000
        assert (await asked).status_code == 200
        assert served.engine.stats().pending == 9


async def test_rows_that_take_longer_than_a_batch_may_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        sink = pa.BufferOutputStream()
        count = 2 * HOUR_MS // 1000 + 1
        rows = pa.record_batch({"destination": [LATER["destination"]] * count, "delay_ms": [HOUR_MS] * count})
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        headers = {**SLOW_HEADERS, "content-type": "application/vnd.apache.arrow.stream"}
        answer = await served.native.post(
            "/v1/messages/batch", content=sink.getvalue().to_pybytes(), headers=headers
        )
        assert answer.status_code == 400
        assert f"has {count} rows, which at the token's 2 operations a second" in answer.text
        assert served.engine.stats().pending == 0


async def test_entries_that_go_together_are_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        place = "/v1/topics/public/default/t/messages"
        headers = {**SLOW_HEADERS, "content-type": "application/x-ndjson"}
        done = await served.native.post(place, content=b'{"payload":"x"}\n' * 10, headers=headers)
        assert len(done.json()["entry_ids"]) == 10
        refused = await served.schedule()
        # Eleven operations, of which two may be made at once.
        assert refused.json()["retry_after_ms"] == 5_000


async def test_daprs_door_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path / "data", monkeypatch) as served:
        await served.use_up()
        for when in ({}, {"scheduledSendTime": "1h"}):
            refused = await served.doors.publish("t", {}, headers={"dapr-api-token": SLOW}, **when)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["errorCode"] == "ERR_TOO_MANY_REQUESTS"
        assert served.engine.stats().pending == 2
        served.clock.now_ms += 500
        done = await served.doors.publish("t", {}, headers={"dapr-api-token": SLOW}, scheduledSendTime="1h")
        assert done.status_code == 204
        served.clock.now_ms += 1_000
        entries = [{"entryId": str(n), "event": "x", "contentType": "text/plain"} for n in range(8)]
        bulk = await served.doors.client.post(
            "/v1.0/publish/bulk/pubsub/t", json=entries, headers={"dapr-api-token": SLOW}
        )
        assert bulk.status_code == 204
        assert (await served.schedule()).json()["retry_after_ms"] == 4_000


async def test_daprs_door_over_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        world(tmp_path / "data", monkeypatch) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.doors.door.grpc_ports[0]}") as channel,
    ):
        await served.use_up()
        publish = channel.unary_unary("/dapr.proto.runtime.v1.Dapr/PublishEvent")
        stream: Any = channel.stream_stream("/dapr.proto.runtime.v1.Dapr/SubscribeTopicEventsAlpha1")
        metadata = (("dapr-api-token", SLOW),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await publish(b"", metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the token slow may make 2 operations a second" in (caught.value.details() or "")
        given = dict(caught.value.trailing_metadata() or ())
        status = status_pb2.Status.FromString(given["grpc-status-details-bin"])
        wait = error_details_pb2.RetryInfo()
        assert status.details[-1].Unpack(wait)
        assert wait.retry_delay == duration_pb2.Duration(nanos=500_000_000)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream(metadata=metadata).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.clock.now_ms += 500
        event = pubsub_pb2.PublishEventRequest(pubsub_name="pubsub", topic="t", data=b"x")
        await publish(event.SerializeToString(), metadata=metadata)


async def test_a_pulsar_connection_is_held_up_and_loses_nothing(tmp_path: Path) -> None:
    """By the real clock: no faster than the rate, and every message has its receipt, in order."""
    tokens = [{**TOKENS[0], "operations_per_second": 50}]
    port, count = free_port(), 100
    pulsar = {"doors.pulsar.enabled__": True, "doors.pulsar.port__": port}
    async with asyncio.timeout(WITHIN_S), dapr(tmp_path / "data", tokens__=tokens, **pulsar):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connect = wire.CommandConnect(client_version="x", protocol_version=20, auth_data=SLOW.encode())
        producer = wire.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
        writer.write(frame(wire.BaseCommand(type=Type.CONNECT, connect=connect)))
        writer.write(frame(wire.BaseCommand(type=Type.PRODUCER, producer=producer)))
        assert (await hear(reader)).type == Type.CONNECTED
        assert (await hear(reader)).type == Type.PRODUCER_SUCCESS
        began_s = asyncio.get_running_loop().time()
        for sequence in range(count):
            send = wire.CommandSend(producer_id=1, sequence_id=sequence, num_messages=1)
            writer.write(frame(wire.BaseCommand(type=Type.SEND, send=send), message_of(b"x", sequence)))
        answers = [await hear(reader) for _ in range(count)]
        took_s = asyncio.get_running_loop().time() - began_s
        assert [one.send_receipt.sequence_id for one in answers] == list(range(count))
        # A second's worth at once, and then one at a time.
        assert took_s >= (count - 50 - 1) / 50
        writer.transport.abort()


def test_a_connection_stops_at_the_command_that_is_too_much() -> None:
    desk = Desk(Access([Token.of("slow", SLOW, ["produce"], per_second=4)]))
    clock = Hand()
    desk.broker.access.tokens[0].caller.standing._now_ms = clock.read
    client = desk.client(token=SLOW.encode())
    client.produce()
    sends = [
        frame(
            wire.BaseCommand(
                type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=n, num_messages=1)
            ),
            message_of(b"%d" % n, n),
        )
        for n in range(6)
    ]
    # Two operations are used up: of these three the second is the last for now, the third waits.
    client.connection.receive(b"".join(sends[:3]) + sends[3][:10])
    desk.bench.rest()
    assert client.receipts() == [(0, 0), (1, 1)]
    assert client.pauses == [True]
    # What was on its way already waits behind it, and a ping is no operation but in its order too.
    client.connection.receive(
        sends[3][10:] + frame(wire.BaseCommand(type=Type.PING, ping=wire.CommandPing()))
    )
    desk.bench.rest()
    assert client.receipts() == []
    for expected in ([(2, 2)], [(3, 3)]):
        ((wait_ms, go_on),) = client.later
        assert 0 < wait_ms <= 250
        client.later.clear()
        clock.now_ms += wait_ms
        go_on()
        desk.bench.rest()
        assert client.receipts() == expected
        assert client.pauses == [True]
    assert client.take(Type.PONG) == []
    ((wait_ms, go_on),) = client.later
    clock.now_ms += wait_ms
    go_on()
    assert len(client.take(Type.PONG)) == 1
    assert client.pauses == [True, False]


def test_a_connection_that_is_held_up_is_not_taken_for_dead_and_may_end() -> None:
    desk = Desk(Access([Token.of("slow", SLOW, ["produce"], per_second=1)]), keep_alive_ms=1_000)
    client = desk.client(token=SLOW.encode())
    client.connection.receive(frame(wire.BaseCommand(type=Type.PING, ping=wire.CommandPing())))
    for _ in range(5):
        client.connection.tick()
    assert not client.closed
    client.connection.lost()
    for _, go_on in client.later:
        go_on()
    assert client.closed


def test_a_messages_batch_counts_as_many() -> None:
    desk = Desk(Access([Token.of("slow", SLOW, ["produce"], per_second=10)]))
    clock = Hand()
    desk.broker.access.tokens[0].caller.standing._now_ms = clock.read
    client = desk.client(token=SLOW.encode())
    client.produce()
    client.send_batch(0, 100)
    assert client.receipts() == [(0, 0)]
    ((wait_ms, _),) = client.later
    assert wait_ms == (2 + 100 - 10 + 1) * 100


def test_what_is_owed_is_forgotten_after_an_hour() -> None:
    clock = Hand()
    standing = Standing("t", 1, clock.read)
    assert standing.charge(2**31) == HOUR_MS
    clock.now_ms += HOUR_MS - 1
    with pytest.raises(RateLimited):
        standing.spend()
    clock.now_ms += 1
    standing.spend()


def test_who_lost_its_standing_spends_nothing() -> None:
    standing = Standing("t")
    standing.spend()
    standing.in_force = False
    with pytest.raises(Forbidden, match="the token t is not in force any more"):
        standing.spend()


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (0.5, "token slow: operations_per_second is at least 1, or 0 for no limit"),
        (-1, ">= 0"),
        (2_000_000, "<= 1000000"),
        ("fast", "operations_per_second"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(rate: Any, said: str) -> None:
    tokens = json.dumps([{**TOKENS[0], "operations_per_second": rate}])
    with pytest.raises(ConfigError, match="environment TARRY_TOKENS") as refused:
        load(environment={"TARRY_TOKENS": tokens})
    assert said in str(refused.value)
