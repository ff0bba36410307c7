"""Every refusal of the door, for both protocols: one table.

HTTP answers with a status and `{"errorCode", "message", "details"}`; gRPC with a status whose details hold the same
ErrorInfo and ResourceInfo. What the engine or a broker says no to becomes a row of this table as well.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from tarry.core.errors import (
    DelayTooLong,
    Forbidden,
    Invalid,
    RateLimited,
    TarryError,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.tenants.access import Caller
from tarry.outlets.dapr.times import FIELD as SCHEDULED

DOMAIN: Final = "dapr.io"


class RefusalKind(Struct, frozen=True):
    """A row: how one refusal is said in each protocol."""

    http: int
    grpc: str
    """The name of the gRPC status code."""
    code: str
    """HTTP's `errorCode`."""
    reason: str
    """ErrorInfo's `reason`."""
    names_resource: bool = True
    """Whether the details name the component, in a ResourceInfo."""


NAME_EMPTY: Final = RefusalKind(404, "INVALID_ARGUMENT", "ERR_PUBSUB_EMPTY", "DAPR_PUBSUB_NAME_EMPTY")
NOT_FOUND: Final = RefusalKind(
    404, "INVALID_ARGUMENT", "ERR_PUBSUB_NOT_FOUND", "DAPR_PUBSUB_NOT_FOUND", names_resource=False
)
TOPIC_EMPTY: Final = RefusalKind(
    404, "INVALID_ARGUMENT", "ERR_TOPIC_NAME_EMPTY", "DAPR_PUBSUB_TOPIC_NAME_EMPTY"
)
METADATA: Final = RefusalKind(
    400, "INVALID_ARGUMENT", "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"
)
EVENTS: Final = RefusalKind(400, "INVALID_ARGUMENT", "ERR_PUBSUB_EVENTS_SER", "DAPR_PUBSUB_MARSHAL_EVENTS")
ENVELOPE: Final = RefusalKind(
    400, "INVALID_ARGUMENT", "ERR_PUBSUB_EVENTS_SER", "DAPR_PUBSUB_MARSHAL_ENVELOPE"
)
REQUEST: Final = RefusalKind(400, "INVALID_ARGUMENT", "ERR_PUBSUB_EVENTS_SER", "DAPR_PUBSUB_UNMARSHAL_EVENTS")
FORBIDDEN: Final = RefusalKind(403, "PERMISSION_DENIED", "ERR_PUBSUB_FORBIDDEN", "DAPR_PUBSUB_FORBIDDEN")
CLOUD_EVENT: Final = RefusalKind(
    500, "INVALID_ARGUMENT", "ERR_PUBSUB_CLOUD_EVENTS_SER", "DAPR_PUBSUB_CLOUD_EVENT_CREATION"
)
PUBLISH: Final = RefusalKind(500, "INTERNAL", "ERR_PUBSUB_PUBLISH_MESSAGE", "DAPR_PUBSUB_PUBLISH_MESSAGE")
STREAM: Final = RefusalKind(
    400, "INVALID_ARGUMENT", "ERR_PUBSUB_REQUEST", "DAPR_PUBSUB_STREAM", names_resource=False
)
# What a real sidecar cannot say, because it has neither a ledger nor this feature.
DELAYED_OFF: Final = RefusalKind(
    400,
    "FAILED_PRECONDITION",
    "ERR_PUBSUB_DELAYED_MESSAGING_DISABLED",
    "DAPR_PUBSUB_DELAYED_MESSAGING_DISABLED",
)
TOO_LARGE: Final = RefusalKind(413, "RESOURCE_EXHAUSTED", PUBLISH.code, PUBLISH.reason)
TOO_MANY: Final = RefusalKind(429, "RESOURCE_EXHAUSTED", PUBLISH.code, PUBLISH.reason)
TOO_MANY_CALLS: Final = RefusalKind(
    429, "RESOURCE_EXHAUSTED", "ERR_TOO_MANY_REQUESTS", "DAPR_API_TOKEN_RATE", names_resource=False
)
TOO_MANY_AT_ONCE: Final = RefusalKind(
    429, "RESOURCE_EXHAUSTED", "ERR_TOO_MANY_REQUESTS", "DAPR_API_TOKEN_SHARE", names_resource=False
)
NOT_NOW: Final = RefusalKind(503, "UNAVAILABLE", PUBLISH.code, PUBLISH.reason)
TOKEN: Final = RefusalKind(401, "UNAUTHENTICATED", "ERR_UNAUTHORIZED", "DAPR_API_TOKEN")
UNKNOWN_METHOD: Final = RefusalKind(404, "UNIMPLEMENTED", "ERR_NOT_FOUND", "DAPR_HTTP_METHOD_NOT_FOUND")
NOT_SERVED: Final = RefusalKind(501, "UNIMPLEMENTED", "ERR_NOT_IMPLEMENTED", "DAPR_NOT_IMPLEMENTED")
NOT_READY: Final = RefusalKind(500, "UNAVAILABLE", "ERR_HEALTH_NOT_READY", "DAPR_HEALTH_NOT_READY")
OUTBOUND_NOT_READY: Final = RefusalKind(
    500, "UNAVAILABLE", "ERR_OUTBOUND_HEALTH_NOT_READY", "DAPR_OUTBOUND_HEALTH_NOT_READY"
)
OTHER_APP: Final = RefusalKind(
    500, "UNAVAILABLE", "ERR_HEALTH_APPID_NOT_MATCH", "DAPR_HEALTH_APPID_NOT_MATCH"
)
SIDECAR: Final = RefusalKind(502, "UNAVAILABLE", "ERR_SIDECAR", "DAPR_SIDECAR_UNREACHABLE")

ALL: Final = (
    NAME_EMPTY, NOT_FOUND, TOPIC_EMPTY, METADATA, EVENTS, ENVELOPE, REQUEST, FORBIDDEN, CLOUD_EVENT, PUBLISH, STREAM,
    DELAYED_OFF, TOO_LARGE, TOO_MANY, TOO_MANY_CALLS, TOO_MANY_AT_ONCE, NOT_NOW, TOKEN, UNKNOWN_METHOD, NOT_SERVED, NOT_READY,
    OUTBOUND_NOT_READY, OTHER_APP, SIDECAR,
)  # fmt: skip

_BY_ERROR: Final[tuple[tuple[type[TarryError], RefusalKind], ...]] = (
    (TooLarge, TOO_LARGE),
    (DelayTooLong, METADATA),
    (Invalid, METADATA),
    (TooManyPending, TOO_MANY),
    (RateLimited, TOO_MANY),
    (Unavailable, NOT_NOW),
)


class Refusal(Exception):
    """A request that is not done, in Dapr's words. Nothing was changed."""

    def __init__(
        self,
        kind: RefusalKind,
        message: str,
        *,
        pubsub: str | None = None,
        metadata: dict[str, str] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        """When to come again, where that is known."""
        self.kind = kind
        self.message = message
        self.resource = pubsub if kind.names_resource else None
        """The name of the component that the details name; None if they name none."""
        self.metadata = metadata or {}

    @property
    def details(self) -> list[dict[str, Any]]:
        """ErrorInfo, and ResourceInfo where a component is meant, as JSON has them."""
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "domain": DOMAIN,
            "metadata": self.metadata,
            "reason": self.kind.reason,
        }
        if self.resource is None:
            return [info]
        resource = {
            "@type": "type.googleapis.com/google.rpc.ResourceInfo",
            "description": self.message,
            "owner": "",
            "resource_name": self.resource,
            "resource_type": "pubsub",
        }
        return [info, resource]

    def body(self) -> bytes:
        """The answer's body over HTTP."""
        return msgspec.json.encode(
            {"errorCode": self.kind.code, "message": self.message, "details": self.details}
        )


def not_found(pubsub: str) -> Refusal:
    """A component that the application does not have."""
    return Refusal(NOT_FOUND, f"pubsub {pubsub} is not found", pubsub=pubsub)


def refusal_of(error: TarryError, pubsub: str, topic: str) -> Refusal:
    """The refusal of the engine or of a broker, in Dapr's words."""
    kind = next((kind for type_, kind in _BY_ERROR if isinstance(error, type_)), PUBLISH)
    metadata = {"topic": topic, "error": str(error)}
    if isinstance(error, DelayTooLong):
        metadata["error"] = f"{SCHEDULED}: {error}"
    if kind is METADATA:
        message = f"failed deserializing metadata. Error: {metadata['error']}"
    else:
        message = f"error when publishing to topic {topic} in pubsub {pubsub}: {error}"
    retry_after_ms = error.retry_after_ms if isinstance(error, RateLimited) else None
    return Refusal(kind, message, pubsub=pubsub, metadata=metadata, retry_after_ms=retry_after_ms)


def spend(caller: Caller) -> None:
    """Use up one of the operations that a caller's token may make; raises `Refusal`."""
    try:
        caller.standing.spend()
    except RateLimited as limited:
        raise Refusal(TOO_MANY_CALLS, str(limited), retry_after_ms=limited.retry_after_ms) from None
    except Forbidden as gone:
        raise Refusal(TOKEN, f"invalid api token: {gone}") from None
