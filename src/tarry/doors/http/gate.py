"""What every request passes first: who sends it, and whether it may be from a browser at all."""

from typing import Final

from starlette.requests import Request

from tarry.doors.http.access import Access, Caller, check_browser
from tarry.doors.http.asgi import Scope
from tarry.doors.http.problems import unsupported

CALLER: Final = "tarry.caller"


class Gate:
    """Reads the headers that matter to everybody, once, in one pass."""

    def __init__(self, access: Access, allowed_hosts: tuple[str, ...]) -> None:
        self._access = access
        self._open = access.is_open
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._known_hosts: set[bytes] = set()

    def let_in(self, scope: Scope) -> tuple[Caller, bytes | None, bytes | None]:
        """The caller, the content type and the idempotency key; raises for whom is not let in."""
        host = origin = site = authorization = content_type = key = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value
            elif name == b"host":
                host = value
            elif name == b"authorization":
                authorization = value
            elif name == b"idempotency-key":
                key = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise unsupported("and no content-encoding")
        # Nothing but a Host that was found good before: nothing to look at again.
        if self._open and (host not in self._known_hosts or origin is not None or site is not None):
            check_browser(host, origin, site, self._allowed_hosts)
            if host is not None and len(self._known_hosts) < 100:
                self._known_hosts.add(host)
        return self._access.caller(authorization), content_type, key


def caller_of(request: Request) -> Caller:
    """Who sends a request that the gate has let in."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller
