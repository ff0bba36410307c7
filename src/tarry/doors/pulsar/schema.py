"""Schemas of topics, as the protocol sees them: stored, found and checked behind this interface."""

from typing import Final, Protocol

from msgspec import Struct

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import text
from tarry.engine.answer import Answer

TYPE_NAMES: Final[dict[str, int]] = {
    "NONE": 0, "BYTES": 0, "STRING": 1, "JSON": 2, "PROTOBUF": 3, "AVRO": 4, "BOOLEAN": 5, "INT8": 6, "INT16": 7,
    "INT32": 8, "INT64": 9, "FLOAT": 10, "DOUBLE": 11, "DATE": 12, "TIME": 13, "TIMESTAMP": 14, "KEY_VALUE": 15,
    "INSTANT": 16, "LOCAL_DATE": 17, "LOCAL_TIME": 18, "LOCAL_DATE_TIME": 19, "PROTOBUF_NATIVE": 20, "EXTERNAL": 22,
}  # fmt: skip
"""Names of the schema types over HTTP, and their numbers in the binary protocol."""
_NAMES: Final = {number: name for name, number in reversed(TYPE_NAMES.items())}


class TopicSchema(Struct, frozen=True):
    """A schema of a topic's messages, as a client declares it."""

    name: str
    type: int
    """One of `wire.Schema.Type`."""
    data: bytes
    properties: dict[str, str] = {}


class Schemas(Protocol):
    """The schemas of every topic, in versions. A topic is named in full, and a partition by the topic that it is of."""

    def add(self, topic: str, schema: TopicSchema) -> Answer[int]:
        """The version of a producer's schema, which is new or there already; fails if it does not go with the others."""

    def find(self, topic: str, version: int | None) -> tuple[int, TopicSchema] | None:
        """A version of a topic's schema; None asks for the latest."""

    def check(self, topic: str, schema: TopicSchema) -> None:
        """Raise if a consumer's schema does not go with the topic's."""


def read_schema(given: wire.Schema) -> TopicSchema:
    """A schema as it came."""
    properties = {text(pair.key): text(pair.value) for pair in given.properties}
    return TopicSchema(text(given.name), given.type, given.schema_data, properties)


def wire_schema(schema: TopicSchema) -> wire.Schema:
    """A schema as it is sent."""
    return wire.Schema(
        name=schema.name,
        type=schema.type,  # type: ignore[arg-type]
        schema_data=schema.data,
        properties=[wire.KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )


def version_bytes(version: int) -> bytes:
    """A version as it is sent."""
    return version.to_bytes(8, "big")


def type_name(number: int) -> str:
    """The name of a schema's type over HTTP."""
    return _NAMES.get(number, str(number))
