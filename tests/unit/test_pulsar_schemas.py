"""Schemas of topics: which go together by the strategy that is set, how many there may be, and what a new one costs."""

import json
from typing import Any

import msgspec
import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.schema import TopicSchema
from tarry.doors.pulsar.stored_schemas import MAX_SCHEMA_BYTES, MAX_VERSIONS, StoredSchemas, Version
from tests.unit.pulsar_admin_kit import DEFAULT, ORDERS, TOPIC, Admin
from tests.unit.pulsar_kit import Client, Desk, Type

Kind = wire.Schema
SCHEMAS = "/admin/v2/schemas/public/default/orders"
STRATEGY = DEFAULT + "/schemaCompatibilityStrategy"


def text(*fields: str, name: str = "R") -> bytes:
    """A record; a field is `name:type`, and with a `?` it may be left out."""
    parts = [[*one.rstrip("?").split(":"), one.endswith("?")] for one in fields]
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "fields": [
                {"name": name, "type": ["null", type_], "default": None}
                if optional
                else {"name": name, "type": type_}
                for name, type_, optional in parts
            ],
        }
    ).encode()


def schema(data: bytes, type_: Any = Kind.Json) -> wire.Schema:
    return wire.Schema(name="s", type=type_, schema_data=data)


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def client(admin: Admin) -> Client:
    desk = Desk(bench=admin.bench)
    desk.broker = admin.broker
    return desk.client()


def produced(client: Client, number: int, data: bytes, type_: Any = Kind.Json) -> int | None:
    """The error with which a producer is refused for its schema; None if it is let in."""
    answer = client.produce(number, topic=TOPIC, schema=schema(data, type_))
    return answer.error.error if answer.type == Type.ERROR else None


A, AB, AB_OPTIONAL, A_TEXT = text("a:int"), text("a:int", "b:int"), text("a:int", "b:int?"), text("a:string")


@pytest.mark.parametrize(
    ("strategy", "taken", "refused"),
    [
        (None, [AB_OPTIONAL], [AB, A_TEXT]),
        ("FULL", [AB_OPTIONAL], [AB, A_TEXT]),
        ("FORWARD", [AB_OPTIONAL, AB], [A_TEXT]),
        ("BACKWARD", [AB_OPTIONAL, text()], [A_TEXT]),
        ("ALWAYS_COMPATIBLE", [AB, A_TEXT], []),
        ("ALWAYS_INCOMPATIBLE", [], [AB_OPTIONAL]),
    ],
)
@pytest.mark.parametrize("type_", [Kind.Json, Kind.Avro])
async def test_producers_schemas_go_together_by_the_strategy(
    admin: Admin, client: Client, strategy: str | None, taken: list[bytes], refused: list[bytes], type_: Any
) -> None:
    if strategy is not None:
        await admin.do("PUT", STRATEGY, strategy)
        assert await admin.get(STRATEGY) == strategy
    assert produced(client, 1, A, type_) is None
    for number, data in enumerate(refused, 10):
        assert produced(client, number, data, type_) == Code.IncompatibleSchema
    for number, data in enumerate(taken, 20):
        assert produced(client, number, data, type_) is None
        # One that is known is taken again, whatever the strategy says by now.
        assert produced(client, number + 100, A, type_) is None


async def test_with_a_transitive_strategy_all_versions_count(admin: Admin, client: Client) -> None:
    await admin.do("PUT", STRATEGY, "ALWAYS_COMPATIBLE")
    for number, data in enumerate((A_TEXT, A)):
        assert produced(client, number, data) is None
    await admin.do("PUT", STRATEGY, "FULL")
    assert produced(client, 2, AB_OPTIONAL) is None
    await admin.do("PUT", STRATEGY, "FULL_TRANSITIVE")
    assert produced(client, 3, text("a:int", "c:int?")) == Code.IncompatibleSchema


async def test_consumers_have_to_be_able_to_read_the_topic(client: Client) -> None:
    produced(client, 1, A)
    for number, (data, code) in enumerate(
        ((A_TEXT, Code.IncompatibleSchema), (AB, Code.IncompatibleSchema), (A, None))
    ):
        answer = client.subscribe(number, topic=TOPIC, permits=0, schema=schema(data))
        assert (answer.error.error if answer.type == Type.ERROR else None) == code
    answer = client.subscribe(9, topic=TOPIC, permits=0, schema=schema(b"", Kind.String))
    assert answer.error.error == Code.IncompatibleSchema


async def test_keys_and_values_are_compared_each(client: Client) -> None:
    def pair(key: bytes, value: bytes) -> wire.Schema:
        data = b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))
        kinds = [wire.KeyValue(key=f"{half}.schema.type", value="JSON") for half in ("key", "value")]
        return wire.Schema(name="s", type=Kind.KeyValuePair, schema_data=data, properties=kinds)

    for number, (given, code) in enumerate(
        ((pair(A, A), None), (pair(A, A_TEXT), Code.IncompatibleSchema), (pair(AB_OPTIONAL, A), None))
    ):
        answer = client.produce(number, topic=TOPIC, schema=given)
        assert (answer.error.error if answer.type == Type.ERROR else None) == code


async def test_the_administration_compares_without_adding(admin: Admin, client: Client) -> None:
    produced(client, 1, A)
    for data, good in ((AB, False), (AB_OPTIONAL, True), (A, True)):
        body = {"type": "JSON", "schema": data.decode()}
        shown = (await admin.request("POST", SCHEMAS + "/compatibility", body)).json()
        assert shown == {"compatibility": good, "schemaCompatibilityStrategy": "FULL"}
    assert len((await admin.get(SCHEMAS + "/schemas"))["getSchemaResponses"]) == 1
    # A topic's strategy stands over its namespace's.
    await admin.do("PUT", ORDERS + "/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert produced(client, 2, A_TEXT) is None
    assert (await admin.refused("PUT", STRATEGY, "SOMETIMES"))[0] == 400


# Bounds


def add(admin: Admin, data: bytes) -> int:
    return admin.bench.ask(StoredSchemas(admin.engine).add(TOPIC, TopicSchema("s", Kind.String, data)))


async def test_a_new_version_costs_its_own_size(admin: Admin) -> None:
    sizes = []
    for number in range(64):
        before = sum(len(value) for value in catalogued(admin))
        add(admin, b"%06d" % number * 100)
        sizes.append(sum(len(value) for value in catalogued(admin)) - before)
    # Each record holds one version: the last is no larger than the first.
    records = [len(value) for value in catalogued(admin)]
    assert max(records) < 2 * min(records)
    assert sizes[-1] == max(records)
    admin.reopen()
    assert [version.schema.data for version in StoredSchemas(admin.engine).versions(TOPIC)] == [
        b"%06d" % number * 100 for number in range(64)
    ]


def catalogued(admin: Admin) -> list[bytes]:
    found = [admin.engine.catalogue.get("schema", f"{TOPIC}/{number}") for number in range(100)]
    return [value for value in found if value is not None]


async def test_versions_and_sizes_are_bounded(admin: Admin, client: Client) -> None:
    await admin.do("PUT", STRATEGY, "ALWAYS_COMPATIBLE")
    for number in range(MAX_VERSIONS):
        assert add(admin, b"%d" % number) == number
    refused = client.produce(topic=TOPIC, schema=schema(b"one more", Kind.String))
    assert refused.error.error == Code.NotAllowedError
    assert f"{MAX_VERSIONS} versions" in refused.error.message
    # Those that are there are served, and after a deletion there is room again.
    assert add(admin, b"7") == 7
    assert (await admin.request("DELETE", SCHEMAS + "/schema")).json() == {"version": MAX_VERSIONS}
    assert await admin.refused("GET", SCHEMAS + "/schema") == (404, "Schema not found")
    assert add(admin, b"one more") == 0
    large = client.produce(topic=TOPIC, schema=schema(b"x" * (MAX_SCHEMA_BYTES + 1), Kind.String))
    assert large.error.error == Code.NotAllowedError


async def test_versions_of_earlier_servers_are_read_and_go_on(admin: Admin) -> None:
    """They were one value under the topic's name."""
    old = [Version(TopicSchema("s", Kind.String, b"%d" % number), 5) for number in range(2)]
    admin.bench.ask(admin.engine.catalogue.enter("schema", TOPIC, msgspec.json.encode(old)))
    assert add(admin, b"1") == 1
    assert add(admin, b"2") == 2
    admin.reopen()
    assert [version.schema.data for version in StoredSchemas(admin.engine).versions(TOPIC)] == [
        b"0",
        b"1",
        b"2",
    ]
    assert (await admin.request("DELETE", SCHEMAS + "/schema")).json() == {"version": 3}
    assert StoredSchemas(admin.engine).versions(TOPIC) == []


async def test_schemas_go_with_their_topic(admin: Admin) -> None:
    await admin.do("PUT", ORDERS)
    add(admin, b"x")
    await admin.do("DELETE", ORDERS)
    assert StoredSchemas(admin.engine).versions(TOPIC) == []
