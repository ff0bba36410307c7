"""The trace that a request belongs to: from the listener to the tracer, past the doors, which need not know of it.

Only where something is traced are applications wrapped in these. What a request begins has its trace too; the engine's own turns and
what it sends are no part of any request (`tarry.engine.loop.driver`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from tarry.core.tracing import TRACEPARENT
from tarry.engine.engine import Engine
from tarry.grpc.call import Call, Service, Streaming, Unary
from tarry.serve.transport.heads import Answering, Client, Quick, Reply

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


def traced_app(app: Any, engine: Engine) -> Any:
    """An ASGI application, so that what it accepts belongs to the trace of its request."""
    return TracedApp(app) if engine.traced else app


def traced_rpc(service: Service, engine: Engine) -> Service:
    """A gRPC service whose calls have their callers' traces."""
    return TracedRpc(service) if engine.traced else service


class TracedApp:
    """See `traced_app`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        quick: Quick | None = getattr(app, "quick", None)
        if quick is not None:
            # The way without a task, which the listener takes where an application has it.
            self.quick = partial(_traced_quick, quick)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        with called_by(_parent_in(scope.get("headers", ()))):
            await self._app(scope, receive, send)


def _traced_quick(quick: Quick, scope: Any) -> Answering | None:
    answering, parent = quick(scope), _parent_in(scope["headers"])
    if answering is None:
        return None

    def traced(body: bytes, client: Client, reply: Reply) -> bool:
        with called_by(parent):
            return answering(body, client, reply)

    return traced


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


def _parent_in(headers: Any) -> str | None:
    return next((str(value, "latin-1") for name, value in headers if name == _HEADER), None)
