"""The gate that every request passes first: who sends it, and whether it may be from a browser at all."""

import asyncio
from typing import Final

from tarry.core.errors import Forbidden, RateLimited
from tarry.core.tenants.access import Access, Caller
from tarry.core.tenants.browser import check_browser
from tarry.doors.http.problems import no_token, unsupported
from tarry.http.request import Request, bearer_in


def sender(access: Access, authorization: bytes | None) -> Caller:
    """The caller of this `Authorization` header; raises a 401 for an unknown one."""
    secret: bytes | None = None
    if not access.is_open:
        if authorization is None:
            raise no_token("send a token: Authorization: Bearer …")
        secret = bearer_in(authorization)
        if secret is None:
            raise no_token("the authorization scheme is not Bearer")
    found = access.known(secret)
    if found is None:
        raise no_token("the token is not known", b'Bearer error="invalid_token"')
    return found


MAX_KNOWN_HOSTS: Final = 100


class Gate:
    """Reads the headers that matter to everybody, once, in one pass."""

    def __init__(self, access: Access, allowed_hosts: tuple[str, ...]) -> None:
        self._access = access
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._known_hosts: set[bytes] = set()

    def let_in(self, request: Request) -> Caller:
        """The caller behind a request; raises 401 or 403 for one that may not come in, and 429 for one that is too fast."""
        get = request.fields.by_name.get
        encoding = get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise unsupported("and no content-encoding")
        if self._access.is_open:
            self._check_browser(get(b"host"), get(b"origin"), get(b"sec-fetch-site"))
        caller = sender(self._access, get(b"authorization"))
        caller.standing.spend()
        return caller

    def _check_browser(self, host: bytes | None, origin: bytes | None, site: bytes | None) -> None:
        # Nothing but a Host that was found good before: nothing to look at again.
        if origin is None and site is None and host in self._known_hosts:
            return
        check_browser(host, origin, site, self._allowed_hosts)
        if host is not None and len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)


async def keep_pace(caller: Caller, count: int) -> None:
    """Return once a caller may go on with a batch, and count so many messages of it; raises a 401 for a token that is gone."""
    standing = caller.standing
    while True:
        try:
            standing.spend()
        except RateLimited as limited:
            await asyncio.sleep(limited.retry_after_ms / 1000)
        except Forbidden as gone:
            raise no_token(str(gone)) from None
        else:
            standing.charge(count - 1)
            return
