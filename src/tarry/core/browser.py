"""Whether some other web page makes a browser send a request. For doors over HTTP that serve without tokens. Pure."""

import ipaddress

from tarry.core.errors import Forbidden


def check_browser(
    host: bytes | None, origin: bytes | None, site: bytes | None, allowed_hosts: frozenset[str]
) -> None:
    """Raise `Forbidden` for a request that some other web page makes a browser on this machine send.

    Without tokens a page could otherwise post to loopback by itself (cross-site), or under a name of its
    own that it has pointed at loopback (DNS rebinding). Programs send neither header, and their
    `Host` is an address or localhost.
    """
    if site == b"cross-site":
        raise Forbidden("requests from other web pages are not taken without tokens")
    name = _host_name(host)
    if origin is not None and _host_name(origin.partition(b"://")[2]) != name:
        raise Forbidden("requests from other web pages are not taken without tokens")
    if name is not None and not _is_local(name) and name not in allowed_hosts:
        raise Forbidden("this Host is not known here; without tokens use localhost or an address")


def _host_name(host: bytes | None) -> str | None:
    if host is None:
        return None
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _is_local(name: str) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
