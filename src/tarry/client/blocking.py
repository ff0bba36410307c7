"""`Client`: the native API for programs that block. Safe to share between threads.

Connections are kept and used again. A connection that broke is tried again where repeating cannot do anything
twice (see `operations.py`).
"""

import contextlib
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from tarry.client.batches import LineInput, LineOutcome, cut, schedule_lines
from tarry.client.blocking_consumer import BlockingConsumer
from tarry.client.call import ClientCall, ServerAnswer
from tarry.client.consuming import MAX_UNACKED, Entry
from tarry.client.http1 import AnswerReader, BadAnswer, request
from tarry.client.operation import Blocking, Operations
from tarry.client.server import ServerAddress
from tarry.client.shapes import LineDefaults, ListFilters, MessageView

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
        """Send a call, again if need be and safe, and read its answer."""
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
