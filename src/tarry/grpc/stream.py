"""One stream of a connection: frames that come on it, and data that go out as the client's windows allow."""

from collections.abc import Callable
from typing import Final, Protocol

from tarry.grpc import frames
from tarry.grpc.frames import (
    END_STREAM,
    MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    Broken,
    ErrorCode,
    StreamBroken,
    frame,
    number,
)
from tarry.grpc.sending import WaitingStream

WITHIN_S: Final = 20.0
"""So long a call may take to come, or its answer to be read, beyond what the pace allows."""
PACE_BYTES: Final = 1024
"""The data of a call have to come at so many bytes a second on average."""


class Receiver(Protocol):
    """The receiver of a stream's data."""

    @property
    def wanting(self) -> bool:
        """Whether nothing can go on until more comes."""

    def come(self, data: bytes) -> None:
        """Data came."""

    def come_whole(self) -> None:
        """There will be no more."""

    def too_much(self) -> None:
        """The connection holds more data than it may: this stream is to end."""

    def lost(self) -> None:
        """The client has given it up, or is gone."""

    def revoke(self) -> None:
        """End if its token is not in force any more."""


class Nobody:
    """The receiver of a stream that is over. A stream lets go of its own one: two that hold each other live on for long."""

    wanting = False

    def come(self, data: bytes) -> None:
        """Nobody reads it."""

    def come_whole(self) -> None:
        """Nobody waits for it."""

    def too_much(self) -> None:
        """Nothing is held."""

    def lost(self) -> None:
        """Nobody minds."""

    def revoke(self) -> None:
        """There is no token."""


NOBODY: Final = Nobody()


class Carrier(Protocol):
    """The connection of streams, as far as they need it: what it sends, and the data that it holds for all of them."""

    held_bytes: int
    window_bytes: int
    first_window_bytes: int
    paused: bool
    waiting: dict[int, WaitingStream]

    def write(self, data: bytes) -> None:
        """Send."""

    def forget(self, stream: "GrpcStream") -> None:
        """A stream is over."""


class GrpcStream:
    """One stream. It is over when both ends have said so."""

    def __init__(self, connection: Carrier, id_: int, allowed_bytes: int) -> None:
        self._connection = connection
        self.id = id_
        self.receiver: Receiver = NOBODY
        self.whole = False
        """Whether the client has sent all."""
        self.over = False
        """Whether it was ended from here, or given up."""
        self.owed_bytes: int | None = None
        """The data that are still to come, where the client has announced their length."""
        self.on_sent: Callable[[], None] | None = None
        """The callback for the moment when nothing waits for the client any more."""
        self.on_over: Callable[[], None] | None = None
        """The callback for the moment when it holds nothing any more."""
        self._further_bytes = 0
        """Bytes that may be sent beside the client's first window, which may change at any time; negative once that is used."""
        self._allowed_bytes = self._full_bytes = allowed_bytes
        self._came_bytes = 0
        self._since_s: float | None = None
        """Since when the client has owed something, or its answer has waited for it."""
        self._left_bytes = 0
        self._held_bytes = 0
        self._unsent = b""
        self._sent_bytes = 0
        """How much of that is sent."""
        self._ending: bytes | None = None
        """The frame that ends it, behind data that are not sent yet."""

    # What comes

    def come(self, data: bytes, size: int) -> None:
        """Data came, in a frame of this size."""
        self._allowed_bytes -= size
        self._came_bytes += size
        if self._allowed_bytes < 0:
            raise Broken(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window (RFC 9113 §6.9.1)")
        if self.owed_bytes is not None:
            self.owed_bytes -= len(data)
            if self.owed_bytes < 0:
                raise StreamBroken(
                    ErrorCode.PROTOCOL_ERROR,
                    "DATA adds up to content-length, and here to more (RFC 9113 §8.1.1)",
                )
        self._hold(len(data))
        self.receiver.come(data)

    def come_whole(self) -> None:
        """The client has sent all."""
        self.whole = True
        if self.owed_bytes:
            raise StreamBroken(
                ErrorCode.PROTOCOL_ERROR, "DATA adds up to content-length, and here to less (RFC 9113 §8.1.1)"
            )
        self.receiver.come_whole()

    def go_ahead(self, kept_bytes: int) -> None:
        """Let the client send on, for all the bytes that came but those still kept."""
        self._hold(kept_bytes - self._held_bytes)
        more = self._full_bytes - self._allowed_bytes
        if more > self._full_bytes // 2 and not self.whole and not self.over:
            self._allowed_bytes = self._full_bytes
            self._connection.write(number(frames.WINDOW_UPDATE, self.id, more))

    def _hold(self, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        self._connection.held_bytes += more_bytes

    def over_time(self, now_s: float) -> bool:
        """Whether the client owes data for too long, or does not read an answer that is complete."""
        if self.over:
            left = len(self._unsent) - self._sent_bytes
            if left != self._left_bytes:
                self._left_bytes, self._since_s = left, now_s
            due_s = WITHIN_S
        elif self.whole or not self.receiver.wanting:
            self._since_s, self._came_bytes = None, 0
            return False
        else:
            due_s = WITHIN_S + self._came_bytes / PACE_BYTES
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s > due_s

    def lose(self) -> None:
        """Give the stream up."""
        receiver = self.receiver
        self._forget()
        if not self.over:
            self.over = True
            receiver.lost()
        self._sent()

    # Going out

    def begin(self, block: bytes) -> None:
        """Send the fields that come first."""
        if not self.over:
            self._connection.write(frames.headers(0, self.id, block))

    def send(self, data: bytes) -> None:
        """Send data, as far as the client allows; the rest goes when it does."""
        if not self.over:
            self._unsent = self._unsent[self._sent_bytes :] + data if self._unsent else data
            self._sent_bytes = 0
            self.go_on()

    def end(self, block: bytes = b"") -> None:
        """Send the fields that come last, if there are any, and the end, behind all data."""
        if self.over:
            return
        self.over = True
        self._ending = (
            frames.headers(END_STREAM, self.id, block) if block else frame(frames.DATA, END_STREAM, self.id)
        )
        self.go_on()

    @property
    def waits(self) -> bool:
        """Whether anything waits for the client."""
        return bool(self._unsent)

    def allow(self, more_bytes: int) -> None:
        """The client allows so much more; raises `StreamBroken`."""
        self._further_bytes += more_bytes
        if self._connection.first_window_bytes + self._further_bytes > MAX_WINDOW_BYTES:
            raise StreamBroken(
                ErrorCode.FLOW_CONTROL_ERROR, "a window is at most 2147483647 bytes (RFC 9113 §6.9.1)"
            )
        if self._unsent:
            self.go_on()

    def go_on(self) -> None:
        """Send as much data as the windows allow."""
        connection = self._connection
        while self._unsent:
            at = self._sent_bytes
            window_bytes = min(connection.first_window_bytes + self._further_bytes, connection.window_bytes)
            size = min(len(self._unsent) - at, window_bytes, MAX_FRAME_BYTES)
            if size <= 0 or connection.paused:
                connection.waiting[self.id] = self
                return
            self._further_bytes -= size
            connection.window_bytes -= size
            connection.write(frame(frames.DATA, 0, self.id, self._unsent[at : at + size]))
            self._sent_bytes = at + size
            if self._sent_bytes == len(self._unsent):
                self._unsent, self._sent_bytes = b"", 0
                connection.waiting.pop(self.id, None)
        if self._ending is not None:
            connection.write(self._ending)
            self._ending = None
            if not self.whole:
                # The client need not send the rest.
                connection.write(number(frames.RST_STREAM, self.id, ErrorCode.NO_ERROR))
            self._forget()
        self._sent()

    def _sent(self) -> None:
        if self.on_sent is not None:
            on_sent, self.on_sent = self.on_sent, None
            on_sent()

    def _forget(self) -> None:
        self._hold(-self._held_bytes)
        self._connection.forget(self)
        self.receiver = NOBODY
        if self.on_over is not None:
            on_over, self.on_over = self.on_over, None
            on_over()
