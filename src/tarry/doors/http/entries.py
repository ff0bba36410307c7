"""Entries of topics as JSON shows them.

What is due soon stands by with all but its entry id and the instant of its publication written out, so that when ten
thousand messages are due at one instant their answer is put together, and not made.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import add
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET

from tarry.doors.http.shapes import EntryAnswer
from tarry.engine.consumer import Received
from tarry.engine.sheaf import Sheaf
from tarry.ledger.read_record import ReadPut

_HEAD: Final = b'{"entry_id":%%d,"published_at_ms":%d,'
"""The fields of an `EntryAnswer` that nobody knows before it is one; they come first. Filled in from the back."""

_encode: Final = msgspec.json.Encoder().encode


def prepare(puts: Sequence[ReadPut]) -> list[bytes]:
    """What follows the head of each entry that these versions become."""
    rest = len(_HEAD % 0 % 0)
    return [
        _encode(EntryAnswer(0, 0, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload)))[rest:]
        for put in puts
    ]


def show_each(entries: Sequence[Received]) -> list[bytes]:
    """Each entry as JSON. The message's id is a credential of its producer, so it is not there."""
    if isinstance(entries, Sheaf) and entries.shown:
        return list(map(add, _heads(_HEAD, entries), entries.shown))
    return list(map(_encode, _answers(entries)))


def show_all(lots: Iterable[Sequence[Received]]) -> bytes:
    """A `ReceiveAnswer` with all of them."""
    pieces = [piece for entries in lots for piece in _pieces(entries)]
    if pieces:
        # Each begins with a comma.
        pieces[0] = pieces[0][1:]
    return b"".join((b'{"messages":[', *pieces, b"]}"))


def _pieces(entries: Sequence[Received]) -> list[bytes]:
    if isinstance(entries, Sheaf) and entries.shown:
        # Not put together one by one: what is not allocated need not be had from the kernel at the due instant.
        pieces = [b""] * (2 * len(entries))
        pieces[::2] = _heads(b"," + _HEAD, entries)
        pieces[1::2] = entries.shown
        return pieces
    return [b"," + _encode(_answers(entries))[1:-1]] if entries else []


def _heads(head: bytes, entries: Sheaf) -> Iterator[bytes]:
    # Of those that were published together the instant is written once: that is nearly half of the work.
    instants = np.frombuffer(entries.published_at_ms, np.int64)
    cuts = (np.flatnonzero(np.diff(instants)) + 1).tolist()
    for start, stop in pairwise((0, *cuts, len(entries))):
        fill = (head % instants[start]).__mod__
        yield from map(fill, entries.entry_ids[start:stop])


def _answers(entries: Sequence[Received]) -> list[EntryAnswer]:
    # By position: this is done for every message, and names cost half of it. Of a sheaf from its columns, as quick again.
    if isinstance(entries, Sheaf):
        columns = zip(entries.entry_ids, entries.published_at_ms, entries.puts, strict=True)
        return [
            EntryAnswer(entry_id, at_ms, put.due_at_ms, 0, put.headers, put.key, *_payload(put.payload))
            for entry_id, at_ms, put in columns
        ]
    return [
        EntryAnswer(
            entry.entry_id, entry.published_at_ms, entry.due_at_ms, entry.redelivery_count, entry.headers,
            entry.key, *_payload(entry.payload),
        )
        for entry in entries
    ]  # fmt: skip


def _payload(payload: bytes) -> tuple[Any, ...]:
    """The last two fields: as text if it is text, else in base64."""
    try:
        return (payload.decode(),)
    except UnicodeDecodeError:
        return UNSET, payload
