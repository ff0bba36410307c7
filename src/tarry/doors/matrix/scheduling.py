"""Scheduling a delayed event, in all the ways that clients ask for it.

The proposal's own endpoint takes the delay in its body (`delay`, or `delay_ms` as merged); `/send`, `/state` and
`/redact` take it as a query parameter. A request that names a delay is scheduled or refused, and never passed on: the
homeserver behind would send it at once.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from tarry.core.errors import TarryError, TooManyPending
from tarry.core.message import Message, OwnedQuery, Scheduled
from tarry.doors.matrix.accounts import Account
from tarry.doors.matrix.dialects import MERGED, QUERY, SEED, UNSTABLE, Dialect, Speech
from tarry.doors.matrix.errors import MatrixError, explain, internal
from tarry.doors.matrix.event import EventToSend, check_event, message_of, transaction_of
from tarry.doors.matrix.futures import Futures
from tarry.doors.matrix.futures_asked import PARAMETERS as FUTURES
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.paths import CLIENT, MAX_KNOWN, MAX_KNOWN_BYTES, MSC4140, Route, unquoted
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.wire import (
    Answered,
    MatrixRequest,
    Query,
    milliseconds,
    ok,
    positive,
    read_object,
    read_query,
    refused,
)
from tarry.engine.answer import Answer
from tarry.outlets.matrix.outlet import REDACTION, STICKY_PARAMETER

VERSIONS: Final = tuple(f"{CLIENT}/{version}" for version in ("v3", "v1", "r0", "api/v1", "unstable"))
"""Where homeservers have /send, /state and /redact."""

DELAYS: Final = frozenset({"delay", f"{UNSTABLE}.delay"})
DELAYING: Final = frozenset(name.encode() for name in DELAYS | FUTURES)
"""Query parameters that ask for anything but sending at once."""


class _Body(Struct):
    content: Raw
    delay: int | None = None
    delay_ms: int | None = None
    state_key: str | None = None
    sticky_ms: int | None = msgspec.field(default=None, name=STICKY_PARAMETER)


_body_decoder = msgspec.json.Decoder(_Body)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def asks_to_delay(raw_query: bytes) -> bool:
    """Whether a query on /send, /state or /redact makes it a matter of this door."""
    if not raw_query or (b"delay" not in raw_query and b"future" not in raw_query and b"%" not in raw_query):
        return False
    # Whatever a homeserver may take for a name is one: with semicolons, or in a query that is otherwise nonsense.
    pairs = raw_query.replace(b";", b"&").replace(b"+", b" ").split(b"&")
    names = [pair.partition(b"=")[0] for pair in pairs]
    return not DELAYING.isdisjoint([unquote_to_bytes(name) if b"%" in name else name for name in names])


class AskedDelay(Struct, frozen=True):
    """An event, how long to wait with it, and in which words that was said."""

    event: EventToSend
    delay_ms: int
    speech: Speech
    txn: tuple[str, ...] | None

    def with_content(self, txn: str, content: bytes) -> "AskedDelay":
        """A copy for another transaction and content."""
        event = msgspec.structs.replace(self.event, content=content)
        return AskedDelay(event, self.delay_ms, self.speech, ("send", event.room_id, event.type, txn))


class Scheduling:
    """The endpoints that schedule."""

    def __init__(self, parts: Parts, futures: Futures) -> None:
        self._parts = parts
        self._futures = futures
        rooms = [f"{version}/rooms/{{}}" for version in VERSIONS]
        self.own = Route(
            {"PUT": self.schedule},
            f"{CLIENT}/v3/rooms/{{}}/delayed_event/{{}}/{{}}",
            f"{CLIENT}/v1/rooms/{{}}/delayed_event/{{}}/{{}}",
            f"{MSC4140}/rooms/{{}}/delayed_event/{{}}/{{}}",
        )
        reused = partial(Route, when=asks_to_delay)
        self.reused = [
            reused({"PUT": self.send}, *(f"{room}/send/{{}}/{{}}" for room in rooms)),
            reused({"POST": self.send}, *(f"{room}/send/{{}}" for room in rooms)),
            reused(
                {"PUT": self.state},
                *(f"{room}/state/{{}}" for room in rooms),
                *(f"{room}/state/{{}}/{{}}" for room in rooms),
            ),
            reused({"PUT": self.redact}, *(f"{room}/redact/{{}}/{{}}" for room in rooms)),
            reused({"POST": self.redact}, *(f"{room}/redact/{{}}" for room in rooms)),
        ]
        self.routes = [self.own, *self.reused]

    # The proposal's own endpoint

    async def schedule(self, request: MatrixRequest) -> Answered:
        """PUT …/rooms/{room}/delayed_event/{type}/{txn}."""
        account = await self._parts.accounts.of(request)
        return await self._accept(account, own_transaction(request), partial(read_own, request))

    # The delay as a query parameter

    async def send(self, request: MatrixRequest) -> Answered:
        """PUT …/rooms/{room}/send/{type}/{txn}?delay=… and the same by POST, without a transaction."""
        room_id, type_, *txn = request.params
        names = ("send", room_id, type_, *txn) if txn else None
        query = request.query
        if _is_future(query):
            event = EventToSend(room_id=room_id, type=type_, content=request.body, sticky_ms=_sticky(query))
            return await self._future(request, event, names)
        account = await self._parts.accounts.of(request)
        event = EventToSend(room_id=room_id, type=type_, content=request.body, sticky_ms=_sticky(query))
        return await self._accept(account, names, partial(_asked_by_query, query, event, names))

    async def state(self, request: MatrixRequest) -> Answered:
        """PUT …/rooms/{room}/state/{type}/{key}?delay=…; the key may be left out."""
        room_id, type_, *key = request.params
        query = request.query
        event = EventToSend(
            room_id=room_id,
            type=type_,
            state_key="".join(key),
            content=request.body,
            sticky_ms=_sticky(query),
        )
        if _is_future(query):
            return await self._future(request, event, None)
        account = await self._parts.accounts.of(request)
        return await self._accept(account, None, partial(_asked_by_query, query, event, None))

    async def redact(self, request: MatrixRequest) -> Answered:
        """PUT …/rooms/{room}/redact/{event}/{txn}?delay=… and the same by POST, without a transaction."""
        room_id, event_id, *txn = request.params
        given = read_object(request.body, _object_decoder) if request.body else {}
        content = msgspec.json.encode({**given, "redacts": event_id})
        query = request.query
        event = EventToSend(room_id=room_id, type=REDACTION, content=content, sticky_ms=_sticky(query))
        names = ("redact", room_id, event_id, *txn) if txn else None
        if _is_future(query):
            return await self._future(request, event, names)
        account = await self._parts.accounts.of(request)
        return await self._accept(account, names, partial(_asked_by_query, query, event, names))

    async def _future(
        self, request: MatrixRequest, event: EventToSend, txn: tuple[str, ...] | None
    ) -> Answered:
        if not DELAYS.isdisjoint(name for name, _ in request.query):
            raise MatrixError(400, "M_INVALID_PARAM", "Give a delay or a future, not both.")
        return await self._futures.reused(request, event, txn)

    # Both

    async def _accept(
        self, account: Account, txn: tuple[str, ...] | None, read: Callable[[], AskedDelay]
    ) -> Answered:
        try:
            asked = read()
            message = self._message(account, asked)
        except MatrixError:
            # A client may repeat a transaction without its body, or with another: the answer is the first one's.
            again = None if txn is None else self._parts.engine.repeated(transaction_of(account, txn))
            if again is None:
                raise
            return _answer(await again)
        try:
            return _answer(await self._parts.engine.schedule(message))
        except TooManyPending as error:
            raise explain(error, await self._with_next_due(account, asked.speech)) from None
        except TarryError as error:
            raise explain(error, asked.speech) from None

    async def _with_next_due(self, account: Account, speech: Speech) -> Speech:
        """The words for errors, with how long it is until there is room for another event of this user."""
        page = await self._parts.engine.list_owned(OwnedQuery(owner=account.user_id, limit=1))
        now_ms = self._parts.clock.now_ms()
        waits_ms = [view.due_at_ms - now_ms for view in page.messages if view.due_at_ms is not None]
        return msgspec.structs.replace(speech, room_in_ms=max([1, *waits_ms]))

    def _message(self, account: Account, asked: AskedDelay) -> Message:
        check_event(asked.event)
        return message_of(
            asked.event,
            account,
            delay_ms=asked.delay_ms,
            dialect=asked.speech.dialect.name,
            txn=asked.txn,
            ended_by_state=self._parts.settings.cancel_by_state_update,
        )

    def quick(self, account: Account, asked: AskedDelay, reply: Any) -> None:
        """Schedule for a request that has come whole, from an account that is known."""
        message = self._message(account, asked)
        self._parts.engine.schedule(message).then(partial(_reply, reply, asked.speech))

    def has_room(self, account: Account) -> bool:
        """Whether the user may have another event; who may not is told so the longer way."""
        waiting = self._parts.engine.pending_of(account.user_id, EVENTS)
        return waiting < self._parts.settings.max_pending_per_user


def own_transaction(request: MatrixRequest) -> tuple[str, ...]:
    """The name of a request to the proposal's own endpoint within the user's device."""
    return ("delayed_event", *request.params)


def read_own(request: MatrixRequest) -> AskedDelay:
    """Read a request to the proposal's own endpoint."""
    room_id, type_, _ = request.params
    body = read_object(request.body, _body_decoder)
    delay_ms, dialect = _delay_of(body)
    sticky_ms = body.sticky_ms
    if sticky_ms is None and request.raw_query:
        sticky_ms = _sticky(request.query)
    event = EventToSend(
        room_id=room_id,
        type=type_,
        state_key=body.state_key,
        content=bytes(body.content),
        sticky_ms=sticky_ms,
    )
    speech = Speech(dialect, request.unstable)
    return AskedDelay(event, delay_ms, speech, own_transaction(request))


def known_send(room: bytes, type_: bytes, raw_query: bytes) -> AskedDelay | None:
    """The request of a /send without its transaction and its content, from two parts of its path; None if it has no delay.

    A client asks for the same again and again, so it is remembered.
    """
    size = len(room) + len(type_) + len(raw_query)
    read = _known_send if size <= MAX_KNOWN_BYTES else _known_send.__wrapped__
    return read(room, type_, raw_query)


@lru_cache(maxsize=MAX_KNOWN)
def _known_send(room: bytes, type_: bytes, raw_query: bytes) -> AskedDelay | None:
    query = read_query(raw_query)
    if not asks_to_delay(raw_query) or _is_future(query):
        return None
    event = EventToSend(room_id=unquoted(room), type=unquoted(type_), content=b"{}", sticky_ms=_sticky(query))
    return _asked_by_query(query, event, None)


def _asked_by_query(query: Query, event: EventToSend, txn: tuple[str, ...] | None) -> AskedDelay:
    given = [(name, value) for name, value in query if name in DELAYS]
    if len(given) != 1:
        raise MatrixError(400, "M_INVALID_PARAM", "Give one delay.")
    name, value = given[0]
    return AskedDelay(event, milliseconds(name, value), Speech(QUERY, name != "delay"), txn)


def _delay_of(body: _Body) -> tuple[int, Dialect]:
    if body.delay is None and body.delay_ms is None:
        raise MatrixError(400, "M_MISSING_PARAM", "The delay is missing.")
    if body.delay is not None and body.delay_ms is not None and body.delay != body.delay_ms:
        raise MatrixError(400, "M_INVALID_PARAM", "delay and delay_ms are not the same.")
    dialect = SEED if body.delay_ms is None else MERGED
    delay_ms = body.delay if body.delay_ms is None else body.delay_ms
    assert delay_ms is not None
    return positive(dialect.delay, delay_ms), dialect


def _sticky(query: Query) -> int | None:
    value = next((value for name, value in query if name == STICKY_PARAMETER), None)
    return None if value is None else milliseconds(STICKY_PARAMETER, value)


def _is_future(query: Query) -> bool:
    return not FUTURES.isdisjoint(name for name, _ in query)


def _answer(scheduled: Scheduled) -> Answered:
    return ok({"delay_id": scheduled.id})


def _reply(reply: Any, speech: Speech, answer: Answer[Scheduled]) -> None:
    error = answer.error()
    if error is None:
        reply(*_answer(answer.value()))
    else:
        reply(*refused(explain(error, speech) if isinstance(error, TarryError) else internal()))
