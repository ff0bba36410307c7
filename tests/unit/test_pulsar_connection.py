"""The protocol object of the Pulsar door, without I/O: who may speak, in which order, and what ends a connection."""

import pytest

from tarry.core.tenants.access import Access, Token
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, frame
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Type, message_of


def test_connect_says_what_is_spoken() -> None:
    connected = Desk(max_message_bytes=2048).client(connect=False).connect().connected
    assert (connected.protocol_version, connected.max_message_size) == (20, 2048)
    old = Desk().client(connect=False)
    answer = old.ask(
        type=Type.CONNECT, connect=wire.CommandConnect(client_version="old", protocol_version=12)
    )
    assert answer.connected.protocol_version == 12


def test_ping_is_answered() -> None:
    assert Desk().client().ask(type=Type.PING, ping=wire.CommandPing()).type == Type.PONG


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x01",
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x09abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        frame(wire.BaseCommand(type=Type.CONNECT, connect=wire.CommandConnect(client_version="again"))),
        frame(wire.BaseCommand(type=99)),
    ],
)
def test_what_is_no_frame_ends_that_connection_and_no_other(data: bytes) -> None:
    desk = Desk()
    client, other = desk.client(), desk.client()
    other.produce()
    client.connection.receive(data)
    assert client.closed
    (reason, _) = client.got[-1]
    assert reason.error.request_id == NO_ID
    assert reason.error.message
    other.send(0)
    assert other.receipts() == [(0, 0)]


def test_nothing_before_connect() -> None:
    client = Desk().client(connect=False)
    client.tell(type=Type.PING, ping=wire.CommandPing())
    assert client.closed
    assert "CONNECT" in client.got[-1][0].error.message


def test_what_came_whole_before_the_garbage_counts() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    send = wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0))
    client.connection.receive(frame(send, message_of(b"kept", 0)) + b"\xff" * 16)
    assert client.closed
    desk.bench.rest()
    assert len(desk.bench.drain("t").payloads) == 1


def test_byte_by_byte() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    send = wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0))
    data = frame(send, message_of(b"kept", 0)) + frame(
        wire.BaseCommand(type=Type.PING, ping=wire.CommandPing())
    )
    for at in range(len(data)):
        client.connection.receive(data[at : at + 1])
    desk.bench.rest()
    assert client.receipts() == [(0, 0)]
    assert [command.type for command in client.take()][-1] == Type.PONG


def test_commands_of_transactions_are_refused_by_name() -> None:
    client = Desk().client()
    # NEW_TXN: field 50, of which the first is the request id.
    body = b"\x08\x32" + b"\x92\x03\x02\x08\x07"
    client.connection.receive((len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    error = client.got[-1][0].error
    assert (error.request_id, error.error) == (7, Code.NotAllowedError)
    assert not client.closed


# Who may speak


def access() -> Access:
    return Access(
        (
            Token.of("writer", "writer-token", ["produce"], ["public/default"]),
            Token.of("reader", "reader-token", ["consume"], ["public/default"]),
        )
    )


def test_a_token_is_asked_for() -> None:
    desk = Desk(access())
    for token in (b"", b"wrong-token"):
        client = desk.client(connect=False)
        assert client.connect(token).error.error == Code.AuthenticationError
        assert client.closed


def test_roles_and_namespaces_count() -> None:
    desk = Desk(access())
    writer, reader = desk.client(token=b"writer-token"), desk.client(token=b"reader-token")
    assert writer.produce().type == Type.PRODUCER_SUCCESS
    assert writer.subscribe(permits=0).error.error == Code.AuthorizationError
    assert reader.subscribe(permits=0).type == Type.SUCCESS
    assert reader.produce().error.error == Code.AuthorizationError
    other = "persistent://public/other/t"
    assert writer.produce(2, topic=other).error.error == Code.AuthorizationError
    lookup = writer.ask(
        type=Type.LOOKUP, lookupTopic=wire.CommandLookupTopic(topic=other, request_id=1)
    ).lookupTopicResponse
    assert (lookup.response, lookup.error) == (
        wire.CommandLookupTopicResponse.Failed,
        Code.AuthorizationError,
    )


def test_who_may_only_produce_makes_no_subscription() -> None:
    """The subscription that a producer of dead letters asks for is one like any other."""
    desk = Desk(
        Access((
            Token.of("writer", "writer-token", ["produce"], ["public/default"]),
            Token.of("both", "both-token", ["produce", "consume"], ["public/default"]),
        ))
    )  # fmt: skip
    writer, both = desk.client(token=b"writer-token"), desk.client(token=b"both-token")
    refused = writer.produce(initial_subscription_name="mine")
    assert refused.error.error == Code.AuthorizationError
    assert desk.bench.engine.topics.names() == []
    assert both.produce(initial_subscription_name="mine").type == Type.PRODUCER_SUCCESS
    assert list(desk.bench.engine.topics.find(TOPIC).subscriptions) == ["mine"]


def test_a_token_can_be_asked_for_again() -> None:
    desk = Desk(access(), keep_alive_ms=1_000, token_refresh_ms=2_000)
    client, silent = desk.client(token=b"writer-token"), desk.client(token=b"writer-token")
    for one in (client, silent):
        one.connection.tick()
        assert not one.take(Type.AUTH_CHALLENGE)
        one.connection.tick()
        assert one.take(Type.AUTH_CHALLENGE)
    silent.connection.receive(frame(wire.BaseCommand(type=Type.PONG, pong=wire.CommandPong())))
    silent.connection.tick()
    silent.connection.tick()
    assert silent.closed
    client.tell(type=Type.AUTH_RESPONSE, authResponse=_response(b"writer-token"))
    assert not client.closed
    client.tell(type=Type.AUTH_RESPONSE, authResponse=_response(b"no longer"))
    assert client.closed


def _response(token: bytes) -> wire.CommandAuthResponse:
    return wire.CommandAuthResponse(response=wire.AuthData(auth_method_name="token", auth_data=token))


# Keep-alive and bounds


def test_who_is_silent_is_pinged_and_then_closed() -> None:
    client = Desk().client()
    client.connection.tick()
    assert not client.take(Type.PING)
    client.connection.tick()
    assert client.take(Type.PING)
    client.tell(type=Type.PONG, pong=wire.CommandPong())
    client.connection.tick()
    client.connection.tick()
    assert not client.closed
    client.connection.tick()
    assert client.closed


def test_who_never_connects_is_closed() -> None:
    client = Desk().client(connect=False)
    client.connection.tick()
    assert client.closed


def test_a_client_that_is_not_answered_yet_is_not_read_on() -> None:
    desk = Desk(max_connection_bytes=65_536)
    client = desk.client()
    client.produce()
    send = wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0))
    client.connection.receive(frame(send, message_of(bytes(70_000), 0)))
    assert client.pauses == [True]
    desk.bench.rest()
    assert client.pauses == [True, False]
    assert client.receipts() == [(0, 0)]


def test_a_client_that_does_not_read_gets_no_more() -> None:
    desk = Desk()
    writer, reader = desk.client(), desk.client()
    reader.subscribe(permits=5)
    reader.connection.hold()
    writer.produce()
    for sequence in range(5):
        writer.send(sequence)
    assert reader.messages() == []
    reader.flow(3)
    assert reader.messages() == []
    reader.connection.release()
    assert len(reader.messages()) == 5
    for sequence in range(5, 10):
        writer.send(sequence)
    assert len(reader.messages()) == 3


def test_a_frame_that_is_too_large_ends_the_connection() -> None:
    client = Desk(max_message_bytes=1024).client()
    client.connection.receive((1024 + 200_000).to_bytes(4, "big") + (10).to_bytes(4, "big"))
    assert client.closed


def test_a_closed_connection_leaves_nothing_behind() -> None:
    desk = Desk()
    client = desk.client()
    client.produce(producer_name="me")
    client.subscribe()
    client.connection.lost()
    assert desk.broker.producing == {}
    assert desk.bench.engine.topics.subscription(TOPIC, "sub").consumers == []
    assert desk.client().produce(producer_name="me").type == Type.PRODUCER_SUCCESS


def test_a_stopping_server_takes_nothing_new() -> None:
    desk = Desk()
    client = desk.client()
    desk.broker.stopping = True
    assert client.produce().error.error == Code.ServiceNotReady


def names(client: Client) -> list[str]:
    asked = wire.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default")
    answer = client.ask(type=Type.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=asked)
    return list(answer.getTopicsOfNamespaceResponse.topics)


def test_partitions_are_told_and_the_topic_itself_is_not_listed() -> None:
    desk = Desk()
    client = desk.client()
    desk.bench.ask(desk.bench.engine.topics.create("parts", 3))
    asked = wire.CommandPartitionedTopicMetadata(topic="persistent://public/default/parts", request_id=1)
    answer = client.ask(type=Type.PARTITIONED_METADATA, partitionMetadata=asked)
    assert answer.partitionMetadataResponse.partitions == 3
    assert names(client) == [f"persistent://public/default/parts-partition-{n}" for n in range(3)]


def test_text_that_is_no_utf8_ends_the_connection() -> None:
    client = Desk().client()
    producer = wire.CommandProducer(topic="tttt", producer_id=1, request_id=1)
    body = wire.BaseCommand(type=Type.PRODUCER, producer=producer).SerializeToString()
    body = body.replace(b"tttt", b"\xff\xfe\xff\xfe")
    client.connection.receive((len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    assert client.closed
    assert "UTF-8" in client.got[-1][0].error.message
