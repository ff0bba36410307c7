"""Owners and subjects as a whole: list an owner's messages, end many at once.

An owner's listed messages go page by page: those that wait, the next due first, and those that ended, the last first. Pages are
cut by keys, so that messages that come and go in between move nothing. A pending message may also be restarted in between,
and so go from a place that was shown to one that was not, or the other way round. A walk therefore has two stages.
First come, in the order of their due instants, the messages that have not moved since the walk began; then, in the order
of their acceptance, which never changes, those that have. So none is missed, the walk ends however often they move, and
at most a message is shown once more, as it is then.
"""

import struct
from typing import Final, NamedTuple

from tarry.core.errors import TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessagePage, MessageView, OwnedQuery
from tarry.engine.answer import Answer, failed
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands, Ending
from tarry.engine.queries.finding import those_found
from tarry.engine.queries.paging import MAX_NUMBER, check_limit, make_token, no_page, read_token
from tarry.engine.queries.views import ended_view
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.names import Names
from tarry.ledger.record import Key
from tarry.registry.registry import LiveRow, Registry

_LAST: Final = (MAX_NUMBER, MAX_NUMBER)

_UNMOVED, _MOVED, _ENDED = range(3)
_place = struct.Struct(">BQQQ")


class PagePlace(NamedTuple):
    """Where a walk is: its stage, the seq at which it began, and the key of the last message that it has passed."""

    stage: int
    began_seq: int
    after: tuple[int, int]

    def token(self) -> str:
        """As the `next_page` of a page."""
        return make_token(_place, self.stage, self.began_seq, *self.after)


class OwnedKeys(NamedTuple):
    """A page of an owner's pending messages: their first versions, and how to go on."""

    origins: list[Key]
    next_page: str | None


def waiting_page(registry: Registry, next_seq: int, query: OwnedQuery) -> OwnedKeys:
    """A page of an owner's pending messages, as of the last flush."""
    limit = check_limit(query.limit)
    at = _read(query.page, (_UNMOVED, _MOVED)) or PagePlace(_UNMOVED, next_seq - 1, (0, 0))
    found: list[Key] = []
    while True:
        rows = _rows(registry, query.owner, at, limit + 1)
        for (seq,), (_, due_at_ms), live in rows:
            moved = live.current.seq > at.began_seq
            if moved == (at.stage == _MOVED):
                if len(found) == limit:
                    return OwnedKeys(found, at.token())
                found.append(live.origin)
            at = at._replace(after=(due_at_ms, seq) if at.stage == _UNMOVED else (0, seq))
        if len(rows) <= limit:
            if at.stage == _MOVED:
                return OwnedKeys(found, None)
            at = PagePlace(_MOVED, at.began_seq, (0, 0))


def _rows(
    registry: Registry, owner: str, at: PagePlace, limit: int
) -> list[tuple[tuple[int], tuple[str, int], LiveRow]]:
    live = registry.live
    if at.stage == _UNMOVED:
        where = "owner = ? AND (due_at_ms, origin_seq) > (?, ?) ORDER BY due_at_ms, origin_seq LIMIT ?"
        return live.select(where, (owner, *at.after, limit))
    # Messages accepted since the walk began are not part of it.
    where = "owner = ? AND origin_seq > ? AND origin_seq <= ? ORDER BY origin_seq LIMIT ?"
    return live.select(where, (owner, at.after[1], at.began_seq, limit))


def ended_page(
    registry: Registry, names: Names, ids: Ids, query: OwnedQuery
) -> tuple[list[MessageView], str | None]:
    """A page of an owner's finalised messages, as of the last flush, and how to go on."""
    limit = check_limit(query.limit)
    at = _read(query.page, (_ENDED,)) or PagePlace(_ENDED, 0, _LAST)
    found: list[MessageView] = []
    where = (
        "owner = ? AND (finalised_at_ms, origin_seq) < (?, ?)"
        " ORDER BY finalised_at_ms DESC, origin_seq DESC LIMIT ?"
    )
    while True:
        rows = registry.finalised.select(where, (query.owner, *at.after, limit + 1))
        for (seq,), (_, at_ms), ended in rows:
            if query.namespace in (None, ended.namespace):
                if len(found) == limit:
                    return found, at.token()
                found.append(ended_view(names, ids, ended))
            at = at._replace(after=(at_ms, seq))
        if len(rows) <= limit:
            return found, None


def origins_of(registry: Registry, owner: str) -> list[Key]:
    """All that waits of an owner, as of the last flush."""
    return [live.origin for _, _, live in registry.live.select("owner = ?", (owner,))]


def _read(page: str | None, stages: tuple[int, ...]) -> PagePlace | None:
    if page is None:
        return None
    stage, began_seq, first, second = read_token(_place, page)
    if stage not in stages:
        raise no_page()
    return PagePlace(stage, began_seq, (first, second))


class Owners:
    """Finds the messages of an owner or a subject, and has `Commands` show or end each."""

    def __init__(self, journal: Journal, state: EngineState, ids: Ids, commands: Commands) -> None:
        self._journal = journal
        self._state = state
        self._ids = ids
        self._commands = commands

    def page(self, query: OwnedQuery) -> Answer[MessagePage]:
        """A page of an owner's listed messages."""
        if query.state == "finalised":
            return self._commands.after_flush(
                lambda: MessagePage(*ended_page(self._state.registry, self._state.names, self._ids, query))
            )

        def shown(view: MessageView) -> bool:
            # One that has ended since the last flush is on the other list.
            return view.finalised_at_ms is None and query.namespace in (None, view.namespace)

        def show(keys: OwnedKeys) -> Answer[MessagePage]:
            views = those_found([self._commands.get(self._id(origin)) for origin in keys.origins])
            return views.map(lambda found: MessagePage(list(filter(shown, found)), keys.next_page))

        return self._commands.after_flush(
            lambda: waiting_page(self._state.registry, self._journal.next_seq, query)
        ).and_then(show)

    def end_subject(self, subject: str, ending: Ending) -> Answer[int]:
        """End all that wait about a subject and that the ending is meant for; gives how many."""
        try:
            # Another owner may know of more.
            self._journal.check_shown()
            return self._end(self._state.subjects.of(subject), ending)
        except TarryError as error:
            return failed(error)

    def end_owner(self, owner: str, ending: Ending) -> Answer[int]:
        """End all of an owner's listed messages that the ending is meant for; gives how many."""
        found = self._commands.after_flush(lambda: origins_of(self._state.registry, owner))
        return found.and_then(lambda origins: self._end(origins, ending))

    def _end(self, origins: list[Key], ending: Ending) -> Answer[int]:
        # One that has ended meanwhile, or is being sent and arrives, needs no other end.
        return those_found([self._commands.end(self._id(origin), ending) for origin in origins]).map(len)

    def _id(self, origin: Key) -> str:
        return self._ids.make(origin.seq, origin.fire_at_ms)
