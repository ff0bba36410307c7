"""Entries of topics as JSON shows them.

What is due soon is read ahead, and all but its entry id and the instant of its publication is written out here then, so that when
ten thousand messages are due at one instant their answer is put together, and not made. The cache is this door's: it is kept by
the batches that were read ahead, and goes with them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import add
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET

from tarry.doors.http.shapes import EntryAnswer
from tarry.engine.api import DueBatch, EntryBatch, Received

_HEAD: Final = b'{"entry_id":%%d,"published_at_ms":%d,'
"""The fields of an `EntryAnswer` that nobody knows before it is one; they come first. Filled in from the back."""

_encode: Final = msgspec.json.Encoder().encode


class EntryJson:
    """Writes entries as JSON, those of a burst out of JSON that it has written ahead."""

    def __init__(self) -> None:
        self._prepared: WeakKeyDictionary[DueBatch, list[bytes]] = WeakKeyDictionary()
        """By batch: the JSON after the head of each entry that its versions become."""

    def prepare(self, batch: DueBatch) -> int:
        """Write ahead the fields that are known of the entries that a batch's versions become; gives the bytes held now."""
        rest = len(_HEAD % 0 % 0)
        puts: Sequence[Any] = batch.read
        self._prepared[batch] = written = [
            _encode(EntryAnswer(0, 0, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload)))[rest:]
            for put in puts
        ]
        return sum(map(len, written))

    def prepared(self, batch: DueBatch, rows: slice) -> list[bytes] | None:
        """The JSON after the head of each entry that some rows of a batch are, if it was written ahead."""
        whole, places = batch.source or (batch, None)
        written = self._prepared.get(whole)
        if written is None or places is None:
            return None if written is None else written[rows]
        return [written[place] for place in places[rows]]

    def show_each(self, entries: Sequence[Received]) -> list[bytes]:
        """Each entry as JSON. The message's id is a credential of its producer, so it is not there."""
        return self._pieces(entries, _EACH)

    def show_all(self, batches: Iterable[Sequence[Received]]) -> bytes:
        """A `ReceiveAnswer` with all of them."""
        pieces = [piece for entries in batches for piece in self._pieces(entries, _LISTED)]
        if pieces:
            # Each begins with a comma.
            pieces[0] = pieces[0][1:]
        return b"".join((b'{"messages":[', *pieces, b"]}\n"))

    def _pieces(self, entries: Sequence[Received], form: "_Form") -> list[bytes]:
        """The JSON of entries in pieces of a form, out of JSON that was written ahead where there is any."""
        if not isinstance(entries, EntryBatch):
            return form.written(map(_answer, entries)) if entries else []
        pieces: list[bytes] = []
        for batch, rows in entries.rows:
            ahead = self.prepared(batch, rows)
            if ahead is None:
                pieces += form.written(_answers_of(batch, rows))
            else:
                # The instant, which is that of all, is written once: that is nearly half of the work.
                head = (form.before + _HEAD) % batch.fired_at_ms
                pieces += form.joined(map(head.__mod__, batch.entry_ids(rows)), ahead)
        return pieces


class _Form(NamedTuple):
    """How pieces of JSON are cut: one for each entry, or as they are soonest done where they will stand in a list."""

    before: bytes
    """The first byte of an entry, if there is one."""
    written: Callable[[Iterable[EntryAnswer]], list[bytes]]
    """Writes entries of which nothing was written ahead."""
    joined: Callable[[Iterable[bytes], list[bytes]], Iterable[bytes]]
    """Puts heads before what was written ahead."""


def _listed(answers: Iterable[EntryAnswer]) -> list[bytes]:
    # One call for all takes half of the time.
    together = list(answers)
    return [b"," + _encode(together)[1:-1]]


def _beside(heads: Iterable[bytes], ahead: list[bytes]) -> list[bytes]:
    # Not put together one by one: what is not allocated need not be had from the kernel at the due instant.
    pieces = [b""] * (2 * len(ahead))
    pieces[::2] = heads
    pieces[1::2] = ahead
    return pieces


_EACH: Final = _Form(b"", lambda answers: list(map(_encode, answers)), partial(map, add))
_LISTED: Final = _Form(b",", _listed, _beside)


def _answers_of(batch: DueBatch, rows: slice) -> list[EntryAnswer]:
    # By position: this is done for every message, and names cost half of it.
    puts: Sequence[Any] = batch.read[rows]
    at_ms = batch.fired_at_ms
    return [
        EntryAnswer(entry_id, at_ms, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload))
        for entry_id, put in zip(batch.entry_ids(rows), puts, strict=True)
    ]


def _answer(entry: Received) -> EntryAnswer:
    return EntryAnswer(
        entry.entry_id, entry.published_at_ms, entry.due_at_ms, entry.redelivery_count, entry.headers,
        entry.key, *_payload(entry.payload),
    )  # fmt: skip


def _payload(payload: bytes) -> tuple[Any, ...]:
    """The last two fields: as text if it is text, else in base64."""
    try:
        return (payload.decode(),)
    except UnicodeDecodeError:
        return UNSET, payload
