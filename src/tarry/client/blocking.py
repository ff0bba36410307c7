"""`Client`: the native API for programs that block.

Over `http.client`, with connections that are kept and used again; safe to share between threads. A
connection that broke is tried again where repeating cannot do anything twice (see `operations.py`).
"""

import contextlib
import http.client
import select
import ssl
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from tarry.client.batches import LineInput, LineOutcome, cut, schedule_lines
from tarry.client.call import ClientCall, ServerAnswer
from tarry.client.consuming import BATCH, HeldEntries, consumer_name
from tarry.client.operation import Blocking, Operations
from tarry.client.server import ServerAddress
from tarry.client.shapes import LineDefaults, ListFilters, MessageView, Received
from tarry.core.errors import TarryError

T = TypeVar("T")

MAX_KEPT: Final = 16
_BROKEN: Final = (OSError, http.client.HTTPException)


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
        self._idle: deque[http.client.HTTPConnection] = deque()

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
        batch: int = BATCH,
        wait_ms: int = 20_000,
        forever: bool = True,
    ) -> Generator[Received, None, None]:
        """Entries of a subscription as they come; each is acknowledged once the next one is asked for.

        The entry at which the loop is left counts as not handled, and comes again. Without `forever` it
        ends when nothing has come for `wait_ms`.
        """
        name = consumer or consumer_name()
        held = HeldEntries(time.monotonic())
        try:
            while entries := self._receive(topic, subscription, name, batch, wait_ms, forever):
                for entry in held.give(entries):
                    yield entry
                    if held.ack_is_due(time.monotonic()):
                        self._ack(topic, subscription, name, held)
                self._ack(topic, subscription, name, held)
        finally:
            # Leaving must not hide why it was left; what is not acknowledged comes again.
            with contextlib.suppress(TarryError):
                self._ack(topic, subscription, name, held)
                if left := held.take_unhandled():
                    self.nack(topic, subscription, left, consumer=name)

    def _receive(
        self, topic: str, subscription: str, name: str, batch: int, wait_ms: int, forever: bool
    ) -> Sequence[Received]:
        while True:
            entries = self.receive(topic, subscription, max=batch, wait_ms=wait_ms, consumer=name)
            if entries or not forever:
                return entries

    def _ack(self, topic: str, subscription: str, name: str, held: HeldEntries) -> None:
        if handled := held.take_handled(time.monotonic()):
            self.ack(topic, subscription, handled, consumer=name)

    def run(self, call: ClientCall[T]) -> T:
        """Send a call, again if need be and safe, and read what comes back."""
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
        timeout_s = self._server.timeout_s + call.wait_ms / 1000
        connection = self._connection(timeout_s)
        try:
            connection.request(
                call.method, self._server.prefix + call.path, call.body or None, self._server.headers(call)
            )
            response = connection.getresponse()
            body = response.read()
        except _BROKEN as error:
            connection.close()
            raise _Broken(error, unsent=False) from error
        except BaseException:
            # Left in the middle (KeyboardInterrupt): the rest of the answer must not meet another call.
            connection.close()
            raise
        if response.will_close or len(self._idle) >= MAX_KEPT:
            connection.close()
        else:
            self._idle.append(connection)
        return ServerAnswer(response.status, {k.lower(): v for k, v in response.getheaders()}, body)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        with contextlib.suppress(IndexError):
            while True:
                kept = self._idle.pop()
                if kept.sock is not None and not _has_ended(kept):
                    kept.sock.settimeout(timeout_s)
                    return kept
                kept.close()
        connection: http.client.HTTPConnection
        server = self._server
        if server.secure:
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=timeout_s, context=tls)
        else:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)
        try:
            connection.connect()
        except _BROKEN as error:
            raise _Broken(error, unsent=True) from error
        return connection

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


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed a kept connection: then it has something to read, its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
