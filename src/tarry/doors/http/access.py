"""Who sends an HTTP request: its bearer token, and whether a browser was made to send it.

Without tokens everybody who can connect may do everything, so what a browser can be made to send from
elsewhere is refused there (`check_browser`).
"""

import ipaddress

from tarry.core.access import Access, Caller
from tarry.core.errors import Forbidden
from tarry.doors.http.problems import no_token


def sender(access: Access, authorization: bytes | None) -> Caller:
    """Who sends this `Authorization` header; raises a 401 for nobody known."""
    secret: bytes | None = None
    if not access.is_open:
        if authorization is None:
            raise no_token("send a token: Authorization: Bearer …")
        scheme, _, secret = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise no_token("the authorization scheme is not Bearer")
        secret = secret.strip()
    found = access.known(secret)
    if found is None:
        raise no_token("the token is not known", b'Bearer error="invalid_token"')
    return found


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
