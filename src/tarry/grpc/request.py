"""The fields of a gRPC call as a request, and its outcome as fields. Pure."""

import base64
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from tarry.grpc.fields import check_request, content_length
from tarry.grpc.hpack import Field, HeaderFields, written

Pair = tuple[str, str | bytes]
"""A name and a value of a call's metadata; where the name ends in `-bin` the value is bytes."""

BINARY: Final = "-bin"
ENCODINGS: Final = ("identity", "gzip", "deflate")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OWN: Final = frozenset(("te", "content-type", "user-agent", "host", "connection"))
"""Fields of the protocol and not of the call, beside those that begin with `:` or `grpc-`."""
_ANSWER: Final[tuple[Field, ...]] = ((b":status", b"200"), (b"content-type", b"application/grpc"))
ANSWER: Final = written(*_ANSWER)
"""The fields that every answer begins with."""
REFUSAL: Final = b"This port speaks gRPC: POST, with a content-type of application/grpc.\n"
"""The answer to somebody who does not."""


class GrpcRequest(Struct, frozen=True):
    """A call as its fields say it."""

    path: str
    metadata: tuple[Pair, ...]
    timeout_s: float | None
    encoding: str
    http_status: int
    """200, or what somebody is told who does not speak gRPC."""
    content_length: int | None
    """The length of the data, if it is announced."""


@lru_cache(maxsize=256)
def request_of(fields: HeaderFields) -> GrpcRequest:
    """The request that header fields describe; raises `StreamBroken`. Nearly all calls of a client have the same ones."""
    check_request(fields)
    said = {name.decode("latin-1"): value for name, value in fields}
    status = 200
    if said.get(":method") != b"POST":
        status = 405
    elif not said.get("content-type", b"").startswith(b"application/grpc"):
        status = 415
    return GrpcRequest(
        path=said.get(":path", b"").decode("latin-1"),
        metadata=tuple(_metadata(fields)),
        timeout_s=_timeout_s(said.get("grpc-timeout", b"").decode("latin-1")),
        encoding=said.get("grpc-encoding", b"identity").decode("latin-1"),
        http_status=status,
        content_length=content_length(fields),
    )


def _metadata(fields: HeaderFields) -> Iterable[Pair]:
    for raw, value in fields:
        name = raw.decode("latin-1")
        if (name.startswith((":", "grpc-")) and name != "grpc-trace-bin") or name in _OWN:
            continue
        if not name.endswith(BINARY):
            yield name, value.decode("latin-1")
            continue
        for one in value.split(b","):
            try:
                yield name, base64.b64decode(one.strip() + b"=" * (-len(one.strip()) % 4), validate=True)
            except ValueError:
                # As it came: what is not asked for does no harm.
                yield name, one


def _timeout_s(said: str) -> float | None:
    number, unit = said[:-1], said[-1:]
    # `isdigit` alone takes superscripts too, which `int` does not.
    if unit not in _UNITS_S or not (number.isascii() and number.isdigit()) or len(number) > 8:
        return None
    return int(number) * _UNITS_S[unit]


def fields_of(pairs: Iterable[Pair]) -> bytes:
    """Metadata as a block of fields."""
    return written(*map(_field, pairs))


def _field(pair: Pair) -> Field:
    name, value = pair
    if name.endswith(BINARY):
        raw = value if isinstance(value, bytes) else value.encode()
        return name.encode(), base64.b64encode(raw).rstrip(b"=")
    return name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace")


@lru_cache(maxsize=64)
def status_fields(code: int, message: str) -> bytes:
    """The end of a call as a block of fields; metadata may follow."""
    fields = [(b"grpc-status", str(code).encode())]
    if message:
        fields.append((b"grpc-message", _percent(message)))
    return written(*fields)


def refusal_fields(http_status: int) -> bytes:
    """The fields of the answer to somebody who does not speak gRPC."""
    return written((b":status", str(http_status).encode()), (b"content-type", b"text/plain"))


def _percent(text: str) -> bytes:
    """Text as `grpc-message` has it."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode(errors="replace")
    )
