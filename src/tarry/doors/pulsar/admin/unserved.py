"""Endpoints of Pulsar's administration that are known and not served: each says so, and what to use where there is something.

A 404 would leave a user to guess between a slip in the path and a feature that is missing. Pulsar's own answer for an
operation that a broker does not offer is 405, and 501 for permissions where it does not keep any.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tarry.core.tenants.rights import GOVERN, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminEndpoint, AdminOperation, Operations
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.http.response import Response

METHODS: Final = ("GET", "POST", "PUT", "DELETE")

_NO_RATES: Final = "rates of dispatching are not limited; use the policy's send_per_second (/v1/policies)"
_NO_PUBLISH_RATES: Final = "rates of publishing are limited by the policy's accept_per_second (/v1/policies)"
_NO_BOOKIES: Final = "there is no BookKeeper: every message is synced to the ledger of this server"
_NO_OFFLOAD: Final = "there is no tiered storage; what nobody needs is given back by itself"
_NO_COMPACTION: Final = "topics are not compacted"
_ONE_CLUSTER: Final = "there is one cluster, and nothing is replicated"
_TOKENS: Final = "Authorization is not enabled: the server's configuration says which token may do what"
_NO_EXPIRY: Final = "subscriptions stay until they are ended; use unsubscribe"
_NO_INACTIVE: Final = "topics stay until they are deleted"
_ENTRIES_ONLY: Final = "entries are counted for each consumer (maxUnackedMessagesPerConsumer)"
_ALL_TYPES: Final = "every type of subscription may be used"
_NO_FILTERS: Final = "there are no entry filters"
_ONE_SIZE: Final = "the largest message is doors.pulsar.max_message_bytes, for all topics"
_NO_TERMINATION: Final = "topics cannot be terminated; use a token that may only consume, or delete the topic"
_NO_SNAPSHOTS: Final = "sequence ids are in the ledger with their messages, and need no snapshots"
_ENFORCED_BY_STRATEGY: Final = "use schemaCompatibilityStrategy"

NAMESPACE: Final[dict[str, str]] = {
    "antiAffinity": _ONE_CLUSTER,
    "bookieAffinity": _NO_BOOKIES,
    "compactionThreshold": _NO_COMPACTION,
    "deduplicationSnapshotInterval": _NO_SNAPSHOTS,
    "dispatchRate": _NO_RATES,
    "encryptionRequired": "messages are not required to be encrypted; clients that encrypt are served",
    "entryFilters": _NO_FILTERS,
    "inactiveTopicPolicies": _NO_INACTIVE,
    "isAllowAutoUpdateSchema": _ENFORCED_BY_STRATEGY,
    "maxUnackedMessagesPerSubscription": _ENTRIES_ONLY,
    "offloadPolicies": _NO_OFFLOAD,
    "offloadThreshold": _NO_OFFLOAD,
    "persistence": _NO_BOOKIES,
    "publishRate": _NO_PUBLISH_RATES,
    "replication": _ONE_CLUSTER,
    "replicatorDispatchRate": _ONE_CLUSTER,
    "resourcegroup": "there are no resource groups",
    "schemaAutoUpdateCompatibilityStrategy": _ENFORCED_BY_STRATEGY,
    "schemaValidationEnforced": _ENFORCED_BY_STRATEGY,
    "subscribeRate": _NO_RATES,
    "subscriptionAuthMode": _TOKENS,
    "subscriptionDispatchRate": _NO_RATES,
    "subscriptionExpirationTime": _NO_EXPIRY,
    "subscriptionTypesEnabled": _ALL_TYPES,
}
"""By the last part of its path under a namespace: why an endpoint is not served."""

TOPIC: Final[dict[str, str]] = {
    "compaction": _NO_COMPACTION,
    "compactionThreshold": _NO_COMPACTION,
    "deduplicationSnapshotInterval": _NO_SNAPSHOTS,
    "dispatchRate": _NO_RATES,
    "entryFilters": _NO_FILTERS,
    "inactiveTopicPolicies": _NO_INACTIVE,
    "maxMessageSize": _ONE_SIZE,
    "maxUnackedMessagesOnSubscription": _ENTRIES_ONLY,
    "offload": _NO_OFFLOAD,
    "offloadPolicies": _NO_OFFLOAD,
    "persistence": _NO_BOOKIES,
    "publishRate": _NO_PUBLISH_RATES,
    "replication": _ONE_CLUSTER,
    "replicatorDispatchRate": _ONE_CLUSTER,
    "schemaValidationEnforced": _ENFORCED_BY_STRATEGY,
    "shadowTopics": _ONE_CLUSTER,
    "subscribeRate": _NO_RATES,
    "subscriptionDispatchRate": _NO_RATES,
    "subscriptionTypesEnabled": _ALL_TYPES,
    "terminate": _NO_TERMINATION,
    "trim": _NO_OFFLOAD,
}
"""Endpoints under a topic that are not served."""


def _refuse(status: int, reasons: Mapping[str, str], part: str) -> AdminEndpoint:
    async def refuse(call: AdminCall) -> Response:
        call.namespace()
        name = call.part(part) if part in call.request.params else part
        if name not in reasons:
            raise RestError(404, "there is nothing at this path here")
        raise RestError(status, f"{name} is not supported: {reasons[name]}")

    return refuse


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def _operations() -> Iterator[AdminOperation]:
    granting = _refuse(501, {"permissions": _TOKENS}, "permissions")
    for path, reasons in ((_NAMESPACE, NAMESPACE), (_TOPIC, TOPIC)):
        for method in ("POST", "DELETE"):
            yield AdminOperation(method, path + "/permissions/{role}", GOVERN, granting)
        for method in METHODS:
            yield AdminOperation(method, path + "/{endpoint}", USE, _refuse(405, reasons, "endpoint"))


OPERATIONS: Operations = tuple(_operations())
