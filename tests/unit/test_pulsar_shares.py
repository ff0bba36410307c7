"""Connections, producers and consumers of Pulsar clients by token: whoever takes as many as it can leaves some for the others."""

import asyncio
from typing import Any

from tarry.core.tenants.access import Access, Token
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.exclusivity import Claimant, Mode
from tarry.doors.pulsar.frames import frame
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Type
from tests.unit.test_serve_pulsar import opened, read_all

GREEDY, MODEST = b"greedy-token", b"modest-token"


def access() -> Access:
    return Access(
        Token.of(name, f"{name}-token", ["produce", "consume"], ["public/default"])
        for name in ("greedy", "modest")
    )


def test_producers_of_one_token_refuse_nobody_elses() -> None:
    desk = Desk(access(), max_producers=4)
    clients = [desk.client(token=GREEDY) for _ in range(3)]
    for client in clients[:2]:
        assert client.produce().type == Type.PRODUCER_SUCCESS
    refused = clients[2].produce().error
    assert refused.error == Code.ProducerBusy
    assert "the token greedy has 2 producers" in refused.message
    modest = desk.client(token=MODEST)
    assert modest.produce().type == Type.PRODUCER_SUCCESS
    # One that is closed gives its place back, and so do all of a connection that ends.
    clients[0].ask(
        type=Type.CLOSE_PRODUCER, close_producer=wire.CommandCloseProducer(producer_id=1, request_id=9)
    )
    assert clients[2].produce().type == Type.PRODUCER_SUCCESS
    for client in (*clients, modest):
        client.connection.lost()
    assert desk.broker.producer_places.taken == 0


def test_a_producer_that_is_refused_or_waits_in_vain_keeps_no_place() -> None:
    desk = Desk(access(), max_producers=4)
    first, second = desk.client(token=GREEDY), desk.client(token=MODEST)
    first.produce(producer_access_mode=Mode.Exclusive)
    assert second.produce().error.error == Code.ProducerBusy
    second.produce(producer_id=2, producer_access_mode=Mode.WaitForExclusive)
    assert desk.broker.producer_places.taken == 2
    second.connection.lost()
    assert desk.broker.producer_places.taken == 1


def test_consumers_of_one_token_refuse_nobody_elses() -> None:
    desk = Desk(access(), max_consumers=4)
    greedy, modest = desk.client(token=GREEDY), desk.client(token=MODEST)
    for number in (1, 2):
        assert greedy.subscribe(number, permits=0).type == Type.SUCCESS
    refused = greedy.subscribe(3, permits=0).error
    assert refused.error == Code.ConsumerBusy
    assert "the token greedy has 2 consumers" in refused.message
    assert modest.subscribe(1, permits=0).type == Type.SUCCESS
    greedy.ask(
        type=Type.CLOSE_CONSUMER, close_consumer=wire.CommandCloseConsumer(consumer_id=1, request_id=9)
    )
    assert greedy.subscribe(3, permits=0).type == Type.SUCCESS
    for client in (greedy, modest):
        client.connection.lost()
    assert desk.broker.consumer_places.taken == 0


def shown_again(client: Client, token: bytes) -> None:
    client.tell(
        type=Type.AUTH_RESPONSE,
        authResponse=wire.CommandAuthResponse(response=wire.AuthData(auth_data=token)),
    )


def test_places_belong_to_the_token_that_took_them() -> None:
    desk = Desk(access())
    client = desk.client(token=GREEDY)
    client.produce()
    shown_again(client, MODEST)
    other = desk.client(token=GREEDY)
    client.subscribe(permits=0)
    client.connection.lost()
    other.connection.lost()
    broker = desk.broker
    for places in (broker.connection_places, broker.producer_places, broker.consumer_places):
        assert places.taken == 0


def test_a_token_that_is_shown_again_keeps_its_place() -> None:
    desk = Desk(access())
    client = desk.client(token=GREEDY)
    # As if others had come to share with: it has what it has.
    desk.broker.connection_places._limit = 0
    shown_again(client, GREEDY)
    assert not client.closed
    assert desk.broker.connection_places.taken == 1


async def test_connections_of_one_token_refuse_nobody_elses() -> None:
    async def came(token: bytes, port: int) -> tuple[wire.BaseCommand, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connect = wire.CommandConnect(client_version="t", protocol_version=20, auth_data=token)
        writer.write(frame(wire.BaseCommand(type=Type.CONNECT, connect=connect)))
        size = int.from_bytes(await reader.readexactly(4), "big")
        told = await reader.readexactly(size)
        answer = wire.BaseCommand.FromString(told[4:])
        if answer.type == Type.ERROR:
            assert await read_all(reader) == []
        return answer, writer

    async with opened(access=access(), max_connections=4) as (_, port):
        greedy = [await came(GREEDY, port) for _ in range(3)]
        assert [answer.type for answer, _ in greedy] == [Type.CONNECTED, Type.CONNECTED, Type.ERROR]
        # In Pulsar's own words.
        assert greedy[2][0].error.error == Code.NotAllowedError
        assert greedy[2][0].error.message.startswith("Reached the maximum number of connections")
        modest, writer = await came(MODEST, port)
        assert modest.type == Type.CONNECTED
        for one in (*(one for _, one in greedy), writer):
            one.close()


def test_a_further_producer_does_not_have_all_others_looked_at() -> None:
    """Thousands may share a topic: a thousand that came one after the other took a second of the loop."""
    desk = Desk()
    client = desk.client()
    client.produce(0)
    producing = desk.broker.producing_to(TOPIC)
    looked = 0

    class Counting(dict[str, Claimant]):
        def values(self) -> Any:
            nonlocal looked
            for one in super().values():
                looked += 1
                yield one

    producing.by_name = Counting(producing.by_name)
    for number in range(1, 101):
        assert client.produce(number).type == Type.PRODUCER_SUCCESS
    assert looked <= 200
