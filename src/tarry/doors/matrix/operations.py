"""Every operation of the door, one row for each method of each path. A request that has no row is the homeserver's.

From the rows follow the routes, the checks of access and `docs/rights.md`.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tarry.core.tenants.rights import HOMESERVER, ID, OPEN, PASSED_ON, SECRET, USER, Right
from tarry.doors.matrix.features import Features
from tarry.doors.matrix.futures import Futures
from tarry.doors.matrix.futures_asked import UNSTABLE as FUTURES_UNSTABLE
from tarry.doors.matrix.futures_batch import FutureBatches
from tarry.doors.matrix.lists import Lists
from tarry.doors.matrix.management import Management
from tarry.doors.matrix.scheduling import Scheduling, asks_to_delay
from tarry.doors.matrix.transactions import MAX_TRANSACTION_BYTES, Transactions
from tarry.doors.matrix.wire import MAX_BODY_BYTES, Serve

_MSC4140: Final = "unstable/org.matrix.msc4140"
_EVER: Final = ("v3", "v1", "r0", "api/v1", "unstable")
"""Where homeservers have /send, /state and /redact."""
_DRAFT: Final = ("v3", "v1", "r0", *(f"unstable/{name}" for name in FUTURES_UNSTABLE))

_CLIENT: Final = "/_matrix/client/…"
_ROOM: Final = _CLIENT + "/rooms/{room}"
_EVENTS: Final = _CLIENT + "/delayed_events"
_APP: Final = "/_matrix/app/v1"


class MatrixEndpoints(NamedTuple):
    """The objects that serve the operations, by their subjects."""

    scheduling: Scheduling
    management: Management
    lists: Lists
    futures: Futures
    batches: FutureBatches
    features: Features
    transactions: Transactions


class MatrixOperation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    """`…` stands for a version of the API."""
    right: Right
    """The credential that it requires."""
    endpoint: Callable[[MatrixEndpoints], Serve]
    """The function that serves it."""
    versions: tuple[str, ...] = ()
    when: Callable[[bytes], bool] | None = None
    """Looks at the query: where it says no, the request is the homeserver's."""
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def name(self) -> str:
        """The operation in the table of rights."""
        return f"{self.method} {self.path}"

    @property
    def paths(self) -> list[str]:
        """The path in every version."""
        return [self.path.replace("…", version) for version in self.versions] or [self.path]


def _reused(method: str, path: str, endpoint: Callable[[MatrixEndpoints], Serve]) -> MatrixOperation:
    """An operation of homeservers that is the door's if its query says so."""
    return MatrixOperation(method, _ROOM + path, USER, endpoint, _EVER, asks_to_delay)


OPERATIONS: Final[tuple[MatrixOperation, ...]] = (
    MatrixOperation(
        "PUT", _ROOM + "/delayed_event/{type}/{txn}", USER, lambda at: at.scheduling.schedule, ("v3", "v1", _MSC4140)
    ),
    _reused("PUT", "/send/{type}/{txn}", lambda at: at.scheduling.send),
    _reused("POST", "/send/{type}", lambda at: at.scheduling.send),
    _reused("PUT", "/state/{type}", lambda at: at.scheduling.state),
    _reused("PUT", "/state/{type}/{key}", lambda at: at.scheduling.state),
    _reused("PUT", "/redact/{event}/{txn}", lambda at: at.scheduling.redact),
    _reused("POST", "/redact/{event}", lambda at: at.scheduling.redact),
    MatrixOperation("PUT", _ROOM + "/send/future/{txn}", USER, lambda at: at.batches.schedule, _DRAFT),
    MatrixOperation("PUT", _ROOM + "/send_future/{type}/{txn}", USER, lambda at: at.futures.send, _DRAFT),
    MatrixOperation("PUT", _ROOM + "/state_future/{type}", USER, lambda at: at.futures.state, _DRAFT),
    MatrixOperation("PUT", _ROOM + "/state_future/{type}/{key}", USER, lambda at: at.futures.state, _DRAFT),
    MatrixOperation("GET", _CLIENT + "/future", USER, lambda at: at.futures.running, _DRAFT),
    MatrixOperation("POST", _CLIENT + "/future/{token}", SECRET, lambda at: at.futures.act, _DRAFT),
    MatrixOperation("GET", _EVENTS, USER, lambda at: at.lists.both, ("v1", _MSC4140)),
    MatrixOperation("GET", _EVENTS + "/{delay}", USER, lambda at: at.lists.single, ("v1", _MSC4140)),
    MatrixOperation("POST", _EVENTS + "/{delay}", ID, lambda at: at.management.by_body, ("v1", _MSC4140)),
    MatrixOperation("POST", _EVENTS + "/{delay}/{action}", ID, lambda at: at.management.by_path, ("v1", _MSC4140)),
    MatrixOperation(
        "GET", "/_matrix/client/unstable/org.matrix.msc4486/delayed_events", USER, lambda at: at.lists.filtered
    ),
    MatrixOperation("GET", "/_matrix/client/versions", OPEN, lambda at: at.features.versions),
    MatrixOperation("GET", _CLIENT + "/capabilities", OPEN, lambda at: at.features.capabilities, ("v3", "r0", "unstable")),
    MatrixOperation(
        "PUT", _APP + "/transactions/{txn}", HOMESERVER, lambda at: at.transactions.take,
        max_body_bytes=MAX_TRANSACTION_BYTES,
    ),
    MatrixOperation("POST", _APP + "/ping", HOMESERVER, lambda at: at.transactions.ping),
    MatrixOperation("GET", _APP + "/users/{user}", HOMESERVER, lambda at: at.transactions.nobody),
    MatrixOperation("GET", _APP + "/rooms/{room}", HOMESERVER, lambda at: at.transactions.nobody),
)  # fmt: skip

MATRIX: Final[Mapping[str, Right]] = {
    **{operation.name: operation.right for operation in OPERATIONS},
    PASSED_ON: OPEN,
}
"""The homeserver knows its users, so Tarry's tokens have no part in it. What the door adds nothing to goes to the homeserver,
which asks for its own tokens."""
