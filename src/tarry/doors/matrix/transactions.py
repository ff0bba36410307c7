"""Transactions of the homeserver to the application service: the events of its rooms.

Two things are looked for. A state event may end delayed ones that are about the same state: futures always, delayed events
only if the operator wants it and someone else sent it. And a user who leaves a room may have been deactivated, which
parts a user from all rooms: then the homeserver is asked, and what that user has scheduled is ended.

A transaction is answered when what follows from it is durable. One that comes again changes nothing: it is remembered, and
even one that was forgotten ends only what was accepted before its events were sent.
"""

import hmac
from collections import OrderedDict
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tarry.core.errors import TarryError
from tarry.core.unreadable import UNREADABLE
from tarry.doors.matrix.departures import Departures
from tarry.doors.matrix.dialects import STATE_UPDATE
from tarry.doors.matrix.errors import MatrixError, explain
from tarry.doors.matrix.event import subject_of
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.settings import EVENTS, FUTURES
from tarry.doors.matrix.wire import MatrixRequest, ok, read_object
from tarry.engine.api import Ending
from tarry.http.response import Response
from tarry.outlets.matrix.verdict import KeptError

MAX_TRANSACTION_BYTES: Final = 64 << 20
"""A hundred events of the largest size, as Synapse puts them into one transaction, and room for what surrounds them."""
MAX_REMEMBERED: Final = 1_000
MEMBER: Final = "m.room.member"

_STATE_UPDATE_ERROR: Final = msgspec.json.encode(
    KeptError(
        409,
        {
            "errcode": STATE_UPDATE,
            "error": "The delayed event did not get sent because a different user updated the same state event.",
        },
    )
).decode()


class _Unsigned(Struct):
    age: int | None = None


class _Seen(Struct):
    """As much of an event as is looked at."""

    event_id: str | None = None
    type: str = ""
    room_id: str = ""
    sender: str = ""
    state_key: str | UnsetType = UNSET
    origin_server_ts: int | None = None
    unsigned: _Unsigned | None = None
    content: dict[str, Any] = {}


class _Transaction(Struct):
    events: list[Raw] = []


_transaction_decoder = msgspec.json.Decoder(_Transaction)
_seen_decoder = msgspec.json.Decoder(_Seen)


class Transactions:
    """The endpoints that are the homeserver's."""

    def __init__(self, parts: Parts, departures: Departures) -> None:
        self._parts = parts
        self._departures = departures
        self._done: OrderedDict[str, None] = OrderedDict()

    async def take(self, request: MatrixRequest) -> Response:
        """PUT /_matrix/app/v1/transactions/{txn}."""
        transaction_id = request.params["txn"]
        if transaction_id not in self._done:
            for raw in read_object(request.body, _transaction_decoder).events:
                seen = _read(raw)
                if seen is not None and isinstance(seen.state_key, str):
                    await self._state(seen, seen.state_key)
            self._done[transaction_id] = None
            if len(self._done) > MAX_REMEMBERED:
                self._done.popitem(last=False)
        return ok()

    def ping(self, request: MatrixRequest) -> Response:
        """POST /_matrix/app/v1/ping."""
        return ok()

    def nobody(self, request: MatrixRequest) -> Response:
        """GET /_matrix/app/v1/users/{user}: the application service has no users or rooms of its own."""
        raise MatrixError(404, "M_NOT_FOUND", "The application service has no such user or room.")

    def check(self, request: MatrixRequest) -> None:
        """Raise `MatrixError` unless the request shows the homeserver's token."""
        shown = request.http.bearer or (request.parameter("access_token") or "").encode()
        wanted = self._parts.settings.hs_token.encode()
        if not shown:
            raise MatrixError(401, "M_MISSING_TOKEN", "Missing token.")
        if not wanted or not hmac.compare_digest(shown, wanted):
            raise MatrixError(403, "M_FORBIDDEN", "This is not the homeserver's token.")

    async def _state(self, seen: _Seen, state_key: str) -> None:
        subject = subject_of(seen.room_id, seen.type, state_key)
        at_ms = self._sent_at_ms(seen)
        futures = Ending(
            reason="a newer state event took its place",
            namespace=FUTURES,
            accepted_before_ms=at_ms,
            # A batch's own first event is no reason to end the rest of it.
            spare_led_by=seen.event_id,
        )
        try:
            await self._parts.engine.end_subject(subject, futures)
            if self._parts.settings.cancel_by_state_update:
                events = Ending(
                    reason="another user updated the same state",
                    error=_STATE_UPDATE_ERROR,
                    namespace=EVENTS,
                    spare_owner=seen.sender,
                    accepted_before_ms=at_ms,
                )
                await self._parts.engine.end_subject(subject, events)
        except TarryError as error:
            # Not answered well, it comes again.
            raise explain(error) from None
        if seen.type == MEMBER and seen.sender == state_key and seen.content.get("membership") == "leave":
            self._departures.left(state_key)

    def _sent_at_ms(self, seen: _Seen) -> int:
        """The instant at which the homeserver says that an event was sent; delayed events scheduled after it are younger."""
        now_ms = self._parts.clock.now_ms()
        age_ms = 0 if seen.unsigned is None else seen.unsigned.age or 0
        return min(now_ms - age_ms, now_ms if seen.origin_server_ts is None else seen.origin_server_ts)


def _read(raw: Raw) -> _Seen | None:
    """An event of a transaction; None for a value that is no event. The homeserver would send it for ever."""
    try:
        return _seen_decoder.decode(raw)
    except UNREADABLE:
        return None
