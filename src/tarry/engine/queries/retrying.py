"""Retrying: pages of the messages that wait for another attempt after one that failed, the first accepted first.

Whoever is tried again is either a flight in memory or has a version of its own, which the registry has a row for (R9). So a page
costs what is tried again and what was commanded, however many messages wait untried.
"""

import struct
from collections.abc import Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from tarry.core.errors import Invalid, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessagePage, MessageQuery, MessageView
from tarry.engine.answer import Answer, failed
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.finding import those_found
from tarry.engine.queries.paging import check_limit, is_due_within, make_token, matches, read_token
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key

LOOK_AT: Final = 200
"""Messages looked at for one page."""

_place: Final = struct.Struct(">Q")


class Candidates(NamedTuple):
    """Messages that may be tried again, by their first versions."""

    origins: list[Key]
    next_seq: int | None
    """Behind which seq there may be more."""


class Retrying:
    """Finds the messages that are tried again."""

    def __init__(self, state: EngineState, ids: Ids, dispatcher: Dispatcher, commands: Commands) -> None:
        self._state = state
        self._ids = ids
        self._dispatcher = dispatcher
        self._commands = commands

    def list(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of messages that wait for another attempt. It may be short, or empty, and still have a next page."""
        try:
            return self._page(query)
        except TarryError as error:
            return failed(error)

    def _page(self, query: MessageQuery) -> Answer[MessagePage]:
        if query.outcome is not None:
            raise Invalid("outcome", "is for finalised messages: ask for state=finalised")
        most = min(check_limit(query.limit), LOOK_AT)
        after_seq = read_token(_place, query.page)[0] if query.page is not None else 0

        def show(found: Candidates) -> Answer[MessagePage]:
            views = those_found([self._commands.get(self._ids.make(seq, at)) for at, seq in found.origins])
            more = None if found.next_seq is None else make_token(_place, found.next_seq)
            return views.map(lambda found: MessagePage(_chosen(found, query), more))

        return self._commands.after_flush(lambda: self._candidates(after_seq, most)).and_then(show)

    def _candidates(self, after_seq: int, most: int) -> Candidates:
        rows = self._state.registry.live.select(
            "origin_seq > ? ORDER BY origin_seq LIMIT ?", (after_seq, most)
        )
        upto = rows[-1][2].origin.seq if len(rows) == most else 1 << 62
        flights = self._dispatcher.flights.by_seq.values()
        tried = (one.origin for one in flights if one.tried_last and after_seq < one.origin.seq <= upto)
        found = {origin.seq: origin for origin in nsmallest(most, tried, key=_seq)}
        if len(found) == most:
            upto = min(upto, max(found))
        found |= {row.origin.seq: row.origin for _, _, row in rows if row.current != row.origin}
        origins = [found[seq] for seq in sorted(found) if seq <= upto]
        return Candidates(origins, upto if upto < 1 << 62 else None)


def _seq(key: Key) -> int:
    return key.seq


def _chosen(found: Sequence[MessageView], query: MessageQuery) -> list[MessageView]:
    # One that has ended since the last flush is on the other list, and one that was restarted begins anew.
    return [
        view
        for view in found
        if view.attempts and view.finalised_at_ms is None
        and is_due_within(view.due_at_ms, query) and matches(view, query)
    ]  # fmt: skip
