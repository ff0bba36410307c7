"""The one place where the webhook outlet opens a socket, and where an address is refused.

The HTTP client calls `GuardedSockets` with the very address that it connects to next, after names were
resolved and for every attempt. So there is no time between check and connection in which a name could
change its address (DNS rebinding), and no notation of an address that could slip by.

Must not know: URLs, HTTP, names of anything but the host that a delivery is for.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from tarry.outlets.webhook.addresses import AddressRules, read_address

AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives it; its last field is what the socket is connected to."""


class AddressRefused(OSError):
    """This address is forbidden. The text is always the same, so that several of them count as one."""

    def __init__(self) -> None:
        super().__init__("the address is not allowed")


class SocketAttempt:
    """The fate of one delivery's sockets."""

    __slots__ = ("host", "opened", "refused")

    def __init__(self, host: str) -> None:
        self.host = host
        self.opened = 0
        """Sockets opened, whether or not they got through."""
        self.refused: str | None = None
        """The kind of range of an address that was refused."""

    @property
    def nothing_allowed(self) -> bool:
        """There were addresses and all of them were forbidden: trying again is useless."""
        return self.refused is not None and self.opened == 0


_attempt: ContextVar[SocketAttempt] = ContextVar("tarry_webhook_attempt")


class GuardedSockets:
    """A socket factory for the HTTP client that refuses forbidden addresses and counts open sockets."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._open: WeakSet[socket.socket] = WeakSet()

    @contextmanager
    def attempt(self, host: str) -> Iterator[SocketAttempt]:
        """Sockets opened inside, and in tasks started inside, are for a delivery to this host."""
        attempt = SocketAttempt(host)
        token = _attempt.set(attempt)
        try:
            yield attempt
        finally:
            _attempt.reset(token)

    def __call__(self, addr_info: AddrInfo) -> socket.socket:
        """A socket for this address, or `AddressRefused`. What cannot be judged is refused."""
        family, type_, protocol, _, target = addr_info
        attempt = _attempt.get(None)
        address = read_address(str(target[0]))
        if attempt is None or address is None:
            raise AddressRefused
        refused = self._rules.why_refused(attempt.host, address)
        if refused is not None:
            attempt.refused = refused
            raise AddressRefused
        attempt.opened += 1
        opened = socket.socket(family, type_, protocol)
        self._open.add(opened)
        return opened

    def open_count(self) -> int:
        """Sockets that are open, in use or idle in the pool."""
        return sum(1 for each in self._open if each.fileno() != -1)

    def more_open_than(self, bound: int) -> bool:
        """Whether more than `bound` sockets are open; cheap while few are."""
        # A closed socket may stay in the set until the garbage collector comes by, so it is counted out.
        return len(self._open) > bound and self.open_count() > bound
