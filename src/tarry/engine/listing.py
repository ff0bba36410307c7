"""Listing: pages in key order, stable while things change, at a bounded cost for each page.

No row is kept for a message that only waits (R13), so scheduled messages are listed by walking the wheel and
the tail in (due, seq) order and reading each. A page looks at a bounded number of them: it may come back short,
or empty, and still have a next page.
"""

import base64
import binascii
from typing import Final

import numpy as np

from tarry.core.errors import Invalid
from tarry.core.lifecycle import State
from tarry.core.message import MessagePage, MessageQuery, MessageView
from tarry.engine.dispatcher import Dispatcher, Keys
from tarry.engine.journal import Journal
from tarry.engine.views import view_of_ended, view_of_put
from tarry.ledger.record import Key, Put, decode

LOOK_AT: Final = 5_000
"""Messages looked at for one page."""

MAX_LIMIT: Final = 1_000

MAX_NUMBER: Final = (1 << 63) - 1
"""What fits the columns that instants and seqs are kept in."""


def list_scheduled(journal: Journal, dispatcher: Dispatcher, query: MessageQuery) -> MessagePage:
    """A page of what waits, the next due first."""
    limit = _check_limit(query)
    low = _read_page(query.page) or Key(min(max(0, query.due_from_ms or 0), MAX_NUMBER), 0)
    fires, seqs = _keys_from(journal, dispatcher, low)
    views: list[MessageView] = []
    alive = ~journal.dead.contains_many(seqs)
    for fire_at_ms, seq in zip(fires[alive].tolist(), seqs[alive].tolist(), strict=True):
        if query.due_to_ms is not None and fire_at_ms >= query.due_to_ms:
            return MessagePage(views, None)
        if len(views) >= limit:
            return MessagePage(views, _make_page(Key(fire_at_ms, seq)))
        for body in journal.bodies(np.array([seq], np.int64)):
            record = decode(body) if isinstance(body, bytes) else None
            if isinstance(record, Put):
                origin = record.origin or Key(record.fire_at_ms, seq)
                flight = dispatcher.flights.by_seq.get(seq)
                state = State.SCHEDULED if flight is None else flight.state
                view = view_of_put(record, journal.ids.make(origin.seq, origin.fire_at_ms), state)
                if _matches(view, query):
                    views.append(view)
    if len(seqs) < LOOK_AT:
        return MessagePage(views, None)
    return MessagePage(views, _make_page(Key(int(fires[-1]), int(seqs[-1]) + 1)))


def _keys_from(journal: Journal, dispatcher: Dispatcher, low: Key) -> Keys:
    """The first keys from one on of all that waits or is on its way, in order."""
    due = journal.horizon.entries(low, LOOK_AT)
    fires, seqs = dispatcher.keys_out_of_wheel()
    later = (fires > low.fire_at_ms) | ((fires == low.fire_at_ms) & (seqs >= low.seq))
    fires = np.concatenate([due.fire_at_ms, fires[later]])
    seqs = np.concatenate([due.seqs, seqs[later]])
    order = np.lexsort((seqs, fires))[:LOOK_AT]
    return fires[order], seqs[order]


def list_finalised(journal: Journal, query: MessageQuery) -> MessagePage:
    """A page of what is finalised, the newest first, as of the last flush."""
    limit = _check_limit(query)
    before = _read_page(query.page) or Key(1 << 60, 0)
    rows = journal.registry.finalised.select(
        "(finalised_at_ms, origin_seq) < (?, ?) ORDER BY finalised_at_ms DESC, origin_seq DESC LIMIT ?",
        (before.fire_at_ms, before.seq, LOOK_AT),
    )
    views: list[MessageView] = []
    last: str | None = None
    for (seq,), (_, at_ms), ended in rows:
        if len(views) >= limit:
            return MessagePage(views, last)
        view = view_of_ended(ended, journal.ids.make(ended.origin.seq, ended.origin.fire_at_ms))
        if _matches(view, query) and _in_range(view.due_at_ms, query):
            views.append(view)
        last = _make_page(Key(at_ms, seq))
    return MessagePage(views, last if len(rows) == LOOK_AT else None)


def _matches(view: MessageView, query: MessageQuery) -> bool:
    return all(
        wanted is None or wanted == is_
        for wanted, is_ in (
            (query.owner, view.owner),
            (query.destination, view.destination),
            (query.namespace, view.namespace),
            (query.key, view.key),
            (query.group, view.group),
            (query.door, view.door),
        )
    )


def _in_range(due_at_ms: int | None, query: MessageQuery) -> bool:
    low, high = query.due_from_ms, query.due_to_ms
    if low is None and high is None:
        return True
    return due_at_ms is not None and (low or 0) <= due_at_ms and (high is None or due_at_ms < high)


def _check_limit(query: MessageQuery) -> int:
    if not 1 <= query.limit <= MAX_LIMIT:
        raise Invalid("limit", f"is not between 1 and {MAX_LIMIT}")
    return query.limit


def _make_page(key: Key) -> str:
    packed = key.fire_at_ms.to_bytes(8, "big") + key.seq.to_bytes(8, "big")
    return base64.urlsafe_b64encode(packed)[:22].decode()


def _read_page(page: str | None) -> Key | None:
    if page is None:
        return None
    try:
        packed = base64.b64decode(page + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        packed = b""
    key = Key(int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))
    if len(packed) != 16 or max(key) > MAX_NUMBER:
        raise Invalid("page", "is not the next_page of a page before")
    return key
