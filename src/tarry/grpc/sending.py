"""The sending side of a connection: writes of one turn go out together, and data wait for the client's windows."""

from collections.abc import Callable
from typing import Protocol

from tarry.grpc.frames import FIRST_WINDOW_BYTES


class Output(Protocol):
    """Where a connection's bytes go."""

    def write(self, data: bytes) -> None:
        """Send."""

    def close(self) -> None:
        """Close once all is sent."""

    def soon(self, work: Callable[[], None]) -> None:
        """Do something at the end of this turn."""


class WaitingStream(Protocol):
    """A stream that has data for which the client has no room."""

    @property
    def waits(self) -> bool:
        """Whether it still could not send all."""

    def go_on(self) -> None:
        """Send what there is room for."""


class Sending:
    """Bytes to one client."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._unsent: list[bytes] = []
        self.window_bytes = FIRST_WINDOW_BYTES
        """Bytes that may be sent to the client, on all streams together."""
        self.first_window_bytes = FIRST_WINDOW_BYTES
        """Bytes that may be sent on each stream, before the client allows it more."""
        self.paused = False
        """Whether the client has to read before it is sent more data."""
        self.waiting: dict[int, WaitingStream] = {}
        """Streams that have data for which the client has no room."""

    def write(self, data: bytes) -> None:
        """Send bytes, together with the others of this turn."""
        if not self._unsent:
            self._out.soon(self.flush)
        self._unsent.append(data)

    def flush(self) -> None:
        """Send the frames that were written."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._out.write(b"".join(unsent))

    def hold(self) -> None:
        """The client reads slower than it is sent to: data wait."""
        self.paused = True

    def release(self) -> None:
        """The client reads again."""
        self.paused = False
        self.go_on()

    def go_on(self) -> int:
        """Let waiting streams send until the connection's window is used up; gives how many could not send all."""
        stuck = 0
        for stream in list(self.waiting.values()):
            if self.window_bytes <= 0 or self.paused:
                break
            stream.go_on()
            stuck += stream.waits
        return stuck
