"""Scheduling a delayed event, in all the ways that clients ask for it.

The proposal's own endpoint takes the delay in its body (`delay`, or `delay_ms` as merged); `/send`, `/state` and
`/redact` take it as a query parameter. A request that names a delay is scheduled or refused, and never passed on: the
homeserver behind would send it at once.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from tarry.core.errors import TarryError, TooManyPending
from tarry.core.messages.message import Message, MessagePage, OwnedQuery, Scheduled
from tarry.doors.matrix.dialects import MERGED, QUERY, SEED, UNSTABLE, Dialect, Speech
from tarry.doors.matrix.errors import MatrixError, explain
from tarry.doors.matrix.event import EventToSend, check_event, message_of, transaction_of
from tarry.doors.matrix.futures import Futures
from tarry.doors.matrix.futures_asked import PARAMETERS as FUTURES
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.wire import Account, MatrixRequest, Query, milliseconds, ok, positive, read_object
from tarry.engine.answer import Answer, failed
from tarry.http.response import Response
from tarry.outlets.matrix.outlet import REDACTION, STICKY_PARAMETER

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


class Scheduling:
    """The endpoints that schedule."""

    def __init__(self, parts: Parts, futures: Futures) -> None:
        self._parts = parts
        self._futures = futures

    def schedule(self, request: MatrixRequest) -> Answer[Response]:
        """PUT …/rooms/{room}/delayed_event/{type}/{txn}: the proposal's own endpoint."""
        return self._accept(request.account, own_transaction(request), partial(read_own, request))

    # The delay as a query parameter

    def send(self, request: MatrixRequest) -> Awaitable[Response]:
        """PUT …/rooms/{room}/send/{type}/{txn}?delay=… and the same by POST, without a transaction."""
        room_id, type_, *txn = request.params.values()
        names = ("send", room_id, type_, *txn) if txn else None
        query = request.query
        event = EventToSend(room_id=room_id, type=type_, content=request.body, sticky_ms=_sticky(query))
        return self._by_query(request, query, event, names)

    def state(self, request: MatrixRequest) -> Awaitable[Response]:
        """PUT …/rooms/{room}/state/{type}/{key}?delay=…; the key may be left out."""
        room_id, type_, *key = request.params.values()
        query = request.query
        event = EventToSend(
            room_id=room_id,
            type=type_,
            state_key="".join(key),
            content=request.body,
            sticky_ms=_sticky(query),
        )
        return self._by_query(request, query, event, None)

    def redact(self, request: MatrixRequest) -> Awaitable[Response]:
        """PUT …/rooms/{room}/redact/{event}/{txn}?delay=… and the same by POST, without a transaction."""
        room_id, event_id, *txn = request.params.values()
        given = read_object(request.body, _object_decoder) if request.body else {}
        content = msgspec.json.encode({**given, "redacts": event_id})
        query = request.query
        event = EventToSend(room_id=room_id, type=REDACTION, content=content, sticky_ms=_sticky(query))
        return self._by_query(request, query, event, ("redact", room_id, event_id, *txn) if txn else None)

    def _by_query(
        self, request: MatrixRequest, query: Query, event: EventToSend, txn: tuple[str, ...] | None
    ) -> Awaitable[Response]:
        if not _is_future(query):
            return self._accept(request.account, txn, partial(_asked_by_query, query, event, txn))
        if not DELAYS.isdisjoint(name for name, _ in query):
            raise MatrixError(400, "M_INVALID_PARAM", "Give a delay or a future, not both.")
        return self._futures.reused(request, event, txn)

    # Both

    def _accept(
        self, account: Account, txn: tuple[str, ...] | None, read: Callable[[], AskedDelay]
    ) -> Answer[Response]:
        try:
            asked = read()
            message = self._message(account, asked)
        except MatrixError:
            # A client may repeat a transaction without its body, or with another: the answer is the first one's.
            again = None if txn is None else self._parts.engine.repeated(transaction_of(account, txn))
            if again is None:
                raise
            return again.map(_answer)
        scheduled = self._parts.engine.schedule(message).map(_answer)
        return scheduled.or_else(partial(self._refused, account, asked.speech))

    def _refused(self, account: Account, speech: Speech, error: TarryError) -> Answer[Response]:
        if not isinstance(error, TooManyPending):
            return failed(explain(error, speech))

        def tell(page: MessagePage) -> Response:
            # With how long it is until there is room for another event of this user.
            now_ms = self._parts.clock.now_ms()
            waits_ms = [view.due_at_ms - now_ms for view in page.messages if view.due_at_ms is not None]
            raise explain(error, msgspec.structs.replace(speech, room_in_ms=max([1, *waits_ms])))

        return self._parts.engine.list_owned(OwnedQuery(owner=account.user_id, limit=1)).map(tell)

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


def own_transaction(request: MatrixRequest) -> tuple[str, ...]:
    """The name of a request to the proposal's own endpoint within the user's device."""
    return ("delayed_event", *request.params.values())


def read_own(request: MatrixRequest) -> AskedDelay:
    """Read a request to the proposal's own endpoint."""
    room_id, type_, _ = request.params.values()
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


def _answer(scheduled: Scheduled) -> Response:
    return ok({"delay_id": scheduled.id})
