"""Whether some other web page makes a browser send a request. For doors over HTTP that serve without tokens. Pure."""

import ipaddress
from typing import Final

from tarry.core.errors import Forbidden

_OWN_SITES: Final = (b"same-origin", b"none")
"""`Sec-Fetch-Site` of requests that the server's own pages send, or the browser's user by hand."""
_DEFAULT_PORTS: Final = {b"http": "80", b"https": "443"}


def check_browser(
    host: bytes | None, origin: bytes | None, site: bytes | None, allowed_hosts: frozenset[str]
) -> None:
    """Raise `Forbidden` for a request that some other web page makes a browser on this machine send.

    Without tokens a page could otherwise post to loopback by itself (cross-site, or same-site: a page on another port of
    this machine), or under a name of its own that it has pointed at loopback (DNS rebinding). Programs send neither
    header, and their `Host` is an address or localhost.
    """
    foreign = site is not None and site not in _OWN_SITES
    if foreign or (origin is not None and not _is_origin_of(origin, host)):
        raise Forbidden("requests from other web pages are not taken without tokens")
    name = None if host is None else _split(host, "")[0]
    if name is not None and not _is_local(name) and name not in allowed_hosts:
        raise Forbidden("this Host is not known here; without tokens use localhost or an address")


def _is_origin_of(origin: bytes, host: bytes | None) -> bool:
    """Whether a page of this origin asks where it came from: the same name and the same port."""
    scheme, _, rest = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and host is not None and _split(rest, port) == _split(host, port)


def _split(authority: bytes, default_port: str) -> tuple[str, str]:
    """The name and the port of `name:port`, `name`, or `[address]:port`."""
    text = authority.decode("latin-1").lower()
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        return name, rest.removeprefix(":") or default_port
    name, _, port = text.partition(":")
    return name, port or default_port


def _is_local(name: str) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
