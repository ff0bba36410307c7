"""The administration as one application of the kit, mounted on the native API's port."""

import logging
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final

from tarry.core.errors import RateLimited, TarryError
from tarry.core.limits import SECOND_MS
from tarry.core.telemetry.faults import told
from tarry.core.tenants.access import ANYBODY, Caller
from tarry.core.tenants.browser import check_browser
from tarry.core.tenants.rights import Right
from tarry.doors.pulsar.admin.call import (
    BODY_WITHIN_MS,
    MAX_BODY_BYTES,
    AdminCall,
    AdminEndpoint,
    AdminOperation,
)
from tarry.doors.pulsar.admin.operations import OPERATIONS
from tarry.doors.pulsar.admin.refusals import RestError, refusal_of
from tarry.doors.pulsar.broker import Broker
from tarry.http.application import Endpoint, Outcome, Served
from tarry.http.errors import BodyTooLarge, BodyTooSlow, PathNotText
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.http.routing import Routes

log = logging.getLogger("tarry.pulsar")

PATHS: Final = ("/admin/", "/lookup/")
"""Prefixes of the paths that this application answers."""


class AdminApp:
    """Answers the administration's requests. The broker comes when the door starts."""

    def __init__(self, service_url: Callable[[str], str]) -> None:
        self.broker: Broker | None = None
        self._service_url = service_url
        """Where somebody finds the binary protocol who knows this machine under a name."""
        self._routes = Routes([self._served(operation) for operation in OPERATIONS])

    def _served(self, operation: AdminOperation) -> Served:
        takes = None if operation.method == "GET" else MAX_BODY_BYTES
        endpoint = Endpoint(partial(self.serve, operation.endpoint), takes, timeout_ms=BODY_WITHIN_MS)
        return Served(operation.method, operation.path, operation.right, endpoint)

    def open(self, request: Request) -> Endpoint:
        """Let a request in, and find its endpoint."""
        found = self._routes.find(request.path)
        if found is None:
            raise RestError(404, "there is nothing at this path here")
        route, parts = found
        served = route.rows.get(request.method)
        if served is None:
            raise RestError(405, f"use {route.allowed}")
        request.params = route.named(parts)
        request.caller = self._sender(self._broker(), request, served.right)
        served.right.check(request.caller)
        return served.endpoint

    def serve(self, endpoint: AdminEndpoint, request: Request) -> Outcome:
        """Call an endpoint."""
        host = (request.header(b"host") or b"").decode("latin-1")
        return endpoint(AdminCall(request, self._broker(), request.caller, self._service_url(host)))

    def _broker(self) -> Broker:
        broker = self.broker
        if broker is None or broker.stopping:
            raise RestError(503, "the server is starting or stopping")
        return broker

    @staticmethod
    def _sender(broker: Broker, request: Request, right: Right) -> Caller:
        header = request.header
        if broker.access.is_open:
            check_browser(header(b"host"), header(b"origin"), header(b"sec-fetch-site"), frozenset())
        if right.reach == "open":
            return ANYBODY
        known = broker.access.known(request.bearer)
        if known is None:
            raise RestError(401, "Authentication required")
        known.standing.spend()
        return known

    def refuse(self, request: Request, error: Exception) -> Response:
        """The administration's words for an error."""
        if isinstance(error, BodyTooLarge):
            return refused(RestError(413, str(error)), close=error.cut_short)
        if isinstance(error, BodyTooSlow):
            return refused(RestError(408, "the body did not arrive in time"), close=True)
        if isinstance(error, PathNotText):
            return refused(RestError(400, "the path is not UTF-8"))
        if isinstance(error, TarryError):
            return refused(error)
        log.error("a request failed with %s", told(error))
        return refused(RestError(500, "something went wrong inside the server"))


def refused(error: TarryError, *, close: bool = False) -> Response:
    """An error as a response."""
    status, body = refusal_of(error)
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after_ms / SECOND_MS))))
    return Response(status, headers, body, close=close)
