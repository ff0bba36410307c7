"""The budget of connections: all listeners together never use up the process's open files.

Connections are open files, and so are the ledger's segments: a server that has none left can neither write nor accept.
So every listener has a share of the files that are left beside the ledger and its sends, and shares are computed when
all of them are known. A listener whose bound is configured takes that; the others have equal shares of the rest.

A connection takes its place when it is accepted. Where there is none left, somebody makes way: a client that does not read
its answers, then the one that has asked for nothing for longest, then the oldest of those that are still arriving.

How long a client has read nothing of the bytes that wait for it is the bound on slow readers. The kernel counts the bytes that a
client has acknowledged. Nothing is counted while requests are served: only a connection that has unsent bytes when the sweep
comes by is looked at.
"""

import asyncio
import logging
import resource
import socket
from collections import OrderedDict
from struct import Struct as Layout
from typing import Any, Final, Generic, Protocol, TypeVar

from tarry.core.telemetry.figure import Figure

_ACKED: Final = Layout("<120xQ")
"""`tcpi_bytes_acked` of Linux's `struct tcp_info`."""


class Unread:
    """The unread bytes of one connection."""

    __slots__ = ("_acked", "_since_s", "_socket", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._since_s: float | None = None
        self._acked = 0

    def stuck_s(self, now_s: float) -> float:
        """For how long bytes have waited for the client without it reading any; 0 if none wait."""
        if not self._transport.get_write_buffer_size():
            self._since_s = None
            return 0.0
        acked = self._read_acked()
        if self._since_s is None or acked != self._acked:
            self._since_s, self._acked = now_s, acked
        return now_s - self._since_s

    def _read_acked(self) -> int:
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
        except OSError:
            # It is gone, or there is no descriptor for the question: as if nothing was read.
            return self._acked
        return int(_ACKED.unpack(told)[0]) if len(told) == _ACKED.size else self._acked


log = logging.getLogger("tarry.serve")


class Connected(Protocol):
    """A connection as its listener's bounds see it."""

    unread: Unread | None
    """None until it has begun."""

    @property
    def busy(self) -> bool:
        """Whether the connection must not be closed now, although it waited when it was last looked at."""

    def abort(self) -> None:
        """Close at once."""


Connection = TypeVar("Connection", bound=Connected)

MAX_CONNECTIONS: Final = 16_384
"""The bound of a listener where the limit on open files is no nearer one."""
MIN_CONNECTIONS: Final = 16
OWN_FILES: Final = 64
"""Open files for the ledger's segments, the registry and the rest, at least."""
ARRIVING: Final = 16
"""Connections of a listener beyond its bound that may be on their way in: to be told that there is no place, or to make one free."""
SWEEP_MS: Final = 1_000
"""Time between two looks at all connections of a listener: how exactly its bounds in seconds are kept."""
UNREAD_MS: Final = 20_000
"""A client that reads no byte of its response for so long is given up."""
UNREAD_GRACE_MS: Final = 2_000
"""After so long it is the first to make way for others."""


class ConnectionBudget:
    """The open files of the process, and how many each listener may have."""

    def __init__(self, open_files: int | None = None) -> None:
        """Without a number: as many as the system allows at this moment."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
        self._files: int | None = None if soft == resource.RLIM_INFINITY else soft
        self._reserved = 0
        self.shares: list[ListenerShare[Any]] = []

    def reserve(self, files: int) -> None:
        """Keep so many files free for connections that the server itself makes."""
        self._reserved += files

    def share_of(self, name: str, asked: int = 0, files_each: int = 1) -> "ListenerShare[Any]":
        """The share of one listener: `asked` connections, or with 0 an equal share; each takes so many files."""
        share: ListenerShare[Any] = ListenerShare(self, name, asked, files_each)
        self.shares.append(share)
        return share

    def equal_share(self, files_each: int) -> int:
        """The number of connections of a listener that asks for none."""
        if self._files is None:
            return MAX_CONNECTIONS
        sharing = sum(1 for share in self.shares if not share.asked)
        return max(MIN_CONNECTIONS, min(self._left(self._files) // sharing // files_each, MAX_CONNECTIONS))

    def _left(self, files: int) -> int:
        own = max(OWN_FILES, files // 8) + ARRIVING * len(self.shares)
        return files - own - self._reserved - sum(share.asked * share.files_each for share in self.shares)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Figures of all connections, for the metrics."""
        return (
            Figure(
                name="tarry_connections",
                text="Connections open",
                label="listener",
                values=lambda: {share.name: len(share.open) for share in self.shares},
            ),
            Figure(
                name="tarry_connections_limit",
                text="Connections that a listener may have",
                label="listener",
                values=lambda: {share.name: share.limit for share in self.shares},
            ),
            Figure(
                name="tarry_connections_refused",
                text="Connections turned away because as many as are allowed were open",
                label="listener",
                counts=True,
                values=lambda: {share.name: share.refused for share in self.shares},
            ),
        )

    def check(self) -> None:
        """Say so where the configuration and the system's limit do not go together."""
        if self._files is not None and self._left(self._files) < 0:
            log.warning(
                "more connections are allowed than the limit on open files has room for; "
                "raise it (ulimit -Hn), or lower max_connections",
                extra={"open_files": self._files, "missing": -self._left(self._files)},
            )


class ListenerShare(Generic[Connection]):
    """One listener's share of the connections, and the connections in it."""

    def __init__(self, budget: ConnectionBudget, name: str, asked: int, files_each: int) -> None:
        self.name = name
        """The table of the listener's settings."""
        self.asked = asked
        self.files_each = files_each
        self.open: set[Connection] = set()
        self.refused = 0
        """Number of connections that were turned away for want of a place."""
        self.arriving: dict[asyncio.Task[None], None] = {}
        """Connections that were accepted and are not in yet, the oldest first."""
        self.waiting: OrderedDict[Connection, float] = OrderedDict()
        """Connections that ask for nothing at the moment, and since when; the longest first. The listener keeps it."""
        self.slow: dict[Connection, None] = {}
        """Connections that do not read their responses."""
        self._budget = budget

    @property
    def limit(self) -> int:
        """How many connections the listener may have; right once every listener has its share."""
        return self.asked or self._budget.equal_share(self.files_each)

    @property
    def full(self) -> bool:
        """Whether no more fits."""
        return len(self.open) >= self.limit

    def enter(self, connection: Connection) -> bool:
        """Let a connection in, if a place is free or can be made so."""
        if self.full and not self._evict():
            self.refused += 1
            return False
        self.open.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """A connection is gone, if it was in."""
        self.open.discard(connection)
        self.waiting.pop(connection, None)
        self.slow.pop(connection, None)

    def make_way(self) -> None:
        """Another one was accepted: have somebody go if there is no place for it."""
        if len(self.open) + len(self.arriving) < self.limit:
            return
        if not self._evict() and len(self.arriving) >= ARRIVING:
            oldest = next(iter(self.arriving))
            del self.arriving[oldest]
            oldest.cancel()

    def _evict(self) -> bool:
        gone = next(iter(self.slow), None) or next((one for one in self.waiting if not one.busy), None)
        if gone is None:
            return False
        # Gone at once: the transport tells of its end only in the loop's next turn.
        self.leave(gone)
        gone.abort()
        return True

    def sweep(self, now_s: float) -> None:
        """Give up who does not read, and take note of who reads slowly."""
        for connection in list(self.open):
            unread = connection.unread
            stuck_ms = 0.0 if unread is None else unread.stuck_s(now_s) * 1000
            if stuck_ms > UNREAD_MS:
                connection.abort()
            elif stuck_ms > UNREAD_GRACE_MS:
                self.slow[connection] = None
            elif connection in self.slow:
                del self.slow[connection]
