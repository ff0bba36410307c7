"""The OpenAPI 3.1 document. Bodies and answers come from the types in `shapes`; only the paths are told here.

`OPERATIONS` has one row for each method of each path; a test compares it with the routes.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tarry.core.ids import ID_CHARS
from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES, MAX_NAME_BYTES
from tarry.core.policy import Effective, Policy
from tarry.doors.http import shapes
from tarry.doors.http.batches import MAX_BATCH_KEY_BYTES
from tarry.doors.http.problems import Problem
from tarry.engine.topics import TopicStats

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
PROMETHEUS: Final = "text/plain"

_TOPIC: Final = "/v1/topics/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscriptions/{name}"
_ANY_OBJECT: Final = {"type": "object"}
_LINES: Final = {"type": "string", "description": "One JSON object in each line"}
_BYTES: Final[dict[str, Any]] = {}

Schema = type | Mapping[str, Any]


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    name: str
    summary: str
    role: str | None
    """The role that is needed besides admin; None for no token at all."""
    answers: Mapping[int, Mapping[str, Schema] | None]
    """Status -> content type -> schema; None for an empty body."""
    body: Mapping[str, Schema] | None = None
    body_required: bool = True
    query: type[msgspec.Struct] | None = None
    refusals: tuple[int, ...] = ()
    """Besides the usual ones: 400, 401, 403, and 503 while the server starts or stops."""
    idempotency_key: int = 0
    """The longest that is taken; 0 where none is."""


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST", "/v1/messages", "schedule", "Schedule a message", "produce",
        {201: {JSON: shapes.ScheduledAnswer}, 200: {JSON: shapes.ScheduledAnswer}},
        {JSON: shapes.ScheduleRequest}, refusals=(408, 409, 413, 415, 429), idempotency_key=MAX_IDEMPOTENCY_KEY_BYTES,
    ),
    Operation(
        "GET", "/v1/messages", "listMessages", "List messages", "admin",
        {200: {JSON: shapes.MessagesAnswer}}, query=shapes.ListQuery,
    ),
    Operation(
        "POST", "/v1/messages/batch", "scheduleBatch",
        "Schedule many messages; each line or row has its own answer, in order", "produce",
        {200: {NDJSON: _LINES, ARROW: _BYTES}}, {NDJSON: _LINES, ARROW: _BYTES},
        query=shapes.BatchDefaults, refusals=(408, 413, 415, 429), idempotency_key=MAX_BATCH_KEY_BYTES,
    ),
    Operation(
        "GET", "/v1/messages/{id}", "getMessage", "Look at a message", "produce",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404,),
    ),
    Operation(
        "DELETE", "/v1/messages/{id}", "deleteMessage", "Cancel a message", "produce",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", "/v1/messages/{id}/cancel", "cancelMessage", "Cancel a message", "produce",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", "/v1/messages/{id}/send", "sendMessage", "Make a message due now", "produce",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "POST", "/v1/messages/{id}/restart", "restartMessage",
        "Start its original delay again, or give it a new time", "produce",
        {200: {JSON: shapes.MessageAnswer}}, {JSON: shapes.RestartRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415, 429),
    ),
    Operation(
        "GET", "/v1/topics", "listTopics", "List topics", "admin",
        {200: {JSON: shapes.TopicsAnswer}}, query=shapes.TopicsQuery,
    ),
    Operation("PUT", _TOPIC, "createTopic", "Make a topic; one that is there stays", "admin", {204: None}),
    Operation(
        "GET", _TOPIC, "getTopic", "Figures of a topic", "produce or consume",
        {200: {JSON: TopicStats}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _TOPIC, "deleteTopic", "Remove a topic with its entries and subscriptions", "admin",
        {204: None}, refusals=(404,),
    ),
    Operation(
        "POST", _TOPIC + "/messages", "publish", "Publish one entry, or many together as NDJSON", "produce",
        {201: {JSON: shapes.PublishAnswer}}, {JSON: shapes.PublishRequest, NDJSON: _LINES},
        refusals=(408, 409, 413, 415, 429),
    ),
    Operation(
        "PUT", _SUBSCRIPTION, "subscribe", "Make a subscription, or find the one that is there", "consume",
        {200: {JSON: _ANY_OBJECT}}, {JSON: shapes.SubscribeRequest}, body_required=False,
        refusals=(408, 409, 413, 415),
    ),
    Operation(
        "GET", _SUBSCRIPTION, "getSubscription", "Figures of a subscription", "consume",
        {200: {JSON: _ANY_OBJECT}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _SUBSCRIPTION, "unsubscribe", "End a subscription", "consume", {204: None}, refusals=(404,)
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/receive", "receive", "Receive entries, waiting for the first one", "consume",
        {200: {JSON: shapes.ReceiveAnswer}}, {JSON: shapes.ReceiveRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415),
    ),
    Operation(
        "GET", _SUBSCRIPTION + "/events", "events", "Receive entries as server-sent events", "consume",
        {200: {EVENTS: {"type": "string"}}}, query=shapes.EventsQuery, refusals=(404, 409),
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/ack", "acknowledge", "Be done with entries", "consume",
        {204: None}, {JSON: shapes.AckRequest}, refusals=(404, 408, 413, 415),
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/nack", "giveBack", "Give entries back to come again now", "consume",
        {204: None}, {JSON: shapes.NackRequest}, body_required=False, refusals=(404, 408, 413, 415),
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/seek", "seek", "Go on reading somewhere else", "consume",
        {204: None}, {JSON: shapes.SeekRequest}, refusals=(404, 408, 409, 413, 415),
    ),
    *(
        operation
        for path, place in (
            ("/v1/policies/broker", "Broker"),
            ("/v1/policies/namespaces/{tenant}/{namespace}", "Namespace"),
            ("/v1/policies/topics/{tenant}/{namespace}/{topic}", "Topic"),
        )
        for operation in (
            Operation(
                "GET", path, f"get{place}Policy", f"The policy of the {place.lower()}", "admin",
                {200: {JSON: {"anyOf": [Policy, Effective]}}}, query=shapes.PolicyQuery, refusals=(404,),
            ),
            Operation(
                "PUT", path, f"set{place}Policy", f"Set the policy of the {place.lower()}", "admin",
                {200: {JSON: Policy}}, {JSON: Policy}, refusals=(408, 413, 415),
            ),
            Operation(
                "DELETE", path, f"remove{place}Policy", f"Remove the policy of the {place.lower()}", "admin",
                {204: None},
            ),
        )
    ),
    Operation(
        "GET", "/v1/status", "status", "Figures of the server", "admin", {200: {JSON: shapes.StatusAnswer}}
    ),
    Operation("GET", "/healthz", "healthz", "Whether the process lives", None, {200: {JSON: _ANY_OBJECT}}),
    Operation(
        "GET", "/readyz", "readyz", "Whether messages are accepted and sent, and if not, why", None,
        {200: {JSON: shapes.ReadyAnswer}, 503: {JSON: shapes.ReadyAnswer}},
    ),
    Operation("GET", "/metrics", "metrics", "Prometheus metrics", "admin", {200: {PROMETHEUS: {"type": "string"}}}),
    Operation("GET", "/openapi.json", "openapi", "This document", None, {200: {JSON: _ANY_OBJECT}}),
)  # fmt: skip

_PART: Final = "^[A-Za-z0-9_.=:-]+$"
_NAME: Final = r"^[^\x00-\x1f\x7f/]+$"
_PARAMETERS: Final = {
    "id": ("The id that scheduling gave; a credential", f"^[A-Za-z0-9_-]{{{ID_CHARS}}}$", ID_CHARS),
    "tenant": ("The first part of a namespace", _PART, MAX_NAME_BYTES),
    "namespace": ("The second part of a namespace", _PART, MAX_NAME_BYTES),
    "topic": ("A topic's own name", _NAME, MAX_NAME_BYTES),
    "name": ("A subscription's name", _NAME, MAX_NAME_BYTES),
}
"""Parameters in paths: what they are, their pattern, and their longest."""

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
"""What can be done with an answer, by the operation that gave it."""

_REFUSALS: Final = {
    400: "Something in the request is wrong; `field` names it",
    401: "No token, or one that is not known",
    403: "The token's role or namespaces do not allow it",
    404: "There is no such thing, or it is not the caller's to know of",
    408: "The body did not arrive in time",
    409: "The state of things does not allow it; `state` names it",
    413: "Larger than its limit",
    415: "The content type is none that is taken here",
    429: "A limit is reached; `Retry-After` says when to try again where that helps",
    503: "Cannot be taken now: starting, stopping, or no room on disk",
}

Components = dict[type, dict[str, Any]]


def build_document(version: str, *, is_open: bool) -> bytes:
    """The whole document as JSON. Where access is open, a token may be sent and is not asked for."""
    types = sorted(
        {kind for operation in OPERATIONS for kind in _types(operation)}, key=lambda kind: kind.__name__
    )
    refs, components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
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
            },
            "security": [{"token": []}, {}] if is_open else [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


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
        "parameters": _parameters(operation),
        "responses": {
            **{
                str(status): _answer(content, by_type) | _links(operation)
                for status, content in operation.answers.items()
            },
            **{str(status): _refusal(status, by_type) for status in _refusals(operation)},
        },
    }
    if operation.role is None:
        described["security"] = []
    else:
        described["description"] = f"Needs the role {operation.role}" + (
            "." if operation.role == "admin" else " or admin, for this namespace."
        )
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": _content(operation.body, by_type),
        }
    return described


def _links(operation: Operation) -> dict[str, Any]:
    return {"links": _LINKS[operation.name]} if operation.name in _LINKS else {}


def _refusals(operation: Operation) -> list[int]:
    usual = () if operation.role is None else (400, 401, 403, 503)
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
