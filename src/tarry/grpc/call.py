"""A gRPC call on a stream: messages in, messages out, and a status at its end.

A call with one message each way is served by a function that gets the message when it has come whole, and that answers
then or later; it costs no task. Everything else is a coroutine that reads and writes.
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from tarry.core.telemetry.faults import told
from tarry.core.tenants.access import Caller
from tarry.grpc.hpack import HeaderFields
from tarry.grpc.request import (
    ANSWER,
    ENCODINGS,
    REFUSAL,
    GrpcRequest,
    Pair,
    fields_of,
    refusal_fields,
    request_of,
    status_fields,
)
from tarry.grpc.stream import NOBODY, GrpcStream, Receiver

UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAUTHENTICATED: Final = 16
OK: Final = status_fields(0, "")
ONE_MESSAGE: Final = "a call of this method has one message"

log = logging.getLogger("tarry.dapr")

Unary = Callable[["Call", bytes], None]
"""Gets a call and its one message; it answers, or fails, or has somebody do so later."""
Streaming = Callable[["Call"], Awaitable[None]]
"""Serves a call to its end; what it leaves open ends well."""


class Compressed(bytes):
    """A message as it came, which is inflated when it is read and not before."""


class Service(Protocol):
    """A gRPC service."""

    def admit(self, call: "Call") -> None:
        """Fail a call whose sender is not let in. Only its fields have come so far, and nothing else of it is held."""

    def unary(self, path: str) -> Unary | None:
        """The function that serves a method with one message each way."""

    def streaming(self, path: str) -> Streaming | None:
        """The function that serves a method of another kind."""


class Call:
    """One call. `metadata` is what the client says beside the message."""

    def __init__(self, stream: GrpcStream, request: GrpcRequest, max_message_bytes: int) -> None:
        self._stream = stream
        self.request = request
        self.metadata = request.metadata
        self.caller: Caller | None = None
        """The sender, once the service has let it in."""
        self._max_message_bytes = max_message_bytes
        self._unary: Unary | None = None
        self._data = bytearray()
        self._messages: deque[bytes] = deque()
        self._whole = False
        self._wake: asyncio.Future[None] | None = None
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if request.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(request.timeout_s, self._expire)

    def serve(self, unary: Unary | None, streaming: Streaming | None) -> None:
        """Begin."""
        self._unary = unary
        if self.request.encoding not in ENCODINGS:
            self.fail(UNIMPLEMENTED, f"messages in the encoding {self.request.encoding} are not read here")
        elif unary is None and streaming is None:
            self.fail(UNIMPLEMENTED, "Method not found!")
        elif streaming is not None:
            self.run(partial(streaming, self))

    def when_over(self, work: Callable[[], None]) -> None:
        """Have something done once the call is over, and its answer is sent or given up."""
        self._stream.on_over = work

    # What comes

    @property
    def wanting(self) -> bool:
        """See `Receiver`."""
        return self._unary is not None or bool(self._data)

    def come(self, data: bytes) -> None:
        """See `Receiver`."""
        if self._stream.over:
            return
        size = len(data) - 5
        if (
            not self._data
            and size == int.from_bytes(data[1:5], "big") <= self._max_message_bytes
            and not data[0]
        ):
            # Mostly a message comes in one piece.
            self._messages.append(data[5:])
        else:
            self._data += data
            self._cut()
        if self._unary is None:
            self._notify()
        elif len(self._messages) > 1 or (self._messages and self._data):
            # Empty ones would cost memory and no window.
            self.fail(INTERNAL, ONE_MESSAGE)
        else:
            self._stream.go_ahead(len(self._data) + sum(map(len, self._messages)))

    def _cut(self) -> None:
        """Take the messages that have come whole from the data."""
        while len(self._data) >= 5:
            size = int.from_bytes(self._data[1:5], "big")
            if size > self._max_message_bytes:
                self._refuse_size(size)
                return
            if len(self._data) < 5 + size:
                break
            kind = Compressed if self._data[0] else bytes
            self._messages.append(kind(self._data[5 : 5 + size]))
            del self._data[: 5 + size]

    def _next(self) -> bytes | None:
        """The next message that has come, as it was before it was compressed; None if it cannot be, and the call has failed."""
        message = self._messages.popleft()
        return self._inflated(message) if type(message) is Compressed else message

    def _inflated(self, message: bytes) -> bytes | None:
        inflate = zlib.decompressobj(31 if self.request.encoding == "gzip" else 15)
        try:
            plain = inflate.decompress(message, self._max_message_bytes + 1)
        except zlib.error:
            plain = b""
        if len(plain) > self._max_message_bytes:
            self._refuse_size(len(plain))
        elif not inflate.eof:
            self.fail(INTERNAL, "a message that cannot be decompressed")
        else:
            return plain
        return None

    def _refuse_size(self, size: int) -> None:
        self.fail(
            RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._max_message_bytes})"
        )

    def come_whole(self) -> None:
        """See `Receiver`."""
        self._whole = True
        if self._unary is None:
            self._notify()
        elif self._data or len(self._messages) != 1:
            self.fail(INTERNAL, ONE_MESSAGE)
        elif not self._stream.over and (message := self._next()) is not None:
            self._stream.go_ahead(0)
            try:
                self._unary(self, message)
            except DecodeError:
                self.fail(INTERNAL, "Exception deserializing request!")
            except Exception as error:  # noqa: BLE001 - whatever it was, the client is answered
                log.error("a call of %s failed with %s", self.request.path, told(error))
                self.fail(UNKNOWN, "the server failed; its log says why")

    def too_much(self) -> None:
        """See `Receiver`."""
        self.fail(RESOURCE_EXHAUSTED, "the connection has more under way than the server holds for it")
        if self._task is not None:
            self._task.cancel()

    def lost(self) -> None:
        """See `Receiver`."""
        self._finish()
        if self._task is not None:
            self._task.cancel()

    def revoke(self) -> None:
        """See `Receiver`. A message that has come whole is answered."""
        served = self._unary is not None and self._whole
        if self.caller is not None and not self.caller.standing.in_force and not served:
            self.fail(UNAUTHENTICATED, "invalid api token: it is not in force any more")
            if self._task is not None:
                self._task.cancel()

    # For coroutines

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Serve the call by a coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except DecodeError:
            self.fail(INTERNAL, "Exception deserializing request!")
        except Exception as error:  # noqa: BLE001 - whatever it was, the client is answered
            log.error("a call of %s failed with %s", self.request.path, told(error))
            self.fail(UNKNOWN, "the server failed; its log says why")
        else:
            self.end()

    async def read(self) -> bytes | None:
        """The next message; None if there is none any more."""
        while not self._messages:
            if self._whole:
                return None
            self._stream.go_ahead(len(self._data))
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._next()

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until the client has room for it."""
        self.begin()
        self._stream.send(b"\0" + len(message).to_bytes(4, "big") + message)
        if self._stream.waits:
            sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._stream.on_sent = lambda: None if sent.done() else sent.set_result(None)
            await sent

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # The answer

    def begin(self, pairs: tuple[Pair, ...] = ()) -> None:
        """Send the metadata that come first."""
        if not self._begun:
            self._begun = True
            self._stream.begin(ANSWER + fields_of(pairs) if pairs else ANSWER)

    def answer(self, message: bytes, told: tuple[Pair, ...] = ()) -> None:
        """End the call well with its one message; `told` goes into the first and the last metadata."""
        block = fields_of(told) if told else b""
        self._begun = True
        self._stream.begin(ANSWER + block)
        self._stream.send(b"\0" + len(message).to_bytes(4, "big") + message)
        self._stream.end(OK + block)
        self._finish()

    def end(self, pairs: tuple[Pair, ...] = ()) -> None:
        """End it well."""
        self.fail(0, "", pairs)

    def fail(self, code: int, message: str, pairs: tuple[Pair, ...] = ()) -> None:
        """End it with a status."""
        block = status_fields(code, message) + fields_of(pairs)
        self._stream.end(block if self._begun else ANSWER + block)
        self._finish()

    def _finish(self) -> None:
        self._messages.clear()
        self._data.clear()
        if self._deadline is not None:
            self._deadline.cancel()

    def _expire(self) -> None:
        self.fail(DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self._task is not None:
            self._task.cancel()


def opening(service: Service, max_message_bytes: int) -> Callable[[GrpcStream, HeaderFields], Receiver]:
    """The opener of a connection's streams: each begins a call of the service."""

    def open_(stream: GrpcStream, fields: HeaderFields) -> Receiver:
        request = request_of(fields)
        stream.owed_bytes = request.content_length
        if request.http_status != 200:
            stream.begin(refusal_fields(request.http_status))
            stream.send(REFUSAL)
            stream.end()
            return NOBODY
        call = Call(stream, request, max_message_bytes)
        service.admit(call)
        if stream.over:
            return NOBODY
        unary = service.unary(request.path)
        call.serve(unary, None if unary is not None else service.streaming(request.path))
        return call

    return open_
