"""The rules for the fields of a request (RFC 9113, 8.2 and 8.3). Pure."""

from typing import Final

from tarry.grpc.frames import ErrorCode, StreamBroken
from tarry.grpc.hpack import HeaderFields

_ASKED: Final = frozenset((b":method", b":scheme", b":path"))
"""The pseudo-fields that every request has."""
_KNOWN: Final = _ASKED | {b":authority"}
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
"""Fields of HTTP/1.1 that have no meaning on a stream."""


def check_request(fields: HeaderFields) -> None:
    """Raise `StreamBroken` for fields that are no request."""
    said: set[bytes] = set()
    ordinary = False
    for name, value in fields:
        if name[:1] == b":":
            _need(not ordinary, "pseudo-fields come before all others (RFC 9113 §8.3)")
            _need(
                name in _KNOWN,
                "requests have no pseudo-fields but :method, :scheme, :authority and :path (RFC 9113 §8.3.1)",
            )
            _need(name not in said, "a pseudo-field comes once (RFC 9113 §8.3)")
            said.add(name)
        else:
            ordinary = True
            _check_ordinary(name, value)
    _need(said >= _ASKED, "a request has :method, :scheme and :path (RFC 9113 §8.3.1)")
    _need((b":path", b"") not in fields, ":path is not empty (RFC 9113 §8.3.1)")


def check_trailers(fields: HeaderFields) -> None:
    """Raise `StreamBroken` for fields that cannot stand behind a request."""
    for name, value in fields:
        _need(name[:1] != b":", "trailers have no pseudo-fields (RFC 9113 §8.1)")
        _check_ordinary(name, value)


def content_length(fields: HeaderFields) -> int | None:
    """The length that a request announces for its data, if it does; raises `StreamBroken`."""
    said = {value for name, value in fields if name == b"content-length"}
    if not said:
        return None
    value = said.pop()
    _need(
        not said and value.isdigit() and len(value) <= 19,
        "content-length is one whole number (RFC 9110 §8.6)",
    )
    return int(value)


def _check_ordinary(name: bytes, value: bytes) -> None:
    _need(bool(name) and name == name.lower(), "names of fields are in lower case (RFC 9113 §8.2.1)")
    _need(name not in _OF_CONNECTIONS, "a field of HTTP/1.1's connections (RFC 9113 §8.2.2)")
    _need(name != b"te" or value == b"trailers", "te is trailers, or absent (RFC 9113 §8.2.2)")


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise StreamBroken(ErrorCode.PROTOCOL_ERROR, reason)
