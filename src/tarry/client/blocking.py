"""`Client`: the native API for programs that block. Safe to share between threads.

Connections are kept and used again. A connection that broke is tried again where repeating cannot do anything
twice (see `operations.py`).
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from tarry.client.batches import LineInput, LineOutcome, cut, schedule_lines
from tarry.client.blocking_consumer import BlockingConsumer
from tarry.client.call import ClientCall, Line, ServerAnswer, Unreachable
from tarry.client.consuming import MAX_UNACKED, Entry
from tarry.client.gathering import Gathered, Queue, SharedRequest
from tarry.client.http1 import AnswerReader, BadAnswer, request
from tarry.client.operation import Blocking, Operations
from tarry.client.server import ServerAddress
from tarry.client.shapes import LineDefaults, ListFilters, MessageView
from tarry.core.errors import TarryError

T = TypeVar("T")

MAX_KEPT: Final = 16
READ_BYTES: Final = 1 << 18
_BROKEN: Final = (OSError, BadAnswer)


class Client(Operations, Blocking):
    """A connection to a Tarry server.

        with Client() as client:
            client.schedule("persistent://public/default/hello", "world", delay="5s")

    Without a `url` it finds its server as the command line does: by `TARRY_*` variables, then `./tarry.toml`, then on this
    machine. With one, the token is the one given, or `TARRY_TOKEN`.
    After a broken connection a call is tried again for `retry_for_s`, if that is safe.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_for_s: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = ServerAddress(url, token, timeout_s, retry_for_s)
        self._tls = tls if tls is not None else self._server.tls
        self._idle: deque[socket.socket] = deque()
        self._gathering = threading.Lock()
        self._queues: dict[str, Queue] = {}
        """By path: calls of threads that are gathered."""

    def list(self, **filters: Unpack[ListFilters]) -> Iterator[MessageView]:
        """Every message that the filters of `list_page` choose, over as many pages as it takes."""
        page = None
        while True:
            found = self.list_page(**filters, page=page)
            yield from found.messages
            page = found.next_page
            if page is None:
                return

    def schedule_many(
        self, messages: Iterable[LineInput], **defaults: Unpack[LineDefaults]
    ) -> Iterator[LineOutcome]:
        """Schedule many messages in few requests: one outcome for each, in order.

        An outcome is the answer, or the error that refused this message; the others are not touched
        by it. `defaults` (`destination`, `owner`, `namespace`, `delay_ms`, `due_at_ms`, `ttl_ms`) hold
        where a message does not say. A connection that breaks is not tried again: what was in it may
        have been scheduled.
        """
        for count, body in cut(messages):
            yield from self.run(schedule_lines(count, body, **defaults))

    def consume(
        self,
        topic: str,
        subscription: str,
        *,
        consumer: str | None = None,
        max_unacked: int = MAX_UNACKED,
        ack_timeout_ms: int | None = None,
        wait_ms: int = 20_000,
        forever: bool = True,
    ) -> Generator[Entry, None, None]:
        """Entries of a subscription as they come. Acknowledge each: `entry.ack()`, or `with entry:` around its handling.

        At most `max_unacked` are out at a time. An entry that is not acknowledged within `ack_timeout_ms` comes again, and so
        do all such once the loop is left. Without `forever` it ends when nothing has come for `wait_ms`.
        """
        consuming = BlockingConsumer(self, topic, subscription, consumer, max_unacked, ack_timeout_ms)
        yield from consuming.entries(wait_ms, forever=forever)

    def run(self, call: ClientCall[T]) -> T:
        """Send a call, again if need be and safe, and read its answer. Those of several threads may share requests."""
        if call.line is None:
            return self._alone(call)
        waiting: _Waiting[T] | None = None
        with self._gathering:
            queue = self._queues.setdefault(call.line.path, Queue())
            if queue.is_idle:
                queue.under_way += 1
            else:
                waiting = _Waiting(call, call.line)
                queue.add(waiting)
        if waiting is not None:
            self._lead_next(queue)
            return self._wait(queue, waiting)
        try:
            return self._alone(call)
        finally:
            self._request_ended(queue)

    def _wait(self, queue: Queue, waiting: "_Waiting[T]") -> T:
        """Wait for the answer, which may begin with sending the gathered calls."""
        try:
            while isinstance(told := waiting.told.get(), SharedRequest):
                self._send_shared(queue, told)
        except BaseException:
            # Left in the middle (KeyboardInterrupt): if it was to send for others, somebody else has to.
            with self._gathering:
                waiting.is_gone = True
            while not waiting.told.empty():
                if isinstance(left := waiting.told.get(), SharedRequest):
                    left.fail(
                        Unreachable("the thread that was to send this was interrupted; nothing was done")
                    )
                    self._request_ended(queue)
            raise
        if isinstance(told, TarryError):
            raise told
        return told

    def _request_ended(self, queue: Queue) -> None:
        with self._gathering:
            queue.under_way -= 1
        self._lead_next(queue)

    def _lead_next(self, queue: Queue) -> None:
        """Have one of the waiting threads send the gathered calls."""
        with self._gathering:
            while (shared := queue.take()) is not None:
                leader = shared.gathered[0]
                assert isinstance(leader, _Waiting)
                leader.told.put(shared)

    def _send_shared(self, queue: Queue, shared: SharedRequest) -> None:
        request = shared.request(keyed=self._server.repeats)._replace(read=shared.read)
        try:
            self._alone(request)
        except TarryError as error:
            shared.fail(error)
        except BaseException:
            shared.fail(Unreachable("the request was interrupted; this call may or may not have been done"))
            raise
        finally:
            self._request_ended(queue)

    def _alone(self, call: ClientCall[T]) -> T:
        for wait_s in self._server.waits():
            try:
                return call.read(self._once(call))
            except _Broken as broken:
                if not (call.repeatable or broken.unsent):
                    raise self._server.unreachable(broken.cause) from broken.cause
            time.sleep(wait_s)
        try:
            return call.read(self._once(call))
        except _Broken as broken:
            raise self._server.unreachable(broken.cause) from broken.cause

    def _once(self, call: ClientCall[Any]) -> ServerAnswer:
        sent = request(
            call.method, self._server.prefix + call.path, self._server.header_lines(call), call.body
        )
        timeout_s = self._server.timeout_s + call.wait_ms / 1000
        connection = self._connection(timeout_s)
        try:
            connection.sendall(sent)
            reader, body = AnswerReader(), []
            while not reader.is_done():
                data = connection.recv(READ_BYTES)
                if data:
                    body.append(reader.feed(data))
                else:
                    reader.end()
        except _BROKEN as error:
            connection.close()
            raise _Broken(error, unsent=False) from error
        except BaseException:
            # Left in the middle (KeyboardInterrupt): the rest of the answer must not meet another call.
            connection.close()
            raise
        if reader.keep_alive and len(self._idle) < MAX_KEPT:
            self._idle.append(connection)
        else:
            connection.close()
        return ServerAnswer(reader.status, reader.headers, b"".join(body))

    def _connection(self, timeout_s: float) -> socket.socket:
        with contextlib.suppress(IndexError):
            while True:
                kept = self._idle.pop()
                if not _has_ended(kept):
                    kept.settimeout(timeout_s)
                    return kept
                kept.close()
        server = self._server
        try:
            connection = socket.create_connection((server.host, server.port), timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not server.secure:
                return connection
            tls = self._tls or ssl.create_default_context()
            return tls.wrap_socket(connection, server_hostname=server.host)
        except OSError as error:
            raise _Broken(error, unsent=True) from error

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Waiting(Gathered[T]):
    """A call among others for which a thread waits. It is told the outcome, or to send what has gathered."""

    def __init__(self, call: ClientCall[T], line: Line[T]) -> None:
        super().__init__(call, line)
        self.told: SimpleQueue[T | TarryError | SharedRequest] = SimpleQueue()
        self.is_gone = False

    @property
    def is_wanted(self) -> bool:
        """Whether the thread still waits."""
        return not self.is_gone

    def settle(self, outcome: T | TarryError) -> None:
        """Wake the thread."""
        self.told.put(outcome)


class _Broken(Exception):
    """A connection could not be made, or broke."""

    def __init__(self, cause: Exception, unsent: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.unsent = unsent


def _has_ended(connection: socket.socket) -> bool:
    """Whether the server has closed a kept connection: then it has something to read, its end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
