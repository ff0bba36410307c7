"""The application behind a listener, as its connections see it; and the operations that it serves, a row for each."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from tarry.core.tenants.rights import Right
from tarry.http.request import Request
from tarry.http.response import Response, Streamed


class Settling(Protocol):
    """A response that settles later, on the loop's thread: the engine's answers are of this shape."""

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call back with this answer once it is settled; at once if it is."""

    def value(self) -> Any:
        """The response; raises the error if it is one."""


Given = Response | Streamed
Outcome = Given | Settling | Awaitable[Given]
"""An endpoint gives one of these. Only an awaitable costs a task."""


class Endpoint:
    """A function that serves requests, and how much of their bodies it takes."""

    __slots__ = ("max_body_bytes", "run", "streams", "timeout_ms")

    def __init__(
        self,
        run: Callable[[Request], Outcome],
        max_body_bytes: int | None = None,
        *,
        streams: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """`max_body_bytes`: the largest body, which is gathered first; None takes no body, and lets what comes be lost.

        `streams`: the endpoint begins at once, and reads the body piece by piece. `timeout_ms`: the whole body, or the next
        piece of a stream, or the client's taking of one, must not take longer.
        """
        self.run = run
        self.max_body_bytes = max_body_bytes
        self.streams = streams
        self.timeout_ms = timeout_ms


class Application(Protocol):
    """A door over HTTP."""

    def open(self, request: Request) -> Endpoint:
        """The endpoint of a request whose head has come; raises for a request that is refused before its body is read."""

    def refuse(self, request: Request, error: Exception) -> Response:
        """The response to what `open` or an endpoint raised, by the door's table; it logs what should not have happened."""


class Served(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    right: Right
    """The role and the namespaces that it requires; whoever finds the row checks that before the body is read."""
    endpoint: Endpoint
    head: bool = True
    """Whether what a GET serves is served to a HEAD."""
