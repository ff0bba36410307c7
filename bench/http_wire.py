"""HTTP/1.1 as far as the load needs it: requests as bytes, and the end of an answer."""

import json
import socket
from collections.abc import Callable
from typing import Any

from bench.wire import RECV_BYTES, Refused, connect

Check = Callable[[bytes], None]
JSON = "application/json"


def request(method: str, path: str, body: bytes = b"", kind: str = JSON) -> bytes:
    """A whole request."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class HttpReply:
    """One answer after another on a connection. `check` is shown each body."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check
        self._pieces: list[bytes] = []
        self._missing = -1
        """Bytes of the body that are not here yet; -1 while the head is not complete, -2 if it is chunked."""

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether the answer is complete."""
        if self._missing == -1:
            if self._pieces:
                data = self._pieces.pop() + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pieces.append(data)
                return False
            if data[9:10] != b"2":
                raise Refused(data.decode(errors="replace")[:500])
            self._missing = _length(data[: end + 2].lower())
            data = data[end + 4 :]
            if self._missing >= 0:
                self._missing -= len(data)
        elif self._missing >= 0:
            self._missing -= len(data)
        self._pieces.append(data)
        return self._finish() if self._missing == 0 or self._ends() else False

    def _ends(self) -> bool:
        """Whether a chunked body is complete."""
        if self._missing != -2:
            return False
        tail = self._pieces[-1]
        return (tail if len(tail) >= 5 else b"".join(self._pieces[-5:])).endswith(b"0\r\n\r\n")

    def _finish(self) -> bool:
        if self._check is not None:
            self._check(b"".join(self._pieces))
        self._pieces.clear()
        self._missing = -1
        return True


def _length(head: bytes) -> int:
    at = head.find(b"content-length: ")
    if at >= 0:
        return int(head[at + 16 : head.index(b"\r", at)])
    if b"chunked" in head:
        return -2
    return 0


class Http:
    """One connection for the few calls around a measurement."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(port)[0]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call, and give the JSON of the answer."""
        self.socket.sendall(request(method, path, b"" if body is None else json.dumps(body).encode()))
        found: list[bytes] = []
        reply = HttpReply(found.append)
        while not reply.feed(self.socket.recv(RECV_BYTES)):
            pass
        return json.loads(found[0]) if found[0] else None

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
