"""An owner's listed messages, page by page: those that wait, the next due first, and those that ended, the last first.

Pages are cut by keys, so that what comes and goes in between moves nothing. What waits may also be restarted in between,
and so go from a place that was shown to one that was not, or the other way round. A walk therefore has two parts.
First come, in the order of their due instants, the messages that have not moved since the walk began; then, in the order
of their acceptance, which never changes, those that have. So none is missed, the walk ends however often they move, and
at most a message is shown once more, as it is then.
"""

import struct
from typing import Final, NamedTuple

from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessageView, OwnedQuery
from tarry.engine.queries.paging import MAX_NUMBER, check_limit, make_token, no_page, read_token
from tarry.engine.queries.views import ended_view
from tarry.engine.state.names import Names
from tarry.ledger.record import Key
from tarry.registry.registry import LiveRow, Registry

_LAST: Final = (MAX_NUMBER, MAX_NUMBER)

_UNMOVED, _MOVED, _ENDED = range(3)
_place = struct.Struct(">BQQQ")


class PagePlace(NamedTuple):
    """Where a walk is: its part, the seq at which it began, and the key of the last message that it has passed."""

    part: int
    began_seq: int
    after: tuple[int, int]

    def token(self) -> str:
        """As the `next_page` of a page."""
        return make_token(_place, self.part, self.began_seq, *self.after)


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
            if moved == (at.part == _MOVED):
                if len(found) == limit:
                    return OwnedKeys(found, at.token())
                found.append(live.origin)
            at = at._replace(after=(due_at_ms, seq) if at.part == _UNMOVED else (0, seq))
        if len(rows) <= limit:
            if at.part == _MOVED:
                return OwnedKeys(found, None)
            at = PagePlace(_MOVED, at.began_seq, (0, 0))


def _rows(
    registry: Registry, owner: str, at: PagePlace, limit: int
) -> list[tuple[tuple[int], tuple[str, int], LiveRow]]:
    live = registry.live
    if at.part == _UNMOVED:
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


def _read(page: str | None, parts: tuple[int, ...]) -> PagePlace | None:
    if page is None:
        return None
    part, began_seq, first, second = read_token(_place, page)
    if part not in parts:
        raise no_page()
    return PagePlace(part, began_seq, (first, second))
