"""The native HTTP door as one application of the kit: gate, routes, refusals.

Whatever goes wrong is answered with a problem document; what should not have happened is logged by its place in the code
only, because an error's text may hold an id.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tarry import __version__
from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.telemetry.faults import told
from tarry.core.telemetry.figure import AnyFigure
from tarry.core.tenants.access import Access
from tarry.core.tenants.rights import OPEN
from tarry.doors.http.gate import Gate
from tarry.doors.http.messages.batches import BatchEndpoints
from tarry.doors.http.messages.bulk import BulkEndpoints
from tarry.doors.http.messages.cancels import CancelEndpoint
from tarry.doors.http.messages.commands import CommandEndpoints
from tarry.doors.http.messages.messages import Messages
from tarry.doors.http.messages.pauses import PauseEndpoints
from tarry.doors.http.messages.repeats import RepeatEndpoints
from tarry.doors.http.openapi import build_document
from tarry.doors.http.operations import OPERATIONS, Endpoints, Operation
from tarry.doors.http.operator.backups import BackupEndpoints
from tarry.doors.http.operator.figures import ClusterFigures
from tarry.doors.http.operator.ledger import LedgerEndpoints
from tarry.doors.http.operator.overview import OverviewEndpoints
from tarry.doors.http.operator.policies import PolicyEndpoints
from tarry.doors.http.operator.sent import Sent
from tarry.doors.http.operator.status import StatusEndpoints
from tarry.doors.http.problems import HttpRefusal, internal, timed_out
from tarry.doors.http.responses import refusal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.topics.delayed import DelayedEndpoints
from tarry.doors.http.topics.events import EventEndpoint
from tarry.doors.http.topics.sessions import Sessions
from tarry.doors.http.topics.subscriptions import SubscriptionEndpoints
from tarry.doors.http.topics.topics import TopicEndpoints
from tarry.engine.engine import Engine
from tarry.http.application import Application, Endpoint, Served
from tarry.http.errors import BodyTooLarge, BodyTooSlow, PathNotText
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.http.routing import Routes
from tarry.index.progress import Progress

_log = logging.getLogger(__name__)

PageEndpoint = Callable[[Request], Response]

METRICS: Final = "/metrics"


class HttpApp:
    """The application. `stop` ends what would otherwise go on: sessions and streams."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        settings: HttpSettings,
        progress: Callable[[], Progress | None],
        mounts: Mapping[str, Application],
        pages: Mapping[str, PageEndpoint],
        figures: Sequence[AnyFigure],
        cluster: Callable[[], ClusterFigures | None],
        warnings: Callable[[], Sequence[str]],
    ) -> None:
        self._mounts = [(path.encode(), app) for path, app in mounts.items()]
        self._pages = {path.encode(): Endpoint(page) for path, page in pages.items()}
        self._gate = Gate(access, settings.allowed_hosts)
        self._sessions = sessions = Sessions(engine.topics, settings, access)
        batches = BatchEndpoints(engine, settings, access)
        sent = Sent(engine.clock)
        engine.tell_of_sent(sent.observe)
        documents = {is_open: build_document(__version__, is_open=is_open) for is_open in (True, False)}
        endpoints = Endpoints(
            messages=Messages(engine),
            batches=batches,
            cancels=CancelEndpoint(engine, settings, access),
            bulk=BulkEndpoints(engine, settings, access),
            repeats=RepeatEndpoints(engine),
            pauses=PauseEndpoints(engine),
            commands=CommandEndpoints(engine),
            topics=TopicEndpoints(engine),
            delayed=DelayedEndpoints(engine),
            subscriptions=SubscriptionEndpoints(engine, sessions, settings),
            events=EventEndpoint(sessions, settings),
            policies=PolicyEndpoints(engine),
            ledger=LedgerEndpoints(engine, settings),
            backups=BackupEndpoints(engine),
            overview=OverviewEndpoints(
                engine, __version__, access, sent, sessions, batches, progress, cluster
            ),
            status=StatusEndpoints(
                engine, sessions, batches, sent, access, documents, progress, figures, warnings
            ),
        )
        self._routes = Routes([_served(one, endpoints, settings) for one in OPERATIONS])

    def open(self, request: Request) -> Endpoint:
        """Let a request in, and find its endpoint."""
        found = self._routes.find(request.path)
        if found is None:
            return self._open_elsewhere(request)
        route, parts = found
        served = route.rows.get(request.method)
        if served is None or served.right.reach != "open":
            request.caller = self._gate.let_in(request)
        if served is None:
            raise HttpRefusal(
                405, "method-not-allowed", f"use {route.allowed}", [(b"allow", route.allowed.encode())]
            )
        served.right.check(request.caller)
        if parts:
            request.params = route.named(parts)
        return served.endpoint

    def _open_elsewhere(self, request: Request) -> Endpoint:
        app = self._mounted(request)
        if app is not None:
            return app.open(request)
        page = self._pages.get(request.path)
        if page is not None:
            return page
        self._gate.let_in(request)
        raise HttpRefusal(404, "no-such-path", "there is nothing at this path; /openapi.json lists all paths")

    def _mounted(self, request: Request) -> Application | None:
        return next((app for path, app in self._mounts if request.path.startswith(path)), None)

    def refuse(self, request: Request, error: Exception) -> Response:
        """The problem document of an error; of a mounted application its own."""
        app = self._mounted(request)
        if app is not None:
            return app.refuse(request, error)
        if isinstance(error, TarryError):
            return refusal(error)
        if isinstance(error, BodyTooLarge):
            response = refusal(TooLarge("body", error.limit))
            response.close = error.cut_short
            return response
        if isinstance(error, BodyTooSlow):
            return refusal(timed_out())
        if isinstance(error, PathNotText):
            return refusal(Invalid("path", "has a part that is not UTF-8"))
        _log.error("a request failed with %s", told(error))
        return refusal(internal())

    def revoke(self) -> None:
        """End the consumer sessions and event streams of tokens that are not in force any more."""
        self._sessions.revoke()

    def stop(self) -> None:
        """End every consumer session and event stream, so that the listener can end."""
        self._sessions.stop()


def _served(operation: Operation, endpoints: Endpoints, settings: HttpSettings) -> Served:
    endpoint = Endpoint(
        operation.endpoint(endpoints),
        None if operation.body is None else settings.max_body_bytes,
        streams=operation.streams,
        timeout_ms=settings.body_timeout_ms,
    )
    is_open = operation.path == METRICS and settings.metrics_open
    right = OPEN if is_open else operation.right
    return Served(operation.method, operation.path, right, endpoint, operation.head)


def build_app(
    engine: Engine,
    access: Access,
    settings: HttpSettings,
    progress: Callable[[], Progress | None] = lambda: None,
    mounts: Mapping[str, Application] | None = None,
    pages: Mapping[str, PageEndpoint] | None = None,
    figures: Sequence[AnyFigure] = (),
    cluster: Callable[[], ClusterFigures | None] = lambda: None,
    warnings: Callable[[], Sequence[str]] = tuple,
) -> HttpApp:
    """The application of the door.

    `progress` is what the pipeline says of itself; `mounts` are applications that others serve here, by the beginning of
    their paths; they ask for tokens themselves. `pages`, by their whole paths, are for everybody. `figures` are what others
    tell the metrics, `cluster` the servers that share the ledger, and `warnings` are what others have to say.
    """
    return HttpApp(engine, access, settings, progress, mounts or {}, pages or {}, figures, cluster, warnings)
