"""Rights: the roles and the namespaces that operations require.

Every operation of every door has a row with a right: over HTTP the one row that also has its path and its endpoint
(`operations` of each door), in other protocols one of the tables here. An operation without a row cannot be served. A right
settles what the token alone decides (`Right.check`): the role, and whether the token must be for all namespaces. Which
namespace a request is about is only known to the operation, so the reach says how it has to be checked there.
`docs/rights.md` is made of all rows, and `tests/unit/test_rights.py` walks all of them on a real server.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from tarry.core.tenants.access import Caller, Role

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
        raise LookupError(f"{operation} has no row in core/tenants/rights.py: give it one") from None


OPEN: Final = Right((), "open")
TOKEN: Final = Right((), "token")
GOVERN: Final = Right(("admin",), "named")
GOVERN_OWN: Final = Right(("admin",), "own")
GOVERN_LISTED: Final = Right(("admin",), "listed")
GOVERN_ALL: Final = Right(("admin",), "all")
PRODUCE: Final = Right(("produce",), "named")
PRODUCE_OWN: Final = Right(("produce",), "own")
PRODUCE_LISTED: Final = Right(("produce",), "listed")
PRODUCE_ALL: Final = Right(("produce",), "all")
PRODUCER: Final = Right(("produce",), "token")
CONSUME: Final = Right(("consume",), "named")
USE: Final = Right(("produce", "consume"), "named")
SEE: Final = Right(("produce", "consume"), "token")
SEE_OWN: Final = Right(("produce", "consume"), "own")
SEE_LISTED: Final = Right(("produce", "consume"), "listed")
FIGURES: Final = Right(("produce", "consume"), "all")
USER: Final = Right((), "user")
ID: Final = Right((), "id")
SECRET: Final = Right((), "secret")
HOMESERVER: Final = Right((), "homeserver")


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
