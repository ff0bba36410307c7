"""MSC4486: one's delayed events as one list, by the time at which they were meant to be sent, filtered.

There are few of them, by the limit on pending ones and by the retention, so a page looks at all of them; it keeps no more
than it shows.
"""

import hashlib
import heapq
from typing import Any, Final

from msgspec import Struct

from tarry.core.errors import TarryError
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import MessageView, OwnedQuery
from tarry.doors.matrix.errors import MatrixError, explain
from tarry.doors.matrix.event import event_of
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.shown import merged_body
from tarry.engine.engine import Engine

PAGE: Final = 10
_LOOK_AT: Final = 100
_MAX_DIGITS: Final = 18

OWN: Final = frozenset({"from_ts", "to_ts", "dir", "room_id", "type"})
"""Parameters that only this list has."""
_MARK: Final = "t"
_STATES: Final = {
    "scheduled": frozenset({State.SCHEDULED, State.SENDING}),
    "sent": frozenset({State.SENT}),
    "cancelled": frozenset({State.CANCELLED}),
    "failed": frozenset({State.FAILED}),
}

_Place = tuple[int, str]
"""Where an event is in the list: its send time, and what tells it from others at that time."""


class Filter(Struct, frozen=True):
    """A filter of a list."""

    low_ms: int
    high_ms: int
    backwards: bool
    room_id: str | None
    type: str | None
    states: frozenset[State]
    after: _Place | None

    def takes(self, view: MessageView) -> bool:
        """Whether an event is asked for."""
        event = event_of(view)
        place = place_of(view)
        return (
            self.low_ms <= place[0] <= self.high_ms
            and self.room_id in (None, event.room_id)
            and self.type in (None, event.type)
            and self.state_of(view) in self.states
            and (self.after is None or (place < self.after if self.backwards else place > self.after))
        )

    @staticmethod
    def state_of(view: MessageView) -> State:
        """The state of a message; one that was cancelled because of an error counts as failed."""
        return State.FAILED if view.state is State.CANCELLED and view.error is not None else view.state


def asks_to_filter(query: list[tuple[str, str]]) -> bool:
    """Whether a query is one for this list: it has a parameter or a token that only this one has."""
    return any(name in OWN or (name == "from" and value.startswith(_MARK)) for name, value in query)


def read_filter(query: list[tuple[str, str]]) -> Filter:
    """Read a query; raises for a value that is not supported."""
    given = dict(query)
    direction = given.get("dir", "f")
    if direction not in ("f", "b"):
        raise _invalid("dir")
    statuses = [status for name, value in query if name == "status" for status in value.split(",")]
    if any(status not in _STATES for status in statuses):
        raise _invalid("status")
    return Filter(
        _instant(given, "from_ts", 0),
        _instant(given, "to_ts", 10**_MAX_DIGITS),
        direction == "b",
        given.get("room_id"),
        given.get("type"),
        frozenset().union(*(_STATES[status] for status in statuses or _STATES)),
        _read_token(given.get("from")),
    )


async def filtered_page(
    engine: Engine, user_id: str, query: list[tuple[str, str]], unstable: bool
) -> dict[str, Any]:
    """A page of a user's events."""
    wanted = read_filter(query)
    first = heapq.nlargest if wanted.backwards else heapq.nsmallest
    best: dict[_Place, MessageView] = {}
    for state in ("scheduled", "finalised"):
        page: str | None = None
        while True:
            asked = OwnedQuery(owner=user_id, state=state, namespace=EVENTS, limit=_LOOK_AT, page=page)
            try:
                found = await engine.list_owned(asked)
            except TarryError as error:
                raise explain(error) from None
            best |= {place_of(view): view for view in found.messages if wanted.takes(view)}
            best = {place: best[place] for place in first(PAGE + 1, best)}
            page = found.next_page
            if page is None:
                break
    places = list(best)
    body: dict[str, Any] = {"delayed_events": [merged_body(best[place], unstable) for place in places[:PAGE]]}
    if len(places) > PAGE:
        body["next_batch"] = f"{_MARK}{places[PAGE - 1][0]}_{places[PAGE - 1][1]}"
    return body


def place_of(view: MessageView) -> _Place:
    """Where an event is in the list. Its id is a secret, so that its digest breaks ties."""
    tie = hashlib.blake2b(view.id.encode(), digest_size=8, person=b"matrix-tie").hexdigest()
    return (view.delayed_since_ms or 0) + (view.delay_ms or 0), tie


def _read_token(token: str | None) -> _Place | None:
    if token is None:
        return None
    number, separator, tie = token.removeprefix(_MARK).partition("_")
    if not token.startswith(_MARK) or not separator or not _is_number(number):
        raise _invalid("from")
    return int(number), tie


def _instant(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not _is_number(text):
        raise _invalid(name)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _invalid(name: str) -> MatrixError:
    return MatrixError(400, "M_INVALID_PARAM", f"{name} has a value that is not supported.")
