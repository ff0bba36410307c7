"""Schemas of topics, administered over HTTP: versions shown, added, compared and removed."""

from typing import Any, Final

from msgspec import Struct

from tarry.core.names import unpartitioned
from tarry.core.tenants.rights import GOVERN, PRODUCE, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.doors.pulsar.errors import PulsarRefusal
from tarry.doors.pulsar.schema import TYPE_NAMES, TopicSchema, type_name
from tarry.doors.pulsar.stored_schemas import StoredSchemas
from tarry.http.response import Response


class PostedSchema(Struct, frozen=True, kw_only=True):
    """A schema as it is posted."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


async def latest(call: AdminCall) -> Response:
    """The newest version."""
    return answer(_found(call, None))


async def one(call: AdminCall) -> Response:
    """A version by its number."""
    return answer(_found(call, call.number("version")))


async def all_(call: AdminCall) -> Response:
    """Every version."""
    topic, schemas = _topic(call), StoredSchemas(call.engine)
    count = len(schemas.versions(topic))
    return answer({"getSchemaResponses": [_shown(schemas, topic, number) for number in range(count)]})


async def post(call: AdminCall) -> Response:
    """Add a version."""
    topic = _topic(call)
    return answer({"version": await StoredSchemas(call.engine).add(topic, await _given(call))})


async def delete(call: AdminCall) -> Response:
    """Remove every version."""
    return answer({"version": await StoredSchemas(call.engine).remove(_topic(call))})


async def compatibility(call: AdminCall) -> Response:
    """Whether a schema could be added."""
    topic, schema = _topic(call), await _given(call)
    shown = {"compatibility": True, "schemaCompatibilityStrategy": call.broker.rules.strategy(topic)}
    try:
        StoredSchemas(call.engine).check_new(topic, schema)
    except PulsarRefusal:
        shown["compatibility"] = False
    return answer(shown)


async def version_of(call: AdminCall) -> Response:
    """Which version a schema is; -1 if it is none."""
    topic, schema = _topic(call), await _given(call)
    versions = [version.schema for version in StoredSchemas(call.engine).versions(topic)]
    return answer({"version": versions.index(schema) if schema in versions else -1})


def _topic(call: AdminCall) -> str:
    return unpartitioned(call.named_topic().full)


def _found(call: AdminCall, version: int | None) -> dict[str, Any]:
    topic, schemas = _topic(call), StoredSchemas(call.engine)
    found = schemas.find(topic, version)
    if found is None:
        raise RestError(404, "Schema not found")
    return _shown(schemas, topic, found[0])


def _shown(schemas: StoredSchemas, topic: str, number: int) -> dict[str, Any]:
    version = schemas.versions(topic)[number]
    return {
        "version": number,
        "type": type_name(version.schema.type),
        "timestamp": version.added_at_ms,
        "data": version.schema.data.decode("utf-8", "replace"),
        "properties": version.schema.properties,
    }


async def _given(call: AdminCall) -> TopicSchema:
    payload = call.read(PostedSchema)
    number = TYPE_NAMES.get(payload.type.upper())
    if number is None:
        raise RestError(422, f"{payload.type} is not a type of schema")
    return TopicSchema("", number, payload.schema.encode(), payload.properties)


_ONE: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

OPERATIONS: Operations = (
    AdminOperation("GET", _ONE + "/schema", USE, latest),
    AdminOperation("POST", _ONE + "/schema", PRODUCE, post),
    AdminOperation("DELETE", _ONE + "/schema", GOVERN, delete),
    AdminOperation("GET", _ONE + "/schema/{version}", USE, one),
    AdminOperation("GET", _ONE + "/schemas", USE, all_),
    AdminOperation("POST", _ONE + "/compatibility", USE, compatibility),
    AdminOperation("POST", _ONE + "/version", USE, version_of),
)
