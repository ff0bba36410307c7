"""The Matrix door as one application of the kit: Tarry's own operations, and the proxy for all other requests.

Whatever goes wrong is answered in the words of Matrix; what should not have happened is logged by its place in the code
only, because an error's text may hold an id.
"""

import logging
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from tarry.core.errors import TarryError
from tarry.core.telemetry.faults import told
from tarry.doors.matrix.accounts import Accounts, holder_of
from tarry.doors.matrix.departures import Departures
from tarry.doors.matrix.errors import MatrixError, explain, internal, unrecognised
from tarry.doors.matrix.features import Features
from tarry.doors.matrix.futures import Futures
from tarry.doors.matrix.futures_batch import FutureBatches
from tarry.doors.matrix.lists import Lists
from tarry.doors.matrix.management import Management
from tarry.doors.matrix.operations import OPERATIONS, MatrixEndpoints, MatrixOperation
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.proxy import Proxy, is_passed_on
from tarry.doors.matrix.scheduling import Scheduling, asks_to_delay
from tarry.doors.matrix.transactions import Transactions
from tarry.doors.matrix.wire import Account, MatrixRequest, preflight, refused
from tarry.http.application import Endpoint, Given, Outcome
from tarry.http.errors import BodyTooLarge, PathNotText
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.http.routing import Routes

log = logging.getLogger(__name__)

_PREFLIGHT: Final = Endpoint(preflight)


class MatrixServed:
    """An operation at one of its paths. Whose token it is, is asked of the homeserver where it is not known yet."""

    __slots__ = (
        "_accounts",
        "_endpoint",
        "head",
        "max_body_bytes",
        "method",
        "path",
        "reach",
        "unstable",
        "when",
    )

    def __init__(
        self, operation: MatrixOperation, path: str, endpoints: MatrixEndpoints, accounts: Accounts
    ) -> None:
        self.method = operation.method
        self.path = path
        self.head = True
        self.when = operation.when
        self.reach = operation.right.reach
        self.unstable = "/unstable/" in path
        self.max_body_bytes = None if self.method == "GET" else operation.max_body_bytes
        self._accounts = accounts
        self._endpoint = operation.endpoint(endpoints)

    def serve(self, request: MatrixRequest, account: Account | None, _: Request) -> Outcome:
        """Call the endpoint, a user's once the user is known."""
        if self.reach == "user":
            if account is None:
                return self._ask(request)
            request.account = account
        return self._endpoint(request)

    async def _ask(self, request: MatrixRequest) -> Given:
        request.account = await self._accounts.of(request)
        outcome = self._endpoint(request)
        return outcome if isinstance(outcome, Response) else await outcome


class MatrixApp:
    """The application."""

    def __init__(self, parts: Parts) -> None:
        self._accounts = parts.accounts
        self._departures = Departures(parts)
        self._transactions = Transactions(parts, self._departures)
        futures = Futures(parts)
        endpoints = MatrixEndpoints(
            scheduling=Scheduling(parts, futures),
            management=Management(parts),
            lists=Lists(parts),
            futures=futures,
            batches=FutureBatches(parts, futures),
            features=Features(parts),
            transactions=self._transactions,
        )
        self._routes = Routes(
            [MatrixServed(one, path, endpoints, parts.accounts) for one in OPERATIONS for path in one.paths],
            empty_parts=True,
        )
        self._proxy = Proxy(parts.homeserver, parts.settings.trusted_proxies)
        self._passing = Endpoint(self._pass_on, streams=True)

    def open(self, request: Request) -> Endpoint:
        """The endpoint of a request: one of the door's own, or the proxy's. Who shows no token is refused at the head."""
        request.caller = holder_of(MatrixRequest(request, {}))
        found = self._routes.find(request.path)
        if found is None or not _is_own(found[0].rows, request.query):
            if not is_passed_on(request.path) or _would_be_sent_at_once(request):
                raise unrecognised()
            return self._passing
        route, parts = found
        if request.method == "OPTIONS":
            return _PREFLIGHT
        served = route.rows.get(request.method)
        if served is None:
            raise unrecognised(f"{route.allowed}, OPTIONS")
        own = MatrixRequest(request, route.named(parts), unstable=served.unstable)
        account: Account | None = None
        if served.reach == "user":
            account = self._accounts.known(own)
        elif served.reach == "homeserver":
            self._transactions.check(own)
        return Endpoint(partial(served.serve, own, account), served.max_body_bytes)

    async def _pass_on(self, request: Request) -> Given:
        done = await self._departures.watch(MatrixRequest(request, {}))
        return await self._proxy.pass_on(request, done)

    def refuse(self, request: Request, error: Exception) -> Response:
        """An error in the words of Matrix."""
        if isinstance(error, TarryError):
            return refused(explain(error))
        if isinstance(error, BodyTooLarge):
            text = f"The body has more than {error.limit} bytes."
            return refused(MatrixError(413, "M_TOO_LARGE", text), close=error.cut_short)
        if isinstance(error, PathNotText):
            return refused(MatrixError(400, "M_INVALID_PARAM", "The path is not UTF-8."))
        log.error("a request failed with %s", told(error))
        return refused(internal())


def _is_own(rows: dict[str, MatrixServed], query: bytes) -> bool:
    """Whether a request at a path of the door's own is its own by its query too: all rows of a path ask for the same."""
    when = next(iter(rows.values())).when
    return when is None or when(query)


def _would_be_sent_at_once(request: Request) -> bool:
    """Whether a request asks for a delay at a path that is not quite ours: who knows what a homeserver makes of it."""
    if request.method not in ("PUT", "POST") or b"/rooms/" not in unquote_to_bytes(request.path):
        return False
    return asks_to_delay(request.query)
