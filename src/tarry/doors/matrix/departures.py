"""Accounts that end. What a deactivated user has scheduled is never sent.

A homeserver tells nobody that it deactivated an account, so it is noticed in three ways: by the user's own request, which
passes through the proxy; by the user's leaving of rooms, which deactivation brings about and the application service
sees, whoever asked for it; and, at the latest, when an event is to be sent and its device is gone (see the outlet). In
the second case the homeserver is asked, since people leave rooms for other reasons.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from tarry.core.errors import TarryError
from tarry.doors.matrix.accounts import token_of
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.settings import EVENTS, FUTURES
from tarry.doors.matrix.wire import Account, MatrixRequest
from tarry.engine.api import Ending
from tarry.outlets.matrix.homeserver import FAILURES
from tarry.outlets.matrix.outlet import DEACTIVATED, is_deactivated

log = logging.getLogger(__name__)

ASK_AGAIN_MS: Final = 60_000
"""A user who leaves many rooms at once is asked about once, and again after this."""
MAX_ASKED: Final = 10_000
MAX_ASKING: Final = 16

_VERSIONS: Final = (b"v3", b"r0", b"unstable")

Afterwards = Callable[[], Awaitable[None]]


class Departures:
    """Notices that accounts or their tokens end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._asked: OrderedDict[str, int] = OrderedDict()
        """When each user was asked about last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(MAX_ASKING)
        self._watched: dict[bytes, Callable[[bytes, Account | None], Awaitable[None]]] = {
            b"/_matrix/client/" + version + ending: follow
            for version in _VERSIONS
            for ending, follow in (
                (b"/logout", self._logged_out),
                (b"/logout/all", self._logged_out_everywhere),
                (b"/account/password", self._logged_out_everywhere),
                (b"/account/deactivate", self._deactivated),
            )
        }

    async def watch(self, request: MatrixRequest) -> Afterwards | None:
        """The work to do once a request that is the homeserver's has succeeded; None for nearly all."""
        follow = self._watched.get(request.http.path) if request.http.method == "POST" else None
        if follow is None:
            return None
        try:
            token = token_of(request)
        except MatrixError:
            return None
        # Afterwards nobody knows any more whose it was.
        account: Account | None = None
        with contextlib.suppress(MatrixError):
            account = await self._parts.accounts.of(request)
        return lambda: follow(token, account)

    async def _logged_out(self, token: bytes, _account: Account | None) -> None:
        self._parts.accounts.forget(token)

    async def _logged_out_everywhere(self, token: bytes, account: Account | None) -> None:
        self._parts.accounts.forget(token)
        if account is not None:
            self._parts.accounts.forget_user(account.user_id)

    async def _deactivated(self, token: bytes, account: Account | None) -> None:
        await self._logged_out_everywhere(token, account)
        if account is not None:
            await self._end(account.user_id)

    def left(self, user_id: str) -> None:
        """A user has left a room."""
        now_ms = self._parts.clock.now_ms()
        if not self._parts.engine.pending_of(user_id, EVENTS, FUTURES):
            return
        if 0 <= now_ms - self._asked.get(user_id, -ASK_AGAIN_MS) < ASK_AGAIN_MS:
            return
        self._asked.pop(user_id, None)
        self._asked[user_id] = now_ms
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        task = asyncio.create_task(self._ask(user_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, user_id: str) -> None:
        try:
            async with self._places:
                if await is_deactivated(self._parts.homeserver, user_id):
                    self._parts.accounts.forget_user(user_id)
                    await self._end(user_id)
        except FAILURES:
            # It is noticed at the next departure, or when an event is sent.
            self._asked.pop(user_id, None)

    async def _end(self, user_id: str) -> None:
        ending = Ending(reason="the account has been deactivated", error=DEACTIVATED)
        try:
            ended = await self._parts.engine.end_owner(user_id, ending)
        except TarryError as error:
            log.warning("the events of a deactivated user could not be ended: %s", error)
            # They leave more rooms.
            self._asked.pop(user_id, None)
        else:
            log.info("an account was deactivated", extra={"events": ended})
