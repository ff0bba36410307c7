"""One client's connection over HTTP/2 as a pure protocol object: bytes in, streams, bytes out. It does no I/O.

What is written within one turn of the loop goes out together. Bytes that cannot be end the connection with a reason
(GOAWAY), and harm no other. What a client makes the server hold is bounded: by windows in both directions, by the number
of streams, by the size of a block of fields, and by all its unanswered data together.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from tarry.doors.dapr.http2 import frames
from tarry.doors.dapr.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    Broken,
    Code,
    Frames,
    frame,
    number,
)
from tarry.doors.dapr.http2.hpack import BadBlock, Fields, Reader, TooManyFields
from tarry.doors.dapr.http2.stream import Receiver, Stream

MAX_BLOCK_BYTES: Final = 16_384
"""A block of fields, and the fields in it."""
WINDOW_BYTES: Final = 1 << 20
"""What a client may send on a stream, and on all of them, before it is told that it may go on."""

log = logging.getLogger("tarry.dapr")


class Output(Protocol):
    """Where a connection's bytes go."""

    def write(self, data: bytes) -> None:
        """Send."""

    def close(self) -> None:
        """Close once all is sent."""

    def soon(self, work: Callable[[], None]) -> None:
        """Do something at the end of this turn."""


Open = Callable[[Stream, Fields], Receiver]
"""Called with each stream that a client begins, and its fields."""


class Connection:
    """One client."""

    def __init__(self, out: Output, open_: Open, max_streams: int, max_held_bytes: int) -> None:
        self._out = out
        self._open = open_
        self._max_streams = max_streams
        self._max_held_bytes = max_held_bytes
        self.held_bytes = 0
        """Data of requests that are not complete, or not read."""
        self.window_bytes = FIRST_WINDOW_BYTES
        """What may be sent to the client, on all streams together."""
        self.first_window_bytes = FIRST_WINDOW_BYTES
        """The same on each stream, before the client allows it more."""
        self.paused = False
        """Whether the client has to read before it is sent more data."""
        self.closed = False
        self.on_idle: Callable[[], None] | None = None
        """What is called when no stream is open while nothing more begins."""
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[int, Stream] = {}
        """Those that have data for which the client has no room."""
        self._last = 0
        self._taken_bytes = 0
        """What came since the client was last told that it may go on."""
        self._frames = Frames()
        self._fields = Reader(MAX_BLOCK_BYTES)
        self._block: tuple[int, int, bytes] | None = None
        """A block that goes on in the next frame: its stream, its flags, and what came of it."""
        self._stopping = False
        self._unsent: list[bytes] = []
        self._takes: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._data,
            frames.HEADERS: self._headers,
            frames.PRIORITY: lambda *_: None,
            frames.RST_STREAM: self._reset,
            frames.SETTINGS: self._settings,
            frames.PING: self._ping,
            frames.GOAWAY: lambda *_: None,
            frames.WINDOW_UPDATE: self._window,
        }
        greeting = frames.settings(
            (frames.MAX_CONCURRENT_STREAMS, max_streams),
            (frames.INITIAL_WINDOW_SIZE, WINDOW_BYTES),
            (frames.MAX_HEADER_LIST_SIZE, MAX_BLOCK_BYTES),
        )
        self.write(greeting + number(frames.WINDOW_UPDATE, 0, WINDOW_BYTES - FIRST_WINDOW_BYTES))

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        try:
            for kind, flags, stream, payload in self._frames.feed(data):
                if self.closed:
                    return
                if self._block is not None:
                    self._continue(kind, flags, stream, payload)
                elif kind == frames.CONTINUATION or kind == frames.PUSH_PROMISE:
                    raise Broken(Code.PROTOCOL_ERROR, f"a frame of kind {kind} that nothing announced")
                elif (take := self._takes.get(kind)) is not None:
                    take(flags, stream, payload)
        except Broken as broken:
            self.fail(broken.code, str(broken))
        self.flush()

    def _continue(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._block is not None
        of, first_flags, so_far = self._block
        if kind != frames.CONTINUATION or stream != of:
            raise Broken(Code.PROTOCOL_ERROR, "a block of fields that does not go on")
        block = so_far + payload
        self._block = None
        if flags & END_HEADERS:
            self._begin(of, first_flags, block)
        else:
            self._wait_for_rest(of, first_flags, block)

    def _wait_for_rest(self, stream: int, flags: int, block: bytes) -> None:
        if len(block) > MAX_BLOCK_BYTES:
            raise Broken(Code.ENHANCE_YOUR_CALM, f"a block of fields larger than {MAX_BLOCK_BYTES} bytes")
        self._block = stream, flags, block

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        block = frames.unpadded(flags, payload)
        if flags & END_HEADERS:
            self._begin(stream, flags, block)
        else:
            self._wait_for_rest(stream, flags, block)

    def _begin(self, id_: int, flags: int, block: bytes) -> None:
        """A block is complete. It is read in any case: the table of fields goes on with it."""
        try:
            fields: Fields | None = self._fields.read(block)
        except BadBlock as error:
            raise Broken(Code.COMPRESSION_ERROR, f"a block of fields that is none: {error}") from None
        except TooManyFields:
            fields = None
        if id_ & 1 == 0:
            raise Broken(Code.PROTOCOL_ERROR, "a stream with an even number")
        if id_ <= self._last:
            self._trailers(id_, flags)
            return
        self._last = id_
        if self._stopping or len(self.streams) >= self._max_streams:
            self.write(number(frames.RST_STREAM, id_, Code.REFUSED_STREAM))
        elif fields is None:
            self.write(number(frames.RST_STREAM, id_, Code.ENHANCE_YOUR_CALM))
        else:
            stream = self.streams[id_] = Stream(self, id_, WINDOW_BYTES)
            stream.whole = bool(flags & END_STREAM)
            receiver = self._open(stream, fields)
            if stream.over:
                return
            stream.receiver = receiver
            if stream.whole:
                stream.come_whole()

    def _trailers(self, id_: int, flags: int) -> None:
        """A second block of a stream is its end; one that is over is not told again."""
        stream = self.streams.get(id_)
        if stream is not None:
            if not flags & END_STREAM or stream.whole:
                raise Broken(Code.PROTOCOL_ERROR, "a second block of fields within a stream")
            stream.come_whole()

    def _data(self, flags: int, id_: int, payload: bytes) -> None:
        if not 0 < id_ <= self._last:
            raise Broken(Code.PROTOCOL_ERROR, "data of a stream that was not begun")
        size = len(payload)
        self._taken_bytes += size
        if self._taken_bytes > WINDOW_BYTES:
            raise Broken(Code.FLOW_CONTROL_ERROR, "more data than allowed")
        if self._taken_bytes > WINDOW_BYTES // 2:
            self.write(number(frames.WINDOW_UPDATE, 0, self._taken_bytes))
            self._taken_bytes = 0
        stream = self.streams.get(id_)
        # One that was ended from here may not know it yet.
        if stream is None:
            return
        if stream.whole:
            raise Broken(Code.STREAM_CLOSED, "data behind the end of a stream")
        data = frames.unpadded(flags & frames.PADDED, payload) if flags & frames.PADDED else payload
        stream.come(data, size)
        if self.held_bytes > self._max_held_bytes:
            stream.receiver.too_much()
        if flags & END_STREAM and not stream.over:
            stream.come_whole()

    def _reset(self, _: int, id_: int, payload: bytes) -> None:
        frames.number_of(payload)
        if not 0 < id_ <= self._last:
            raise Broken(Code.PROTOCOL_ERROR, "the end of a stream that was not begun")
        stream = self.streams.get(id_)
        if stream is not None:
            stream.lose()

    def _settings(self, flags: int, id_: int, payload: bytes) -> None:
        if id_ or (flags & ACK and payload):
            raise Broken(Code.PROTOCOL_ERROR, "settings that are none")
        if flags & ACK:
            return
        for name, value in frames.settings_of(payload):
            if name == frames.MAX_FRAME_SIZE and not frames.MAX_FRAME_BYTES <= value < 1 << 24:
                raise Broken(Code.PROTOCOL_ERROR, f"a frame size of {value}")
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise Broken(Code.FLOW_CONTROL_ERROR, f"a window of {value}")
                self.first_window_bytes = value
        # Once for all that the frame says, and only for what waits: a frame has room for thousands of settings.
        self._go_on()
        self.write(frame(frames.SETTINGS, ACK, 0))

    def _ping(self, flags: int, id_: int, payload: bytes) -> None:
        if id_ or len(payload) != 8:
            raise Broken(Code.FRAME_SIZE_ERROR, "a ping that is none")
        if not flags & ACK:
            self.write(frame(frames.PING, ACK, 0, payload))

    def _window(self, _: int, id_: int, payload: bytes) -> None:
        more = frames.number_of(payload) & MAX_WINDOW_BYTES
        if not more:
            raise Broken(Code.PROTOCOL_ERROR, "a window that does not grow")
        if id_ == 0:
            self.window_bytes += more
            if self.window_bytes > MAX_WINDOW_BYTES:
                raise Broken(Code.FLOW_CONTROL_ERROR, "a window that is too large")
            self._go_on()
        elif (stream := self.streams.get(id_)) is not None:
            stream.allow(more)
        elif id_ > self._last:
            raise Broken(Code.PROTOCOL_ERROR, "a window of a stream that was not begun")

    # Bytes out

    def write(self, data: bytes) -> None:
        """Send, with what else is written in this turn."""
        if not self._unsent:
            self._out.soon(self.flush)
        self._unsent.append(data)

    def flush(self) -> None:
        """Send what was written."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._out.write(b"".join(unsent))

    def hold(self) -> None:
        """The client reads slower than it is sent to: data wait."""
        self.paused = True

    def release(self) -> None:
        """The client reads again."""
        self.paused = False
        self._go_on()

    def _go_on(self) -> None:
        for stream in list(self.waiting.values()):
            stream.go_on()

    # Life

    def stop(self) -> None:
        """Begin nothing more; what is under way may end."""
        if not self._stopping and not self.closed:
            self._stopping = True
            self._say_goodbye(Code.NO_ERROR, "")
            self._out.soon(self.look_idle)

    def forget(self, stream: Stream) -> None:
        """A stream is over."""
        self.streams.pop(stream.id, None)
        self.waiting.pop(stream.id, None)
        if self._stopping and not self.streams:
            self._out.soon(self.look_idle)

    def look_idle(self) -> None:
        """Tell who wants to know that nothing is under way, if nothing is."""
        if not self.streams and self.on_idle is not None:
            self.on_idle()

    @property
    def owing(self) -> bool:
        """Whether the client began something of which it has not sent all."""
        begun = any(not one.whole and one.receiver.wanting for one in self.streams.values())
        return begun or self._block is not None

    def fail(self, code: Code, reason: str) -> None:
        """End the connection with a reason."""
        if not self.closed:
            log.warning("a gRPC connection is closed: %s", reason)
            self._say_goodbye(code, reason)
            self.close()

    def _say_goodbye(self, code: Code, reason: str) -> None:
        payload = self._last.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()
        self.write(frame(frames.GOAWAY, 0, 0, payload))

    def close(self) -> None:
        """Let go of everything, and close once what was written is sent."""
        if not self.closed:
            self.closed = True
            for stream in list(self.streams.values()):
                stream.lose()
            self.flush()
            self._out.close()
