"""Webhook destinations: an absolute `http` or `https` URL, read by one strict parser.

A URL that two parsers read differently is how a check is passed with one host and the connection made
to another. So the parser here accepts only what can be read in one way: ASCII, no user name, no
fragment, no backslash, a host that is a plain name, a canonical dotted IPv4 address or a bracketed
IPv6 address. The parts, and not the text, go on to the HTTP client.

The path and query are sent byte for byte as they were given: a signed query must not be «normalised».
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from msgspec import Struct
from yarl import URL

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_DESTINATION_BYTES
from tarry.outlets.webhook.addresses import Address

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_URL: Final = re.compile(
    r"""
    (?P<scheme>https?)://
    (?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)
    (?::(?P<port>[0-9]{1,5}))?
    (?P<path>/(?:[a-z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-f]{2})*)?
    (?P<query>\?(?:[a-z0-9\-._~!$&'()*+,;=:@/?\[\]|]|%[0-9a-f]{2})*)?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)

_NAME: Final = re.compile(
    r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\.?"
)

# A name whose last label is a number is an address to the C library, in one of many notations
# («0x7f.1», «017700000001», «127.1»); no top-level domain is a number.
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)\.?")

_MAX_NAME_LENGTH: Final = 253


class Target(Struct, frozen=True):
    """A destination in its parts. `host` is in lower case, without brackets and without a last dot."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None
    """Set when the host is an address and not a name."""
    url: URL

    @property
    def authority(self) -> str:
        """Host and port, as used for limits by host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(maxsize=4096)
def parse(destination: str) -> Target:
    """Read a destination; raise `Invalid` with its mistake, without repeating the URL."""
    if len(destination) > MAX_DESTINATION_BYTES:
        raise Invalid("destination", f"longer than {MAX_DESTINATION_BYTES} bytes")
    match = _URL.fullmatch(destination)
    if match is None:
        raise Invalid("destination", _complaint(destination))
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65535:
        raise Invalid("destination", "the port must be from 1 to 65535")
    host, address = _read_host(match["host"].lower())
    path = match["path"] or "/"
    bracketed = f"[{host}]" if isinstance(address, IPv6Address) else host
    url = URL(f"{scheme}://{bracketed}:{port}{path}{match['query'] or ''}", encoded=True)
    if url.raw_host != host or url.port != port:  # the client would read it in another way than we did
        raise Invalid(
            "destination", "the host can be read in two ways; write it in letters, digits, dots and hyphens"
        )
    return Target(scheme=scheme, host=host.rstrip("."), port=port, path=path, address=address, url=url)


def _read_host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        try:
            address = IPv6Address(text[1:-1])
        except ValueError:
            raise Invalid("destination", "the host is not a valid IPv6 address") from None
        return str(address), address
    if _ENDS_IN_NUMBER.fullmatch(text):
        try:
            return text, IPv4Address(text)
        except ValueError:
            raise Invalid(
                "destination", "write an IPv4 address as four decimal numbers, like 192.0.2.1"
            ) from None
    if len(text) > _MAX_NAME_LENGTH or _NAME.fullmatch(text) is None:
        raise Invalid("destination", "the host is not a valid name")
    return text, None


def _complaint(destination: str) -> str:
    """The likeliest reason why a destination is no URL for us. Never shows the URL: it may hold secrets."""
    scheme, separator, rest = destination.partition("://")
    if not separator or scheme.lower() not in _DEFAULT_PORTS:
        return "must be an absolute URL that begins with http:// or https://"
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if "@" in authority:
        return "a user name or password in the URL is not allowed; use a header"
    if "#" in rest:
        return "a fragment (#…) is never sent; leave it out"
    if not destination.isascii():
        return "must be ASCII: percent-encode the path and write the host in its xn-- form"
    if not authority or authority.startswith(":"):
        return "the host is missing"
    return "is not a valid URL: percent-encode what is not allowed in a URL"
