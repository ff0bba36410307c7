"""The rights table against the doors: every operation has a row, and every row is what the server does.

The walk sends each operation to a real server: without a token, with every role that does not suffice, with all roles in
another namespace, and last with each token that suffices, which also shows that nothing was changed before.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dapr.proto.runtime.v1 import metadata_pb2, pubsub_pb2

from tarry.core.tenants.rights import (
    DAPR_GRPC,
    PASSED_ON,
    PULSAR,
    right_of,
)
from tarry.doors.dapr import operations as dapr_operations
from tarry.doors.dapr.grpc_api import SERVICE
from tarry.doors.dapr.operations import DAPR_HTTP
from tarry.doors.http.operations import HTTP, OPERATIONS
from tarry.doors.matrix import operations as matrix_operations
from tarry.doors.matrix.operations import MATRIX
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.admin import operations as admin_operations
from tarry.doors.pulsar.admin.operations import PULSAR_ADMIN
from tarry.doors.pulsar.frames import Frames, frame, with_checksum
from tarry.serve.composition.rights import table
from tests.processes import ROOT
from tests.serving import serving
from tests.unit.dapr_kit import dapr
from tests.unit.matrix_kit import HS_TOKEN, ROOM, STABLE, bearer, matrix_serving
from tests.unit.pulsar_kit import Desk
from tests.unit.rights_kit import (
    EXAMPLES,
    HERE,
    STRANGER,
    Example,
    World,
    right_tokens,
    world,
    wrong_roles,
)

WITHIN_S = 60
Type = wire.BaseCommand


# Every operation has a row, and every row an operation


def test_native_operations_have_one_row_each() -> None:
    assert len(HTTP) == len(OPERATIONS)


def test_operations_of_the_administration_have_one_row_each() -> None:
    assert len(PULSAR_ADMIN) == len(admin_operations.OPERATIONS)


def test_commands_and_rows_are_the_same() -> None:
    taken = Desk().client().connection._takes
    assert {Type.Type.Name(number) for number in taken} == set(PULSAR)


def test_dapr_operations_have_one_row_each() -> None:
    names = [name for operation in dapr_operations.OPERATIONS for name in operation.names]
    assert len(DAPR_HTTP) == len(names) + 1


async def test_grpc_methods_and_rows_are_the_same(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        (sidecar,) = doors.door.sidecars.values()
        api: Any = sidecar.grpc_api
        names = {path.removeprefix(SERVICE) for path in api._unary}
        known = {name for name in DAPR_GRPC if name != PASSED_ON}
        assert names == {name for name in known if api.unary(SERVICE + name) is not None}
        # Without a sidecar only the methods of the table are served.
        served = {name for name in known if api.unary(SERVICE + name) or api.streaming(SERVICE + name)}
        assert served == known
        assert api.streaming(SERVICE + "GetSecret") is None


def test_matrix_operations_have_one_row_each() -> None:
    assert len(MATRIX) == len(matrix_operations.OPERATIONS) + 1


async def test_an_operation_without_a_row_cannot_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in OPERATIONS if row.name != "me"]
    monkeypatch.setattr("tarry.doors.http.app.OPERATIONS", rows)
    async with serving(tmp_path / "data") as served:
        statuses = [(await served.client.get(path)).status_code for path in ("/v1/me", "/v1/topics")]
    assert statuses == [404, 200]
    with pytest.raises(LookupError, match=r"Everything has no row"):
        right_of(DAPR_GRPC, "Everything")


def test_the_page_is_the_table() -> None:
    page = (ROOT / "docs" / "rights.md").read_text("utf-8")
    # To bring it up to date: python -m tarry.serve.composition.rights > docs/rights.md
    assert page == table()


# The walk


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path / "data") as served:
        yield served


async def walk(
    served: World, rows: Any, client: Any = None, unknown: int = 401, role: int = 403
) -> list[str]:
    """Requests whose outcome differs from their rows."""
    wrong = []
    for operation, right in rows.items():
        method, _, path = operation.partition(" ")
        example = EXAMPLES.get(operation, Example())

        async def send(
            token: str | None, place: str, method: str = method, example: Example = example
        ) -> Any:
            return await served.send(method, place, example, token, client)

        place = await served.filled(path, example)
        if right.reach == "open":
            status, _ = await send(None, place)
            if status not in example.done:
                wrong.append(f"{operation}: nobody in particular got {status}")
            continue
        tries = [(None, unknown), *((token, role) for token in wrong_roles(right))]
        strange = {"named": 403, "own": 404, "all": role}.get(right.reach)
        if strange is not None:
            tries.append((STRANGER, strange))
        for token, expected in tries:
            status, text = await send(token, place)
            if status != expected:
                wrong.append(f"{operation}: {token} got {status} and not {expected}: {text[:200]}")
        if right.reach == "listed":
            status, text = await send(STRANGER, place)
            if status not in example.done or HERE in text.replace(STRANGER, ""):
                wrong.append(f"{operation}: a stranger got {status}: {text[:200]}")
        for token in right_tokens(right):
            status, text = await send(token, place)
            if status not in example.done:
                wrong.append(f"{operation}: {token} got {status}: {text[:200]}")
            place = await served.filled(path, example)
    return wrong


async def test_the_native_door_is_as_its_rows_say(served: World) -> None:
    assert await walk(served, HTTP) == []


async def test_the_administration_is_as_its_rows_say(served: World) -> None:
    assert await walk(served, PULSAR_ADMIN) == []


async def test_the_dapr_door_is_as_its_rows_say_over_http(served: World) -> None:
    rows = {name: right for name, right in DAPR_HTTP.items() if name != PASSED_ON}
    # Dapr knows one refusal of a token, whatever is wrong with it.
    assert await walk(served, rows, served.dapr, role=401) == []
    secrets = {"GET /v1.0/secrets/store/key": DAPR_HTTP[PASSED_ON]}
    EXAMPLES["GET /v1.0/secrets/store/key"] = Example(done=(501,))
    assert await walk(served, secrets, served.dapr, role=401) == []


def grpc_examples() -> dict[str, bytes]:
    event = pubsub_pb2.PublishEventRequest(pubsub_name="pubsub", topic="t", data=b"x")
    bulk = pubsub_pb2.BulkPublishRequest(
        pubsub_name="pubsub",
        topic="t",
        entries=[pubsub_pb2.BulkPublishRequestEntry(entry_id="1", event=b"x")],
    )
    first = pubsub_pb2.SubscribeTopicEventsRequestAlpha1(
        initial_request=pubsub_pb2.SubscribeTopicEventsRequestInitialAlpha1(pubsub_name="pubsub", topic="t")
    )
    return {
        "PublishEvent": event.SerializeToString(),
        "BulkPublishEvent": bulk.SerializeToString(),
        "BulkPublishEventAlpha1": bulk.SerializeToString(),
        "SubscribeTopicEventsAlpha1": first.SerializeToString(),
        "GetMetadata": b"",
        "SetMetadata": metadata_pb2.SetMetadataRequest(key="k", value="v").SerializeToString(),
    }


async def test_the_dapr_door_is_as_its_rows_say_over_grpc(served: World) -> None:
    examples, wrong = grpc_examples(), []
    code = grpc.StatusCode
    async with grpc.aio.insecure_channel(served.grpc) as channel, asyncio.timeout(WITHIN_S):

        async def outcome(name: str, token: str | None, expected: grpc.StatusCode) -> grpc.StatusCode:
            metadata = () if token is None else (("dapr-api-token", token),)
            try:
                if name != "SubscribeTopicEventsAlpha1":
                    await channel.unary_unary(SERVICE + name)(examples[name], metadata=metadata)
                    return code.OK
                call: Any = channel.stream_stream(SERVICE + name)(metadata=metadata)
                if expected is not code.UNAUTHENTICATED:
                    # A stream whose token is refused ends before its first message.
                    await call.write(examples[name])
                # One that was let in says so, and goes on until it is cancelled.
                begun = await call.read() is not grpc.aio.EOF
                call.cancel()
                assert begun
                return code.OK
            except grpc.aio.AioRpcError as error:
                return error.code()

        for name, right in DAPR_GRPC.items():
            if name == PASSED_ON:
                continue
            tries = [
                (None, code.UNAUTHENTICATED),
                *((token, code.UNAUTHENTICATED) for token in wrong_roles(right)),
            ]
            strange = {"named": code.PERMISSION_DENIED, "all": code.UNAUTHENTICATED}.get(right.reach)
            if strange is not None:
                tries.append((STRANGER, strange))
            tries += [(token, code.OK) for token in right_tokens(right)]
            for token, expected in tries:
                got = await outcome(name, token, expected)
                if got is not expected:
                    wrong.append(f"{name}: {token} got {got} and not {expected}")
    assert wrong == []


class Raw:
    """A connection of the binary protocol, command by command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, name: str, message: bytes = b"", **fields: Any) -> wire.BaseCommand | None:
        """The answer to a command; None if the connection is closed instead."""
        command = wire.BaseCommand(type=Type.Type.Value(name), **fields)
        self._writer.write(frame(command, message))
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            ((body, _),) = Frames(1 << 20).feed(
                size.to_bytes(4, "big") + await self._reader.readexactly(size)
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return wire.BaseCommand.FromString(body)

    async def connect(self, token: str | None) -> wire.BaseCommand | None:
        connect = wire.CommandConnect(
            client_version="raw", protocol_version=20, auth_data=(token or "").encode() or None
        )
        return await self.ask("CONNECT", connect=connect)

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


TOPIC = f"persistent://{HERE}/raw"
AT_TOPIC: dict[str, dict[str, Any]] = {
    "PARTITIONED_METADATA": {
        "partitionMetadata": wire.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
    },
    "LOOKUP": {"lookupTopic": wire.CommandLookupTopic(topic=TOPIC, request_id=1)},
    "GET_TOPICS_OF_NAMESPACE": {
        "getTopicsOfNamespace": wire.CommandGetTopicsOfNamespace(namespace=HERE, request_id=1)
    },
    "GET_SCHEMA": {"getSchema": wire.CommandGetSchema(topic=TOPIC, request_id=1)},
    "GET_OR_CREATE_SCHEMA": {
        "getOrCreateSchema": wire.CommandGetOrCreateSchema(
            topic=TOPIC, request_id=1, schema=wire.Schema(name="s", type=wire.Schema.String, schema_data=b"")
        )
    },
    "PRODUCER": {"producer": wire.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)},
    "SUBSCRIBE": {
        "subscribe": wire.CommandSubscribe(
            topic=TOPIC, subscription="raw", subType=wire.CommandSubscribe.Shared, consumer_id=1, request_id=1
        )
    },
}
"""The commands that name a place."""
NOWHERE = wire.MessageIdData(ledgerId=1, entryId=0)
ON_OPENED: dict[str, dict[str, Any]] = {
    "SEND": {"send": wire.CommandSend(producer_id=1, sequence_id=0)},
    "CLOSE_PRODUCER": {"close_producer": wire.CommandCloseProducer(producer_id=1, request_id=1)},
    "FLOW": {"flow": wire.CommandFlow(consumer_id=1, messagePermits=10)},
    "ACK": {
        "ack": wire.CommandAck(
            consumer_id=1, ack_type=wire.CommandAck.Individual, message_id=[NOWHERE], request_id=1
        )
    },
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": {
        "redeliverUnacknowledgedMessages": wire.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    },
    "CLOSE_CONSUMER": {"close_consumer": wire.CommandCloseConsumer(consumer_id=1, request_id=1)},
    "UNSUBSCRIBE": {"unsubscribe": wire.CommandUnsubscribe(consumer_id=1, request_id=1)},
    "SEEK": {"seek": wire.CommandSeek(consumer_id=1, request_id=1, message_id=NOWHERE)},
    "GET_LAST_MESSAGE_ID": {"getLastMessageId": wire.CommandGetLastMessageId(consumer_id=1, request_id=1)},
    "CONSUMER_STATS": {"consumerStats": wire.CommandConsumerStats(consumer_id=1, request_id=1)},
}
"""The commands on a producer or consumer that the connection has opened."""
PING: dict[str, Any] = {"ping": wire.CommandPing()}


def code_in(answer: wire.BaseCommand | None) -> int | None:
    """The code with which a command was refused; None if it was done."""
    assert answer is not None
    (told,) = [value for field, value in answer.ListFields() if field.name != "type"]
    for name in ("error", "error_code"):
        if name in told.DESCRIPTOR.fields_by_name and told.HasField(name):
            return int(getattr(told, name))
    return None


async def test_the_pulsar_door_is_as_its_rows_say(served: World) -> None:
    assert AT_TOPIC.keys() == {name for name, right in PULSAR.items() if right.reach == "named"}
    assert ON_OPENED.keys() == {name for name, right in PULSAR.items() if right.reach == "opened"}
    await served.send("PUT", f"/v1/topics/{HERE}/raw", Example(), "admin-all-token")

    async def opened(token: str | None) -> tuple[Raw, wire.BaseCommand | None]:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", served.pulsar))
        return raw, await raw.connect(token)

    async with asyncio.timeout(WITHIN_S):
        raw, answer = await opened(None)
        assert code_in(answer) == wire.AuthenticationError
        await raw.close()
        for name, fields in {**AT_TOPIC, **ON_OPENED, "PING": PING}.items():
            raw = Raw(*await asyncio.open_connection("127.0.0.1", served.pulsar))
            message = with_checksum(b"", b"x") if name == "SEND" else b""
            refused = await raw.ask(name, message, **fields)
            assert refused is None or refused.type == Type.ERROR, f"{name} before CONNECT"
            await raw.close()
        for name, fields in AT_TOPIC.items():
            for token in (*wrong_roles(PULSAR[name]), STRANGER):
                raw, _ = await opened(token)
                assert code_in(await raw.ask(name, **fields)) == wire.AuthorizationError, (name, token)
                await raw.close()
            for token in right_tokens(PULSAR[name]):
                raw, _ = await opened(token)
                assert code_in(await raw.ask(name, **fields)) != wire.AuthorizationError, (name, token)
                await raw.close()
        for name, fields in ON_OPENED.items():
            # Another connection of the right token's has opened them: that counts for nothing here.
            owner, _ = await opened("admin-here-token")
            await owner.ask("PRODUCER", **AT_TOPIC["PRODUCER"])
            await owner.ask("SUBSCRIBE", **AT_TOPIC["SUBSCRIBE"])
            raw, _ = await opened(STRANGER)
            raw._writer.write(frame(wire.BaseCommand(type=Type.Type.Value(name), **fields), b""))
            await raw.ask("PING", **PING)
            assert await owner.ask("PING", **PING) is not None, name
            got = await served.send(
                "GET", f"/v1/topics/{HERE}/raw/subscriptions/raw", Example(), "admin-all-token"
            )
            assert got[0] == 200, name
            await raw.close()
            await owner.close()


# Matrix, where the homeserver knows the users


async def test_the_matrix_door_is_as_its_rows_say(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as served:
        foreign = await served.native.post(
            "/v1/messages", json={"destination": f"persistent://{HERE}/t", "payload": "x", "delay": "1h"}
        )
        own = await served.schedule("own")
        wrong = []
        for operation in matrix_operations.OPERATIONS:
            query = {} if operation.when is None else {"org.matrix.msc4140.delay": "60000"}

            async def send(
                id_: str, operation: Any = operation, query: Any = query, token: str | None = None
            ) -> int:
                names = {"room": ROOM, "delay": id_, "action": "cancel"}
                others = dict.fromkeys(("type", "txn", "key", "event", "token", "user"), "x")
                headers = {} if token is None else bearer(token)
                place = operation.paths[0].format_map(names | others)
                answer = await served.client.request(
                    operation.method, place, params=query, json={"action": "cancel"}, headers=headers
                )
                return answer.status_code

            reach = operation.right.reach
            tries: list[tuple[str, str | None, int]] = []
            if reach in ("user", "homeserver"):
                tries.append((own, None, 401))
            if reach == "user":
                tries.append((own, "nobodys-token", 401))
            if reach == "homeserver":
                tries.append((own, "ann-token", 403))
            if reach == "id":
                tries.append((foreign.json()["id"], None, 404))
            for id_, token, expected in tries:
                got = await send(id_, token=token)
                wrong += [f"{operation.name}: {token} got {got}"] if got != expected else []
            if reach == "homeserver" and await send(own, token=HS_TOKEN) in (401, 403):
                wrong.append(f"{operation.name}: the homeserver was refused")
        assert wrong == []
        assert (await served.client.get(f"{STABLE}/{own}", headers=bearer("bob-token"))).status_code == 404
        assert (await served.listed("bob-token"))["scheduled"] == []
        assert (await served.act(own, "cancel")).status_code == 200
