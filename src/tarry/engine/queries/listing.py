"""Listing: pages in key order, stable while things change, at a bounded cost for each page.

No row is kept for a message that only waits (R13), so scheduled messages are listed by walking the wheel, the tail and
the index in (due, seq) order and reading each. A page looks at a bounded number of them: it may come back short,
or empty, and still have a next page.
"""

import logging
import struct
from typing import Final, NamedTuple

import numpy as np

from tarry.core.errors import Invalid, Unavailable
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import MessagePage, MessageQuery, MessageView
from tarry.core.telemetry import faults
from tarry.engine.answer import Answer, settled
from tarry.engine.bodies.bodies import Bodies, Body
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.due.postponed import Postponed
from tarry.engine.isolation import Isolation
from tarry.engine.queries.paging import (
    MAX_NUMBER,
    check_limit,
    is_due_within,
    make_token,
    matches,
    read_token,
)
from tarry.engine.queries.views import ended_view, view_of_put
from tarry.engine.records.delayed_entry import as_message
from tarry.engine.state.engine_state import EngineState
from tarry.index.index import NOTHING, IndexMoved, IndexView, LoadedRows
from tarry.ledger.record import Entry, Key, Put, decode

log = logging.getLogger(__name__)

LOOK_AT: Final = 1_000
LOOK_BYTES: Final = 2 * 1024 * 1024
"""Messages looked at for one page, and about how much of their bodies: some milliseconds of a turn."""

ROWS_TOGETHER: Final = 50
"""Rows of finalised messages read at once: listed ones are remembered with their bodies."""

PAGE_BYTES: Final = 16 * 1024 * 1024
"""Bodies read from the index for one page, about."""

_key: Final = struct.Struct(">QQ")


class Waiting(NamedTuple):
    """Keys of pending messages, in order, with the bodies that were fetched from the index."""

    keys: list[Key]
    bodies: dict[int, Body]
    upto: Key
    """Below this key these are all."""


class Listing:
    """Pages of scheduled and of finalised messages."""

    def __init__(
        self,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        postponed: Postponed,
        ids: Ids,
        isolation: Isolation,
        dispatcher: Dispatcher,
        reading: Offload,
    ) -> None:
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._postponed = postponed
        self._ids = ids
        self._isolation = isolation
        self._dispatcher = dispatcher
        self._reading = reading

    def list_scheduled(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of pending messages, the next due first."""
        if query.outcome is not None:
            raise Invalid("outcome", "is for finalised messages: ask for state=finalised")
        limit = check_limit(query.limit)
        low = _read_page(query.page) or Key(min(max(0, query.due_from_ms or 0), MAX_NUMBER), 0)
        high = Key(MAX_NUMBER if query.due_to_ms is None else min(max(0, query.due_to_ms), MAX_NUMBER), 0)
        here = self._keys_here(low, high)
        # Below the horizon, what the view has is in the wheel, or is dead.
        start = max(low, self._horizon.at)
        view = self._horizon.view
        absent = [self._postponed.key_of(*key) for key in here.keys if self._is_absent(key)]
        if not absent and (start >= here.upto or not view.may_hold(start, here.upto)):
            return settled(self._page(query, limit, here, high))
        answer: Answer[MessagePage] = Answer()
        read: list[Waiting] = []

        def done(error: Exception | None) -> None:
            if error is None:
                answer.settle(self._page(query, limit, _merged(here, read[0]), high))
            elif isinstance(error, IndexMoved):
                answer.fail(Unavailable("the index is being rewritten; ask again"))
            else:
                # Also an error that nobody expected is only that of who asked.
                answer.fail(error)

        self._reading(lambda: read.append(_from_view(view, start, here.upto, absent)), done)
        return answer

    def _is_absent(self, key: Key) -> bool:
        return bool(self._bodies.absent(np.array([key.seq], np.int64))[0])

    def _page(self, query: MessageQuery, limit: int, waiting: Waiting, high: Key) -> MessagePage:
        views: list[MessageView] = []
        room = LOOK_BYTES
        for key in waiting.keys:
            if key.seq in self._state.dead or self._state.passed.has_passed(key):
                continue
            if len(views) >= limit or room <= 0:
                return MessagePage(views, _make_page(key))
            body = waiting.bodies.get(key.seq) or self._bodies.many(np.array([key.seq], np.int64))[0]
            room -= len(body) if isinstance(body, bytes) else 0
            try:
                view = self._view(key, body)
            except Exception as error:  # noqa: BLE001 - one message that cannot be shown must not hide the others
                self._isolation.check(error)
                log.error("the message at seq %d cannot be listed: %s", key.seq, faults.told(error))
                continue
            if view is not None and matches(view, query):
                views.append(view)
        return MessagePage(views, None if waiting.upto >= high else _make_page(waiting.upto))

    def _view(self, key: Key, body: Body) -> MessageView | None:
        """A waiting message as it is shown; None for a damaged one, and for a record that is no message."""
        record = decode(body) if isinstance(body, bytes) else None
        if isinstance(record, Entry) and self._state.topics.waits(record, key.seq):
            record = as_message(record)
        if not isinstance(record, Put):
            return None
        origin = record.origin or Key(record.fire_at_ms, key.seq)
        flight = self._dispatcher.flights.by_seq.get(key.seq)
        state = State.SCHEDULED if flight is None else flight.state
        return view_of_put(
            record, self._ids.make(origin.seq, origin.fire_at_ms), state, flight, self._state.pauses
        )

    def _keys_here(self, low: Key, high: Key) -> Waiting:
        """The first keys in a range of all that waits in memory or is on its way."""
        due = self._horizon.entries(low, LOOK_AT)
        fires, seqs = self._dispatcher.keys_out_of_wheel()
        later = (fires > low.fire_at_ms) | ((fires == low.fire_at_ms) & (seqs >= low.seq))
        fires = np.concatenate([due.fire_at_ms, fires[later]])
        seqs = np.concatenate([due.seqs, seqs[later]])
        order = np.lexsort((seqs, fires))[:LOOK_AT]
        keys = list(map(Key, fires[order].tolist(), seqs[order].tolist()))
        upto = high if len(keys) < LOOK_AT else min(high, Key(keys[-1].fire_at_ms, keys[-1].seq + 1))
        return Waiting([key for key in keys if key < high], {}, upto)

    def list_finalised(self, query: MessageQuery) -> MessagePage:
        """A page of finalised messages, the newest first, as of the last flush."""
        limit = check_limit(query.limit)
        before = _read_page(query.page) or Key(1 << 60, 0)
        views: list[MessageView] = []
        looked_at, room = 0, LOOK_BYTES
        while looked_at < LOOK_AT and room > 0:
            rows = self._state.registry.finalised.select(
                "(finalised_at_ms, origin_seq) < (?, ?) ORDER BY finalised_at_ms DESC, origin_seq DESC LIMIT ?",
                (before.fire_at_ms, before.seq, ROWS_TOGETHER),
            )
            for (seq,), (_, at_ms), ended in rows:
                if len(views) >= limit:
                    return MessagePage(views, _make_page(before))
                if query.outcome in (None, ended.outcome) and is_due_within(ended.due_at_ms, query):
                    view = ended_view(self._state.names, self._ids, ended)
                    if matches(view, query):
                        views.append(view)
                before = Key(at_ms, seq)
                room -= 0 if ended.kept is None else len(ended.kept.payload)
            if len(rows) < ROWS_TOGETHER:
                return MessagePage(views, None)
            looked_at += len(rows)
        return MessagePage(views, _make_page(before))


def _from_view(view: IndexView, low: Key, high: Key, absent: list[Key]) -> Waiting:
    """The versions of the index in a range, and the bodies of other keys too, within a bound."""
    loaded = view.load(low, high, LOOK_AT) if low < high else LoadedRows(NOTHING, high)
    keys = list(map(Key, loaded.due.fire_at_ms.tolist(), loaded.due.seqs.tolist()))
    wanted = sorted({*absent, *keys})
    bodies: dict[int, Body] = {}
    room = PAGE_BYTES
    while len(bodies) < len(wanted) and room > 0:
        left = wanted[len(bodies) :]
        found = view.bodies(left, room)
        bodies.update(zip((key.seq for key in left), found, strict=False))
        room -= sum(len(body) for body in found if isinstance(body, bytes))
    upto = loaded.upto if len(bodies) == len(wanted) else min(loaded.upto, wanted[len(bodies)])
    return Waiting(keys, bodies, upto)


def _merged(here: Waiting, there: Waiting) -> Waiting:
    """The waiting versions of memory and of the index together, as far as both were looked at."""
    upto = min(here.upto, there.upto)
    keys = sorted(key for key in (*here.keys, *there.keys) if key < upto)
    return Waiting(keys, there.bodies, upto)


def _make_page(key: Key) -> str:
    return make_token(_key, *key)


def _read_page(page: str | None) -> Key | None:
    return None if page is None else Key(*read_token(_key, page))
