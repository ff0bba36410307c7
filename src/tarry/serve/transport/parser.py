"""The parser of requests, which takes up no offer to go on in another protocol (RFC 9110, 7.8: a server may ignore it).

Java's `HttpClient` and `curl --http2` offer h2c with every first request, body included. httptools takes the head of such
a request for the whole of it, and the body for the other protocol's first bytes. So the head is read again without the offer,
and whatever follows it as its body.
"""

from typing import Any, Final

from httptools import HttpParserUpgrade, HttpRequestParser

_OFFERED: Final = frozenset((b"upgrade", b"http2-settings"))


class RequestParser(HttpRequestParser):
    """httptools' parser. Its protocol leaves a head alone while `offering`, and gets it again without the offer."""

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    @property
    def offering(self) -> bool:
        """Whether the head that is complete offers another protocol. CONNECT is no offer: it asks for nothing else."""
        return bool(self.should_upgrade()) and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        """Parse bytes."""
        try:
            super().feed_data(data)
        except HttpParserUpgrade as stopped:
            if not self.offering:
                raise
            protocol = self._protocol
            protocol.parser = RequestParser(protocol)
            line = b"%b %b HTTP/%b\r\n" % (self.get_method(), protocol.url, self.get_http_version().encode())
            head = without_offer(protocol.headers)
            protocol.parser.feed_data(line + head + bytes(data[stopped.args[0] :]))


def without_offer(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The fields of a head without those that offer another protocol, as they stand in a request."""
    lines = []
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFERED]
            if kept:
                lines.append(b"connection:" + b",".join(kept) + b"\r\n")
        elif name not in _OFFERED:
            lines.append(name + b": " + value + b"\r\n")
    return b"".join(lines) + b"\r\n"
