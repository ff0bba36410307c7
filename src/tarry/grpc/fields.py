"""The rules for the fields of a request (RFC 9113, 8.2 and 8.3). Pure."""

from typing import Final

from tarry.grpc.frames import ErrorCode, StreamBroken
from tarry.grpc.hpack import Fields

_ASKED: Final = frozenset((b":method", b":scheme", b":path"))
"""The pseudo-fields that every request has."""
_KNOWN: Final = _ASKED | {b":authority"}
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
"""Fields of HTTP/1.1 that have no meaning on a stream."""


def check_request(fields: Fields) -> None:
    """Raise `StreamBroken` for fields that are no request."""
    said: set[bytes] = set()
    ordinary = False
    for name, value in fields:
        if name[:1] == b":":
            _need(not ordinary, "a pseudo-field behind an ordinary one")
            _need(name in _KNOWN, "a pseudo-field that requests do not have")
            _need(name not in said, "a pseudo-field twice")
            said.add(name)
        else:
            ordinary = True
            _check_ordinary(name, value)
    _need(said >= _ASKED, "a request without its method, scheme or path")
    _need((b":path", b"") not in fields, "a request with an empty path")


def check_trailers(fields: Fields) -> None:
    """Raise `StreamBroken` for fields that cannot stand behind a request."""
    for name, value in fields:
        _need(name[:1] != b":", "a pseudo-field behind a request")
        _check_ordinary(name, value)


def content_length(fields: Fields) -> int | None:
    """The length that a request announces for its data, if it does; raises `StreamBroken`."""
    said = {value for name, value in fields if name == b"content-length"}
    if not said:
        return None
    value = said.pop()
    _need(not said and value.isdigit() and len(value) <= 19, "a content-length that is no number")
    return int(value)


def _check_ordinary(name: bytes, value: bytes) -> None:
    _need(bool(name) and name == name.lower(), "the name of a field in capitals, or none")
    _need(name not in _OF_CONNECTIONS, "a field that belongs to connections of HTTP/1.1")
    _need(name != b"te" or value == b"trailers", "a te field that is not trailers")


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise StreamBroken(ErrorCode.PROTOCOL_ERROR, reason)
