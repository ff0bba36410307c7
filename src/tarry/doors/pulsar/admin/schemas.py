"""Schemas of topics: kept in the catalogue, and administered over HTTP.

The versions of a topic's schema are one value in the catalogue: a topic has few. All versions have the type of the first;
whether the fields of two records go together is left to their readers.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from tarry.core.names import unpartitioned
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.admin.call import Call, Routes, answer
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.doors.pulsar.errors import Code, Refused
from tarry.doors.pulsar.schema import Schema
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.engine import Engine

Type = wire.Schema.Type

TYPE_NAMES: Final[dict[str, int]] = {
    "NONE": 0, "BYTES": 0, "STRING": 1, "JSON": 2, "PROTOBUF": 3, "AVRO": 4, "BOOLEAN": 5, "INT8": 6, "INT16": 7,
    "INT32": 8, "INT64": 9, "FLOAT": 10, "DOUBLE": 11, "DATE": 12, "TIME": 13, "TIMESTAMP": 14, "KEY_VALUE": 15,
    "INSTANT": 16, "LOCAL_DATE": 17, "LOCAL_TIME": 18, "LOCAL_DATE_TIME": 19, "PROTOBUF_NATIVE": 20, "EXTERNAL": 22,
}  # fmt: skip
"""What the types are called over HTTP, and their numbers in the binary protocol."""
_NAMES: Final = {number: name for name, number in reversed(TYPE_NAMES.items())}


class Version(Struct, frozen=True, array_like=True):
    """One version as it is kept."""

    schema: Schema
    added_at_ms: int


class StoredSchemas:
    """See `tarry.doors.pulsar.schema.Schemas`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def versions(self, topic: str) -> list[Version]:
        """All versions of a topic's schema, the first one first."""
        return msgspec.json.decode(self._engine.catalogue.get("schema", topic) or b"[]", type=list[Version])

    def add(self, topic: str, schema: Schema) -> Answer[int]:
        """See `Schemas`."""
        versions = self.versions(topic)
        for number, version in enumerate(versions):
            if version.schema == schema:
                return settled(number)
        try:
            self.check(topic, schema)
        except Refused as refused:
            return failed(refused)
        versions.append(Version(schema, self._engine.clock.now_ms()))
        entered = self._engine.catalogue.enter("schema", topic, msgspec.json.encode(versions))
        return entered.turned(lambda _: len(versions) - 1)

    def find(self, topic: str, version: int | None) -> tuple[int, Schema] | None:
        """See `Schemas`."""
        versions = self.versions(topic)
        at = len(versions) - 1 if version is None else version
        return (at, versions[at].schema) if 0 <= at < len(versions) else None

    def check(self, topic: str, schema: Schema) -> None:
        """See `Schemas`."""
        versions = self.versions(topic)
        if versions and versions[-1].schema.type != schema.type:
            raise Refused(
                Code.IncompatibleSchema,
                f"Incompatible schema: exists schema type {_name(versions[-1].schema.type)},"
                f" new schema type {_name(schema.type)}",
            )


class Payload(Struct, frozen=True, kw_only=True):
    """A schema as it is posted."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


async def latest(call: Call) -> Response:
    """The newest version."""
    return answer(_found(call, None))


async def one(call: Call) -> Response:
    """A version by its number."""
    return answer(_found(call, call.number("version")))


async def all_(call: Call) -> Response:
    """Every version."""
    topic, schemas = _topic(call), StoredSchemas(call.engine)
    count = len(schemas.versions(topic))
    return answer({"getSchemaResponses": [_shown(schemas, topic, number) for number in range(count)]})


async def post(call: Call) -> Response:
    """Add a version."""
    topic = _topic(call)
    return answer({"version": await StoredSchemas(call.engine).add(topic, await _given(call))})


async def delete(call: Call) -> Response:
    """Remove every version."""
    topic = _topic(call)
    count = len(StoredSchemas(call.engine).versions(topic))
    if count:
        await call.engine.catalogue.enter("schema", topic, None)
    return answer({"version": count})


async def compatibility(call: Call) -> Response:
    """Whether a schema could be added."""
    topic, schema = _topic(call), await _given(call)
    try:
        StoredSchemas(call.engine).check(topic, schema)
    except Refused:
        return answer({"compatibility": False, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"})
    return answer({"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"})


async def version_of(call: Call) -> Response:
    """Which version a schema is; -1 if it is none."""
    topic, schema = _topic(call), await _given(call)
    versions = [version.schema for version in StoredSchemas(call.engine).versions(topic)]
    return answer({"version": versions.index(schema) if schema in versions else -1})


def _topic(call: Call) -> str:
    return unpartitioned(call.named_topic().full)


def _found(call: Call, version: int | None) -> dict[str, Any]:
    topic, schemas = _topic(call), StoredSchemas(call.engine)
    found = schemas.find(topic, version)
    if found is None:
        raise RestError(404, "Schema not found")
    return _shown(schemas, topic, found[0])


def _shown(schemas: StoredSchemas, topic: str, number: int) -> dict[str, Any]:
    version = schemas.versions(topic)[number]
    return {
        "version": number,
        "type": _name(version.schema.type),
        "timestamp": version.added_at_ms,
        "data": version.schema.data.decode("utf-8", "replace"),
        "properties": version.schema.properties,
    }


async def _given(call: Call) -> Schema:
    payload = await call.read(Payload)
    number = TYPE_NAMES.get(payload.type.upper())
    if number is None:
        raise RestError(422, f"{payload.type} is not a type of schema")
    return Schema("", number, payload.schema.encode(), payload.properties)


def _name(number: int) -> str:
    return _NAMES.get(number, str(number))


_ONE: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES: Routes = {
    _ONE + "/schema": {"GET": latest, "POST": post, "DELETE": delete},
    _ONE + "/schema/{version}": {"GET": one},
    _ONE + "/schemas": {"GET": all_},
    _ONE + "/compatibility": {"POST": compatibility},
    _ONE + "/version": {"POST": version_of},
}
