"""Heads of requests that came before: a client's are the same again and again, but for their target and a length.

Parsing a head costs a third of what scheduling a message does. So the header fields of one that was answered quickly are
kept, with what answered it: the same head to the byte is answered by the same, and one with another target is put to the
application again, without the parser. Only a request line of the plainest kind is read here; the parser sees every other.
"""

import re
from collections.abc import Callable
from typing import Any, Final

MAX_KNOWN_HEADS: Final = 1_024
MAX_KNOWN_HEAD_BYTES: Final = 2_048
HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LINE: Final = re.compile(rb"(PUT|POST) (/[!$%-;=@-Z_a-z~]*)(?:\?([!$%-;=?-Z_a-z~]*))? HTTP/1\.1")

Reply = Callable[[int, list[tuple[bytes, bytes]], bytes], None]
"""Sends a whole answer: the status, the headers but for the length, and the body."""

Client = tuple[str, int] | None
"""The address that a request comes from."""

Answering = Callable[[bytes, Client, Reply], bool]
"""Gets the body of a request that has come whole, and who sends it; says whether it will reply."""

Quick = Callable[[Any], Answering | None]
"""What an application may have beside ASGI, as `quick`: it gets a scope without the connection and with the raw path alone,
and gives what answers requests with that head. That saves a task and two dozen calls; and what it gives is kept for the
next such head."""


def quick_scope(scope: Any) -> Any:
    """What an application's `quick` is told of a request that was parsed."""
    return {name: value for name, value in scope.items() if name not in ("client", "server", "path")}


class _Kept:
    """The fields of a head, and what answered it last."""

    __slots__ = ("answering", "body_bytes", "line", "scope")

    def __init__(self, line: bytes, scope: Any, answering: Answering, body_bytes: int) -> None:
        self.line = line
        self.scope = scope
        self.answering = answering
        self.body_bytes = body_bytes


class Heads:
    """What answers requests, by their heads. Only those that were answered are kept: nobody fills the memory who is not let in."""

    def __init__(self, quick: Quick | None) -> None:
        self._quick = quick
        self._kept: dict[bytes, _Kept] = {}

    def keep(self, data: bytes, scope: Any, answering: Answering, body_bytes: int) -> None:
        """Keep the head of a request that came by itself, as these bytes, on a connection that stays."""
        line_end, end = _ends(data)
        # A body that is as long as it was sent is one of an announced length.
        if end + body_bytes == len(data) and end <= MAX_KNOWN_HEAD_BYTES:
            if len(self._kept) >= MAX_KNOWN_HEADS:
                self._kept.clear()
            self._kept[data[line_end:end]] = _Kept(data[:line_end], scope, answering, body_bytes)

    def find(self, data: bytes) -> tuple[Answering, bytes] | None:
        """What answers it and the body, if this is one whole request whose fields were kept."""
        line_end, end = _ends(data)
        kept = self._kept.get(data[line_end:end])
        if kept is None or end + kept.body_bytes != len(data) or end > MAX_KNOWN_HEAD_BYTES:
            return None
        line = data[:line_end]
        if line != kept.line:
            answering = self._ask_again(kept.scope, line)
            if answering is None:
                return None
            kept.line, kept.answering = line, answering
        return kept.answering, data[end:]

    def _ask_again(self, scope: Any, line: bytes) -> Answering | None:
        """What answers a request with known fields and another line."""
        read = _LINE.fullmatch(line)
        if read is None or self._quick is None:
            return None
        method, path, query = read.groups(b"")
        return self._quick({**scope, "method": method.decode(), "raw_path": path, "query_string": query})


def _ends(data: bytes) -> tuple[int, int]:
    """Where the line of a request ends, and its head."""
    line_end = data.find(_LINE_END)
    return line_end, data.find(HEAD_END, line_end) + len(HEAD_END)
