"""One client's connection over HTTP/2 as a pure protocol object: bytes in, streams, bytes out. It does no I/O.

What is written within one turn of the loop goes out together. Bytes that cannot be end the connection with a reason
(GOAWAY), and harm no other. What a client makes the server hold is bounded: by windows in both directions, by the number
of streams, by the size of a block of fields, and by all its unanswered data together. So is what it makes the server do
for nothing (`Calm`), and the time that a call may take to come, or an answer to be read (`sweep`).
"""

import logging
from collections.abc import Callable
from typing import Final

from tarry.grpc import control, frames
from tarry.grpc.calm import REFUSED_STRAIN, RESET_STRAIN, Calm
from tarry.grpc.ended import EndedStreams
from tarry.grpc.fields import check_trailers
from tarry.grpc.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    Broken,
    ErrorCode,
    Http2Frames,
    StreamBroken,
    frame,
    number,
)
from tarry.grpc.hpack import BadBlock, BlockReader, HeaderFields, TooManyFields
from tarry.grpc.sending import Output, Sending
from tarry.grpc.stream import WITHIN_S, GrpcStream, Receiver

MAX_BLOCK_BYTES: Final = 16_384
"""A block of fields, and the fields in it."""
WINDOW_BYTES: Final = 1 << 20
"""Bytes that a client may send on a stream, and on all of them, before it is told that it may go on."""
MIN_PIECE_BYTES: Final = 64
"""A smaller piece of a block of fields counts as a frame for nothing: no client cuts its fields so small."""
CALLS_AT_ONCE: Final = 64
"""Calls that come whole in one `receive`, and streams that are begun in it: a packet can hold thousands, and each is served
at once."""
STUCK_PER_STRAIN: Final = 16
"""So many streams that are looked at in vain, because their own windows are closed, count as one frame for nothing."""

log = logging.getLogger("tarry.dapr")


Open = Callable[[GrpcStream, HeaderFields], Receiver]
"""Called with each stream that a client begins, and its fields; raises `StreamBroken` for fields that are no request."""


class GrpcConnection(Sending):
    """One client."""

    def __init__(self, out: Output, open_: Open, max_streams: int, max_held_bytes: int) -> None:
        super().__init__(out)
        self._open = open_
        self._max_streams = max_streams
        self._max_held_bytes = max_held_bytes
        self.held_bytes = 0
        """Data of requests that are not complete, or not read."""
        self.closed = False
        self.behind = False
        """Whether frames are left for another turn: who feeds it calls `receive` again, also without new bytes."""
        self._served = 0
        """Number of calls that began and came whole in this turn."""
        self.on_idle: Callable[[], None] | None = None
        """The callback for when no stream is open while nothing more begins."""
        self.streams: dict[int, GrpcStream] = {}
        self._last = 0
        self._taken_bytes = 0
        """Bytes that came since the client was last told that it may go on."""
        self._frames = Http2Frames()
        self._fields = BlockReader(MAX_BLOCK_BYTES)
        self._block: tuple[int, int, bytes] | None = None
        """A block that goes on in the next frame: its stream, its flags, and what came of it."""
        self._block_since_s: float | None = None
        self._ended = EndedStreams()
        self.calm = Calm()
        self._look = False
        """Whether a window has grown in these bytes: waiting streams go on once, after all of them."""
        self._stopping = False
        self._takes: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._data,
            frames.HEADERS: self._headers,
            frames.PRIORITY: self._priority,
            frames.RST_STREAM: self._reset,
            frames.SETTINGS: self._settings,
            frames.PING: self._ping,
            frames.GOAWAY: self._goodbye,
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
        """Take bytes from the client, as far as one turn allows."""
        self.behind, self._served = False, 0
        coming = self._frames.feed(data)
        try:
            for kind, flags, stream, payload in coming:
                if self.closed:
                    return
                try:
                    if self._block is not None:
                        self._continue(kind, flags, stream, payload)
                    elif kind == frames.CONTINUATION or kind == frames.PUSH_PROMISE:
                        raise Broken(
                            ErrorCode.PROTOCOL_ERROR, f"a frame of kind {kind} that nothing announced"
                        )
                    elif (take := self._takes.get(kind)) is not None:
                        take(flags, stream, payload)
                    else:
                        self.calm.strain()
                except StreamBroken as broken:
                    self._break(stream, broken.code)
                    # That there is no room for a stream is not its client's doing.
                    self.calm.strain(1 if broken.code is ErrorCode.REFUSED_STREAM else REFUSED_STRAIN)
                if self._served >= CALLS_AT_ONCE:
                    self.behind = True
                    break
            if self._look:
                self._look = False
                self.calm.strain(self.go_on() // STUCK_PER_STRAIN)
        except Broken as broken:
            self.fail(broken.code, str(broken))
        finally:
            coming.close()
        self.flush()

    def _break(self, id_: int, code: ErrorCode) -> None:
        """End one stream with a reason, and no other."""
        self.write(number(frames.RST_STREAM, id_, code))
        stream = self.streams.get(id_)
        if stream is not None:
            stream.lose()

    def _continue(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._block is not None
        of, first_flags, so_far = self._block
        if kind != frames.CONTINUATION or stream != of:
            raise Broken(
                ErrorCode.PROTOCOL_ERROR,
                "HEADERS without END_HEADERS goes on with CONTINUATION (RFC 9113 §6.10)",
            )
        if len(payload) < MIN_PIECE_BYTES:
            self.calm.strain()
        block = so_far + payload
        self._block = None
        if flags & END_HEADERS:
            self._begin(of, first_flags, block)
        else:
            self._wait_for_rest(of, first_flags, block)

    def _wait_for_rest(self, stream: int, flags: int, block: bytes) -> None:
        if len(block) > MAX_BLOCK_BYTES:
            raise Broken(
                ErrorCode.ENHANCE_YOUR_CALM, f"a block of fields larger than {MAX_BLOCK_BYTES} bytes"
            )
        self._block = stream, flags, block

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        block = frames.unpadded(flags, stream, payload)
        if flags & END_HEADERS:
            self._begin(stream, flags, block)
        else:
            self._wait_for_rest(stream, flags, block)

    def _begin(self, id_: int, flags: int, block: bytes) -> None:
        """A block is complete. It is read in any case: the table of fields goes on with it."""
        try:
            fields: HeaderFields | None = self._fields.read(block)
        except BadBlock as error:
            raise Broken(
                ErrorCode.COMPRESSION_ERROR, f"the header block cannot be read (RFC 7541): {error}"
            ) from None
        except TooManyFields:
            fields = None
        if id_ & 1 == 0:
            raise Broken(ErrorCode.PROTOCOL_ERROR, "streams of clients have odd numbers (RFC 9113 §5.1.1)")
        if id_ <= self._last:
            self._trailers(id_, flags, fields or ())
            return
        self._last = id_
        self._served += 1
        whole = bool(flags & END_STREAM)
        if self._stopping or len(self.streams) >= self._max_streams or fields is None:
            self._ended.add(id_, whole=whole)
            raise StreamBroken(
                ErrorCode.ENHANCE_YOUR_CALM if fields is None else ErrorCode.REFUSED_STREAM,
                "no place for another stream",
            )
        stream = self.streams[id_] = GrpcStream(self, id_, WINDOW_BYTES)
        stream.whole = whole
        receiver = self._open(stream, fields)
        if stream.over:
            self.calm.strain(REFUSED_STRAIN)
            return
        stream.receiver = receiver
        if whole:
            self._complete(stream)

    def _complete(self, stream: GrpcStream) -> None:
        self._served += 1
        stream.come_whole()

    def _trailers(self, id_: int, flags: int, fields: HeaderFields) -> None:
        """A second block of a stream is its end."""
        stream = self.streams.get(id_)
        if self._ended.by_client(id_) or (stream is not None and stream.whole):
            raise Broken(
                ErrorCode.STREAM_CLOSED, "HEADERS on a stream that the client has ended (RFC 9113 §5.1)"
            )
        if stream is None and not self._ended.cut(id_):
            raise Broken(ErrorCode.PROTOCOL_ERROR, "numbers of new streams rise (RFC 9113 §5.1.1)")
        if not flags & END_STREAM:
            raise Broken(ErrorCode.PROTOCOL_ERROR, "trailers carry END_STREAM (RFC 9113 §8.1)")
        check_trailers(fields)
        if stream is not None:
            self._complete(stream)
        else:
            self._ended.complete(id_)

    def _data(self, flags: int, id_: int, payload: bytes) -> None:
        if not 0 < id_ <= self._last:
            raise Broken(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was not begun (RFC 9113 §5.1)")
        size = len(payload)
        data = frames.unpadded(frames.PADDED, id_, payload) if flags & frames.PADDED else payload
        if not data and not flags & END_STREAM:
            self.calm.strain()
        self._taken_bytes += size
        if self._taken_bytes > WINDOW_BYTES:
            raise Broken(
                ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window (RFC 9113 §6.9.1)"
            )
        if self._taken_bytes > WINDOW_BYTES // 2:
            self.write(number(frames.WINDOW_UPDATE, 0, self._taken_bytes))
            self._taken_bytes = 0
        stream = self.streams.get(id_)
        if stream is None:
            self._data_behind(flags, id_)
            return
        if stream.whole:
            raise Broken(
                ErrorCode.STREAM_CLOSED, "DATA on a stream that the client has ended (RFC 9113 §5.1)"
            )
        stream.come(data, size)
        if self.held_bytes > self._max_held_bytes:
            stream.receiver.too_much()
        if flags & END_STREAM and not stream.over:
            self._complete(stream)

    def _data_behind(self, flags: int, id_: int) -> None:
        """Data of a stream that is over: its client may not know it yet if it was ended from here."""
        if self._ended.by_client(id_):
            raise Broken(
                ErrorCode.STREAM_CLOSED, "DATA on a stream that the client has ended (RFC 9113 §5.1)"
            )
        if flags & END_STREAM:
            self._ended.complete(id_)

    def _reset(self, _: int, id_: int, payload: bytes) -> None:
        frames.number_of(payload)
        if not 0 < id_ <= self._last:
            raise Broken(
                ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was not begun (RFC 9113 §5.1)"
            )
        self.calm.strain(RESET_STRAIN)
        stream = self.streams.get(id_)
        if stream is not None:
            stream.whole = True
            stream.lose()
        else:
            self._ended.complete(id_)

    def _priority(self, _: int, id_: int, payload: bytes) -> None:
        control.check_priority(id_, payload)
        self.calm.strain()

    def _goodbye(self, _: int, id_: int, _payload: bytes) -> None:
        control.check_goodbye(id_)
        self.calm.strain()

    def _settings(self, flags: int, id_: int, payload: bytes) -> None:
        self.first_window_bytes = control.first_window(flags, id_, payload, self.first_window_bytes)
        if not flags & ACK:
            self.calm.strain()
            self._look = True
            self.write(frame(frames.SETTINGS, ACK, 0))

    def _ping(self, flags: int, id_: int, payload: bytes) -> None:
        control.check_ping(id_, payload)
        self.calm.strain()
        if not flags & ACK:
            self.write(frame(frames.PING, ACK, 0, payload))

    def _window(self, _: int, id_: int, payload: bytes) -> None:
        self.calm.strain()
        more = frames.number_of(payload) & MAX_WINDOW_BYTES
        if not more:
            raise Broken(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE adds 1 byte or more (RFC 9113 §6.9)")
        if id_ == 0:
            self.window_bytes += more
            if self.window_bytes > MAX_WINDOW_BYTES:
                raise Broken(
                    ErrorCode.FLOW_CONTROL_ERROR, "a window is at most 2147483647 bytes (RFC 9113 §6.9.1)"
                )
            self._look = True
        elif (stream := self.streams.get(id_)) is not None:
            stream.allow(more)
        elif id_ > self._last:
            raise Broken(
                ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was not begun (RFC 9113 §5.1)"
            )

    # Life

    def stop(self) -> None:
        """Begin no more calls; those under way may end."""
        if not self._stopping and not self.closed:
            self._stopping = True
            self._say_goodbye(ErrorCode.NO_ERROR, "")
            self._out.soon(self.look_idle)

    def forget(self, stream: GrpcStream) -> None:
        """A stream is over."""
        self.streams.pop(stream.id, None)
        self.waiting.pop(stream.id, None)
        self._ended.add(stream.id, whole=stream.whole)
        if self._stopping and not self.streams:
            self._out.soon(self.look_idle)

    def look_idle(self) -> None:
        """Tell who wants to know that nothing is under way, if nothing is."""
        if not self.streams and self.on_idle is not None:
            self.on_idle()

    def sweep(self, now_s: float) -> None:
        """Once a second: end calls that take too long to come, and answers that nobody reads."""
        for stream in list(self.streams.values()):
            if stream.over_time(now_s):
                self._break(stream.id, ErrorCode.CANCEL)
        if self._block is None:
            self._block_since_s = None
        elif self._block_since_s is None:
            self._block_since_s = now_s
        elif now_s - self._block_since_s > WITHIN_S:
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "a block of fields that takes too long")
        self.flush()

    def revoke(self) -> None:
        """End the calls whose token is not in force any more."""
        for stream in list(self.streams.values()):
            stream.receiver.revoke()
        self.flush()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """End the connection with a reason."""
        if not self.closed:
            log.warning("a gRPC connection is closed: %s", reason)
            self._say_goodbye(code, reason)
            self.close()

    def _say_goodbye(self, code: ErrorCode, reason: str) -> None:
        payload = self._last.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()
        self.write(frame(frames.GOAWAY, 0, 0, payload))

    def close(self) -> None:
        """Let go of all calls, and close once the written frames are sent."""
        if not self.closed:
            self.closed = True
            for stream in list(self.streams.values()):
                stream.lose()
            self.flush()
            self._out.close()
