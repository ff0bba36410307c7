"""How long a client has read nothing of the bytes that wait for it: the bound on slow readers.

The kernel counts the bytes that a client has acknowledged. Nothing is counted while requests are served: only a
connection that has unsent bytes when the sweep comes by is looked at.
"""

import asyncio
import socket
from struct import Struct as Layout
from typing import Final

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
