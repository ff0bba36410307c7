"""Heads of requests that came before: a client's are the same again and again, but for their target and a length.

Parsing a head costs a third of what scheduling a message does. So one that was answered quickly is kept: the same head to the
byte is answered by the same, and one whose header fields came before with another target is put to the application again,
without the parser. Only a request line of the plainest kind is read here; the parser sees every other.
"""

import re
from collections.abc import Callable
from typing import Any, Final

MAX_KNOWN_FIELDS: Final = 1_024
MAX_KNOWN_HEAD_BYTES: Final = 2_048
MAX_KNOWN_HEADS: Final = 16_384
"""Maximum number of whole heads, of half that size at the most: as many heartbeats have heads of their own."""
_ONCE: Final = b"PUT "
"""PUT targets carry a transaction id and rarely repeat, so whole PUT heads are not cached."""
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
"""A function that an application may have beside ASGI, as `quick`: it gets a scope without the connection and with the raw path alone,
and gives the function that answers requests with that head. That saves a task and two dozen calls; and what it gives is kept for the
next such head."""


def quick_scope(scope: Any) -> Any:
    """The scope of a parsed request, for an application's `quick`."""
    return {name: value for name, value in scope.items() if name not in ("client", "server", "path")}


class _Fields:
    """The fields of a head: what the parser made of them."""

    __slots__ = ("body_bytes", "scope")

    def __init__(self, scope: Any, body_bytes: int) -> None:
        self.scope = scope
        self.body_bytes = body_bytes


class Heads:
    """Functions that answer requests, by their heads. Only heads that were answered are kept: a stranger cannot fill the memory."""

    def __init__(self, quick: Quick | None) -> None:
        self._quick = quick
        self._fields: dict[bytes, _Fields] = {}
        self._whole: dict[bytes, tuple[Answering, int]] = {}

    def keep(self, data: bytes, scope: Any, answering: Answering, body_bytes: int) -> None:
        """Keep the head of a request that came by itself, as these bytes, on a connection that stays."""
        end = data.find(HEAD_END) + len(HEAD_END)
        # A body that is as long as it was sent is one of an announced length.
        if end + body_bytes == len(data) and end <= MAX_KNOWN_HEAD_BYTES:
            if len(self._fields) >= MAX_KNOWN_FIELDS:
                self._fields.clear()
            self._fields[data[data.find(_LINE_END) : end]] = _Fields(scope, body_bytes)
            self._keep_whole(data[:end], answering, body_bytes)

    def _keep_whole(self, head: bytes, answering: Answering, body_bytes: int) -> None:
        if len(head) <= MAX_KNOWN_HEAD_BYTES // 2 and not head.startswith(_ONCE):
            if len(self._whole) >= MAX_KNOWN_HEADS:
                self._whole.clear()
            self._whole[head] = answering, body_bytes

    def find(self, data: bytes) -> tuple[Answering, bytes] | None:
        """The function that answers a request, and its body, if this is one whole request whose fields were kept."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head = data[:end]
        known = self._whole.get(head)
        if known is None:
            known = self._ask_again(head)
        if known is None or end + known[1] != len(data):
            return None
        return known[0], data[end:]

    def _ask_again(self, head: bytes) -> tuple[Answering, int] | None:
        """The function that answers a request with known fields and another line, and the length of its body."""
        line_end = head.find(_LINE_END)
        fields = self._fields.get(head[line_end:])
        if fields is None or self._quick is None or len(head) > MAX_KNOWN_HEAD_BYTES:
            return None
        read = _LINE.fullmatch(head, 0, line_end)
        if read is None:
            return None
        method, path, query = read.groups(b"")
        answering = self._quick(
            {**fields.scope, "method": method.decode(), "raw_path": path, "query_string": query}
        )
        if answering is None:
            return None
        self._keep_whole(head, answering, fields.body_bytes)
        return answering, fields.body_bytes
