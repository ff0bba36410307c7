"""Owners of tokens: the homeserver names them, and its answer is good for a short time.

So that a busy client does not cost it a question each time, and events can be listed while it is down. Tokens are not
kept, only their digests; a token that is logged out through the proxy is forgotten at once.
"""

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from tarry.core.tenants.access import ANYBODY, Caller
from tarry.core.time.clock import Clock
from tarry.core.unreadable import UNREADABLE
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.settings import MatrixSettings
from tarry.doors.matrix.wire import Account, MatrixRequest
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver
from tarry.outlets.matrix.lines import LineAnswer
from tarry.outlets.matrix.verdict import matrix_error

MAX_KNOWN: Final = 100_000
"""Tokens remembered; beyond it the one that was asked about longest ago is forgotten."""

_WHOAMI: Final = "/_matrix/client/v3/account/whoami"
_MASQUERADE: Final = ("user_id", "device_id", "org.matrix.msc3202.device_id")
"""With these an application service says for whom it speaks."""


class _Known(Struct):
    account: Account
    asked_at_ms: int


_account_decoder = msgspec.json.Decoder(Account)


class Accounts:
    """Asks the homeserver whose token it is, and remembers."""

    def __init__(self, homeserver: Homeserver, settings: MatrixSettings, clock: Clock) -> None:
        self._homeserver = homeserver
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Account]] = {}

    def known(self, request: MatrixRequest) -> Account | None:
        """The account that a request is from, if that is known without asking; raises for a request without a token."""
        known = self._known.get(_digest(token_of(request), _masquerade(request)))
        return known.account if known is not None and self._is_fresh(known) else None

    async def of(self, request: MatrixRequest) -> Account:
        """The account that a request is from; raises the homeserver's own error for one that is from none."""
        token, query = token_of(request), _masquerade(request)
        digest = _digest(token, query)
        known = self._known.get(digest)
        if known is not None and self._is_fresh(known):
            return known.account
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(digest, token, query, known))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(asking)

    def forget(self, token: bytes) -> None:
        """A token was logged out."""
        of_token = _digest(token, "")
        self._forget([one for one in self._known if one.startswith(of_token)])

    def forget_user(self, user_id: str) -> None:
        """All tokens of a user were logged out."""
        self._forget([one for one, known in self._known.items() if known.account.user_id == user_id])

    def _forget(self, digests: list[bytes]) -> None:
        for digest in digests:
            del self._known[digest]

    def _is_fresh(self, known: _Known) -> bool:
        return 0 <= self._clock.now_ms() - known.asked_at_ms < self._settings.token_fresh_ms

    async def _ask(self, digest: bytes, token: bytes, query: str, known: _Known | None) -> Account:
        try:
            answer = await self._homeserver.request(
                "GET", _WHOAMI + query, headers={"Authorization": f"Bearer {token.decode()}"}
            )
            if answer.status < 500:
                return self._remember(digest, answer)
        except FAILURES:
            pass
        if known is not None and 0 <= self._clock.now_ms() - known.asked_at_ms < self._settings.token_kept_ms:
            return known.account
        raise MatrixError(503, "M_UNKNOWN", "The homeserver cannot be asked whose token this is.")

    def _remember(self, digest: bytes, answer: LineAnswer) -> Account:
        self._known.pop(digest, None)
        if answer.status != 200:
            error = matrix_error(answer).body
            rest: dict[str, Any] = {name: error[name] for name in error if name not in ("errcode", "error")}
            raise MatrixError(answer.status, error["errcode"], str(error.get("error", "")), rest)
        try:
            account = _account_decoder.decode(answer.body)
        except UNREADABLE:
            raise MatrixError(502, "M_UNKNOWN", "The homeserver does not say whose token this is.") from None
        if len(self._known) >= MAX_KNOWN:
            self._known.popitem(last=False)
        self._known[digest] = _Known(account, self._clock.now_ms())
        return account


def token_of(request: MatrixRequest) -> bytes:
    """The token of a request, from its header or, as older clients send it, its query."""
    token = request.http.bearer or (request.parameter("access_token") or "").encode()
    if not token:
        raise MatrixError(401, "M_MISSING_TOKEN", "Missing access token.")
    if not token.isascii() or not token.decode().isprintable():
        raise MatrixError(401, "M_UNKNOWN_TOKEN", "Unrecognised access token.")
    return token


def holder_of(request: MatrixRequest) -> Caller:
    """Whose request it is, where connections are shared: its token's, or anybody's if it shows none that can be one."""
    try:
        token = token_of(request)
    except MatrixError:
        return ANYBODY
    return Caller(_digest(token, "").hex(), frozenset(), None)


def _masquerade(request: MatrixRequest) -> str:
    """The parameters that name the user for whom a request speaks, as a query for the homeserver."""
    raw = request.raw_query
    # Nearly none does: the query is not read for it.
    if b"user_id" not in raw and b"device_id" not in raw and b"%" not in raw:
        return ""
    pairs = [(name, value) for name, value in request.query if name in _MASQUERADE]
    return f"?{urlencode(pairs)}" if pairs else ""


def _digest(token: bytes, query: str) -> bytes:
    """The digest of a token and of the user it speaks for; it begins with that of the token alone."""
    digest = hashlib.blake2b(token, digest_size=32).digest()
    return digest + hashlib.blake2b(query.encode(), digest_size=16).digest() if query else digest
