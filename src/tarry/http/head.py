"""Heads of requests: read by llhttp, and remembered by their fields.

A client's fields are the same again and again, and only the request line changes. Reading them is a good third of what a small
request costs (ADR 0032), so the fields of recent heads are kept, by their bytes; then only the request line is read, and only
one of the plainest kind. llhttp reads every other. An idempotency key is another one in each request: it is put beside the fields that
are remembered, and not among them.
"""

import re
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from tarry.core.tricks import TRICKS
from tarry.http.errors import BadHead

MAX_KNOWN_FIELDS: Final = 1_024
MAX_KNOWN_BYTES: Final = 2_048
"""Maximum number of remembered fields of heads, and bytes of each."""

HEAD_END: Final = b"\r\n\r\n"
_LINE: Final = re.compile(rb"(GET|PUT|POST|DELETE) (/[!$%-;=@-Z_a-z~]*)(?:\?([!$%-;=?-Z_a-z~]*))? HTTP/1\.1")
"""A request line in which nothing is to be decided: llhttp reads it in the same way."""


KEY_NAME: Final = b"idempotency-key"
_KEY_BEGINS: Final = b"\r\n" + KEY_NAME + b": "
_KEY: Final = re.compile(_KEY_BEGINS + rb"([!-~]+)(?=\r\n)")
"""A field in which nothing is to be decided, in the form in which most clients send it."""


class Fields:
    """The fields of a head, and the body and connection that they describe."""

    __slots__ = ("by_name", "chunked", "expects", "headers", "keep_alive", "length", "old")

    def __init__(self, headers: list[tuple[bytes, bytes]], keep_alive: bool, old: bool) -> None:
        """Raises `BadHead` for fields that could be understood in two ways."""
        self.old = old
        """Whether the client speaks HTTP/1.0, and knows of no chunks."""
        self.headers = headers
        self.by_name = by_name = dict(headers)
        self.keep_alive = keep_alive
        coding = by_name.get(b"transfer-encoding")
        length = by_name.get(b"content-length")
        once = [name for name, _ in headers if name in (b"host", b"content-length", b"transfer-encoding")]
        if len(once) > len(set(once)) or (coding is not None and length is not None):
            raise BadHead(
                "Host, Content-Length and Transfer-Encoding come once, and not the last two together (RFC 9112 §6.3)"
            )
        if not old and b"host" not in by_name:
            raise BadHead("HTTP/1.1 requires Host (RFC 9112 §3.2)")
        if old and coding is not None:
            raise BadHead("HTTP/1.0 has no Transfer-Encoding (RFC 9112 §6.1)")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise BadHead("Transfer-Encoding is chunked, or absent (RFC 9112 §6.1)")
        if length is not None and not length.strip().isdigit():
            raise BadHead("Content-Length is a whole number (RFC 9110 §8.6)")
        self.chunked = coding is not None
        self.length = 0 if length is None else int(length)
        self.expects = by_name.get(b"expect", b"").lower() == b"100-continue"
        """Whether the client waits for a word before it sends the body."""

    def with_key(self, key: bytes) -> "Fields":
        """These fields and an idempotency key."""
        fields = Fields.__new__(Fields)
        fields.old, fields.keep_alive, fields.expects = self.old, self.keep_alive, self.expects
        fields.chunked, fields.length = self.chunked, self.length
        fields.headers = [*self.headers, (KEY_NAME, key)]
        fields.by_name = {**self.by_name, KEY_NAME: key}
        return fields


class Head:
    """The head of a request."""

    __slots__ = ("fields", "method", "path", "query")

    def __init__(self, method: str, path: bytes, query: bytes, fields: Fields) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.fields = fields


class Heads:
    """Reads heads, and remembers the fields of recent ones. One for all connections of a listener."""

    def __init__(self) -> None:
        self._known: dict[bytes, Fields] = {}

    def read(self, head: bytes) -> Head:
        """Read a head, its empty line included; raises `BadHead`."""
        line_end = head.find(b"\r\n")
        if len(head) - line_end > MAX_KNOWN_BYTES or not TRICKS.known_heads:
            return read_head(head)
        key_at = head.find(_KEY_BEGINS, line_end)
        key = None if key_at < 0 else _KEY.match(head, key_at)
        if key is not None:
            found = self._read(head[:key_at] + head[key.end() :], line_end)
            if KEY_NAME not in found.fields.by_name:
                found.fields = found.fields.with_key(key[1])
                return found
            # There are two: which one counts is llhttp's and `Fields`' to say.
            return read_head(head)
        return self._read(head, line_end)

    def _read(self, head: bytes, line_end: int) -> Head:
        known = self._known.get(head[line_end:])
        if known is not None:
            line = _LINE.fullmatch(head, 0, line_end)
            if line is not None:
                method, path, query = line.groups(b"")
                return Head(method.decode(), path, query, known)
        found = read_head(head)
        if known is None and head[line_end - 9 : line_end] == b" HTTP/1.1":
            if len(self._known) >= MAX_KNOWN_FIELDS:
                self._known.clear()
            self._known[head[line_end:]] = found.fields
        return found


def read_head(head: bytes) -> Head:
    """Read a head with llhttp; raises `BadHead`."""
    reader = _Reader()
    parser = reader.parser = HttpRequestParser(reader)
    try:
        parser.feed_data(head)
    except HttpParserUpgrade:
        # An offer to go on in another protocol, which a server may ignore (RFC 9110, 7.8). CONNECT is more than an offer.
        pass
    except HttpParserError as error:
        raise BadHead(str(error)) from None
    if not reader.complete or reader.method == b"CONNECT" or reader.version not in ("1.0", "1.1"):
        raise BadHead("not the head of a request")
    path, query = _split(bytes(reader.url))
    return Head(
        reader.method.decode(),
        path,
        query,
        Fields(reader.headers, reader.keep_alive, reader.version == "1.0"),
    )


def _split(target: bytes) -> tuple[bytes, bytes]:
    if not target.isascii():
        raise BadHead("a target is in ASCII (RFC 9112 §3.2)")
    if target.startswith(b"/"):
        path, _, query = target.partition(b"#")[0].partition(b"?")
        return path, query
    if target == b"*":
        return target, b""
    try:
        url = parse_url(target)
    except HttpParserError:
        raise BadHead("a target is a path, a URL or * (RFC 9112 §3.2)") from None
    return url.path or b"/", url.query or b""


class _Reader:
    """The parts of a head, as llhttp tells them."""

    def __init__(self) -> None:
        self.parser: Any = None
        self.method = b""
        self.url = bytearray()
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        self.version = ""
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.method = self.parser.get_method()
        self.keep_alive = self.parser.should_keep_alive()
        self.version = self.parser.get_http_version()
        self.complete = True
