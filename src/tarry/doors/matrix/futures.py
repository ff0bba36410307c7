"""The Futures draft: events that are sent after a time or by a token, of each group one at the most.

A future is a message of the engine in a group; its group id is the group's name. Its tokens need no row (see
`futures_tokens`), and whoever has one needs nothing else: no account, no room, no name of an action. What a token does
is decided by the engine. To cancel and to refresh is answered once that is durable, without the homeserver; to send once
the homeserver has the event.
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import UNSET, Raw

from tarry.core.errors import Conflict, DelayTooLong, NotFound, RateLimited, TarryError
from tarry.core.messages.delivery import Refused, Retry
from tarry.core.messages.lifecycle import FINALISED
from tarry.core.messages.message import LED_BY, MessageView, OwnedQuery, Scheduled
from tarry.core.tenants.rates import Rates
from tarry.doors.matrix.errors import MatrixError, explain, limited
from tarry.doors.matrix.event import EventToSend, check_event, event_of, message_of, transaction_of
from tarry.doors.matrix.futures_asked import GROUP, AskedFuture, read_query
from tarry.doors.matrix.futures_guesses import Guesses
from tarry.doors.matrix.futures_tokens import TokenAction, Tokens
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.sending import deliver, not_sent
from tarry.doors.matrix.settings import FUTURES
from tarry.doors.matrix.wire import Account, MatrixRequest, ok, refused, source_of
from tarry.engine.answer import Answer, settled
from tarry.http.response import Response
from tarry.outlets.matrix.template import filled

DIALECT: Final = "futures"
URL: Final = "url"
"""The header of a message that keeps the address with which it was asked for, without any access token."""
KIND: Final = "future"
"""The header of a message that says what it is: `timeout`, `action`, or `now` for the event that a batch sends at once."""

PAGE: Final = 100


class Futures:
    """The endpoints of the draft but for the batch, and the code that these share with it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._tokens = Tokens(parts.engine.ids)
        self._group_key = parts.engine.ids.secret("matrix-future-groups")
        settings = parts.settings
        self._guesses = Guesses(settings.future_guesses, settings.future_guesses_pause_ms)
        self._rates = Rates()
        self._commands: dict[TokenAction, Callable[[str], Answer[Any]]] = {
            "cancel": partial(self._engine.cancel, namespace=FUTURES),
            "refresh": partial(self._engine.restart, namespace=FUTURES),
        }

    # Scheduling

    async def send(self, request: MatrixRequest) -> Response:
        """PUT …/rooms/{room}/send_future/{type}/{txn}."""
        room_id, type_, txn = request.params.values()
        event = EventToSend(room_id=room_id, type=type_, content=request.body)
        return await self._schedule(request, event, ("send_future", room_id, type_, txn), own=True)

    async def state(self, request: MatrixRequest) -> Response:
        """PUT …/rooms/{room}/state_future/{type}/{key}; the key may be left out."""
        room_id, type_, *key = request.params.values()
        event = EventToSend(room_id=room_id, type=type_, state_key="".join(key), content=request.body)
        return await self._schedule(request, event, None, own=True)

    async def reused(
        self, request: MatrixRequest, event: EventToSend, txn: tuple[str, ...] | None
    ) -> Response:
        """`future_timeout` or `future_group_id` on /send, /state or /redact: the same, with the same answer."""
        return await self._schedule(request, event, txn, own=False)

    async def _schedule(
        self, request: MatrixRequest, event: EventToSend, txn: tuple[str, ...] | None, *, own: bool
    ) -> Response:
        account = request.account
        try:
            asked = read_query(request.query, own=own)
            check_event(event)
        except MatrixError:
            # As with delayed events: a repeated transaction is answered whatever it holds.
            again = None if txn is None else self._engine.repeated(transaction_of(account, txn, FUTURES))
            if again is None:
                raise
            return ok(self._response(await self._engine.get((await again).id)))
        group_id = asked.group_id or self.new_group_id(account, txn)
        self._check_group(account, group_id)
        message = message_of(
            event,
            account,
            delay_ms=asked.timeout_ms,
            dialect=DIALECT,
            txn=txn,
            group=GROUP + group_id,
            namespace=FUTURES,
            extra={URL: url_of(request), KIND: "action" if asked.timeout_ms is None else "timeout"},
        )
        try:
            scheduled = await self._engine.schedule(message)
            return ok(await self._first_answer(scheduled, asked, group_id))
        except TarryError as error:
            raise explained(error) from None

    async def _first_answer(self, scheduled: Scheduled, asked: AskedFuture, group_id: str) -> dict[str, str]:
        if scheduled.repeated:
            # Whatever is asked for this time, the answer is that of the first time.
            return self._response(await self._engine.get(scheduled.id))
        return self.tokens_of(scheduled.id, group_id, is_timed=asked.timeout_ms is not None)

    def new_group_id(self, account: Account, txn: tuple[str, ...] | None) -> str:
        """A group id that nobody can guess; the same one if a transaction is repeated."""
        if txn is None:
            return secrets.token_urlsafe(24)
        parts = "\0".join((account.user_id, account.device_id or "", *txn))
        return hmac.new(self._group_key, parts.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[
            :32
        ]

    def _check_group(self, account: Account, group_id: str) -> None:
        if self._engine.group_owners(FUTURES, GROUP + group_id) - {account.user_id}:
            raise MatrixError(405, "M_FORBIDDEN", "The future group belongs to another user.")

    def tokens_of(self, id_: str, group_id: str, *, is_timed: bool) -> dict[str, str]:
        """The answer to a future: what can be done with it from now on."""
        response = {
            "send_token": self._tokens.make("send", id_),
            "cancel_token": self._tokens.make("cancel", id_),
            "future_group_id": group_id,
        }
        if is_timed:
            response["refresh_token"] = self._tokens.make("refresh", id_)
        return response

    def _response(self, view: MessageView) -> dict[str, str]:
        group_id = (view.group or "").removeprefix(GROUP)
        return self.tokens_of(view.id, group_id, is_timed=view.delay_ms is not None)

    # Tokens

    def act(self, request: MatrixRequest) -> Response | Awaitable[Response]:
        """POST …/future/{token}: send, cancel or refresh, whichever the token is for."""
        source = self._listened_to(request)
        try:
            action, id_ = self._allowed(self._tokens.read(request.params["token"]))
        except TarryError as error:
            return self._acted(source, error)
        if action == "send":
            return self._sent(source, id_)
        done = self._commands[action](id_).map(lambda _: self._acted(source, None))
        return done.or_else(lambda error: settled(self._acted(source, error)))

    def _listened_to(self, request: MatrixRequest) -> str:
        """The source of the request; raises if it has guessed too often."""
        source = source_of(request, self._parts.settings.trusted_proxies)
        wait_ms = self._guesses.wait_ms(source, self._parts.clock.now_ms())
        if wait_ms:
            raise limited(wait_ms, "Too many invalid tokens.")
        return source

    def _allowed(self, found: tuple[TokenAction, str] | None) -> tuple[TokenAction, str]:
        """The future that a token stands for; raises if there is none, or is asked for too often."""
        if found is None:
            raise NotFound("there is no such token")
        self._limit(("future", found[1]), self._parts.settings.manage_per_second_per_event)
        return found

    async def _sent(self, source: str, id_: str) -> Response:
        try:
            await self._send(id_)
        except TarryError as error:
            return self._acted(source, error)
        return self._acted(source, None)

    async def _send(self, id_: str) -> None:
        """Send a future now: returns once the homeserver has it. Its bearer is not told about the room."""
        verdict = await deliver(self._parts, id_, namespace=FUTURES)
        if isinstance(verdict, Refused):
            raise MatrixError(409, "M_UNKNOWN", "The homeserver refuses the event; the future is over.")
        if isinstance(verdict, Retry):
            raise not_sent(verdict)

    def _acted(self, source: str, error: TarryError | None) -> Response:
        """The answer to an action, counting a wrong guess against its source."""
        if isinstance(error, NotFound) or (isinstance(error, Conflict) and error.state in FINALISED):
            self._guesses.wrong(source, self._parts.clock.now_ms())
            return refused(MatrixError(410, "M_NOT_FOUND", "The token is not valid, or not any more."))
        if error is None or isinstance(error, MatrixError):
            self._guesses.right(source)
            return ok() if error is None else refused(error)
        return refused(explained(error))

    def _limit(self, key: tuple[str, str], per_second: float) -> None:
        wait_ms = self._rates.wait_ms(key, per_second, self._parts.clock.now_ms()) if per_second else 0
        if wait_ms:
            raise RateLimited(wait_ms)

    # Listing

    async def running(self, request: MatrixRequest) -> Response:
        """GET …/future: all futures of the user that wait, the next due first."""
        account = request.account
        shown: list[dict[str, Any]] = []
        page: str | None = None
        try:
            self._limit(("list", account.user_id), self._parts.settings.list_per_second)
            while True:
                query = OwnedQuery(owner=account.user_id, namespace=FUTURES, limit=PAGE, page=page)
                found = await self._engine.list_owned(query)
                shown += (self._shown(view) for view in found.messages if _header(view, KIND) != "now")
                page = found.next_page
                if page is None:
                    return ok(shown)
        except TarryError as error:
            raise explained(error) from None

    def _shown(self, view: MessageView) -> dict[str, Any]:
        content = event_of(view).content
        event_id = _header(view, LED_BY)
        if event_id is not None:
            content = filled(content, event_id)
        return {"url": _header(view, URL), "body": Raw(content), "response": self._response(view)}


def explained(error: TarryError) -> MatrixError:
    """An error of the engine in the words of this draft."""
    if isinstance(error, DelayTooLong):
        text = f"future_timeout exceeds the maximum of {error.max_delay_ms} milliseconds."
        return MatrixError(400, "M_INVALID_PARAM", text)
    if isinstance(error, Conflict):
        if error.state == "reused":
            return MatrixError(400, "M_INVALID_PARAM", "The transaction id was used for another request.")
        return MatrixError(409, "M_UNKNOWN", f"{str(error)[:1].upper()}{str(error)[1:]}.")
    return explain(error)


def url_of(request: MatrixRequest) -> str:
    """The address of a request, as it may be kept: a token in it is left out."""
    path, query = request.http.path.decode("latin-1"), request.raw_query.decode("latin-1")
    kept = [pair for pair in request.query if pair[0] != "access_token"]
    if len(kept) < len(request.query):
        query = urlencode(kept)
    return f"{path}?{query}" if query else path


def _header(view: MessageView, name: str) -> str | None:
    return None if view.headers is UNSET else view.headers.get(name)
