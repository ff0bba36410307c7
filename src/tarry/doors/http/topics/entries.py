"""Entries of topics as JSON shows them.

What is due soon is read ahead, and all but its entry id and the instant of its publication is written out here then, so that when
ten thousand messages are due at one instant their answer is put together, and not made. The cache is this door's: it is kept by
the batches that were read ahead, and goes with them.
"""

from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, Final
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
        if isinstance(entries, EntryBatch):
            return [shown for rows in entries.rows for shown in self._each_of(*rows)]
        return list(map(_encode, map(_answer, entries)))

    def _each_of(self, batch: DueBatch, rows: slice) -> Iterable[bytes]:
        prepared = self.prepared(batch, rows)
        if prepared is not None:
            return map(add, _heads(_HEAD, batch, rows), prepared)
        return map(_encode, _answers_of(batch, rows))

    def show_all(self, lots: Iterable[Sequence[Received]]) -> bytes:
        """A `ReceiveAnswer` with all of them."""
        pieces = [piece for entries in lots for piece in self._pieces(entries)]
        if pieces:
            # Each begins with a comma.
            pieces[0] = pieces[0][1:]
        return b"".join((b'{"messages":[', *pieces, b"]}\n"))

    def _pieces(self, entries: Sequence[Received]) -> list[bytes]:
        if isinstance(entries, EntryBatch):
            return [piece for rows in entries.rows for piece in self._pieces_of(*rows)]
        return [_listed(list(map(_answer, entries)))] if entries else []

    def _pieces_of(self, batch: DueBatch, rows: slice) -> list[bytes]:
        prepared = self.prepared(batch, rows)
        if prepared is None:
            return [_listed(_answers_of(batch, rows))]
        # Not put together one by one: what is not allocated need not be had from the kernel at the due instant.
        pieces = [b""] * (2 * len(prepared))
        pieces[::2] = _heads(b"," + _HEAD, batch, rows)
        pieces[1::2] = prepared
        return pieces


def _listed(answers: list[EntryAnswer]) -> bytes:
    return b"," + _encode(answers)[1:-1]


def _heads(head: bytes, batch: DueBatch, rows: slice) -> Iterable[bytes]:
    # The instant, which is that of all, is written once: that is nearly half of the work.
    return map((head % batch.fired_at_ms).__mod__, batch.entry_ids(rows))


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
