"""The OpenAPI 3.1 document, made of the operations and of the types that decode and encode them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import UnsetType

from tarry.core.limits import MAX_NAME_BYTES
from tarry.core.messages.ids import ID_CHARS
from tarry.core.tenants.rights import REACHES
from tarry.doors.http.operations import OPERATIONS, Operation, Schema
from tarry.doors.http.problems import Problem

_PART: Final = "^[A-Za-z0-9_.=:-]+$"
_NAME: Final = r"^[^\x00-\x1f\x7f/]+$"
_PARAMETERS: Final = {
    "id": ("The id that scheduling gave; a credential", f"^[0-9a-f]{{{ID_CHARS}}}$", ID_CHARS),
    "tenant": ("The first part of a namespace", _PART, MAX_NAME_BYTES),
    "namespace": ("The second part of a namespace", _PART, MAX_NAME_BYTES),
    "topic": ("A topic's own name", _NAME, MAX_NAME_BYTES),
    "name": ("A subscription's name", _NAME, MAX_NAME_BYTES),
    "message": ("The name that a message was given", _NAME, MAX_NAME_BYTES),
    "entry_id": ("The id of an entry, as publishing gave it", "^[0-9]{1,16}$", 16),
    "batch": ("The name of a batch", _NAME, MAX_NAME_BYTES),
    "command": ("The id that asking for a bulk command gave", "^[0-9]{1,16}$", 16),
    "backup": ("The name that beginning a backup gave", "^[0-9a-f]{16}$", 16),
}
"""Parameters in paths: what they are, their pattern, and their longest."""

_TAGS: Final = {
    "Messages": ("Messages that wait, by id or by name, and what became of them", ("messages", "names")),
    "Batches": ("Millions of messages, staged as one batch and accepted or cancelled together", ("batches",)),
    "Repeats": ("Messages that are sent again and again, by an interval or by cron", ("repeats",)),
    "Pauses": ("Owners, topics and destinations whose messages wait until they are resumed", ("pauses",)),
    "Commands": (
        "Commands for all messages that a filter chooses: counted, confirmed, watched, stopped",
        ("commands",),
    ),
    "Topics": ("Tarry's own topics: entries, delayed entries and subscriptions", ("topics",)),
    "Policies": ("Limits and defaults of the broker, a namespace or a topic", ("policies",)),
    "Figures": ("What the dashboard shows", ("me", "overview", "upcoming", "slots", "backlogs", "status")),
    "Operation": (
        "Health, metrics, the ledger's bytes and backups",
        ("ledger", "backups", "healthz", "readyz", "metrics", "openapi.json"),
    ),
}
"""Groups of operations: the description of each, and the first segments of the paths (after `/v1`) that belong to it."""

_LINKS: Final = {
    "schedule": {
        name: {"operationId": name, "parameters": {"id": "$response.body#/id"}}
        for name in ("getMessage", "deleteMessage", "cancelMessage", "sendMessage", "restartMessage")
    },
    "subscribe": {
        name: {
            "operationId": name,
            "parameters": {
                part: f"$request.path.{part}" for part in ("tenant", "namespace", "topic", "name")
            },
        }
        for name in ("getSubscription", "receive", "acknowledge", "giveBack", "seek", "unsubscribe")
    },
}
"""Links from an answer to further operations, by the operation that gave it."""

_REFUSALS: Final = {
    400: "Something in the request is wrong; `field` names it",
    401: "No token, or one that is not known",
    403: "The token's role or namespaces do not allow it",
    404: "There is no such thing, or it is not the caller's to know of",
    408: "The body did not arrive in time",
    409: "The state of things does not allow it; `state` names it",
    413: "Larger than its limit",
    415: "The content type is not taken here",
    429: "A limit is reached; `Retry-After` says when to try again where that helps",
    503: "Cannot be taken now: starting, stopping, or no space on disk",
}

Components = dict[type, dict[str, Any]]


@functools.cache
def build_document(version: str, *, is_open: bool) -> bytes:
    """The whole document as JSON. Where access is open, a token may be sent and is not asked for."""
    types = sorted(
        {kind for operation in OPERATIONS for kind in _types(operation)}, key=lambda kind: kind.__name__
    )
    refs, components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
    for kind in _answers():
        if kind.__name__ in components:
            components[kind.__name__]["required"] = _always_there(kind)
    by_type: Components = dict(zip([*types, Problem], refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, by_type)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Tarry",
                "version": version,
                "description": "Holds messages until they are due and delivers each one: never early, never lost, on time.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                "contact": {"name": "The contributors to Tarry"},
            },
            "servers": [{"url": "/", "description": "The server that answers with this document"}],
            "tags": [{"name": tag, "description": text} for tag, (text, _) in _TAGS.items()],
            "security": [{"token": []}, {}] if is_open else [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _answers() -> set[type[msgspec.Struct]]:
    """Every struct of an answer, at any depth, which is none of a request."""
    answers = [
        kind for one in OPERATIONS for content in one.answers.values() if content for kind in content.values()
    ]
    requests = [kind for one in OPERATIONS if one.body for kind in one.body.values()]
    return _structs_in(answers) - _structs_in(requests)


def _structs_in(schemas: Sequence[Schema]) -> set[type[msgspec.Struct]]:
    found: set[type[msgspec.Struct]] = set()
    waiting: list[Any] = [kind for schema in schemas for kind in _flatten(schema)]
    while waiting:
        kind = waiting.pop()
        waiting.extend(get_args(kind))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found.add(kind)
            waiting.extend(field.type for field in msgspec.structs.fields(kind))
    return found


def _always_there(kind: type[msgspec.Struct]) -> list[str]:
    """The fields that an answer always has, also those that an older server would not have sent."""
    if kind.__struct_config__.omit_defaults:
        return [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
    return [
        field.encode_name for field in msgspec.structs.fields(kind) if UnsetType not in get_args(field.type)
    ]


def _types(operation: Operation) -> list[type]:
    contents = [*operation.answers.values(), operation.body]
    found = [_flatten(schema) for content in contents if content for schema in content.values()]
    return [kind for kinds in found for kind in kinds]


def _flatten(schema: Schema) -> list[type]:
    if isinstance(schema, type):
        return [schema]
    return [kind for kind in schema.get("anyOf", ()) if isinstance(kind, type)]


def _describe(operation: Operation, by_type: Components) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [_tag(operation.path)],
        "parameters": _parameters(operation),
        "responses": {
            **{
                str(status): _answer(content, by_type) | _links(operation)
                for status, content in operation.answers.items()
            },
            **{str(status): _refusal(status, by_type) for status in _refusals(operation)},
        },
    }
    right = operation.right
    if right.reach == "open":
        described["security"] = []
        described["description"] = "Needs no token."
    else:
        roles = " or ".join(dict.fromkeys((*right.roles, "admin"))) if right.roles else "any"
        described["description"] = f"Role: {roles}. Reach: {REACHES[right.reach]}."
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": _content(operation.body, by_type),
        }
    return described


def _tag(path: str) -> str:
    segment = path.removeprefix("/v1").split("/")[1]
    return next(tag for tag, (_, segments) in _TAGS.items() if segment in segments)


def _links(operation: Operation) -> dict[str, Any]:
    return {"links": _LINKS[operation.name]} if operation.name in _LINKS else {}


def _refusals(operation: Operation) -> list[int]:
    usual = () if operation.right.reach == "open" else (400, 401, 403, 503)
    return sorted({*usual, *operation.refusals} - set(operation.answers))


def _refusal(status: int, by_type: Components) -> dict[str, Any]:
    return {
        "description": _REFUSALS[status],
        "content": {"application/problem+json": {"schema": by_type[Problem]}},
    }


def _answer(content: Mapping[str, Schema] | None, by_type: Components) -> dict[str, Any]:
    if content is None:
        return {"description": "Done"}
    return {"description": "The answer", "content": _content(content, by_type)}


def _content(content: Mapping[str, Schema], by_type: Components) -> dict[str, Any]:
    return {name: {"schema": _schema(schema, by_type)} for name, schema in content.items()}


def _schema(schema: Schema, by_type: Components) -> Mapping[str, Any]:
    if isinstance(schema, type):
        return by_type[schema]
    if "anyOf" in schema:
        return {"anyOf": [by_type[kind] for kind in schema["anyOf"]]}
    return schema


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name, "in": "path", "required": True, "description": text,
            "schema": {"type": "string", "minLength": 1, "maxLength": longest, "pattern": pattern},
        }
        for name, (text, pattern, longest) in _PARAMETERS.items()
        if "{" + name + "}" in operation.path
    ]  # fmt: skip
    if operation.query is not None:
        schema = msgspec.json.schema(operation.query)["$defs"][operation.query.__name__]
        for name, described in schema["properties"].items():
            found.append({"name": name, "in": "query", "required": False, "schema": _without_null(described)})
    if operation.idempotency_key:
        found.append(
            {
                "name": "Idempotency-Key", "in": "header", "required": False,
                "description": "Makes a repeated request safe: it gets the first answer again",
                "schema": {
                    "type": "string", "minLength": 1, "maxLength": operation.idempotency_key, "pattern": "^[ -~]+$",
                },
            }
        )  # fmt: skip
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a query is there or not; it has no null."""
    kept = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    if not kept:
        return {name: value for name, value in schema.items() if name != "default" or value is not None}
    return kept[0] if len(kept) == 1 else {"anyOf": kept}
