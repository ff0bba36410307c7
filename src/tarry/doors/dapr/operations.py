"""Every operation of Dapr's HTTP API that the door serves, one row for each. What has no row is passed on, or refused.

From the rows follow the routes, the checks of access and `docs/rights.md`.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tarry.core.tenants.rights import OPEN, PASSED_ON, PRODUCE, PRODUCE_ALL, PRODUCER, Right
from tarry.doors.dapr.http_endpoints import HttpEndpoints
from tarry.http.application import Outcome
from tarry.http.request import Request

_WRITES: Final = ("POST", "PUT")


class DaprOperation(NamedTuple):
    """One path, and the methods that do the same there."""

    methods: tuple[str, ...]
    path: str
    right: Right
    """The role and the namespaces that it requires."""
    endpoint: Callable[[HttpEndpoints], Callable[[Request], Outcome]]
    """The function that serves it."""
    takes_body: bool = False
    also: tuple[str, ...] = ()
    """Paths that lack some of the names: their requests are refused as Dapr refuses them."""

    @property
    def names(self) -> list[str]:
        """The operation in the table of rights, by method."""
        return [f"{method} {self.path.replace('...', '')}" for method in self.methods]


def _publishing(
    path: str, endpoint: Callable[[HttpEndpoints], Callable[[Request], Outcome]]
) -> DaprOperation:
    also = (path, path + "/{pubsub}")
    return DaprOperation(
        _WRITES, path + "/{pubsub}/{topic...}", PRODUCE, endpoint, takes_body=True, also=also
    )


OPERATIONS: Final = (
    DaprOperation(("GET",), "/v1.0/healthz", OPEN, lambda at: at.ready),
    DaprOperation(("GET",), "/v1.0/healthz/outbound", OPEN, lambda at: at.outbound),
    _publishing("/v1.0/publish", lambda at: at.publish),
    _publishing("/v1.0/publish/bulk", lambda at: at.publish_bulk),
    _publishing("/v1.0-alpha1/publish/bulk", lambda at: at.publish_bulk),
    DaprOperation(("GET",), "/v1.0/metadata", PRODUCER, lambda at: at.show_metadata),
    DaprOperation(
        ("PUT",), "/v1.0/metadata/{key...}", PRODUCE_ALL, lambda at: at.set_metadata, takes_body=True
    ),
)

DAPR_HTTP: Final[Mapping[str, Right]] = {
    **{name: operation.right for operation in OPERATIONS for name in operation.names},
    PASSED_ON: PRODUCE_ALL,
}
