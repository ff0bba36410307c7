"""The server's own state: health, readiness, figures, metrics, and the OpenAPI document."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tarry.core.telemetry.figure import AnyFigure
from tarry.core.tenants.access import Access
from tarry.doors.http.messages.batches import BatchEndpoints
from tarry.doors.http.operator.metrics import Metrics
from tarry.doors.http.operator.sent import Sent
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import ReadyAnswer, StatusAnswer
from tarry.doors.http.topics.sessions import Sessions
from tarry.engine.engine import Engine
from tarry.http.fixed import Fixed, HeaderTuple
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.index.progress import Progress

_JSON: Final[HeaderTuple] = ((b"content-type", b"application/json"),)


class StatusEndpoints:
    """The endpoints that are about the server and not about messages."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        batches: BatchEndpoints,
        sent: Sent,
        access: Access,
        documents: Mapping[bool, bytes],
        progress: Callable[[], Progress | None],
        figures: Sequence[AnyFigure],
        warnings: Callable[[], Sequence[str]],
    ) -> None:
        self._engine = engine
        self._further = warnings
        self._sessions = sessions
        self._batches = batches
        self._access = access
        self._documents = {is_open: Fixed(one, _JSON) for is_open, one in documents.items()}
        """The OpenAPI document, by whether access is open."""
        self._metrics = Metrics(
            engine, sent, lambda: len(sessions), lambda: batches.under_way, progress, figures
        )

    async def health(self, _request: Request) -> Response:
        """GET /healthz: the process lives and its loop turns."""
        return json_response({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """GET /readyz: 503 with the reasons while messages are not accepted or not sent."""
        reasons = reasons_of(self._engine)
        answer = ReadyAnswer(ready=not reasons, reasons=reasons, warnings=self._warnings())
        return json_response(answer, 503 if reasons else 200)

    async def status(self, _request: Request) -> Response:
        """GET /v1/status."""
        reasons = reasons_of(self._engine)
        return json_response(
            StatusAnswer(
                ready=not reasons,
                reasons=reasons,
                warnings=self._warnings(),
                engine=msgspec.to_builtins(self._engine.stats()),
                sessions=len(self._sessions),
                batches=self._batches.under_way,
            )
        )

    def _warnings(self) -> list[str]:
        return [*self._engine.warnings, *self._further()]

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        body, content_type = self._metrics.render()
        return Response(200, [(b"content-type", content_type.encode())], body)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return self._documents[self._access.is_open].answer(request)


def reasons_of(engine: Engine) -> list[str]:
    """Why messages are not accepted or not sent on time; empty if all is well."""
    # Everybody may ask, so the reasons name no file; the log and /v1/status do.
    if not engine.ready:
        return ["starting: the ledger is being read"]
    stats = engine.stats()
    reasons = []
    if stats.failed is not None:
        reasons.append("the ledger could not be written; the log says why; restart once that is mended")
    if stats.low_space:
        reasons.append("the disk is nearly full; accepted messages are safe, new ones are refused")
    if engine.trouble is not None:
        reasons.append("the index cannot be read; messages in it will be late; the log says why")
    return reasons
