"""Requests and responses of the door's own paths.

Every response, errors too, carries the CORS headers that browsers ask for.
"""

from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, ValidationError

from tarry.core.unreadable import UNREADABLE
from tarry.doors.matrix.errors import MatrixError
from tarry.http.request import Request
from tarry.http.response import HeaderList, Response

T = TypeVar("T")

Query = list[tuple[str, str]]
"""The parameters of a query, decoded, in order, with those that repeat."""

MAX_BODY_BYTES: Final = 1 << 20
"""An event has 64 KiB of canonical JSON; however it is written, this is enough."""

CORS: Final[HeaderList] = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"X-Requested-With, Content-Type, Authorization, Date"),
    (b"access-control-expose-headers", b"Retry-After"),
]
_JSON_HEADERS: Final[HeaderList] = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    *CORS,
]

_MAX_DIGITS: Final = 20
_MAX_FIELDS: Final = 256

_encode = msgspec.json.Encoder().encode


class Account(Struct, frozen=True):
    """A user of the homeserver, as the sender of a request."""

    user_id: str
    device_id: str | None = None


class MatrixRequest:
    """A request at one of the door's own paths."""

    __slots__ = ("_account", "http", "params", "unstable")

    def __init__(self, http: Request, params: Mapping[str, str], *, unstable: bool = False) -> None:
        self.http = http
        self.params = params
        """The open parts of the path by their names, unquoted."""
        self.unstable = unstable
        """Whether the path is one of a proposal's own."""
        self._account: Account | None = None

    @property
    def account(self) -> Account:
        """The sender of a request to an operation that is for users."""
        assert self._account is not None, "the operation's row is not for users"
        return self._account

    @account.setter
    def account(self, account: Account) -> None:
        self._account = account

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self.http.body

    @property
    def raw_query(self) -> bytes:
        """The query, as it was sent."""
        return self.http.query

    @property
    def query(self) -> Query:
        """The parameters."""
        return read_query(self.http.query)

    def parameter(self, name: str) -> str | None:
        """The first parameter of a name."""
        return next((value for key, value in self.query if key == name), None)


Serve = Callable[[MatrixRequest], Response | Awaitable[Response]]
"""An endpoint of the door. An answer of the engine costs no task, another awaitable does."""


def read_query(raw: bytes) -> Query:
    """Decode a query; raises for one that is not UTF-8 or has too many parameters."""
    try:
        text = raw.decode("ascii")
        if "%" not in text and "+" not in text and text.count("&") < _MAX_FIELDS:
            # As below, for what most queries are, in a third of the time.
            pairs = [pair.partition("=") for pair in text.split("&") if pair]
            return [(name, value) for name, _, value in pairs]
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise MatrixError(400, "M_INVALID_PARAM", "The query cannot be read.") from None


def ok(value: Any = None, status: int = 200) -> Response:
    """A response in JSON; without a value an empty object."""
    return Response(status, _JSON_HEADERS, b"{}" if value is None else _encode(value))


def refused(error: MatrixError, *, close: bool = False) -> Response:
    """An error as a response."""
    return Response(error.status, [*_JSON_HEADERS, *error.headers], _encode(error.body), close=close)


def preflight(_: Request) -> Response:
    """The response to OPTIONS."""
    return Response(204, CORS)


def read_object(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode a body that is a JSON object; says why another body is not one."""
    try:
        return decoder.decode(body)
    except ValidationError as error:
        text = str(error)
        if "missing required field" in text:
            raise MatrixError(400, "M_MISSING_PARAM", text) from None
        raise MatrixError(400, "M_BAD_JSON", text) from None
    except UNREADABLE:
        raise MatrixError(400, "M_NOT_JSON", "The body is not JSON.") from None


def milliseconds(name: str, text: str) -> int:
    """A positive whole number of milliseconds from a query."""
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > _MAX_DIGITS:
        raise MatrixError(400, "M_INVALID_PARAM", f"{name} is not a whole number of milliseconds.")
    return positive(name, int(text))


def positive(name: str, number: int) -> int:
    """The number, if it is positive."""
    if number <= 0:
        raise MatrixError(400, "M_INVALID_PARAM", f"{name} is not positive.")
    return number


def source_of(request: MatrixRequest, trusted: tuple[str, ...]) -> str:
    """The source of a request: the nearest address that is not one of our own proxies."""
    forwarded = (request.http.header(b"x-forwarded-for") or b"").decode("latin-1")
    return believed_way(request.http.peer, forwarded, trusted)[0]


def believed_way(peer: str, forwarded: str, trusted: tuple[str, ...]) -> list[str]:
    """The addresses that a request came by, from its sender to the peer: each was told by one of our own proxies.

    Whatever stands before them in X-Forwarded-For can be written by anybody.
    """
    way = [peer]
    hops = [hop.strip() for hop in forwarded.split(",")]
    while hops and hops[-1] and is_trusted(way[0], trusted):
        way.insert(0, hops.pop())
    return way


def is_trusted(address: str, trusted: tuple[str, ...]) -> bool:
    """Whether an address is one of our own proxies."""
    try:
        return any(ip_address(address) in ip_network(network, strict=False) for network in trusted)
    except ValueError:
        return False
