"""The administration as one ASGI application, mounted on the native API's port."""

import logging
from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tarry.core.access import ANYBODY, Caller
from tarry.core.browser import check_browser
from tarry.core.errors import RateLimited, TarryError
from tarry.core.faults import told
from tarry.core.limits import SECOND_MS
from tarry.core.rights import PULSAR_ADMIN, Right, right_of
from tarry.doors.pulsar.admin import (
    cluster,
    messages,
    namespaces,
    policies,
    rules,
    schemas,
    subscriptions,
    topics,
    unserved,
)
from tarry.doors.pulsar.admin.call import AdminCall, AdminEndpoint
from tarry.doors.pulsar.admin.refusals import RestError, refusal_of
from tarry.doors.pulsar.broker import Broker

log = logging.getLogger("tarry.pulsar")

MODULES: Final = (cluster, policies, rules, schemas, subscriptions, messages, namespaces, topics, unserved)
"""The modules with endpoints, each with its `ROUTES`; the first that has a path answers."""

PATHS: Final = ("/admin/", "/lookup/")
"""Prefixes of the paths that this application answers."""


class AdminApp:
    """Answers the administration's requests. The broker comes when the door starts."""

    def __init__(self, service_url: Callable[[str], str]) -> None:
        self.broker: Broker | None = None
        self._service_url = service_url
        """Where somebody finds the binary protocol who knows this machine under a name."""
        self._router = Router(
            [
                Route(path, _Methods(self, path, methods))
                for module in MODULES
                for path, methods in module.ROUTES.items()
            ],
            redirect_slashes=False,
            default=_no_such_path,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._router(scope, receive, send)
        except TarryError as error:
            await _refuse(error, scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the last resort; nothing may pass it
            log.error("a request failed with %s", told(error))
            await _refuse(RestError(500, "something went wrong inside the server"), scope, receive, send)

    def call(self, request: Request, right: Right) -> AdminCall:
        """The request with its sender; raises for a sender without that right."""
        broker = self.broker
        if broker is None or broker.stopping:
            raise RestError(503, "the server is starting or stopping")
        host = request.headers.get("host", "")
        caller = self._sender(broker, request, right)
        right.check(caller)
        return AdminCall(request, broker, caller, self._service_url(host))

    @staticmethod
    def _sender(broker: Broker, request: Request, right: Right) -> Caller:
        header = dict(request.scope["headers"]).get
        if broker.access.is_open:
            check_browser(header(b"host"), header(b"origin"), header(b"sec-fetch-site"), frozenset())
        if right.reach == "open":
            return ANYBODY
        scheme, _, secret = (header(b"authorization") or b"").partition(b" ")
        known = broker.access.known(secret.strip() if scheme.lower() == b"bearer" else None)
        if known is None:
            raise RestError(401, "Authentication required")
        known.standing.spend()
        return known


class _Methods:
    """The methods of a path, each behind its row of the rights table."""

    def __init__(self, app: AdminApp, path: str, endpoints: Mapping[str, AdminEndpoint]) -> None:
        self._app = app
        self._endpoints = {
            method: (right_of(PULSAR_ADMIN, f"{method} {path}"), endpoint)
            for method, endpoint in endpoints.items()
        }
        self._allowed = ", ".join(self._endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._endpoints.get(scope["method"])
        if found is None:
            raise RestError(405, f"use {self._allowed}")
        right, endpoint = found
        response = await endpoint(self._app.call(Request(scope, receive), right))
        await response(scope, receive, send)


async def _no_such_path(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RestError(404, "there is nothing at this path here")


async def _refuse(error: TarryError, scope: Scope, receive: Receive, send: Send) -> None:
    status, body = refusal_of(error)
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RateLimited):
        headers["retry-after"] = str(max(1, ceil(error.retry_after_ms / SECOND_MS)))
    await Response(body, status, headers)(scope, receive, send)
