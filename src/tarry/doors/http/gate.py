"""What every request passes first: who sends it, and whether it may be from a browser at all."""

from typing import Final

from starlette.requests import Request

from tarry.core.access import Access, Caller
from tarry.core.browser import check_browser
from tarry.doors.http.access import sender
from tarry.doors.http.asgi import Scope
from tarry.doors.http.problems import unsupported

CALLER: Final = "tarry.caller"
MAX_KNOWN_HOSTS: Final = 100


class Gate:
    """Reads the headers that matter to everybody, once, in one pass."""

    def __init__(self, access: Access, allowed_hosts: tuple[str, ...]) -> None:
        self._access = access
        self._open = access.is_open
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._known_hosts: set[bytes] = set()

    def let_in(self, scope: Scope) -> tuple[Caller, bytes | None, bytes | None]:
        """The caller, the content type and the idempotency key; raises for whom is not let in."""
        get = dict(scope["headers"]).get
        encoding = get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise unsupported("and no content-encoding")
        if self._open:
            self._check_browser(get(b"host"), get(b"origin"), get(b"sec-fetch-site"))
        return sender(self._access, get(b"authorization")), get(b"content-type"), get(b"idempotency-key")

    def _check_browser(self, host: bytes | None, origin: bytes | None, site: bytes | None) -> None:
        # Nothing but a Host that was found good before: nothing to look at again.
        if origin is None and site is None and host in self._known_hosts:
            return
        check_browser(host, origin, site, self._allowed_hosts)
        if host is not None and len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)


def caller_of(request: Request) -> Caller:
    """Who sends a request that the gate has let in."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller
