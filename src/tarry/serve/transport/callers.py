"""The trace that a request belongs to: from the listener to the tracer, past the doors, which need not know of it.

Only where something is traced are applications wrapped in these. What a request begins has its trace too; the engine's own turns and
what it sends are no part of any request (`tarry.engine.loop.driver`).
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final

from tarry.core.telemetry.tracing import TRACEPARENT
from tarry.engine.engine import Engine
from tarry.grpc.call import Call, Service, Streaming, Unary
from tarry.http.application import Application, Endpoint, Given, Outcome
from tarry.http.request import Request
from tarry.http.response import Response, Streamed

_HEADER: Final = TRACEPARENT.encode()
_caller: ContextVar[str | None] = ContextVar("caller", default=None)

caller: Final = _caller.get
"""The trace context that came with the request that is being answered here, as in `traceparent`."""


@contextmanager
def called_by(parent: str | None) -> Iterator[None]:
    """While a request that came with this trace context is answered."""
    before = _caller.set(parent)
    try:
        yield
    finally:
        _caller.reset(before)


def traced_app(app: Application, engine: Engine) -> Application:
    """An HTTP application whose accepted messages belong to the trace of their request."""
    return TracedApp(app) if engine.traced else app


def traced_rpc(service: Service, engine: Engine) -> Service:
    """A gRPC service whose calls have their callers' traces."""
    return TracedRpc(service) if engine.traced else service


class TracedApp:
    """See `traced_app`."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def open(self, request: Request) -> Endpoint:
        """See `Application`."""
        found = self._app.open(request)
        parent = request.header(_HEADER)
        run = partial(_traced, found.run, None if parent is None else parent.decode("latin-1"))
        return Endpoint(run, found.max_body_bytes, streams=found.streams, timeout_ms=found.timeout_ms)

    def refuse(self, request: Request, error: Exception) -> Response:
        """See `Application`."""
        return self._app.refuse(request, error)


def _traced(run: Callable[[Request], Outcome], parent: str | None, request: Request) -> Outcome:
    with called_by(parent):
        outcome = run(request)
    if isinstance(outcome, Response) or hasattr(outcome, "then"):
        return outcome
    return _go_on(outcome, parent)


async def _go_on(outcome: Streamed | Awaitable[Given], parent: str | None) -> Given:
    # In the request's own task, and for as long as that goes on.
    _caller.set(parent)
    return outcome if isinstance(outcome, Streamed) else await outcome


class TracedRpc:
    """See `traced_rpc`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def admit(self, call: Call) -> None:
        """Let the service decide."""
        self._service.admit(call)

    def unary(self, path: str) -> Unary | None:
        """The function that serves a method with one message each way."""
        serve = self._service.unary(path)
        if serve is None:
            return None

        def traced(call: Call, message: bytes) -> None:
            with called_by(next((str(value) for name, value in call.metadata if name == TRACEPARENT), None)):
                serve(call, message)

        return traced

    def streaming(self, path: str) -> Streaming | None:
        """The function that serves a method of another kind: none of them accepts messages."""
        return self._service.streaming(path)
