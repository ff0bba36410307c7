"""Dapr's HTTP API as one application of the kit: the door's own operations; the rest is passed on to a real sidecar, or refused."""

import logging
from math import ceil

from tarry.core.errors import Forbidden, Unavailable
from tarry.core.limits import SECOND_MS
from tarry.core.telemetry.faults import told
from tarry.core.tenants.access import Access, Caller
from tarry.core.tenants.browser import check_browser
from tarry.core.tenants.rights import PASSED_ON, Right
from tarry.doors.dapr import errors
from tarry.doors.dapr.errors import Refusal, spend
from tarry.doors.dapr.http_endpoints import JSON_HEADERS, HttpEndpoints
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.operations import DAPR_HTTP, OPERATIONS, DaprOperation
from tarry.doors.dapr.passing import HttpPassing
from tarry.doors.dapr.publishing import Publishing
from tarry.http.application import Endpoint, Served
from tarry.http.errors import BodyTooLarge, PathNotText
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.http.routing import Routes

_log = logging.getLogger(__name__)


class HttpApi:
    """The application."""

    def __init__(
        self,
        publishing: Publishing,
        access: Access,
        metadata: Metadata,
        passing: HttpPassing | None,
        max_body_bytes: int,
    ) -> None:
        self._access = access
        endpoints = HttpEndpoints(publishing, metadata)
        self._routes = Routes(
            (
                # As in Dapr, where a HEAD is not served.
                Served(method, path, one.right, _endpoint(one, endpoints, max_body_bytes), head=False)
                for one in OPERATIONS
                for path in (one.path, *one.also)
                for method in one.methods
            ),
            empty_parts=True,
        )
        self._passing = None if passing is None else Endpoint(passing.pass_on, max_body_bytes)

    def open(self, request: Request) -> Endpoint:
        """Let a request in, and find its endpoint."""
        found = self._routes.find(request.path)
        served = None if found is None else found[0].rows.get(request.method)
        if found is None or served is None:
            request.caller = self._let_in(request, DAPR_HTTP[PASSED_ON])
            return self._elsewhere(request)
        if served.right.reach != "open":
            request.caller = self._let_in(request, served.right)
        route, parts = found
        request.params = route.named(parts)
        return served.endpoint

    def _elsewhere(self, request: Request) -> Endpoint:
        """The endpoint of what the door does not serve itself."""
        if not request.path.startswith(b"/v1.0"):
            raise Refusal(errors.UNKNOWN_METHOD, f"there is nothing at {_shown(request)}")
        if self._passing is None:
            raise Refusal(
                errors.NOT_SERVED,
                f"{request.method} {_shown(request)} is not pub/sub; set doors.dapr.sidecar_http to have it passed on "
                "to a real sidecar",
            )
        return self._passing

    def _let_in(self, request: Request, right: Right) -> Caller:
        get = request.header
        caller = self._access.known(get(b"dapr-api-token"))
        if caller is None:
            raise Refusal(errors.TOKEN, "invalid api token")
        try:
            right.check(caller)
            if self._access.is_open:
                check_browser(get(b"host"), get(b"origin"), get(b"sec-fetch-site"), frozenset())
        except Forbidden as error:
            raise Refusal(errors.TOKEN, f"invalid api token: {error}") from None
        spend(caller)
        return caller

    def refuse(self, request: Request, error: Exception) -> Response:
        """An error in Dapr's words."""
        if isinstance(error, Refusal):
            return refused(error)
        if isinstance(error, Unavailable):
            # The listener has no place for another request of this token.
            return refused(Refusal(errors.TOO_MANY_AT_ONCE, str(error)))
        if isinstance(error, BodyTooLarge):
            text = f"the request is larger than {error.limit} bytes"
            return refused(Refusal(errors.TOO_LARGE, text), close=error.cut_short)
        if isinstance(error, PathNotText):
            return refused(Refusal(errors.METADATA, "the path is not UTF-8"))
        _log.error("a request failed with %s", told(error))
        return refused(Refusal(errors.PUBLISH, "something went wrong inside; the log says what"))


def _endpoint(operation: DaprOperation, endpoints: HttpEndpoints, max_body_bytes: int) -> Endpoint:
    return Endpoint(operation.endpoint(endpoints), max_body_bytes if operation.takes_body else None)


def refused(refusal: Refusal, *, close: bool = False) -> Response:
    """A refusal as a response."""
    headers = list(JSON_HEADERS)
    if refusal.retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(refusal.retry_after_ms / SECOND_MS))))
    return Response(refusal.kind.http, headers, refusal.body(), close=close)


def _shown(request: Request) -> str:
    return request.path.decode("latin-1")
