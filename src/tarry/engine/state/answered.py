"""Requests that have got their answers, by idempotency key: a row for each, and a page of neighbours for lines of one request.

A page holds answers as columns, so that a line costs the registry a few dozen bytes of a row instead of a row.
"""

from tarry.core.messages.line_keys import place_of
from tarry.core.tenants.holder import Holder
from tarry.engine.records.changes import KeyedLines
from tarry.ledger.record import Key
from tarry.registry.lines_row import LinesRow
from tarry.registry.registry import Registry, RepeatRow


class Answered:
    """The answers of requests with idempotency keys, for as long as their retention says."""

    def __init__(self, registry: Registry) -> None:
        self._rows = registry.idempotency
        self._pages = registry.lines

    def get(self, holder: Holder, key: str) -> RepeatRow | None:
        """The answer to the request of a holder with a key; None if there was none."""
        place = place_of(key)
        if place is None:
            return self._rows.get(*holder, key)
        page = self._pages.get(*holder, place.request, place.page)
        answer = None if page is None else page.find(place.line)
        if answer is None:
            return None
        fire_at_ms, seq, due_at_ms, accepted_at_ms = answer.numbers
        past = due_at_ms is not None and due_at_ms < accepted_at_ms
        return RepeatRow(answer.fingerprint, Key(fire_at_ms, seq), due_at_ms, past, accepted_at_ms)

    def any_of(self, holder: Holder, request: str, page: int, lines: bytes) -> bool:
        """Whether there is an answer to one of these lines of a page."""
        there = self._pages.get(*holder, request, page)
        return there is not None and not set(lines).isdisjoint(there.lines)

    def put(self, holder: Holder, key: str, row: RepeatRow) -> None:
        """A request has got its answer."""
        place = place_of(key)
        if place is None:
            self._rows.put((*holder, key), row, (row.accepted_at_ms,))
            return
        where = (*holder, place.request, place.page)
        page = (self._pages.get(*where) or LinesRow()).without(place.line)
        added = page.with_line(place.line, row.fingerprint, *row.origin, row.due_at_ms, row.accepted_at_ms)
        self._pages.put(where, added, (row.accepted_at_ms,))

    def put_lines(self, first_seq: int, lines: KeyedLines) -> None:
        """Lines of a page have got their answers, in a unit that begins with a seq; there were none before."""
        where = (*lines.holder, lines.request, lines.page)
        page = self._pages.get(*where) or LinesRow()
        answers = lines.answers.copy()
        answers["seq"] = first_seq + lines.places
        added = LinesRow(page.lines + lines.lines, page.answers + answers.tobytes())
        self._pages.put(where, added, (lines.accepted_at_ms,))
