"""Entries of topics as JSON shows them.

What is due soon stands by with all but its entry id and the instant of its publication written out, so that when ten
thousand messages are due at one instant their answer is put together, and not made.
"""

from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, Final

import msgspec
from msgspec import UNSET

from tarry.doors.http.shapes import EntryAnswer
from tarry.engine.api import EntryBatch, EntrySpan, Received
from tarry.ledger.read_record import ReadPut

_HEAD: Final = b'{"entry_id":%%d,"published_at_ms":%d,'
"""The fields of an `EntryAnswer` that nobody knows before it is one; they come first. Filled in from the back."""

_encode: Final = msgspec.json.Encoder().encode


def prepare(puts: Sequence[ReadPut]) -> list[bytes]:
    """The JSON after the head of each entry that these versions become."""
    rest = len(_HEAD % 0 % 0)
    return [
        _encode(EntryAnswer(0, 0, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload)))[rest:]
        for put in puts
    ]


def show_each(entries: Sequence[Received]) -> list[bytes]:
    """Each entry as JSON. The message's id is a credential of its producer, so it is not there."""
    if isinstance(entries, EntryBatch):
        return [shown for span in entries.spans for shown in _each_of(span)]
    return list(map(_encode, map(_answer, entries)))


def _each_of(span: EntrySpan) -> Iterable[bytes]:
    if span.shown:
        return map(add, _heads(_HEAD, span), span.shown[span.places])
    return map(_encode, _answers_of(span))


def show_all(lots: Iterable[Sequence[Received]]) -> bytes:
    """A `ReceiveAnswer` with all of them."""
    pieces = [piece for entries in lots for piece in _pieces(entries)]
    if pieces:
        # Each begins with a comma.
        pieces[0] = pieces[0][1:]
    return b"".join((b'{"messages":[', *pieces, b"]}\n"))


def _pieces(entries: Sequence[Received]) -> list[bytes]:
    if isinstance(entries, EntryBatch):
        return [piece for span in entries.spans for piece in _pieces_of(span)]
    return [_listed(list(map(_answer, entries)))] if entries else []


def _pieces_of(span: EntrySpan) -> list[bytes]:
    if not span.shown:
        return [_listed(_answers_of(span))]
    # Not put together one by one: what is not allocated need not be had from the kernel at the due instant.
    pieces = [b""] * (2 * len(span.entry_ids))
    pieces[::2] = _heads(b"," + _HEAD, span)
    pieces[1::2] = span.shown[span.places]
    return pieces


def _listed(answers: list[EntryAnswer]) -> bytes:
    return b"," + _encode(answers)[1:-1]


def _heads(head: bytes, span: EntrySpan) -> Iterable[bytes]:
    # The instant, which is that of all, is written once: that is nearly half of the work.
    return map((head % span.published_at_ms).__mod__, span.entry_ids)


def _answers_of(span: EntrySpan) -> list[EntryAnswer]:
    # By position: this is done for every message, and names cost half of it.
    at_ms = span.published_at_ms
    return [
        EntryAnswer(entry_id, at_ms, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload))
        for entry_id, put in zip(span.entry_ids, span.puts[span.places], strict=True)
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
