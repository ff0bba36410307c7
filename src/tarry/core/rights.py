"""Rights: the roles and the namespaces that operations require.

Every operation of every door has a row with a right: over HTTP the one row that also has its path and its endpoint
(`operations` of each door), in other protocols one of the tables here. An operation without a row cannot be served. A right
settles what the token alone decides (`Right.check`): the role, and whether the token must be for all namespaces. Which
namespace a request is about is only known to the operation, so the reach says how it has to be checked there.
`docs/rights.md` is made of all rows, and `tests/unit/test_rights.py` walks all of them on a real server.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from tarry.core.access import Caller, Role

Reach = Literal[
    "open", "token", "named", "own", "listed", "all", "opened", "user", "id", "secret", "homeserver"
]

REACHES: Final[Mapping[Reach, str]] = {
    "open": "everybody, without a token",
    "token": "any token with the role: nothing of a namespace is shown or changed",
    "named": "the namespace that the request names must be the token's; any other is forbidden",
    "own": "the namespace of the thing that is named must be the token's; any other is not found",
    "listed": "only what lies in the token's namespaces is shown",
    "all": "a token for all namespaces",
    "opened": "a producer or consumer that this connection has opened before; there its topic was checked",
    "user": "the homeserver says whose access token it is; only that user's own events are shown or changed",
    "id": "the delay id is the credential, or with `management_token` its owner's access token; ids of other doors are not found",
    "secret": "the future's token is the credential",
    "homeserver": "the homeserver's own token",
}


class Right(NamedTuple):
    """The requirement of one operation."""

    roles: tuple[Role, ...]
    """One of these, or admin."""
    reach: Reach

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` unless the caller's token is one for this operation."""
        if self.roles:
            caller.require(*self.roles)
        if self.reach == "all":
            caller.require_everywhere()


def right_of(door: Mapping[str, Right], operation: str) -> Right:
    """The row of an operation; an operation without one is an error of the program."""
    try:
        return door[operation]
    except KeyError:
        raise LookupError(f"{operation} has no row in core/rights.py: give it one") from None


OPEN: Final = Right((), "open")
TOKEN: Final = Right((), "token")
GOVERN: Final = Right(("admin",), "named")
GOVERN_LISTED: Final = Right(("admin",), "listed")
GOVERN_ALL: Final = Right(("admin",), "all")
PRODUCE: Final = Right(("produce",), "named")
PRODUCE_OWN: Final = Right(("produce",), "own")
PRODUCE_LISTED: Final = Right(("produce",), "listed")
PRODUCE_ALL: Final = Right(("produce",), "all")
PRODUCER: Final = Right(("produce",), "token")
CONSUME: Final = Right(("consume",), "named")
USE: Final = Right(("produce", "consume"), "named")
SEE_OWN: Final = Right(("produce", "consume"), "own")
SEE_LISTED: Final = Right(("produce", "consume"), "listed")
FIGURES: Final = Right(("produce", "consume"), "all")
USER: Final = Right((), "user")
ID: Final = Right((), "id")
SECRET: Final = Right((), "secret")
HOMESERVER: Final = Right((), "homeserver")


def _each(right: Right, methods: str, *paths: str) -> dict[str, Right]:
    return {f"{method} {path}": right for path in paths for method in methods.split()}


_ADMIN: Final = "/admin/v2"
_SPACE: Final = _ADMIN + "/namespaces/{tenant}/{namespace}"
_PERSISTENT: Final = _ADMIN + "/persistent/{tenant}/{namespace}"
_ONE: Final = _PERSISTENT + "/{topic}"
_SUB: Final = _ONE + "/subscription/{subscription}"
_SCHEMAS: Final = _ADMIN + "/schemas/{tenant}/{namespace}/{topic}"
_LOOKUP: Final = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"

PULSAR_ADMIN: Final[Mapping[str, Right]] = {
    **_each(Right(("produce", "consume"), "token"), "GET", _ADMIN + "/clusters", _ADMIN + "/brokers/version"),
    **_each(GOVERN_ALL, "GET", _ADMIN + "/clusters/{cluster}", _ADMIN + "/brokers", _ADMIN + "/brokers/{cluster}"),
    **_each(GOVERN_ALL, "GET", _ADMIN + "/brokers/leaderBroker", _ADMIN + "/brokers/configuration/runtime"),
    **_each(OPEN, "GET", _ADMIN + "/brokers/health"),
    **_each(Right((), "token"), "GET", _ADMIN + "/brokers/ready"),
    **_each(USE, "GET", _LOOKUP, _LOOKUP + "/bundle"),
    **_each(GOVERN_ALL, "GET", _ADMIN + "/tenants"),
    **_each(GOVERN_ALL, "GET PUT POST DELETE", _ADMIN + "/tenants/{tenant}"),
    **_each(Right(("admin",), "listed"), "GET", _ADMIN + "/namespaces/{tenant}"),
    **_each(GOVERN, "GET PUT DELETE", _SPACE),
    **_each(USE, "GET", _SPACE + "/topics"),
    **_each(GOVERN, "GET", _SPACE + "/bundles", _SPACE + "/permissions"),
    **_each(GOVERN, "POST", _SPACE + "/clearBacklog", _SPACE + "/clearBacklog/{subscription}"),
    **_each(GOVERN, "POST", _SPACE + "/unsubscribe/{subscription}"),
    # As in Pulsar, only a superuser changes whether and how long a namespace delays.
    **_each(GOVERN, "GET", _SPACE + "/delayedDelivery"),
    **_each(GOVERN_ALL, "POST DELETE", _SPACE + "/delayedDelivery"),
    **_each(GOVERN, "GET POST DELETE", _ONE + "/delayedDelivery"),
    **_each(GOVERN, "GET POST DELETE", *(place + "/messageTTL" for place in (_SPACE, _ONE))),
    **_each(GOVERN, "GET POST DELETE", *(place + "/retention" for place in (_SPACE, _ONE))),
    **_each(GOVERN, "GET POST DELETE", _SPACE + "/deduplication", _ONE + "/deduplicationEnabled"),
    **_each(GOVERN, "GET", *(place + "/backlogQuotaMap" for place in (_SPACE, _ONE))),
    **_each(GOVERN, "POST DELETE", *(place + "/backlogQuota" for place in (_SPACE, _ONE))),
    **_each(USE, "GET", _SCHEMAS + "/schema", _SCHEMAS + "/schema/{version}", _SCHEMAS + "/schemas"),
    **_each(PRODUCE, "POST", _SCHEMAS + "/schema"),
    **_each(GOVERN, "DELETE", _SCHEMAS + "/schema"),
    **_each(USE, "POST", _SCHEMAS + "/compatibility", _SCHEMAS + "/version"),
    **_each(USE, "GET", _PERSISTENT, _PERSISTENT + "/partitioned"),
    **_each(USE, "GET", *(_ADMIN + "/non-persistent/{tenant}/{namespace}" + end for end in ("", "/partitioned"))),
    **_each(GOVERN, "PUT DELETE", _ONE),
    **_each(USE, "GET", *(_ONE + f"/{of}" for of in ("stats", "internalStats", "lastMessageId", "partitions"))),
    **_each(USE, "GET", _ONE + "/partitioned-stats", _ONE + "/subscriptions"),
    **_each(GOVERN, "GET POST PUT DELETE", *(_SPACE + f"/{rule}" for rule in (
        "autoTopicCreation", "autoSubscriptionCreation", "schemaCompatibilityStrategy", "maxTopicsPerNamespace",
        "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic",
        "maxUnackedMessagesPerConsumer",
    ))),
    **_each(GOVERN, "GET POST PUT DELETE", *(_ONE + f"/{rule}" for rule in (
        "autoSubscriptionCreation", "schemaCompatibilityStrategy", "maxProducers", "maxConsumers",
        "maxConsumersPerSubscription", "maxSubscriptionsPerTopic", "maxUnackedMessagesOnConsumer",
    ))),
    **_each(GOVERN, "GET PUT DELETE", _SPACE + "/properties", _ONE + "/properties"),
    **_each(GOVERN, "GET DELETE", _SPACE + "/property/{key}"),
    **_each(GOVERN, "PUT", _SPACE + "/property/{key}/{value}"),
    **_each(GOVERN, "PUT", _SPACE + "/unload", _SPACE + "/{bundle}/unload", _ONE + "/unload"),
    **_each(GOVERN, "DELETE", _ONE + "/truncate"),
    # Endpoints that are known and not served: they only say so.
    **_each(USE, "GET POST PUT DELETE", _SPACE + "/{endpoint}", _ONE + "/{endpoint}"),
    **_each(GOVERN, "POST DELETE", _SPACE + "/permissions/{role}", _ONE + "/permissions/{role}"),
    **_each(GOVERN, "PUT POST DELETE", _ONE + "/partitions"),
    **_each(GOVERN, "POST", _ONE + "/createMissedPartitions"),
    **_each(GOVERN, "POST", _ONE + "/all_subscription/expireMessages/{seconds}"),
    **_each(CONSUME, "PUT", _SUB),
    **_each(GOVERN, "DELETE", _SUB),
    **_each(GOVERN, "POST", _SUB + "/skip/{number}", _SUB + "/skip_all", _SUB + "/expireMessages/{seconds}"),
    **_each(CONSUME, "POST", _SUB + "/resetcursor", _SUB + "/resetcursor/{timestamp}"),
    **_each(CONSUME, "GET", _SUB + "/position/{position}"),
    **_each(CONSUME, "GET", _ONE + "/ledger/{ledger}/entry/{entry}", _ONE + "/examinemessage"),
    **_each(USE, "GET", _ONE + "/messageid/{timestamp}"),
    **_each(USE, "PUT", _ONE + "/backlogSize"),
    **_each(USE, "POST", _SUB + "/analyzeBacklog"),
}  # fmt: skip
"""Pulsar's administration over HTTP."""

_CONNECTED: Final = Right((), "token")
_OPENED: Final = Right((), "opened")

PULSAR: Final[Mapping[str, Right]] = {
    **dict.fromkeys(("CONNECT", "AUTH_RESPONSE", "PING", "PONG"), _CONNECTED),
    **dict.fromkeys(("PARTITIONED_METADATA", "LOOKUP", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA"), USE),
    **dict.fromkeys(("GET_OR_CREATE_SCHEMA", "PRODUCER"), PRODUCE),
    "SUBSCRIBE": CONSUME,
    **dict.fromkeys(("SEND", "CLOSE_PRODUCER", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES"), _OPENED),
    **dict.fromkeys(("CLOSE_CONSUMER", "UNSUBSCRIBE", "SEEK", "GET_LAST_MESSAGE_ID", "CONSUMER_STATS"), _OPENED),
}  # fmt: skip
"""Commands of Pulsar's binary protocol. Before CONNECT has shown a token, no other is taken."""

PASSED_ON: Final = "everything else"
"""The operation under which a door's calls are that go on to a real sidecar, with secrets and state of all applications, or a homeserver."""

DAPR_GRPC: Final[Mapping[str, Right]] = {
    **dict.fromkeys(("PublishEvent", "BulkPublishEvent", "BulkPublishEventAlpha1"), PRODUCE),
    "SubscribeTopicEventsAlpha1": CONSUME,
    "GetMetadata": PRODUCER,
    "SetMetadata": PRODUCE_ALL,
    PASSED_ON: PRODUCE_ALL,
}
"""Methods of Dapr's gRPC service."""
