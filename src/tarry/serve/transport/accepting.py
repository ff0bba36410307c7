"""Accepting connections: each counts from its accept on, through its TLS handshake, and an address that is lost is told.

The loop's own servers do neither: a connection that never finishes its handshake is known to nobody, and an address on which
another process listens meanwhile is an error that they keep to themselves. With no descriptor left, they turn in
circles; here the listener rests for a moment.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import Any, Final

from tarry.serve.transport.connection_budget import ListenerShare

HANDSHAKE_S: Final = 10.0
"""So long a client may take for its TLS handshake."""
TLS_FAREWELL_S: Final = 5.0
"""So long a client may take to read the end of a TLS connection."""
BACKLOG: Final = 1024
AT_ONCE: Final = 64
"""Connections accepted in one turn of the loop."""
REST_S: Final = 0.5
"""After an accept for which there was no descriptor or memory."""

log = logging.getLogger("tarry.serve")


class Accepting:
    """The accepting side of one listener."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        share: ListenerShare[Any],
        context: ssl.SSLContext | None,
    ) -> None:
        self._socket = listening
        self._make = make
        self._share = share
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept; raises `OSError` where another process listens on the address by now."""
        # Whoever was accepted here must not keep the address from the next life (see `taken`).
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more, and close connections that are not accepted yet."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if self._resting is not None:
            self._resting.cancel()
        for arriving in list(self._share.arriving):
            arriving.cancel()

    async def wait_closed(self) -> None:
        """Return at once: connections are their protocols' own."""

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                client, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    raise
                self._rest(error)
                return
            client.setblocking(False)
            self._share.make_way()
            arriving = self._loop.create_task(self._let_in(client))
            self._share.arriving[arriving] = None
            arriving.add_done_callback(lambda done: self._share.arriving.pop(done, None))

    async def _let_in(self, client: socket.socket) -> None:
        """Bring a connection to its protocol; one that breaks off or takes too long is closed."""
        limits: dict[str, Any] = {}
        if self.context is not None:
            limits = {
                "ssl": self.context,
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": TLS_FAREWELL_S,
            }
        protocol = self._make()
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, client, **limits)
        except (OSError, EOFError):
            client.close()
        except asyncio.CancelledError:
            # It may be in by now, and uvloop does not tell a protocol of the end of a connection whose arrival was cancelled.
            if protocol in self._share.open:
                protocol.connection_lost(None)
            raise

    def _rest(self, error: OSError) -> None:
        """Look again in a moment: whoever ends meanwhile gives a descriptor back."""
        log.warning(
            "connections wait to be accepted: %s", error.strerror, extra={"listener": self._share.name}
        )
        self._loop.remove_reader(self._socket.fileno())
        self._resting = self._loop.call_later(
            REST_S, self._loop.add_reader, self._socket.fileno(), self._accept
        )
