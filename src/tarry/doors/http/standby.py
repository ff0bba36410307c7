"""The HTTP door of a server that stands by: whether it lives, that it is not ready, and its figures; everything else is elsewhere.

A load balancer that goes by `/readyz` sends nobody here. Who comes all the same is told where the owner is.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tarry.core.errors import TarryError, Unavailable
from tarry.core.telemetry.faults import told
from tarry.core.telemetry.figure import AnyFigure, Figure
from tarry.core.tenants.access import Access
from tarry.core.tenants.rights import GOVERN_ALL
from tarry.doors.http.gate import Gate
from tarry.doors.http.operator.metrics import OtherFigures
from tarry.doors.http.problems import internal
from tarry.doors.http.responses import json_response, refusal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import ReadyAnswer
from tarry.http.application import Endpoint
from tarry.http.request import Request
from tarry.http.response import Response

READING: Final = ("GET", "HEAD")

_log = logging.getLogger(__name__)


class StandbyApp:
    """See `tarry.http.application.Application`."""

    def __init__(
        self,
        access: Access,
        settings: HttpSettings,
        reasons: Callable[[], list[str]],
        owner: Callable[[], str],
        figures: Sequence[AnyFigure],
    ) -> None:
        """`reasons` say why it is not ready, `owner` who owns the ledger and where."""
        self._gate = Gate(access, settings.allowed_hosts)
        self._metrics_open = settings.metrics_open
        self._reasons = reasons
        self._owner = owner
        self._registry = CollectorRegistry()
        ready = Figure(name="tarry_ready", text="1 once recovery is done", values=lambda: {"": 0.0})
        self._registry.register(OtherFigures([ready, *figures]))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._endpoints = {
            b"/healthz": Endpoint(self._health),
            b"/readyz": Endpoint(self._ready),
            b"/metrics": Endpoint(self._metrics),
        }

    def open(self, request: Request) -> Endpoint:
        """Let a request in, and find its endpoint."""
        endpoint = self._endpoints.get(request.path) if request.method in READING else None
        if endpoint is None:
            raise Unavailable(f"this server stands by; {self._owner()}")
        if request.path == b"/metrics" and not self._metrics_open:
            GOVERN_ALL.check(self._gate.let_in(request))
        return endpoint

    def refuse(self, request: Request, error: Exception) -> Response:
        """The problem document of an error."""
        if isinstance(error, TarryError):
            return refusal(error)
        _log.error("a request failed with %s", told(error))
        return refusal(internal())

    def _health(self, _request: Request) -> Response:
        return json_response({"status": "ok"})

    def _ready(self, _request: Request) -> Response:
        return json_response(ReadyAnswer(ready=False, reasons=self._reasons(), warnings=[]), 503)

    def _metrics(self, _request: Request) -> Response:
        return Response(
            200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], generate_latest(self._registry)
        )
